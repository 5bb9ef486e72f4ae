#![allow(unsafe_code)] // Declares unsafe methods.

use std::ops::RangeBounds;

use super::slice::checked_range;
use crate::buffer::{BufferResult, DeviceSlice, DeviceSliceMut, NcclBuffer, RecvBuffer, SendBuffer};
use crate::data_type::Element;
use crate::stream::StreamRef;

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

impl<T: Element> NcclBuffer<T> {
    /// Returns a part for an operation to read; `None` if the range is out of bounds. For an example, see
    /// [`get_mut`](Self::get_mut).
    #[must_use]
    pub fn get(&self, range: impl RangeBounds<usize>) -> Option<NcclSlice<'_, T>> {
        let range = checked_range(range, self.len())?;
        Some(NcclSlice { buffer: self, start: range.start, length: range.len() })
    }

    /// Returns a part for an operation to write; `None` if the range is out of bounds.
    ///
    /// ```
    /// use libnccl::{ReduceOp, StreamRef};
    ///
    /// let nccl = libnccl_cpu::nccl();
    /// let comm = nccl.init_all(&[0])?.remove(0);
    /// let mut buffer = nccl.alloc::<f32>(4)?;
    /// let last = buffer.get_mut(3..).expect("it has 4 elements");
    /// comm.all_reduce(&[5.0], last, ReduceOp::Sum, StreamRef::DEFAULT)?;
    /// assert_eq!(buffer.as_slice(), Some(&[0.0, 0.0, 0.0, 5.0][..]));
    /// # Ok::<(), libnccl::Error>(())
    /// ```
    #[must_use]
    pub fn get_mut(&mut self, range: impl RangeBounds<usize>) -> Option<NcclSliceMut<'_, T>> {
        let range = checked_range(range, self.len())?;
        Some(NcclSliceMut { buffer: self, start: range.start, length: range.len() })
    }
}

/// Defines what the two parts have in common: their length, and the view for an operation.
macro_rules! parts {
    ($($part:ident is $argument:ident: $slice:ident by $view:ident;)*) => {$(
        impl<T: Element> $part<'_, T> {
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

        impl<'a, T: Element> $argument<'a> for $part<'a, T> {
            type Element = T;
            type Guard = ();

            unsafe fn into_view(self, _: StreamRef<'a>) -> BufferResult<($slice<'a, T>, ())> {
                Ok((self.buffer.$view().slice(self.start, self.length), ()))
            }
        }
    )*};
}

parts! {
    NcclSlice is SendBuffer: DeviceSlice by view;
    NcclSliceMut is RecvBuffer: DeviceSliceMut by view_mut;
}
