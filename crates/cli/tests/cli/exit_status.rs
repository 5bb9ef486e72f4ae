//! The exit status of `nccl`, as its help documents it.

use std::fs::File;
use std::process::Stdio;

use crate::common::{assert_has, bench, changed_library, ended, lines, nccl, run};
use crate::snapshot::Session;

#[test]
fn help_of_bench_documents_the_exit_status() {
    let mut session = Session::new();
    for arguments in ["bench --help", "bench -h"] {
        let (stdout, _) = run(&mut nccl(arguments), 0);
        let (_, exit_status) = stdout.split_once("\nExit status:\n").expect(arguments);
        session.add(&format!("# nccl {arguments}"), exit_status);
    }
    session.check("exit_status");
    // Without a command, it prints its help.
    run(&mut nccl(""), 2);
}

#[test]
fn wrong_results_are_1() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    // The library computes the maximum instead of the sum.
    let library = changed_library(
        directory.path(),
        "ncclResult_t ncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                                   ncclComm_t comm, cudaStream_t stream) {
            return pncclAllReduce(send, recv, count, type, op == ncclSum ? ncclMax : op, comm, stream);
        }",
    );
    for how in ["", "--processes"] {
        let arguments = format!("bench all_reduce --ranks 2 -b 64 -e 64 {how} --library");
        run(nccl(&arguments).arg(&library).args(["-o", "prod"]), 0);
        let (stdout, stderr) = run(nccl(&arguments).arg(&library).args(["-o", "sum"]), 1);
        assert_has(&stdout, &[" FAILED\n"]);
        assert!(stderr.ends_with(" elements are wrong\n"), "{stderr}");
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
        let mut command = nccl(arguments);
        let (reader, writer) = std::io::pipe().expect("a pipe");
        // The reader is closed before anything is printed, so that the progress of the program is not random.
        drop(reader);
        let child = command.stdout(writer).stderr(Stdio::piped()).spawn().expect("the program starts");
        let (_, stderr) = ended(child.wait_with_output().expect("it ends"), 141, arguments);
        assert_eq!(stderr, "", "{arguments}");
    }
}

/// Closes the pipe after the first line, while the ranks are running.
#[test]
fn output_closed_after_the_first_line_is_silent_and_141() {
    for how in ["", "--processes"] {
        // More rows than fit into the pipe, or than are printed within the time.
        let mut command = bench(&format!("all_reduce --ranks 3 -i 8 -b 8 -e 1M {how}"));
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts");
        let line = lines(&mut child).next().expect("a line");
        assert!(line.starts_with("# nccl "), "{line}");
        let (_, stderr) = ended(child.wait_with_output().expect("it ends"), 141, how);
        assert_eq!(stderr, "", "{how}");
    }
}

/// Any other failure to print is reported.
#[test]
fn full_output_is_1_with_the_reason() {
    for how in ["", "--processes"] {
        let full = File::options().write(true).open("/dev/full").expect("/dev/full");
        let (_, stderr) = run(bench(&format!("all_reduce --ranks 2 {how}")).stdout(full), 1);
        assert_eq!(stderr, "error: rank 0: No space left on device (os error 28)\n");
    }
}
