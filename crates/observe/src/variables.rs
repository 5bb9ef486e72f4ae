//! The environment variables of the recorder, which `libnccl-trace.so` reads too and `nccl trace` sets.

/// The number of operations that are recorded for each communicator, of 64 bytes each. Default: none, and 1000 by `nccl trace`.
pub const RECORDER: &str = "LIBNCCL_RECORDER";
/// The start of the path to which a timeout, a stall or a signal writes the recordings; the number of the rank and `.json` follow.
/// Default: none are written.
pub const RECORDER_FILE: &str = "LIBNCCL_RECORDER_FILE";
/// The signal that writes the recordings: `USR1` or `USR2`. Default: none, and `USR1` by `nccl trace`.
pub const RECORDER_SIGNAL: &str = "LIBNCCL_RECORDER_SIGNAL";
/// The NCCL to which `libnccl-trace.so` passes calls on. Default: the one that the process would use without it.
pub const TRACE_LIBRARY: &str = "LIBNCCL_TRACE_LIBRARY";
