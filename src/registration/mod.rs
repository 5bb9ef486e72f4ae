//! Memory that NCCL knows: registrations, and windows, which other ranks write. Each is borrowed from its communicator or
//! owned, and its end is the same.

mod owned_registration;
mod owned_window;
mod registered;
mod registered_window;
#[allow(clippy::module_inception)] // The type has the name of the module.
mod registration;
mod window;

pub use owned_registration::OwnedRegistration;
pub use owned_window::OwnedWindow;
pub use registration::Registration;
pub use window::{Window, WindowFlags};
