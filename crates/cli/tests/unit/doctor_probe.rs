use super::{Probe, socket_address};

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
