//! Prints what one NCCL does on a machine without a GPU, through this build's backend: a line for each check or call.
//!
//! `cargo xtask matrix` runs it in a process for each set of checks and for each quirk, because some of them leave the
//! process unusable.

mod checks;
mod id_failure;
mod quirks;

use std::process::ExitCode;

use libnccl::{Nccl, ResultCode};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments.iter().map(String::as_str).collect::<Vec<_>>()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("error: {problem}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[&str]) -> Result<(), String> {
    let nccl = Nccl::load().map_err(|error| error.to_string())?;
    match *arguments {
        ["checks", release, library] => checks::run(&nccl, release, library),
        ["id-failure"] => id_failure::run(&nccl),
        ["quirk", name] => quirks::run(&nccl, name)?,
        _ => return Err("expected `checks RELEASE LIBRARY`, `id-failure` or `quirk NAME`".into()),
    }
    Ok(())
}

/// The finding of a check, or the problem.
type Outcome = Result<Found, String>;

struct Found {
    /// The cell of the table.
    text: String,
    /// Details that all backends must agree on.
    detail: String,
}

impl Found {
    fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), detail: String::new() }
    }

    fn with(self, detail: impl Into<String>) -> Self {
        Self { detail: detail.into(), ..self }
    }
}

/// Prints a name, the outcome and its detail, separated by tabs.
fn report(name: &str, outcome: Outcome) {
    let line = |text: &str| text.replace(['\t', '\n'], " ");
    match outcome {
        Ok(found) => println!("{name}\t{}\t{}", line(&found.text), line(&found.detail)),
        Err(problem) => println!("{name}\tfailed: {}\t", line(&problem)),
    }
}

fn ensure(holds: bool, problem: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(problem()) }
}

/// Returns the code's number, such as `code 1`.
fn code(code: ResultCode) -> String {
    format!("code {}", code.as_raw().0)
}
