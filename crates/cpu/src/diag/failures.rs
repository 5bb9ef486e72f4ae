//! `LIBNCCL_CPU_FAILURES`: the consequence of a failed operation. The CUDA emulation also compiles this file.

/// The consequence of an operation that fails: `error` returns an error from all calls of CUDA in its context until the
/// communicator is aborted; `report` completes it after a report; `wait` leaves it pending after the report, as a GPU does, until
/// this rank aborts or destroys the communicator. Default: `error`.
pub(crate) const FAILURES: &str = "LIBNCCL_CPU_FAILURES";

/// The consequence of a failed operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failures {
    /// CUDA calls return an error.
    Error,
    /// The failure is only reported.
    Report,
    /// The operation stays pending.
    Wait,
}

impl Failures {
    /// The values of the variable.
    pub(crate) const EXPECTED: &str = "error, report or wait";

    pub(crate) fn parse(text: &str) -> Option<Self> {
        match text {
            "error" => Some(Self::Error),
            "report" => Some(Self::Report),
            "wait" => Some(Self::Wait),
            _ => None,
        }
    }
}
