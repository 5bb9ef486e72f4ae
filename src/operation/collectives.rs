//! The collectives with one count: the public methods first, their rules and C calls below.
#![allow(unsafe_code)] // Calls C.

use std::iter;

use super::call::{Call, nccl};
use super::on_stream::OnStream;
use crate::buffer::{Buffer, BufferMut};
use crate::communicator::Communicator;
use crate::error::{InvalidArgumentKind, Result};
use crate::observer::Operation;
use crate::reduce_op::{Operator, RawOperator, ReduceOp};

/// # Operations
/// All ranks must call the same collectives in the same order. Operations return when their work is enqueued on the stream. On
/// host memory, they return when their work is complete. Counts are in elements, not bytes. Many operations take the count from
/// the length of one buffer; other buffers may be longer than needed.
///
/// The last argument of each operation is its stream. [`CallOptions`](crate::operation::CallOptions) add options to the stream,
/// and [`Group::stream`](crate::group::Group::stream) adds the operation to a group.
///
/// # Errors of operations
/// Every operation may return:
///
/// - [`Error::InvalidArgument`](crate::error::Error::InvalidArgument) for a rank out of range, or for a buffer that is too short,
///   not ready, in the wrong memory, on the wrong device, or of the wrong data type; the operation is not started;
/// - [`Error::InvalidUsage`](crate::error::Error::InvalidUsage) if a group is open on this thread and the operation is not part
///   of it, if an earlier group with the communicator has failed, or if the communicator is [suspended](Self::suspend);
/// - [`Error::Unsupported`](crate::error::Error::Unsupported) if the library lacks the operation, the element type or an option;
/// - [`Error::Nccl`](crate::Error::Nccl) if NCCL fails;
/// - [`Error::Timeout`](crate::error::Error::Timeout) after the communicator's timeout, and
///   [`Error::Aborted`](crate::error::Error::Aborted) after an abort.
impl Communicator {
    /// Combines the `send` buffers of all ranks element by element; every rank receives the result. The count is the length of
    /// `send`; `recv` must hold at least as many elements.
    ///
    /// ```
    /// use libnccl::{ReduceOp, StreamRef};
    ///
    /// libnccl_cpu::run_ranks(2, |comm| {
    ///     let mut sums = [0; 2];
    ///     comm.all_reduce(&[10, comm.rank() as i32], &mut sums, ReduceOp::Sum, StreamRef::DEFAULT)?;
    ///     assert_eq!(sums, [20, 1]);
    ///     comm.all_reduce_in_place(&mut sums, ReduceOp::Max, StreamRef::DEFAULT)
    /// })?;
    /// # Ok::<(), libnccl::Error>(())
    /// ```
    #[doc(alias = "ncclAllReduce")]
    #[doc(alias = "ncclAllReduceConfig")]
    #[track_caller]
    pub fn all_reduce<'b, 'c, T>(
        &'c self,
        send: impl Buffer<'b, Element = T>,
        recv: impl BufferMut<'b, Element = T>,
        op: impl Into<Operator<'b, T>>,
        on: impl Into<OnStream<'b, 'c>>,
    ) -> Result<()> {
        let mut call = Call::new(self, const { Operation::of("all_reduce") }, on.into());
        call.with_buffers(send, recv, |call| call.all_reduce(op.into().raw))
    }

    /// Performs [`all_reduce`](Self::all_reduce) in place: the result replaces the elements that were sent.
    #[doc(alias = "ncclAllReduce")]
    #[track_caller]
    pub fn all_reduce_in_place<'b, 'c, T>(
        &'c self,
        buffer: impl BufferMut<'b, Element = T>,
        op: impl Into<Operator<'b, T>>,
        on: impl Into<OnStream<'b, 'c>>,
    ) -> Result<()> {
        let mut call = Call::new(self, const { Operation::of("all_reduce_in_place") }, on.into());
        call.with_recv_buffer(buffer, |call| call.all_reduce(op.into().raw))
    }

    /// Copies `send` of rank `root` to `recv` of every rank. The count is the length of `recv`. On the root, `send` must hold at
    /// least as many elements; on the other ranks, `send` is ignored and may be empty.
    ///
    /// ```
    /// use libnccl::StreamRef;
    ///
    /// libnccl_cpu::run_ranks(2, |comm| {
    ///     let send: &[i32] = if comm.rank() == 0 { &[1, 2] } else { &[] };
    ///     let mut recv = [0; 2];
    ///     comm.broadcast(send, &mut recv, 0, StreamRef::DEFAULT)?;
    ///     assert_eq!(recv, [1, 2]);
    ///     comm.broadcast_in_place(&mut recv, 1, StreamRef::DEFAULT)
    /// })?;
    /// # Ok::<(), libnccl::Error>(())
    /// ```
    #[doc(alias = "ncclBroadcast")]
    #[doc(alias = "ncclBroadcastConfig")]
    #[track_caller]
    pub fn broadcast<'b, 'c, T>(
        &'c self,
        send: impl Buffer<'b, Element = T>,
        recv: impl BufferMut<'b, Element = T>,
        root: usize,
        on: impl Into<OnStream<'b, 'c>>,
    ) -> Result<()> {
        let mut call = Call::new(self, const { Operation::of("broadcast") }, on.into());
        call.with_buffers(send, recv, |call| call.broadcast(root))
    }

    /// Copies `buffer` of rank `root` to `buffer` of every other rank.
    #[doc(alias = "ncclBroadcast")]
    #[doc(alias = "ncclBcast")]
    #[track_caller]
    pub fn broadcast_in_place<'b, 'c, T>(
        &'c self,
        buffer: impl BufferMut<'b, Element = T>,
        root: usize,
        on: impl Into<OnStream<'b, 'c>>,
    ) -> Result<()> {
        let mut call = Call::new(self, const { Operation::of("broadcast_in_place") }, on.into());
        call.with_recv_buffer(buffer, |call| call.broadcast(root))
    }

    /// Combines the `send` buffers of all ranks element by element; rank `root` receives the result. The count is the length of
    /// `send`. On the root, `recv` must hold at least as many elements; on the other ranks, `recv` is ignored and may be empty.
    ///
    /// ```
    /// use libnccl::{ReduceOp, StreamRef};
    ///
    /// libnccl_cpu::run_ranks(2, |comm| {
    ///     let (mut buffer, mut recv) = ([3, 4], vec![0; if comm.rank() == 0 { 2 } else { 0 }]);
    ///     comm.reduce(&buffer, &mut recv, ReduceOp::Prod, 0, StreamRef::DEFAULT)?;
    ///     comm.reduce_in_place(&mut buffer, ReduceOp::Prod, 0, StreamRef::DEFAULT)?;
    ///     assert_eq!(buffer, if comm.rank() == 0 { [9, 16] } else { [3, 4] });
    ///     assert!(comm.rank() > 0 || recv == buffer);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), libnccl::Error>(())
    /// ```
    #[doc(alias = "ncclReduce")]
    #[doc(alias = "ncclReduceConfig")]
    #[track_caller]
    pub fn reduce<'b, 'c, T>(
        &'c self,
        send: impl Buffer<'b, Element = T>,
        recv: impl BufferMut<'b, Element = T>,
        op: impl Into<Operator<'b, T>>,
        root: usize,
        on: impl Into<OnStream<'b, 'c>>,
    ) -> Result<()> {
        let mut call = Call::new(self, const { Operation::of("reduce") }, on.into());
        call.with_buffers(send, recv, |call| call.reduce(op.into().raw, root))
    }

    /// Performs [`reduce`](Self::reduce) in place: the result replaces the root's elements. The buffers of the other ranks do not
    /// change.
    #[doc(alias = "ncclReduce")]
    #[track_caller]
    pub fn reduce_in_place<'b, 'c, T>(
        &'c self,
        buffer: impl BufferMut<'b, Element = T>,
        op: impl Into<Operator<'b, T>>,
        root: usize,
        on: impl Into<OnStream<'b, 'c>>,
    ) -> Result<()> {
        let mut call = Call::new(self, const { Operation::of("reduce_in_place") }, on.into());
        call.with_recv_buffer(buffer, |call| call.reduce(op.into().raw, root))
    }

    /// Gathers the `send` buffers of all ranks, in rank order, on every rank. The count is the length of `send`; `recv` must hold
    /// at least count x [`size`](Self::size) elements.
    ///
    /// ```
    /// use libnccl::StreamRef;
    ///
    /// libnccl_cpu::run_ranks(2, |comm| {
    ///     let mut all = [0; 4];
    ///     comm.all_gather(&[comm.rank() as i32; 2], &mut all, StreamRef::DEFAULT)?;
    ///     assert_eq!(all, [0, 0, 1, 1]);
    ///     all[2 * comm.rank()..][..2].fill(7);
    ///     comm.all_gather_in_place(&mut all, StreamRef::DEFAULT)?;
    ///     assert_eq!(all, [7; 4]);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), libnccl::Error>(())
    /// ```
    #[doc(alias = "ncclAllGather")]
    #[doc(alias = "ncclAllGatherConfig")]
    #[track_caller]
    pub fn all_gather<'b, 'c, T>(
        &'c self,
        send: impl Buffer<'b, Element = T>,
        recv: impl BufferMut<'b, Element = T>,
        on: impl Into<OnStream<'b, 'c>>,
    ) -> Result<()> {
        let mut call = Call::new(self, const { Operation::of("all_gather") }, on.into());
        call.with_buffers(send, recv, |call| call.all_gather())
    }

    /// Performs [`all_gather`](Self::all_gather) in place. `buffer` consists of [`size`](Self::size) equal parts, and rank `i`
    /// sends part `i`.
    #[doc(alias = "ncclAllGather")]
    #[track_caller]
    pub fn all_gather_in_place<'b, 'c, T>(
        &'c self,
        buffer: impl BufferMut<'b, Element = T>,
        on: impl Into<OnStream<'b, 'c>>,
    ) -> Result<()> {
        let mut call = Call::new(self, const { Operation::of("all_gather_in_place") }, on.into());
        call.with_recv_buffer(buffer, |call| call.all_gather_in_place())
    }

    /// Combines the `send` buffers of all ranks element by element; rank `i` receives part `i` of the result. The count is the
    /// length of `recv`; `send` must hold at least count x [`size`](Self::size) elements.
    ///
    /// ```
    /// use libnccl::{ReduceOp, StreamRef};
    ///
    /// libnccl_cpu::run_ranks(2, |comm| {
    ///     let (mut all, mut part) = ([10, 20], [0]);
    ///     comm.reduce_scatter(&all, &mut part, ReduceOp::Sum, StreamRef::DEFAULT)?;
    ///     assert_eq!(part, if comm.rank() == 0 { [20] } else { [40] });
    ///     comm.reduce_scatter_in_place(&mut all, ReduceOp::Sum, StreamRef::DEFAULT)?;
    ///     assert_eq!(all[comm.rank()], part[0]);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), libnccl::Error>(())
    /// ```
    #[doc(alias = "ncclReduceScatter")]
    #[doc(alias = "ncclReduceScatterConfig")]
    #[track_caller]
    pub fn reduce_scatter<'b, 'c, T>(
        &'c self,
        send: impl Buffer<'b, Element = T>,
        recv: impl BufferMut<'b, Element = T>,
        op: impl Into<Operator<'b, T>>,
        on: impl Into<OnStream<'b, 'c>>,
    ) -> Result<()> {
        let mut call = Call::new(self, const { Operation::of("reduce_scatter") }, on.into());
        call.with_buffers(send, recv, |call| call.reduce_scatter(op.into().raw))
    }

    /// Performs [`reduce_scatter`](Self::reduce_scatter) in place. `buffer` consists of [`size`](Self::size) equal parts, and
    /// rank `i` receives its result in part `i`. The contents of the other parts are then undefined.
    #[doc(alias = "ncclReduceScatter")]
    #[track_caller]
    pub fn reduce_scatter_in_place<'b, 'c, T>(
        &'c self,
        buffer: impl BufferMut<'b, Element = T>,
        op: impl Into<Operator<'b, T>>,
        on: impl Into<OnStream<'b, 'c>>,
    ) -> Result<()> {
        let mut call = Call::new(self, const { Operation::of("reduce_scatter_in_place") }, on.into());
        call.with_recv_buffer(buffer, |call| call.reduce_scatter_in_place(op.into().raw))
    }

    /// Divides `send` into [`size`](Self::size) equal parts, and sends part `i` to rank `i`. Part `i` of `recv` receives the part
    /// that rank `i` sends to this rank. The length of `send` must be a multiple of the communicator's size. `recv` must hold at
    /// least as many elements.
    ///
    /// NCCL has this operation since 2.28.3. With older versions, this method uses grouped sends and receives, and returns
    /// [`Error::Unsupported`](crate::error::Error::Unsupported) if the call has [options](crate::operation::CallOptions::config).
    ///
    /// ```
    /// use libnccl::StreamRef;
    ///
    /// libnccl_cpu::run_ranks(2, |comm| {
    ///     let send = [10, 20].map(|part| part + comm.rank() as i32);
    ///     let mut recv = [0; 2];
    ///     comm.all_to_all(&send, &mut recv, StreamRef::DEFAULT)?;
    ///     assert_eq!(recv, if comm.rank() == 0 { [10, 11] } else { [20, 21] });
    ///     Ok(())
    /// })?;
    /// # Ok::<(), libnccl::Error>(())
    /// ```
    #[doc(alias = "ncclAlltoAll")]
    #[doc(alias = "ncclAlltoAllConfig")]
    #[track_caller]
    pub fn all_to_all<'b, 'c, T>(
        &'c self,
        send: impl Buffer<'b, Element = T>,
        recv: impl BufferMut<'b, Element = T>,
        on: impl Into<OnStream<'b, 'c>>,
    ) -> Result<()> {
        let mut call = Call::new(self, const { Operation::of("all_to_all") }, on.into());
        call.with_buffers(send, recv, |call| call.all_to_all())
    }

    /// Gathers the `send` buffers of all ranks, in rank order, on rank `root`. The count is the length of `send`. On the root,
    /// `recv` must hold at least count x [`size`](Self::size) elements; on the other ranks, `recv` is ignored and may be empty.
    ///
    /// NCCL has this operation since 2.28.3. With older versions, this method uses grouped sends and receives, and returns
    /// [`Error::Unsupported`](crate::error::Error::Unsupported) if the call has [options](crate::operation::CallOptions::config).
    ///
    /// ```
    /// use libnccl::StreamRef;
    ///
    /// libnccl_cpu::run_ranks(2, |comm| {
    ///     let mut all = vec![0; if comm.rank() == 0 { 2 } else { 0 }];
    ///     comm.gather(&[comm.rank() as i32], &mut all, 0, StreamRef::DEFAULT)?;
    ///     assert!(comm.rank() > 0 || all == [0, 1]);
    ///     let mut buffer = if comm.rank() == 0 { vec![10, 0] } else { vec![20] };
    ///     comm.gather_in_place(&mut buffer, 0, StreamRef::DEFAULT)?;
    ///     assert!(comm.rank() > 0 || buffer == [10, 20]);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), libnccl::Error>(())
    /// ```
    #[doc(alias = "ncclGather")]
    #[doc(alias = "ncclGatherConfig")]
    #[track_caller]
    pub fn gather<'b, 'c, T>(
        &'c self,
        send: impl Buffer<'b, Element = T>,
        recv: impl BufferMut<'b, Element = T>,
        root: usize,
        on: impl Into<OnStream<'b, 'c>>,
    ) -> Result<()> {
        let mut call = Call::new(self, const { Operation::of("gather") }, on.into());
        call.with_buffers(send, recv, |call| call.gather(root))
    }

    /// Performs [`gather`](Self::gather) in place. On the root, `buffer` consists of [`size`](Self::size) equal parts, and part
    /// `root` holds the root's elements. The root receives the `buffer` of rank `i` in part `i`.
    #[doc(alias = "ncclGather")]
    #[track_caller]
    pub fn gather_in_place<'b, 'c, T>(
        &'c self,
        buffer: impl BufferMut<'b, Element = T>,
        root: usize,
        on: impl Into<OnStream<'b, 'c>>,
    ) -> Result<()> {
        let mut call = Call::new(self, const { Operation::of("gather_in_place") }, on.into());
        call.with_recv_buffer(buffer, |call| call.gather_in_place(root))
    }

    /// Scatters `send` of rank `root`: rank `i` receives part `i`. The count is the length of `recv`. On the root, `send` must
    /// hold at least count x [`size`](Self::size) elements; on the other ranks, `send` is ignored and may be empty.
    ///
    /// NCCL has this operation since 2.28.3. With older versions, this method uses grouped sends and receives, and returns
    /// [`Error::Unsupported`](crate::error::Error::Unsupported) if the call has [options](crate::operation::CallOptions::config).
    ///
    /// ```
    /// use libnccl::StreamRef;
    ///
    /// libnccl_cpu::run_ranks(2, |comm| {
    ///     let send: &[i32] = if comm.rank() == 0 { &[10, 20] } else { &[] };
    ///     let mut part = [0];
    ///     comm.scatter(send, &mut part, 0, StreamRef::DEFAULT)?;
    ///     assert_eq!(part, if comm.rank() == 0 { [10] } else { [20] });
    ///     let mut buffer = if comm.rank() == 0 { vec![10, 20] } else { vec![0] };
    ///     comm.scatter_in_place(&mut buffer, 0, StreamRef::DEFAULT)?;
    ///     assert_eq!(buffer.last(), Some(&20));
    ///     Ok(())
    /// })?;
    /// # Ok::<(), libnccl::Error>(())
    /// ```
    #[doc(alias = "ncclScatter")]
    #[doc(alias = "ncclScatterConfig")]
    #[track_caller]
    pub fn scatter<'b, 'c, T>(
        &'c self,
        send: impl Buffer<'b, Element = T>,
        recv: impl BufferMut<'b, Element = T>,
        root: usize,
        on: impl Into<OnStream<'b, 'c>>,
    ) -> Result<()> {
        let mut call = Call::new(self, const { Operation::of("scatter") }, on.into());
        call.with_buffers(send, recv, |call| call.scatter(root))
    }

    /// Performs [`scatter`](Self::scatter) in place. On the root, `buffer` consists of [`size`](Self::size) equal parts, and part
    /// `root` remains in place. The other ranks receive into their `buffer`.
    #[doc(alias = "ncclScatter")]
    #[track_caller]
    pub fn scatter_in_place<'b, 'c, T>(
        &'c self,
        buffer: impl BufferMut<'b, Element = T>,
        root: usize,
        on: impl Into<OnStream<'b, 'c>>,
    ) -> Result<()> {
        let mut call = Call::new(self, const { Operation::of("scatter_in_place") }, on.into());
        call.with_recv_buffer(buffer, |call| call.scatter_in_place(root))
    }

    /// Waits until all ranks have reached the barrier. This is an all-reduce of the first element of `buffer`. The element must
    /// have the same type on all ranks. Its value is unspecified afterwards.
    ///
    /// On a GPU the *stream* waits: work that is enqueued on it afterwards runs only after the streams of all ranks have reached
    /// the barrier. Synchronize with the stream to make the host wait too. On host memory, all ranks have reached the barrier
    /// when this returns or, in a group, when the group ends.
    ///
    /// Outside a group, the operations of one communicator, including barriers, run one after the other. In a group, a barrier
    /// does not order the other operations.
    ///
    /// ```
    /// use libnccl::StreamRef;
    ///
    /// libnccl_cpu::run_ranks(2, |comm| comm.barrier(&mut [0_u8], StreamRef::DEFAULT))?;
    /// # Ok::<(), libnccl::Error>(())
    /// ```
    #[track_caller]
    pub fn barrier<'b, 'c, T>(
        &'c self,
        buffer: impl BufferMut<'b, Element = T>,
        on: impl Into<OnStream<'b, 'c>>,
    ) -> Result<()> {
        let mut call = Call::new(self, const { Operation::of("barrier") }, on.into());
        call.with_recv_buffer(buffer, |call| call.barrier())
    }
}

/// The rules of each operation, and its C call.
impl Call<'_, '_> {
    fn all_reduce(&mut self, op: RawOperator<'_>) -> Result<()> {
        let (op, count) = (self.operator(op)?, self.send.len());
        self.recv_holds("", count, 1)?;
        // SAFETY: both buffers hold `count` elements.
        self.submit(count, |call| unsafe {
            nccl!(
                call,
                ncclAllReduce | ncclAllReduceConfig(call.from(), call.to(), count, call.data_type(), op)
            )
        })
    }

    fn broadcast(&mut self, root: usize) -> Result<()> {
        let ((root, is_root), count) = (self.root(root)?, self.recv.len());
        if is_root {
            self.send_holds("root's ", count, 1)?;
        }
        // SAFETY: the receive buffer holds `count` elements, and the root's send buffer does.
        self.submit(count, |call| unsafe {
            nccl!(
                call,
                ncclBroadcast | ncclBroadcastConfig(call.from(), call.to(), count, call.data_type(), root)
            )
        })
    }

    fn reduce(&mut self, op: RawOperator<'_>, root: usize) -> Result<()> {
        let (op, (root, is_root), count) = (self.operator(op)?, self.root(root)?, self.send.len());
        if is_root {
            self.recv_holds("root's ", count, 1)?;
        }
        // SAFETY: the send buffer holds `count` elements, and the root's receive buffer does.
        self.submit(count, |call| unsafe {
            nccl!(
                call,
                ncclReduce | ncclReduceConfig(call.from(), call.to(), count, call.data_type(), op, root)
            )
        })
    }

    fn all_gather(&mut self) -> Result<()> {
        let count = self.send.len();
        self.recv_holds("", count, self.size())?;
        // SAFETY: the send buffer holds `count` elements, and the receive buffer as many for each rank.
        self.submit(count, |call| unsafe {
            nccl!(call, ncclAllGather | ncclAllGatherConfig(call.from(), call.to(), count, call.data_type()))
        })
    }

    fn all_gather_in_place(&mut self) -> Result<()> {
        self.send = self.own_part()?;
        self.all_gather()
    }

    fn reduce_scatter(&mut self, op: RawOperator<'_>) -> Result<()> {
        let (op, count) = (self.operator(op)?, self.recv.len());
        self.send_holds("", count, self.size())?;
        // SAFETY: the receive buffer holds `count` elements, and the send buffer as many for each rank.
        self.submit(count, |call| unsafe {
            nccl!(
                call,
                ncclReduceScatter
                    | ncclReduceScatterConfig(call.from(), call.to(), count, call.data_type(), op)
            )
        })
    }

    fn reduce_scatter_in_place(&mut self, op: RawOperator<'_>) -> Result<()> {
        self.operator(op)?;
        self.recv = self.own_part()?;
        self.reduce_scatter(op)
    }

    fn all_to_all(&mut self) -> Result<()> {
        let count = self.send_part()?;
        self.recv_holds("", count, self.size())?;
        if self.lacks(self.library().functions.ncclAlltoAll)? {
            let counts = iter::repeat_n(count, self.size());
            return self.submit(count, |call| call.exchange_parts(counts.clone(), counts));
        }
        // SAFETY: both buffers hold `count` elements for each rank.
        self.submit(count, |call| unsafe {
            nccl!(call, ncclAlltoAll | ncclAlltoAllConfig(call.from(), call.to(), count, call.data_type()))
        })
    }

    fn gather(&mut self, root: usize) -> Result<()> {
        let ((root, is_root), count) = (self.root(root)?, self.send.len());
        if is_root {
            self.recv_holds("root's ", count, self.size())?;
        }
        if self.lacks(self.library().functions.ncclGather)? {
            return self.submit(count, |call| call.gather_parts(root, iter::repeat_n(count, call.size())));
        }
        // SAFETY: the send buffer holds `count` elements, and the root's receive buffer as many for each rank.
        self.submit(count, |call| unsafe {
            nccl!(call, ncclGather | ncclGatherConfig(call.from(), call.to(), count, call.data_type(), root))
        })
    }

    fn gather_in_place(&mut self, root: usize) -> Result<()> {
        let (_, is_root) = self.root(root)?;
        if is_root {
            self.send = self.own_part()?;
        } else {
            self.recv = self.nothing();
        }
        self.gather(root)
    }

    fn scatter(&mut self, root: usize) -> Result<()> {
        let ((root, is_root), count) = (self.root(root)?, self.recv.len());
        if is_root {
            self.send_holds("root's ", count, self.size())?;
        }
        if self.lacks(self.library().functions.ncclScatter)? {
            return self.submit(count, |call| call.scatter_parts(root, iter::repeat_n(count, call.size())));
        }
        // SAFETY: the receive buffer holds `count` elements, and the root's send buffer as many for each rank.
        self.submit(count, |call| unsafe {
            nccl!(
                call,
                ncclScatter | ncclScatterConfig(call.from(), call.to(), count, call.data_type(), root)
            )
        })
    }

    fn scatter_in_place(&mut self, root: usize) -> Result<()> {
        let (_, is_root) = self.root(root)?;
        if is_root {
            self.recv = self.own_part()?;
        } else {
            self.send = self.nothing();
        }
        self.scatter(root)
    }

    /// Enqueues an all-reduce of one element: NCCL has no barrier, and skips operations without elements.
    fn barrier(&mut self) -> Result<()> {
        if self.recv.len() == 0 {
            return Err(self.wrong(InvalidArgumentKind::Length, "the buffer is empty; expected one element"));
        }
        let op = ReduceOp::Max.as_raw(); // It never overflows.
        // SAFETY: the buffer holds an element.
        self.submit(1, |call| unsafe {
            nccl!(call, ncclAllReduce | ncclAllReduceConfig(call.from(), call.to(), 1, call.data_type(), op))
        })
    }
}
