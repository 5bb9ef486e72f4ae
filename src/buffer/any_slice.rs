#![allow(unsafe_code)] // Constructors of views.

use std::ffi::c_void;

use super::slice::RawSlice;
use crate::buffer::{DeviceSlice, DeviceSliceMut};
use crate::data_type::{DataType, Element};
use crate::error::{Error, InvalidArgumentKind, Result};

/// A view like [`DeviceSlice`], with an element type that is known at run time only.
///
/// All operations accept it. Two views of one operation must have the same type.
///
/// ```
/// use libnccl::{DataType, ReduceOp, StreamRef, buffer::{AnySlice, AnySliceMut}};
///
/// let comms = libnccl_cpu::nccl().init_all(&[0])?;
/// let (send, mut recv) = ([1_u8, 2, 3], [0_u8; 3]);
/// let data_type: DataType = "uint8".parse().expect("a name of a type");
/// let from = AnySlice::from_bytes(data_type, &send)?;
/// let to = AnySliceMut::from_bytes(data_type, &mut recv)?;
/// comms[0].all_reduce(from, to, ReduceOp::Sum, StreamRef::DEFAULT)?;
/// assert_eq!(recv, [1, 2, 3]);
/// # Ok::<(), libnccl::Error>(())
/// ```
///
/// A typed view becomes one by [`DeviceSlice::into_any`]. For bytes in buffers of other crates, see
/// [`AnyBuffer`](crate::buffer::AnyBuffer).
pub type AnySlice<'a> = DeviceSlice<'a, AnyElement>;

/// A view like [`DeviceSliceMut`], with an element type that is known at run time only; see [`AnySlice`].
pub type AnySliceMut<'a> = DeviceSliceMut<'a, AnyElement>;

/// The element of an [`AnySlice`], of which there is no value.
#[derive(Debug, Clone, Copy)]
pub enum AnyElement {}

/// The elements of a buffer: an [`Element`] type, or [`AnyElement`]. For an example, see
/// [`RecvBuffer`](crate::buffer::RecvBuffer).
pub trait BufferElement: Copy + Send + Sync + 'static + Sealed {}

impl<T: Element> BufferElement for T {}
impl BufferElement for AnyElement {}

pub trait Sealed {
    /// Set if all elements have the type that the compiler knows.
    #[doc(hidden)]
    const HAS_TYPE: bool;
}

impl<T: Element> Sealed for T {
    const HAS_TYPE: bool = true;
}
impl Sealed for AnyElement {
    const HAS_TYPE: bool = false;
}

impl<'a> AnySlice<'a> {
    /// Borrows host memory as elements of `data_type`; for an example, see [`AnySlice`].
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the length or the address is no multiple of the type's size.
    pub fn from_bytes(data_type: DataType, bytes: &'a [u8]) -> Result<Self> {
        let view = DeviceSlice::from(bytes).elements_of(data_type);
        check_layout("AnySlice::from_bytes", &view.raw()).map(|()| view)
    }

    /// Borrows `bytes` bytes of device memory as elements of `data_type`. Buffers of bytes of other crates need no address:
    /// see [`AnyBuffer`](crate::buffer::AnyBuffer).
    ///
    /// ```
    /// use libnccl::{DataType, buffer::AnySlice};
    ///
    /// let (address, bytes) = (0x7f00_0000_0002_usize as *const std::ffi::c_void, 6);
    /// // SAFETY: no operation uses the view.
    /// let view = unsafe { AnySlice::from_raw_bytes(DataType::Bfloat16, address, bytes) };
    /// assert_eq!(view.map(|view| view.len()).ok(), Some(3));
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the length or the address is no multiple of the type's size.
    ///
    /// # Safety
    /// As for [`DeviceSlice::from_raw_parts`], with the elements that `bytes` bytes are.
    pub unsafe fn from_raw_bytes(data_type: DataType, pointer: *const c_void, bytes: usize) -> Result<Self> {
        // SAFETY: the caller guarantees that the memory is valid until the work has run.
        let view = unsafe { DeviceSlice::<u8>::from_raw_parts(pointer.cast(), bytes) }.elements_of(data_type);
        check_layout("AnySlice::from_raw_bytes", &view.raw()).map(|()| view)
    }
}

impl<'a> AnySliceMut<'a> {
    /// Borrows host memory as elements of `data_type`; for an example, see [`AnySlice`].
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the length or the address is no multiple of the type's size.
    pub fn from_bytes(data_type: DataType, bytes: &'a mut [u8]) -> Result<Self> {
        let view = DeviceSliceMut::from(bytes).elements_of(data_type);
        check_layout("AnySliceMut::from_bytes", &view.raw()).map(|()| view)
    }

    /// Borrows `bytes` bytes of device memory as elements of `data_type`; for an example, see
    /// [`AnySlice::from_raw_bytes`].
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the length or the address is no multiple of the type's size.
    ///
    /// # Safety
    /// As for [`DeviceSliceMut::from_raw_parts`], with the elements that `bytes` bytes are.
    pub unsafe fn from_raw_bytes(data_type: DataType, pointer: *mut c_void, bytes: usize) -> Result<Self> {
        // SAFETY: the caller guarantees that the memory is valid until the work has run.
        let view =
            unsafe { DeviceSliceMut::<u8>::from_raw_parts(pointer.cast(), bytes) }.elements_of(data_type);
        check_layout("AnySliceMut::from_raw_bytes", &view.raw()).map(|()| view)
    }
}

/// Returns an error if the bytes are no whole number of elements, or their address is no multiple of the type's size.
pub(crate) fn check_layout(call: &'static str, buffer: &RawSlice) -> Result<()> {
    let (data_type, (pointer, bytes)) = (buffer.data_type(), buffer.as_raw_bytes());
    let size = data_type.size();
    if !bytes.is_multiple_of(size) {
        let problem = format!("{bytes} bytes are no multiple of {size}, the size of {data_type}");
        return Err(Error::argument(call, InvalidArgumentKind::Length, problem));
    }
    if bytes > 0 && !pointer.addr().is_multiple_of(size) {
        let problem = format!("the address {pointer:?} is no multiple of {size}, the size of {data_type}");
        return Err(Error::argument(call, InvalidArgumentKind::Address, problem));
    }
    Ok(())
}
