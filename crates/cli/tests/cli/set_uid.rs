//! `nccl` as a program with more rights than the user who starts it, whose environment it must not obey.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use rustix::process::geteuid;

use crate::common::{NCCL, read};

/// A user with no rights.
const NOBODY: u32 = 65534;

#[test]
fn set_uid_program_writes_no_file_that_a_variable_names() {
    if !geteuid().is_root() {
        println!("skipped: set_uid_program_writes_no_file_that_a_variable_names, which only root can try");
        return;
    }
    for (mode, is_obeyed) in [(0o755, true), (0o4755, false)] {
        let folder = tempfile::tempdir().unwrap();
        let [program, precious, open] = ["nccl", "precious", "open"].map(|name| folder.path().join(name));
        fs::copy(NCCL, &program).unwrap();
        fs::write(&precious, "precious").unwrap();
        fs::create_dir(&open).unwrap();
        for (path, mode) in [(folder.path(), 0o755), (&program, mode), (&open, 0o777)] {
            fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        }
        symlink(&precious, open.join("rank0.json")).unwrap();
        // One rank never comes, and the other one's timeout writes what it has recorded.
        let mut command = Command::new(&program);
        command.args("bench bisect --cpu --ranks 2 --deadline 1".split(' '));
        command.env("LIBNCCL_RECORDER", "10").env("LIBNCCL_RECORDER_FILE", open.join("rank"));
        command.env("LIBNCCL_CPU_PLANT", "slow:1:3600000000").uid(NOBODY).gid(NOBODY);
        command.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap();
        assert_eq!(read(&precious), "precious", "a file was written through a link");
        let written = open.join("rank0.json");
        let is_new = fs::symlink_metadata(&written).unwrap().is_file();
        assert_eq!(is_new, is_obeyed, "mode {mode:o}");
        if is_new {
            assert_eq!(fs::metadata(&written).unwrap().permissions().mode() & 0o777, 0o600);
        }
    }
}
