//! `nccl` with the CPU backend and the CUDA emulation before the other libraries.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use crate::common::{NCCL, repository, run};
use crate::snapshot::Session;

const RUNTIME: &str = "libcudart.so.12";

/// Returns a directory with the shared objects.
fn shared_objects() -> &'static Path {
    static DIRECTORY: LazyLock<PathBuf> = LazyLock::new(|| {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cuda_emulation");
        libnccl_test_support::install(&directory);
        libnccl_test_support::install_as(&directory.join(RUNTIME), "cudart_cpu");
        directory
    });
    &DIRECTORY
}

/// Returns a program with this many devices, and nothing else in the environment.
fn on_devices(devices: usize, program: &str, arguments: &str) -> Command {
    let mut command = Command::new(program);
    command.args(arguments.split_whitespace()).env_clear().env("LD_LIBRARY_PATH", shared_objects());
    command.env("LIBNCCL_CPU_DEVICES", devices.to_string());
    command
}

#[test]
fn devices_of_the_emulation_are_used() {
    let mut session = Session::new();
    session.redact("[OBJECTS]", shared_objects().to_str().unwrap());
    let packages = repository().join("crates/cli/tests/cli/packages");
    let variables =
        [("OBJECTS", shared_objects()), ("LD_LIBRARY_PATH", shared_objects()), ("PACKAGES", &packages)];
    session.replay("cuda_emulation", |session, line| session.shell_with(line, &variables));
}

/// Returns the part of a line that both programs print: without names of programs, process ids, times and bandwidths.
fn comparable(line: &str) -> String {
    // Times and bandwidths begin here.
    const FIELDS: usize = 52;

    if line.starts_with("# Collective test") {
        return line.trim_end_matches("_perf").into();
    }
    if let Some((rank, rest)) = line.split_once(" on ")
        && line.starts_with("#  Rank ")
    {
        return format!("{} on {rest}", &rank[..rank.len() - 6]);
    }
    for start in
        ["# nccl", "# CUDA driver", "# Avg bus bandwidth", "# Out of bounds values", "# Per-Iteration"]
    {
        if line.starts_with(start) {
            return start.into();
        }
    }
    match line.get(FIELDS..) {
        Some(numbers) if !line.starts_with('#') => {
            let digits = numbers.replace(|c: char| c.is_ascii_digit() || "+e".contains(c), "0");
            // The number of decimals depends on the value, but its position does not.
            let digits = digits.replace(['.', ' '], "0");
            format!("{}{digits}", &line[..FIELDS])
        }
        _ => line.into(),
    }
}

/// Compares every line with the output of NVIDIA's programs. They check results with kernels, so they run here without checks. Their
/// in-place sendrecv and alltoall have undefined results, and are not compared.
#[test]
#[ignore = "needs nccl-tests 2.19.6, built without MPI, in LIBNCCL_TEST_NCCL_TESTS"]
fn bench_prints_what_nccl_tests_prints() {
    let directory =
        std::env::var("LIBNCCL_TEST_NCCL_TESTS").expect("LIBNCCL_TEST_NCCL_TESTS names a directory");
    for operation in ["all_reduce", "all_gather", "broadcast", "reduce", "reduce_scatter", "sendrecv"] {
        for options in [
            "-g 2",
            "-t 3 -n 5 -m 2 -u 1 -S 1",
            "-g 2 -I 1 -d half",
            "-t 2 -r 1 -o max -G 2",
            "-g 2 -C 1 -a 3 -r -1",
            "-g 3 -o all -d int8",
        ] {
            let options = format!("-c 0 -b 8 -e 4K -f 8 -w 1 {options}");
            let mut theirs = on_devices(4, &format!("{directory}/{operation}_perf"), &options);
            // Programs for CUDA 13 have the emulated runtime of `cargo xtask cpu-so` in their directory.
            theirs.env("LD_LIBRARY_PATH", format!("{}:{directory}", shared_objects().display()));
            let (theirs, _) = run(&mut theirs, 0);
            let (ours, _) = run(&mut on_devices(4, NCCL, &format!("bench {operation} {options}")), 0);
            let lines = |table: &str| -> Vec<String> {
                let is_of_both = |line: &&str| !line.is_empty() && !line.starts_with("# CUDA driver");
                table.lines().filter(is_of_both).map(comparable).collect()
            };
            let (mut ours, mut theirs) = (lines(&ours), lines(&theirs));
            if operation == "sendrecv" {
                let rows = ours.iter_mut().chain(&mut theirs).filter(|line| !line.starts_with('#'));
                rows.for_each(|row| row.truncate(52 + 32));
            }
            assert_eq!(ours, theirs, "{operation} {options}");
        }
    }
}
