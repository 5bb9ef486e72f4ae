use std::fmt;

/// The behaviour of the last rank instead of the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    Killed,
    Stopped,
    Aborts,
    NeverCalls,
    CallsAnother,
    OtherSize,
}

impl Fault {
    pub(crate) const ALL: [Self; 6] =
        [Self::Killed, Self::Stopped, Self::Aborts, Self::NeverCalls, Self::CallsAnother, Self::OtherSize];
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Killed => "killed",
            Self::Stopped => "stopped",
            Self::Aborts => "aborts",
            Self::NeverCalls => "never calls",
            Self::CallsAnother => "calls another operation",
            Self::OtherSize => "another size",
        })
    }
}
