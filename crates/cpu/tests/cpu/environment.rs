//! NCCL's environment variables that change what a call does: `NCCL_COMM_ID` (a program `commid`, whose ranks each
//! created the id, waited forever) and `NCCL_MULTI_RANK_GPU_ENABLE`.
//!
//! A process has one environment, so each test sets it for separate processes.

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, TcpListener};
use std::ptr;
use std::thread;
use std::time::Duration;

use crate::common::processes::{self, RankProcess};
use crate::common::{
    ARGUMENT, Comm, OK, USAGE, assert_last_error, assert_sum, init_rank, last_error, on_threads,
    rendezvous_name, shrink, unique_id,
};
use libnccl::sys::{NCCL_SHRINK_ABORT, ncclUniqueId};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};
use rustix::process::{Uid, geteuid};
use rustix::thread::set_thread_res_uid;

rank_tasks!(join, shrink_two, create_invalid_id, create_grow_id, squat, init_device_twice);

/// Creates a communicator of all ranks by an id that this rank created itself.
fn join_at_address(process: &RankProcess) -> Comm {
    init_rank(unique_id(), process.ranks, process.rank())
        .unwrap_or_else(|code| panic!("{code:?} {}", last_error()))
}

/// Joins as often as the first argument says, on rank 0 after a pause if there is a second one.
fn join(process: &RankProcess) {
    if process.rank() == 0 && process.arguments.len() > 1 {
        thread::sleep(Duration::from_millis(700));
    }
    // One after another, without a pause: the address is reused immediately.
    let times = process.arguments[0].parse().unwrap();
    let comms: Vec<Comm> = (0..times).map(|_| join_at_address(process)).collect();
    for comm in comms {
        assert_sum(comm.0, process.ranks);
        comm.destroy();
    }
}

/// Holds the name of the address as another user, prints it, and keeps it until this process is killed.
fn squat(process: &RankProcess) {
    let name = rendezvous_name(&unique_id());
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
    let nobody = Uid::from_raw(65534);
    set_thread_res_uid(nobody, nobody, nobody).unwrap();
    let take = |backlog: Option<i32>| {
        let socket =
            socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        // Leaves the name to the ranks.
        if bind(&socket, &address).is_ok() {
            backlog.into_iter().for_each(|backlog| listen(&socket, backlog).unwrap());
        }
        socket
    };
    println!("\n{name}");
    let _held = match process.arguments[0].as_str() {
        "bind" => take(None),
        "full" => take(Some(0)),
        "listen" => take(Some(1000)),
        _ => loop {
            drop(take(Some(1000)));
            thread::yield_now();
            thread::sleep(Duration::from_micros(u64::from(std::process::id() % 50)));
        },
    };
    println!("taken");
    thread::sleep(Duration::from_secs(1000));
}

/// Ranks 0 and 1 shrink two communicators at the same time, without rank 2.
fn shrink_two(process: &RankProcess) {
    let comms = [join_at_address(process), join_at_address(process)];
    let times = if process.rank() == 2 { 0 } else { 20 };
    on_threads(2, |index| {
        for _ in 0..times {
            // Not in the same order at all ranks.
            let Comm(comm) = comms[(index + process.rank()) % 2];
            let child = shrink(comm, &[2], NCCL_SHRINK_ABORT as i32).unwrap();
            assert_sum(child.0, process.ranks - 1);
            child.destroy();
        }
    });
}

fn create_invalid_id(_: &RankProcess) {
    let value = std::env::var("NCCL_COMM_ID").unwrap();
    let (code, text) = match value.as_str() {
        "192.0.2.1:7" => (USAGE, format!("NCCL_COMM_ID {value:?} is no address of this host")),
        _ => (ARGUMENT, format!("invalid NCCL_COMM_ID {value:?}: expected <ipv4>:<port>")),
    };
    assert_eq!(nccl!(ncclGetUniqueId(&mut ncclUniqueId::default())), code);
    assert_last_error(&text);
}

fn create_grow_id(process: &RankProcess) {
    let (Comm(comm), mut id) = (join_at_address(process), ncclUniqueId::default());
    assert_eq!(nccl!(ncclCommGetUniqueId(comm, &mut id)), USAGE);
    assert_last_error("ncclCommGetUniqueId cannot be used while NCCL_COMM_ID is set");
}

fn init_device_twice(_: &RankProcess) {
    let (mut comms, devices) = ([ptr::null_mut(); 3], [0, 1, 0]);
    let code = nccl!(ncclCommInitAll(comms.as_mut_ptr(), 3, devices.as_ptr()));
    if std::env::var("NCCL_MULTI_RANK_GPU_ENABLE").unwrap() != "1" {
        assert_eq!(code, USAGE);
        return assert_last_error("device 0 is twice in the list, which NCCL_MULTI_RANK_GPU_ENABLE=1 allows");
    }
    assert_eq!(code, OK, "{}", last_error());
    let comms = comms.map(Comm);
    on_threads(3, |rank| assert_sum({ comms[rank] }.0, 3));
}

#[track_caller]
fn run(task: &str, ranks: usize, name: &str, value: &str) {
    processes::run(task, (0..ranks).map(|rank| [rank]), &[(name, value), ("LIBNCCL_CPU_TIMEOUT", "20")]);
}

/// Returns an address that nothing else uses: the listener holds its port.
fn address() -> (TcpListener, String) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    (listener, address)
}

#[test]
fn ranks_with_comm_id_join_without_exchanging_an_id() {
    let (_listener, address) = address();
    run("join 50", 3, "NCCL_COMM_ID", &address);
    // The next job at this address, whose rank 0 is late.
    run("join 50 late", 2, "NCCL_COMM_ID", &address);
}

#[test]
fn socket_name_held_by_another_user_does_not_block_comm_id() {
    if !geteuid().is_root() {
        println!("skipped: socket_name_held_by_another_user_does_not_block_comm_id, which only root can try");
        return;
    }
    for (how, task) in
        [("listen", "join 50"), ("bind", "join 2"), ("full", "join 2"), ("now and then", "join 50")]
    {
        let (_listener, address) = address();
        let mut squatter = processes::command(&format!("squat {how}"), &ncclUniqueId::default(), 1, &[0]);
        let mut squatter = squatter.env("NCCL_COMM_ID", &address).spawn().unwrap();
        let last = if how == "now and then" { "libnccl-cpu-" } else { "taken" };
        let mut lines = BufReader::new(squatter.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().starts_with(last)));
        run(task, 3, "NCCL_COMM_ID", &address);
        processes::kill(&mut squatter);
        // The next job can use the name.
        run("join 2", 2, "NCCL_COMM_ID", &address);
    }
}

#[test]
fn shrinks_of_two_comm_id_communicators_do_not_mix() {
    let (_listener, address) = address();
    run("shrink_two", 3, "NCCL_COMM_ID", &address);
}

#[test]
fn unusable_comm_id_error_shows_the_value() {
    let addresses =
        "rank0|7|127.0.0.1|127.0.0.1:|127.0.0.1:0|127.0.0.1:65536|[::1:1234|no host:1|192.0.2.1:7";
    for value in addresses.split('|') {
        run("create_invalid_id", 1, "NCCL_COMM_ID", value);
    }
    run("create_grow_id", 1, "NCCL_COMM_ID", "127.0.0.1:7");
}

#[test]
fn duplicate_device_is_allowed_by_multi_rank_gpu_enable() {
    for value in ["1", "0", "", "yes"] {
        run("init_device_twice", 1, "NCCL_MULTI_RANK_GPU_ENABLE", value);
    }
}
