//! The processes of a case: this program, started again for one rank, or for all ranks as threads.

use std::env;
use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::{Completion, Failed};

use crate::implementation::Implementation;
use crate::rank::{self, Rank, SKIPPED};

/// The time that a case may take: a GPU compares every operation and element type in one.
const LIMIT: Duration = Duration::from_secs(90);
const LIMIT_ON_A_GPU: Duration = Duration::from_secs(240);

/// The argument that makes a process run ranks.
const RANK: &str = "--rank";

/// Runs a case, and returns its outcome: skipped if it is skipped on any rank and has failed on none.
pub(crate) fn run(implementation: Implementation, case: usize, ranks: usize) -> Result<Completion, Failed> {
    let directory = tempfile::tempdir()?;
    let path = directory.path();
    let processes = if implementation.has_process_per_rank() { ranks } else { 1 };
    let start = |process| start(implementation, case, ranks, process, path);
    let mut children = (0..processes).map(start).collect::<io::Result<Vec<Child>>>()?;
    let limit = if implementation == Implementation::Gpu { LIMIT_ON_A_GPU } else { LIMIT };
    let problems: Vec<String> = wait(&mut children, limit)?
        .into_iter()
        .enumerate()
        .filter_map(|(process, problem)| {
            let output = fs::read(path.join(format!("output{process}"))).unwrap_or_default();
            Some(format!("process {process}: {}\n{}", problem?, String::from_utf8_lossy(&output)))
        })
        .collect();
    if !problems.is_empty() {
        return Err(problems.join("\n").into());
    }
    match fs::read_to_string(path.join(SKIPPED)) {
        Ok(reason) => Ok(Completion::ignored_with(format!("skipped, {reason}"))),
        Err(_) => Ok(Completion::Completed),
    }
}

fn start(
    implementation: Implementation,
    case: usize,
    ranks: usize,
    process: usize,
    path: &Path,
) -> io::Result<Child> {
    let log = File::create(path.join(format!("output{process}")))?;
    let number =
        Implementation::ALL.iter().position(|known| *known == implementation).expect("it is one of them");
    let mut command = Command::new(env::current_exe()?);
    command.arg(RANK).args([number, case, ranks, process].map(|number| number.to_string())).arg(path);
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    implementation.prepare(&mut command, path, ranks);
    command.spawn()
}

/// Waits until all processes have ended: by themselves, because one failed, or at the time limit. Returns the problem, if any.
fn wait(children: &mut [Child], limit: Duration) -> io::Result<Vec<Option<String>>> {
    const GRACE: Duration = Duration::from_secs(5);
    let (mut deadline, mut killed) = (Instant::now() + limit, vec![false; children.len()]);
    loop {
        let ends = children.iter_mut().map(Child::try_wait).collect::<io::Result<Vec<_>>>()?;
        let now = Instant::now();
        if ends.iter().flatten().any(|status| !status.success()) {
            deadline = deadline.min(now + GRACE);
        }
        // A process that is stuck in the driver cannot be killed: it is left behind.
        if ends.iter().all(Option::is_some) || killed.contains(&true) && now > deadline {
            let problem = |(end, killed): (Option<std::process::ExitStatus>, bool)| match end {
                Some(status) if killed => Some(format!("{status}, because it or its peer took too long")),
                Some(status) if status.success() => None,
                Some(status) => Some(status.to_string()),
                None => Some("it does not end even when killed".to_owned()),
            };
            return Ok(ends.into_iter().zip(killed).map(problem).collect());
        }
        if now > deadline {
            deadline = now + GRACE;
            for ((child, end), killed) in children.iter_mut().zip(ends).zip(&mut killed) {
                *killed = end.is_none();
                // An error means that it has ended.
                let _ = child.kill();
            }
        }
        thread::sleep(Duration::from_millis(2));
    }
}

/// Runs the ranks of this process, if it has any. Returns `false` if it has none.
pub(crate) fn run_rank() -> bool {
    let mut arguments = env::args().skip(1);
    if arguments.next().is_none_or(|argument| argument != RANK) {
        return false;
    }
    let mut number =
        || -> usize { arguments.next().and_then(|number| number.parse().ok()).expect("a number") };
    let (implementation, case, ranks, process) =
        (Implementation::ALL[number()], number(), number(), number());
    let directory = Path::new(&arguments.next().expect("a directory")).to_owned();
    rank::exit_on_panic();
    let (nccl, run) = (implementation.load(), crate::all_cases().swap_remove(case).run);
    let own = if implementation.has_process_per_rank() { process..process + 1 } else { 0..ranks };
    thread::scope(|scope| {
        for number in own {
            let (nccl, directory) = (nccl.clone(), directory.clone());
            scope.spawn(move || run(&Rank::new(implementation, nccl, number, ranks, directory)));
        }
    });
    if implementation == Implementation::Gpu {
        // Work of an aborted communicator may never end, which blocks a normal exit.
        rank::exit(0);
    }
    true
}
