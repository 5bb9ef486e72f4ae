use std::time::{Duration, Instant};

use super::communicator::Communicator;
use super::inside::check_no_open_group;
use crate::buffer::MemorySpace;
use crate::error::{Error, Result, ResultCode};
use crate::observer::CommunicatorEvent;
use crate::stream::{Stream, StreamRef};

impl Communicator {
    /// Waits until all work on a stream is complete, and watches the communicator meanwhile: an operation that fails after
    /// its call has returned, as when the process of another rank ends, ends the wait with an error. After the `timeout`,
    /// the communicator is aborted, which ends its work on the stream.
    ///
    /// On host memory, operations are complete when their calls return, and this returns the asynchronous error at once.
    ///
    /// ```
    /// use std::time::Duration;
    /// use libnccl::{ReduceOp, StreamRef};
    ///
    /// let comms = libnccl_cpu::nccl().init_all(&[0])?;
    /// let mut buffer = [1.0, 2.0];
    /// comms[0].all_reduce_in_place(&mut buffer, ReduceOp::Sum, StreamRef::DEFAULT)?;
    /// comms[0].synchronize(&StreamRef::DEFAULT, Duration::from_secs(30))?;
    /// assert_eq!(buffer, [1.0, 2.0]);
    /// # Ok::<(), libnccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Timeout`]; those of [`wait_for`](Self::wait_for).
    #[doc(alias = "cudaStreamSynchronize")]
    pub fn synchronize(&self, stream: &(impl Stream + ?Sized), timeout: Duration) -> Result<()> {
        const CALL: &str = "synchronize";
        let start = Instant::now();
        if !self.is_done(CALL, stream, timeout)? {
            return Err(self.shared.give_up(CALL, start.elapsed()));
        }
        Ok(())
    }

    /// Waits as [`synchronize`](Self::synchronize) does, but aborts nothing: returns `false` if the work is not complete
    /// after the `timeout`. The communicator can then still be [revoked](Self::revoke), or [shrunk](Self::shrink) with
    /// [`ShrinkMode::Abort`](crate::communicator::ShrinkMode::Abort), which end the work.
    ///
    /// ```
    /// let comm = libnccl_cpu::nccl().init_all(&[0])?.remove(0);
    /// assert!(comm.wait_for(&libnccl::StreamRef::DEFAULT, std::time::Duration::from_secs(30))?);
    /// # Ok::<(), libnccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Nccl`] with the [asynchronous error](Self::async_error), after which the communicator has to be aborted or
    /// shrunk; [`Error::Aborted`] after an abort by an [`AbortHandle`](crate::communicator::AbortHandle); [`Error::InvalidUsage`] if the
    /// stream cannot be asked, see [`Stream::is_complete`], if it is [`StreamRef::DEFAULT`] and the calling thread's CUDA
    /// context is of another device, and while a group is open.
    #[doc(alias = "ncclCommGetAsyncError")]
    pub fn wait_for(&self, stream: &(impl Stream + ?Sized), timeout: Duration) -> Result<bool> {
        self.is_done("wait_for", stream, timeout)
    }

    fn is_done(&self, call: &'static str, stream: &(impl Stream + ?Sized), limit: Duration) -> Result<bool> {
        check_no_open_group(self.library(), call)?;
        let start = Instant::now();
        let mut pause = Duration::from_micros(10);
        loop {
            // The stream first: an operation that fails may be what completes it. The communicator's error is the reason for
            // the stream's.
            let completed = match self.memory_space() {
                MemorySpace::Host => Ok(true),
                MemorySpace::Device if stream.device().is_some() => stream.is_complete(),
                MemorySpace::Device => {
                    StreamRef::from(stream).check_current(self.device()).and_then(|()| stream.is_complete())
                }
            };
            let state = self.query(call, || self.shared.poll())?;
            if ![ResultCode::SUCCESS, ResultCode::IN_PROGRESS].contains(&state) {
                return Err(self.library().error(call, state));
            }
            let is_complete = completed
                .map_err(|error| Error::usage(call, format!("the stream cannot be asked: {error}")))?;
            if is_complete && state == ResultCode::SUCCESS {
                self.shared.tell(CommunicatorEvent::StreamCompleted(stream.as_raw().addr()));
                return Ok(true);
            }
            let elapsed = start.elapsed();
            if elapsed >= limit {
                return Ok(false);
            }
            std::thread::sleep(pause.min(limit - elapsed));
            pause = (pause * 2).min(Duration::from_millis(1));
        }
    }
}
