//! The processes of a run: starting one in a role, its end with its parent, and its exit status.

use std::env;
use std::os::unix::process::{CommandExt, ExitStatusExt, parent_id};
use std::process::{self, Command, ExitStatus};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, set_parent_process_death_signal, waitid};

/// The role of a process of `nccl run`, supervisor or rank, and the process id of its parent.
pub(super) const ROLE: &str = "LIBNCCL_RUN_ROLE";

/// Returns the command that starts this program in a role.
pub(super) fn this_program(role: &str) -> Result<Command> {
    let mut arguments = env::args_os();
    // The file itself, whatever has become of its name.
    let mut command = Command::new("/proc/self/exe");
    command.arg0(arguments.next().context("no name in the arguments")?).args(arguments);
    command.env(ROLE, format!("{role} {}", process::id()));
    Ok(command)
}

/// Asks the kernel for a signal at the end of the parent.
pub(super) fn end_with_parent(parent: &str, signal: Signal) -> Result<()> {
    set_parent_process_death_signal(Some(signal)).context("cannot ask for the end with the parent")?;
    // No signal comes for a parent that ended before.
    if parent_id().to_string() != parent {
        bail!("process {parent}, which started this one, has ended");
    }
    Ok(())
}

/// Waits for the end of a child, which keeps its process id.
pub(super) fn wait_without_reaping(pid: Pid) -> Result<()> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    rustix::io::retry_on_intr(|| waitid(WaitId::Pid(pid), options)).context("cannot wait for a process")?;
    Ok(())
}

/// Returns the exit status that a shell reports.
pub(super) fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| Some(128 + status.signal()?));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}
