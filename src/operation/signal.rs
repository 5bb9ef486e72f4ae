use crate::communicator::to_c_int;
use crate::error::Result;
use crate::sys;

/// The signal of a rank, by its numbers: by default, the only one that there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(C)]
pub struct Signal {
    /// The number of the signal, below [`Config::num_rma_sig`](crate::config::Config::num_rma_sig), which is 1 unless set.
    #[doc(alias = "sigIdx")]
    pub index: u32,
    /// The number of the context, below [`Config::num_rma_ctx`](crate::config::Config::num_rma_ctx), which is 1 unless set.
    /// Operations of one context keep their order.
    #[doc(alias = "ctx")]
    pub context: u32,
}

/// A signal to wait for in [`Communicator::wait_signal`](crate::communicator::Communicator::wait_signal). Since NCCL 2.29.2.
#[doc(alias = "ncclWaitSignalDesc_t")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct WaitSignal {
    /// The number of times that the signal is raised; at least one.
    #[doc(alias = "opCnt")]
    pub count: u32,
    /// The rank that raises it.
    pub peer: u32,
    /// The signal.
    pub signal: Signal,
}

// NCCL receives the entries as they are.
const _: () = {
    use std::mem::offset_of;
    type Raw = sys::ncclWaitSignalDesc_t;
    assert!(size_of::<WaitSignal>() == size_of::<Raw>() && align_of::<WaitSignal>() == align_of::<Raw>());
    assert!(offset_of!(WaitSignal, count) == offset_of!(Raw, opCnt));
    assert!(offset_of!(WaitSignal, peer) == offset_of!(Raw, peer));
    assert!(offset_of!(WaitSignal, signal.index) == offset_of!(Raw, sigIdx));
    assert!(offset_of!(WaitSignal, signal.context) == offset_of!(Raw, ctx));
};

impl Signal {
    /// Converts the numbers to C's types. NCCL checks whether they exist.
    pub(super) fn to_raw(self, call: &'static str) -> Result<(i32, i32)> {
        Ok((to_c_int(call, "signal", self.index)?, to_c_int(call, "context", self.context)?))
    }
}
