//! The collectives with a count for each rank, which NCCL lacks: the public methods first, their rules below.

use super::call::Call;
use super::on_stream::OnStream;
use crate::buffer::{Buffer, BufferMut};
use crate::communicator::Communicator;
use crate::error::Result;
use crate::observer::Operation;
use crate::reduce_op::{Operator, RawOperator};

/// NCCL lacks operations with a count for each rank, so this crate builds them from other operations.
/// [`all_gather_v`](Self::all_gather_v) is a group of broadcasts, one for each rank, and
/// [`reduce_scatter_v`](Self::reduce_scatter_v) a group of reductions. The others are groups of sends and receives, and return
/// [`Error::InvalidUsage`](crate::error::Error::InvalidUsage) if the call has [options](crate::operation::CallOptions::config).
/// For errors, see [errors of operations](Self#errors-of-operations).
impl Communicator {
    /// Gathers the `send` buffers of all ranks, in rank order, on every rank: [`all_gather`](Self::all_gather) with a count for
    /// each rank. `counts` must hold one count per rank, and must be the same on all ranks. `send` must hold exactly
    /// `counts[rank]` elements, and `recv` at least as many elements as the sum of the counts.
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
    #[track_caller]
    pub fn all_gather_v<'b, 'c, T>(
        &'c self,
        send: impl Buffer<'b, Element = T>,
        recv: impl BufferMut<'b, Element = T>,
        counts: &[usize],
        on: impl Into<OnStream<'b, 'c>>,
    ) -> Result<()> {
        let mut call = Call::new(self, const { Operation::of("all_gather_v") }, on.into());
        call.with_buffers(send, recv, |call| call.all_gather_v(counts))
    }

    /// Performs [`all_gather_v`](Self::all_gather_v) in place. `buffer` holds the parts of all ranks in rank order, and each
    /// rank sends its own part.
    #[doc(alias = "MPI_Allgatherv")]
    #[track_caller]
    pub fn all_gather_v_in_place<'b, 'c, T>(
        &'c self,
        buffer: impl BufferMut<'b, Element = T>,
        counts: &[usize],
        on: impl Into<OnStream<'b, 'c>>,
    ) -> Result<()> {
        let mut call = Call::new(self, const { Operation::of("all_gather_v_in_place") }, on.into());
        call.with_recv_buffer(buffer, |call| call.all_gather_v_in_place(counts))
    }

    /// Combines the `send` buffers of all ranks element by element; rank `i` receives part `i` of the result. This is
    /// [`reduce_scatter`](Self::reduce_scatter) with a count for each rank. `counts` must hold one count per rank, and must be
    /// the same on all ranks. `send` must hold at least as many elements as the sum of the counts, and `recv` exactly
    /// `counts[rank]` elements.
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
    #[track_caller]
    pub fn reduce_scatter_v<'b, 'c, T>(
        &'c self,
        send: impl Buffer<'b, Element = T>,
        recv: impl BufferMut<'b, Element = T>,
        counts: &[usize],
        op: impl Into<Operator<'b, T>>,
        on: impl Into<OnStream<'b, 'c>>,
    ) -> Result<()> {
        let mut call = Call::new(self, const { Operation::of("reduce_scatter_v") }, on.into());
        call.with_buffers(send, recv, |call| call.reduce_scatter_v(counts, op.into().raw))
    }

    /// Performs [`reduce_scatter_v`](Self::reduce_scatter_v) in place. `buffer` holds the parts of all ranks in rank order, and
    /// this rank's part receives the result. The contents of the other parts are then undefined. (In MPI, the result is at the
    /// start of the buffer.)
    #[doc(alias = "MPI_Reduce_scatter")]
    #[track_caller]
    pub fn reduce_scatter_v_in_place<'b, 'c, T>(
        &'c self,
        buffer: impl BufferMut<'b, Element = T>,
        counts: &[usize],
        op: impl Into<Operator<'b, T>>,
        on: impl Into<OnStream<'b, 'c>>,
    ) -> Result<()> {
        let mut call = Call::new(self, const { Operation::of("reduce_scatter_v_in_place") }, on.into());
        call.with_recv_buffer(buffer, |call| call.reduce_scatter_v_in_place(counts, op.into().raw))
    }

    /// Sends part `i` of `send` to rank `i`: [`all_to_all`](Self::all_to_all) with a count for each pair of ranks. Part `i` of
    /// `recv` receives the part that rank `i` sends to this rank. Part `i` of `send` has `send_counts[i]` elements, and part `i`
    /// of `recv` has `recv_counts[i]` elements. Each part begins where the previous part ends. `send` and `recv` must hold at
    /// least as many elements as the sums of their counts.
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
    #[track_caller]
    pub fn all_to_all_v<'b, 'c, T>(
        &'c self,
        send: impl Buffer<'b, Element = T>,
        recv: impl BufferMut<'b, Element = T>,
        send_counts: &[usize],
        recv_counts: &[usize],
        on: impl Into<OnStream<'b, 'c>>,
    ) -> Result<()> {
        let mut call = Call::new(self, const { Operation::of("all_to_all_v") }, on.into());
        call.with_buffers(send, recv, |call| call.all_to_all_v(send_counts, recv_counts))
    }

    /// Gathers the `send` buffers of all ranks, in rank order, on rank `root`. This is [`gather`](Self::gather) with a count for
    /// each rank: the length of the rank's `send`. On the root, `counts` must hold the counts of all ranks, and `recv` must hold
    /// at least as many elements as their sum. The other ranks ignore `counts` and `recv`, which may be empty.
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
    #[track_caller]
    pub fn gather_v<'b, 'c, T>(
        &'c self,
        send: impl Buffer<'b, Element = T>,
        recv: impl BufferMut<'b, Element = T>,
        counts: &[usize],
        root: usize,
        on: impl Into<OnStream<'b, 'c>>,
    ) -> Result<()> {
        let mut call = Call::new(self, const { Operation::of("gather_v") }, on.into());
        call.with_buffers(send, recv, |call| call.gather_v(counts, root))
    }

    /// Performs [`gather_v`](Self::gather_v) in place. On the root, `buffer` has one part for each rank, in rank order, and part
    /// `root` holds the root's elements. The root receives the `buffer` of rank `i` in part `i`.
    #[doc(alias = "MPI_Gatherv")]
    #[track_caller]
    pub fn gather_v_in_place<'b, 'c, T>(
        &'c self,
        buffer: impl BufferMut<'b, Element = T>,
        counts: &[usize],
        root: usize,
        on: impl Into<OnStream<'b, 'c>>,
    ) -> Result<()> {
        let mut call = Call::new(self, const { Operation::of("gather_v_in_place") }, on.into());
        call.with_recv_buffer(buffer, |call| call.gather_v_in_place(counts, root))
    }

    /// Scatters `send` of rank `root`: rank `i` receives part `i`. This is [`scatter`](Self::scatter) with a count for each rank:
    /// the length of the rank's `recv`. On the root, `counts` must hold the counts of all ranks, and `send` must hold at least as
    /// many elements as their sum. The other ranks ignore `counts` and `send`, which may be empty.
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
    #[track_caller]
    pub fn scatter_v<'b, 'c, T>(
        &'c self,
        send: impl Buffer<'b, Element = T>,
        recv: impl BufferMut<'b, Element = T>,
        counts: &[usize],
        root: usize,
        on: impl Into<OnStream<'b, 'c>>,
    ) -> Result<()> {
        let mut call = Call::new(self, const { Operation::of("scatter_v") }, on.into());
        call.with_buffers(send, recv, |call| call.scatter_v(counts, root))
    }

    /// Performs [`scatter_v`](Self::scatter_v) in place. On the root, `buffer` holds the parts of all ranks in rank order, and
    /// the root's part stays in place. The other ranks receive into their `buffer`.
    #[doc(alias = "MPI_Scatterv")]
    #[track_caller]
    pub fn scatter_v_in_place<'b, 'c, T>(
        &'c self,
        buffer: impl BufferMut<'b, Element = T>,
        counts: &[usize],
        root: usize,
        on: impl Into<OnStream<'b, 'c>>,
    ) -> Result<()> {
        let mut call = Call::new(self, const { Operation::of("scatter_v_in_place") }, on.into());
        call.with_recv_buffer(buffer, |call| call.scatter_v_in_place(counts, root))
    }
}

/// The rules of each operation, and its C calls.
impl Call<'_, '_> {
    fn all_gather_v(&mut self, counts: &[usize]) -> Result<()> {
        let total = self.sum("counts", counts)?;
        self.has_own_count("send", self.send.len(), counts)?;
        self.recv_holds("", total, 1)?;
        self.submit(self.send.len(), |call| call.broadcast_parts(counts))
    }

    fn all_gather_v_in_place(&mut self, counts: &[usize]) -> Result<()> {
        self.send = self.own_counted_part("in-place ", counts)?;
        self.submit(self.send.len(), |call| call.broadcast_parts(counts))
    }

    fn reduce_scatter_v(&mut self, counts: &[usize], op: RawOperator<'_>) -> Result<()> {
        let (op, total) = (self.operator(op)?, self.sum("counts", counts)?);
        self.has_own_count("receive", self.recv.len(), counts)?;
        self.send_holds("", total, 1)?;
        self.submit(self.recv.len(), |call| call.reduce_parts(counts, op))
    }

    fn reduce_scatter_v_in_place(&mut self, counts: &[usize], op: RawOperator<'_>) -> Result<()> {
        let op = self.operator(op)?;
        self.recv = self.own_counted_part("in-place ", counts)?;
        self.submit(self.recv.len(), |call| call.reduce_parts(counts, op))
    }

    fn all_to_all_v(&mut self, send_counts: &[usize], recv_counts: &[usize]) -> Result<()> {
        let totals = [self.sum("send counts", send_counts)?, self.sum("receive counts", recv_counts)?];
        self.send_holds("", totals[0], 1)?;
        self.recv_holds("", totals[1], 1)?;
        let own = self.rank();
        self.own_exchange(send_counts[own], recv_counts[own], "its receive counts have")?;
        self.submit(0, |call| call.exchange_parts(send_counts.iter().copied(), recv_counts.iter().copied()))
    }

    fn gather_v(&mut self, counts: &[usize], root: usize) -> Result<()> {
        let (root, is_root) = self.root(root)?;
        if is_root {
            let total = self.sum("counts", counts)?;
            self.has_own_count("send", self.send.len(), counts)?;
            self.recv_holds("root's ", total, 1)?;
        }
        self.submit(self.send.len(), |call| call.gather_parts(root, counts.iter().copied()))
    }

    fn gather_v_in_place(&mut self, counts: &[usize], root: usize) -> Result<()> {
        let (root, is_root) = self.root(root)?;
        if is_root {
            self.send = self.own_counted_part("root's ", counts)?;
        } else {
            self.recv = self.nothing();
        }
        self.submit(self.send.len(), |call| call.gather_parts(root, counts.iter().copied()))
    }

    fn scatter_v(&mut self, counts: &[usize], root: usize) -> Result<()> {
        let (root, is_root) = self.root(root)?;
        if is_root {
            let total = self.sum("counts", counts)?;
            self.has_own_count("receive", self.recv.len(), counts)?;
            self.send_holds("root's ", total, 1)?;
        }
        self.submit(self.recv.len(), |call| call.scatter_parts(root, counts.iter().copied()))
    }

    fn scatter_v_in_place(&mut self, counts: &[usize], root: usize) -> Result<()> {
        let (root, is_root) = self.root(root)?;
        if is_root {
            self.recv = self.own_counted_part("root's ", counts)?;
        } else {
            self.send = self.nothing();
        }
        self.submit(self.recv.len(), |call| call.scatter_parts(root, counts.iter().copied()))
    }
}
