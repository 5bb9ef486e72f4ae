use std::fs;

use super::{COPIES, COPY, Description, RECORD, available_bytes, decode, encode, free_host_bytes};
use crate::bench::output::report::Rank;
use crate::system::System;

#[test]
fn damaged_copy_is_replaced_by_another() {
    let whole = encode(&vec![7; 20]).unwrap();
    for position in 0..RECORD {
        let mut bytes = whole.clone();
        bytes[position] ^= 0x55;
        assert_eq!(decode::<Vec<i32>>(&bytes).unwrap(), [7; 20], "{position}");
    }
}

#[test]
fn record_with_all_copies_damaged_or_that_is_too_long_is_an_error() {
    let mut bytes = encode(&7).unwrap();
    for copy in 0..COPIES {
        bytes[copy * COPY + 10] ^= 1;
    }
    assert_eq!(decode::<i32>(&bytes).unwrap_err().to_string(), "its record arrived damaged");
    assert!(decode::<i32>(&[0; RECORD]).is_err());
    let error = encode(&"x".repeat(COPY)).unwrap_err().to_string();
    assert_eq!(error, "a record of 1026 bytes is longer than 1014");
}

#[test]
fn share_is_the_least_of_hosts_and_devices() {
    let rank = |host: &str, device: Option<&str>, host_bytes, device_bytes| Description {
        rank: Rank { rank: 0, host: host.into(), pid: 1, device: device.map(Into::into) },
        device: 0,
        host_bytes,
        device_bytes,
    };
    let on_host = rank("a", None, Some(1600), 0);
    assert_eq!(available_bytes(&[on_host.clone(), on_host.clone(), rank("b", None, Some(1600), 0)]), 600);
    let on_device = rank("a", Some("0"), None, 160);
    assert_eq!(available_bytes(&[on_device.clone(), rank("a", Some("1"), None, 320)]), 150);
    assert_eq!(available_bytes(&[on_device.clone(), on_device]), 75);
    // An emulated device.
    assert_eq!(
        available_bytes(&[rank("a", Some("0"), Some(160), 1600), rank("a", Some("1"), Some(160), 1600)]),
        60
    );
}

#[test]
fn control_groups_limit_the_memory_of_the_host() {
    let directory = tempfile::tempdir().unwrap();
    let write = |path: &str, text: &str| {
        let path = directory.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    let free = || free_host_bytes(&System::at(directory.path(), &[]));
    write("proc/meminfo", "MemTotal: 9 kB\nMemAvailable: 4 kB\n");
    assert_eq!(free(), Some(4096));
    write("proc/self/cgroup", "0::/job/step\n");
    for (group, limit, used) in [("job", "3000", "2500"), ("job/step", "max", "2000")] {
        write(&format!("sys/fs/cgroup/{group}/memory.max"), limit);
        write(&format!("sys/fs/cgroup/{group}/memory.current"), used);
        write(&format!("sys/fs/cgroup/{group}/memory.stat"), "anon 5\ninactive_file 100\n");
    }
    assert_eq!(free(), Some(600));
}
