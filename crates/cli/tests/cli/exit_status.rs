//! The exit status of `nccl` without a reader. The snapshots have the others.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use crate::common::{ended, nccl};

/// The reader is closed before anything is printed, so that the progress of the program is not random; or after the first line, as
/// `head -1` does, while the ranks are running.
#[test]
fn closed_output_is_silent_and_141() {
    // More rows than fit into the pipe, or than are printed within the time.
    let many = "bench --cpu all_reduce --ranks 3 -i 8 -b 8 -e 1M";
    for (arguments, reads_a_line) in [
        (many, false),
        (many, true),
        (&format!("{many} --processes"), true),
        ("bench --cpu all_reduce --ranks 3 -d all -o all -b 8 -e 8 -n 1 --processes", false),
        ("doctor --json --library /nonexistent", false),
        ("doctor --library /nonexistent", false),
    ] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        let mut reader = Some(BufReader::new(reader)).filter(|_| reads_a_line);
        let mut command = nccl(arguments);
        let child = command.stdout(writer).stderr(Stdio::piped()).spawn().expect("the program starts");
        drop(command);
        if let Some(mut reader) = reader.take() {
            assert_ne!(reader.read_line(&mut String::new()).expect("a line"), 0);
        }
        let (_, stderr) = ended(child.wait_with_output().expect("it ends"), 141, arguments);
        assert_eq!(stderr, "", "{arguments}");
    }
}
