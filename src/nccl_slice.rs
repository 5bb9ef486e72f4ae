#![allow(unsafe_code)] // Declares unsafe methods.

use std::ops::Range;

use crate::{DeviceSlice, DeviceSliceMut, Element, NcclBuffer, RecvBuffer, SendBuffer, StreamRef};

/// A part of an [`NcclBuffer`] for an operation to read; see [`NcclBuffer::get`].
#[derive(Debug, Clone, Copy)]
pub struct NcclSlice<'a, T: Element> {
    buffer: &'a NcclBuffer<T>,
    start: usize,
    length: usize,
}

/// A part of an [`NcclBuffer`] for an operation to write; see [`NcclBuffer::get_mut`].
#[derive(Debug)]
pub struct NcclSliceMut<'a, T: Element> {
    buffer: &'a mut NcclBuffer<T>,
    start: usize,
    length: usize,
}

impl<'a, T: Element> NcclSlice<'a, T> {
    /// Makes a part of `buffer`; the caller has checked that `range` is in bounds.
    pub(crate) fn new(buffer: &'a NcclBuffer<T>, range: Range<usize>) -> Self {
        Self { buffer, start: range.start, length: range.len() }
    }

    /// Returns the number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Returns `true` if there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }
}

impl<'a, T: Element> NcclSliceMut<'a, T> {
    /// Makes a part of `buffer`; the caller has checked that `range` is in bounds.
    pub(crate) fn new(buffer: &'a mut NcclBuffer<T>, range: Range<usize>) -> Self {
        Self { buffer, start: range.start, length: range.len() }
    }

    /// Returns the number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Returns `true` if there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }
}

impl<'a, T: Element> SendBuffer<'a> for NcclSlice<'a, T> {
    type Element = T;
    type Guard = ();

    unsafe fn into_view(self, _: StreamRef<'a>) -> (DeviceSlice<'a, T>, ()) {
        (self.buffer.view().slice(self.start, self.length), ())
    }
}

impl<'a, T: Element> RecvBuffer<'a> for NcclSliceMut<'a, T> {
    type Element = T;
    type Guard = ();

    unsafe fn into_view(self, _: StreamRef<'a>) -> (DeviceSliceMut<'a, T>, ()) {
        (self.buffer.view_mut().slice_mut(self.start, self.length), ())
    }
}
