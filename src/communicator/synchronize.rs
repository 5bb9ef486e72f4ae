use std::time::{Duration, Instant};

use super::communicator::Communicator;
use super::inside::check_no_open_group;
use crate::{CommunicatorEvent, Error, MemorySpace, Result, ResultCode, Stream, StreamRef};

impl Communicator {
    /// Waits until all work on a stream is complete, and watches the communicator meanwhile: an operation that fails after
    /// its call has returned, as when the process of another rank ends, ends the wait with an error. After the `timeout`,
    /// the communicator is aborted, which ends its work on the stream.
    ///
    /// On host memory, operations are complete when their calls return, and this returns the asynchronous error at once.
    ///
    /// ```
    /// use std::time::Duration;
    ///
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
    /// [`Error::Timeout`]; [`Error::Nccl`] with the [asynchronous error](Self::async_error), after which the communicator
    /// has to be aborted; [`Error::Aborted`] after an abort by an [`AbortHandle`](crate::AbortHandle);
    /// [`Error::InvalidUsage`] if the stream cannot be asked, see [`Stream::is_complete`], if it is
    /// [`StreamRef::DEFAULT`] and the calling thread's CUDA context is of another device, and while a group is open.
    #[doc(alias = "cudaStreamSynchronize")]
    #[doc(alias = "ncclCommGetAsyncError")]
    pub fn synchronize(&self, stream: &(impl Stream + ?Sized), timeout: Duration) -> Result<()> {
        const CALL: &str = "synchronize";
        const MAX_PAUSE: Duration = Duration::from_millis(1);
        check_no_open_group(CALL)?;
        let start = Instant::now();
        let mut pause = Duration::from_micros(10);
        loop {
            // The stream first: an operation that fails may be what completes it. The communicator's error is the reason for
            // the stream's.
            let completed = match self.memory_space() {
                MemorySpace::Host => Ok(true),
                MemorySpace::Device => match stream.device() {
                    Some(_) => stream.is_complete(),
                    None => StreamRef::from(stream)
                        .check_current(self.device())
                        .and_then(|()| stream.is_complete()),
                },
            };
            let state = self.query(CALL, || self.shared.poll())?;
            if ![ResultCode::SUCCESS, ResultCode::IN_PROGRESS].contains(&state) {
                return Err(self.library().error(CALL, state));
            }
            let is_complete = completed
                .map_err(|error| Error::usage(CALL, format!("the stream cannot be asked: {error}")))?;
            if is_complete && state == ResultCode::SUCCESS {
                self.shared.tell(CommunicatorEvent::StreamCompleted(stream.as_raw().addr()));
                return Ok(());
            }
            let elapsed = start.elapsed();
            if elapsed >= timeout {
                return Err(self.shared.give_up(CALL, elapsed));
            }
            std::thread::sleep(pause.min(timeout - elapsed));
            pause = MAX_PAUSE.min(pause * 2);
        }
    }
}
