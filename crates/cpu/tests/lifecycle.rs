//! Communicators made from communicators, and how they all end.

mod common;
#[path = "common/watchdog.rs"]
mod watchdog;
#[path = "common/worker.rs"]
mod worker;

use std::cell::RefCell;
use std::ffi::c_void;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::process::{Child, Stdio};
use std::ptr;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use common::{
    ARGUMENT, Comm, Mode, OK, REMOTE, USAGE, alone, init, init_rank, last_error, on_threads, together,
    unique_id, wait_for_guests,
};
use libnccl::sys::{
    NCCL_SPLIT_NOCOLOR, ncclComm_t, ncclConfig_t, ncclDataType_t, ncclRedOp_t, ncclResult_t, ncclUniqueId,
};
use rustix::param::page_size;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use watchdog::Watchdog;
use worker::{Orders, command, finish, join, orders, spawn};

const SYSTEM: ncclResult_t = ncclResult_t::ncclSystemError;
const PROGRESS: ncclResult_t = ncclResult_t::ncclInProgress;

/// How long what should take no time may take on a loaded machine.
const SOON: Duration = Duration::from_secs(5);

/// The longest wait for anything.
const LIMIT: Duration = Duration::from_secs(60);

/// The sum of one number a rank.
fn sum(comm: ncclComm_t, number: i32) -> Result<i32, ncclResult_t> {
    let mut place = [number];
    let (buffer, data_type) = (place.as_mut_ptr().cast(), ncclDataType_t::ncclInt32);
    match nccl!(ncclAllReduce(buffer, buffer, 1, data_type, ncclRedOp_t::ncclSum, comm, ptr::null_mut())) {
        OK => Ok(place[0]),
        code => Err(code),
    }
}

/// The numbers of all ranks, in their order.
fn everyone(comm: ncclComm_t, number: i32) -> Vec<i32> {
    let mut place = vec![number; count(comm)];
    let (mine, all, data_type) = ([number], place.as_mut_ptr().cast(), ncclDataType_t::ncclInt32);
    assert_eq!(
        nccl!(ncclAllGather(mine.as_ptr().cast(), all, 1, data_type, comm, ptr::null_mut())),
        OK,
        "{}",
        last_error()
    );
    place
}

fn count(comm: ncclComm_t) -> usize {
    let mut count = 0;
    assert_eq!(nccl!(ncclCommCount(comm, &mut count)), OK, "{}", last_error());
    count as usize
}

fn rank(comm: ncclComm_t) -> i32 {
    let mut rank = -1;
    assert_eq!(nccl!(ncclCommUserRank(comm, &mut rank)), OK, "{}", last_error());
    rank
}

fn state(comm: ncclComm_t) -> ncclResult_t {
    let mut state = OK;
    assert_eq!(nccl!(ncclCommGetAsyncError(comm, &mut state)), OK);
    state
}

/// Waits for what does not block.
#[track_caller]
fn outcome(comm: ncclComm_t) -> ncclResult_t {
    let start = Instant::now();
    loop {
        match state(comm) {
            PROGRESS => assert!(start.elapsed() < LIMIT, "it never ends"),
            outcome => return outcome,
        }
        thread::sleep(Duration::from_millis(1));
    }
}

fn split(comm: ncclComm_t, color: i32, key: i32) -> Result<Comm, ncclResult_t> {
    let mut child = ptr::dangling_mut();
    match nccl!(ncclCommSplit(comm, color, key, &mut child, ptr::null_mut())) {
        OK => Ok(Comm(child)),
        code => Err(code),
    }
}

fn shrink(comm: ncclComm_t, exclude: &[i32], flags: i32) -> Result<Comm, ncclResult_t> {
    let (mut list, mut child) = (exclude.to_vec(), ptr::null_mut());
    let number = list.len() as i32;
    match nccl!(ncclCommShrink(comm, list.as_mut_ptr(), number, &mut child, ptr::null_mut(), flags)) {
        OK => Ok(Comm(child)),
        code => Err(code),
    }
}

fn grow(comm: ncclComm_t, ranks: usize, id: Option<&ncclUniqueId>, rank: i32) -> Result<Comm, ncclResult_t> {
    let (id, mut child) = (id.map_or(ptr::null(), ptr::from_ref), ptr::null_mut());
    match nccl!(ncclCommGrow(comm, ranks as i32, id, rank, &mut child, ptr::null_mut())) {
        OK => Ok(Comm(child)),
        code => Err(code),
    }
}

fn assert_last_error(part: &str) {
    assert!(last_error().contains(part), "{}", last_error());
}

/// Whether a communicator's operations work, and its ranks come in the order of `members`.
fn assert_members(comm: Comm, me: i32, members: &[i32]) {
    assert_eq!(everyone(comm.0, me), members);
    assert_eq!(members[rank(comm.0) as usize], me);
    assert_eq!(sum(comm.0, me), Ok(members.iter().sum()));
}

/// What a rank's process does.
#[test]
fn worker() {
    let Some(Orders { task, id, ranks, own }) = orders() else { return };
    let rank = own[0];
    if task == "grow" {
        let comm = grow(ptr::null_mut(), ranks, Some(&id), rank as i32).unwrap();
        assert_members(comm, rank as i32, &(0..ranks as i32).collect::<Vec<_>>());
        return comm.destroy();
    }
    if task == "starve init" {
        // Enough to come to the meeting, and not to take anything from there.
        starve(2);
        assert_eq!(init_rank(id, ranks, rank), Err(SYSTEM), "{}", last_error());
        return assert_last_error("Too many open files");
    }
    let comm = join(id, ranks, rank);
    assert_eq!(sum(comm.0, 1), Ok(ranks as i32));
    match task.as_str() {
        "hang" => thread::sleep(Duration::from_secs(60)),
        "starve split" | "starve shrink" | "starve grow" => {
            starve(0);
            let made = match task.as_str() {
                "starve split" => split(comm.0, 0, 0),
                "starve shrink" => shrink(comm.0, &[0], 0),
                _ => grow(comm.0, ranks + 1, None, -1),
            };
            assert_eq!(made, Err(SYSTEM));
            assert_eq!(sum(comm.0, 1), Err(SYSTEM), "it has given up its place");
            thread::sleep(Duration::from_secs(60));
        }
        "do without threads" => {
            let nonblocking = begin(unique_id(), 1, 0);
            assert_eq!(outcome(nonblocking.0), OK);
            if !exhaust_threads() {
                return println!("skipped: threads cannot be kept from starting here");
            }
            without_threads(nonblocking);
        }
        "log" => {
            let (mut config, mut child) = (ncclConfig_t::initializer(), ptr::null_mut());
            config.commName = c"the child".as_ptr();
            assert_eq!(nccl!(ncclCommSplit(comm.0, 0, 0, &mut child, &mut config)), OK);
            Comm(child).destroy();
            assert_eq!(nccl!(ncclCommAbort(comm.0)), OK);
        }
        "split" => {
            let mut turns = 0;
            loop {
                let Ok(child) = split(comm.0, 0, -(rank as i32)) else { panic!("{}", last_error()) };
                turns += 1;
                child.destroy();
                assert!(turns < 1_000_000);
            }
        }
        "times" => {
            let start = Instant::now();
            for _ in 0..20 {
                split(comm.0, 0, 0).unwrap().destroy();
            }
            eprintln!("split of {ranks} processes: {:?}", start.elapsed() / 20);
            assert!(start.elapsed() / 20 < Duration::from_secs(1));
            comm.destroy();
        }
        _ => panic!("{task}"),
    }
}

/// Leaves this process so many file descriptors to open anything with.
fn starve(left: u64) {
    let next = File::open("/dev/null").unwrap().as_raw_fd() as u64;
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(next + left), ..limit }).unwrap();
    assert_eq!(File::open("/dev/null").is_ok(), left > 0);
}

/// Has this process start threads until there is no room for another one's stack; false if there is no end of it.
fn exhaust_threads() -> bool {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = pages.split_once(' ').unwrap().0.parse().unwrap();
    let room = (pages * page_size() + (256 << 10)) as u64;
    setrlimit(Resource::As, Rlimit { current: Some(room), ..getrlimit(Resource::As) }).unwrap();
    // A few find the stack of one that has ended.
    (0..100).any(|_| thread::Builder::new().spawn(thread::park).is_err())
}

fn without_threads(nonblocking: Comm) {
    let mut comm = ptr::dangling_mut();
    let code = nccl!(ncclCommInitRankConfig(&mut comm, 2, unique_id(), 0, &mut self::nonblocking()));
    assert_eq!((code, comm), (SYSTEM, ptr::null_mut()), "there is nobody to ask");
    assert_last_error("a thread for what does not block cannot be started");

    assert_eq!(sum(nonblocking.0, 1), Err(SYSTEM));
    assert_eq!(state(nonblocking.0), OK, "nothing has begun");
    nonblocking.destroy();

    let (mut comms, id) = ([ptr::dangling_mut(); 2], unique_id());
    assert_eq!(nccl!(ncclGroupStart()), OK);
    for (rank, comm) in comms.iter_mut().enumerate() {
        assert_eq!(nccl!(ncclCommInitRank(comm, 2, id, rank as i32)), OK);
    }
    assert_eq!((nccl!(ncclGroupEnd()), comms), (SYSTEM, [ptr::null_mut(); 2]));
}

fn kill(child: &mut Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn colors_and_reversed_keys() {
    let (_alone, _watchdog) = (alone(), Watchdog::new());
    for mode in [Mode::Threads, Mode::Group] {
        let comms = init(mode, 5);
        let mut children: Vec<ncclComm_t> = vec![ptr::null_mut(); 5];
        let places = common::addresses(std::slice::from_mut(&mut children))[0];
        together(mode, &comms, |rank, comm| {
            let place = { places }.0.wrapping_add(rank);
            nccl!(ncclCommSplit(comm, rank as i32 % 2, -(rank as i32), place, ptr::null_mut()))
        });
        let children: Vec<Comm> = children.into_iter().map(Comm).collect();
        on_threads(5, |rank| {
            let members: &[i32] = if rank % 2 == 0 { &[4, 2, 0] } else { &[3, 1] };
            assert_members(children[rank], rank as i32, members);
        });
        // The parent goes on, and ends before its children or after.
        on_threads(5, |rank| assert_eq!(sum({ comms[rank] }.0, 1), Ok(5)));
        comms[..3].iter().for_each(|comm| comm.destroy());
        on_threads(5, |rank| assert_eq!(sum({ children[rank] }.0, 1), Ok(if rank % 2 == 0 { 3 } else { 2 })));
        children.into_iter().for_each(Comm::destroy);
        comms[3..].iter().for_each(|comm| comm.destroy());
    }
}

#[test]
fn ranks_without_a_color_take_part_and_get_nothing() {
    let (_alone, _watchdog) = (alone(), Watchdog::new());
    let comms = init(Mode::Threads, 3);
    on_threads(3, |rank| {
        let color = if rank == 1 { NCCL_SPLIT_NOCOLOR } else { 7 };
        let child = split({ comms[rank] }.0, color, 0).unwrap();
        if rank == 1 {
            assert!({ child }.0.is_null());
        } else {
            assert_members(child, rank as i32, &[0, 2]);
            child.destroy();
        }
    });
    let mut child = ptr::null_mut();
    let Comm(comm) = comms[0];
    assert_eq!(nccl!(ncclCommSplit(comm, -2, 0, &mut child, ptr::null_mut())), ARGUMENT);
    assert_eq!(nccl!(ncclCommSplit(comm, 0, 0, ptr::null_mut(), ptr::null_mut())), ARGUMENT);
    assert_eq!(nccl!(ncclCommSplit(ptr::null_mut(), 0, 0, &mut child, ptr::null_mut())), ARGUMENT);
    comms.into_iter().for_each(Comm::destroy);
}

#[test]
fn a_split_of_a_split_of_a_split() {
    let (_alone, _watchdog) = (alone(), Watchdog::new());
    let comms = init(Mode::Threads, 4);
    on_threads(4, |rank| {
        let (mut comm, me) = (comms[rank], rank as i32);
        let mut members = vec![0, 1, 2, 3];
        for _ in 0..3 {
            members.reverse();
            let child = split(comm.0, 0, -common_rank(comm)).unwrap();
            assert_members(child, me, &members);
            comm.destroy();
            comm = child;
        }
        let alone = split(comm.0, me, 0).unwrap();
        assert_members(alone, me, &[me]);
        alone.destroy();
        comm.destroy();
    });
}

fn common_rank(comm: Comm) -> i32 {
    rank(comm.0)
}

#[test]
fn several_splits_of_each_communicator_in_one_group() {
    let (_alone, _watchdog) = (alone(), Watchdog::new());
    let comms = init(Mode::Group, 3);
    let mut children = [[ptr::null_mut(); 3]; 2];
    assert_eq!(nccl!(ncclGroupStart()), OK);
    for (turn, children) in children.iter_mut().enumerate() {
        for (rank, child) in children.iter_mut().enumerate() {
            let color = i32::from(turn == 1 && rank == 2);
            let comm = { comms[rank] }.0;
            assert_eq!(nccl!(ncclCommSplit(comm, color, 0, child, ptr::null_mut())), OK);
        }
    }
    assert_eq!(nccl!(ncclGroupEnd()), OK, "{}", last_error());
    let children = children.map(|children| children.map(Comm));
    on_threads(3, |rank| {
        assert_members(children[0][rank], rank as i32, &[0, 1, 2]);
        assert_members(children[1][rank], rank as i32, if rank == 2 { &[2] } else { &[0, 1] });
    });
    children.into_iter().flatten().for_each(Comm::destroy);
    comms.into_iter().for_each(Comm::destroy);
}

#[test]
fn ranks_that_call_something_else_than_a_split_are_told() {
    let (_alone, _watchdog) = (alone(), Watchdog::new());
    let comms = init(Mode::Threads, 2);
    let codes = on_threads(2, |rank| {
        let Comm(comm) = comms[rank];
        if rank == 0 { split(comm, 0, 0).map(|_| 0) } else { sum(comm, 1) }
    });
    assert_eq!(codes, [Err(USAGE); 2]);
    assert_last_error("rank 1 called ncclAllReduce");
    assert_last_error("rank 0 called ncclCommSplit");
    on_threads(2, |rank| split({ comms[rank] }.0, 0, 0).unwrap().destroy());
    comms.into_iter().for_each(Comm::destroy);
}

/// A rank that aborts, leaves or dies while others split ends the split.
#[test]
fn a_split_with_a_rank_that_is_gone() {
    let (_alone, _watchdog) = (alone(), Watchdog::new());
    let comms = init(Mode::Threads, 3);
    let codes = on_threads(3, |rank| {
        let Comm(comm) = comms[rank];
        if rank == 2 {
            thread::sleep(Duration::from_millis(20));
            assert_eq!(nccl!(ncclCommAbort(comm)), OK);
            return REMOTE;
        }
        split(comm, 0, 0).unwrap_err()
    });
    assert_eq!(codes, [REMOTE; 3]);
    assert_eq!(state({ comms[0] }.0), REMOTE);
    comms[..2].iter().for_each(|comm| comm.destroy());
}

#[test]
fn a_rank_killed_while_it_splits_is_noticed() {
    let (_alone, _watchdog) = (alone(), Watchdog::new());
    for turn in 0..8 {
        let id = unique_id();
        let mut child = spawn("split", &id, 3, 1);
        let joined = std::sync::Barrier::new(3);
        let joined = &joined;
        thread::scope(|scope| {
            let others = [0, 2].map(|rank| {
                scope.spawn(move || {
                    let Comm(comm) = init_rank(id, 3, rank).unwrap();
                    assert_eq!(sum(comm, 1), Ok(3));
                    joined.wait();
                    let (code, at) = loop {
                        match split(comm, 0, -(rank as i32)) {
                            Ok(child) => child.destroy(),
                            Err(code) => break (code, Instant::now()),
                        }
                    };
                    assert_eq!(state(comm), REMOTE);
                    Comm(comm).destroy();
                    (code, at)
                })
            });
            // So that it is somewhere else in the split each time.
            joined.wait();
            thread::sleep(Duration::from_micros(5_000 + 1_370 * turn));
            kill(&mut child);
            let killed = Instant::now();
            for other in others {
                let (code, at) = other.join().unwrap();
                assert_eq!(code, REMOTE);
                assert!(at.saturating_duration_since(killed) < SOON, "{:?}", at - killed);
            }
        });
    }
}

/// A rank that cannot get to where a communicator is made is alive, and yet never comes.
#[test]
fn a_rank_that_cannot_join_is_not_waited_for() {
    let (_alone, _watchdog) = (alone(), Watchdog::new());
    for task in ["split", "shrink", "grow"] {
        let id = unique_id();
        let mut child = spawn(&format!("starve {task}"), &id, 3, 2);
        let comms = on_threads(2, |rank| init_rank(id, 3, rank).unwrap());
        on_threads(2, |rank| assert_eq!(sum({ comms[rank] }.0, 1), Ok(3)));
        let mut token = ncclUniqueId::default();
        assert_eq!(nccl!(ncclCommGetUniqueId(comms[1].0, &mut token)), OK);
        on_threads(2, |rank| {
            let Comm(comm) = comms[rank];
            let made = match task {
                "split" => split(comm, 0, 0),
                "shrink" if rank == 0 => return,
                "shrink" => shrink(comm, &[0], 0),
                _ => grow(comm, 4, (rank == 1).then_some(&token), -1),
            };
            assert_eq!(made, Err(REMOTE), "{task}");
            assert_last_error("rank 2 has left: its communicator is gone");
        });
        assert!(child.try_wait().unwrap().is_none(), "{task}: it lives");
        kill(&mut child);
        comms.into_iter().for_each(Comm::destroy);
    }
}

#[test]
fn a_rank_that_cannot_take_the_memory_says_why() {
    let (_alone, _watchdog) = (alone(), Watchdog::new());
    let id = unique_id();
    let host = begin(id, 2, 0);
    wait_for_guests(&id, 0);
    finish(spawn("starve init", &id, 2, 1));
    assert_eq!(outcome(host.0), REMOTE);
    host.destroy();
}

/// Nor is one that has given up because another communicator of its group could not be made.
#[test]
fn a_rank_whose_group_has_failed_is_not_waited_for() {
    let (_alone, _watchdog) = (alone(), Watchdog::new());
    let (bad, good) = (init(Mode::Threads, 2), init(Mode::Threads, 3));
    assert_eq!(nccl!(ncclCommAbort(bad[1].0)), OK);
    let (mut children, mut list) = ([ptr::dangling_mut(); 2], [2]);
    let [one, two] = &mut children;
    assert_eq!(nccl!(ncclGroupStart()), OK);
    assert_eq!(nccl!(ncclCommSplit(bad[0].0, 0, 0, one, ptr::null_mut())), OK);
    assert_eq!(nccl!(ncclCommShrink(good[0].0, list.as_mut_ptr(), 1, two, ptr::null_mut(), 0)), OK);
    assert_eq!(nccl!(ncclGroupEnd()), REMOTE);
    assert_eq!(children, [ptr::null_mut(); 2]);
    assert_eq!(shrink(good[1].0, &[2], 0), Err(REMOTE));
    assert_last_error("rank 0 has left: its communicator is gone");
    assert_eq!(sum(good[0].0, 1), Err(REMOTE));
    bad[0].destroy();
    good.into_iter().for_each(Comm::destroy);
}

#[test]
fn survivors_of_a_killed_process_go_on() {
    let (_alone, _watchdog) = (alone(), Watchdog::new());
    let id = unique_id();
    let mut child = spawn("hang", &id, 4, 2);
    let comms = on_threads(4, |rank| (rank != 2).then(|| init_rank(id, 4, rank).unwrap()));
    let alive = |rank: usize| comms[rank].map(|comm| comm.0);
    on_threads(4, |rank| alive(rank).map(|comm| assert_eq!(sum(comm, 1), Ok(4))));
    kill(&mut child);
    on_threads(4, |rank| {
        let Some(comm) = alive(rank) else { return };
        // One shrinks a communicator that has not yet noticed; the others wait in an operation.
        if rank != 0 {
            assert_eq!(sum(comm, 1), Err(REMOTE));
            assert_eq!(shrink(comm, &[2], 0), Err(REMOTE), "it is not healthy");
        }
        let fewer = shrink(comm, &[2], 1).unwrap_or_else(|code| panic!("{code:?} {}", last_error()));
        assert_members(fewer, rank as i32, &[0, 1, 3]);
        assert_eq!(state(comm), OK, "the shrink went well");
        assert_eq!(sum(comm, 1), Err(USAGE));
        assert_eq!(nccl!(ncclCommFinalize(comm)), ARGUMENT);
        Comm(comm).destroy();
        // Of what has shrunk, others can be made.
        let fewest = split(fewer.0, i32::from(rank == 3), 0).unwrap();
        assert_members(fewest, rank as i32, if rank == 3 { &[3] } else { &[0, 1] });
        fewer.destroy();
        fewest.destroy();
    });
}

#[test]
fn shrinking_twice_and_in_good_health() {
    let (_alone, _watchdog) = (alone(), Watchdog::new());
    let comms = init(Mode::Threads, 4);
    on_threads(4, |rank| {
        let (Comm(comm), me) = (comms[rank], rank as i32);
        if rank != 3 {
            let fewer = shrink(comm, &[3], 0).unwrap();
            assert_members(fewer, me, &[0, 1, 2]);
            fewer.destroy();
        }
        if rank == 1 || rank == 2 {
            let fewer = shrink(comm, &[3, 0], 0).unwrap();
            assert_members(fewer, me, &[1, 2]);
            fewer.destroy();
        }
    });
    on_threads(4, |rank| assert_eq!(sum({ comms[rank] }.0, 1), Ok(4), "the parent is as before"));
    let Comm(comm) = comms[1];
    for exclude in [&[4][..], &[-1], &[0, 0], &[1], &[], &[0, 1, 2, 3]] {
        assert_eq!(shrink(comm, exclude, 0), Err(ARGUMENT), "{exclude:?}");
    }
    assert_eq!(shrink(comm, &[0], 2), Err(ARGUMENT));
    assert_eq!(shrink(ptr::null_mut(), &[0], 0), Err(ARGUMENT));
    comms.into_iter().for_each(Comm::destroy);
}

#[test]
fn the_list_of_excluded_ranks_is_sorted() {
    let (_alone, _watchdog) = (alone(), Watchdog::new());
    let comms = init(Mode::Threads, 4);
    let (mut list, mut child) = ([3, 0, 1], ptr::null_mut());
    let Comm(comm) = comms[2];
    let code = nccl!(ncclCommShrink(comm, list.as_mut_ptr(), 3, &mut child, ptr::null_mut(), 0));
    assert_eq!((code, list), (OK, [0, 1, 3]));
    assert_members(Comm(child), 2, &[2]);
    Comm(child).destroy();
    comms.into_iter().for_each(Comm::destroy);
}

/// A rank is stuck in an operation with one that does not come; a shrink that aborts sets it free.
#[test]
fn a_shrink_ends_what_is_stuck() {
    let (_alone, _watchdog) = (alone(), Watchdog::new());
    let comms = init(Mode::Threads, 3);
    thread::scope(|scope| {
        let stuck = [0, 1].map(|rank| {
            let comm = comms[rank];
            scope.spawn(move || sum({ comm }.0, 1))
        });
        thread::sleep(Duration::from_millis(50));
        let start = Instant::now();
        let fewer = on_threads(2, |rank| shrink({ comms[rank] }.0, &[2], 1).unwrap());
        for stuck in stuck {
            assert_eq!(stuck.join().unwrap(), Err(REMOTE));
        }
        assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
        on_threads(2, |rank| assert_members(fewer[rank], rank as i32, &[0, 1]));
        fewer.into_iter().for_each(Comm::destroy);
    });
    // What the others said before still counts; after that the excluded rank hears of it.
    assert!(matches!(sum({ comms[2] }.0, 1), Ok(3) | Err(REMOTE)));
    assert_eq!(sum({ comms[2] }.0, 1), Err(REMOTE));
    assert_last_error("shrank the communicator with NCCL_SHRINK_ABORT");
    comms.into_iter().for_each(Comm::destroy);
}

#[test]
fn growing_by_threads_and_by_a_process() {
    let (_alone, _watchdog) = (alone(), Watchdog::new());
    let comms = init(Mode::Threads, 2);
    let Comm(holder) = comms[1];
    let mut token = ncclUniqueId::default();
    assert_eq!(nccl!(ncclCommGetUniqueId(holder, ptr::null_mut())), ARGUMENT);
    assert_eq!(nccl!(ncclCommGetUniqueId(ptr::null_mut(), &mut token)), ARGUMENT);
    assert_eq!(nccl!(ncclCommGetUniqueId(holder, &mut token)), OK);
    let mut another = token;
    assert_eq!(nccl!(ncclCommGetUniqueId(holder, &mut another)), USAGE, "one at a time");

    assert_eq!(grow(holder, 2, Some(&token), -1), Err(ARGUMENT), "no more than before");
    assert_eq!(grow(holder, 5, Some(&token), 1), Err(ARGUMENT), "it has a rank");
    assert_eq!(grow(holder, 5, Some(&unique_id()), -1), Err(ARGUMENT), "another id");
    assert_eq!(grow({ comms[0] }.0, 5, Some(&token), -1), Err(ARGUMENT), "another rank's id");
    assert_eq!(grow(ptr::null_mut(), 5, None, 3), Err(ARGUMENT));
    assert_eq!(grow(ptr::null_mut(), 5, Some(&token), 5), Err(ARGUMENT));
    on_threads(2, |rank| {
        assert_eq!(grow({ comms[rank] }.0, 3, None, -1), Err(USAGE), "nobody has the id");
        assert_last_error("one rank has to pass the id");
        assert_eq!(grow({ comms[rank] }.0, 3 + rank, (rank == 1).then_some(&token), -1), Err(ARGUMENT));
        assert_last_error("rank 1 says 4, rank 0 says 3");
    });

    let child = spawn("grow", &token, 5, 3);
    let grown = on_threads(5, |rank| match rank {
        0 | 1 => grow({ comms[rank] }.0, 5, (rank == 1).then_some(&token), -1),
        3 => Err(OK),
        _ => grow(ptr::null_mut(), 5, Some(&token), rank as i32),
    });
    let grown: Vec<Option<Comm>> = grown.into_iter().map(Result::ok).collect();
    on_threads(5, |rank| grown[rank].map(|comm| assert_members(comm, rank as i32, &[0, 1, 2, 3, 4])));
    finish(child);
    grown.into_iter().flatten().for_each(Comm::destroy);

    assert_eq!(grow(holder, 3, Some(&token), -1), Err(ARGUMENT), "it is used up");
    assert_eq!(nccl!(ncclCommGetUniqueId(holder, &mut another)), OK);
    assert_ne!({ another }.internal, { token }.internal);
    on_threads(2, |rank| assert_eq!(sum({ comms[rank] }.0, 1), Ok(2), "the parent is as before"));
    comms.into_iter().for_each(Comm::destroy);
}

#[test]
fn a_revoked_communicator_is_good_for_others() {
    let (_alone, _watchdog) = (alone(), Watchdog::new());
    assert_eq!(nccl!(ncclCommRevoke(ptr::null_mut(), 0)), OK);
    let comms = init(Mode::Threads, 3);
    thread::scope(|scope| {
        let waiting = [1, 2].map(|rank| {
            let comm = comms[rank];
            scope.spawn(move || {
                assert_eq!(sum({ comm }.0, 1), Err(REMOTE));
                assert_last_error("rank 0 revoked the communicator");
            })
        });
        thread::sleep(Duration::from_millis(50));
        let (start, Comm(comm)) = (Instant::now(), comms[0]);
        assert_eq!(nccl!(ncclCommRevoke(comm, 1)), ARGUMENT);
        assert_eq!(nccl!(ncclCommRevoke(comm, 0)), OK);
        waiting.into_iter().for_each(|waiting| waiting.join().unwrap());
        assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
        assert_eq!(sum(comm, 1), Err(USAGE));
        assert_eq!(nccl!(ncclCommRevoke(comm, 0)), ARGUMENT, "twice");
        assert_eq!(nccl!(ncclCommFinalize(comm)), ARGUMENT);
        assert_eq!(state(comm), OK);
        assert_eq!(state({ comms[1] }.0), REMOTE);
    });
    for Comm(comm) in &comms[1..] {
        assert_eq!(nccl!(ncclCommRevoke(*comm, 0)), OK);
        assert_eq!(state(*comm), OK);
    }
    on_threads(3, |rank| {
        let (Comm(comm), me) = (comms[rank], rank as i32);
        for _ in 0..2 {
            let child = split(comm, i32::from(rank == 1), -me).unwrap();
            assert_members(child, me, if rank == 1 { &[1] } else { &[2, 0] });
            child.destroy();
        }
        if rank != 1 {
            let fewer = shrink(comm, &[1], 0).unwrap();
            assert_members(fewer, me, &[0, 2]);
            fewer.destroy();
        }
    });
    comms.into_iter().for_each(Comm::destroy);

    let comms = init(Mode::Group, 1);
    assert_eq!(nccl!(ncclCommFinalize(comms[0].0)), OK);
    assert_eq!(nccl!(ncclCommRevoke(comms[0].0, 0)), ARGUMENT, "after the end");
    comms[0].destroy();
}

fn nonblocking() -> ncclConfig_t {
    ncclConfig_t { blocking: 0, ..ncclConfig_t::initializer() }
}

fn begin(id: ncclUniqueId, ranks: i32, rank: i32) -> Comm {
    let (mut comm, mut config) = (ptr::null_mut(), nonblocking());
    assert_eq!(nccl!(ncclCommInitRankConfig(&mut comm, ranks, id, rank, &mut config)), PROGRESS);
    assert!(!comm.is_null(), "there is something to ask");
    Comm(comm)
}

/// Two ranks that have been told that they are made.
fn begun() -> [Comm; 2] {
    let id = unique_id();
    let comms = [begin(id, 2, 0), begin(id, 2, 1)];
    comms.iter().for_each(|comm| assert_eq!(outcome(comm.0), OK));
    comms
}

#[test]
fn a_life_without_blocking() {
    let (_alone, _watchdog) = (alone(), Watchdog::new());
    let id = unique_id();
    let first = begin(id, 2, 0);
    let mut number = 0;
    assert_eq!(nccl!(ncclCommCount(first.0, &mut number)), ARGUMENT, "it is at work");
    assert_eq!(state(first.0), PROGRESS);
    let comms = [first, begin(id, 2, 1)];
    comms.iter().for_each(|comm| assert_eq!(outcome(comm.0), OK));

    let mut children = [ptr::null_mut(); 2];
    for (comm, child) in comms.iter().zip(&mut children) {
        assert_eq!(nccl!(ncclCommSplit(comm.0, 0, -rank(comm.0), child, ptr::null_mut())), PROGRESS);
    }
    comms.iter().for_each(|comm| assert_eq!(outcome(comm.0), OK));
    for (me, child) in children.into_iter().enumerate() {
        assert_eq!((outcome(child), rank(child)), (OK, 1 - me as i32));
        Comm(child).destroy();
    }

    let (mut token, mut grown) = (ncclUniqueId::default(), [ptr::null_mut(); 3]);
    assert_eq!(nccl!(ncclCommGetUniqueId(comms[0].0, &mut token)), OK);
    let [one, two, three] = &mut grown;
    let none = ptr::null_mut();
    assert_eq!(nccl!(ncclCommGrow(comms[0].0, 3, &token, -1, one, none)), PROGRESS);
    assert_eq!(nccl!(ncclCommGrow(comms[1].0, 3, ptr::null(), -1, two, none)), PROGRESS);
    assert_eq!(nccl!(ncclCommGrow(ptr::null_mut(), 3, &token, 2, three, &mut nonblocking())), PROGRESS);
    assert!(!grown[2].is_null());
    for comm in [comms[0].0, comms[1].0, grown[2]] {
        assert_eq!(outcome(comm), OK);
    }
    for (me, comm) in grown.into_iter().enumerate() {
        assert_eq!((count(comm), rank(comm)), (3, me as i32));
        Comm(comm).destroy();
    }

    let mut fewer = ptr::null_mut();
    assert_eq!(nccl!(ncclCommShrink(comms[1].0, [0].as_mut_ptr(), 1, &mut fewer, none, 0)), PROGRESS);
    assert_eq!(outcome(comms[1].0), OK);
    assert_eq!((count(fewer), rank(fewer)), (1, 0));
    Comm(fewer).destroy();
    for comm in comms {
        assert_eq!(nccl!(ncclCommFinalize(comm.0)), OK);
        assert_eq!(outcome(comm.0), OK);
        comm.destroy();
    }
}

/// What a rank hears first is what became of its own call, even if a peer has gone since.
#[test]
fn what_has_succeeded_stays_a_success() {
    let (_alone, _watchdog) = (alone(), Watchdog::new());
    let comms = begun();
    // In use until the communicators are gone.
    let mut places = [[1], [2]];
    let addresses = places.each_mut().map(|place| place.as_mut_ptr());
    for (comm, place) in comms.iter().zip(addresses) {
        let (place, data_type, sum) = (place.cast(), ncclDataType_t::ncclInt32, ncclRedOp_t::ncclSum);
        let started = nccl!(ncclAllReduce(place, place, 1, data_type, sum, comm.0, ptr::null_mut()));
        assert_eq!(started, PROGRESS);
    }
    // Rank 0 is not asked yet, but nothing can keep it from its end after this.
    assert_eq!(outcome(comms[1].0), OK);
    assert_eq!(nccl!(ncclCommAbort(comms[1].0)), OK);
    assert_eq!(outcome(comms[0].0), OK, "{}", last_error());
    assert_eq!(places[0], [3]);
    assert_eq!(state(comms[0].0), REMOTE, "now the peer's end is news");
    assert_eq!(sum(comms[0].0, 1), Err(REMOTE));
    comms[0].destroy();

    // The same for an initialisation.
    let id = unique_id();
    let comms = [begin(id, 2, 0), begin(id, 2, 1)];
    assert_eq!(outcome(comms[1].0), OK);
    assert_eq!(nccl!(ncclCommAbort(comms[1].0)), OK);
    assert_eq!(outcome(comms[0].0), OK, "{}", last_error());
    assert_eq!(state(comms[0].0), REMOTE);
    comms[0].destroy();

    // And for what is made of another one, where both are asked.
    let comms = begun();
    let mut children = [ptr::null_mut(); 2];
    for (comm, child) in comms.iter().zip(&mut children) {
        assert_eq!(nccl!(ncclCommSplit(comm.0, 0, 0, child, ptr::null_mut())), PROGRESS);
    }
    comms.iter().for_each(|comm| assert_eq!(outcome(comm.0), OK));
    assert_eq!(nccl!(ncclCommAbort(children[1])), OK);
    assert_eq!(outcome(children[0]), OK, "{}", last_error());
    assert_eq!(state(children[0]), REMOTE);
    Comm(children[0]).destroy();
    comms.into_iter().for_each(Comm::destroy);
}

/// Even if the peer has done its part of it before it went, and there would be nothing to wait for.
#[test]
fn what_begins_after_a_peers_end_fails() {
    let (_alone, _watchdog) = (alone(), Watchdog::new());
    let comms = begun();
    let mut places = [[1], [2]];
    let codes = [0, 1].map(|rank| {
        let (place, data_type) = (places[rank].as_mut_ptr().cast(), ncclDataType_t::ncclInt32);
        let op = ncclRedOp_t::ncclSum;
        let code = nccl!(ncclAllReduce(place, place, 1, data_type, op, comms[rank].0, ptr::null_mut()));
        if rank == 0 {
            thread::sleep(Duration::from_millis(30));
            assert_eq!(nccl!(ncclCommAbort(comms[0].0)), OK);
        }
        code
    });
    assert_eq!(codes, [PROGRESS, REMOTE]);
    assert_eq!(places, [[1], [2]]);
    assert_eq!(state(comms[1].0), REMOTE);
    comms[1].destroy();
}

/// The thread that asks is told why, whatever it ran into before.
#[test]
fn what_fails_in_the_background_says_why() {
    let (_alone, _watchdog) = (alone(), Watchdog::new());
    let comms = begun();
    let mut places = [[1, 0], [2, 0]];
    let addresses = places.each_mut().map(|place| place.as_mut_ptr());
    for (rank, place) in addresses.into_iter().enumerate() {
        let (place, data_type, op) = (place.cast(), ncclDataType_t::ncclInt32, ncclRedOp_t::ncclSum);
        let (count, comm) = (rank + 1, comms[rank].0);
        assert_eq!(nccl!(ncclAllReduce(place, place, count, data_type, op, comm, ptr::null_mut())), PROGRESS);
    }
    for comm in comms {
        assert_eq!(nccl!(ncclCommCount(ptr::null_mut(), &mut 0)), ARGUMENT);
        assert_last_error("the communicator is NULL");
        assert_eq!(outcome(comm.0), USAGE);
        assert_last_error("rank 1 called ncclAllReduce(count 2, ncclInt32, ncclSum)");
        comm.destroy();
    }
}

#[test]
fn an_abort_ends_what_waits_in_the_background() {
    let (_alone, _watchdog) = (alone(), Watchdog::new());
    // Its peers never come, as host of the meeting and as guest.
    let id = unique_id();
    let comms = [begin(id, 3, 0), begin(id, 3, 1)];
    thread::sleep(Duration::from_millis(30));
    let start = Instant::now();
    assert_eq!(nccl!(ncclCommAbort(comms[1].0)), OK);
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    assert_eq!(outcome(comms[0].0), REMOTE, "its peer is gone");
    assert_eq!(nccl!(ncclCommCount(comms[0].0, &mut 0)), REMOTE);
    assert_last_error("before all ranks had joined");
    comms[0].destroy();

    // A split, a shrink and an operation of which the others know nothing.
    let id = unique_id();
    for turn in 0..3 {
        let comms = [begin(id, 2, 0), begin(id, 2, 1)];
        comms.iter().for_each(|comm| assert_eq!(outcome(comm.0), OK));
        let (comm, mut child, none) = (comms[0].0, ptr::dangling_mut(), ptr::null_mut());
        let mut buffer = [1f32];
        let place = buffer.as_mut_ptr().cast();
        let code = match turn {
            0 => nccl!(ncclCommSplit(comm, 0, 0, &mut child, none)),
            1 => {
                assert_eq!(nccl!(ncclCommRevoke(comm, 0)), OK);
                nccl!(ncclCommSplit(comm, 0, 0, &mut child, none))
            }
            _ => {
                let (data_type, op) = (ncclDataType_t::ncclFloat32, ncclRedOp_t::ncclSum);
                child = ptr::null_mut();
                nccl!(ncclAllReduce(place, place, 1, data_type, op, comm, ptr::null_mut()))
            }
        };
        assert_eq!(code, PROGRESS);
        thread::sleep(Duration::from_millis(30));
        let start = Instant::now();
        assert_eq!(nccl!(ncclCommAbort(comm)), OK);
        assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
        assert!(child.is_null(), "written at once, and not again");
        assert_eq!(buffer, [1.0]);
        assert_eq!(state(comms[1].0), REMOTE);
        comms[1].destroy();
    }
}

/// Destroying waits for operations, but not for ranks that have yet to come to a communicator.
#[test]
fn destroying_gives_up_what_is_being_made() {
    let (_alone, _watchdog) = (alone(), Watchdog::new());
    let soon = |comm: Comm| {
        let start = Instant::now();
        comm.destroy();
        assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    };
    // Its peers never come, as guest of the meeting and as host.
    let id = unique_id();
    let comms = [begin(id, 3, 0), begin(id, 3, 1)];
    wait_for_guests(&id, 1);
    assert_eq!(nccl!(ncclCommFinalize(comms[1].0)), ARGUMENT, "it is at work");
    soon(comms[1]);
    assert_eq!(outcome(comms[0].0), REMOTE, "its peer is gone");
    soon(comms[0]);
    let lonely = begin(unique_id(), 2, 0);
    soon(lonely);
    assert_eq!(nccl!(ncclCommDestroy(lonely.0)), ARGUMENT, "it is gone");

    // Communicators of which the others know nothing, made of a healthy one and of a revoked one.
    let none = ptr::null_mut();
    for turn in 0..4 {
        let comms = [begin(id, 3, 0), begin(id, 3, 1), begin(id, 3, 2)];
        comms.iter().for_each(|comm| assert_eq!(outcome(comm.0), OK));
        let (comm, mut child, mut token) = (comms[0].0, ptr::null_mut(), ncclUniqueId::default());
        let code = match turn {
            0 => nccl!(ncclCommSplit(comm, 0, 0, &mut child, none)),
            1 => {
                assert_eq!(nccl!(ncclCommRevoke(comm, 0)), OK);
                nccl!(ncclCommSplit(comm, 0, 0, &mut child, none))
            }
            2 => nccl!(ncclCommShrink(comm, [2].as_mut_ptr(), 1, &mut child, none, 0)),
            _ => {
                assert_eq!(nccl!(ncclCommGetUniqueId(comm, &mut token)), OK);
                nccl!(ncclCommGrow(comm, 4, &token, -1, &mut child, none))
            }
        };
        assert_eq!(code, PROGRESS);
        thread::sleep(Duration::from_millis(30));
        soon(comms[0]);
        assert!(child.is_null());
        comms[1..].iter().for_each(|comm| soon(*comm));
    }

    // An operation is waited for.
    let comms = begun();
    let mut places = [[1], [2]];
    let [mine, theirs] = places.each_mut().map(|place| place.as_mut_ptr().cast());
    let reduce = |comm: Comm, place: *mut c_void| {
        let (data_type, sum) = (ncclDataType_t::ncclInt32, ncclRedOp_t::ncclSum);
        assert_eq!(nccl!(ncclAllReduce(place, place, 1, data_type, sum, comm.0, ptr::null_mut())), PROGRESS);
    };
    reduce(comms[0], mine);
    thread::scope(|scope| {
        let first = comms[0];
        let destroyed = scope.spawn(move || first.destroy());
        // Longer than anyone takes to look after the other ranks.
        thread::sleep(Duration::from_millis(300));
        assert!(!destroyed.is_finished());
        reduce(comms[1], theirs);
    });
    assert_eq!(outcome(comms[1].0), OK);
    assert_eq!(places, [[3], [3]]);
    comms[1].destroy();
}

/// One of a group's communicators is aborted: what the others wait for cannot come any more, either.
#[test]
fn an_abort_ends_a_group_of_initialisations() {
    let (_alone, _watchdog) = (alone(), Watchdog::new());
    let mut comms = [ptr::null_mut(); 2];
    assert_eq!(nccl!(ncclGroupStart()), OK);
    for comm in &mut comms {
        let code = nccl!(ncclCommInitRankConfig(comm, 2, unique_id(), 0, &mut nonblocking()));
        assert!(matches!(code, OK | PROGRESS));
    }
    assert_eq!(nccl!(ncclGroupEnd()), PROGRESS);
    thread::sleep(Duration::from_millis(30));
    let start = Instant::now();
    assert_eq!(nccl!(ncclCommAbort(comms[0])), OK);
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    assert_eq!(outcome(comms[1]), REMOTE);
    assert_eq!(nccl!(ncclCommAbort(comms[1])), OK);
}

/// The same for operations: one thread that aborts one communicator after the other must not wait for itself.
#[test]
fn an_abort_ends_a_group_of_operations() {
    let (_alone, _watchdog) = (alone(), Watchdog::new());
    let (one, two) = (begun(), begun());
    let mut places = [[1f32]; 2];
    assert_eq!(nccl!(ncclGroupStart()), OK);
    for (place, comm) in places.iter_mut().zip([one[0], two[0]]) {
        let (place, data_type) = (place.as_mut_ptr().cast(), ncclDataType_t::ncclFloat32);
        let op = ncclRedOp_t::ncclSum;
        assert_eq!(nccl!(ncclAllReduce(place, place, 1, data_type, op, comm.0, ptr::null_mut())), OK);
    }
    assert_eq!(nccl!(ncclGroupEnd()), PROGRESS);
    thread::sleep(Duration::from_millis(30));
    let start = Instant::now();
    assert_eq!(nccl!(ncclCommAbort(one[0].0)), OK);
    assert_eq!(nccl!(ncclCommAbort(two[0].0)), OK);
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    assert_eq!((state(one[1].0), state(two[1].0)), (REMOTE, REMOTE));
    one[1].destroy();
    two[1].destroy();
}

/// The one that hosts the meeting dies; who comes after that hears of it from one who was there.
#[test]
fn latecomers_of_a_meeting_whose_host_died() {
    let (_alone, _watchdog) = (alone(), Watchdog::new());
    let id = unique_id();
    let mut host = spawn("hang", &id, 4, 0);
    wait_for_guests(&id, 0);
    let early = begin(id, 4, 1);
    wait_for_guests(&id, 1);
    kill(&mut host);
    thread::sleep(Duration::from_millis(50));
    let late = begin(id, 4, 2);
    assert_eq!(outcome(early.0), REMOTE);
    assert_eq!(outcome(late.0), REMOTE);
    assert_last_error("before all ranks had joined");
    early.destroy();
    late.destroy();
}

/// A newcomer that dies fails the growth and not what was to grow; it can be tried again.
#[test]
fn a_growth_that_fails() {
    let (_alone, _watchdog) = (alone(), Watchdog::new());
    let comms = init(Mode::Threads, 2);
    let mut token = ncclUniqueId::default();
    assert_eq!(nccl!(ncclCommGetUniqueId(comms[0].0, &mut token)), OK);
    for again in [false, true] {
        let newcomers = if again { 1 } else { 2 };
        let mut child = spawn("grow", &token, 2 + newcomers, 2);
        thread::scope(|scope| {
            let grown = [0, 1].map(|rank| {
                let comm = comms[rank];
                let token = (rank == 0).then_some(token);
                scope.spawn(move || grow({ comm }.0, 2 + newcomers, token.as_ref(), -1))
            });
            if !again {
                wait_for_guests(&token, 2);
                child.kill().unwrap();
            }
            for (rank, grown) in grown.into_iter().enumerate() {
                let grown = grown.join().unwrap();
                if again {
                    scope.spawn(move || {
                        assert_members(grown.unwrap(), rank as i32, &[0, 1, 2]);
                        grown.unwrap().destroy();
                    });
                } else {
                    assert_eq!(grown, Err(REMOTE));
                }
            }
        });
        if again {
            finish(child);
        } else {
            child.wait().unwrap();
        }
        on_threads(2, |rank| assert_eq!(sum({ comms[rank] }.0, 1), Ok(2)));
    }
    comms.into_iter().for_each(Comm::destroy);
}

#[test]
fn a_revoke_ends_what_runs_in_the_background() {
    let (_alone, _watchdog) = (alone(), Watchdog::new());
    let comms = begun();
    // In use until the communicator is gone.
    let mut place = [1];
    let (buffer, data_type, sum) =
        (place.as_mut_ptr().cast(), ncclDataType_t::ncclInt32, ncclRedOp_t::ncclSum);
    let started = nccl!(ncclAllReduce(buffer, buffer, 1, data_type, sum, comms[0].0, ptr::null_mut()));
    assert_eq!(started, PROGRESS);
    thread::sleep(Duration::from_millis(20));
    let start = Instant::now();
    let code = nccl!(ncclCommRevoke(comms[0].0, 0));
    assert!(matches!(code, OK | PROGRESS), "{code:?}");
    assert_eq!(outcome(comms[0].0), OK);
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    assert_eq!(outcome(comms[1].0), REMOTE);
    comms.into_iter().for_each(Comm::destroy);
}

#[test]
fn a_failed_initialisation_leaves_something_to_ask() {
    let (_alone, _watchdog) = (alone(), Watchdog::new());
    let id = unique_id();
    let comms = [begin(id, 2, 0), begin(id, 3, 1)];
    for comm in comms {
        assert_eq!(outcome(comm.0), USAGE);
        assert_eq!(sum(comm.0, 1), Err(USAGE));
        assert_last_error("the ranks disagree on their number");
        assert_eq!(nccl!(ncclCommRevoke(comm.0, 0)), USAGE);
    }
    assert_eq!(nccl!(ncclCommAbort(comms[0].0)), OK);
    comms[1].destroy();
}

/// As with NCCL: what is not there is not to be ended.
#[test]
fn a_failed_initialisation_gives_no_communicator() {
    let (_alone, _watchdog) = (alone(), Watchdog::new());
    let id = unique_id();
    let codes = on_threads(2, |rank| {
        let mut comm = ptr::dangling_mut();
        let code = nccl!(ncclCommInitRank(&mut comm, 2 + rank as i32, id, rank as i32));
        (code, comm.is_null())
    });
    assert_eq!(codes, [(USAGE, true); 2]);
    for (ranks, rank) in [(0, 0), (2, 2), (2, -1)] {
        let mut comm = ptr::dangling_mut();
        assert_eq!(nccl!(ncclCommInitRank(&mut comm, ranks, id, rank)), ARGUMENT);
        assert!(comm.is_null());
    }
}

/// Where no thread can be started, nothing is.
#[test]
fn a_background_that_cannot_be_had() {
    let (_alone, _watchdog) = (alone(), Watchdog::new());
    let output = command("do without threads", &unique_id(), 1, &[0]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn several_ids() {
    let (_alone, _watchdog) = (alone(), Watchdog::new());
    let ids = [unique_id(), unique_id()];
    let comms = on_threads(3, |rank| {
        let (mut comm, mut ids) = (ptr::null_mut(), ids);
        let (ids, none) = (ids.as_mut_ptr(), ptr::null_mut());
        assert_eq!(nccl!(ncclCommInitRankScalable(&mut comm, 3, rank as i32, 2, ids, none)), OK);
        Comm(comm)
    });
    on_threads(3, |rank| assert_members(comms[rank], rank as i32, &[0, 1, 2]));
    comms.into_iter().for_each(Comm::destroy);

    let (mut comm, mut ids, none) = (ptr::null_mut(), [ids[0], ncclUniqueId::default()], ptr::null_mut());
    let mut scalable = |comm: *mut ncclComm_t, number, some| {
        let ids = if some { ids.as_mut_ptr() } else { ptr::null_mut() };
        nccl!(ncclCommInitRankScalable(comm, 1, 0, number, ids, none))
    };
    assert_eq!(scalable(&mut comm, 0, true), ARGUMENT);
    assert_eq!(scalable(&mut comm, -1, true), ARGUMENT);
    assert_eq!(scalable(&mut comm, 2, true), ARGUMENT, "more ids than ranks");
    assert_eq!(scalable(&mut comm, 1, false), ARGUMENT);
    assert_eq!(scalable(ptr::null_mut(), 1, true), ARGUMENT);
    assert_eq!(scalable(&mut comm, 1, true), OK);
    Comm(comm).destroy();
    assert_eq!(nccl!(ncclCommInitRankScalable(&mut comm, 2, 0, 2, ids.as_mut_ptr(), none)), ARGUMENT);
    assert_last_error("unique id");
}

#[test]
fn configs_are_checked() {
    let (_alone, _watchdog) = (alone(), Watchdog::new());
    let initialise = |config: &mut ncclConfig_t| {
        let mut comm = ptr::null_mut();
        let code = nccl!(ncclCommInitRankConfig(&mut comm, 1, unique_id(), 0, config));
        if code == OK {
            Comm(comm).destroy();
        }
        code
    };
    let with = |change: fn(&mut ncclConfig_t)| {
        let mut config = ncclConfig_t::initializer();
        change(&mut config);
        initialise(&mut config)
    };
    assert_eq!(with(|config| config.cgaClusterSize = 9), ARGUMENT);
    assert_last_error("invalid config value 9 of cgaClusterSize: it has to be in 0..=8");
    assert_eq!(with(|config| config.numRmaCtx = 17), ARGUMENT);
    assert_eq!(with(|config| (config.numRmaCtx, config.numRmaSig) = (4, 4)), OK);
    assert_eq!(with(|config| config.size = 0), ARGUMENT);
    // As from a header of 2.14: nothing behind `blocking` counts.
    assert_eq!(with(|config| (config.size, config.version, config.minCTAs) = (24, 21400, -5)), OK);
    // As from a later one.
    #[repr(C)]
    struct Later {
        config: ncclConfig_t,
        more: [i32; 8],
    }
    let mut later = Later { config: ncclConfig_t::initializer(), more: [-77; 8] };
    (later.config.size, later.config.version) = (size_of::<Later>(), 99_999);
    assert_eq!(initialise(&mut later.config), OK);
    assert_eq!(later.more, [-77; 8]);

    // The name is copied, and comes from the caller for the time of the call only.
    let name = std::ffi::CString::new("the name").unwrap();
    let mut config = ncclConfig_t { commName: name.as_ptr(), ..ncclConfig_t::initializer() };
    let comms = init(Mode::Group, 1);
    let mut child = ptr::null_mut();
    assert_eq!(nccl!(ncclCommSplit(comms[0].0, 0, 0, &mut child, &mut config)), OK);
    drop(name);
    let second = split(child, 0, 0).unwrap();
    (config.blocking, config.commName) = (3, ptr::null());
    let mut none = ptr::null_mut();
    assert_eq!(nccl!(ncclCommSplit(child, 0, 0, &mut none, &mut config)), ARGUMENT);
    second.destroy();
    Comm(child).destroy();
    comms[0].destroy();
}

#[test]
fn the_log_tells_who_begins_and_ends() {
    let (_alone, _watchdog) = (alone(), Watchdog::new());
    let mut command = worker::command("log", &unique_id(), 1, &[0]);
    for name in ["NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE"] {
        command.env_remove(name);
    }
    let text = finish(command.env("NCCL_DEBUG", "INFO").stdout(Stdio::piped()).spawn().unwrap());
    let lines: Vec<&str> = text.lines().filter(|line| line.contains(" NCCL INFO ")).collect();
    let ends =
        ["- Init START", "- Init COMPLETE", "- Init COMPLETE", "- Destroy COMPLETE", "- Abort COMPLETE"];
    let told: Vec<&&str> = lines.iter().filter(|line| line.contains("nranks")).collect();
    assert_eq!(told.len(), ends.len(), "{text}");
    for (line, end) in told.iter().zip(ends) {
        assert!(line.ends_with(end) && line.contains(" rank 0 nranks 1 cudaDev 0 commId 0x"), "{line}");
    }
    assert!(told[1].contains("comm 0x10 rank") && told[2].contains("comm 0x20 (the child) rank"), "{text}");
}

/// As a C++ program does that keeps its communicator in a variable of the thread.
#[test]
fn a_thread_can_end_its_communicator_when_it_has_nothing_else_left() {
    /// Ends when what the thread has used after it is gone, the library's own included.
    struct Last(Option<Comm>, mpsc::Sender<Vec<Result<i32, ncclResult_t>>>);
    impl Drop for Last {
        fn drop(&mut self) {
            let Some(comm) = self.0.take() else { return };
            let code = |code| if code == OK { Ok(0) } else { Err(code) };
            let alone = sum(comm.0, 5);
            let codes = [
                code(nccl!(ncclGroupStart())),
                sum(comm.0, 6),
                code(nccl!(ncclGroupEnd())),
                split(comm.0, 0, 0).map(|child| child.destroy()).map(|()| 1),
                code(nccl!(ncclCommFinalize(comm.0))),
                code(nccl!(ncclCommDestroy(comm.0))),
            ];
            let _ = self.1.send([alone].into_iter().chain(codes).collect());
        }
    }
    thread_local!(static LAST: RefCell<Option<Last>> = const { RefCell::new(None) });

    let (_alone, _watchdog) = (alone(), Watchdog::new());
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        LAST.set(Some(Last(None, sender)));
        let comm = init_rank(unique_id(), 1, 0).unwrap();
        assert_eq!(sum(comm.0, 4), Ok(4));
        LAST.with_borrow_mut(|last| last.as_mut().unwrap().0 = Some(comm));
    });
    // There are no groups any more, so each call is one of its own.
    assert_eq!(receiver.recv().unwrap(), [Ok(5), Ok(0), Ok(6), Err(USAGE), Ok(1), Ok(0), Ok(0)]);
}

#[test]
fn it_does_not_take_long() {
    let (_alone, _watchdog) = (alone(), Watchdog::new());
    let start = Instant::now();
    let comms = init(Mode::Threads, 8);
    let created = start.elapsed();
    let times = on_threads(8, |rank| {
        let Comm(comm) = comms[rank];
        assert_eq!(sum(comm, 1), Ok(8));
        let start = Instant::now();
        (0..10).for_each(|_| split(comm, 0, 0).unwrap().destroy());
        start.elapsed() / 10
    });
    println!("8 threads: created in {created:?}, split in {:?}", times[0]);
    assert!(created < Duration::from_secs(5), "{created:?}");
    assert!(times[0] < Duration::from_secs(1), "{times:?}");
    comms.into_iter().for_each(Comm::destroy);

    let id = unique_id();
    let children: Vec<Child> = (0..4).map(|rank| spawn("times", &id, 4, rank)).collect();
    children.into_iter().for_each(|child| print!("{}", finish(child)));
}
