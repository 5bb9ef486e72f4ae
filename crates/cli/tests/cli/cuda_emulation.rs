//! `nccl` with the CPU backend and the CUDA emulation before the other libraries.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use crate::common::{NCCL, run};
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
    let variables = ["OBJECTS", "LD_LIBRARY_PATH"].map(|name| (name, shared_objects()));
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

/// NCCL and CUDA's runtime library as NVIDIA's packages have them.
const OF_PACKAGES: [(&str, &str); 2] =
    [(RUNTIME, include_str!("packages/cudart.c")), ("libnccl.so.2", include_str!("packages/nccl.c"))];

const PROGRAM: &str = include_str!("packages/program.c");

/// Compiles a program that finds NVIDIA's libraries on its own path, before the environment's path.
fn program_of_packages(directory: &Path, name: &str, options: &[&str]) -> PathBuf {
    let packages = directory.join("packages");
    fs::create_dir_all(&packages).unwrap();
    let compile = |source: &str, file: &Path, options: &[&str]| {
        let text = directory.join("source.c");
        fs::write(&text, source).unwrap();
        run(Command::new("cc").arg(text).arg("-o").arg(file).arg("-L").arg(&packages).args(options), 0);
    };
    for (soname, source) in OF_PACKAGES {
        let soname_option = format!("-Wl,-soname,{soname}");
        compile(source, &packages.join(soname), &["-shared", "-fPIC", &soname_option, "-w", "-ldl"]);
    }
    let (path, program) =
        (format!("-Wl,--disable-new-dtags,-rpath,{}", packages.display()), directory.join(name));
    let libraries = [&path, "-Wl,--as-needed", "-l:libcudart.so.12", "-l:libnccl.so.2"];
    compile(PROGRAM, &program, &[options, &libraries].concat());
    program
}

#[test]
fn run_preloads_what_a_program_with_nvidias_libraries_on_its_path_needs() {
    let directory = tempfile::tempdir().unwrap();
    let own = directory.path().join("own.so");
    run(Command::new("cc").args(["-shared", "-x", "c", "/dev/null", "-o"]).arg(&own), 0);
    let preloaded = [RUNTIME, "libnccl.so.2"].map(|name| shared_objects().join(name).display().to_string());
    for (name, options, expected) in [("of_cuda", &["-DCUDA"][..], "device 3"), ("of_host", &[], "host -1")] {
        let program = program_of_packages(directory.path(), name, options);
        let program = program.display();
        let arguments = format!("run -n 1 --cpu={} -- {program}", shared_objects().display());
        let (printed, errors) = run(on_devices(3, NCCL, &arguments).env("LD_PRELOAD", &own), 0);
        let expected = format!("[0] {expected} {}:{}\n", own.display(), preloaded.join(":"));
        assert_eq!((printed, &*errors), (expected, ""), "{name}");
    }
}

#[test]
fn nvidias_runtime_library_is_named_with_the_variable_that_replaces_it() {
    let directory = tempfile::tempdir().unwrap();
    let program = program_of_packages(directory.path(), "program", &["-DCUDA"]);
    let program = program.to_str().unwrap();
    let (printed, errors) = run(&mut on_devices(3, program, ""), 0);
    assert_eq!(printed, "none -1 (null)\n");
    let library = directory.path().join("packages").join(RUNTIME);
    let start = format!("libnccl: {} is NVIDIA's, and does not run on the CUDA emulation", library.display());
    assert!(errors.starts_with(&start) && errors.lines().count() == 1, "{errors}");
    let (_, list) = errors.trim_end().rsplit_once(" LD_PRELOAD=").expect("the variable");
    let (printed, errors) = run(on_devices(3, program, "").env("LD_PRELOAD", list), 0);
    assert_eq!((printed, &*errors), (format!("device 3 {list}\n"), ""));
}

#[test]
fn program_with_nvidias_runtime_library_linked_in_gets_advice_on_linking() {
    let directory = tempfile::tempdir().unwrap();
    let (source, program) = (directory.path().join("source.c"), directory.path().join("program"));
    let sources = OF_PACKAGES.map(|(_, source)| source).concat() + PROGRAM;
    fs::write(&source, sources).unwrap();
    run(Command::new("cc").args(["-w", "-DCUDA", "-o"]).arg(&program).arg(&source).arg("-ldl"), 0);
    let program = program.to_str().unwrap();
    let (_, errors) = run(&mut on_devices(3, program, ""), 0);
    assert!(errors.starts_with(&format!("libnccl: {program} uses per-thread default streams")), "{errors}");
    assert!(errors.ends_with(": link with nvcc -cudart shared instead\n"), "{errors}");
}
