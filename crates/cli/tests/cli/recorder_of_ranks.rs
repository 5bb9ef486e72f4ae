//! `nccl recorder diff` on what the library has recorded: three ranks on the CPU backend, a process each, of which
//! rank 2 makes a mistake.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};
use std::{env, thread};

use libnccl::{Communicator, Config, Nccl, ReduceOp, Result, StreamRef, UniqueId};
use libnccl_observe::{RecordExt, Recorder};

use crate::common::rank_command;
use crate::mistakes::{self, FAULTY, RANKS};

const STREAM: StreamRef<'static> = StreamRef::DEFAULT;

/// The deadline of each call; until another one has passed, no rank ends.
const DEADLINE: Duration = Duration::from_secs(1);

#[test]
#[ignore = "the other test starts it as a rank"]
fn rank_process() {
    let Ok(arguments) = env::var("LIBNCCL_TEST_RECORDED") else { return };
    let mut words = arguments.split('|');
    let mut next = || words.next().unwrap();
    let (rank, mistake, folder): (usize, _, _) = (next().parse().unwrap(), next(), next());
    let ids = [next(), next()].map(|id| id.parse::<UniqueId>().unwrap());
    let (nccl, config) = (libnccl_cpu::nccl(), Config::new().timeout(DEADLINE));
    let comms = ids.map(|id| nccl.communicator(RANKS, rank, &id).config(&config).init().unwrap());
    comms.iter().for_each(|comm| drop(comm.record(64)));
    let sum = |comm: &Communicator| comm.all_reduce_in_place(&mut [1.0_f32; 8], ReduceOp::Sum, STREAM);
    comms.iter().for_each(|comm| sum(comm).unwrap());
    if rank == FAULTY && mistake == "dead rank" {
        std::process::abort();
    }
    let start = Instant::now();
    let outcome = call(&nccl, &comms, rank, mistake);
    let file = Path::new(folder).join(format!("rank{rank}.json"));
    Recorder::write_all("test", &file).unwrap();
    thread::sleep((2 * DEADLINE).saturating_sub(start.elapsed()));
    println!("{outcome:?}");
}

/// Makes the calls of a rank: the last one makes the mistake.
fn call(nccl: &Nccl, [comm, other]: &[Communicator; 2], rank: usize, mistake: &str) -> Result<()> {
    let is_faulty = rank == FAULTY;
    let sum = |comm: &Communicator, length: usize| {
        comm.all_reduce_in_place(&mut vec![1.0_f32; length], ReduceOp::Sum, STREAM)
    };
    let broadcast = |root| comm.broadcast_in_place(&mut [1.0_f32; 8], root, STREAM);
    match (mistake, is_faulty) {
        ("order", false) => sum(comm, 8).and_then(|()| broadcast(0)),
        ("order", true) => broadcast(0).and_then(|()| sum(comm, 8)),
        ("count", _) => sum(comm, if is_faulty { 9 } else { 8 }),
        ("type", true) => comm.all_reduce_in_place(&mut [1.0_f64; 8], ReduceOp::Sum, STREAM),
        ("root", _) => broadcast(if is_faulty { 1 } else { 0 }),
        ("missing call", true) | ("extra call", false) => Ok(()),
        ("other communicator", true) => sum(other, 8),
        // Ranks 0 and 2 exchange a message, before the collective or in a group with it.
        ("group against none", true) => {
            comm.recv(&mut [0_u8; 4], 0, STREAM)?;
            sum(comm, 8)
        }
        ("group against none", false) if rank == 0 => {
            let (mut values, message) = ([1.0_f32; 8], [0_u8; 4]);
            nccl.group(|g| {
                comm.all_reduce_in_place(&mut values, ReduceOp::Sum, g.stream(STREAM))?;
                comm.send(&message, FAULTY, g.stream(STREAM))
            })
        }
        ("message", true) => comm.recv(&mut [0.0_f32; 9], 0, STREAM),
        ("message", false) if rank == 0 => comm.send(&[0.0_f32; 8], FAULTY, STREAM),
        ("message", false) => Ok(()),
        _ => sum(comm, 8),
    }
}

#[test]
fn ten_mistakes_are_named_with_rank_and_call() {
    let nccl = libnccl_cpu::nccl();
    mistakes::check(&|mistake, folder| {
        let [first, second] = [(); 2].map(|()| nccl.unique_id().unwrap());
        let start = |rank| {
            let arguments = format!("{rank}|{mistake}|{}|{first}|{second}", folder.display());
            let mut command = rank_command("recorder_of_ranks::rank_process");
            // A group's collectives come first, as in NCCL.
            command.env("LIBNCCL_TEST_RECORDED", arguments).env("LIBNCCL_CPU_STRICT", "1");
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        };
        let ranks: Vec<_> = (0..RANKS).map(start).collect();
        let outputs = ranks.into_iter().map(|rank| rank.wait_with_output().unwrap());
        outputs.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).collect()
    });
}
