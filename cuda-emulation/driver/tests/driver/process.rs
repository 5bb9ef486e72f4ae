//! Tests as processes: the dynamic linker looks at `LD_LIBRARY_PATH` when a process starts.

use std::env;
use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::sync::LazyLock;

/// The variable with the name of the test that a process runs.
const REQUEST: &str = "LIBNCCL_TEST_CUDA";

/// Time after which a process counts as hung: enough for 100,000 random programs.
const SECONDS: &str = "1200";

pub(crate) struct Test {
    pub(crate) name: &'static str,
    pub(crate) run: fn(),
    /// Texts that stderr must contain. Without any, it must not mention a race, a fault or a leak. With one that counts
    /// others, it must contain one race.
    pub(crate) reports: &'static [&'static str],
    /// Variables of its process.
    pub(crate) environment: &'static [(&'static str, &'static str)],
    pub(crate) status: i32,
}

/// Lists tests: `name = function [text] { VARIABLE = "value" } => SIGNAL`. The process calls the function with the variable set,
/// must print the text, and must die of the signal. Everything except the name is optional.
#[macro_export]
macro_rules! tests {
    ($(
        $name:ident $(= $function:ident)? $([$($report:literal),* $(,)?])?
        $({ $($variable:ident = $value:literal),* })? $(=> $signal:ident)?
    )*) => {
        pub(crate) const TESTS: &[$crate::process::Test] = &[$($crate::process::Test {
            name: stringify!($name),
            run: $crate::tests!(@run $name $($function)?),
            reports: &[$($($report),*)?],
            environment: &[$($((stringify!($variable), $value)),*)?],
            status: 0 $(+ 128 + libc::$signal)?,
        }),*];
    };
    (@run $name:ident) => { $name };
    (@run $name:ident $function:ident) => { $function };
}

/// The test that this process is to run, if it is one.
pub(crate) fn requested() -> Option<String> {
    env::var(REQUEST).ok()
}

/// The shared object, which cargo builds for the tests of its package.
pub(crate) fn shared_object() -> PathBuf {
    env::current_exe().expect("the path of this program").with_file_name("libcuda_cpu.so")
}

/// The directory with the shared object under the names by which programs load it. Other tests may create it at the same time.
pub(crate) fn directory() -> &'static Path {
    static DIRECTORY: LazyLock<PathBuf> = LazyLock::new(|| {
        let library = shared_object();
        assert!(library.exists(), "{} is not built", library.display());
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("driver");
        fs::create_dir_all(&directory).expect("a directory");
        for name in ["libcuda.so", "libcuda.so.1"] {
            let new = directory.join(format!("{name}.{}", process::id()));
            symlink(&library, &new).and_then(|()| fs::rename(&new, directory.join(name))).expect("a link");
        }
        directory
    });
    &DIRECTORY
}

/// Runs a test in its process, under each of the seeds.
pub(crate) fn run(test: &Test) -> Result<(), String> {
    for seed in [None, Some("1"), Some("2"), Some("3")] {
        run_with(test, seed)?;
    }
    Ok(())
}

fn run_with(test: &Test, seed: Option<&str>) -> Result<(), String> {
    let mut command = Command::new("timeout");
    command.arg(SECONDS).arg(env::current_exe().map_err(|error| error.to_string())?);
    command.env(REQUEST, test.name).env("LD_LIBRARY_PATH", directory());
    for name in
        ["DEVICES", "DEVICE_MEMORY", "FAULTS", "IGNORE", "RACES", "REPORT", "SEED", "STACKS", "STRICT"]
    {
        command.env_remove(format!("LIBNCCL_CPU_{name}"));
    }
    command.env_remove("CUDA_VISIBLE_DEVICES").env_remove("CUDA_LAUNCH_BLOCKING");
    command.envs(test.environment.iter().copied()).envs(seed.map(|seed| ("LIBNCCL_CPU_SEED", seed)));
    let output = command.output().map_err(|error| error.to_string())?;
    let errors = String::from_utf8_lossy(&output.stderr);
    let seed = seed.unwrap_or("none");
    // `timeout` dies of the signal that its child died of, or returns it.
    let status = output.status.code().or(output.status.signal().map(|signal| 128 + signal));
    if status != Some(test.status) {
        return Err(format!("seed {seed}: {}\n{errors}", output.status));
    }
    if test.reports.is_empty()
        && ["race", "the host touched", "leaked-"].iter().any(|report| errors.contains(report))
    {
        return Err(format!("seed {seed}: a false report\n{errors}"));
    }
    let races = errors.matches("race in allocation").count();
    if test.reports.iter().any(|report| report.contains(" more ")) && races != 1 {
        return Err(format!("seed {seed}: {races} races in\n{errors}"));
    }
    match test.reports.iter().find(|report| !errors.contains(**report)) {
        Some(missing) => Err(format!("seed {seed}: no {missing:?} in\n{errors}")),
        None => Ok(()),
    }
}
