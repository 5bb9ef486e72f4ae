//! The processes that `nccl bench` starts, which exit with their parent.

use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::common::{LIMIT, MARK, marked, nccl, send, wait_until};

/// The time limit for processes to exit after their parent.
const END_LIMIT: Duration = Duration::from_secs(2);

/// Kills runs that would take days with each signal, while they measure.
#[test]
fn killed_parent_leaves_no_rank_and_no_measurement() {
    let long = "all_reduce -n 1000000000 -b 8 -e 8 --ranks 3";
    for (arguments, rank) in [
        (format!("{long} --cpu --processes"), "-n 1000000000"),
        (format!("compare --backend cpu --backend cpu -- {long}"), "--json"),
        (format!("compare --backend cpu --backend cpu -- {long} --processes"), "--json"),
    ] {
        for signal in [Signal::KILL, Signal::TERM, Signal::HUP, Signal::INT] {
            let mark = format!("bench-{}-{}", std::process::id(), signal.as_raw());
            let mut command = nccl(&format!("bench {arguments}"));
            command.env(MARK, &mark).stdout(Stdio::null()).stderr(Stdio::null());
            let mut parent = command.spawn().expect("the program starts");
            let measures = |(pid, line): &(u32, String)| *pid != parent.id() && line.contains(rank);
            assert!(wait_until(LIMIT, || marked(&mark).iter().any(measures)), "{arguments}: none measures");
            send(parent.id(), signal);
            assert!(!parent.wait().expect("it ends").success(), "{arguments}, {signal:?}");
            let is_over = wait_until(END_LIMIT, || marked(&mark).is_empty());
            let left = marked(&mark);
            for (pid, _) in &left {
                let _ = kill_process(Pid::from_raw(*pid as i32).expect("not 0"), Signal::KILL);
            }
            assert!(is_over, "{arguments}, {signal:?}: the processes {left:?} are left");
        }
    }
}
