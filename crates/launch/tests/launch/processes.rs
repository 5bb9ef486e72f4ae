//! Ranks that arrive in any order, or not at all.

use std::net::TcpListener;
use std::os::unix::fs::DirBuilderExt;
use std::thread;
use std::time::{Duration, Instant};

use crate::rank_process::{LONG, Variables, at, free_port, manual, of_job, start, wait_until};
use crate::store_server::{Release, StoreServer};

/// The deadline of a job that must fail.
const SHORT: u64 = 4_000;

/// Runs a test with each kind of rendezvous, all at the same time.
fn each_rendezvous(test: impl Fn(&dyn Fn(usize, usize) -> Variables) + Sync) {
    let port = free_port();
    let directory = tempfile::tempdir().unwrap();
    let with = |rank, size, rendezvous| {
        let mut variables = of_job("of this test", rank, size, port);
        variables.push(("LIBNCCL_RENDEZVOUS", rendezvous));
        variables
    };
    let in_directory = |rank, size| with(rank, size, format!("file://{}", directory.path().display()));
    let store = StoreServer::start(Release::WithPing);
    let in_store = |rank, size| with(rank, size, format!("tcpstore://127.0.0.1:{}", store.port));
    thread::scope(|scope| {
        scope.spawn(|| test(&|rank, size| manual(rank, size, port)));
        scope.spawn(|| test(&in_directory));
        scope.spawn(|| test(&in_store));
    });
}

#[test]
fn rank_that_starts_last_is_waited_for() {
    each_rendezvous(|variables| {
        for last in [0, 2] {
            let first = [0, 1, 2].into_iter().filter(|rank| *rank != last);
            let first: Vec<_> = first.map(|rank| start(LONG, &variables(rank, 3))).collect();
            thread::sleep(Duration::from_millis(700));
            start(LONG, &variables(last, 3)).expect_sum(6);
            first.into_iter().for_each(|rank| rank.expect_sum(6));
        }
    });
}

/// Each of the others names the rank by the deadline.
#[test]
fn rank_that_is_killed_before_it_connects_is_named_by_all() {
    each_rendezvous(|variables| {
        let started = Instant::now();
        let others = [0, 1, 3].map(|rank| start(SHORT, &variables(rank, 4)));
        // The rank sleeps before it reads its variables.
        let mut late = variables(2, 4);
        late.push(("LIBNCCL_TEST_LATE", String::new()));
        drop(start(SHORT, &late));
        for rank in others {
            rank.expect_error("rank 2 of 4 did not join within ");
        }
        // Processes start slowly on a busy machine.
        assert!(started.elapsed() < Duration::from_millis(SHORT + 5_000), "{:?}", started.elapsed());
    });
}

#[test]
fn root_that_is_killed_before_it_listens_is_named_by_all() {
    each_rendezvous(|variables| {
        for rank in [1, 2].map(|rank| start(SHORT, &variables(rank, 3))) {
            rank.expect_error("rank 0 of 3 did not join within ");
        }
    });
}

/// The first two ranks have joined when one of them dies.
#[test]
fn rank_that_joins_and_dies_is_named() {
    each_rendezvous(|variables| {
        for (dead, error) in
            [(0, "rank 0 of 3 did not join within "), (1, "ranks 1 and 2 of 3 did not join within ")]
        {
            let mut ranks = Vec::from([0, 1].map(|rank| start(SHORT, &variables(rank, 3))));
            thread::sleep(Duration::from_millis(700));
            drop(ranks.remove(dead));
            ranks.remove(0).expect_error(error);
        }
    });
}

/// The address of a dead root remains in the directory and in the store, and is recognized as old.
#[test]
fn rank_that_is_started_again_replaces_the_dead_one() {
    each_rendezvous(|variables| {
        for dead in [0, 1] {
            let mut ranks = Vec::from([0, 1].map(|rank| start(LONG, &variables(rank, 3))));
            thread::sleep(Duration::from_millis(700));
            drop(ranks.remove(dead));
            ranks.push(start(LONG, &variables(2, 3)));
            thread::sleep(Duration::from_millis(300));
            start(LONG, &variables(dead, 3)).expect_sum(6);
            ranks.into_iter().for_each(|rank| rank.expect_sum(6));
        }
    });
}

#[test]
fn stale_file_of_an_older_job_is_recognized() {
    let directory = tempfile::tempdir().unwrap();
    let variables = |rank| at(format!("file://{}", directory.path().display()), rank);
    let files = || directory.path().read_dir().unwrap().map(|file| file.unwrap().path()).collect::<Vec<_>>();
    let dead = start(LONG, &variables(0));
    wait_until(|| files().iter().any(|file| file.extension().is_none()));
    drop(dead);
    let [file] = &files()[..] else { panic!("{:?}", files()) };
    start(SHORT, &variables(1)).expect_error(&format!(", by {}, written ", file.display()));
    // A truncated file and a foreign file are not addresses either.
    for text in ["", "libnccl launch 1\nnonce 00", "something else\n"] {
        std::fs::write(file, text).unwrap();
        start(500, &variables(1)).expect_error("the announcement of rank 0 has no valid text");
    }
    let rank = start(LONG, &variables(1));
    start(LONG, &variables(0)).expect_sum(3);
    rank.expect_sum(3);
    assert!(files().is_empty(), "{:?}", files());
}

/// The launch was killed before rank 0 could remove its directory.
#[test]
fn directory_of_a_killed_launch_is_removed_by_the_next_one() {
    let directory = tempfile::tempdir().unwrap();
    let variables = |rank, run: &str| {
        let mut variables = manual(rank, 2, 1);
        let name = directory.path().to_str().unwrap();
        variables.extend([("LIBNCCL_RUN_ID", run.into()), ("TMPDIR", name.into())]);
        variables
    };
    let published = || {
        let entries = directory.path().read_dir().unwrap().flatten();
        let files = entries.flat_map(|entry| entry.path().read_dir().into_iter().flatten()).flatten();
        files.map(|file| file.path()).collect::<Vec<_>>()
    };
    // Each launch removes the directory of the one before.
    let mut before = Vec::new();
    let mut start_alone = |run| {
        let root = start(LONG, &variables(0, run));
        wait_until(|| published().len() == 1 && published() != before);
        before = published();
        root
    };
    drop(start_alone("1"));
    drop(start_alone("2"));
    // Directories of a running launch, of another user, and of another program.
    let goes_on = start_alone("3");
    let shared = directory.path().join("libnccl-launch-shared");
    std::fs::create_dir(&shared).unwrap();
    let foreign = std::fs::DirBuilder::new().mode(0o700).create(directory.path().join("libnccl-launch-0"));
    foreign
        .and_then(|()| std::fs::write(directory.path().join("libnccl-launch-0/file"), "of another"))
        .unwrap();
    for rank in [0, 1].map(|rank| start(LONG, &variables(rank, "4"))) {
        rank.expect_sum(3);
    }
    assert_eq!(directory.path().read_dir().unwrap().count(), 3);
    start(LONG, &variables(1, "3")).expect_sum(3);
    goes_on.expect_sum(3);
    assert_eq!(directory.path().read_dir().unwrap().count(), 2);
}

#[test]
fn key_that_is_no_address_is_an_error_by_the_deadline() {
    let store = StoreServer::start(Release::WithPing);
    store.set("/libnccl/job/7/address", "of somebody else");
    let variables = |rank| at(format!("tcpstore://127.0.0.1:{}", store.port), rank);
    start(500, &variables(1))
        .expect_error("key /libnccl/job/7/address: the announcement of rank 0 has no valid");
    let rank = start(LONG, &variables(1));
    start(LONG, &variables(0)).expect_sum(3);
    rank.expect_sum(3);
}

#[test]
fn store_that_never_replies_is_an_error_by_the_deadline() {
    // Nothing accepts the connections.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    let started = Instant::now();
    let variables = |rank| at(format!("tcpstore://{address}"), rank);
    for rank in [0, 1].map(|rank| start(1_000, &variables(rank))) {
        rank.expect_error("no complete reply before the deadline");
    }
    assert!(started.elapsed() < Duration::from_secs(6), "{:?}", started.elapsed());
}

/// Both succeed: the ranks of each are refused by the root of the other, until the port is free.
#[test]
fn second_job_on_the_same_port_waits_for_it() {
    let port = free_port();
    let first = [0, 2].map(|rank| start(LONG, &of_job("first", rank, 3, port)));
    let second = [1, 0].map(|rank| start(LONG, &of_job("second", rank, 2, port)));
    thread::sleep(Duration::from_millis(700));
    start(LONG, &of_job("first", 1, 3, port)).expect_sum(6);
    for rank in first {
        rank.expect_sum(6);
    }
    for rank in second {
        rank.expect_sum(3);
    }
}

/// The deadline is as long as for a job that must succeed.
#[test]
fn address_of_another_host_is_an_immediate_error_of_rank_0() {
    let port = free_port();
    for address in ["192.0.2.1", "198.51.100.7"] {
        let mut variables = manual(0, 2, port);
        variables.retain(|(name, _)| *name != "MASTER_ADDR");
        variables.push(("MASTER_ADDR", address.into()));
        let started = Instant::now();
        start(LONG, &variables)
            .expect_error(&format!("rank 0 cannot listen there: {address} is no address of this host"));
        assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
    }
}

#[test]
fn port_in_use_is_an_error_by_the_deadline() {
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = other.local_addr().unwrap().port();
    start(500, &manual(0, 2, port)).expect_error("rank 0 cannot listen there: Address already in use");
}
