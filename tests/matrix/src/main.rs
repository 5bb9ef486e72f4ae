//! Prints what one NCCL does on a machine without a GPU, through this build's backend: a line for each check or call.
//!
//! `cargo xtask matrix` runs it in a process for each set of checks and for each quirk, because some of them leave the
//! process unusable. `cargo xtask linkers` asks for the functions.

mod checks;
mod functions;
mod id_failure;
mod outcome;
mod quirks;

use std::process::ExitCode;

use libnccl::Nccl;

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
        ["functions"] => functions::run(&nccl)?,
        ["id-failure"] => id_failure::run(&nccl),
        ["quirk", name] => quirks::run(&nccl, name)?,
        _ => return Err("expected `checks RELEASE LIBRARY`, `functions`, `id-failure` or `quirk NAME`".into()),
    }
    Ok(())
}
