//! The comparison with a program of nccl-tests, which takes turns with this one.

use std::env;
use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::arguments::{MeasureArguments, OneOrAll};
use super::parameters::{Parameters, Step};
use crate::run::{THIS_PROGRAM, program_that_ends_with_this};

/// The number of turns of each program.
const ROUNDS: usize = 5;

/// A row of either program.
#[derive(Debug, Clone, PartialEq)]
struct Row {
    /// Size, count, data type, and reduction and root if there are any.
    name: Vec<String>,
    /// The times in microseconds, out of place and in place.
    times: [Option<f64>; 2],
}

/// Runs both programs in turns, and prints the ratios of their bus bandwidths.
pub(crate) fn run(program: &Path, arguments: &MeasureArguments, parameters: &Parameters) -> Result<()> {
    let mut own = program_that_ends_with_this(THIS_PROGRAM);
    own.args(own_arguments(env::args_os().skip(1))).arg("--csv");
    let mut other = program_that_ends_with_this(program);
    other.args(other_arguments(arguments, parameters));
    let mut rounds = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        let ours = rows(&output(Path::new("nccl"), &mut own)?, own_row)?;
        let theirs = rows(&output(program, &mut other)?, other_row)?;
        check_same(&ours, &theirs)
            .with_context(|| format!("{} measures something else", program.display()))?;
        rounds.push((ours, theirs));
    }
    print(&mut crate::output::stdout(), program, parameters, &rounds)
}

/// Returns this program's arguments without the comparison and its value.
fn own_arguments(arguments: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut own = vec![];
    let mut is_value = false;
    for argument in arguments {
        let text = argument.to_string_lossy();
        if is_value {
            is_value = false;
        } else if text == "--against" {
            is_value = true;
        } else if !text.starts_with("--against=") {
            own.push(argument);
        }
    }
    own
}

/// Returns the same arguments for nccl-tests, none left to its defaults.
fn other_arguments(arguments: &MeasureArguments, parameters: &Parameters) -> Vec<String> {
    let (step, size) = match parameters.step {
        Step::Factor(factor) => ("-f", factor),
        Step::Bytes(bytes) => ("-i", bytes),
    };
    let all = |name: &OneOrAll<_>| match name {
        OneOrAll::One(data_type) => libnccl::DataType::to_string(data_type),
        OneOrAll::All => "all".into(),
    };
    let op = match arguments.op {
        OneOrAll::One(op) => op.to_string(),
        OneOrAll::All => "all".into(),
    };
    let root = match arguments.root {
        OneOrAll::One(root) => root.to_string(),
        OneOrAll::All => "-1".into(),
    };
    let procedure = &parameters.procedure;
    let mut pairs = vec![
        ("-t", parameters.threads.to_string()),
        ("-g", parameters.ranks_per_thread.to_string()),
        ("-b", parameters.min_bytes.to_string()),
        ("-e", parameters.max_bytes.to_string()),
        (step, size.to_string()),
        ("-n", procedure.iters.to_string()),
        ("-m", procedure.agg_iters.to_string()),
        ("-w", procedure.warmup_iters.to_string()),
        ("-N", procedure.run_cycles.to_string()),
        ("-c", procedure.check.to_string()),
        ("-d", all(&arguments.datatype)),
        ("-o", op),
        ("-r", root),
        ("-z", (procedure.blocking as u8).to_string()),
        ("-G", procedure.cudagraph.to_string()),
        ("-y", u8::from(procedure.stream_null).to_string()),
        ("-a", (procedure.average as u8).to_string()),
        ("-R", (procedure.local_register as u8).to_string()),
        ("-u", parameters.unalign.to_string()),
        ("-C", u8::from(procedure.report_cputime).to_string()),
    ];
    if let Some(policy) = procedure.cta_policy {
        pairs.push(("-x", (policy as u8).to_string()));
    }
    pairs.into_iter().flat_map(|(name, value)| [name.to_owned(), value]).collect()
}

/// Returns the output of a program, which has to succeed.
fn output(program: &Path, command: &mut Command) -> Result<String> {
    let name = program.display();
    let output = command.output().with_context(|| format!("cannot start {name}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        let last = stderr.lines().chain(text.lines()).rfind(|line| !line.trim().is_empty());
        bail!("{name} failed, {}: {}", output.status, last.unwrap_or("it printed nothing"));
    }
    Ok(text)
}

/// Returns the rows of an output, at least one.
fn rows(text: &str, row: impl Fn(&str) -> Option<Row>) -> Result<Vec<Row>> {
    let rows: Vec<_> = text.lines().filter_map(row).collect();
    ensure!(!rows.is_empty(), "no row in this output:\n{text}");
    Ok(rows)
}

/// Returns the row of a line of `nccl bench --csv`.
fn own_row(line: &str) -> Option<Row> {
    let fields: Vec<_> = line.split(',').collect();
    fields.first()?.parse::<u64>().ok()?;
    let name = [0, 1, 2].map(|field| fields.get(field).copied().unwrap_or_default().to_owned()).to_vec();
    Some(Row { name, times: [5, 9].map(|field| time(fields.get(field)?)) })
}

/// Returns the row of a line of nccl-tests.
fn other_row(line: &str) -> Option<Row> {
    let fields: Vec<_> = line.split_whitespace().collect();
    fields.first()?.parse::<u64>().ok()?;
    // A hypercube has no reduction, which leaves a field out.
    let values = fields.len().checked_sub(8).filter(|values| *values >= 4)?;
    let name = fields[..3].iter().map(|field| (*field).to_owned()).collect();
    Some(Row { name, times: [values, values + 4].map(|field| time(fields.get(field)?)) })
}

/// Returns a time that a ratio can be made of.
fn time(text: &str) -> Option<f64> {
    text.parse().ok().filter(|time: &f64| time.is_finite() && *time > 0.0)
}

/// Fails if the rows are not those of the same measurements.
fn check_same(ours: &[Row], theirs: &[Row]) -> Result<()> {
    ensure!(ours.len() == theirs.len(), "it prints {} rows, expected {}", theirs.len(), ours.len());
    for (ours, theirs) in ours.iter().zip(theirs) {
        ensure!(
            ours.name == theirs.name,
            "it prints a row of {}, expected one of {}",
            theirs.name.join(" "),
            ours.name.join(" ")
        );
    }
    Ok(())
}

fn print(
    out: &mut impl Write,
    program: &Path,
    parameters: &Parameters,
    rounds: &[(Vec<Row>, Vec<Row>)],
) -> Result<()> {
    let (benchmark, program) = (parameters.benchmark, program.display());
    writeln!(
        out,
        "# nccl bench {benchmark} against {program}: medians of {} rounds, in turns",
        rounds.len()
    )?;
    writeln!(
        out,
        "# ratio: bus bandwidth of nccl bench to that of {program}; above 1, nccl bench is faster"
    )?;
    writeln!(out, "#")?;
    writeln!(out, "# {:>10}  {:>12}  {:>8}{:>25}{:>33}", "", "", "", "out-of-place", "in-place")?;
    let columns = format!("  {:>9}  {:>9}  {:>9}", "nccl", "tests", "ratio");
    writeln!(out, "# {:>10}  {:>12}  {:>8}{columns}{columns}", "size", "count", "type")?;
    let columns = format!("  {:>9}  {:>9}  {:>9}", "(us)", "(us)", "");
    writeln!(out, "# {:>10}  {:>12}  {:>8}{columns}{columns}", "(B)", "(elements)", "")?;
    let mut ratios = vec![];
    let rows = rounds.first().map(|(ours, _)| &ours[..]).unwrap_or_default();
    for (index, row) in rows.iter().enumerate() {
        let mut line = format!("{:>12}  {:>12}  {:>8}", row.name[0], row.name[1], row.name[2]);
        for form in 0..2 {
            let ours = median(rounds.iter().filter_map(|(ours, _)| ours[index].times[form]).collect());
            let theirs = median(rounds.iter().filter_map(|(_, theirs)| theirs[index].times[form]).collect());
            line += &match (ours, theirs) {
                (Some(ours), Some(theirs)) => {
                    ratios.push(theirs / ours);
                    format!("  {ours:>9.2}  {theirs:>9.2}  {:>9.3}", theirs / ours)
                }
                _ => format!("  {:>9}  {:>9}  {:>9}", "N/A", "N/A", "N/A"),
            };
        }
        writeln!(out, "{line}")?;
    }
    let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
    let median = median(ratios).context("no size has a time of both programs")?;
    writeln!(out, "# {:<20} : {median:.3}\n# {:<20} : {least:.3}", "Median ratio", "Smallest ratio")?;
    Ok(())
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let upper = *values.get(values.len() / 2)?;
    Some((values[(values.len() - 1) / 2] + upper) / 2.0)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::{Row, check_same, median, other_row, own_arguments, own_row};

    fn row(times: [Option<f64>; 2]) -> Option<Row> {
        Some(Row { name: ["4000", "1000", "float"].map(str::to_owned).to_vec(), times })
    }

    #[test]
    fn rows_of_both_programs_are_read() {
        let text = "        4000          1000     float     sum      -1     1.50    4.00    6.00       0     2.50    4.00    6.00       0";
        assert_eq!(other_row(text), row([Some(1.5), Some(2.5)]));
        let hypercube = "        4000          1000     float              -1     1.50    4.00    6.00       0     2.50    4.00    6.00    N/A";
        assert_eq!(other_row(hypercube), row([Some(1.5), Some(2.5)]));
        assert_eq!(own_row("4000,1000,float,sum,,1.5,4,6,0,,,,"), row([Some(1.5), None]));
        for odd in ["0", "0.00", "-1.5", "nan", "inf", "N/A", "1e400"] {
            assert_eq!(
                own_row(&format!("4000,1000,float,sum,,{odd},4,6,0,2.5,4,6,0")),
                row([None, Some(2.5)])
            );
            assert_eq!(other_row(&text.replace("1.50", odd)), row([None, Some(2.5)]), "{odd}");
        }
        for line in ["", "# Out of bounds values : 0 OK", "# size", "4000"] {
            assert_eq!(other_row(line), None, "{line}");
        }
        assert_eq!(own_row(crate::bench::output::csv::HEAD), None);
    }

    #[test]
    fn rows_of_other_measurements_are_refused() {
        let ours = [row([None; 2]).unwrap()];
        let mut theirs = ours.clone();
        assert!(check_same(&ours, &theirs).is_ok());
        theirs[0].name[2] = "half".into();
        let error = check_same(&ours, &theirs).unwrap_err().to_string();
        assert_eq!(error, "it prints a row of 4000 1000 half, expected one of 4000 1000 float");
        assert!(check_same(&ours, &[]).is_err());
    }

    #[test]
    fn own_arguments_leave_the_comparison_out() {
        let own = |words: &str| own_arguments(words.split(' ').map(OsString::from));
        assert_eq!(own("bench --against x all_reduce -b 8"), ["bench", "all_reduce", "-b", "8"]);
        assert_eq!(own("bench all_reduce --against=x"), ["bench", "all_reduce"]);
    }

    #[test]
    fn median_of_an_even_number_is_the_mean_of_two() {
        assert_eq!(
            (median(vec![3.0, 1.0]), median(vec![2.0, 9.0, 1.0]), median(vec![])),
            (Some(2.0), Some(2.0), None)
        );
    }
}
