//! Ranks in separate PID and time namespaces: a rank's death is detected, or the initialization error says why it cannot be.
//!
//! The tests print that they are skipped if no namespaces can be created.
#![allow(unsafe_code)]

use std::ffi::OsStr;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::processes::{RankProcess, command, finish};
use crate::common::{Comm, OK, REMOTE, SOON, USAGE, all_reduce, init_rank, last_error, unique_id};
use libnccl::sys::ncclUniqueId;

rank_tasks!(run_pair, sum_until_death, sum_until_killed, print_refusal, sum_until_killed_hidden);

/// Sums until the other rank dies, which it does after the first sum.
fn sum_until_death(process: &RankProcess) {
    let Comm(comm) = process.join();
    assert_eq!(all_reduce(&mut [1], comm), OK, "{}", last_error());
    // Long enough to be considered dead.
    thread::sleep(Duration::from_millis(600));
    assert_eq!(all_reduce(&mut [1], comm), OK, "{}", last_error());
    let began = Instant::now();
    assert_eq!(all_reduce(&mut [1], comm), REMOTE);
    assert!(last_error().contains("rank 0 died: its process ended"), "{}", last_error());
    eprintln!("noticed after {:?}", began.elapsed());
    assert!(began.elapsed() < SOON);
}

fn sum_until_killed(process: &RankProcess) {
    let Comm(comm) = process.join();
    assert_eq!([all_reduce(&mut [1], comm), all_reduce(&mut [1], comm)], [OK; 2], "{}", last_error());
    // SAFETY: it sends a signal.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
}

/// With `hidepid`, the other rank does not find this process in `/proc`.
fn sum_until_killed_hidden(process: &RankProcess) {
    // SAFETY: it sets a flag of this process.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0) }, 0);
    sum_until_killed(process);
}

/// Runs both ranks of a pair in the namespaces of this process; the argument is the task of the first.
fn run_pair(process: &RankProcess) {
    let id = unique_id();
    let start = |task: &str, rank| command(task, &id, 2, &[rank]).spawn().unwrap();
    let [mut killed, survivor] = [start(&process.arguments[0], 0), start("sum_until_death", 1)];
    let printed = finish(survivor);
    assert_eq!(killed.wait().unwrap().signal(), Some(libc::SIGKILL), "it failed before");
    eprintln!("{printed}");
}

fn print_refusal(process: &RankProcess) {
    let is_alone = process.arguments.iter().any(|argument| argument == "alone");
    let (id, ranks) = if is_alone { (unique_id(), 1) } else { (process.id, process.ranks) };
    let code = init_rank(id, ranks, process.rank()).map(drop);
    eprintln!("{code:?}: {}", last_error());
}

/// Returns the command of a rank process in new namespaces, made by the options of `unshare` and the words after them; `None` if
/// they cannot be.
fn unshare(options: &[&str], task: &str, id: &ncclUniqueId, rank: usize) -> Option<Command> {
    let start = |program: &[&OsStr]| {
        let mut unshare = Command::new("unshare");
        unshare.args(options).args(program).stdout(Stdio::null()).stderr(Stdio::piped());
        unshare
    };
    let inner = command(task, id, 2, &[rank]);
    let test = ["test".as_ref(), "-x".as_ref(), inner.get_program()];
    if !start(&test).status().is_ok_and(|status| status.success()) {
        println!("skipped: this user cannot start the test with unshare {}", options.join(" "));
        return None;
    }
    let mut command = start(&[inner.get_program()]);
    command.args(inner.get_args());
    command.envs(inner.get_envs().map(|(name, value)| (name, value.unwrap())));
    Some(command)
}

const PID: &[&str] = &["--user", "--map-root-user", "--pid", "--fork", "--mount-proc"];
const TIME: &[&str] = &["--user", "--map-root-user", "--time", "--boottime", "1000"];

/// As root, because `hidepid` does not hide processes from root's group.
const HIDDEN: &[&str] = &[
    "--pid",
    "--fork",
    "--mount-proc",
    "sh",
    "-c",
    "mount -t proc -o hidepid=2 proc /proc && exec setpriv --reuid=65534 --regid=65534 --clear-groups \"$@\"",
    "sh",
];

/// The program `die`, in namespaces.
#[test]
fn death_in_a_namespace_or_of_a_hidden_rank_is_noticed() {
    for (options, task) in [
        (PID, "run_pair sum_until_killed"),
        (TIME, "run_pair sum_until_killed"),
        (HIDDEN, "run_pair sum_until_killed_hidden"),
    ] {
        let Some(mut pair) = unshare(options, task, &unique_id(), 0) else { continue };
        let printed = finish(pair.spawn().unwrap());
        assert!(printed.contains("noticed after"), "{printed}");
    }
}

#[test]
fn init_across_namespaces_or_with_another_namespaces_proc_is_refused() {
    const NO_PROC: &[&str] = PID.split_last().unwrap().1;
    let across_pids = "from another network or process namespace (container) of this host";
    for (options, task, ranks, text) in [
        (TIME, "print_refusal", 2, "they are in different time namespaces"),
        (PID, "print_refusal", 1, across_pids),
        (NO_PROC, "print_refusal alone", 1, "/proc is of another PID namespace"),
    ] {
        let id = unique_id();
        let Some(mut inside) = unshare(options, task, &id, 0) else { continue };
        let mut children = vec![inside.spawn().unwrap()];
        (1..ranks).for_each(|rank| children.push(command(task, &id, 2, &[rank]).spawn().unwrap()));
        for printed in children.into_iter().map(finish) {
            assert!(printed.contains(text), "{printed}");
            assert!(printed.contains(&format!("Err({USAGE:?})")) || options == NO_PROC, "{printed}");
        }
    }
}
