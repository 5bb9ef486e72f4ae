//! A rank dies, and training continues: the launcher notifies the other ranks, which shrink the communicator. One process per
//! rank. Needs NCCL 2.27.3 or newer.
//!
//! ```console
//! $ cargo run --release --example elastic -- 4
//! ```

mod common;

use std::env;
use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::{Machine, Rank, ranks};
use libnccl::communicator::ShrinkMode;
use libnccl::{Config, NcclBuffer, ReduceOp};

/// The limit of the wait for a rank that has exited.
const TIMEOUT: Duration = Duration::from_secs(20);

const STEPS: usize = 8;

/// The step before which the last rank dies.
const DEATH: usize = 3;

fn main() -> Result<(), Box<dyn Error>> {
    match env::args().nth(2) {
        Some(rank) => run_rank(ranks(4), rank.parse()?),
        None => launch(ranks(4)),
    }
}

/// Starts the ranks, and notifies them of the rank that dies.
fn launch(ranks: usize) -> Result<(), Box<dyn Error>> {
    assert!(ranks >= 2, "a rank dies and another one has to go on");
    let mut children = (0..ranks).map(|rank| start(ranks, rank)).collect::<Result<Vec<_>, _>>()?;
    // Rank 0 prints the id, which all others need.
    let mut output = BufReader::new(children[0].stdout.take().expect("a pipe"));
    let mut id = String::new();
    output.read_line(&mut id)?;
    for child in &mut children[1..] {
        child.stdin.as_mut().expect("a pipe").write_all(id.as_bytes())?;
    }
    let mut dead = children.pop().expect("two ranks at least");
    println!("rank {} of {ranks} ended: {}", ranks - 1, dead.wait()?);
    for child in &mut children {
        writeln!(child.stdin.as_mut().expect("a pipe"), "{}", ranks - 1)?;
    }
    for (rank, child) in children.iter_mut().enumerate() {
        let status = child.wait()?;
        assert!(status.success(), "rank {rank}: {status}");
    }
    output.lines().try_for_each(|line| line.map(|line| println!("{line}")))?;
    Ok(())
}

fn start(ranks: usize, rank: usize) -> std::io::Result<Child> {
    let mut command = Command::new(env::current_exe()?);
    command.args([ranks.to_string(), rank.to_string()]).stdin(Stdio::piped());
    if rank == 0 {
        command.stdout(Stdio::piped());
    }
    command.spawn()
}

/// Adds up a number of each rank in each step, with the ranks that are left.
fn run_rank(ranks: usize, number: usize) -> Result<(), Box<dyn Error>> {
    let machine = Machine::new(ranks);
    let mut lines = std::io::stdin().lines();
    let mut from_launcher = || lines.next().ok_or("the launcher has exited")?.map_err(Box::<dyn Error>::from);
    let id = if number == 0 {
        let id = machine.nccl.unique_id()?;
        println!("{id}");
        id
    } else {
        from_launcher()?.parse()?
    };
    let config = Config::new().timeout(TIMEOUT);
    let mut rank = machine.join(ranks, number, &id, &config)?;
    // Outlives the communicators: a failed operation may use it until its communicator is destroyed.
    let mut buffer = rank.buffer(&[0.0])?;
    let mut step = 0;
    while step < STEPS {
        if step == DEATH && number == ranks - 1 {
            std::process::abort();
        }
        match combine(&rank, &mut buffer, 1.0, ReduceOp::Sum) {
            Ok(total) => {
                step += 1;
                if number == 0 {
                    println!("step {step}: {total} ranks");
                }
            }
            Err(error) => {
                eprintln!("rank {number}, step {}: {error}", step + 1);
                let dead = from_launcher()?.parse()?;
                rank.comm = rank.comm.shrink(&[dead], ShrinkMode::Abort).config(&config).init()?;
                // The others may have completed a step that this rank has not.
                step = combine(&rank, &mut buffer, step as f32, ReduceOp::Min)? as usize;
            }
        }
    }
    Ok(())
}

/// Combines one number of each rank.
fn combine(
    rank: &Rank<'_>,
    buffer: &mut NcclBuffer<f32>,
    value: f32,
    op: ReduceOp,
) -> Result<f32, Box<dyn Error>> {
    rank.write(buffer, &[value]);
    rank.comm.all_reduce_in_place(&mut *buffer, op, rank.stream())?;
    rank.wait_or_keep(TIMEOUT)?;
    Ok(rank.read(buffer)[0])
}
