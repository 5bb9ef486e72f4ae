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

mod descendants;
mod output;
mod ranks;
mod supervisor;

use std::env;
use std::os::unix::process::{CommandExt, ExitStatusExt, parent_id};
use std::process::{self, Command, ExitCode, ExitStatus};
use std::thread;

use anyhow::{Context, Result, bail};
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, getpid, kill_process, set_child_subreaper,
    set_parent_process_death_signal, waitid,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;

use crate::args::RunArguments;

/// The environment variable that makes this process a supervisor or a rank: its role, and the process id of its parent.
const ROLE: &str = "LIBNCCL_RUN_ROLE";

/// The signals that reach the ranks.
const FORWARDED: [i32; 6] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2];

/// Runs the role of this process.
pub(crate) fn run(arguments: &RunArguments) -> Result<ExitCode> {
    let Some(role) = env::var_os(ROLE) else { return front() };
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

/// Returns the command that starts this program in a role.
fn this_program(role: &str) -> Result<Command> {
    let mut arguments = env::args_os();
    // The file itself, whatever has become of its name.
    let mut command = Command::new("/proc/self/exe");
    command.arg0(arguments.next().context("no name in the arguments")?).args(arguments);
    command.env(ROLE, format!("{role} {}", process::id()));
    Ok(command)
}

/// Asks the kernel for a signal at the end of the parent.
fn end_with_parent(parent: &str, signal: Signal) -> Result<()> {
    set_parent_process_death_signal(Some(signal)).context("cannot ask for the end with the parent")?;
    // No signal comes for a parent that ended before.
    if parent_id().to_string() != parent {
        bail!("process {parent}, which started this one, has ended");
    }
    Ok(())
}

/// Waits for the end of a child, which keeps its process id.
fn wait_without_reaping(pid: Pid) -> Result<()> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    rustix::io::retry_on_intr(|| waitid(WaitId::Pid(pid), options)).context("cannot wait for a process")?;
    Ok(())
}

/// Returns the exit status that a shell reports.
fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| Some(128 + status.signal()?));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}
