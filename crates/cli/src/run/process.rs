//! The processes of a run: roles, parent death signals, states, exit statuses, and descendants, whose orphans are adopted.

use std::os::unix::process::{CommandExt, ExitStatusExt, parent_id};
use std::process::{self, Command, ExitStatus};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitOptions, getpid, kill_process, set_parent_process_death_signal,
    waitid, waitpid,
};

/// The variable with a process's role in `nccl run`: `supervisor` and the streams with colors, or `rank` and its parent's id.
pub(super) const ROLE: &str = "LIBNCCL_RUN_ROLE";

/// Fails in a program with more rights than its user. Such a program ignores variables, so its child processes would ignore their
/// roles, and start further processes.
pub(crate) fn check_rights(command: &str) -> Result<()> {
    ensure!(
        !libnccl::internal::environment::is_privileged(),
        "{command} has more rights than its user (set-uid, set-gid or capabilities of its file); expected a program without, whose \
         processes obey variables"
    );
    Ok(())
}

pub(super) fn rank() -> String {
    format!("rank {}", process::id())
}

/// The file of this program, even if a build has replaced or removed it.
pub(crate) const THIS_PROGRAM: &str = "/proc/self/exe";

pub(crate) fn this_program() -> Result<Command> {
    let mut arguments = env::args_os();
    let mut command = Command::new(THIS_PROGRAM);
    command.arg0(arguments.next().context("no name in the arguments")?).args(arguments);
    Ok(command)
}

pub(super) fn spawn<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<()> {
    thread::Builder::new().spawn(work).map(drop).context("cannot start a thread")
}

/// Makes the kernel kill this process when its parent exits.
pub(crate) fn end_with_parent(parent: &str) -> Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL)).context("cannot set the parent death signal")?;
    // There is no signal if the parent has already exited.
    if parent_id().to_string() != parent {
        bail!("process {parent}, which started this one, has ended");
    }
    Ok(())
}

/// Returns whether a child has exited; without `NOHANG`, waits for it. Does not reap it, so that it keeps its process id.
pub(super) fn has_exited(pid: Pid, options: WaitIdOptions) -> bool {
    let options = options | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    rustix::io::retry_on_intr(|| waitid(WaitId::Pid(pid), options)).is_ok_and(|status| status.is_some())
}

pub(super) fn requests_the_end(signal: Signal) -> bool {
    !matches!(signal, Signal::USR1 | Signal::USR2)
}

/// Returns whether this process was started with a signal ignored. Must be called before the process handles the signal.
pub(crate) fn ignores(signal: i32) -> bool {
    has_bit(&fs::read_to_string("/proc/self/status").unwrap_or_default(), "SigIgn:", signal - 1)
}

/// Returns a field of `/proc/PID/status`.
pub(crate) fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

/// Returns whether a bit is set in the mask of a status field.
pub(crate) fn has_bit(status: &str, name: &str, bit: i32) -> bool {
    let mask = field(status, name).and_then(|mask| u64::from_str_radix(mask, 16).ok());
    mask.is_some_and(|mask| mask >> bit & 1 == 1)
}

/// Returns the state of a process as reported by the kernel, such as `D (disk sleep)`.
pub(super) fn state(pid: Pid) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    field(&status, "State:").unwrap_or("unknown").into()
}

pub(super) fn state_and_parent(pid: i32) -> Option<(String, Pid)> {
    parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Returns the state and the parent, which follow the name. The name is in parentheses and may contain any character.
fn parse_stat(stat: &str) -> Option<(String, Pid)> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    Some((fields.next()?.into(), Pid::from_raw(fields.next()?.parse().ok()?)?))
}

/// Returns the exit status that a shell would report.
pub(super) fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| Some(128 + status.signal()?));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

/// The time that descendants have to exit after SIGKILL.
const KILL_TIME: Duration = Duration::from_secs(10);

/// Kills all descendants except `others`, and waits for them for up to [`KILL_TIME`]. Descendants become children of this process
/// when their parents exit. Returns the descendants that have survived SIGKILL.
pub(super) fn kill_all(others: &[Pid]) -> Result<Vec<Pid>> {
    let start = Instant::now();
    loop {
        // A child keeps its process id until it is reaped below.
        let mut descendants = children()?;
        descendants.retain(|child| !others.contains(child));
        for child in &descendants {
            let _ = kill_process(*child, Signal::KILL);
        }
        for child in &descendants {
            rustix::io::retry_on_intr(|| waitpid(Some(*child), WaitOptions::NOHANG))
                .context("cannot wait for a process")?;
        }
        if descendants.is_empty() || start.elapsed() >= KILL_TIME {
            return Ok(descendants);
        }
        thread::sleep(Duration::from_millis(1));
    }
}

pub(super) fn children() -> Result<Vec<Pid>> {
    let this = getpid();
    let processes = fs::read_dir("/proc").context("/proc cannot be read")?.filter_map(|entry| {
        let pid = entry.ok()?.file_name().to_str()?.parse().ok()?;
        (state_and_parent(pid)?.1 == this).then(|| Pid::from_raw(pid))?
    });
    Ok(processes.collect())
}

/// Describes how a process has exited, after it was sent this signal, if any. `was` is `was` or `were`.
pub(super) fn describe(status: ExitStatus, sent: Option<Signal>, was: &str) -> String {
    let name = |signal| signal_hook::low_level::signal_name(signal).unwrap_or("unknown");
    let after = sent.map(|sent| format!(", after nccl run had sent {}", name(sent.as_raw())));
    let end = match (status.code(), status.signal()) {
        (Some(code), _) => format!("exited with status {code}"),
        (None, Some(signal)) if sent.is_some_and(|sent| sent.as_raw() == signal) => {
            return format!("{was} ended by signal {signal} ({}), which nccl run had sent", name(signal));
        }
        (None, Some(signal)) => format!("{was} ended by signal {signal} ({})", name(signal)),
        _ => format!("ended: {status}"),
    };
    end + &after.unwrap_or_default()
}

#[cfg(test)]
#[path = "../../tests/unit/run_process.rs"]
mod tests;
