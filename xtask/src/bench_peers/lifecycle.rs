//! The time that a communicator takes to create and to split, and the memory that it holds.

use anyhow::{Context, Result, bail};

use super::report::mebibytes;
use super::{LIMIT, Programs, Sizes, Way, machine, target};
use crate::process;

const RANKS: u32 = 8;

pub(crate) fn run(programs: &Programs, sizes: Sizes) -> Result<()> {
    let mut text = format!(
        "{}\n\n\
         {RANKS} processes. The memory of a rank is what it uses beside its buffers after all operations; of what ranks\n\
         share it has its share. All that it has mapped, the others' buffers included, stands in brackets.\n\n\
         | buffers | create (target: {}) | split in two ({}) | memory ({}) |\n|---|--:|--:|--:|\n",
        machine::describe(machine::busy()),
        milliseconds(target::CREATE),
        milliseconds(target::SPLIT),
        mebibytes(target::MEMORY),
    );
    let mut missed = 0;
    for way in [Way::Malloc, Way::NcclMemAlloc] {
        let mut command = programs.command(way, RANKS);
        command.arg("--lifecycle").args(["--ranks", &RANKS.to_string(), "--sizes", &sizes.to_string()]);
        command.args(["--limit", &LIMIT.as_secs().to_string()]);
        let ended = process::run(&mut command, LIMIT)?;
        if let Some(reason) = ended.failure() {
            bail!("communicators with buffers from {way}: {reason}");
        }
        let mut figure = |name, target, show: fn(f64) -> String| -> Result<String> {
            Ok(match value(&ended.printed, name)? {
                None => "not available".into(),
                Some(value) if value <= target => show(value),
                Some(value) => {
                    missed += 1;
                    format!("{} (missed)", show(value))
                }
            })
        };
        text += &format!(
            "| {way} | {} | {} | {} [{}] |\n",
            figure("create", target::CREATE, milliseconds)?,
            figure("split", target::SPLIT, milliseconds)?,
            figure("proportional", target::MEMORY, mebibytes)?,
            figure("resident", f64::INFINITY, mebibytes)?,
        );
    }
    print!("{text}\n{missed} targets missed\n");
    Ok(())
}

/// The value on the line of a name; none where the library cannot do it.
fn value(printed: &str, name: &str) -> Result<Option<f64>> {
    let line = printed.lines().find(|line| line.split('\t').next() == Some(name));
    let value =
        line.and_then(|line| line.split('\t').nth(2)).with_context(|| format!("no {name} in {printed:?}"))?;
    if value == "-" {
        return Ok(None);
    }
    let number: f64 = value.parse().with_context(|| format!("{name} is {value:?}, no number"))?;
    Ok(Some(number.max(0.0)))
}

fn milliseconds(seconds: f64) -> String {
    format!("{:.2} ms", seconds * 1e3)
}

#[cfg(test)]
mod tests {
    use super::value;

    #[test]
    fn lines_of_the_program() {
        let printed = "create\t8\t0.0005\nsplit\t8\t-\n";
        assert_eq!(value(printed, "create").unwrap(), Some(0.0005));
        assert_eq!(value(printed, "split").unwrap(), None);
        assert!(value(printed, "resident").is_err());
        assert!(value("split\t8\tsoon", "split").is_err());
    }
}
