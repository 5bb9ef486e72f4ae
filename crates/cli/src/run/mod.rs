//! `nccl run`: starts the ranks of a program on this host.
//!
//! Three kinds of processes, all started with the same arguments:
//!
//! | process | work |
//! |---|---|
//! | the front, which the user starts | forwards signals to the supervisor, and prints the supervisor's output |
//! | the supervisor | starts the ranks, collects their output, and ends them |
//! | a rank | sets SIGKILL as its parent death signal, and becomes the program |
//!
//! A terminal's process group contains only the front. If the front is stopped or continued, the supervisor stops or continues
//! the ranks. Signals are forwarded through a pipe, which is closed when the front exits. The front and the supervisor adopt
//! orphaned descendants, and each kills all of them if the other is killed.

mod machine;
mod output;
mod process;
mod supervisor;

use std::ffi::{OsStr, OsString};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueHint};
use rustix::process::{Signal, getpid, set_child_subreaper};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;

use self::output::Stream;
use self::process::{ROLE, exit_code, requests_the_end};
pub(crate) use self::process::{
    THIS_PROGRAM, check_rights, end_with_parent, field, has_bit, ignores, this_program,
};
use crate::output::{CLOSED, write_to_stderr};
use crate::value_parser::{MAX_RANKS, whole};

#[derive(Debug, Args)]
#[command(after_help = include_str!("../help/run.txt").trim_end())]
pub(crate) struct RunArguments {
    /// Number of ranks
    #[arg(short = 'n', long, value_name = "N", value_parser = whole::<usize>(1..=MAX_RANKS))]
    ranks: usize,
    /// Put the CPU backend of NCCL, and the CUDA emulation, before other libraries; from DIR, which
    /// `cargo xtask cpu-so DIR` makes; `nccl ras` finds the job unless `NCCL_RAS_ENABLE` is 0 [default: libnccl-cpu next to this program, or in ../lib, or the Python package `libnccl_cpu`]. The `=` may be a space before a
    /// DIR with a slash
    #[arg(long, value_name = "DIR", num_args = 0..=1, require_equals = true, value_hint = ValueHint::DirPath)]
    cpu: Option<Option<PathBuf>>,
    /// Write the output to `DIR/attempt_A/RANK/stdout.log` and `stderr.log` as well
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    log_dir: Option<PathBuf>,
    /// Start all ranks again if one fails, at most N times
    #[arg(long, value_name = "N", default_value_t = 0)]
    restart: u32,
    /// Give the ranks this program's own output, without prefixes: `nccl bench --processes` has one rank that prints
    #[arg(long, hide = true)]
    inherit: bool,
    /// Program to run, and its arguments
    #[arg(value_name = "PROGRAM", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    #[arg(value_hint = ValueHint::CommandWithArguments)]
    program: Vec<OsString>,
}

impl RunArguments {
    /// Returns the directory of `--cpu`, and the program. Clap parses the directory of `--cpu DIR` as the program. A word with a
    /// slash that is a directory cannot be a program; a word without a slash is the name of a program in PATH.
    fn cpu_and_program(&self) -> (Option<Option<&Path>>, &[OsString]) {
        let cpu = self.cpu.as_ref().map(Option::as_deref);
        let is_directory = |word: &OsString| word.as_bytes().contains(&b'/') && Path::new(word).is_dir();
        match &self.program[..] {
            [directory, rest @ ..] if cpu == Some(None) && is_directory(directory) => {
                let program = rest.strip_prefix(&["--".into()]).unwrap_or(rest);
                (Some(Some(Path::new(directory))), program)
            }
            program => (cpu, program),
        }
    }
}

/// The time limit for printing the rest of the output after a request to end the job.
const READ_TIME: Duration = Duration::from_secs(1);

pub(crate) fn run(arguments: &RunArguments) -> Result<ExitCode> {
    let Some(role) = libnccl::internal::environment::variable(ROLE) else { return front(arguments.inherit) };
    match role.to_str().and_then(|role| role.split_once(' ')) {
        Some(("supervisor", colors)) => {
            let signals = signals()?;
            set_child_subreaper(Some(getpid())).context("cannot adopt orphans")?;
            supervisor::run(arguments, colors, signals)
        }
        Some(("rank", parent)) => {
            end_with_parent(parent)?;
            let (_, program) = arguments.cpu_and_program();
            let (program, parameters) =
                program.split_first().context("no program after the directory of --cpu")?;
            Err(Command::new(program).args(parameters).env_remove(ROLE).exec())
                .with_context(|| format!("cannot start {}", program.display()))
        }
        _ => bail!("invalid {ROLE}={}; nccl run sets it for its own processes", role.display()),
    }
}

/// Returns the command for a program that the kernel kills when this process exits.
///
/// Must be started on the main thread: the kernel kills it when the *thread* that started it exits.
pub(crate) fn program_that_ends_with_this(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(THIS_PROGRAM);
    command.args(["run", "-n", "1", "--"]).arg(program).env(ROLE, process::rank());
    command
}

/// Starts the supervisor, forwards signals to it, prints its output, and kills its remaining descendants.
fn front(inherit: bool) -> Result<ExitCode> {
    check_rights("nccl run")?;
    // The program that called exec to become this one may have had children.
    let others = process::children()?;
    set_child_subreaper(Some(getpid())).context("cannot adopt orphans")?;
    let mut signals = signals()?;
    let colors = Stream::ALL.map(|stream| if stream.has_color() { stream.name() } else { "" });
    let mut command = this_program()?;
    command.env(ROLE, format!("supervisor {}", colors.join(" ")));
    // A separate process group: a terminal sends its signals only to this process.
    command.process_group(0).stdin(Stdio::piped());
    if !inherit {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
    }
    let mut supervisor = command.spawn().context("cannot start the supervisor")?;
    let to_supervisor = Arc::new(supervisor.stdin.take().context("no pipe")?);
    let (sender, news) = channel();
    if !inherit {
        copy(supervisor.stdout.take().context("no pipe")?, io::stdout(), &to_supervisor, &sender)?;
        copy(supervisor.stderr.take().context("no pipe")?, io::stderr(), &to_supervisor, &sender)?;
    }
    let listen = move || {
        let mut is_ending = false;
        for signal in signals.forever().filter_map(Signal::from_named_raw) {
            let mut passed_on = signal;
            if requests_the_end(signal) {
                let _ = sender.send(News::EndRequested);
                // When a terminal is closed, the kernel and the shell both send SIGHUP.
                if is_ending && signal != Signal::HUP {
                    passed_on = Signal::KILL;
                }
                is_ending = true;
            }
            pass_on(&to_supervisor, passed_on);
        }
    };
    process::spawn(listen)?;
    let status = supervisor.wait()?;
    if status.code().is_none() {
        process::kill_all(&others)?;
    }
    let code = exit_code(status);
    let mut patience = Duration::MAX;
    let mut left = if inherit { 0 } else { Stream::ALL.len() };
    while left > 0 {
        match news.recv_timeout(patience) {
            Ok(News::EndRequested) => patience = READ_TIME,
            Ok(News::Copied(result)) => {
                left -= 1;
                match result.context("the ranks' output cannot be written") {
                    Ok(_) => {}
                    // The status of a failed rank has precedence.
                    Err(error) if !matches!(code, 0 | CLOSED) => {
                        write_to_stderr(&format!("nccl run: {error:#}\n"));
                    }
                    Err(error) => return Err(error),
                }
            }
            Err(_) => break,
        }
    }
    Ok(code.into())
}

/// A message from a thread of the front to its main thread.
enum News {
    /// A signal has requested the end of the job.
    EndRequested,
    /// All output on a stream has been printed, or printing failed.
    Copied(io::Result<u64>),
}

/// Prints the supervisor's output.
fn copy(
    mut from: impl Read + Send + 'static,
    mut to: impl Write + Send + 'static,
    to_supervisor: &Arc<ChildStdin>,
    news: &Sender<News>,
) -> Result<()> {
    let (to_supervisor, news) = (Arc::clone(to_supervisor), news.clone());
    process::spawn(move || {
        let copied = io::copy(&mut from, &mut to);
        if copied.is_err() {
            pass_on(&to_supervisor, Signal::PIPE);
        }
        news.send(News::Copied(copied))
    })
}

/// Forwards a signal to the supervisor, if it is still running.
fn pass_on(mut to_supervisor: &ChildStdin, signal: Signal) {
    let _ = to_supervisor.write_all(&[signal.as_raw() as u8]);
}

fn signals() -> Result<Signals> {
    // A shell or `nohup` may have set the others to be ignored, which the ranks inherit.
    let forwarded = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2];
    Signals::new(forwarded.into_iter().filter(|signal| !ignores(*signal))).context("cannot handle signals")
}
