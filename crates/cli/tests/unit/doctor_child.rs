use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::{ChildReport, Probe, socket_address, wait};

fn report(script: &str, limit: u64) -> ChildReport {
    let mut shell = Command::new("sh");
    shell.args(["-c", script]).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    wait(shell.spawn().unwrap(), Duration::from_secs(limit))
}

const CALL: &str = r#"'{"probe":{"call":{"added":{},"parameters":{},"problem":"none"}}}'"#;

#[test]
fn child_that_hangs_or_dies_is_a_failure_with_a_reason() {
    let start = Instant::now();
    let late = Some("it took more than 1 s, and was killed");
    let hung = report(&format!("echo {CALL}; sleep 60 & sleep 60"), 1);
    assert!(hung.probe.failure.as_deref() == late && hung.probe.call.is_some());
    assert_eq!(report("exec >&- 2>&-; sleep 60", 1).probe.failure.as_deref(), late);
    // A process that the child leaves behind has no effect, inside or outside its group.
    let noise = "while sleep 0.01; do echo x >&2 || exit; done";
    for left in ["sleep 60".to_owned(), format!("({noise})"), format!("setsid sh -c '{noise}'")] {
        let left = report(&format!("{left} & echo {CALL}"), 50);
        assert!(left.probe.failure.is_none() && left.probe.call.is_some(), "{left:?}");
    }
    let killed = report(&format!("echo {CALL}; kill -9 $$"), 30);
    assert_eq!(killed.probe.failure.as_deref(), Some("the process ended with signal: 9 (SIGKILL)"));
    assert_eq!(killed.probe.call.unwrap().problem.as_deref(), Some("none"));
    let garbage = report("head -c 3000000 /dev/urandom; head -c 3000000 /dev/urandom >&2", 30);
    assert!(garbage.probe.call.is_none());
    assert!(start.elapsed() < Duration::from_secs(30));
}

#[test]
fn log_has_the_interface_warnings_and_settings() {
    let log = "vm:1:1 [0] NCCL INFO Bootstrap : Using eth0:fe80::1%eth0<0>\n\
               [2026-01-01] vm:1:1 [0] socket.cc:1 NCCL WARN no interface\n\
               vm:1:1 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to eth0\n\
               vm:1:1 [0] NCCL INFO NCCL_DEBUG_FILE set by environment to /dev/stderr\n\
               libnccl-cpu: LIBNCCL_CPU_TIMEOUT is \"x\", which is ignored\n\
               libnccl: invalid LIBNCCL_CPU_SEED \"x\"; it must be a number\n";
    let probe = Probe { log: log.lines().map(Into::into).collect(), ..Probe::default() };
    assert_eq!(probe.interface(), Some(("eth0", "fe80::1".parse().unwrap())));
    assert_eq!(probe.warnings(), ["no interface"]);
    assert_eq!(probe.set_by_environment(), ["NCCL_SOCKET_IFNAME set by environment to eth0"]);
    assert_eq!(probe.rejected_variables().len(), 2);
}

#[test]
fn address_is_found_with_and_without_a_number_before_it() {
    let mut v4 = vec![0; 128];
    v4[..8].copy_from_slice(&[2, 0, 0x12, 0x34, 10, 0, 0, 1]);
    let mut v6 = vec![0; 128];
    v6[..4].copy_from_slice(&[10, 0, 0x12, 0x34]);
    v6[8..10].copy_from_slice(&[0xfd, 0x77]);
    for (id, ip) in [(v4, "10.0.0.1"), (v6, "fd77::")] {
        let expected = Some((ip.parse().unwrap(), 0x1234));
        assert_eq!(socket_address(&id), expected);
        // A number that looks like a family.
        for number in [[2, 0, 1, 2, 3, 4, 5, 6], [10, 0, 1, 2, 3, 4, 5, 6]] {
            assert_eq!(socket_address(&[&number[..], &id[..120]].concat()), expected);
        }
    }
    assert_eq!(socket_address(&[0; 128]), None);
}
