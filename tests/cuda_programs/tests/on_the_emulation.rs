//! The programs on the CUDA emulation and the CPU backend of NCCL, which are found as a user installs them: in a
//! directory on the dynamic linker's path.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use libnccl_test_support::{install, time_limit};

/// The directory of the libraries, named by `LIBNCCL_TEST_LIBRARIES`. Without it, they are built first.
static LIBRARIES: LazyLock<PathBuf> = LazyLock::new(|| {
    if let Some(directory) = std::env::var_os("LIBNCCL_TEST_LIBRARIES") {
        return directory.into();
    }
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("on_the_emulation");
    install(&directory);
    directory
});

/// Runs a program with or without a seed. It must print `ok` and succeed within the limit. Returns its reports.
fn run(arguments: &[&str], seed: Option<u32>) -> String {
    run_with(arguments, seed.map(|seed| ("LIBNCCL_CPU_SEED", seed.to_string())))
}

fn run_with(arguments: &[&str], variable: Option<(&str, String)>) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_libnccl-cuda-programs"));
    command.args(arguments).env("LD_LIBRARY_PATH", &*LIBRARIES).env("LIBNCCL_CPU_WARN_AFTER", "0");
    command.envs(variable);
    let (output, errors) = time_limit::run(&mut command);
    assert_eq!(output, "ok\n", "{errors}");
    errors
}

fn asynchronous(name: &str) -> String {
    run(&["asynchronous", name], None)
}

#[test]
fn blocking_launches_have_the_right_values() {
    for program in [&["random", "0", "20"][..], &["asynchronous", "graph_of_all_devices"]] {
        let blocking = Some(("CUDA_LAUNCH_BLOCKING", "1".to_owned()));
        assert_eq!(run_with(program, blocking), "", "{program:?}");
    }
}

#[test]
fn collectives_of_listed_devices_have_the_right_values() {
    let list = Some(("CUDA_VISIBLE_DEVICES", "6,1,3,-1,0".to_owned()));
    assert_eq!(run_with(&["random", "0", "20"], list), "");
}

#[test]
fn communicator_destroyed_before_its_graph_is_reported() {
    let said = asynchronous("communicator_that_ends_before_its_graph");
    let expected = "a graph was launched after the communicator of its operations was destroyed";
    assert_eq!(said.lines().filter(|line| line.contains(expected)).count(), 2, "once for each rank: {said}");
}

/// Runs a program that lacks a synchronization with the last of a number of operations in a row, and checks that exactly the
/// races of the expected functions are reported.
fn check_race(name: &str, count: usize, seed: Option<u32>, [first, second]: [&str; 2]) {
    let report = run(&["races", name, &count.to_string()], seed);
    let mut lines: Vec<&str> = report.lines().collect();
    // The earlier operations use the same memory, and are in the same race.
    let are_counted = lines.pop_if(|line| line.contains(", as reported above [")).is_some();
    let is = |line: &str, function: &str| {
        let (label, access) = function.split_once(": ").expect("an access");
        line.contains(&format!(", {label}")) && line.contains(&format!("{access} bytes 0 to {}", 4 << 16))
    };
    let is_expected = matches!(lines[..], [memory, one, other]
        if memory.starts_with("libnccl: race in allocation") && is(one, first) && is(other, second));
    assert!(
        is_expected && (count > 1 || !are_counted),
        "{name}, {count} in a row, seed {seed:?}: not {first}, {second} but\n{report}"
    );
}

/// Operations of rank 0, with their access.
const REDUCE_WRITES: &str = "ncclAllReduce(count 65536, ncclFloat32, ncclSum), rank 0 of 2, call: writes";
const REDUCE_READS: &str = "ncclAllReduce(count 65536, ncclFloat32, ncclSum), rank 0 of 2, call: reads";
const SEND: &str = "ncclSend(count 65536, ncclFloat32, peer 1), rank 0 of 2, call: reads";
const PUT_READS: &str = "ncclPutSignal(262144 bytes, peer 1), rank 0 of 2, call: reads";
const PUT_WRITES: &str = "ncclPutSignal(262144 bytes, peer 1), rank 0 of 2, call: writes";
const REPLAYED_REDUCE_READS: &str =
    "ncclAllReduce(count 65536, ncclFloat32, ncclSum), rank 0 of 2, in a graph: reads";

/// Defines a test for each program that lacks a synchronization, which is reported under any schedule.
macro_rules! races {
    ($($test:ident: $first:expr, $second:expr;)*) => {$(
        #[test]
        fn $test() {
            let name = stringify!($test).strip_suffix("_is_reported").expect("a name");
            // Many are enough to flood a terminal, if each were reported.
            for (count, seeds) in [(1, 0..4), (400, 0..1), (2, 1..3), (4, 1..3)] {
                for seed in seeds {
                    check_race(name, count, (seed > 0).then_some(seed), [$first, $second]);
                }
            }
        }
    )*};
}

races! {
    copy_back_before_a_collective_is_done_is_reported: REDUCE_WRITES, "cuMemcpyDtoH_v2: reads";
    free_under_a_collective_is_reported: REDUCE_WRITES, "cuMemFreeAsync: writes";
    send_buffer_of_a_collective_refilled_is_reported: REDUCE_READS, "cuMemcpyDtoDAsync_v2: writes";
    send_buffer_of_a_message_refilled_is_reported: SEND, "cuMemcpyDtoDAsync_v2: writes";
    window_read_under_a_collective_is_reported: REDUCE_WRITES, "cuMemcpyDtoDAsync_v2: reads";
    window_written_under_a_put_is_reported: PUT_READS, "cuMemcpyDtoDAsync_v2: writes";
    window_read_under_a_put_of_another_rank_is_reported: PUT_WRITES, "cuMemcpyDtoDAsync_v2: reads";
    buffer_of_a_graph_refilled_during_its_replay_is_reported: REPLAYED_REDUCE_READS, "cuMemcpyDtoDAsync_v2: writes";
}

/// The random programs under each seed, unless the variable sets another number.
const PROGRAMS: u64 = 20;

#[test]
fn random_programs_with_collectives_match_sequential_execution() {
    let programs = std::env::var("LIBNCCL_TEST_CUDA_PROGRAMS").ok().and_then(|text| text.parse().ok());
    let programs = programs.unwrap_or(PROGRAMS);
    for seed in [None, Some(1), Some(2), Some(3)] {
        let first = programs * u64::from(seed.unwrap_or(0));
        let [first, count] = [first, programs].map(|number| number.to_string());
        assert_eq!(run(&["random", &first, &count], seed), "", "seed {seed:?}, from program {first} on");
    }
}

#[test]
fn programs_that_need_asynchrony_complete_without_a_report() {
    for name in [
        "opposite_directions_on_two_streams",
        "two_streams_of_one_communicator",
        "group_on_two_streams",
        "graph_of_all_devices",
        "graphs_on_two_streams_between_other_calls",
        "group_that_is_captured_in_part",
    ] {
        assert_eq!(asynchronous(name), "", "{name}");
    }
}

/// Runs a program in which operations fail or are discarded, with a variable. Checks that each text is in a line, and that there are
/// no others.
fn check_reports(program: [&str; 2], variable: Option<(&str, &str)>, texts: &[&str]) {
    let said = run_with(&program, variable.map(|(name, value)| (name, value.to_owned())));
    let mut lines: Vec<&str> = said.lines().collect();
    for text in texts {
        let line = lines.iter().position(|line| line.contains(text));
        lines.remove(line.unwrap_or_else(|| panic!("{text:?} is missing in {said}")));
    }
    assert!(lines.is_empty(), "{said}");
}

const MISMATCH: &str =
    "an operation on a stream failed: the ranks called ncclAllReduce with different counts: ";
const PENDING: &str = "an operation failed: rank 1 aborted the communicator; rank 0 of 2 was in call 1, ncclAllReduce(count \
                       1000, ncclFloat32, ncclSum); it stays pending until this rank aborts or destroys the communicator, as \
                       LIBNCCL_CPU_FAILURES is wait";
const PENDING_MISMATCH: &str = "an operation failed: the ranks called ncclAllReduce with different counts: ";
const DISCARDS: &str = "ncclCommAbort discards what was enqueued on streams and has not run: ncclAllReduce(count 1000, \
                        ncclFloat32, ncclSum), rank 1 of 2, call 1, 8000 bytes read and written, and 1 more; comm 0x";

/// Defines a test for each program in which CUDA must report a failure.
macro_rules! failures {
    ($($test:ident: $name:literal, $variable:expr, $texts:expr;)*) => {$(
        #[test]
        fn $test() {
            check_reports(["failures", $name], $variable, &$texts);
        }
    )*};
}

failures! {
    mismatch_is_a_cuda_error_until_the_abort: "mismatch", None, [MISMATCH; 2];
    abort_of_a_peer_is_a_cuda_error_until_this_rank_aborts:
        "abort_of_a_peer", None, ["an operation on a stream failed: rank 1 aborted the communicator", DISCARDS];
    cuda_error_outlives_the_destroyed_communicator:
        "peer_that_leaves", None, ["an operation on a stream failed: rank 1 has finalized or destroyed"];
    cuda_error_persists_until_each_failed_communicator_is_aborted: "two_communicators", None, [MISMATCH; 4];
    failure_is_no_cuda_error_if_only_reported:
        "reported_alone", Some(("LIBNCCL_CPU_FAILURES", "report")), [MISMATCH; 2];
    peer_failure_is_pending_until_this_rank_aborts_if_failures_wait:
        "pending_until_this_rank_aborts", Some(("LIBNCCL_CPU_FAILURES", "wait")), [PENDING];
    mismatch_is_pending_until_teardown_if_failures_wait:
        "pending_until_teardown", Some(("LIBNCCL_CPU_FAILURES", "wait")), [PENDING_MISMATCH; 2];
}
