//! Prints what one NCCL does on a machine without a GPU, through this build's backend.
//!
//! `matrix row VERSION LIBRARY` runs all checks and quirks, in a process for each set of checks and for each quirk, because some of
//! them leave the process unusable. It prints a row of docs/generated/compatibility.tsv, and below it what all builds must agree on
//! too. `cargo xtask matrix` calls it for each version and build.

mod checks;
mod quirks;

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode};
use std::thread;

use libnccl::Nccl;

/// The checks whose findings are in the table. The other findings are the same for all versions.
const COLUMNS: [&str; 11] = [
    "functions",
    "options",
    "codes",
    "bytes of an id",
    "id failure",
    "groups",
    "initialisation",
    "allocation",
    "simulation",
    "parameters",
    "encryption",
];

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
    let nccl = || Nccl::load().map_err(|error| error.to_string());
    match *arguments {
        ["titles"] => {
            let quirks = quirks::QUIRKS.iter().map(|(name, _)| *name);
            println!("version\t{}", COLUMNS.into_iter().chain(quirks).collect::<Vec<_>>().join("\t"));
        }
        ["row", version, library] => print!("{}", row(version, library)?),
        ["checks", version, library] => checks::run(&nccl()?, version, library),
        ["id-failure"] => checks::id_failure(&nccl()?),
        ["quirk", name] => quirks::run(&nccl()?, name)?,
        ["functions"] => functions(&nccl()?)?,
        _ => return Err("expected `titles`, `row VERSION LIBRARY` or `functions`".into()),
    }
    Ok(())
}

/// Returns the row of a version, and the findings that are not in it, one per line.
fn row(version: &str, library: &str) -> Result<String, String> {
    // In parallel, because most of the time is spent waiting for calls that hang.
    let (findings, quirks) = thread::scope(|scope| {
        let quirks: Vec<_> =
            quirks::QUIRKS.iter().map(|(name, _)| scope.spawn(move || quirk(name))).collect();
        let id_failure = scope.spawn(|| findings("none", &["id-failure"]));
        let mut all = findings("lo", &["checks", version, library])?;
        let join = |_| "a thread panicked".to_string();
        all.extend(id_failure.join().map_err(join)??);
        let quirks = quirks.into_iter().map(|thread| thread.join().map_err(join)?);
        Ok::<_, String>((all, quirks.collect::<Result<Vec<_>, _>>()?))
    })?;
    let mut row = vec![version];
    for column in COLUMNS {
        let finding = findings.iter().find(|(name, ..)| name == column);
        row.push(finding.map(|(_, cell, _)| cell.as_str()).ok_or(format!("{column}: not reported"))?);
    }
    row.extend(quirks.iter().map(String::as_str));
    let mut text = format!("{}\n", row.join("\t"));
    for (name, cell, detail) in &findings {
        text += &format!("{name}\t{cell}\t{detail}\n");
    }
    Ok(text)
}

/// Runs a set of checks, and returns the name, the cell and the details of each.
fn findings(interface: &str, arguments: &[&str]) -> Result<Vec<(String, String, String)>, String> {
    // Long enough to read the library from a slow disk.
    let (printed, end) = process(60, interface, arguments)?;
    let mut findings = Vec::new();
    for line in printed.lines() {
        match *line.split('\t').collect::<Vec<_>>() {
            [name, cell, _] if cell.starts_with("failed: ") => return Err(format!("{name}: {cell}")),
            [name, cell, detail] => findings.push((name.into(), cell.into(), detail.into())),
            _ => return Err(format!("{}: printed {line:?}", arguments[0])),
        }
    }
    if let Some(end) = end {
        return Err(format!("{}: {end} after {:?}", arguments[0], findings.last().map(|(name, ..)| name)));
    }
    Ok(findings)
}

/// Returns the result codes of a quirk's calls, and how the process ended if a call did not return: `3, hangs`.
fn quirk(name: &str) -> Result<String, String> {
    let (printed, end) = process(10, if name == "second-id" { "none" } else { "lo" }, &["quirk", name])?;
    let calls = printed.lines().map(String::from).chain(end);
    Ok(calls.collect::<Vec<_>>().join(", "))
}

/// Runs this program, for a limited number of seconds, with a network interface that NCCL may use. Returns what it printed, and how
/// it ended if not by itself.
fn process(limit: u32, interface: &str, arguments: &[&str]) -> Result<(String, Option<String>), String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new("/usr/bin/timeout");
    command.args(["--signal=KILL", &limit.to_string()]).arg(program).args(arguments);
    let output = command.env("NCCL_SOCKET_IFNAME", interface).output().map_err(|error| error.to_string())?;
    let end = match (output.status.code(), output.status.signal()) {
        (Some(0), _) => None,
        // `timeout` kills itself too.
        (_, Some(9)) => Some("hangs".into()),
        (_, Some(7)) => Some("SIGBUS".into()),
        (_, Some(11)) => Some("SIGSEGV".into()),
        _ => {
            let stderr = String::from_utf8_lossy(&output.stderr);
            return Err(format!("{}: {}: {stderr}", arguments.join(" "), output.status));
        }
    };
    Ok((String::from_utf8_lossy(&output.stdout).into_owned(), end))
}

/// Prints the functions that the library has, and calls one.
fn functions(nccl: &Nccl) -> Result<(), String> {
    for function in nccl.functions() {
        match nccl.require(function.name) {
            Ok(()) if function.present => println!("{}", function.name),
            Err(libnccl::Error::Unsupported { .. }) if !function.present => {}
            other => return Err(format!("{function:?}, but {other:?}")),
        }
    }
    nccl.unique_id().map(drop).map_err(|error| error.to_string())
}
