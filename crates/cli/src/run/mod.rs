//! `nccl run`: starts the ranks of a program on this host.
//!
//! Three kinds of processes, all started with the same arguments:
//!
//! | process | work |
//! |---|---|
//! | the front, which the user has started | passes signals on, and waits for the supervisor |
//! | the supervisor | starts the ranks, prints their output, and ends them |
//! | a rank | asks the kernel for its end with the supervisor's, and becomes the program |
//!
//! The front and the supervisor adopt the orphans of what they started, and each kills all of them if the other is killed.

pub(crate) mod arguments;
mod descendants;
mod event;
mod output;
mod process;
mod ranks;
mod supervisor;

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::thread;

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, getpid, kill_process, set_child_subreaper};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;

use self::process::{ROLE, end_with_parent, exit_code, this_program, wait_without_reaping};
use arguments::RunArguments;

/// The signals that reach the ranks.
const FORWARDED: [i32; 6] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2];

/// Runs the role of this process.
pub(crate) fn run(arguments: &RunArguments) -> Result<ExitCode> {
    let Some(role) = libnccl::environment::variable(ROLE) else { return front() };
    match role.to_str().and_then(|role| role.split_once(' ')) {
        Some(("supervisor", parent)) => {
            // Before the signal can come.
            let signals = signals()?;
            end_with_parent(parent, Signal::TERM)?;
            set_child_subreaper(Some(getpid())).context("cannot adopt orphans")?;
            supervisor::run(arguments, signals)
        }
        Some(("rank", parent)) => {
            end_with_parent(parent, Signal::KILL)?;
            let (program, parameters) = (&arguments.program[0], &arguments.program[1..]);
            let error = Command::new(program).args(parameters).env_remove(ROLE).exec();
            Err(error).with_context(|| format!("cannot start {}", program.display()))
        }
        _ => bail!("invalid {ROLE}={}; nccl run sets it for its own processes", role.display()),
    }
}

/// Starts the supervisor, passes signals on to it, and kills what it leaves.
fn front() -> Result<ExitCode> {
    set_child_subreaper(Some(getpid())).context("cannot adopt orphans")?;
    let mut signals = signals()?;
    // A group of its own: a terminal sends its signals to this process alone.
    let mut supervisor =
        this_program("supervisor")?.process_group(0).spawn().context("cannot start the supervisor")?;
    let pid = Pid::from_child(&supervisor);
    let handle = signals.handle();
    let forwarder = thread::spawn(move || {
        for signal in signals.forever().filter_map(Signal::from_named_raw) {
            let _ = kill_process(pid, signal);
        }
    });
    // It keeps its process id until nothing is sent to it any more.
    wait_without_reaping(pid)?;
    handle.close();
    let _ = forwarder.join();
    let status = supervisor.wait()?;
    descendants::kill_all()?;
    Ok(exit_code(status).into())
}

fn signals() -> Result<Signals> {
    Signals::new(FORWARDED).context("cannot handle signals")
}
