//! A rank fails while the others compute: three ways to continue. One process per rank.
//!
//! - `restart`: all abort their communicators, and join with a new id and a new process. Needs NCCL 2.14.3.
//! - `replace`: the survivors shrink the communicator, and grow it by a new process. Needs NCCL 2.29.2.
//! - `revoke`: a rank that must exit revokes the communicator, which ends the operations of the others. They shrink it.
//!   Needs NCCL 2.28.7.
//!
//! ```console
//! $ cargo run --release --example recovery -- 4 restart
//! ```

mod common;

use std::env;
use std::error::Error;
use std::io::{BufRead, BufReader, Lines, Write, stdin};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use common::{Machine, Rank, ranks};
use libnccl::communicator::ShrinkMode;
use libnccl::{Config, NcclBuffer, ReduceOp, UniqueId};

type Result<T = (), E = Box<dyn Error>> = std::result::Result<T, E>;

/// The limit of the wait for a rank that has exited.
const TIMEOUT: Duration = Duration::from_secs(20);

const STEPS: u32 = 6;

/// The last step of the last rank.
const LAST_OF_ALL: u32 = 3;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Recipe {
    Restart,
    Replace,
    Revoke,
}

fn main() -> Result {
    let ranks = ranks(4);
    let mut arguments = env::args().skip(2);
    let name = arguments.next().unwrap_or_default();
    let recipe = match name.as_str() {
        "restart" => Recipe::Restart,
        "replace" => Recipe::Replace,
        "revoke" => Recipe::Revoke,
        _ => return Err(format!("the recipe is {name:?}; expected restart, replace or revoke").into()),
    };
    let [number, is_new] = [arguments.next(), arguments.next()];
    match number {
        Some(number) => Process::new(ranks, number.parse()?).run(recipe, is_new.is_some()),
        None if ranks < 2 => {
            Err("a rank is lost and another one has to go on; expected 2 ranks or more".into())
        }
        None => launch(ranks, &name, recipe),
    }
}

/// A process of a rank.
struct Process {
    machine: Machine,
    ranks: usize,
    number: usize,
    config: Config,
}

impl Process {
    fn new(ranks: usize, number: usize) -> Self {
        Self { machine: Machine::new(ranks), ranks, number, config: Config::new().timeout(TIMEOUT) }
    }

    /// Adds up a number of each rank in each step, with the current ranks.
    fn run(&self, recipe: Recipe, is_new: bool) -> Result {
        let mut rank = match (recipe, is_new) {
            (Recipe::Replace, true) => self.join_survivors()?,
            _ => self.join()?,
        };
        // Outlives the communicators: a failed operation may use it until its communicator is destroyed.
        let mut buffer = rank.buffer(&[0.0])?;
        let mut step = if is_new { agree(&rank, &mut buffer, 0)? } else { 0 };
        while step < STEPS {
            if step == LAST_OF_ALL && !is_new && self.number == self.ranks - 1 {
                // The launcher kills the process here, or makes it exit.
                self.line_of_launcher()?;
                return Ok(rank.comm.revoke()?);
            }
            match sum(&rank, &mut buffer, self.number as f32 + 1.0) {
                Ok(sum) => {
                    step += 1;
                    if self.number == 0 {
                        println!("step {step}: sum {sum} of {} ranks", rank.comm.size());
                    }
                }
                Err(error) => {
                    eprintln!("rank {}, step {}: {error}", self.number, step + 1);
                    let lost = self.line_of_launcher()?.parse()?;
                    rank = match recipe {
                        Recipe::Restart => self.restart(rank)?,
                        Recipe::Replace => self.replace(rank, lost)?,
                        Recipe::Revoke => self.shrink_revoked(rank, lost)?,
                    };
                    step = agree(&rank, &mut buffer, step)?;
                }
            }
        }
        Ok(())
    }

    fn restart<'a>(&'a self, rank: Rank<'a>) -> Result<Rank<'a>> {
        rank.comm.abort()?;
        self.join()
    }

    fn replace<'a>(&self, mut rank: Rank<'a>, lost: usize) -> Result<Rank<'a>> {
        let fewer = rank.comm.shrink(&[lost], ShrinkMode::Abort).config(&self.config).init()?;
        // For the new process; the others need none.
        let id = (fewer.rank() == 0).then(|| fewer.unique_id()).transpose()?;
        id.iter().for_each(|id| println!("id {id}"));
        rank.comm = fewer.grow(self.ranks, id.as_ref()).config(&self.config).init()?;
        Ok(rank)
    }

    /// Joins the survivors, as the last rank.
    fn join_survivors(&self) -> Result<Rank<'_>> {
        let id = self.line_of_launcher()?.parse()?;
        let (machine, ranks) = (&self.machine, self.ranks);
        Ok(machine.create(self.number, || {
            machine.nccl.communicator(ranks, ranks - 1, &id).grow().config(&self.config).init()
        })?)
    }

    fn shrink_revoked<'a>(&self, mut rank: Rank<'a>, lost: usize) -> Result<Rank<'a>> {
        rank.comm.revoke()?;
        rank.comm = rank.comm.shrink(&[lost], ShrinkMode::Default).config(&self.config).init()?;
        Ok(rank)
    }

    /// Joins the other ranks with an id that rank 0 creates.
    fn join(&self) -> Result<Rank<'_>> {
        let id: UniqueId = if self.number == 0 {
            let id = self.machine.nccl.unique_id()?;
            println!("id {id}");
            id
        } else {
            self.line_of_launcher()?.parse()?
        };
        Ok(self.machine.join(self.ranks, self.number, &id, &self.config)?)
    }

    fn line_of_launcher(&self) -> Result<String> {
        let mut line = String::new();
        stdin().read_line(&mut line)?;
        line.strip_suffix('\n').map(str::to_owned).ok_or_else(|| "the launcher has exited".into())
    }
}

/// Returns the step of rank 0, from which all continue: the others may have completed one more step, or be new.
fn agree(rank: &Rank<'_>, buffer: &mut NcclBuffer<f32>, step: u32) -> Result<u32> {
    rank.write(buffer, &[step as f32]);
    rank.comm.broadcast_in_place(&mut *buffer, 0, rank.stream())?;
    rank.wait_or_keep(TIMEOUT)?;
    Ok(rank.read(buffer)[0] as u32)
}

fn sum(rank: &Rank<'_>, buffer: &mut NcclBuffer<f32>, value: f32) -> Result<f32> {
    rank.write(buffer, &[value]);
    rank.comm.all_reduce_in_place(&mut *buffer, ReduceOp::Sum, rank.stream())?;
    rank.wait_or_keep(TIMEOUT)?;
    Ok(rank.read(buffer)[0])
}

/// Starts the ranks, removes the last one, and notifies the others.
fn launch(ranks: usize, name: &str, recipe: Recipe) -> Result {
    let last = ranks - 1;
    let start = |number: usize| start(ranks, name, number, false);
    let mut children = (0..ranks).map(start).collect::<Result<Vec<_>>>()?;
    let mut output = BufReader::new(children[0].stdout.take().ok_or("rank 0 has no output")?).lines();
    let id = print_until(&mut output, "id ")?;
    notify(&mut children[1..], &id)?;
    print_until(&mut output, &format!("step {LAST_OF_ALL}: "))?;

    let mut lost = children.pop().ok_or("no ranks")?;
    match recipe {
        Recipe::Restart | Recipe::Replace => lost.kill()?,
        Recipe::Revoke => writeln!(lost.stdin.as_mut().ok_or("no input")?, "leave")?,
    }
    println!("rank {last} of {ranks} ended: {}", lost.wait()?);
    notify(&mut children, &last.to_string())?;
    if recipe != Recipe::Revoke {
        children.push(self::start(ranks, name, last, true)?);
        let id = print_until(&mut output, "id ")?;
        let needs_id = if recipe == Recipe::Restart { 1.. } else { last.. };
        notify(&mut children[needs_id], &id)?;
    }
    output.try_for_each(|line| line.map(|line| println!("{line}")))?;
    for (number, child) in children.iter_mut().enumerate() {
        let status = child.wait()?;
        if !status.success() {
            return Err(format!("rank {number}: {status}").into());
        }
    }
    Ok(())
}

fn start(ranks: usize, recipe: &str, number: usize, is_new: bool) -> Result<Child> {
    let mut command = Command::new(env::current_exe()?);
    command.args([&ranks.to_string(), recipe, &number.to_string()]).stdin(Stdio::piped());
    if is_new {
        command.arg("new");
    }
    if number == 0 {
        command.stdout(Stdio::piped());
    }
    Ok(command.spawn()?)
}

/// Prints the lines of rank 0 until a line begins with `start`, and returns the rest of that line. Does not print lines with
/// an id.
fn print_until(output: &mut Lines<BufReader<ChildStdout>>, start: &str) -> Result<String> {
    for line in output {
        let line = line?;
        if !line.starts_with("id ") {
            println!("{line}");
        }
        if let Some(rest) = line.strip_prefix(start) {
            return Ok(rest.to_owned());
        }
    }
    Err("rank 0 has ended".into())
}

fn notify(children: &mut [Child], line: &str) -> Result {
    for child in children {
        writeln!(child.stdin.as_mut().ok_or("no input")?, "{line}")?;
    }
    Ok(())
}
