//! Faults: the ways in which one call goes wrong.

use libnccl::Version;
use libnccl::sys::Functions;
use libnccl_test_support::fake_nccl::{AsyncStates, ErrorText, FakeNccl, IN_PROGRESS, Output, Rule, SUCCESS};

/// The header's codes, and some that it does not know.
pub(crate) const CODES: [u32; 12] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 1000, u32::MAX];

/// The states that a nonblocking communicator reports after the fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    Done,
    Never,
    /// In progress twice, then this code.
    EndsWith(u32),
    /// In progress, done, in progress, failed, and again.
    Wavers,
}

impl Progress {
    fn states(self) -> AsyncStates {
        match self {
            Self::Done => AsyncStates::new([], [SUCCESS]),
            Self::Never => AsyncStates::new([], [IN_PROGRESS]),
            Self::EndsWith(code) => AsyncStates::new([IN_PROGRESS, IN_PROGRESS], [code]),
            Self::Wavers => AsyncStates::new([], [IN_PROGRESS, SUCCESS, IN_PROGRESS, 6]),
        }
    }
}

/// One call that goes wrong, and what goes wrong after it.
#[derive(Debug, Clone)]
pub(crate) struct Fault {
    pub(crate) function: &'static str,
    /// The number of the call among those that the method makes of the function, from 0.
    pub(crate) at: usize,
    pub(crate) code: u32,
    /// `None` writes what NCCL does.
    pub(crate) output: Option<Output>,
    pub(crate) progress: Progress,
    pub(crate) text: ErrorText,
    /// The library lacks the function.
    pub(crate) is_absent: bool,
    /// The code that the library writes as its version, if it is another one.
    pub(crate) version: Option<i32>,
}

impl Fault {
    /// Describes a call without any deviation.
    pub(crate) fn of((function, at): (&str, usize)) -> Self {
        let known = Functions::NAMES.iter().find(|name| **name == function);
        Self {
            function: known.expect("a function of the header"),
            at,
            code: SUCCESS,
            output: None,
            progress: Progress::Done,
            text: ErrorText::Plain,
            is_absent: false,
            version: None,
        }
    }

    /// Creates a library that has what is wrong when it is loaded, for the calls of this thread.
    pub(crate) fn library(&self, release: Version) -> FakeNccl {
        let library = FakeNccl::of_release(release);
        if let Some(version) = self.version {
            library.set_version(version);
        }
        library.set_error_text(self.text);
        if self.is_absent {
            library.remove_functions(|name| name == self.function);
        }
        library
    }

    /// Makes the call go wrong; of those of the function, those before this do not count.
    pub(crate) fn arm(&self, library: &FakeNccl) {
        library.add_rule(Rule {
            output: self.output,
            async_states: Some(self.progress.states()),
            ..Rule::once(self.function, self.at, self.code)
        });
    }
}
