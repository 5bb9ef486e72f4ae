//! Corrupted unique ids, unauthenticated connections to the rendezvous, and fake roots: every call returns, and soon.
//!
//! A failure prints its seed; `LIBNCCL_TEST_FUZZ_SEED=<seed> cargo test -p libnccl-cpu --test cpu fuzz` repeats it.
//! `cargo test --release -p libnccl-cpu --test cpu fuzz -- --ignored` tries a million.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::processes::is_own_process;
use crate::common::{OK, all_reduce, alone, descriptors, init_rank, last_error, rendezvous_name, unique_id};
use libnccl::sys::{ncclResult_t, ncclUniqueId};
use libnccl_test_support::random_inputs::{Random, fresh_seed, from_environment};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, accept_with, bind, connect, listen, recv, send, sendmsg, socket_with,
};

/// Limit for a round, which has no other rank to wait for.
const ROUND_LIMIT: Duration = Duration::from_secs(5);

/// Interval between two checks of the watchdog.
const TICK: Duration = Duration::from_millis(5);

fn seed() -> u64 {
    from_environment("LIBNCCL_TEST_FUZZ_SEED").unwrap_or_else(fresh_seed)
}

/// Runs `body`, which counts its rounds, and ends the program if the count stops: a thread that hangs cannot be ended
/// otherwise.
fn watched<T: Send>(seed: u64, body: impl FnOnce(&AtomicU64) -> T + Send) -> T {
    let (rounds, done) = (&AtomicU64::new(0), &AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(move || {
            let (mut last, mut idle) = (0, Duration::ZERO);
            while !done.load(Relaxed) {
                // Counts ticks rather than time: while the machine is suspended, nothing hangs.
                thread::sleep(TICK);
                let now = rounds.load(Relaxed);
                idle = if now == last { idle + TICK } else { Duration::ZERO };
                last = now;
                if idle > ROUND_LIMIT {
                    eprintln!("seed {seed}: round {now} hangs; the last error is: {}", last_error());
                    std::process::exit(101);
                }
            }
        });
        let result = scope.spawn(|| body(rounds)).join();
        done.store(true, Relaxed);
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Returns whether a code is an error of NCCL: not success, in progress, or unknown.
fn is_error(code: ncclResult_t) -> bool {
    matches!(code.0, 1..=6 | 8)
}

/// Corrupts bytes at random.
fn corrupt(bytes: &mut [u8], random: &mut Random) {
    match random.below(6) {
        0 => random.fill(bytes),
        1 => {
            let from = random.below(bytes.len());
            bytes[from..].fill(0);
        }
        2 => {
            let (from, value) = (random.below(bytes.len()), random.pick(&[0, 1, 0x7f, 0x80, 0xff]));
            let length = random.below(9).min(bytes.len() - from);
            bytes[from..from + length].fill(value);
        }
        3 => {
            let distance = random.below(bytes.len());
            bytes.rotate_left(distance);
        }
        _ => {
            for _ in 0..=random.below(4) {
                bytes[random.below(bytes.len())] ^= 1 << random.below(8);
            }
        }
    }
}

fn with_bytes(id: &ncclUniqueId, change: impl FnOnce(&mut [u8])) -> ncclUniqueId {
    let mut bytes = id.internal.map(|byte| byte as u8);
    change(&mut bytes);
    let mut changed = ncclUniqueId::default();
    for (to, from) in changed.internal.iter_mut().zip(bytes) {
        *to = from as _;
    }
    changed
}

/// Passes corrupted ids to `ncclCommInitRank`.
fn initialise_with_corrupted_ids(inputs: u64) {
    let _alone = alone();
    if !is_own_process() {
        return;
    }
    let seed = seed();
    let files = descriptors();
    let refused = watched(seed, |rounds| {
        let mut random = Random(seed);
        let id = unique_id();
        let mut refused = 0;
        for input in 0..inputs {
            rounds.fetch_add(1, Relaxed);
            let corrupted = with_bytes(&id, |bytes| corrupt(bytes, &mut random));
            if corrupted == id {
                continue;
            }
            refused += 1;
            // With one rank, with several, and with a rank or a number of ranks that is itself invalid.
            let several = 2 + random.below(3) as i32;
            let invalid = [(0, 0), (-1, 0), (2, 2), (3, -1), (i32::MIN, i32::MAX), (4, 5)];
            for (ranks, rank) in
                [(1, 0), (several, random.below(several as usize) as i32), random.pick(&invalid)]
            {
                let mut comm = ptr::null_mut();
                let code = nccl!(ncclCommInitRank(&mut comm, ranks, corrupted, rank));
                let input = || format!("seed {seed}, input {input}: {ranks} {rank} {corrupted:02x?}");
                assert!(is_error(code), "{}: {code:?}", input());
                assert!(comm.is_null(), "{}: {code:?}", input());
            }
        }
        // No attempt has used the id itself.
        let comm = init_rank(id, 1, 0).expect("the id is valid");
        assert_eq!(all_reduce(&mut [1], comm.0), OK, "seed {seed}");
        comm.destroy();
        refused
    });
    assert_eq!(descriptors(), files, "seed {seed}: files stay open");
    println!("seed {seed}: {refused} of {inputs} ids were changed, and refused");
    assert!(refused > inputs / 10, "seed {seed}: {refused} changed of {inputs}");
}

#[test]
fn init_with_corrupted_id_returns_error() {
    initialise_with_corrupted_ids(5000);
}

#[test]
#[ignore = "takes a minute: .ci/long"]
fn init_with_a_million_corrupted_ids_returns_errors() {
    initialise_with_corrupted_ids(1_000_000);
}

/// Damage to the host or the namespaces is not reported as another host.
#[test]
fn init_with_damaged_or_foreign_id_returns_error_that_says_so() {
    let _alone = alone();
    let id = unique_id();
    let good = id.internal.map(|byte| byte as u8);
    let refused = |what: &str, bytes: &[u8], text: &str| {
        let given = with_bytes(&id, |given| {
            given.fill(0);
            given.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        });
        assert_eq!(init_rank(given, 1, 0), Err(ncclResult_t::ncclInvalidArgument), "{what}");
        assert!(last_error().contains(text), "{what}: {}", last_error());
    };
    let damaged = |what: &str, bytes: &[u8]| refused(what, bytes, "this unique id is damaged");
    for index in 0..good.len() {
        for bit in [1, 0x40, 0x80] {
            let mut bytes = good;
            bytes[index] ^= bit;
            damaged(&format!("bit {bit} of byte {index}"), &bytes);
        }
    }
    damaged("cut at a zero", good.split(|byte| *byte == 0).next().unwrap());
    damaged("half", &good[..64]);
    damaged("without its checksum", &good[..112]);
    damaged("decoded as UTF-8", String::from_utf8_lossy(&good).as_bytes());
    damaged("as Latin-1", good.iter().map(|byte| char::from(*byte)).collect::<String>().as_bytes());
    damaged("of two ids", &[&good[..40], &good[88..], &good[40..88]].concat());
    for byte in [0, !0, 7] {
        refused("foreign", &[byte; 128], "is not from this version");
    }
}

#[test]
fn init_with_truncated_or_random_id_returns_error() {
    let _alone = alone();
    let mut random = Random(1);
    let id = unique_id();
    for length in 0..8 {
        let cut = with_bytes(&id, |bytes| bytes[length..].fill(0));
        assert!(init_rank(cut, 4, 3).is_err_and(is_error), "only {length} bytes");
    }
    for _ in 0..1000 {
        let noise = with_bytes(&id, |bytes| random.fill(bytes));
        assert!(init_rank(noise, 2, 1).is_err_and(is_error), "{noise:02x?}");
    }
    init_rank(id, 1, 0).expect("the id itself is valid").destroy();
}

/// Returns the address at which the ranks of this id rendezvous.
fn rendezvous_address(id: &ncclUniqueId) -> SocketAddrUnix {
    SocketAddrUnix::new_abstract_name(rendezvous_name(id).as_bytes()).expect("a short name")
}

fn socket() -> OwnedFd {
    let kind = SocketType::SEQPACKET;
    socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).expect("a socket")
}

/// Builds the first message of a rank with a random secret.
fn hello(id: &ncclUniqueId, ranks: u32, rank: u32, random: &mut Random) -> Vec<u8> {
    let mut bytes: Vec<u8> = id.internal[..8].iter().map(|byte| *byte as u8).collect();
    bytes.extend(random.next().to_ne_bytes());
    bytes.extend(random.next().to_ne_bytes());
    bytes.extend(ranks.to_ne_bytes());
    bytes.extend(rank.to_ne_bytes());
    // The start time of its process.
    bytes.extend(random.next().to_ne_bytes());
    bytes
}

/// Returns random or zero bytes of random length.
fn noise(random: &mut Random) -> Vec<u8> {
    let largest = random.pick(&[1, 4, 8, 33, 64, 1024, 1100, 60_000]);
    let mut bytes = vec![0; random.below(largest + 1)];
    if random.coin() {
        random.fill(&mut bytes);
    }
    bytes
}

/// Connects to a rendezvous and sends bad messages until `over`, and counts the connections.
fn intrude(id: &ncclUniqueId, seed: u64, over: &AtomicBool, connections: &AtomicU64) {
    let mut random = Random(seed);
    let address = rendezvous_address(id);
    let mut held = vec![];
    while !over.load(Relaxed) {
        let connection = socket();
        // There may be no root, yet or any longer. A blocking socket would wait for room in a full queue.
        rustix::io::ioctl_fionbio(&connection, true).expect("a socket can be made nonblocking");
        if connect(&connection, &address).is_err() {
            thread::yield_now();
            continue;
        }
        connections.fetch_add(1, Relaxed);
        for _ in 0..random.below(3) {
            let (ranks, rank) = (random.below(6) as u32, random.below(6) as u32);
            let mut message = hello(id, ranks, rank, &mut random);
            match random.below(4) {
                0 => message = noise(&mut random),
                1 => message.truncate(random.below(message.len())),
                // The secret is wrong with or without this.
                2 => corrupt(&mut message, &mut random),
                _ => {}
            }
            // The other side may have closed.
            let _ = send(&connection, &message, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        }
        // Some connections stay open and silent.
        if random.once_in(4) {
            held.push(connection);
            if held.len() > 100 {
                held.swap_remove(random.below(100));
            }
        }
    }
}

/// Initialises ranks among unauthenticated connections for `time`.
fn rendezvous_among_intruders(time: Duration) {
    let _alone = alone();
    if !is_own_process() {
        return;
    }
    let seed = seed();
    let connections = AtomicU64::new(0);
    let files = descriptors();
    let inits = watched(seed, |rounds| {
        let mut random = Random(seed);
        let end = Instant::now() + time;
        while Instant::now() < end {
            let round = rounds.fetch_add(1, Relaxed);
            let (id, ranks, over) = (unique_id(), 2 + random.below(3), AtomicBool::new(false));
            let seeds = [random.next(), random.next()];
            // Time for unauthenticated connections.
            let delays: Vec<u64> = (0..ranks).map(|_| random.below(20_000) as u64).collect();
            let codes: Vec<Result<ncclResult_t, ncclResult_t>> = thread::scope(|scope| {
                for seed in seeds {
                    let (over, connections) = (&over, &connections);
                    scope.spawn(move || intrude(&id, seed, over, connections));
                }
                let threads: Vec<_> = (0..ranks)
                    .map(|rank| {
                        let delay = Duration::from_micros(delays[rank]);
                        scope.spawn(move || {
                            thread::sleep(delay);
                            let comm = init_rank(id, ranks, rank)?;
                            let mut sum = [1];
                            let code = all_reduce(&mut sum, comm.0);
                            assert_eq!((code, sum), (OK, [ranks as i32]), "seed {seed}, round {round}");
                            comm.destroy();
                            Ok(code)
                        })
                    })
                    .collect();
                let codes = threads.into_iter().map(|thread| thread.join());
                let codes: Vec<_> = codes.collect();
                over.store(true, Relaxed);
                codes.into_iter().map(|code| code.unwrap_or(Err(ncclResult_t::ncclInternalError))).collect()
            });
            assert_eq!(codes, vec![Ok(OK); ranks], "seed {seed}, round {round}: {}", last_error());
        }
        rounds.load(Relaxed)
    });
    let connections = connections.into_inner();
    assert_eq!(descriptors(), files, "seed {seed}: files stay open");
    println!("seed {seed}: {inits} inits, {connections} unauthenticated connections");
    assert!(connections > inits, "seed {seed}: only {connections} connections during {inits} inits");
}

#[test]
fn unauthenticated_connections_do_not_disturb_init() {
    rendezvous_among_intruders(Duration::from_millis(500));
}

#[test]
#[ignore = "takes a minute: .ci/long"]
fn unauthenticated_connections_do_not_disturb_init_for_a_minute() {
    rendezvous_among_intruders(Duration::from_secs(60));
}

/// Opens a file to send in place of the shared memory.
fn any_file(random: &mut Random) -> OwnedFd {
    let open = |path| std::fs::File::open(path).expect("a file that always exists").into();
    match random.below(5) {
        0 => open("/dev/null"),
        1 => open("/proc/self/stat"),
        2 => open("/"),
        3 => socket(),
        _ => {
            let file = memfd_create("fuzz", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("memory");
            let size = random.pick(&[0, 1, 4096, 1 << 20, 1 << 40]) + random.below(3) as u64;
            ftruncate(&file, size).expect("a size");
            if random.coin() {
                fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).expect("seals");
            }
            file
        }
    }
}

/// Sends a random message with random files.
fn send_reply(connection: &OwnedFd, random: &mut Random) {
    let mut message = match random.below(4) {
        0 => noise(random),
        // A success.
        1 => vec![0; 4],
        // An error code, perhaps with the mark of a root that has left.
        _ => (random.below(12) as u32 | random.pick(&[0, 1 << 31])).to_ne_bytes().to_vec(),
    };
    if random.once_in(4) {
        message.extend(noise(random));
    }
    let files: Vec<OwnedFd> = (0..random.pick(&[0, 0, 1, 1, 2, 5])).map(|_| any_file(random)).collect();
    let borrowed: Vec<BorrowedFd<'_>> = files.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(5))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !borrowed.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&borrowed));
    }
    // The other side may have closed.
    let _ = sendmsg(connection, &[IoSlice::new(&message)], &mut control, SendFlags::NOSIGNAL);
}

/// Lets a rank join rendezvous whose root is this test.
fn join_fake_roots(time: Duration) {
    let _alone = alone();
    if !is_own_process() {
        return;
    }
    let seed = seed();
    let files = descriptors();
    let rounds = watched(seed, |rounds| {
        let mut random = Random(seed);
        let end = Instant::now() + time;
        while Instant::now() < end {
            let round = rounds.fetch_add(1, Relaxed);
            let id = unique_id();
            let listener = socket();
            bind(&listener, &rendezvous_address(&id)).expect("the id is new");
            listen(&listener, 1).expect("a socket can listen");
            let result = thread::scope(|scope| {
                let joining = scope.spawn(move || init_rank(id, 3, 1));
                let peer = accept_with(&listener, SocketFlags::CLOEXEC).expect("a connection");
                if random.coin() {
                    // Receives the hello in half of the rounds.
                    let _ = recv(&peer, &mut [0u8; 64], RecvFlags::empty());
                }
                for _ in 0..random.below(4) {
                    send_reply(&peer, &mut random);
                }
                // The peer must not wait for a root that is gone.
                drop(peer);
                let result = joining.join();
                drop(listener);
                result
            });
            let text = last_error();
            match result {
                Ok(Err(code)) => assert!(is_error(code), "seed {seed}, round {round}: {code:?}: {text}"),
                Ok(Ok(_)) => panic!("seed {seed}, round {round}: an init without a root succeeded"),
                Err(_) => panic!("seed {seed}, round {round}: the rank panicked"),
            }
            assert!(!text.is_empty(), "seed {seed}, round {round}: an error without a text");
        }
        rounds.load(Relaxed)
    });
    assert_eq!(descriptors(), files, "seed {seed}: files stay open");
    println!("seed {seed}: {rounds} fake roots");
}

#[test]
fn init_with_fake_root_returns_error() {
    join_fake_roots(Duration::from_millis(1500));
}

#[test]
#[ignore = "takes a minute: .ci/long"]
fn init_with_fake_root_returns_error_for_a_minute() {
    join_fake_roots(Duration::from_secs(60));
}
