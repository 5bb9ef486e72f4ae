//! One cell of the table: the ranks as processes, one of them with a fault.

use std::env;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use super::call::{Call, DEADLINE, FAULTY, RANKS};
use super::fault::Fault;
use super::rank::{Arguments, VARIABLE};

/// The time after the deadline in which a call has to return.
const GRACE: Duration = Duration::from_secs(1);

/// Time after which a step of a rank counts as hung.
const LIMIT: Duration = Duration::from_secs(30);

/// The outcome of the calls of the ranks without a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// All have succeeded, or some have and others have an error.
    Succeeds,
    /// An error of NCCL comes before the deadline.
    Error,
    /// At the deadline.
    Timeout,
}

/// The outcomes of a call, by fault; `None` where there is no such fault.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) call: Call,
    pub(crate) outcomes: Vec<Option<Outcome>>,
}

/// A process. It is killed when it is dropped, also if it is stopped.
struct Rank {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Rank {
    fn start(libraries: &Path, arguments: &Arguments) -> Self {
        let mut command = Command::new(env::current_exe().unwrap());
        if Call::ALL[arguments.call] == Call::Synchronize {
            command.env("LD_LIBRARY_PATH", libraries).env_remove("LIBNCCL_PATH");
        }
        command.args(["--exact", "matrix::rank::rank_process", "--ignored", "--nocapture"]);
        command.env(VARIABLE, arguments.to_text());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Self { child, input, lines: lines(output) }
    }

    fn expect(&self, line: &str) -> Result<(), String> {
        // What the test program itself prints comes before.
        while self.next()? != line {}
        Ok(())
    }

    fn next(&self) -> Result<String, String> {
        self.lines.recv_timeout(LIMIT).map_err(|error| format!("a rank says nothing: {error}"))
    }

    fn go_on(&mut self) -> Result<(), String> {
        self.input.write_all(b"\n").map_err(|error| error.to_string())
    }
}

fn lines(output: ChildStdout) -> Receiver<String> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    receiver
}

/// Runs a cell, on the stand-in for CUDA in `libraries` if the call needs it; an error says what is not as it should be.
pub(crate) fn run(libraries: &Path, call: Call, fault: Fault) -> Result<Outcome, String> {
    let nccl = libnccl_cpu::nccl();
    let ids = [(); 3].map(|()| nccl.unique_id().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("id").to_str().unwrap().to_owned();
    let place = |index: Option<usize>| index.unwrap();
    let arguments = |rank| Arguments {
        rank,
        call: place(Call::ALL.iter().position(|other| *other == call)),
        fault: place(Fault::ALL.iter().position(|other| *other == fault)),
        ids,
        file: file.clone(),
    };
    let mut ranks: Vec<Rank> = (0..RANKS).map(|rank| Rank::start(libraries, &arguments(rank))).collect();
    for line in ["ready", "joined"] {
        ranks.iter().try_for_each(|rank| rank.expect(line))?;
        ranks.iter_mut().try_for_each(Rank::go_on)?;
    }
    let survivors = &mut ranks[..FAULTY];
    let lines: Vec<String> = survivors.iter().map(Rank::next).collect::<Result<_, _>>()?;
    let outcome = check(call, &lines).map_err(|problem| format!("{problem}: {lines:#?}"))?;
    survivors.iter_mut().try_for_each(Rank::go_on)?;
    for (rank, survivor) in survivors.iter().enumerate() {
        match survivor.next()?.as_str() {
            "works" => {}
            problem => return Err(format!("afterwards, rank {rank}: {problem}")),
        }
    }
    Ok(outcome)
}

/// Checks what the call came to on each rank; an error says what is not as it should be.
fn check(call: Call, lines: &[String]) -> Result<Outcome, String> {
    let mut outcomes = Vec::new();
    let mut is_blamed = false;
    for (rank, line) in lines.iter().enumerate() {
        let problem = |what: &str| Err(format!("rank {rank} {what}"));
        let parsed = line.split_once(' ').and_then(|(time, text)| Some((time.parse().ok()?, text)));
        let Some((elapsed, text)) = parsed else { return problem("says something else") };
        if Duration::from_millis(elapsed) > DEADLINE + GRACE {
            return problem("returned late");
        }
        if text == "succeeds" {
            if !call.may_succeed(rank) {
                return problem("has no error");
            }
            outcomes.push(Outcome::Succeeds);
            continue;
        }
        let plain = text.replace('_', "").to_lowercase();
        if !call.names().iter().any(|name| plain.contains(name)) {
            return problem("does not name the call");
        }
        is_blamed |= text.contains(&format!("rank {FAULTY}"));
        // The rank with the fault has the same deadline, and may reach it first.
        let is_timeout =
            text.contains("not done after") || Duration::from_millis(elapsed) >= DEADLINE * 9 / 10;
        outcomes.push(if is_timeout { Outcome::Timeout } else { Outcome::Error });
    }
    // One that is told of another's timeout knows no more than that.
    if !is_blamed && outcomes.iter().any(|outcome| *outcome != Outcome::Succeeds) {
        return Err(format!("no rank names rank {FAULTY}"));
    }
    let worst = |kind: Outcome| outcomes.contains(&kind).then_some(kind);
    Ok(worst(Outcome::Timeout).or(worst(Outcome::Error)).unwrap_or(Outcome::Succeeds))
}
