/// The kind of argument that [`Error::InvalidArgument`](crate::error::Error::InvalidArgument) is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum InvalidArgumentKind {
    /// The length of a buffer or a list: too short, too long, empty, or not a multiple of the number of ranks.
    Length,
    /// The memory space of a buffer: host memory with NCCL, or device memory with the CPU implementation.
    MemorySpace,
    /// The number of a CUDA device: that of a buffer or a stream is not the communicator's, or it is negative.
    Device,
    /// The element type of a buffer, which is not that of the other.
    DataType,
    /// An address or a handle: null, not a multiple of the alignment, or that of the default streams of threads.
    Address,
    /// A buffer that is not ready for the operation: [`Buffer::as_ptr`](crate::buffer::Buffer::as_ptr) returned an error.
    NotReady,
    /// A rank, root or peer out of range, or a number of ranks.
    Rank,
    /// A communicator of another library, or an object of another communicator.
    Communicator,
    /// Another value, such as an option or a name.
    Value,
}
