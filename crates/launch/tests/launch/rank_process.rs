//! A rank: this test program, started again.

use std::io::Read;
use std::net::TcpListener;
use std::process::{self, Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use libnccl::{ReduceOp, StreamRef};
use libnccl_launch::Launch;

/// Time after which a process counts as hung.
const LIMIT: Duration = Duration::from_secs(60);

/// The deadline of a job that must succeed.
pub(crate) const LONG: u64 = 50_000;

pub(crate) type Variables = Vec<(&'static str, String)>;

/// Joins the other ranks, and adds up their numbers, from 1. Prints the sum, or the error.
#[test]
#[ignore = "the other tests start it as a rank"]
fn rank_process() {
    let Some(milliseconds) = std::env::var("LIBNCCL_TEST_TIMEOUT").ok() else { return };
    let timeout = Duration::from_millis(milliseconds.parse().unwrap());
    if std::env::var_os("LIBNCCL_TEST_LATE").is_some() {
        std::thread::sleep(LIMIT);
    }
    let sum = || -> libnccl_launch::Result<_> {
        let launch = Launch::from_env()?.timeout(timeout);
        let comm = launch.communicator(&libnccl_cpu::nccl())?;
        let mut sum = [0];
        comm.all_reduce(&[launch.rank() as u64 + 1], &mut sum, ReduceOp::Sum, StreamRef::DEFAULT)?;
        Ok((launch.launcher(), sum[0]))
    };
    match sum() {
        Ok((launcher, sum)) => println!("{launcher}: sum {sum}"),
        Err(error) => {
            println!("error: {error}");
            std::process::exit(1);
        }
    }
}

/// A started rank. It is killed when it is dropped.
pub(crate) struct Rank(pub(crate) Child);

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) const ARGUMENTS: [&str; 4] = ["--exact", "rank_process::rank_process", "--ignored", "--nocapture"];

/// Starts a rank with a deadline in milliseconds, and with these variables and no others of a launcher.
pub(crate) fn start(timeout: u64, variables: &Variables) -> Rank {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(ARGUMENTS).env_clear().env("LIBNCCL_TEST_TIMEOUT", timeout.to_string());
    command.envs(variables.iter().map(|(name, value)| (name, value)));
    Rank(command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap())
}

impl Rank {
    /// Waits for the rank to exit, and returns its output: `Ok` if it succeeded.
    pub(crate) fn end(mut self) -> Result<String, String> {
        let started = Instant::now();
        let status = loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                break status;
            }
            assert!(started.elapsed() < LIMIT, "a rank hangs");
            std::thread::sleep(Duration::from_millis(5));
        };
        let mut printed = String::new();
        self.0.stdout.take().unwrap().read_to_string(&mut printed).unwrap();
        let is_result = |line: &&str| line.contains(": sum ") || line.contains("error: ");
        let result = printed.lines().find(is_result).unwrap_or(&printed).to_owned();
        if status.success() { Ok(result) } else { Err(result) }
    }

    /// Fails unless the rank exits with this sum.
    #[track_caller]
    pub(crate) fn expect_sum(self, sum: u64) {
        let result = self.end();
        let is_sum = |text: &String| text.ends_with(&format!(": sum {sum}"));
        assert!(result.as_ref().is_ok_and(is_sum), "{result:?}; expected sum {sum}");
    }

    /// Fails unless the rank exits with an error that contains the text.
    #[track_caller]
    pub(crate) fn expect_error(self, text: &str) {
        let result = self.end();
        let has_text = |error: &String| error.contains("error: ") && error.contains(text);
        assert!(result.as_ref().is_err_and(has_text), "{result:?}; expected an error with {text:?}");
    }
}

/// Returns a port that nothing listens on. It is below the ports that the kernel assigns to connections of other tests.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let number = process::id().wrapping_mul(97).wrapping_add(NEXT.fetch_add(1, Relaxed));
        let port = 10_000 + (number % 10_000) as u16;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// Returns manually set variables for a rank.
pub(crate) fn manual(rank: usize, size: usize, port: u16) -> Variables {
    vec![
        ("RANK", rank.to_string()),
        ("WORLD_SIZE", size.to_string()),
        ("LOCAL_RANK", rank.to_string()),
        ("LOCAL_WORLD_SIZE", size.to_string()),
        ("MASTER_ADDR", "127.0.0.1".into()),
        ("MASTER_PORT", port.to_string()),
    ]
}

/// Returns manually set variables for a rank of a job with an id.
pub(crate) fn of_job(job: &str, rank: usize, size: usize, port: u16) -> Variables {
    let mut variables = manual(rank, size, port);
    variables.push(("LIBNCCL_JOB", job.into()));
    variables
}

/// Returns the variables of one of two ranks of job 7 whose only address is this rendezvous.
pub(crate) fn at(rendezvous: String, rank: usize) -> Variables {
    let (rank, job) = (rank.to_string(), "7".into());
    vec![("RANK", rank), ("WORLD_SIZE", "2".into()), ("LIBNCCL_RENDEZVOUS", rendezvous), ("LIBNCCL_JOB", job)]
}

/// Waits until the condition is true.
#[track_caller]
pub(crate) fn wait_until(condition: impl Fn() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < LIMIT, "the condition does not become true");
        std::thread::sleep(Duration::from_millis(2));
    }
}
