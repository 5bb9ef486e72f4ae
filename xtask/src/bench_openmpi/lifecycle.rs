//! The time to create and to split a communicator, and the memory that it uses.

use anyhow::{Context, Result, bail};

use super::configuration::{Configuration, Setup};
use super::format::{mebibytes, milliseconds};
use super::programs::{Programs, TIME_LIMIT};
use super::sizes::Sizes;
use super::{machine, target};
use crate::process;

/// The number of ranks, each a process.
const RANKS: u32 = 8;

/// Runs the measurement and prints the table.
pub(crate) fn run(programs: &Programs, sizes: Sizes) -> Result<()> {
    let mut text = format!(
        "{}\n\n\
         {RANKS} processes. The memory of a rank is its proportional set size after all operations, without its buffers;\n\
         in brackets its resident set size, which counts shared memory in full.\n\n\
         | buffers | create (target: {}) | split in two ({}) | memory ({}) |\n|---|--:|--:|--:|\n",
        machine::describe(machine::busy()),
        milliseconds(target::CREATE),
        milliseconds(target::SPLIT),
        mebibytes(target::MEMORY),
    );
    let mut missed = 0;
    for setup in [Setup::Malloc, Setup::NcclMemAlloc] {
        let mut command = programs.command(Configuration::Current(setup), RANKS)?;
        command.arg("--lifecycle").args(["--ranks", &RANKS.to_string(), "--sizes", &sizes.to_string()]);
        command.args(["--limit", &TIME_LIMIT.as_secs().to_string()]);
        let outcome = process::run(&mut command, TIME_LIMIT)?;
        if let Some(reason) = outcome.failure() {
            bail!("communicators with buffers from {setup}: {reason}");
        }
        let mut figure = |name, target, show: fn(f64) -> String| -> Result<String> {
            Ok(match value(&outcome.stdout, name)? {
                None => "not available".into(),
                Some(value) if value <= target => show(value),
                Some(value) => {
                    missed += 1;
                    format!("{} (missed)", show(value))
                }
            })
        };
        text += &format!(
            "| {setup} | {} | {} | {} [{}] |\n",
            figure("create", target::CREATE, milliseconds)?,
            figure("split", target::SPLIT, milliseconds)?,
            figure("proportional", target::MEMORY, mebibytes)?,
            figure("resident", f64::INFINITY, mebibytes)?,
        );
    }
    print!("{text}\n{missed} targets missed\n");
    Ok(())
}

/// Returns the value on the line of a name, `None` if the library does not support it.
fn value(stdout: &str, name: &str) -> Result<Option<f64>> {
    let line = stdout.lines().find(|line| line.split('\t').next() == Some(name));
    let value =
        line.and_then(|line| line.split('\t').nth(2)).with_context(|| format!("no {name} in {stdout:?}"))?;
    if value == "-" {
        return Ok(None);
    }
    let number: f64 = value.parse().with_context(|| format!("{name}: invalid number {value:?}"))?;
    Ok(Some(number.max(0.0)))
}

#[cfg(test)]
mod tests {
    use super::value;

    #[test]
    fn value_of_a_line_is_found_by_name() {
        let stdout = "create\t8\t0.0005\nsplit\t8\t-\n";
        assert_eq!(value(stdout, "create").unwrap(), Some(0.0005));
        assert_eq!(value(stdout, "split").unwrap(), None);
        assert!(value(stdout, "resident").is_err());
        assert!(value("split\t8\tsoon", "split").is_err());
    }
}
