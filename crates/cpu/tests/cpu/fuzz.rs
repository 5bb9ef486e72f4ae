//! Corrupted unique ids, unauthenticated connections to the rendezvous, and fake roots: every call returns, and soon.
//!
//! A failure prints its seed; `LIBNCCL_TEST_FUZZ_SEED=<seed> cargo test -p libnccl-cpu --test cpu fuzz` repeats it.
//! `cargo test --release -p libnccl-cpu --test cpu fuzz -- --ignored` tries for a minute.

use std::fs::File;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::processes::is_own_process;
use crate::common::{
    ARGUMENT, Watchdog, alone, assert_last_error, assert_sum, descriptors, init_rank, last_error, on_threads,
    rendezvous_name, unique_id,
};
use libnccl::sys::{ncclResult_t, ncclUniqueId};
use libnccl_test_support::random_inputs::{Random, fresh_seed, from_environment};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags,
    SocketType, accept_with, bind, connect, listen, send, sendmsg, socket_with,
};

/// Runs `body` with a seed, in a separate process that ends if it hangs, and expects no descriptors to stay open.
fn in_own_process(limit: Duration, body: impl FnOnce(u64)) {
    if is_own_process() {
        let (_watchdog, before) = (Watchdog::new(limit), descriptors());
        let seed = from_environment("LIBNCCL_TEST_FUZZ_SEED").unwrap_or_else(fresh_seed);
        println!("seed {seed}");
        body(seed);
        assert_eq!(descriptors(), before, "seed {seed}: files stay open");
    }
}

/// Damage to the host or the namespaces is not reported as another host.
#[test]
fn init_with_damaged_or_foreign_id_error_names_the_cause() {
    let _alone = alone();
    let id = unique_id();
    let good = id.internal.map(|byte| byte as u8);
    let refused = |bytes: &[u8], text: &str| {
        let mut given = ncclUniqueId::default();
        given.internal.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from as _);
        for (ranks, rank) in [(1, 0), (3, 2)] {
            assert_eq!(init_rank(given, ranks, rank), Err(ARGUMENT), "{bytes:x?}");
            assert_last_error(text);
        }
    };
    let damaged = |bytes: &[u8]| refused(bytes, "this unique id is damaged");
    for index in 0..good.len() {
        for bit in [1, 0x40, 0x80] {
            let mut bytes = good;
            bytes[index] ^= bit;
            damaged(&bytes);
        }
    }
    damaged(good.split(|byte| *byte == 0).next().unwrap());
    damaged(&good[..64]);
    // Without the checksum.
    damaged(&good[..112]);
    damaged(String::from_utf8_lossy(&good).as_bytes());
    damaged(good.iter().map(|byte| char::from(*byte)).collect::<String>().as_bytes());
    // Of two ids.
    damaged(&[&good[..40], &good[88..], &good[40..88]].concat());
    for byte in [0, !0, 7] {
        refused(&[byte; 128], "is not from this version");
    }
    // No attempt has used the id itself.
    let comm = init_rank(id, 1, 0).expect("the id is valid");
    assert_sum(comm.0, 1);
    comm.destroy();
}

fn rendezvous_address(id: &ncclUniqueId) -> SocketAddrUnix {
    SocketAddrUnix::new_abstract_name(rendezvous_name(id).as_bytes()).expect("a short name")
}

fn socket() -> OwnedFd {
    let kind = SocketType::SEQPACKET;
    socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).expect("a socket")
}

fn noise(random: &mut Random) -> Vec<u8> {
    let largest = random.pick(&[1, 4, 8, 33, 64, 1024, 1100, 60_000]);
    let mut bytes = vec![0; random.below(largest + 1)];
    random.fill(&mut bytes);
    bytes
}

/// Connects to a rendezvous and sends bad messages until `over`. Returns the number of connections.
fn intrude(id: &ncclUniqueId, seed: u64, over: &AtomicBool) -> usize {
    let (mut random, address, mut held) = (Random(seed), rendezvous_address(id), vec![]);
    while !over.load(Relaxed) {
        let connection = socket();
        // There may be no root, yet or any longer. A blocking socket would wait for room in a full queue.
        rustix::io::ioctl_fionbio(&connection, true).expect("a socket can be made nonblocking");
        if connect(&connection, &address).is_err() {
            thread::yield_now();
            continue;
        }
        for _ in 0..random.below(3) {
            // The first message of a rank: the id's version, a secret, which is wrong, the number of ranks, the rank and the start
            // time of its process.
            let mut message: Vec<u8> = id.internal[..8].iter().map(|byte| *byte as u8).collect();
            let words = [random.next(), random.next(), random.below(6) as u64 | 2 << 32, random.next()];
            message.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
            match random.below(4) {
                0 => message = noise(&mut random),
                1 => message.truncate(random.below(message.len())),
                2 => random.change(&mut message),
                _ => {}
            }
            // The other side may have closed.
            let _ = send(&connection, &message, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        }
        // Some connections stay open, and silent.
        held.push(connection);
        if held.len() > 50 {
            held.swap_remove(random.below(50));
        }
    }
    held.len()
}

fn rendezvous_among_intruders(time: Duration, seed: u64) {
    let (mut random, end, mut connections) = (Random(seed), Instant::now() + time, 0);
    while Instant::now() < end {
        let (id, ranks, over) = (unique_id(), 2 + random.below(3), AtomicBool::new(false));
        let (seed, delays): (_, Vec<usize>) =
            (random.next(), (0..ranks).map(|_| random.below(20_000)).collect());
        connections += thread::scope(|scope| {
            let intruding = scope.spawn(|| intrude(&id, seed, &over));
            let joined = on_threads(ranks, |rank| {
                // Time for unauthenticated connections.
                thread::sleep(Duration::from_micros(delays[rank] as u64));
                let comm = init_rank(id, ranks, rank).map_err(|code| (code, last_error()))?;
                assert_sum(comm.0, ranks);
                comm.destroy();
                Ok::<_, (ncclResult_t, String)>(())
            });
            over.store(true, Relaxed);
            assert_eq!(joined, vec![Ok(()); ranks], "seed {seed}");
            intruding.join().expect("no panic")
        });
    }
    assert!(connections > 10, "seed {seed}: only {connections} connections");
}

#[test]
fn unauthenticated_connections_do_not_disturb_init() {
    in_own_process(MINUTE, |seed| rendezvous_among_intruders(Duration::from_millis(500), seed));
}

fn send_reply(connection: &OwnedFd, message: &[u8], files: &[OwnedFd]) {
    let borrowed: Vec<BorrowedFd<'_>> = files.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(5))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !borrowed.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&borrowed));
    }
    let _ = sendmsg(connection, &[IoSlice::new(message)], &mut control, SendFlags::NOSIGNAL);
}

/// Returns other files than the shared memory that a root sends: of other kinds, and of other sizes.
fn wrong_files() -> Vec<OwnedFd> {
    let memory = [0, 1, 4097, 1 << 40].map(|size| {
        let file = memfd_create("fuzz", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("memory");
        ftruncate(&file, size).expect("a size");
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).expect("seals");
        file
    });
    let others = ["/dev/null", "/"].map(|path| File::open(path).expect("a file that always exists").into());
    memory.into_iter().chain(others).chain([socket()]).collect()
}

#[test]
fn init_with_fake_root_returns_error() {
    in_own_process(MINUTE, |seed| {
        let mut random = Random(seed);
        // No reply, a success, an error code, also of a root that has exited, and noise.
        let mut messages = vec![vec![], vec![0; 4], vec![2, 0, 0, 0], vec![2, 0, 0, 128], vec![99, 0, 0, 0]];
        messages.extend((0..100).map(|_| noise(&mut random)));
        let cases = messages.into_iter().map(|message| (message, vec![]));
        let with_files = wrong_files().into_iter().map(|file| (vec![0; 4], vec![file]));
        for (message, files) in cases.chain(with_files).chain([(vec![0; 4], wrong_files().split_off(2))]) {
            let (id, listener) = (unique_id(), socket());
            bind(&listener, &rendezvous_address(&id)).expect("the id is new");
            listen(&listener, 1).expect("a socket can listen");
            let (code, text) = thread::scope(|scope| {
                let joining = scope.spawn(move || (init_rank(id, 3, 1).map(drop), last_error()));
                let peer = accept_with(&listener, SocketFlags::CLOEXEC).expect("a connection");
                send_reply(&peer, &message, &files);
                // The peer must not wait for a root that has exited.
                drop(peer);
                joining.join().expect("the rank does not panic")
            });
            assert!(code.is_err_and(|code| matches!(code.0, 1..=6 | 8)), "{message:x?} {files:?}: {text}");
            assert!(!text.is_empty(), "an error without a text");
        }
    });
}

const MINUTE: Duration = Duration::from_secs(60);

#[test]
#[ignore = "takes a minute: .ci/run long"]
fn unauthenticated_connections_for_a_minute_do_not_disturb_init() {
    in_own_process(15 * MINUTE, |seed| rendezvous_among_intruders(MINUTE, seed));
}
