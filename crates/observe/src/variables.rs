//! The environment variables of the recorder, which `libnccl-trace.so` reads too and `nccl trace` sets.

/// The number of operations to record for each communicator, in 64 bytes each. Default: none; 1000 under `nccl trace`.
pub const RECORDER: &str = "LIBNCCL_RECORDER";
/// The prefix of the path to which a timeout, a stall or a signal writes the recordings; the rank and `.json` follow. Default: no
/// recordings are written.
pub const RECORDER_FILE: &str = "LIBNCCL_RECORDER_FILE";
/// The signal that writes the recordings: `USR1` or `USR2`. Default: none; `USR1` under `nccl trace`.
pub const RECORDER_SIGNAL: &str = "LIBNCCL_RECORDER_SIGNAL";
/// The NCCL that `libnccl-trace.so` forwards calls to. Default: the one that the process would use without it.
pub const TRACE_LIBRARY: &str = "LIBNCCL_TRACE_LIBRARY";
