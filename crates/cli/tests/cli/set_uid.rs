//! `nccl` as a program with more rights than its user, whose environment it must ignore.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::{Signal, geteuid};

use crate::common::{LIMIT, NCCL, Process, lines, read, run, send, wait_until};

/// An unprivileged user.
const NOBODY: u32 = 65534;

/// Installs a copy of `nccl`. Another process writes it: a child that another test starts meanwhile would have a file of this one
/// open for writing, and such a file cannot be executed.
fn install(program: &Path, mode: u32) {
    run(Command::new("install").arg(format!("--mode={mode:o}")).args([Path::new(NCCL), program]), 0);
}

#[test]
fn set_gid_program_that_would_start_itself_is_refused() {
    if !geteuid().is_root() {
        return println!(
            "skipped: set_gid_program_that_would_start_itself_is_refused, which only root can try"
        );
    }
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("nccl");
    install(&program, 0o2755);
    fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).unwrap();
    let comparison = "bench compare --backend dlopen --backend cpu --rounds 1 -- all_reduce -e 64";
    for arguments in ["run -n 1 -- true", "bench all_reduce --cpu --processes", comparison] {
        // If it is not refused, each process starts another one. The limit counts the user's processes, and does not apply to root.
        let mut command = Command::new("prlimit");
        command.args(["--nproc=100", "--cpu=5", "--"]).arg(&program).args(arguments.split(' '));
        let output = command.uid(NOBODY).gid(NOBODY).output().unwrap();
        let printed = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && printed.contains(" has more rights than its user "),
            "{arguments}: {printed}"
        );
    }
}

#[test]
fn set_uid_program_writes_no_file_that_a_variable_names() {
    if !geteuid().is_root() {
        return println!(
            "skipped: set_uid_program_writes_no_file_that_a_variable_names, which only root can try"
        );
    }
    for (mode, is_obeyed) in [(0o755, true), (0o4755, false)] {
        let directory = tempfile::tempdir().unwrap();
        let [program, precious, open] = ["nccl", "precious", "open"].map(|name| directory.path().join(name));
        install(&program, mode);
        fs::write(&precious, "precious").unwrap();
        fs::create_dir(&open).unwrap();
        for (path, mode) in [(directory.path(), 0o755), (&open, 0o777)] {
            fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        }
        // The recording of the rank whose thread was first.
        let recordings = ["rank0.json", "rank1.json"].map(|name| open.join(name));
        recordings.iter().for_each(|recording| symlink(&precious, recording).unwrap());
        let written = || {
            let is_file = |path: &&PathBuf| fs::symlink_metadata(path).is_ok_and(|file| file.is_file());
            recordings.iter().find(is_file)
        };
        // A signal writes the ranks' recordings, or ends a program that does not handle it.
        let mut command = Command::new(&program);
        command.args("bench all_reduce --cpu --ranks 2 -b 8 -e 8 -n 10 -N 0".split(' '));
        command.env("LIBNCCL_RECORDER", "10").env("LIBNCCL_RECORDER_FILE", open.join("rank"));
        command.env("LIBNCCL_RECORDER_SIGNAL", "USR1").uid(NOBODY).gid(NOBODY).stdout(Stdio::piped());
        let mut child = Process(command.spawn().unwrap());
        let mut rows = lines(&mut child.0);
        assert!(rows.any(|row| row.trim_start().starts_with("8 ")), "nothing was measured");
        send(child.0.id(), Signal::USR1);
        if is_obeyed {
            assert!(wait_until(LIMIT, || written().is_some()), "no recording instead of a link");
            let mode = fs::metadata(written().unwrap()).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
        } else {
            assert_eq!(child.0.wait().unwrap().signal(), Some(Signal::USR1.as_raw()));
            assert_eq!(written(), None, "a recording was written");
        }
        assert_eq!(read(&precious), "precious", "a file was written through a link");
    }
}
