//! One process per rank, started by any launcher: torchrun, `mpirun`, `srun` and others (`docs/launching.md`). Without a
//! launcher, it starts its ranks itself, on this machine.
//!
//! ```console
//! $ cargo run --release --example multi_process -- 4
//! $ mpirun -n 4 target/release/examples/multi_process
//! $ torchrun --nproc-per-node 4 --no-python target/release/examples/multi_process
//! ```

mod common;

use std::env;
use std::error::Error;
use std::net::TcpListener;
use std::process::{Child, Command};
use std::time::Duration;

use common::{Machine, ranks};
use libnccl::ReduceOp;
use libnccl_launch::{Launch, LaunchError};

/// The limit of the wait for a rank that never joins.
const TIMEOUT: Duration = Duration::from_secs(60);

fn main() -> Result<(), Box<dyn Error>> {
    match Launch::from_env() {
        Ok(launch) => run_rank(&launch.timeout(TIMEOUT)),
        Err(LaunchError::NoLauncher) => start_ranks(ranks(4)),
        Err(error) => Err(error.into()),
    }
}

/// Adds up the numbers of all ranks.
fn run_rank(launch: &Launch) -> Result<(), Box<dyn Error>> {
    // A launcher may make only one GPU visible to each rank.
    let machine = Machine::new(1);
    let device = if machine.gpus > 0 { launch.device(machine.gpus)? } else { 0 };
    let rank = machine.create(device, || launch.communicator(&machine.nccl))?;
    let mut buffer = rank.buffer(&[launch.rank() as f32])?;
    rank.comm.all_reduce_in_place(&mut buffer, ReduceOp::Sum, rank.stream())?;
    rank.wait(TIMEOUT)?;
    if launch.rank() == 0 {
        println!(
            "{} ranks, by {}: the sum of their numbers is {}",
            launch.size(),
            launch.launcher(),
            rank.read(&buffer)[0]
        );
    }
    Ok(())
}

/// Starts the ranks with the variables that torchrun sets.
fn start_ranks(ranks: usize) -> Result<(), Box<dyn Error>> {
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let has_gpus = Machine::new(ranks).gpus > 0;
    let start = |rank: usize| {
        let mut command = Command::new(env::current_exe()?);
        if !has_gpus {
            // There may be GPUs, but too few: all ranks then use the CPU backend.
            command.env("CUDA_VISIBLE_DEVICES", "");
        }
        for name in ["RANK", "LOCAL_RANK"] {
            command.env(name, rank.to_string());
        }
        for name in ["WORLD_SIZE", "LOCAL_WORLD_SIZE"] {
            command.env(name, ranks.to_string());
        }
        command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string()).spawn()
    };
    let children = (0..ranks).map(start).collect::<Result<Vec<Child>, _>>()?;
    for (rank, mut child) in children.into_iter().enumerate() {
        let status = child.wait()?;
        if !status.success() {
            return Err(format!("rank {rank}: {status}").into());
        }
    }
    Ok(())
}
