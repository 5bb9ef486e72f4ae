//! Prints what one NCCL does on a machine without a GPU, through this build's backend: a line for each check or call.
//!
//! `cargo xtask matrix` runs it in a process for each set of checks and for each quirk, because some of them leave the
//! process unusable. `cargo xtask linkers` lists the functions.

mod checks;
mod quirks;

use std::process::ExitCode;

use libnccl::error::ResultCode;
use libnccl::{Error, Nccl};

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
        ["functions"] => list_functions(&nccl)?,
        ["id-failure"] => report("id failure", id_twice(&nccl)),
        ["quirk", name] => quirks::run(&nccl, name)?,
        _ => {
            return Err("expected `checks RELEASE LIBRARY`, `functions`, `id-failure` or `quirk NAME`".into());
        }
    }
    Ok(())
}

/// Prints each function of `nccl.h` with `present`, or the error that calling it would be, and calls one.
fn list_functions(nccl: &Nccl) -> Result<(), String> {
    for function in nccl.functions() {
        match nccl.require(function.name) {
            Ok(()) if function.present => println!("{}\tpresent", function.name),
            Ok(()) => return Err(format!("{}: not present, but no error", function.name)),
            Err(error) => println!("{}\t{error}", function.name),
        }
    }
    nccl.unique_id().map(drop).map_err(|error| error.to_string())
}

/// Requests an id twice, while the environment's `NCCL_SOCKET_IFNAME` names no network interface: up to 2.21.5, NCCL hangs in the second call.
fn id_twice(nccl: &Nccl) -> Outcome {
    let mut answers = Vec::new();
    for _ in 0..2 {
        match nccl.unique_id() {
            Err(Error::Nccl { call: "ncclGetUniqueId", code, message, detail }) => {
                answers.push((code, message, detail));
            }
            other => return Err(format!("{other:?}, expected an error of NCCL's")),
        }
    }
    ensure(answers[0] == answers[1], || format!("{answers:?}, expected the same twice"))?;
    let (found, message, detail) = &answers[0];
    Ok(Found::new(format!("{}, twice", code(*found))).with(format!("{message}: {detail}")))
}

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
