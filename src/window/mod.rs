//! Windows: memory of a communicator that other ranks write.

mod owned_window;
#[allow(clippy::module_inception)] // The type has the name of the room.
mod window;

pub use owned_window::OwnedWindow;
pub use window::{Window, WindowFlags};
