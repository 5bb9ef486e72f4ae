//! RAS: the report of a job's processes, as the facade's client reads it, and that the service leaves nothing behind.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::processes::{self, RankProcess};
use crate::common::{all_reduce, assert_sum, broadcast, unique_id, wait_until};
use libnccl::communicator::ShrinkMode;
use libnccl_observe::ras::{EventGroup, Monitor, RasClient, RasError, Report};
use libnccl_test_support::random_inputs::{Random, inputs};

/// The limit for an event, on a busy machine.
const LIMIT: Duration = Duration::from_secs(30);

rank_tasks!(follow_script, call_unserved, stay_quiet, compare_identities);

/// Makes the calls of this rank's script (`A`, an all-reduce; `B`, a broadcast; `0`, an empty all-reduce; `X`, an abort), waits
/// for the end of the standard input, and destroys the communicator. Scripts are joined by commas, one for each rank.
fn follow_script(process: &RankProcess) {
    let comm = process.join();
    let script = process.arguments[0].split(',').nth(process.rank()).unwrap();
    for call in script.chars() {
        // One that other ranks do not make is an error.
        let _ = match call {
            'X' => nccl!(ncclCommAbort(comm.0)),
            'B' => broadcast(&mut [1], 0, comm.0),
            _ => all_reduce(&mut [1][usize::from(call == '0')..], comm.0),
        };
    }
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    if !script.ends_with('X') {
        // A new thread has its name once it runs.
        wait_until("a thread serves", || ras_threads() == 1);
        comm.destroy();
    }
    wait_for_the_end();
}

/// Waits until nothing is left of the service. The kernel shows a thread for a moment after it has ended.
fn wait_for_the_end() {
    wait_until("nothing is left", || (ras_threads(), sockets()) == (0, 0));
}

fn call_unserved(process: &RankProcess) {
    let comm = process.join();
    assert_sum(comm.0, 2);
    comm.destroy();
    wait_for_the_end();
}

fn ras_threads() -> usize {
    let names = fs::read_dir("/proc/self/task")
        .unwrap()
        .filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.trim() == "libnccl-cpu-ras").count()
}

/// Returns the number of this process's sockets, except the standard streams.
fn sockets() -> usize {
    let links = fs::read_dir("/proc/self/fd").unwrap().filter_map(|fd| {
        let fd = fd.ok()?;
        let number: u32 = fd.file_name().to_str()?.parse().ok()?;
        (number > 2).then(|| fs::read_link(fd.path()).ok()).flatten()
    });
    links.filter(|link| link.to_string_lossy().starts_with("socket:")).count()
}

fn stay_quiet(process: &RankProcess) {
    let comm = process.join();
    assert_eq!((ras_threads(), sockets()), (0, 0));
    comm.destroy();
}

/// Checks that the report names communicators as the facade does, however they were made.
fn compare_identities(process: &RankProcess) {
    let (nccl, id) = (libnccl_cpu::nccl(), libnccl::UniqueId::from_c_chars(process.id.internal));
    let all = thread::scope(|scope| {
        let join = |rank| {
            let comm = nccl.communicator(2, rank, &id).init().unwrap();
            let children = [0, 0, 7].map(|color| comm.split(Some(color), 0).init().unwrap().unwrap());
            let child = if rank == 0 { comm.shrink(&[1], ShrinkMode::Default).init().ok() } else { None };
            [comm].into_iter().chain(children).chain(child).collect::<Vec<_>>()
        };
        let ranks = [0, 1].map(|rank| scope.spawn(move || join(rank)));
        ranks.map(|rank| rank.join().unwrap())
    });
    let own = all.iter().flatten().map(|comm| comm.membership().id.unwrap().to_string());
    let own: BTreeSet<String> = own.collect();
    assert_eq!(own.len(), 5);
    let client = RasClient::from_env().unwrap().timeout(LIMIT);
    let report = client.report().unwrap();
    let reported: BTreeSet<String> = report.communicators.iter().map(|one| one.id().to_string()).collect();
    assert_eq!(own, reported);
}

/// Returns the variables that enable the service at an address that is free, or was.
fn enabled(address: &str) -> [(&'static str, &str); 2] {
    [("NCCL_RAS_ADDR", address), ("NCCL_RAS_ENABLE", "1")]
}

fn free_address() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

#[test]
fn communicators_have_one_identity_in_reports_and_for_observers() {
    processes::run("compare_identities", [[0]], &enabled(&free_address()));
}

struct Job {
    ranks: Vec<Child>,
    address: String,
}

impl Job {
    fn start(scripts: &str) -> Self {
        let (id, size, address) = (unique_id(), scripts.split(',').count(), free_address());
        let start = |rank| {
            let mut command = processes::command(&format!("follow_script {scripts}"), &id, size, &[rank]);
            command.envs(enabled(&address)).stdin(Stdio::piped()).spawn().unwrap()
        };
        Self { ranks: (0..size).map(start).collect(), address }
    }

    fn client(&self) -> RasClient {
        RasClient::new(&self.address).unwrap().timeout(LIMIT)
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream
    }

    /// Returns the first report with a communicator that fulfils `condition`.
    #[track_caller]
    fn report(&self, condition: impl Fn(&Report) -> bool) -> Report {
        let began = Instant::now();
        loop {
            let report = self.client().report();
            match &report {
                Ok(report) if !report.communicators.is_empty() && condition(report) => return report.clone(),
                Ok(_) | Err(RasError::Connect { .. } | RasError::Closed { .. }) => {}
                Err(error) => panic!("{error}"),
            }
            assert!(began.elapsed() < LIMIT, "{report:#?}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Ends ranks that have completed their scripts, and expects success.
    fn finish(mut self) {
        let mut ranks = std::mem::take(&mut self.ranks);
        ranks.iter_mut().for_each(|child| drop(child.stdin.take()));
        processes::finish_all(ranks);
        assert!(matches!(self.client().status(), Err(RasError::Connect { .. })));
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        for child in &mut self.ranks {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Returns how many of a collective each rank of the only communicator has launched.
fn launched(report: &Report, collective: &str) -> Vec<u64> {
    report.communicators[0].ranks.iter().map(|rank| rank.collective_counts[collective]).collect()
}

#[test]
fn report_has_ranks_processes_and_counters_of_a_job() {
    let job = Job::start("AA0B,AA0B,AA0");
    let report = job.report(|report| launched(report, "Broadcast") == [1, 1, 0]);
    assert!(report.nccl_version.starts_with("2.32.3+cpu"), "{}", report.nccl_version);
    assert_eq!(launched(&report, "AllReduce"), [2, 2, 2]);
    let [communicator] = &report.communicators[..] else { panic!("{report:#?}") };
    assert_eq!((communicator.size, communicator.missing_ranks.len()), (3, 0));
    for (rank, child) in communicator.ranks.iter().zip(&job.ranks) {
        assert_eq!((rank.pid, rank.host.as_str()), (i64::from(child.id()), "127.0.0.1"));
        assert_eq!(rank.cuda_dev, i64::try_from(rank.rank).unwrap());
        assert_eq!(rank.collective_counts.len(), 5);
    }
    let text = job.client().status().unwrap();
    for lines in [
        "NCCL version 2.32.3+cpu",
        "\nJob summary\n===========\n\n  Nodes  Processes     GPUs\n      1          3        3\n\nCommunicators... (",
        "s)\n=============\n\n    Communicator     Ranks   Missing    Status  Errors\n",
        "         3         0   RUNNING      OK\n\nErrors\n======\n\nWarnings\n========\n\n",
    ] {
        assert!(text.contains(lines), "{lines:?} in {text}");
    }
    let diagnostics = job.client().diagnostics().unwrap();
    assert!(diagnostics.contains(" NCCL DIAG === RAS Diagnostics ===\n"), "{diagnostics}");
    assert!(diagnostics.trim_end().ends_with("across 3 RAS peers"), "{diagnostics}");
    let refused = job.client().set_profiler_mask("coll,p2p").unwrap_err().to_string();
    assert!(refused.contains("the CPU backend has no profiler to control"), "{refused}");
    let verbose = job.client().verbose_status().unwrap();
    for (rank, child) in job.ranks.iter().enumerate() {
        let line = format!("\n  Rank {rank} runs -- GPU {rank} managed by process {} on node", child.id());
        assert!(verbose.contains(&line), "{verbose}");
    }
}

#[test]
fn aborted_rank_is_not_missing() {
    let job = Job::start("A,AX,A");
    let report =
        job.report(|report| report.communicators[0].ranks[0].status.as_ref().unwrap().async_error != 0);
    let [communicator] = &report.communicators[..] else { panic!("{report:#?}") };
    let flags: Vec<_> =
        communicator.ranks.iter().map(|rank| rank.status.as_ref().unwrap().abort_flag).collect();
    assert_eq!((flags, communicator.missing_ranks.len()), (vec![false, true, false], 0));
    let text = job.client().verbose_status().unwrap();
    for line in [
        "         3         0     ABORT   ERROR\n",
        "\n  Rank 0 reported Remote process error -- GPU 0",
        "\n  Rank 1 has aborted -- GPU 1",
    ] {
        assert!(text.contains(line), "{line:?} in {text}");
    }
    job.finish();
}

/// The tests of `nccl ras` have its verdicts about them.
#[test]
fn stopped_and_killed_ranks_make_a_communicator_incomplete() {
    let mut job = Job::start("A,A,A,A");
    job.report(|report| launched(report, "AllReduce") == [1; 4]);
    // Each client reaches one of the four processes. Not all reach those that are stopped or killed.
    let monitors = |groups: &[EventGroup]| -> Vec<_> {
        (0..16).map(|_| job.client().monitor(groups).unwrap()).collect()
    };
    let (all, of_lifecycle) = (monitors(&[EventGroup::Lifecycle, EventGroup::Trace]), monitors(&[]));
    processes::stop(&job.ranks[2]);
    job.report(|report| report.communicators[0].ranks.len() == 3);
    thread::sleep(Duration::from_secs(1));
    processes::kill(&mut job.ranks[3]);
    let report = job.report(|report| report.communicators[0].ranks.len() == 2);
    let missing = report.communicators[0].missing_ranks.iter().map(|rank| {
        let status = rank.status.unwrap();
        (rank.rank, status.unresponsive, status.considered_dead)
    });
    assert_eq!(missing.collect::<Vec<_>>(), [(2, true, false), (3, true, true)]);
    let (text, [stopped, dead]) = (job.client().status().unwrap(), [2, 3].map(|rank| job.ranks[rank].id()));
    for line in [
        format!(
            "Rank 2 does not respond: its process is stopped -- GPU 2 managed by process {stopped} on node"
        ),
        format!(
            "Rank 3 is dead: its process has ended -- GPU 3 managed by process {dead} on node 127.0.0.1\n"
        ),
    ] {
        assert!(text.contains(" INCOMPLETE\n") && text.contains(&line), "{line:?} in {text}");
    }
    thread::sleep(Duration::from_secs(1));
    processes::resume(&job.ranks[2]);
    job.report(|report| report.communicators[0].ranks.len() == 3);
    thread::sleep(Duration::from_secs(1));
    processes::stop(&job.ranks[2]);
    job.report(|report| report.communicators[0].ranks.len() == 2);
    thread::sleep(Duration::from_secs(1));
    processes::kill(&mut job.ranks[2]);
    job.report(|report| report.communicators[0].missing_ranks[0].status.unwrap().considered_dead);
    let [unresponsive, recovered, ended] =
        ["PEER_UNRESPONSIVE", "PEER_RECOVERED", "PEER_DEAD"].map(|event| (event, stopped));
    let expected = [unresponsive, ("PEER_DEAD", dead), recovered, unresponsive, ended];
    let expected = expected.map(|(event, process)| (event.to_owned(), i64::from(process)));
    let events = |mut monitor: Monitor, wait| -> Vec<_> {
        let next = || monitor.next_event(wait).ok().flatten();
        std::iter::from_fn(next).map(|event| (event.event, event.peer.unwrap().pid)).collect()
    };
    let is_notified = all.into_iter().any(|monitor| events(monitor, Duration::from_secs(1)) == expected);
    assert!(is_notified, "no monitor has these events: {expected:?}");
    let by_default: Vec<_> =
        of_lifecycle.into_iter().flat_map(|monitor| events(monitor, Duration::from_millis(100))).collect();
    assert!(
        !by_default.is_empty() && by_default.iter().all(|(event, _)| event == "PEER_DEAD"),
        "{by_default:?}"
    );
    job.ranks.truncate(2);
    job.finish();
}

#[test]
fn service_is_off_unless_enabled_by_the_environment() {
    for variables in [&[][..], &[("NCCL_RAS_ENABLE", "0"), ("NCCL_RAS_ADDR", "127.0.0.1:1")]] {
        processes::run("stay_quiet", [[0]], variables);
    }
}

#[test]
fn port_in_use_does_not_affect_the_job() {
    // The port of another program, which does not share it.
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    for address in [&taken.local_addr().unwrap().to_string(), "127.0.0.1", "no-such-host.invalid:1"] {
        processes::run("call_unserved", [[0], [1]], &enabled(address));
    }
}

/// Opens this many connections to each of the two processes, sends these bytes, and stays idle.
fn idle_clients(job: &Job, count: usize, words: &str) -> Vec<TcpStream> {
    let connect = |_| {
        let mut stream = job.connect();
        stream.write_all(words.as_bytes()).unwrap();
        stream
    };
    (0..count).map(connect).collect()
}

#[test]
fn idle_clients_neither_block_the_service_nor_replace_one_that_monitors() {
    let job = Job::start("A,A");
    job.report(|report| launched(report, "AllReduce") == [1, 1]);
    let monitor = &idle_clients(&job, 1, "MONITOR lifecycle\n")[0];
    let mut response = BufReader::new(monitor);
    assert_eq!(response.by_ref().lines().next().unwrap().unwrap(), "OK");
    monitor.set_nonblocking(true).unwrap();
    // Each process serves 64 at a time.
    for words in ["", "STAT", "SET FORMAT json\n", "MONITOR all\n"] {
        let idle = idle_clients(&job, 400, words);
        let began = Instant::now();
        for _ in 0..20 {
            job.client().status().unwrap_or_else(|error| panic!("{words:?}: {error}"));
        }
        assert!(began.elapsed() < Duration::from_secs(8), "{words:?}: {:?}", began.elapsed());
        let is_connected = response.read(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock);
        assert!(is_connected || words.starts_with("MONITOR"), "{words:?}");
        drop(idle);
    }
    job.finish();
}

#[test]
fn response_to_a_malformed_request_names_the_mistake() {
    let job = Job::start("A,A");
    job.report(|_| true);
    let stream = job.connect();
    let mut responses = BufReader::new(&stream).lines();
    for (request, response) in [
        ("client protocol 2", "SERVER PROTOCOL 2"),
        ("TIMEOUT 2.5\r", "OK"),
        ("TIMEOUT -1", "ERROR: Invalid timeout value -1"),
        ("SET FORMAT xml", "ERROR: Invalid format XML"),
        ("MONITOR all,dead", "ERROR: Invalid event group 'DEAD'"),
        ("CONTROL PROFILER_MASK all", "ERROR: the CPU backend has no profiler to control"),
        ("VERBOSE  STATUS", "ERROR: Unknown command VERBOSE  STATUS"),
        ("", "ERROR: Unknown command "),
        ("Monitor Lifecycle,trace", "OK"),
    ] {
        (&stream).write_all(format!("{request}\n").as_bytes()).unwrap();
        assert_eq!(responses.next().unwrap().unwrap(), response, "{request}");
    }
    job.finish();
}

#[test]
#[ignore = "waits for ten seconds: .ci/run long"]
fn silent_client_is_disconnected() {
    let job = Job::start("A,A");
    job.report(|_| true);
    let idle = idle_clients(&job, 10, "STAT");
    let mut monitors = idle_clients(&job, 10, "MONITOR\n");
    for mut stream in idle {
        let end = stream.read(&mut [0; 64]).map_err(|error| error.kind());
        assert!(matches!(end, Ok(0) | Err(ErrorKind::ConnectionReset)), "{end:?}");
    }
    for stream in &mut monitors {
        stream.read_exact(&mut [0; 3]).unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
        let more = stream.read(&mut [0; 64]).map_err(|error| error.kind());
        assert_eq!(more, Err(ErrorKind::WouldBlock), "one that monitors may be quiet");
    }
    drop(monitors);
    job.finish();
}

#[test]
fn random_requests_get_a_response_or_an_error_and_the_service_continues() {
    let job = Job::start("A,A");
    job.report(|_| true);
    let mut random = Random(17);
    for _ in inputs(200) {
        let mut connection = job.connect();
        let words = "STATUS|\n| |SET FORMAT json\n|MONITOR|TIMEOUT |5\n|\0\u{ff}|DIAGNOSTICS|CONTROL PROFILER_MASK |VERBOSE |CLIENT PROTOCOL 2\n";
        let words: Vec<&str> = words.split('|').collect();
        for _ in 0..random.below(20) {
            let times = if random.below(50) == 0 { 2000 } else { 1 };
            let word = random.pick(&words);
            if (0..times).any(|_| connection.write_all(word.as_bytes()).is_err()) {
                break;
            }
        }
        if random.below(2) == 0 {
            let _ = connection.shutdown(std::net::Shutdown::Write);
            // Ends with a response, or when the connection is closed.
            let _ = connection.read(&mut [0; 64]);
        }
    }
    job.report(|report| launched(report, "AllReduce") == [1, 1]);
    job.finish();
}
