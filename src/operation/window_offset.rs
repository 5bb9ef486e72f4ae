use std::fmt;
use std::marker::PhantomData;

use crate::communicator::Shared;
use crate::{Element, sys};

/// An offset in a window; see [`Window::at`](crate::Window::at) and, for an example,
/// [`Communicator::put_signal`](crate::Communicator::put_signal).
#[derive(Clone, Copy)]
pub struct WindowOffset<'a, T: Element> {
    pub(super) target: Target<'a>,
    element: PhantomData<T>,
}

/// The offset, without the type of its elements.
#[derive(Clone, Copy)]
pub(crate) struct Target<'a> {
    pub(crate) shared: &'a Shared,
    /// The handle; null if the window is not active.
    pub(crate) window: sys::ncclWindow_t,
    pub(crate) length: usize,
    pub(crate) offset: usize,
}

impl<'a, T: Element> WindowOffset<'a, T> {
    pub(crate) fn new(target: Target<'a>) -> Self {
        Self { target, element: PhantomData }
    }
}

impl<T: Element> fmt::Debug for WindowOffset<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WindowOffset").field("offset", &self.target.offset).finish_non_exhaustive()
    }
}
