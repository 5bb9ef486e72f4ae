//! Findings: problems reported about a program. Each kind has a name, by which it can be ignored.
//!
//! The variables accept the names of the CUDA emulation's findings and of the findings of libraries on top of it. If a process
//! uses several of them, all append to the same findings file.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::process;
use std::sync::OnceLock;

use serde_json::json;

/// The comma-separated names of findings that are neither reported nor errors (`docs/what-it-finds.md`). Default: none.
pub const IGNORE: &str = "LIBNCCL_CPU_IGNORE";

/// The file to which findings are appended as JSON, one per line; `%p` in its name is replaced with the process id. Default:
/// none.
pub const REPORT: &str = "LIBNCCL_CPU_REPORT";
/// 1 for strict mode, in which no call relies on buffering that NCCL does not guarantee, and remaining objects are listed
/// when the process ends. Default: 0.
pub const STRICT: &str = "LIBNCCL_CPU_STRICT";

macro_rules! findings {
    ($($(#[$attribute:meta])* $finding:ident = $name:literal,)*) => {
        /// A kind of finding.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Finding {
            $($(#[$attribute])* $finding,)*
        }

        impl Finding {
            const ALL: &[Self] = &[$(Self::$finding),*];

            /// Returns the name, as in [`IGNORE`].
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$finding => $name,)*
                }
            }
        }
    };
}

findings! {
    /// Two operations access the same bytes without synchronization.
    Race = "race",
    /// Memory is freed without synchronization with an operation that uses it.
    FreeUnderWork = "free-under-work",
    /// Memory is freed while a registration, a window, a graph or another process still refers to it.
    FreeUnderReference = "free-under-reference",
    /// The host accesses device memory.
    DeviceMemoryTouched = "device-memory-touched",
    /// A rank waits for other ranks for a long time.
    LateRank = "late-rank",
    /// A rank leaves before all sends to it and from it were received.
    UnreceivedMessage = "unreceived-message",
    /// A rank leaves without having made a call that another rank made.
    MissingCall = "missing-call",
    /// Calls never run because their group has not ended.
    UnendedGroup = "unended-group",
    /// An operation cannot read or write a buffer.
    InvalidBuffer = "invalid-buffer",
    /// The ranks leave after making different calls, none of which returned an error.
    DifferentCalls = "different-calls",
    /// The ranks passed different arguments, but NCCL requires equal arguments.
    DifferentArguments = "different-arguments",
    /// An operation failed on a stream, or failed on the host and stays pending.
    FailedOperation = "failed-operation",
    /// An abort discards operations on streams.
    DiscardedOperation = "discarded-operation",
    /// A graph was launched after its communicator was destroyed.
    GraphAfterCommunicator = "graph-after-communicator",
    /// A call has an argument that NCCL accepts but its documentation does not allow.
    UndocumentedArgument = "undocumented-argument",
    /// A call returned an error. Only recorded in the file.
    FailedCall = "failed-call",
    /// A communicator was not destroyed.
    LeakedCommunicator = "leaked-communicator",
    /// Windows were not deregistered.
    LeakedWindow = "leaked-window",
    /// Buffers were not deregistered.
    LeakedRegistration = "leaked-registration",
    /// Custom reductions were not destroyed.
    LeakedReduction = "leaked-reduction",
    /// Memory from `ncclMemAlloc` was not freed.
    LeakedMemory = "leaked-memory",
    /// Device or managed memory was not freed.
    LeakedDeviceMemory = "leaked-device-memory",
    /// CUDA host memory was not freed or unregistered.
    LeakedHostMemory = "leaked-host-memory",
    /// Streams were not destroyed.
    LeakedStream = "leaked-stream",
    /// Events were not destroyed.
    LeakedEvent = "leaked-event",
}

/// A set of finding kinds.
#[derive(Debug, Clone, Copy, Default)]
pub struct Ignored(u32);

impl Ignored {
    /// Parses comma-separated names. Returns `None` if one of them is unknown.
    pub fn parse(text: &str) -> Option<Self> {
        let names = text.split(',').map(str::trim).filter(|name| !name.is_empty());
        let finding = |name| Finding::ALL.iter().find(|finding| finding.name() == name);
        names
            .map(finding)
            .try_fold(Self::default(), |Self(bits), finding| Some(Self(bits | 1 << *finding? as u32)))
    }

    /// Describes the expected names.
    pub fn expected() -> String {
        let names: Vec<_> = Finding::ALL.iter().map(|finding| finding.name()).collect();
        format!("names of findings, separated by commas: {}", names.join(", "))
    }

    /// Returns whether the set contains a kind.
    pub fn has(self, finding: Finding) -> bool {
        self.0 & 1 << finding as u32 != 0
    }
}

static FILE: OnceLock<File> = OnceLock::new();

/// Opens the findings file.
///
/// # Errors
/// Returns the system's error if the file cannot be opened.
pub fn open(name: &str) -> io::Result<()> {
    let name = name.replace("%p", &process::id().to_string());
    let file = OpenOptions::new().append(true).create(true).open(name)?;
    // An already opened file was opened for the same variable.
    let _ = FILE.set(file);
    Ok(())
}

/// Returns the findings file, if open.
pub fn file() -> Option<&'static File> {
    FILE.get()
}

/// Appends similar findings to the file. They are written immediately, because the process may end in any way, and in one write,
/// because other processes may also append to the file.
pub fn append(finding: Finding, count: u64, rank: Option<usize>, text: &str, stacks: &[Vec<String>]) {
    let Some(mut file) = file() else { return };
    let mut line = json!({
        "finding": finding.name(), "count": count, "process": process::id(), "text": text.trim_end()
    });
    if let Some(rank) = rank {
        line["rank"] = rank.into();
    }
    if stacks.iter().any(|frames| !frames.is_empty()) {
        line["stacks"] = json!(stacks);
    }
    // A failure cannot be reported.
    let _ = file.write_all(format!("{line}\n").as_bytes());
}

/// The consequence of a failed operation. `error`: all CUDA calls in its context return an error until the communicator is
/// aborted. `report`: the operation completes after a report. `wait`: after the report, the operation stays pending, as on a GPU,
/// until this rank aborts or destroys the communicator. Default: `error`.
pub const FAILURES: &str = "LIBNCCL_CPU_FAILURES";

/// The consequence of a failed operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failures {
    /// CUDA calls return an error.
    Error,
    /// The failure is only reported.
    Report,
    /// The operation stays pending.
    Wait,
}

impl Failures {
    /// The values of the variable.
    pub const EXPECTED: &str = "error, report or wait";

    /// Parses a value of the variable.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "error" => Some(Self::Error),
            "report" => Some(Self::Report),
            "wait" => Some(Self::Wait),
            _ => None,
        }
    }
}
