//! `nccl bench`.

use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use libnccl::ReduceOp;
use rustix::process::Signal;

use crate::common::{LIMIT, NCCL, OPERATIONS, assert_has, bench, ended, lines, nccl, run, send};

/// Returns the rows of a run, which must succeed.
fn rows(arguments: &str) -> Vec<Vec<String>> {
    let (stdout, stderr) = run(&mut bench(arguments), 0);
    assert_has(&stdout, &["\n# Out of bounds values : 0 OK\n", "\n# Avg bus bandwidth    : "]);
    assert_eq!(stderr, "", "{arguments}");
    let rows = stdout.lines().filter(|line| !line.starts_with('#'));
    rows.map(|row| row.split_whitespace().map(ToOwned::to_owned).collect()).collect()
}

/// Returns the error message for a rejected command line.
fn usage_error(arguments: &str) -> String {
    run(&mut bench(arguments), 2).1.lines().next().unwrap_or_default().to_owned()
}

/// Runs an operation with three sizes, and expects that all elements are right.
fn check_operation(operation: &str, arguments: &str) {
    let rows = rows(&format!("{operation} -b 1K -e 96K -f 8 -n 2 -w 1 {arguments}"));
    assert_eq!(rows.len(), 3, "{operation} {arguments}");
    for row in rows {
        // A hypercube has no reduction.
        assert_eq!(row.len(), if operation == "hypercube" { 12 } else { 13 }, "{row:?}");
        assert_eq!(row[row.len() - 5], "0", "{row:?}");
        let in_place = if matches!(operation, "sendrecv" | "alltoall" | "alltoallv") { "N/A" } else { "0" };
        assert_eq!(row[row.len() - 1], in_place, "{row:?}");
    }
}

#[test]
fn bench_runs_every_operation_with_threads() {
    for operation in OPERATIONS {
        for ranks in if operation == "hypercube" { [1, 2, 4] } else { [1, 2, 3] } {
            check_operation(operation, &format!("--ranks {ranks}"));
        }
    }
}

/// The ranks of a job by hand, of which one is told to use another library.
#[test]
fn rank_without_its_library_ends_the_others_with_its_reason() {
    let arguments = ["all_reduce -b 8 -e 8 -n 1", "pairs --size 8"];
    for (failing, arguments) in [(0, arguments[0]), (2, arguments[0]), (1, arguments[1])] {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let started = Instant::now();
        let ranks = [0, 1, 2].map(|rank| {
            let mut command = if rank == failing {
                nccl(&format!("bench {arguments} --library /nowhere/libnccl.so.2"))
            } else {
                bench(arguments)
            };
            for (name, value) in
                [("RANK", rank), ("LOCAL_RANK", rank), ("WORLD_SIZE", 3), ("LOCAL_WORLD_SIZE", 3)]
            {
                command.env(name, value.to_string());
            }
            command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        });
        for (rank, child) in ranks.into_iter().enumerate() {
            let (_, stderr) =
                ended(child.wait_with_output().unwrap(), 1, &format!("rank {rank}: {arguments}"));
            let start =
                if rank == failing { "error: ".into() } else { format!("error: rank {failing} failed: ") };
            assert!(
                stderr.starts_with(&start) && stderr.contains("/nowhere/libnccl.so.2"),
                "{start}: {stderr}"
            );
        }
        assert!(started.elapsed() < LIMIT, "{:?}", started.elapsed());
    }
}

#[test]
fn bench_runs_every_operation_with_processes() {
    for operation in OPERATIONS {
        check_operation(operation, "--ranks 2 --processes");
    }
}

#[test]
fn bench_runs_every_operation_with_several_ranks_of_a_thread() {
    for operation in OPERATIONS.into_iter().filter(|operation| *operation != "hypercube") {
        check_operation(operation, "-t 2 -g 2");
        check_operation(operation, "-g 3 -d half");
    }
}

#[test]
fn bench_runs_every_operation_with_parts_of_buffers() {
    for operation in OPERATIONS {
        check_operation(operation, "--ranks 4 -u 3 -c 2 -z 1");
        if operation != "hypercube" {
            check_operation(operation, "--ranks 3 -m 3");
        }
    }
}

#[test]
fn bench_repeats_cycles_and_roots() {
    let roots = |arguments| rows(arguments).into_iter().map(|row| row[4].clone()).collect::<Vec<_>>();
    assert_eq!(roots("gather --ranks 3 -r -1 -b 1K -e 1K -N 2"), ["0", "0", "1", "1", "2", "2"]);
    assert_eq!(roots("sendrecv --ranks 3 -r all -b 1K -e 1K"), ["-1"]);
}

#[test]
fn bench_accepts_the_other_options_of_nccl_tests() {
    for arguments in
        ["-z 2", "-z 3", "-T 30", "-C 1", "-p 1", "-a 0", "-a 2", "-a 3", "-M 0", "-R 0", "-G 0", "-y 0"]
    {
        assert_eq!(rows(&format!("reduce -b 1K -e 1K {arguments}")).len(), 1, "{arguments}");
    }
    let row = &rows("reduce -b 1K -e 1K -I 1 -K 2 -S 1")[0];
    assert_eq!(row.len(), 13 + 8 + 2, "{row:?}");
}

const TYPES: [&str; 12] = [
    "int8", "uint8", "int32", "uint32", "int64", "uint64", "half", "float", "double", "bfloat16", "f8e4m3",
    "f8e5m2",
];

#[test]
fn bench_of_all_types_and_reductions_has_a_row_for_each() {
    let ops: Vec<_> = ReduceOp::ALL.iter().map(ToString::to_string).chain(["mulsum".to_owned()]).collect();
    for (ranks, size) in [(3, "5K"), (9, "2K")] {
        let arguments = format!("--ranks {ranks} -d all -o all -b {size} -e {size} -n 1 -w 0");
        let rows = rows(&format!("reduce_scatter {arguments}"));
        let found = rows.iter().map(|row| [&*row[2], &*row[3], &*row[4]]);
        let expected = TYPES.iter().flat_map(|data_type| ops.iter().map(|op| [*data_type, op, "-1"]));
        assert!(found.eq(expected), "{rows:?}");
    }
}

#[test]
fn bench_measures_the_sum_of_products_as_any_reduction() {
    for operation in ["all_reduce", "reduce -r 1", "reduce_scatter"] {
        for how in ["--ranks 3", "-t 2 -g 2 -m 2", "--ranks 2 --processes"] {
            let rows = rows(&format!("{operation} {how} -o mulsum -d half -b 4K -e 4K -n 2 -w 1"));
            assert_eq!((rows.len(), &*rows[0][3]), (1, "mulsum"), "{operation} {how}");
        }
    }
    // They reduce nothing, and nccl-tests names a reduction of the second.
    assert_eq!(rows("broadcast --ranks 2 -o mulsum -b 1K -e 1K")[0][3], "none");
    assert_eq!(rows("sendrecv --ranks 2 -o mulsum -b 1K -e 1K")[0][3], "mulsum");
}

#[test]
fn bench_runs_every_type_by_name() {
    for data_type in TYPES {
        let rows = rows(&format!("all_reduce --ranks 2 -d {data_type} -o avg -b 1K -e 1K -n 1 -w 0"));
        assert_eq!((rows.len(), &*rows[0][2], &*rows[0][3]), (1, data_type, "avg"));
    }
    assert_eq!(
        rows("all_gather --ranks 2 --processes -d all -o all -b 1K -e 1K -n 1 -w 0").len(),
        TYPES.len()
    );
}

#[test]
fn bench_accepts_any_rank_as_root() {
    for operation in ["broadcast", "reduce"] {
        for root in ["0", "2"] {
            assert_eq!(rows(&format!("{operation} --ranks 3 -r {root} -b 4K -e 4K"))[0][4], root);
        }
    }
}

#[test]
fn bench_reports_the_sizes_moved() {
    let sizes = |arguments| rows(arguments).into_iter().map(|row| (row[0].clone(), row[1].clone()));
    let expected = [("1000", "250"), ("2000", "500")].map(|(size, count)| (size.into(), count.into()));
    assert_eq!(sizes("all_reduce -b 1000 -e 2000 -i 1000").collect::<Vec<_>>(), expected);
    let expected = [("960", "80"), ("1968", "164")].map(|(size, count)| (size.into(), count.into()));
    assert_eq!(sizes("all_gather --ranks 3 -b 1000 -e 2000 -i 1000").collect::<Vec<_>>(), expected);
}

#[test]
fn bench_lists_the_ranks_with_their_processes() {
    let pids = |arguments| {
        let (stdout, _) = run(&mut bench(arguments), 0);
        let ranks = stdout.lines().filter(|line| line.starts_with("#  Rank "));
        ranks.filter_map(|line| line.split_whitespace().nth(6).map(ToOwned::to_owned)).collect::<Vec<_>>()
    };
    let threads = pids("all_reduce --ranks 3 -b 8 -e 8");
    assert_eq!(threads, [&*threads[0]; 3]);
    let processes = pids("all_reduce --ranks 2 -b 8 -e 8 --processes");
    assert_eq!(processes.len(), 2);
    assert_ne!(processes[0], processes[1]);
}

#[test]
fn bench_without_check_reports_na() {
    let (stdout, _) = run(&mut bench("all_reduce -b 1K -e 1K -c 0"), 0);
    assert_has(&stdout, &["    N/A\n# Out of bounds values : N/A\n"]);
    assert!(!stdout.contains("OK"), "{stdout}");
}

#[test]
fn bench_measures_operations_without_data() {
    for operation in OPERATIONS {
        for (arguments, expected) in
            [("-b 0 -e 0", &["0"][..]), ("-b 0 -e 32K -i 16K", &["0", "16384", "32768"])]
        {
            let rows = rows(&format!("{operation} --ranks 2 -n 2 -d int32 {arguments}"));
            // A part of alltoallv may be empty.
            let sizes: Vec<_> = rows.iter().map(|row| row[0].as_str()).collect();
            assert_eq!(sizes, expected, "{operation} {arguments}");
        }
    }
}

#[test]
fn bench_rejects_invalid_values() {
    for (arguments, problem) in [
        ("all_reduce --ranks 0", "'0' for '--ranks <N>': expected a whole number from 1 to 1024"),
        ("all_reduce --ranks -3", "'-3' for '--ranks <N>': expected a whole number from 1 to 1024"),
        ("all_reduce --ranks 2 -r 2", "--root 2 is not a rank: expected 0 to 1"),
        ("all_reduce -r -2", "'-2' for '--root <RANK>': expected a whole number from 0 to 1023, or all"),
        ("all_reduce -b 64 -e 8", "--minbytes 64 is above --maxbytes 8"),
        ("all_reduce -b -0", "expected a number of bytes, such as 8, 64K, 1.5M, 1GB, 1e6 or 0x1000"),
        ("all_reduce -e 1X", "'1X' for '--maxbytes <SIZE>': expected a number of bytes, such as 8,"),
        ("all_reduce -e 0", "--minbytes 8 is above --maxbytes 0"),
        ("all_reduce -f 0", "'0' for '--stepfactor <FACTOR>': expected a whole number from 2 to"),
        ("all_reduce -f 1", "'1' for '--stepfactor <FACTOR>': expected a whole number from 2 to"),
        ("all_reduce -i 0", "'0' for '--stepbytes <SIZE>': expected a number of bytes above 0"),
        ("all_reduce -f 2 -i 8", "'--stepfactor <FACTOR>' cannot be used with '--stepbytes <SIZE>'"),
        ("all_reduce -n 0", "'0' for '--iters <ITERS>': expected a whole number from 1 to"),
        ("all_reduce -c -1", "'-1' for '--check <CHECK>': expected a whole number from 0 to"),
        ("all_reduce -z 4", "invalid value '4' for '--blocking <0|1|2|3>'"),
        ("all_reduce -D 1", "it has no kernels of the device API"),
        ("all_reduce -V 16", "it has no kernels of the device API"),
        ("all_reduce -p 0", "threads initialize their ranks at the same time"),
        ("all_reduce -G 1", "--cudagraph needs GPUs: host memory has no CUDA graphs"),
        ("all_reduce -R 2", "--local_register needs GPUs: host memory is not registered"),
        ("all_reduce -y 1", "--stream_null needs GPUs: host memory has no streams"),
        ("all_reduce -M 1", "--memory needs GPUs: it is about their memory"),
        ("all_reduce -x 1", "--cta_policy needs GPUs: it is about their thread blocks"),
        ("all_reduce -K 1", "--per_iter_skip needs --per_iter_timing 1"),
        ("all_reduce -I 1 -n 3 -K 3", "--per_iter_skip leaves no iteration: expected less than --iters"),
        ("hypercube --ranks 3", "a hypercube has as many ranks as a power of two"),
        (
            "hypercube -g 2",
            "hypercube with --ngpus or --agg_iters above 1: its messages depend on each other",
        ),
        ("all_reduce --json --csv", "--json and --csv both go to stdout: expected a file for one of them"),
        ("all_reduce a.json", "expected one operation"),
        ("all_reduce --json all_gather", "expected one operation"),
        ("--json a.json", "the following required arguments were not provided"),
        (
            "all_reduce -t 64 -g 64",
            "--nthreads 64 and --ngpus 64 make 4096 ranks of a process: expected at most 1024",
        ),
        ("all_reduce --ranks 2 -g 2", "'--ranks <N>' cannot be used with '--ngpus <N>'"),
        ("all_reduce -d f99", "\"f99\" is not a data type of NCCL; expected int8"),
        ("all_reduce -o mean", "\"mean\" is not a reduction; expected sum, prod, max, min, avg, mulsum"),
        ("allreduce", "invalid value 'allreduce' for '<OPERATION>'"),
        ("all_reduce --library x", "'--library <PATH>'"),
    ] {
        let error = usage_error(arguments);
        assert!(error.starts_with("error: "), "{arguments}: {error}");
        assert!(error.contains(problem), "{arguments}: {error}");
    }
}

#[test]
fn unknown_option_names_the_nearest() {
    let (_, stderr) = run(&mut bench("all_reduce --warmup_itres 3"), 2);
    assert_has(&stderr, &["a similar argument exists: '--warmup_iters'"]);
}

/// Expects a single error, that of the rank, within seconds.
#[test]
fn failing_rank_ends_the_others() {
    for how in ["", "--processes"] {
        let start = Instant::now();
        let file = "--json=/nonexistent/a.json";
        let (_, stderr) = run(&mut bench(&format!("all_reduce --ranks 3 {file} {how}")), 1);
        assert!(stderr.starts_with("error: rank 0: cannot create "), "{stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
        assert!(start.elapsed() < Duration::from_secs(10));
    }
}

#[test]
fn sizes_that_do_not_fit_into_memory_are_skipped() {
    for how in ["", "--processes"] {
        let mut command =
            bench(&format!("all_reduce --ranks 3 -b 8 -e 8388608G -f 1099511627776 -n 1 {how}"));
        let (stdout, _) = run(&mut command, 0);
        let (head, rest) = stdout.split_once("\n#\n# Reducing maxBytes to ").expect("a line of nccl-tests");
        assert_has(head, &[" maxBytes 9007199254740992 ", "#  Rank  2 Group  0 Pid "]);
        let (_, rest) = rest.split_once(" due to memory limitation\n#\n").expect("a line of nccl-tests");
        assert_eq!(rest.lines().filter(|line| !line.starts_with('#')).count(), 1, "{stdout}");
        let (_, stderr) = run(&mut bench(&format!("all_reduce --ranks 3 -b 8388608G {how}")), 1);
        assert!(stderr.starts_with("error: rank 0: cannot allocate buffers for --minbytes "), "{stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
    }
    let (_, stderr) = run(&mut bench("pairs --ranks 3 -s 8388608G"), 1);
    assert_has(&stderr, &["error: rank 0: --size 9007199254740992 does not fit: each rank has "]);
}

#[test]
fn one_rank_has_no_bus_bandwidth_and_is_told_so() {
    for (operation, has_none) in [("all_reduce", true), ("broadcast", false)] {
        let (stdout, _) = run(&mut bench(&format!("{operation} --ranks 1 -b 1K -e 1K")), 0);
        assert_eq!(stdout.contains("\n# One rank has no bus bandwidth"), has_none, "{stdout}");
    }
}

#[test]
fn variables_of_nccl_tests_are_named() {
    let (_, stderr) = run(bench("all_reduce -b 8 -e 8").env("NCCL_TESTS_SPLIT", "MOD 2"), 0);
    assert_eq!(
        stderr,
        "warning: NCCL_TESTS_SPLIT is ignored: nccl bench does not read the variables of nccl-tests\n"
    );
}

/// Expects the supervisor to report a rank that is killed, and rank 0 to complete the table.
#[test]
fn killed_rank_ends_the_others() {
    let mut command = bench("all_reduce --ranks 3 --processes -n 1000000000");
    let mut parent =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts");
    // stdout stays open: otherwise the ranks would end with an error of their own.
    let mut lines = lines(&mut parent);
    let rank = lines.by_ref().map(|line| line.split_whitespace().map(ToOwned::to_owned).collect::<Vec<_>>());
    let rank = rank
        .filter(|words| words.get(1).is_some_and(|word| word == "Rank"))
        .nth(2)
        .expect("rank 2 is listed");
    send(rank[6].parse().expect("a process id"), Signal::KILL);
    let (_, stderr) = ended(parent.wait_with_output().expect("it ends"), 137, "the parent");
    let expected = format!(
        "nccl run: rank 2 (process {}) was ended by signal 9 (SIGKILL); ending the others\n",
        rank[6]
    );
    assert_has(&stderr, &[&expected]);
}

/// Returns the program with an empty environment, in which nothing names a library.
fn clean() -> Command {
    let mut command = nccl("");
    command.env_clear();
    command
}

#[test]
fn bench_without_nccl_reports_the_cpu_implementation() {
    if clean().arg("doctor").output().expect("the program starts").status.success() {
        // This system has an NCCL of its own.
        return;
    }
    let (stdout, _) = run(clean().args(["bench", "all_reduce", "-b", "8", "-e", "8"]), 0);
    assert_eq!(
        stdout.lines().next(),
        Some(
            "# no NCCL library found: running on the CPU backend (host memory); `nccl doctor` lists \
             the search"
        )
    );
}

/// The CPU backend must not be measured instead.
#[test]
fn bench_with_a_wrong_named_library_is_an_error() {
    for (file, problem) in [
        ("/nonexistent", "No such file or directory"),
        ("/", "is a directory; expected the library's file"),
        ("/dev/null", "is not a regular file"),
        (NCCL, "cannot dynamically load"),
    ] {
        for (source, command) in [
            ("LIBNCCL_PATH", clean().env("LIBNCCL_PATH", file).args(["bench", "all_reduce"])),
            ("given path", clean().args(["bench", "all_reduce", "--library", file])),
        ] {
            for processes in [false, true] {
                let (stdout, stderr) = run(command.args(processes.then_some("--processes")), 1);
                assert_eq!(stdout, "", "{stderr}");
                let expected = format!("error: no NCCL library could be loaded\n  {file} ({source}): ");
                assert!(stderr.starts_with(&expected), "{stderr}");
                assert_has(&stderr, &[problem]);
            }
        }
    }
}

#[test]
fn bench_with_cpu_ignores_a_wrong_named_library() {
    let mut command = clean();
    command.args(["bench", "--cpu", "all_reduce", "-b", "8", "-e", "8"]).env("LIBNCCL_PATH", "/nonexistent");
    run(&mut command, 0);
}
