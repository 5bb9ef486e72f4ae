//! The operations of communicators.
//!
//! Each operation is a method of [`Communicator`](crate::communicator::Communicator) with a private function for its rules and
//! its C call, in the same file: [`collectives`], [`point_to_point`], [`vector`] or [`one_sided`]. All operations go through
//! [`call`].

mod call;
mod collectives;
mod composed;
mod on_stream;
mod one_sided;
mod point_to_point;
mod rules;
mod vector;

pub(crate) use call::Call;
pub use on_stream::{CallOptions, OnStream};
pub use one_sided::{Signal, WaitSignal, WindowOffset};
