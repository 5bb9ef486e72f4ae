//! Findings: what is reported of a program. Each kind has a name, by which it can be ignored.
//!
//! The stand-in for CUDA compiles this file too, so that one variable has the names of both.

/// Findings that are neither reported nor an error, by their names, separated by commas (`docs/what-it-finds.md`). Default: none.
pub(crate) const IGNORE: &str = "LIBNCCL_CPU_IGNORE";

macro_rules! findings {
    ($($(#[$attribute:meta])* $finding:ident = $name:literal,)*) => {
        /// A kind of finding.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub(crate) enum Finding {
            $($(#[$attribute])* $finding,)*
        }

        impl Finding {
            const ALL: &[Self] = &[$(Self::$finding),*];

            /// Returns the name.
            pub(crate) fn name(self) -> &'static str {
                match self {
                    $(Self::$finding => $name,)*
                }
            }
        }
    };
}

findings! {
    /// Two operations use the same bytes, and nothing orders them.
    Race = "race",
    /// Memory is freed, and nothing orders that after an operation that uses it.
    FreeUnderWork = "free-under-work",
    /// The host touches device memory.
    DeviceMemoryTouched = "device-memory-touched",
    /// A rank waits for others for long.
    LateRank = "late-rank",
    /// A rank leaves that was sent messages, or whose messages were not received.
    UnreceivedMessage = "unreceived-message",
    /// The ranks leave, and did not all make the same calls.
    MissingCall = "missing-call",
    /// An operation on a stream failed.
    FailedOperation = "failed-operation",
    /// An abort discards operations on streams.
    DiscardedOperation = "discarded-operation",
    /// A graph was launched whose communicator was destroyed.
    GraphAfterCommunicator = "graph-after-communicator",
}

/// A set of kinds of findings.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Ignored(u32);

impl Ignored {
    /// Parses names, separated by commas.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let names = text.split(',').map(str::trim).filter(|name| !name.is_empty());
        let finding = |name| Finding::ALL.iter().find(|finding| finding.name() == name);
        names
            .map(finding)
            .try_fold(Self::default(), |Self(bits), finding| Some(Self(bits | 1 << *finding? as u32)))
    }

    /// Returns what can be parsed.
    pub(crate) fn expected() -> String {
        let names: Vec<_> = Finding::ALL.iter().map(|finding| finding.name()).collect();
        format!("names of findings, separated by commas: {}", names.join(", "))
    }

    pub(crate) fn has(self, finding: Finding) -> bool {
        self.0 & 1 << finding as u32 != 0
    }
}
