//! Ranks that fail before all have the id, or cannot begin: the others fail immediately, with the reason.

use std::io::Write;
use std::thread;
use std::time::{Duration, Instant};

use libnccl::Config;
use libnccl_launch::{Launch, LaunchError};

use crate::misuse::{FOREVER, connect, hello, id, receive};
use crate::rank_process::{LONG, Variables, free_port, manual, of_job, start};
use crate::store_server::{Release, StoreServer};

/// The time limit for the ranks to exit. Their timeouts are longer.
const LIMIT: Duration = Duration::from_secs(20);

fn launch(variables: Variables) -> Launch {
    Launch::from_variables(variables).unwrap().timeout(Duration::from_secs(50))
}

/// Runs four ranks, and returns the error of each.
#[track_caller]
fn errors(work: impl Fn(usize) -> libnccl_launch::Result<()> + Sync) -> [String; 4] {
    let (work, started) = (&work, Instant::now());
    let errors = thread::scope(|scope| {
        let ranks = [0, 1, 2, 3].map(|rank| scope.spawn(move || work(rank)));
        ranks.map(|rank| rank.join().unwrap().unwrap_err().to_string())
    });
    assert!(started.elapsed() < LIMIT, "{:?}: {errors:?}", started.elapsed());
    errors
}

/// Also of ranks that join later.
#[test]
fn reason_of_a_rank_that_has_failed_is_the_error_of_the_others() {
    let directory = tempfile::tempdir().unwrap();
    let store = StoreServer::start(Release::WithPing);
    let port = free_port();
    let rendezvous = [
        format!("tcp://127.0.0.1:{port}"),
        format!("file://{}", directory.path().display()),
        format!("tcpstore://127.0.0.1:{}", store.port),
    ];
    for rendezvous in rendezvous {
        for failing in [0, 2] {
            let errors = errors(|rank| {
                let mut variables = of_job("7", rank, 4, port);
                variables.push(("LIBNCCL_RENDEZVOUS", rendezvous.clone()));
                let launch = launch(variables);
                thread::sleep(Duration::from_millis(300 * rank as u64));
                if rank == failing {
                    launch.fail("no library:\n  libnccl.so.2: not found");
                    return Err(LaunchError::NoLauncher);
                }
                id(&launch).map(drop)
            });
            for (rank, error) in errors.iter().enumerate().filter(|(rank, _)| *rank != failing) {
                let expected = format!("rank {failing} failed: no library:\n  libnccl.so.2: not found");
                assert_eq!(*error, expected, "rank {rank}, {rendezvous}");
            }
        }
    }
    assert_eq!(directory.path().read_dir().unwrap().count(), 0);
    assert_eq!(store.keys(), [""; 0]);
}

/// The second one is refused by the CPU backend itself, so the mistake is found only after the exchange of the id.
#[test]
fn invalid_config_of_a_rank_is_the_error_of_the_others() {
    let port = free_port();
    let channels = || Config::new().n_channels_per_net_peer(65);
    for (wrong, failing, text) in [
        (Config::new().cga_cluster_size(77), 0, "cga_cluster_size is 77; expected 0 to 8"),
        (Config::new().cga_cluster_size(77), 2, "cga_cluster_size is 77; expected 0 to 8"),
        (channels(), 0, "nChannelsPerNetPeer"),
        (channels(), 3, "nChannelsPerNetPeer"),
    ] {
        let errors = errors(|rank| {
            let config = if rank == failing { wrong.clone() } else { Config::new() };
            launch(manual(rank, 4, port)).communicator_with(&libnccl_cpu::nccl(), &config).map(drop)
        });
        for (rank, error) in errors.iter().enumerate() {
            // Reported by the launcher or by the library, depending on timing.
            let names_it = rank == failing || error.contains(&format!("rank {failing} failed"));
            assert!(names_it && error.contains(text), "rank {rank}: {error}");
        }
    }
}

/// Ranks that create their communicators in different orders would join the wrong communicators.
#[test]
fn communicator_of_another_name_is_an_error_of_all_ranks_with_both_names() {
    let port = free_port();
    let long = "x".repeat(600);
    for (names, failing, text) in [
        (
            ["data", "data", "model"],
            2,
            "it creates communicator \"model\", and rank 0 creates communicator \"data\": ",
        ),
        (
            ["data", "", "data"],
            1,
            "it creates a communicator without a name, and rank 0 creates communicator \"data\": ",
        ),
        (
            ["", "", "data"],
            2,
            "it creates communicator \"data\", and rank 0 creates a communicator without a name: ",
        ),
        ([&long, &long[1..], &long], 1, "all ranks have to create their communicators in the same order"),
        (["data", "\u{1b}[2J", "data"], 1, "it creates communicator \"\\u{1b}[2J\", and rank 0"),
    ] {
        let errors = errors(|rank| {
            let launch = launch(of_job("names", rank, 4, port));
            launch.communicator_named(names[rank % 3], &libnccl_cpu::nccl(), &Config::new()).map(drop)
        });
        for (rank, error) in errors.iter().enumerate() {
            assert!(
                error.starts_with(&format!("rank {failing} failed: it creates ")),
                "rank {rank}: {error}"
            );
            assert!(error.contains(text), "rank {rank}: {error}");
        }
    }
}

#[test]
fn communicators_of_the_same_names_are_created() {
    let port = free_port();
    let long = "x".repeat(600);
    thread::scope(|scope| {
        for rank in 0..2 {
            let long = &long;
            scope.spawn(move || {
                let (launch, nccl) = (launch(of_job("names", rank, 2, port)), libnccl_cpu::nccl());
                for name in ["data", "model", "", long] {
                    let comm = launch.communicator_named(name, &nccl, &Config::new()).unwrap();
                    assert_eq!((comm.rank(), comm.size()), (rank, 2));
                }
            });
        }
    });
}

#[test]
fn rank_0_that_gets_no_id_is_the_error_of_the_others() {
    let port = free_port();
    let variables = |rank| {
        let mut variables = manual(rank, 3, port);
        variables.push(("NCCL_COMM_ID", "no address".into()));
        variables
    };
    let started = Instant::now();
    let ranks = [0, 1, 2].map(|rank| start(LONG, &variables(rank)));
    let [root, others @ ..] = ranks;
    root.expect_error("error: ncclGetUniqueId failed: ");
    for rank in others {
        rank.expect_error("error: rank 0 failed: ncclGetUniqueId failed: ");
    }
    assert!(started.elapsed() < LIMIT, "{:?}", started.elapsed());
}

/// Without an id, any process could have reported the failure of a rank that has yet to join.
#[test]
fn failure_in_a_job_that_lacks_a_rank_ends_it_immediately_if_the_job_has_an_id() {
    // The timeout of the failing rank: it exits before or after the deadline of rank 0.
    let settings = [("a job", 1), ("a job", 50), ("", 1), ("", 50)];
    thread::scope(|scope| {
        for (job, seconds) in settings {
            scope.spawn(move || fail_in_a_job_that_lacks_a_rank(job, seconds));
        }
    });
}

fn fail_in_a_job_that_lacks_a_rank(job: &str, seconds: u64) {
    let (port, started) = (free_port(), Instant::now());
    let launch = |rank, seconds| launch(of_job(job, rank, 4, port)).timeout(Duration::from_secs(seconds));
    thread::scope(|scope| {
        scope.spawn(|| launch(2, seconds).fail("no library"));
        let root = scope.spawn(|| id(&launch(0, 5)).unwrap_err().to_string());
        let rank = id(&launch(1, 50)).unwrap_err().to_string();
        let elapsed = started.elapsed();
        let root = root.join().unwrap();
        if job.is_empty() {
            assert!(root.starts_with("rank 3 of 4 did not join within "), "{root}");
            assert!(root.contains("rank 2 failed: no library"), "{root}");
            assert!(rank.starts_with("rank 3 of 4 did not join within "), "{rank}");
        } else {
            assert_eq!([root, rank], ["rank 2 failed: no library"; 2]);
            assert!(elapsed < Duration::from_secs(4), "{elapsed:?}");
        }
    });
}

#[test]
fn failure_that_no_rank_receives_ends_by_the_timeout() {
    for rank in [0, 1] {
        let launch = launch(manual(rank, 2, free_port())).timeout(Duration::from_millis(300));
        let started = Instant::now();
        launch.fail("no library");
        assert!(started.elapsed() < Duration::from_secs(10), "rank {rank}: {:?}", started.elapsed());
    }
    // There is no other rank to notify.
    launch(vec![("RANK", "0".into()), ("WORLD_SIZE", "1".into())]).fail("no library");
}

/// One rank exits, which closes its connection. The other continues, and sends nothing until the deadline of rank 0.
#[test]
fn rank_with_the_id_that_does_not_begin_is_named() {
    for (ends, seconds, problem) in [
        (true, 50, "it has ended before all ranks had begun"),
        (false, 3, "it has the id, and has not begun"),
    ] {
        let port = free_port();
        let launch = move |rank, seconds| launch(manual(rank, 3, port)).timeout(Duration::from_secs(seconds));
        let started = Instant::now();
        thread::scope(|scope| {
            let root = scope.spawn(move || id(&launch(0, seconds)));
            let rank = scope.spawn(move || id(&launch(1, 50)));
            let mut stream = connect(port);
            stream.write_all(&hello(&format!("port/{port}"), 2, 3, FOREVER)).unwrap();
            assert_eq!(receive(&mut stream).unwrap(), "accepted");
            assert!(receive(&mut stream).unwrap().starts_with("id "));
            let goes_on = (!ends).then_some(stream);
            for rank in [root, rank] {
                let error = rank.join().unwrap().unwrap_err().to_string();
                assert_eq!(error, format!("rank 2 failed: {problem}"));
            }
            drop(goes_on);
        });
        assert!(started.elapsed() < LIMIT, "{:?}", started.elapsed());
    }
}

#[test]
fn missing_ranks_are_listed() {
    let text = |ranks: &[usize], missing, size| {
        let (elapsed, detail) = (Duration::from_millis(2500), "refused 1".into());
        LaunchError::MissingRanks { ranks: ranks.into(), missing, size, elapsed, detail }.to_string()
    };
    assert_eq!(text(&[3], 1, 4), "rank 3 of 4 did not join within 2.5 s: refused 1");
    assert_eq!(text(&[3, 5], 2, 8), "ranks 3 and 5 of 8 did not join within 2.5 s: refused 1");
    let many = "ranks 1, 2, 3 and 7 more of 16 did not join within 2.5 s: refused 1";
    assert_eq!(text(&[1, 2, 3], 10, 16), many);
    let all = "all 2 ranks joined, but the exchange of the unique id did not finish within 2.5 s: refused 1";
    assert_eq!(text(&[], 0, 2), all);
}
