//! A rank: this test program, started again. It reads a line before each step, and prints one after it.
#![allow(unsafe_code)] // Frees the memory of a stream's work.

use std::io::{self, Write};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use cudarc::driver::CudaContext;
use libnccl::buffer::MemorySpace;
use libnccl::{Communicator, Config, Nccl, ReduceOp, Result, StreamRef, UniqueId};

use super::call::{Call, DEADLINE, FAULTY, RANKS};
use super::common::Machine;
use super::fault::Fault;

/// The variable with the arguments of a rank.
pub(crate) const VARIABLE: &str = "LIBNCCL_TEST_FAULTS_RANK";

#[derive(Debug, Clone)]
pub(crate) struct Arguments {
    pub(crate) rank: usize,
    pub(crate) call: usize,
    pub(crate) fault: usize,
    /// Of all ranks; of those that remain; of nobody else.
    pub(crate) ids: [UniqueId; 3],
    /// The file in which rank 0 gives the id of a communicator that grows.
    pub(crate) file: String,
}

impl Arguments {
    pub(crate) fn to_text(&self) -> String {
        let [all, rest, other] = &self.ids;
        let Self { rank, call, fault, file, .. } = self;
        format!("{rank} {call} {fault} {all} {rest} {other} {file}")
    }

    fn parse(text: &str) -> Self {
        let mut words = text.split(' ');
        let mut next = || words.next().unwrap();
        let [rank, call, fault] = [(); 3].map(|()| next().parse().unwrap());
        let ids = [(); 3].map(|()| next().parse().unwrap());
        Self { rank, call, fault, ids, file: next().into() }
    }
}

#[test]
#[ignore = "the other tests start it as a rank"]
fn rank_process() {
    let Ok(arguments) = env::var(VARIABLE) else { return };
    let arguments = Arguments::parse(&arguments);
    let (rank, config) = (arguments.rank, Config::new().timeout(DEADLINE));
    let (call, fault) = (Call::ALL[arguments.call], Fault::ALL[arguments.fault]);
    let is_on_device = call == Call::Synchronize;
    let nccl = if is_on_device { Nccl::load().unwrap() } else { libnccl_cpu::nccl() };
    // Current until the end.
    let _context = is_on_device.then(|| CudaContext::new(rank).unwrap());
    // What a process keeps of its first communicator is not left by the fault.
    let alone = nccl.communicator(1, 0, &nccl.unique_id().unwrap()).config(&config).init().unwrap();
    assert_eq!(alone.memory_space() == MemorySpace::Device, is_on_device);
    assert_eq!(sum_and_destroy(alone, 1.0).unwrap(), 1.0);
    let before = Resources::count();

    step("ready");
    let joined = match call {
        Call::Init => None,
        Call::Grow if rank == FAULTY => None,
        // The faulty rank is a new one, which the others wait for.
        Call::Grow => {
            Some(nccl.communicator(RANKS - 1, rank, &arguments.ids[0]).config(&config).init().unwrap())
        }
        _ => Some(nccl.communicator(RANKS, rank, &arguments.ids[0]).config(&config).init().unwrap()),
    };
    step("joined");
    if rank == FAULTY {
        fail(&nccl, call, fault, joined, &arguments, &config);
    }
    if joined.is_none() && fault == Fault::Aborts {
        // The faulty rank has come and gone before.
        thread::sleep(Duration::from_secs(1));
    }
    let start = Instant::now();
    let outcome = match joined {
        None => nccl.communicator(RANKS, rank, &arguments.ids[0]).config(&config).init().map(drop),
        Some(comm) if call == Call::Grow => grow(&comm, rank, &arguments, &config),
        Some(comm) => call.make(&nccl, comm, &config, false),
    };
    let elapsed = start.elapsed().as_millis();
    let outcome = outcome.map_or_else(|error| error.to_string(), |()| "succeeds".into());
    step(&format!("{elapsed} {}", outcome.replace('\n', " ")));

    let again = || -> Result<()> {
        let comm = nccl.communicator(RANKS - 1, rank, &arguments.ids[1]).config(&config).init()?;
        assert_eq!(sum_and_destroy(comm, rank as f32 + 1.0)?, 3.0);
        Ok(())
    };
    let after = again().map_err(|error| error.to_string()).and_then(|()| before.compare());
    println!("{}", after.map_or_else(|problem| problem, |()| "works".into()));
}

/// Adds up a number of each rank.
fn sum_and_destroy(comm: Communicator, value: f32) -> Result<f32> {
    let mut sum = [value];
    if comm.memory_space() == MemorySpace::Host {
        comm.all_reduce_in_place(&mut sum, ReduceOp::Sum, StreamRef::DEFAULT)?;
        comm.destroy()?;
        return Ok(sum[0]);
    }
    let (machine, device) = (Machine::new(RANKS), comm.device() as usize);
    let rank = machine.create(device, || Ok::<_, libnccl::Error>(comm))?;
    let mut buffer = rank.buffer(&sum)?;
    rank.comm.all_reduce_in_place(&mut buffer, ReduceOp::Sum, rank.stream())?;
    rank.wait(DEADLINE)?;
    let sum = rank.read(&buffer);
    rank.comm.destroy()?;
    // SAFETY: the stream was waited for.
    unsafe { buffer.assume_idle() };
    Ok(sum[0])
}

/// Prints a line, and waits for one.
fn step(line: &str) {
    println!("{line}");
    io::stdout().flush().unwrap();
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).unwrap();
}

fn grow(comm: &Communicator, rank: usize, arguments: &Arguments, config: &Config) -> Result<()> {
    let id = if rank == 0 { Some(comm.unique_id()?) } else { None };
    if let Some(id) = &id {
        let unfinished = format!("{}.new", arguments.file);
        fs::write(&unfinished, id.to_string())
            .and_then(|()| fs::rename(unfinished, &arguments.file))
            .unwrap();
    }
    comm.grow(RANKS, id.as_ref()).config(config).init()?.destroy()
}

/// Does what the faulty rank does instead of the call, and then nothing until it is killed.
fn fail(
    nccl: &Nccl,
    call: Call,
    fault: Fault,
    joined: Option<Communicator>,
    arguments: &Arguments,
    config: &Config,
) -> ! {
    let signal = |name: &str| {
        Command::new("kill").args([name, &std::process::id().to_string()]).status().unwrap();
    };
    let id = || {
        while !Path::new(&arguments.file).exists() {
            thread::sleep(Duration::from_millis(1));
        }
        fs::read_to_string(&arguments.file).unwrap().parse().unwrap()
    };
    let other_id = &arguments.ids[2];
    let idle = || -> ! {
        loop {
            thread::sleep(Duration::from_secs(60));
        }
    };
    // Whatever comes of it: the others are tested.
    let _ = match (fault, joined) {
        (Fault::Killed, _) => {
            signal("-KILL");
            idle()
        }
        (Fault::Stopped, _) => {
            signal("-STOP");
            idle()
        }
        (Fault::NeverCalls, _joined) => idle(),
        (Fault::Aborts, Some(comm)) => comm.abort(),
        // Its own, short timeout aborts it.
        (Fault::Aborts, None) => {
            let config = Config::new().timeout(Duration::from_millis(50));
            nccl.communicator(RANKS, FAULTY, &arguments.ids[0]).config(&config).init().map(drop)
        }
        (Fault::CallsAnother, Some(comm)) => {
            if call == Call::Destroy {
                // After the others have ended: their end has an error if it finds the call of another.
                thread::sleep(DEADLINE / 2);
            }
            call.make_another(nccl, comm, config)
        }
        (Fault::OtherSize, Some(comm)) => call.make(nccl, comm, config, true),
        (Fault::CallsAnother, None) => {
            nccl.communicator(RANKS, FAULTY, other_id).config(config).init().map(drop)
        }
        (Fault::OtherSize, None) if call == Call::Grow => {
            nccl.communicator(RANKS + 1, FAULTY, &id()).grow().config(config).init().map(drop)
        }
        (Fault::OtherSize, None) => {
            nccl.communicator(RANKS + 1, FAULTY, &arguments.ids[0]).config(config).init().map(drop)
        }
    };
    idle()
}

/// The resources of a process: threads, open files, and mappings of files and shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Resources {
    threads: usize,
    files: usize,
    mappings: usize,
}

impl Resources {
    fn count() -> Self {
        let entries = |path: &str| fs::read_dir(path).unwrap().count();
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let mappings =
            maps.lines().filter(|line| line.contains("memfd") || line.contains("/dev/shm")).count();
        Self { threads: entries("/proc/self/task"), files: entries("/proc/self/fd"), mappings }
    }

    /// Fails if there is more now, and stays so for some seconds.
    fn compare(self) -> std::result::Result<(), String> {
        let start = Instant::now();
        loop {
            let now = Self::count();
            if now.threads <= self.threads && now.files <= self.files && now.mappings <= self.mappings {
                return Ok(());
            }
            if start.elapsed() > Duration::from_secs(5) {
                return Err(format!("before: {self:?}, after: {now:?}"));
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
}
