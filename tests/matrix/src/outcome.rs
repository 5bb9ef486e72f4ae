//! The outcome of a check, as a line of output.

use libnccl::error::ResultCode;

/// The finding of a check, or the problem.
pub(crate) type Outcome = Result<Found, String>;

pub(crate) struct Found {
    /// The cell of the table.
    pub(crate) text: String,
    /// Details that all backends must agree on.
    pub(crate) detail: String,
}

impl Found {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), detail: String::new() }
    }

    pub(crate) fn with(self, detail: impl Into<String>) -> Self {
        Self { detail: detail.into(), ..self }
    }
}

/// Prints a name, the outcome and its detail, separated by tabs.
pub(crate) fn report(name: &str, outcome: Outcome) {
    let line = |text: &str| text.replace(['\t', '\n'], " ");
    match outcome {
        Ok(found) => println!("{name}\t{}\t{}", line(&found.text), line(&found.detail)),
        Err(problem) => println!("{name}\tfailed: {}\t", line(&problem)),
    }
}

pub(crate) fn ensure(holds: bool, problem: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(problem()) }
}

/// Returns the code's number, such as `code 1`.
pub(crate) fn code(code: ResultCode) -> String {
    format!("code {}", code.as_raw().0)
}
