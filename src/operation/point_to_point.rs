//! Point-to-point operations: the public methods first, their rules below.

use super::call::Call;
use super::on_stream::OnStream;
use crate::buffer::{Buffer, BufferMut};
use crate::communicator::Communicator;
use crate::error::Result;
use crate::observer::Operation;

/// For errors, see [errors of operations](Self#errors-of-operations).
impl Communicator {
    /// Sends `buffer` to rank `peer`, which must receive the same number of elements.
    ///
    /// Two ranks that send to each other can deadlock. To avoid this, each rank must send and receive in one group, or call
    /// [`send_recv`](Self::send_recv).
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
    #[track_caller]
    pub fn send<'b, 'c, T>(
        &'c self,
        buffer: impl Buffer<'b, Element = T>,
        peer: usize,
        on: impl Into<OnStream<'b, 'c>>,
    ) -> Result<()> {
        let mut call = Call::new(self, const { Operation::of("send") }, on.into());
        call.with_send_buffer(buffer, |call| call.send(peer))
    }

    /// Receives elements from rank `peer` into `buffer`. The peer must send as many elements as `buffer` has.
    ///
    /// ```
    /// use libnccl::StreamRef;
    ///
    /// let nccl = libnccl_cpu::nccl();
    /// libnccl_cpu::run_ranks(2, |comm| {
    ///     let (mine, mut theirs, peer) = ([comm.rank() as i32], [-1], 1 - comm.rank());
    ///     nccl.group(|g| {
    ///         comm.send(&mine, peer, g.stream(StreamRef::DEFAULT))?;
    ///         comm.recv(&mut theirs, peer, g.stream(StreamRef::DEFAULT))
    ///     })?;
    ///     assert_eq!(theirs, [peer as i32]);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), libnccl::Error>(())
    /// ```
    #[doc(alias = "ncclRecv")]
    #[track_caller]
    pub fn recv<'b, 'c, T>(
        &'c self,
        buffer: impl BufferMut<'b, Element = T>,
        peer: usize,
        on: impl Into<OnStream<'b, 'c>>,
    ) -> Result<()> {
        let mut call = Call::new(self, const { Operation::of("recv") }, on.into());
        call.with_recv_buffer(buffer, |call| call.recv(peer))
    }

    /// Sends `send` to rank `send_peer` and receives `recv` from rank `recv_peer` at the same time. `send_peer` must receive as
    /// many elements as `send` has, and `recv_peer` must send as many elements as `recv` has.
    ///
    /// This is a [`send`](Self::send) and a [`recv`](Self::recv) in a group, for example for a ring or a halo exchange.
    ///
    /// ```
    /// use libnccl::StreamRef;
    ///
    /// libnccl_cpu::run_ranks(2, |comm| {
    ///     let (rank, peer) = (comm.rank() as i32, 1 - comm.rank());
    ///     let mut theirs = [-1; 2];
    ///     comm.send_recv(&[rank; 2], &mut theirs, peer, peer, StreamRef::DEFAULT)?;
    ///     assert_eq!(theirs, [peer as i32; 2]);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), libnccl::Error>(())
    /// ```
    #[doc(alias = "MPI_Sendrecv")]
    #[track_caller]
    pub fn send_recv<'b, 'c, T>(
        &'c self,
        send: impl Buffer<'b, Element = T>,
        recv: impl BufferMut<'b, Element = T>,
        send_peer: usize,
        recv_peer: usize,
        on: impl Into<OnStream<'b, 'c>>,
    ) -> Result<()> {
        let mut call = Call::new(self, const { Operation::of("send_recv") }, on.into());
        call.with_buffers(send, recv, |call| call.send_recv(send_peer, recv_peer))
    }
}

/// The rules of each operation, and its C calls.
impl Call<'_, '_> {
    fn send(&mut self, peer: usize) -> Result<()> {
        let peer = self.peer(peer)?;
        self.submit(self.send.len(), |call| call.enqueue_send(call.send, peer))
    }

    fn recv(&mut self, peer: usize) -> Result<()> {
        let peer = self.peer(peer)?;
        self.submit(self.recv.len(), |call| call.enqueue_recv(call.recv, peer))
    }

    fn send_recv(&mut self, send_peer: usize, recv_peer: usize) -> Result<()> {
        self.ranks = [Some(send_peer), Some(recv_peer)];
        let (send_peer, recv_peer) =
            (self.c_rank("send peer", send_peer)?, self.c_rank("recv peer", recv_peer)?);
        if self.ranks == [Some(self.rank()); 2] {
            self.own_exchange(self.send.len(), self.recv.len(), "it receives")?;
        }
        self.submit(0, |call| {
            call.together(|| {
                call.enqueue_send(call.send, send_peer)?;
                call.enqueue_recv(call.recv, recv_peer)
            })
        })
    }
}
