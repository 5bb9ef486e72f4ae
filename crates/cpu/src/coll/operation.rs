//! Operations as values: built from the arguments of a call, and run immediately or at the end of a group, on the host or on a stream. Also
//! the exchange of control data between ranks.
#![allow(unsafe_code)]

use std::ptr;

use cuda_common::{Access, AccessKind};

use crate::coll::call::{self, CallHeader, ControlCall};
use crate::cuda::{Driver, Stream};
use crate::diag::error::{Error, Result};
use crate::shm::buffer::{BufferRange, ReadBuf, WriteBuf};
use crate::shm::call_context::CallContext;
use crate::shm::layout::EAGER_MAX;
use crate::shm::shared_state::SharedState;
use crate::sync::executor::Boxed;

/// A heap-allocated operation of a group.
pub(crate) type BoxedOperation<'a> = Boxed<'a, Error>;

pub(crate) trait Operation: Send + Sync + 'static {
    /// Returns the call as described to other ranks and in the log.
    fn header(&self) -> CallHeader;

    /// Returns the memory that is read and the memory that is written. A range is empty if there is no such memory.
    fn ranges(&self) -> [BufferRange; 2] {
        [BufferRange::default(); 2]
    }

    /// Records that a collective on the same communicator precedes this operation in its group.
    fn set_grouped(&mut self) {}

    /// Resolves the buffers before the operation is enqueued on a CUDA stream: this process may be unable to access the addresses that the
    /// caller passed. Nothing may access the buffers before they are resolved.
    fn resolve(&mut self, _: &mut OnStream) -> Result {
        Ok(())
    }

    /// Returns a copy of the operation whose send buffer is the result of `replace`, called with the current buffer and the
    /// element size. Returns `None` if `rank` sends nothing.
    fn sending(&self, _rank: usize, _replace: impl FnOnce(ReadBuf, usize) -> ReadBuf) -> Option<Self>
    where
        Self: Sized,
    {
        None
    }

    /// Runs the operation in the context of the calling rank. An operation captured in a graph runs at each launch.
    async fn run(&self, context: CallContext<'_>) -> Result;
}

/// The stream of a call, and the memory accesses that the call makes.
pub(crate) struct OnStream {
    driver: &'static Driver,
    pub(crate) stream: Stream,
    pub(crate) accesses: Vec<Access>,
}

impl OnStream {
    pub(crate) fn new(driver: &'static Driver, stream: Stream) -> Self {
        Self { driver, stream, accesses: vec![] }
    }

    /// Resolves a buffer that the call reads: replaces the program's address with the address at which this process can access
    /// the memory. `what` names the buffer in errors.
    pub(crate) fn resolve_read(&mut self, what: &str, buffer: &mut ReadBuf) -> Result {
        let place = self.resolve(what, *buffer, AccessKind::Read)?;
        // SAFETY: the memory that the caller passed, at its address in this process. The caller guarantees that it stays allocated
        // and readable until the operation has run.
        *buffer = unsafe { ReadBuf::of_caller(place, buffer.length()) };
        Ok(())
    }

    /// Resolves a buffer that the call writes, like [`resolve_read`](Self::resolve_read).
    pub(crate) fn resolve_write(&mut self, what: &str, buffer: &mut WriteBuf) -> Result {
        let place = self.resolve(what, buffer.as_read(), AccessKind::Write)?;
        // SAFETY: as in `resolve_read`, and the caller guarantees that it is writable.
        *buffer = unsafe { WriteBuf::of_caller(place, buffer.length()) };
        Ok(())
    }

    /// Returns the address at which this process can access a buffer, and records the access.
    fn resolve(&mut self, what: &str, buffer: ReadBuf, kind: AccessKind) -> Result<*mut u8> {
        let (address, length) = (buffer.start().addr(), buffer.length());
        let mut place = address;
        if length > 0 {
            place = self.driver.resolve(what, address, length)?;
            self.add_access(address, length, kind);
        }
        Ok(ptr::with_exposed_provenance_mut(place))
    }

    fn add_access(&mut self, address: usize, length: usize, kind: AccessKind) {
        self.accesses.push(Access { address: address as u64, length, kind });
    }

    /// Records that the call writes memory of another rank and then signals that rank. CUDA ignores memory of other processes.
    pub(crate) fn note_put(&mut self, to: &WriteBuf) {
        if to.length() > 0 {
            self.add_access(to.start().addr(), to.length(), AccessKind::Put);
        }
    }
}

/// The bit that is flipped in the highest byte of an element. For a float, it is the highest exponent bit, so that no rounding hides the
/// change.
const BIT: u8 = 0x40;

/// Runs an operation with one bit flipped in the middle element that its rank sends. The caller's buffer stays unchanged.
pub(crate) async fn run_with_wrong_element(operation: &impl Operation, context: CallContext<'_>) -> Result {
    let mut copy = vec![];
    let altered = operation.sending(context.rank, |send, element| {
        copy = vec![0; send.length()];
        send.read(0, &mut copy);
        flip(&mut copy, element);
        // SAFETY: the copy lives until the operation below has ended, and nothing writes to it.
        unsafe { ReadBuf::new(copy.as_ptr(), copy.len()) }
    });
    match altered {
        Some(altered) => altered.run(context).await,
        None => operation.run(context).await,
    }
}

fn flip(bytes: &mut [u8], element: usize) {
    let middle = bytes.len() / element.max(1) / 2 * element;
    let highest = if cfg!(target_endian = "little") { middle + element - 1 } else { middle };
    if let Some(byte) = bytes.get_mut(highest) {
        *byte ^= BIT;
    }
}

/// Gathers the data of every rank, in rank order. All ranks must contribute the same number of bytes.
pub(crate) async fn control_allgather(
    state: &SharedState,
    rank: usize,
    call: ControlCall,
    data: &[u8],
) -> Result<Vec<Vec<u8>>> {
    let length = data.len();
    if length > EAGER_MAX {
        return Err(Error::internal(format!("{length} bytes of control data, at most {EAGER_MAX} fit")));
    }
    let header = CallHeader::Control { call, length: length as u64 };
    let step = make_together(state, rank, header, data).await?;
    let data = |rank| state.eager(rank, step, length).bytes(0, length, &mut vec![]).to_vec();
    Ok((0..state.ranks()).map(data).collect())
}

/// Publishes a call with its data, waits for all ranks, and checks that they make the same call. Returns the step.
pub(crate) async fn make_together(
    state: &SharedState,
    rank: usize,
    header: CallHeader,
    data: &[u8],
) -> Result<u64> {
    let step = state.next_step(rank).await?;
    let call_args = call::call_args(state, rank, header);
    state.publish(rank, step, call_args, data, None);
    state.wait_all(rank, step).await?;
    if state.all_made(call_args, rank, step, 0..state.ranks()) {
        return Ok(step);
    }
    Err(call::difference(state, rank, step, 0..state.ranks()))
}
