//! The exact C calls that the safe layer makes: for each method, for each code that NCCL may return, and for each
//! way in which a communicator may end.

mod calls;
mod codes;
mod endings;
#[path = "../support/executor.rs"]
#[expect(dead_code, reason = "one of its functions is for several ranks")]
mod executor;
#[path = "../support/fake_nccl/mod.rs"]
mod fake_nccl;
mod fixture;
mod futures;
mod groups;
mod guards;
mod waiting;
