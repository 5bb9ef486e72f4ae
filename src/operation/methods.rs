//! The methods of the operations. Each operation is declared once, as a method of [`Operations`], of
//! [`Communicator`], which starts it at once, and of [`Group`], which starts it at the end of the group. An operation
//! with buffers is generic over their elements.

use super::arguments::Arguments;
use super::grouping::Grouping;
use super::operations::Operations;
use super::signal::{Signal, WaitSignal};
use super::window_offset::WindowOffset;
use crate::{
    BufferElement, Communicator, Element, Group, Operation, RecvBuffer, ReduceOp, Result, SendBuffer,
    StreamRef,
};

/// Returns the buffer that is sent and the one that is received; none is an empty one.
macro_rules! buffers {
    ($send:ident: SendBuffer, $recv:ident: RecvBuffer) => {
        ($send, $recv)
    };
    ($send:ident: SendBuffer) => {
        ($send, &mut [0_u8; 0])
    };
    ($recv:ident: RecvBuffer) => {
        (&[0_u8; 0], $recv)
    };
    () => {
        (&[0_u8; 0], &mut [0_u8; 0])
    };
}
pub(super) use buffers;

macro_rules! operations {
    ($(
        $(#[$documentation:meta])*
        $name:ident $(<$element:ident: $bound:ident>)? (
            $($buffer:ident: $direction:ident<$buffer_element:ident>),*; $($argument:ident: $type:ty),*
        );
    )*) => {
        impl<G> Operations<'_, G> {
            $(
                $(#[$documentation])*
                ///
                /// # Errors
                /// The errors of [every operation](Operations#errors).
                #[inline(always)]
                #[track_caller]
                pub fn $name<'b $(, $element: $bound)?>(
                    self,
                    $($buffer: impl $direction<'b, Element = $buffer_element>,)*
                    $($argument: $type,)*
                    stream: impl Into<StreamRef<'b>>,
                ) -> Result<()>
                where
                    G: Grouping<'b>,
                {
                    let arguments = Arguments::NONE$(.$argument($argument))*;
                    let (send, recv) = buffers!($($buffer: $direction),*);
                    self.start(const { Operation::of(stringify!($name)) }, send, recv, arguments, stream)
                }
            )*
        }

        /// Operations.
        ///
        /// All ranks call the same operations in the same order. They return when the work is enqueued on `stream`;
        /// on the CPU implementation, when it is complete. Counts are elements, not bytes. Buffers may be longer than
        /// needed, except those whose length is the count.
        impl Communicator {
            $(
                $(#[$documentation])*
                ///
                /// # Errors
                /// The errors of [every operation](Operations#errors).
                #[inline(always)]
                #[track_caller]
                pub fn $name<'b $(, $element: $bound)?>(
                    &self,
                    $($buffer: impl $direction<'b, Element = $buffer_element>,)*
                    $($argument: $type,)*
                    stream: impl Into<StreamRef<'b>>,
                ) -> Result<()> {
                    let arguments = Arguments::NONE$(.$argument($argument))*;
                    let (send, recv) = buffers!($($buffer: $direction),*);
                    self.operations().start(const { Operation::of(stringify!($name)) }, send, recv, arguments, stream)
                }
            )*
        }

        /// The operations of [`Communicator`], started when the group ends.
        impl<'b> Group<'b, '_> {
            $(
                $(#[$documentation])*
                ///
                /// # Errors
                /// The errors of [every operation](Operations#errors).
                #[inline(always)]
                #[track_caller]
                pub fn $name $(<$element: $bound>)? (
                    &'b self,
                    communicator: &'b Communicator,
                    $($buffer: impl $direction<'b, Element = $buffer_element>,)*
                    $($argument: $type,)*
                    stream: impl Into<StreamRef<'b>>,
                ) -> Result<()> {
                    self.on(communicator).$name($($buffer,)* $($argument,)* stream)
                }
            )*
        }
    };
}

operations! {
    /// Combines the `send` buffers of all ranks element by element; every rank receives the result. The count is the
    /// length of `send`; `recv` holds at least as many elements.
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
    all_reduce<T: BufferElement>(send: SendBuffer<T>, recv: RecvBuffer<T>; op: ReduceOp);

    /// Performs [`all_reduce`](Self::all_reduce) in place: the result replaces the elements that were sent.
    #[doc(alias = "ncclAllReduce")]
    all_reduce_in_place<T: BufferElement>(buffer: RecvBuffer<T>; op: ReduceOp);

    /// Copies `send` of rank `root` to `recv` of every rank. The count is the length of `recv`; on the root, `send`
    /// holds at least as many elements; on the other ranks it is ignored and may be empty.
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
    broadcast<T: BufferElement>(send: SendBuffer<T>, recv: RecvBuffer<T>; root: usize);

    /// Copies `buffer` of rank `root` to `buffer` of every other rank.
    #[doc(alias = "ncclBroadcast")]
    #[doc(alias = "ncclBcast")]
    broadcast_in_place<T: BufferElement>(buffer: RecvBuffer<T>; root: usize);

    /// Combines the `send` buffers of all ranks element by element; rank `root` receives the result. The count is the
    /// length of `send`; on the root, `recv` holds at least as many elements; on the other ranks it is ignored and may
    /// be empty.
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
    reduce<T: BufferElement>(send: SendBuffer<T>, recv: RecvBuffer<T>; op: ReduceOp, root: usize);

    /// Performs [`reduce`](Self::reduce) in place: the result replaces the elements that the root sent; the buffers of
    /// the other ranks do not change.
    #[doc(alias = "ncclReduce")]
    reduce_in_place<T: BufferElement>(buffer: RecvBuffer<T>; op: ReduceOp, root: usize);

    /// Gathers the `send` buffers of all ranks, in rank order, on every rank. The count is the length of `send`; `recv`
    /// holds at least count x size elements.
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
    all_gather<T: BufferElement>(send: SendBuffer<T>, recv: RecvBuffer<T>;);

    /// Performs [`all_gather`](Self::all_gather) in place: `buffer` consists of `size` equal parts, of which each rank
    /// sends part `rank`.
    #[doc(alias = "ncclAllGather")]
    all_gather_in_place<T: BufferElement>(buffer: RecvBuffer<T>;);

    /// Combines the `send` buffers of all ranks element by element; rank `i` receives part `i` of the result. The count
    /// is the length of `recv`; `send` holds at least count x size elements.
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
    reduce_scatter<T: BufferElement>(send: SendBuffer<T>, recv: RecvBuffer<T>; op: ReduceOp);

    /// Performs [`reduce_scatter`](Self::reduce_scatter) in place: `buffer` consists of `size` equal parts, of which
    /// part `rank` receives the result. The contents of the other parts are undefined afterwards.
    #[doc(alias = "ncclReduceScatter")]
    reduce_scatter_in_place<T: BufferElement>(buffer: RecvBuffer<T>; op: ReduceOp);

    /// Sends part `i` of the `size` equal parts of `send` to rank `i`, which receives it in the part of its `recv` with
    /// the sender's number. The length of `send` is a multiple of the size; `recv` holds at least as many elements.
    ///
    /// NCCL has this operation since 2.28.3. Before, it consists of grouped sends and receives and takes no options.
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
    all_to_all<T: BufferElement>(send: SendBuffer<T>, recv: RecvBuffer<T>;);

    /// Gathers the `send` buffers of all ranks, in rank order, on rank `root`. The count is the length of `send`; on
    /// the root, `recv` holds at least count x size elements; on the other ranks it is ignored and may be empty.
    ///
    /// NCCL has this operation since 2.28.3. Before, it consists of grouped sends and receives and takes no options.
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
    gather<T: BufferElement>(send: SendBuffer<T>, recv: RecvBuffer<T>; root: usize);

    /// Performs [`gather`](Self::gather) in place: on the root, `buffer` receives `size` equal parts, of which part
    /// `root` is already there; the other ranks send their `buffer`.
    #[doc(alias = "ncclGather")]
    gather_in_place<T: BufferElement>(buffer: RecvBuffer<T>; root: usize);

    /// Scatters `send` of rank `root`: rank `i` receives part `i`. The count is the length of `recv`; on the root,
    /// `send` holds at least count x size elements; on the other ranks it is ignored and may be empty.
    ///
    /// NCCL has this operation since 2.28.3. Before, it consists of grouped sends and receives and takes no options.
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
    scatter<T: BufferElement>(send: SendBuffer<T>, recv: RecvBuffer<T>; root: usize);

    /// Performs [`scatter`](Self::scatter) in place: on the root, `buffer` consists of `size` equal parts to send, of
    /// which part `root` stays there; the other ranks receive into their `buffer`.
    #[doc(alias = "ncclScatter")]
    scatter_in_place<T: BufferElement>(buffer: RecvBuffer<T>; root: usize);

    /// Sends `buffer` to rank `peer`, which receives the same number of elements. A rank that sends *and* receives must
    /// do both in one group; otherwise two ranks that send to each other can deadlock.
    ///
    /// ```
    /// use libnccl::StreamRef;
    ///
    /// libnccl_cpu::run_ranks(2, |comm| {
    ///     if comm.rank() == 0 {
    ///         comm.send(&[1, 2], 1, StreamRef::DEFAULT)?;
    ///     } else {
    ///         let mut buffer = [0; 2];
    ///         comm.recv(&mut buffer, 0, StreamRef::DEFAULT)?;
    ///         assert_eq!(buffer, [1, 2]);
    ///     }
    ///     Ok(())
    /// })?;
    /// # Ok::<(), libnccl::Error>(())
    /// ```
    #[doc(alias = "ncclSend")]
    send<T: BufferElement>(buffer: SendBuffer<T>; peer: usize);

    /// Receives `buffer` from rank `peer`, which sends the same number of elements.
    ///
    /// ```
    /// use libnccl::StreamRef;
    ///
    /// let nccl = libnccl_cpu::nccl();
    /// libnccl_cpu::run_ranks(2, |comm| {
    ///     let (mine, mut theirs, peer) = ([comm.rank() as i32], [-1], 1 - comm.rank());
    ///     nccl.group(|g| {
    ///         g.send(&comm, &mine, peer, StreamRef::DEFAULT)?;
    ///         g.recv(&comm, &mut theirs, peer, StreamRef::DEFAULT)
    ///     })?;
    ///     assert_eq!(theirs, [peer as i32]);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), libnccl::Error>(())
    /// ```
    #[doc(alias = "ncclRecv")]
    recv<T: BufferElement>(buffer: RecvBuffer<T>; peer: usize);

    /// Sends `send` to rank `destination` and receives `recv` from rank `source`, at the same time. The destination receives
    /// as many elements as `send` has, and the source sends as many as `recv` has.
    ///
    /// It is a [`send`](Self::send) and a [`recv`](Self::recv) in a group: rings and exchanges of halos need no group of
    /// their own.
    ///
    /// ```
    /// use libnccl::StreamRef;
    ///
    /// libnccl_cpu::run_ranks(2, |comm| {
    ///     let (rank, peer) = (comm.rank() as i32, 1 - comm.rank());
    ///     let mut theirs = [-1; 2];
    ///     comm.sendrecv(&[rank; 2], &mut theirs, peer, peer, StreamRef::DEFAULT)?;
    ///     assert_eq!(theirs, [peer as i32; 2]);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), libnccl::Error>(())
    /// ```
    #[doc(alias = "MPI_Sendrecv")]
    sendrecv<T: BufferElement>(
        send: SendBuffer<T>, recv: RecvBuffer<T>; destination: usize, source: usize
    );

    /// Gathers the `send` buffers of all ranks, in rank order, on every rank: [`all_gather`](Self::all_gather) with a
    /// count for each rank. `counts` has one for each rank, the same on all ranks; `send` holds `counts[rank]` elements,
    /// `recv` at least as many as the sum of the counts.
    ///
    /// NCCL lacks this operation: it consists of a broadcast from each rank, in a group.
    ///
    /// ```
    /// use libnccl::StreamRef;
    ///
    /// libnccl_cpu::run_ranks(2, |comm| {
    ///     let (mine, mut all) = (vec![comm.rank() as i32; 1 + comm.rank()], [-1; 3]);
    ///     comm.all_gather_v(&mine, &mut all, &[1, 2], StreamRef::DEFAULT)?;
    ///     assert_eq!(all, [0, 1, 1]);
    ///     comm.all_gather_v_in_place(&mut all, &[1, 2], StreamRef::DEFAULT)
    /// })?;
    /// # Ok::<(), libnccl::Error>(())
    /// ```
    #[doc(alias = "MPI_Allgatherv")]
    all_gather_v<T: BufferElement>(
        send: SendBuffer<T>, recv: RecvBuffer<T>; counts: &[usize]
    );

    /// Performs [`all_gather_v`](Self::all_gather_v) in place: `buffer` holds the parts of all ranks, one after the other, of
    /// which each rank sends its own.
    #[doc(alias = "MPI_Allgatherv")]
    all_gather_v_in_place<T: BufferElement>(buffer: RecvBuffer<T>; counts: &[usize]);

    /// Combines the `send` buffers of all ranks element by element; rank `i` receives part `i` of the result:
    /// [`reduce_scatter`](Self::reduce_scatter) with a count for each rank. `counts` has one for each rank, the same on all
    /// ranks; `send` holds at least as many elements as the sum of the counts, `recv` holds `counts[rank]`.
    ///
    /// NCCL lacks this operation: it consists of a reduction to each rank, in a group.
    ///
    /// ```
    /// use libnccl::{ReduceOp, StreamRef};
    ///
    /// libnccl_cpu::run_ranks(2, |comm| {
    ///     let (mut all, mut part) = ([1, 2, 3], vec![0; 1 + comm.rank()]);
    ///     comm.reduce_scatter_v(&all, &mut part, &[1, 2], ReduceOp::Sum, StreamRef::DEFAULT)?;
    ///     assert_eq!(part, if comm.rank() == 0 { vec![2] } else { vec![4, 6] });
    ///     comm.reduce_scatter_v_in_place(&mut all, &[1, 2], ReduceOp::Sum, StreamRef::DEFAULT)?;
    ///     assert_eq!(all[comm.rank()..][..part.len()], part);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), libnccl::Error>(())
    /// ```
    #[doc(alias = "MPI_Reduce_scatter")]
    reduce_scatter_v<T: BufferElement>(
        send: SendBuffer<T>, recv: RecvBuffer<T>; counts: &[usize], op: ReduceOp
    );

    /// Performs [`reduce_scatter_v`](Self::reduce_scatter_v) in place: `buffer` holds the parts of all ranks, one after the
    /// other, of which this rank's receives the result. The contents of the other parts are undefined afterwards. (MPI, in
    /// place, puts the result at the start of the buffer.)
    #[doc(alias = "MPI_Reduce_scatter")]
    reduce_scatter_v_in_place<T: BufferElement>(
        buffer: RecvBuffer<T>; counts: &[usize], op: ReduceOp
    );

    /// Sends part `i` of `send` to rank `i`, which receives it in the part of its `recv` with the sender's number:
    /// [`all_to_all`](Self::all_to_all) with a count for each pair of ranks. Part `i` of `send` has `send_counts[i]`
    /// elements, part `i` of `recv` has `recv_counts[i]`, which is what rank `i` sends to this rank; each part begins where
    /// the one before ends. `send` and `recv` hold at least the sums of their counts.
    ///
    /// NCCL lacks this operation: it consists of sends and receives in a group, and takes no options.
    ///
    /// ```
    /// use libnccl::StreamRef;
    ///
    /// libnccl_cpu::run_ranks(2, |comm| {
    ///     // Rank 0 keeps one element and sends two; rank 1 sends none and keeps three.
    ///     let counts = [[1, 2], [0, 3]];
    ///     let send_counts = counts[comm.rank()];
    ///     let recv_counts = counts.map(|sender| sender[comm.rank()]);
    ///     let mut recv = vec![-1; recv_counts.iter().sum()];
    ///     comm.all_to_all_v(&[10, 11, 12], &mut recv, &send_counts, &recv_counts, StreamRef::DEFAULT)?;
    ///     assert_eq!(recv, if comm.rank() == 0 { vec![10] } else { vec![11, 12, 10, 11, 12] });
    ///     Ok(())
    /// })?;
    /// # Ok::<(), libnccl::Error>(())
    /// ```
    #[doc(alias = "MPI_Alltoallv")]
    all_to_all_v<T: BufferElement>(
        send: SendBuffer<T>, recv: RecvBuffer<T>; send_counts: &[usize], recv_counts: &[usize]
    );

    /// Gathers the `send` buffers of all ranks, in rank order, on rank `root`: [`gather`](Self::gather) with a count for
    /// each rank, which is the length of its `send`. On the root, `counts` has that of each rank, and `recv` holds at least
    /// as many elements as their sum; on the other ranks both are ignored and may be empty.
    ///
    /// NCCL lacks this operation: it consists of sends and receives in a group, and takes no options.
    ///
    /// ```
    /// use libnccl::StreamRef;
    ///
    /// libnccl_cpu::run_ranks(2, |comm| {
    ///     let mine = vec![comm.rank() as i32; 1 + comm.rank()];
    ///     let (mut all, counts): (_, &[usize]) = if comm.rank() == 0 { (vec![-1; 3], &[1, 2]) } else { (vec![], &[]) };
    ///     comm.gather_v(&mine, &mut all, counts, 0, StreamRef::DEFAULT)?;
    ///     assert!(comm.rank() > 0 || all == [0, 1, 1]);
    ///     let mut buffer = if comm.rank() == 0 { all } else { mine };
    ///     comm.gather_v_in_place(&mut buffer, counts, 0, StreamRef::DEFAULT)
    /// })?;
    /// # Ok::<(), libnccl::Error>(())
    /// ```
    #[doc(alias = "MPI_Gatherv")]
    gather_v<T: BufferElement>(
        send: SendBuffer<T>, recv: RecvBuffer<T>; counts: &[usize], root: usize
    );

    /// Performs [`gather_v`](Self::gather_v) in place: on the root, `buffer` receives the parts of all ranks, one after the
    /// other, of which its own is already there; the other ranks send their `buffer`.
    #[doc(alias = "MPI_Gatherv")]
    gather_v_in_place<T: BufferElement>(
        buffer: RecvBuffer<T>; counts: &[usize], root: usize
    );

    /// Scatters `send` of rank `root`: rank `i` receives part `i`: [`scatter`](Self::scatter) with a count for each rank,
    /// which is the length of its `recv`. On the root, `counts` has that of each rank, and `send` holds at least as many
    /// elements as their sum; on the other ranks both are ignored and may be empty.
    ///
    /// NCCL lacks this operation: it consists of sends and receives in a group, and takes no options.
    ///
    /// ```
    /// use libnccl::StreamRef;
    ///
    /// libnccl_cpu::run_ranks(2, |comm| {
    ///     let (send, counts): (&[i32], &[usize]) = if comm.rank() == 0 { (&[1, 2, 3], &[1, 2]) } else { (&[], &[]) };
    ///     let mut part = vec![0; 1 + comm.rank()];
    ///     comm.scatter_v(send, &mut part, counts, 0, StreamRef::DEFAULT)?;
    ///     assert_eq!(part, if comm.rank() == 0 { vec![1] } else { vec![2, 3] });
    ///     let mut buffer = if comm.rank() == 0 { send.to_vec() } else { part };
    ///     comm.scatter_v_in_place(&mut buffer, counts, 0, StreamRef::DEFAULT)
    /// })?;
    /// # Ok::<(), libnccl::Error>(())
    /// ```
    #[doc(alias = "MPI_Scatterv")]
    scatter_v<T: BufferElement>(
        send: SendBuffer<T>, recv: RecvBuffer<T>; counts: &[usize], root: usize
    );

    /// Performs [`scatter_v`](Self::scatter_v) in place: on the root, `buffer` holds the parts to send, one after the other,
    /// of which its own stays there; the other ranks receive into their `buffer`.
    #[doc(alias = "MPI_Scatterv")]
    scatter_v_in_place<T: BufferElement>(
        buffer: RecvBuffer<T>; counts: &[usize], root: usize
    );

    /// Writes `local`, which is part of a window of this rank, to `target` in the window of rank `peer`, and then
    /// raises `signal` there; the peer waits for it with [`wait_signal`](Communicator::wait_signal). For an example, see
    /// [`register_window`](Communicator::register_window). Since NCCL 2.29.2.
    #[doc(alias = "ncclPutSignal")]
    put_signal<T: Element>(local: SendBuffer<T>; peer: usize, target: WindowOffset<'b, T>, signal: Signal);

    /// Raises a signal at rank `peer`, after the data that was put there before in the same context; for an example, see
    /// [`wait_signal`](Self::wait_signal). Since NCCL 2.29.2.
    ///
    /// It is [`Error::Nccl`](crate::Error::Nccl) if there is no such signal or context, or before the first window is
    /// registered, unless [`Config::rma_eager_init`](crate::Config::rma_eager_init) is set.
    #[doc(alias = "ncclSignal")]
    signal(; peer: usize, signal: Signal);

    /// Makes the stream wait until other ranks have raised all of `signals` and the data that they put before has
    /// arrived. Since NCCL 2.29.2.
    ///
    /// ```
    /// use libnccl::{Signal, StreamRef, WaitSignal, WindowFlags};
    ///
    /// let nccl = libnccl_cpu::nccl();
    /// libnccl_cpu::run_ranks(3, |comm| {
    /// #     // SAFETY: it is the only rank.
    /// #     let window = unsafe { comm.register_window(&mut nccl.alloc::<f32>(1)?, WindowFlags::DEFAULT) }?;
    ///     // On each of three ranks, which have a window:
    ///     if comm.rank() == 0 {
    ///         let signals = [1, 2].map(|peer| WaitSignal { count: 1, peer, signal: Signal::default() });
    ///         comm.wait_signal(&signals, StreamRef::DEFAULT)?;
    ///     } else {
    ///         comm.signal(0, Signal::default(), StreamRef::DEFAULT)?;
    ///     }
    /// #     comm.barrier(&mut [0_u8], StreamRef::DEFAULT)?;
    ///     Ok(())
    /// })?;
    /// # Ok::<(), libnccl::Error>(())
    /// ```
    ///
    /// No signals, or a count of 0, are [`Error::InvalidArgument`](crate::Error::InvalidArgument).
    #[doc(alias = "ncclWaitSignal")]
    wait_signal(; signals: &[WaitSignal]);

    /// Waits until all ranks have reached the barrier, by an all-reduce of the first element of `buffer`, whose value is
    /// unspecified afterwards. All ranks pass the same element type.
    ///
    /// On a GPU the *stream* waits: work that is enqueued on it afterwards runs when the streams of all ranks have
    /// reached their barrier. Synchronize with the stream to make the host wait too. On the CPU implementation, all
    /// ranks have reached the barrier when this returns, or at the end of the group.
    ///
    /// Barriers of one communicator run one after the other, as do all its operations; in a group, a barrier does not
    /// order the others.
    ///
    /// ```
    /// use libnccl::StreamRef;
    ///
    /// libnccl_cpu::run_ranks(2, |comm| comm.barrier(&mut [0_u8], StreamRef::DEFAULT))?;
    /// # Ok::<(), libnccl::Error>(())
    /// ```
    barrier<T: BufferElement>(buffer: RecvBuffer<T>;);
}
