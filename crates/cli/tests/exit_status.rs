//! The exit status of `nccl`, as its help documents it.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

fn nccl(arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nccl"));
    command.args(arguments.split_whitespace()).env_remove("LIBNCCL_PATH");
    command
}

fn output(command: &mut Command) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = command.output().expect("the program starts");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    (status.code(), text(stdout), text(stderr))
}

#[test]
fn help_documents_the_exit_status() {
    for arguments in ["--help", "bench --help", "bench -h", "doctor --help"] {
        let (status, stdout, _) = output(&mut nccl(arguments));
        assert_eq!(status, Some(0), "{arguments}");
        let (_, exit_status) = stdout.split_once("\nExit status:\n").expect(arguments);
        let statuses = exit_status.lines().map(|line| line.split_whitespace().next().expect("a status"));
        let expected: &[_] = match arguments.starts_with("bench") {
            true => &["0", "1", "2", "130", "141"],
            false => &["0", "1", "2", "141"],
        };
        assert_eq!(statuses.collect::<Vec<_>>(), expected, "{arguments}: {exit_status}");
    }
}

#[test]
fn success_is_0_failure_is_1_and_invalid_command_line_is_2() {
    for (arguments, expected) in [
        ("--version", 0),
        ("bench --cpu all_reduce -b 8 -e 8", 0),
        ("bench --cpu all_reduce -b 8 -e 8 --processes", 0),
        ("bench --library /nonexistent all_reduce", 1),
        ("bench --cpu all_reduce -e 8388608G", 1),
        ("bench --cpu all_reduce -e 8388608G --processes", 1),
        ("doctor --library /nonexistent", 1),
        ("doctor --json --library /nonexistent", 1),
        ("", 2),
        ("benchmark", 2),
        ("bench", 2),
        ("bench --cpu all_reduce --ranks 0", 2),
        ("bench --cpu all_reduce --ranks 2 --root 2", 2),
        ("doctor --jso", 2),
    ] {
        let (status, stdout, stderr) = output(&mut nccl(arguments));
        assert_eq!(status, Some(expected), "{arguments}\n{stdout}{stderr}");
    }
}

/// Builds a library that adds wrongly: the CPU implementation, but a sum is a maximum.
fn wrong_library(folder: &Path) -> PathBuf {
    // Cargo builds no cdylib for tests. Those of crates/cpu-so use the same folder.
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cpu-so");
    let mut command = Command::new(env!("CARGO"));
    command.args(["build", "--quiet", "--package", "libnccl-cpu-so", "--target-dir"]).arg(&target);
    assert!(command.status().expect("cargo runs").success());
    let right = folder.join("libnccl.so.2");
    fs::copy(target.join("debug/libnccl_cpu.so"), &right).expect("the shared object can be copied");
    let source = folder.join("wrong.c");
    let text = "#include <nccl.h>
        ncclResult_t ncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                                   ncclComm_t comm, cudaStream_t stream) {
            return pncclAllReduce(send, recv, count, type, op == ncclSum ? ncclMax : op, comm, stream);
        }";
    fs::write(&source, text).expect("a file in the temporary folder");
    let headers = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../vendor-headers");
    let library = folder.join("libwrong.so");
    let mut command = Command::new("cc");
    command.args(["-shared", "-fPIC", "-Wall", "-Werror", "-o"]).arg(&library).args([&source, &right]);
    command.arg("-I").arg(&headers).arg("-I").arg(headers.join("stubs/cuda"));
    command.arg(format!("-Wl,-rpath,{}", folder.display()));
    assert!(command.status().expect("cc runs").success());
    library
}

#[test]
fn wrong_results_are_1() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let library = wrong_library(folder.path());
    for how in ["", "--processes"] {
        let run = |op| {
            let arguments = format!("bench all_reduce --ranks 2 -b 64 -e 64 -o {op} {how} --library");
            output(nccl(&arguments).arg(&library))
        };
        let (status, stdout, stderr) = run("prod");
        assert_eq!(status, Some(0), "{how}: {stdout}{stderr}");
        let (status, stdout, stderr) = run("sum");
        assert_eq!(status, Some(1), "{how}: {stdout}{stderr}");
        assert!(
            stdout.contains(" FAILED\n") && stderr.ends_with(" elements are wrong\n"),
            "{stdout}{stderr}"
        );
    }
}

/// Reads one line, as `head -1` does, and closes the pipe.
#[test]
fn closed_output_is_silent_and_141() {
    for arguments in [
        "bench --cpu all_reduce --ranks 3 -n 2",
        "bench --cpu all_reduce --ranks 3 -n 2 --processes",
        "bench --cpu all_reduce --ranks 3 -d all -o all -b 8 -e 8 -n 1 --processes",
        "doctor --json --library /nonexistent",
        "doctor --library /nonexistent",
    ] {
        let start = Instant::now();
        let mut command = nccl(arguments);
        let (reader, writer) = std::io::pipe().expect("a pipe");
        // The reader is closed before anything is printed: how far the program gets before is not for chance to say.
        drop(reader);
        let mut child = command.stdout(writer).stderr(Stdio::piped()).spawn().expect("the program starts");
        let stderr = std::io::read_to_string(child.stderr.take().expect("it is piped")).expect("text");
        assert_eq!(stderr, "", "{arguments}");
        assert_eq!(child.wait().expect("it ends").code(), Some(141), "{arguments}");
        assert!(start.elapsed() < Duration::from_secs(20), "{arguments}");
    }
}

/// Closes the pipe after the first line, while the ranks are at work.
#[test]
fn output_closed_after_the_first_line_is_silent_and_141() {
    for how in ["", "--processes"] {
        // More rows than the pipe holds, or than are printed in the time.
        let mut command = nccl(&format!("bench --cpu all_reduce --ranks 3 -i 8 -b 8 -e 1M {how}"));
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("it is piped")).read_line(&mut line).expect("text");
        assert!(line.starts_with("# nccl "), "{line}");
        let stderr = std::io::read_to_string(child.stderr.take().expect("it is piped")).expect("text");
        assert_eq!(stderr, "", "{how}");
        assert_eq!(child.wait().expect("it ends").code(), Some(141), "{how}");
    }
}

#[test]
fn head_of_the_output_is_one_line() {
    let program = env!("CARGO_BIN_EXE_nccl");
    for how in ["", "--processes"] {
        let script = format!("'{program}' bench --cpu all_reduce --ranks 2 -i 8 -b 8 -e 1M {how} | head -1");
        let (status, stdout, stderr) = output(Command::new("sh").args(["-c", &script]));
        assert_eq!((status, &*stderr, stdout.lines().count()), (Some(0), "", 1), "{how}: {stdout}");
    }
}

/// Any other failure to print is reported.
#[test]
fn full_output_is_1_with_the_reason() {
    for how in ["", "--processes"] {
        let full = File::options().write(true).open("/dev/full").expect("/dev/full");
        let mut command = nccl(&format!("bench --cpu all_reduce --ranks 2 {how}"));
        let (status, _, stderr) = output(command.stdout(full));
        assert_eq!((status, &*stderr), (Some(1), "error: rank 0: No space left on device (os error 28)\n"));
    }
}
