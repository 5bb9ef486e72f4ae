//! `nccl ras` on jobs of the CPU backend.

use std::net::TcpListener;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use libnccl::{ReduceOp, StreamRef};
use libnccl_launch::Launch;
use rustix::process::Signal;

use crate::common::{
    self, LIMIT, Process, assert_has, ended, json, list, nccl, rank_command, send, undisturbed,
};

/// The time limit for reporting a straggler.
const NAMED: Duration = Duration::from_secs(2);

const TASK: &str = "LIBNCCL_TEST_RAS_TASK";

/// The line of a rank that has called operations.
const READY: &str = "the rank is ready";

/// The rank that misbehaves.
const CULPRIT: usize = 5;

/// Reduces again and again, as `TASK` says.
#[test]
#[ignore = "the other tests start it as a rank"]
fn rank_process() {
    let Ok(task) = std::env::var(TASK) else { return };
    let launch = Launch::from_env().unwrap();
    let comm = launch.communicator(&libnccl_cpu::nccl()).unwrap();
    let is_culprit = launch.rank() == CULPRIT;
    let bytes = if task == "tight" { 8 } else { 256 };
    let (send, mut receive) = (vec![1.0_f32; bytes / 4], vec![0.0_f32; bytes / 4]);
    let start = Instant::now();
    for turn in 0.. {
        if start.elapsed() > 2 * LIMIT {
            return; // The test has exited.
        }
        if turn == 20 {
            println!("{READY}");
        }
        match &*task {
            // Eight ranks in a tight loop would leave no processor for the reports.
            "even" => thread::sleep(Duration::from_millis(5)),
            "slow" if is_culprit => thread::sleep(Duration::from_millis(100)),
            "frozen" if is_culprit && turn == 20 => thread::sleep(LIMIT),
            "other" if is_culprit && turn == 20 => {
                let _ = comm.broadcast(&send[..], &mut receive[..], 0, StreamRef::DEFAULT);
                thread::sleep(LIMIT);
            }
            _ => {}
        }
        let reduced = comm.all_reduce(&send[..], &mut receive[..], ReduceOp::Sum, StreamRef::DEFAULT);
        if reduced.is_err() {
            // RAS must have time to report the teardown.
            thread::sleep(LIMIT);
        }
    }
}

/// A job, by default of 8 ranks.
struct Job {
    ranks: Vec<Process>,
    address: String,
}

fn unused_address() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

impl Job {
    /// Starts the ranks, and returns when all of them have called operations.
    fn start(task: &str) -> Self {
        Self::of(8, task)
    }

    fn of(ranks: usize, task: &str) -> Self {
        let (address, rendezvous) = (unused_address(), unused_address());
        let start = |rank: usize| {
            let mut command = rank_command("ras::rank_process");
            command.env(TASK, task).env("RANK", rank.to_string()).env("WORLD_SIZE", ranks.to_string());
            command.env("LIBNCCL_RENDEZVOUS", format!("tcp://{rendezvous}"));
            command.env("NCCL_RAS_ADDR", &address).env("NCCL_RAS_ENABLE", "1");
            Process(command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap())
        };
        let mut job = Self { ranks: (0..ranks).map(start).collect(), address };
        for rank in &mut job.ranks {
            assert!(common::lines(&mut rank.0).any(|line| line.contains(READY)), "a rank has ended");
        }
        job
    }

    fn command(&self, arguments: &str) -> Command {
        let mut command = nccl(&format!("ras {arguments}"));
        command.env("NCCL_RAS_ADDR", &self.address);
        command
    }

    /// Returns the status and the lines of `nccl ras`.
    fn ras(&self, arguments: &str) -> (Option<i32>, Vec<String>) {
        let Output { status, stdout, stderr } = self.command(arguments).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        assert_eq!(text(stderr), "");
        (status.code(), text(stdout).lines().map(ToOwned::to_owned).collect())
    }

    /// Returns the lines once one of them begins with `start`.
    fn wait_for(&self, start: &str) -> (Option<i32>, Vec<String>) {
        let began = Instant::now();
        loop {
            let (status, lines) = self.ras("");
            if lines.iter().any(|line| line.starts_with(start)) {
                return (status, lines);
            }
            assert!(began.elapsed() < LIMIT, "{lines:#?}");
        }
    }

    fn signal(&self, rank: usize, signal: Signal) {
        send(self.ranks[rank].0.id(), signal);
    }
}

#[test]
fn planted_straggler_of_eight_ranks_is_named_in_two_seconds() {
    undisturbed(check_straggler);
}

fn check_straggler() {
    let job = Job::start("slow");
    let began = Instant::now();
    // Between two operations, no rank is behind for a moment.
    let (status, lines) = job.wait_for("problem: ");
    let elapsed = began.elapsed();
    println!("named in {elapsed:.2?}");
    assert_eq!(status, Some(3), "{lines:#?}");
    assert!(lines[0].starts_with("problem: rank 5 of 8 is a straggler: it has launched "), "{lines:#?}");
    let process = job.ranks[CULPRIT].0.id();
    assert_has(&lines[0], &[" AllReduce, others up to ", &format!(" (process {process} on")]);
    assert!(lines[1].is_empty(), "only that one: {lines:#?}");
    assert!(elapsed < NAMED, "{elapsed:?}");
}

/// `LIBNCCL_TEST_RAS_ROUNDS` times, 5 by default: in a loop of 8-byte sums, ranks launch thousands while a report is taken.
#[test]
fn ranks_in_a_tight_loop_are_never_a_problem() {
    const AT_ONCE: [&str; 5] = ["", "", "--verbose", "--json", "--prometheus"];
    let rounds = std::env::var("LIBNCCL_TEST_RAS_ROUNDS").ok();
    let rounds: usize = rounds.and_then(|rounds| rounds.parse().ok()).unwrap_or(5);
    for (turn, _) in (0..rounds).step_by(AT_ONCE.len()).enumerate() {
        let job = Job::of([2, 4][turn % 2], "tight");
        thread::scope(|scope| {
            for arguments in AT_ONCE {
                let job = &job;
                scope.spawn(move || {
                    let (status, lines) = job.ras(arguments);
                    assert_eq!(status, Some(0), "{arguments}: {lines:#?}");
                    let has = |line: &str| lines.iter().any(|printed| printed.trim() == line);
                    assert!(arguments != "--prometheus" || has("nccl_ras_problems 0"), "{lines:#?}");
                });
            }
            assert!(watched(&job).iter().all(|line| !line.starts_with("problem: ")));
        });
    }
}

/// Returns the lines of `nccl ras --watch` until it has reported twice.
fn watched(job: &Job) -> Vec<String> {
    let mut watch = Process(job.command("--watch 0.1").stdout(Stdio::piped()).spawn().unwrap());
    let (mut printed, mut reports) = (Vec::new(), 0);
    for line in common::lines(&mut watch.0) {
        reports += usize::from(line.starts_with("NCCL 2.32.3+cpu"));
        printed.push(line);
        if reports == 2 {
            return printed;
        }
    }
    panic!("it has ended: {printed:#?}");
}

#[test]
fn stopped_and_dead_ranks_are_named() {
    let job = Job::start("even");
    job.signal(CULPRIT, Signal::STOP);
    let (status, lines) = job.wait_for("problem: communicator ");
    assert_eq!(status, Some(3), "{lines:#?}");
    let problem = "problem: rank 5 of 8 does not respond: its process is stopped";
    assert!(lines[0].starts_with(problem), "{lines:#?}");
    assert!(lines.iter().any(|line| line.ends_with("rank 5 is missing")), "{lines:#?}");
    job.signal(CULPRIT, Signal::KILL);
    let (status, lines) = job.wait_for("problem: rank 5 of 8 is dead: ");
    assert_eq!(status, Some(3), "{lines:#?}");
}

#[test]
fn rank_that_calls_nothing_or_something_else_is_named() {
    let job = Job::start("frozen");
    let (status, lines) = job.wait_for("problem: communicator ");
    assert_eq!(status, Some(3), "{lines:#?}");
    assert!(lines[0].ends_with("between the reports, and rank 5 is behind"), "{lines:#?}");
    assert!(lines[1].starts_with("problem: rank 5 of 8 is a straggler"), "{lines:#?}");
    let (status, lines) =
        Job::start("other").wait_for("problem: rank 5 of 8 has called other collectives than rank 0");
    assert_eq!(status, Some(3), "{lines:#?}");
    assert!(lines.iter().any(|line| line.contains("1 Broadcast more and 1 AllReduce less")), "{lines:#?}");
}

#[test]
fn sound_job_is_reported_in_every_format() {
    let job = Job::start("even");
    let (status, lines) = job.ras("--verbose");
    assert_eq!(status, Some(0), "{lines:#?}");
    assert!(
        lines[0].starts_with("no problem found in collectives; sends and receives are not counted"),
        "{lines:#?}"
    );
    let text = lines.join("\n");
    assert_has(&text, &["\nNCCL 2.32.3+cpu", " reports in ", "\nJob summary\n"]);
    let report = json(&job.ras("--json").1.join("\n"));
    assert_eq!(list(&report["last_report"]["communicators"][0]["ranks"]).len(), 8);
    let (_, lines) = job.ras("--prometheus");
    let is_ranks = |line: &String| line.starts_with("nccl_ras_ranks{") && line.ends_with("} 8");
    assert!(lines.iter().any(is_ranks), "{lines:#?}");
    let (status, lines) = job.ras("diagnostics");
    assert!(status == Some(0) && lines[0].ends_with("NCCL DIAG === RAS Diagnostics ==="), "{lines:#?}");
    let lines = watched(&job);
    assert_eq!(lines.iter().filter(|line| line.starts_with("no problem found")).count(), 2, "{lines:#?}");
}

#[test]
fn monitor_reports_a_death_and_the_end_of_the_job() {
    let job = Job::start("even");
    // The killed process may be the one of eight that reports. Not all connections reach it.
    let start = || job.command("monitor").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let monitors: Vec<Child> = (0..5).map(|_| start()).collect();
    // Nothing is reported before the connection, which takes time.
    thread::sleep(Duration::from_secs(1));
    job.signal(CULPRIT, Signal::KILL);
    let dead = format!(" PEER_DEAD: Process {} on node 127.0.0.1 managing GPU 5", job.ranks[CULPRIT].0.id());
    // The other processes continue to run, and report.
    thread::sleep(Duration::from_secs(1));
    drop(job);
    let mut reported = 0;
    for monitor in monitors {
        let (stdout, stderr) = ended(monitor.wait_with_output().unwrap(), 0, "nccl ras monitor");
        assert_eq!(stderr, "no process of the job is left\n", "{stdout}");
        reported += usize::from(stdout.lines().any(|line| line.ends_with(&dead)));
    }
    assert!(reported > 0);
}
