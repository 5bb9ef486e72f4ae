//! The processes that run sequences: one that crashes or hangs ends, and another one tells by which seed.

use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use libnccl_test_support::random_inputs::from_environment;

use crate::sequence;
use crate::usage::Usage;

/// The time after which a sequence has hung.
const LIMIT: Duration = Duration::from_secs(30);

/// The variables that tell a process what to run: the first seed, and the file to which it writes each.
const FIRST: &str = "LIBNCCL_TEST_SEQUENCES_FIRST";
const COUNT: &str = "LIBNCCL_TEST_SEQUENCES_COUNT";
const SEED_FILE: &str = "LIBNCCL_TEST_SEQUENCES_SEED_FILE";

/// Runs the sequences that this process was started for, if it was.
pub(crate) fn run_as_told() -> bool {
    let (Some(first), Some(count)) = (from_environment(FIRST), from_environment(COUNT)) else { return false };
    let file = std::env::var_os(SEED_FILE).map(|path| File::create(path).expect("the file of the seed"));
    let nccl = libnccl_cpu::nccl();
    let (mut completed, mut warm) = (0, None);
    for seed in first..first + count {
        file.iter().for_each(|file| file.write_all_at(&seed.to_le_bytes(), 0).expect("the seed is written"));
        for _ in 0..from_environment("LIBNCCL_TEST_SEQUENCES_TRIES").unwrap_or(1) {
            completed += sequence::run(&nccl, seed);
        }
        // Caches of the allocator and of the implementation are full by then.
        if seed == first + count / 2 {
            warm = Some(Usage::settled());
        }
    }
    let (warm, end) = (warm.expect("there are sequences"), Usage::settled());
    println!("{count} sequences from seed {first}, {completed} ranks to the end: {warm:?}, then {end:?}");
    if count > 1 {
        warm.check_end(end);
    }
    true
}

/// A process that runs sequences.
pub(crate) struct Process {
    child: Child,
    seed: File,
    output: File,
    last: (u64, Instant),
}

impl Process {
    /// Starts this program again, for the test of that name.
    pub(crate) fn start(test: &str, folder: &Path, first: u64, count: u64) -> Self {
        let seed_file = folder.join(format!("seed{first}"));
        let seed = File::options().read(true).write(true).create(true).truncate(true).open(&seed_file);
        let output =
            File::options().read(true).append(true).create(true).open(folder.join(format!("output{first}")));
        let (seed, output) = (seed.expect("a file"), output.expect("a file"));
        let mut command = Command::new(std::env::current_exe().expect("the path of this program"));
        command.args(["--exact", test, "--nocapture", "--test-threads=2"]);
        command.env(FIRST, first.to_string()).env(COUNT, count.to_string()).env(SEED_FILE, seed_file);
        let streams = [(); 2].map(|()| Stdio::from(output.try_clone().expect("a descriptor")));
        let [stdout, stderr] = streams;
        let child =
            command.stdin(Stdio::null()).stdout(stdout).stderr(stderr).spawn().expect("the program starts");
        Self { child, seed, output, last: (first, Instant::now()) }
    }

    /// Returns `true` once the process has ended, and a description of what went wrong, if anything.
    pub(crate) fn poll(&mut self) -> Option<Result<String, String>> {
        let ended = self.child.try_wait().expect("the state of the process");
        let mut bytes = [0; 8];
        // Nothing is there before the first one.
        let seed = self.seed.read_exact_at(&mut bytes, 0).map_or(self.last.0, |()| u64::from_le_bytes(bytes));
        if seed != self.last.0 {
            self.last = (seed, Instant::now());
        }
        let what = match ended {
            Some(status) if status.success() => return Some(Ok(self.output())),
            Some(status) => format!("ends the process: {status}"),
            None if self.last.1.elapsed() < LIMIT => return None,
            None => {
                // For a core, or a debugger's attention, there is the seed.
                self.child.kill().and_then(|()| self.child.wait()).expect("it can be killed");
                "hangs".into()
            }
        };
        Some(Err(format!("the sequence of seed {seed} {what}\n{}", self.output())))
    }

    fn output(&mut self) -> String {
        let mut bytes = Vec::new();
        self.output.rewind().and_then(|()| self.output.read_to_end(&mut bytes)).expect("the output is read");
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // One that has ended already is not there any more.
        let _ = self.child.kill().and_then(|()| self.child.wait());
    }
}

/// Waits for all; fails with the first that does.
pub(crate) fn wait_for_all(mut processes: Vec<Process>) {
    while !processes.is_empty() {
        thread::sleep(Duration::from_millis(20));
        processes.retain_mut(|process| match process.poll() {
            None => true,
            Some(Ok(output)) => {
                output
                    .lines()
                    .filter(|line| line.contains(" sequences from seed "))
                    .for_each(|line| println!("{line}"));
                false
            }
            Some(Err(problem)) => panic!("{problem}"),
        });
    }
}
