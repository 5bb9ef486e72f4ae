//! Findings: their names, and that each is reported once per call site.
//!
//! The environment is read once per process, so each program runs in separate processes.

#![allow(unsafe_code)] // _exit

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::ptr;

use crate::common::processes::{self, RankProcess};
use crate::common::{
    ARGUMENT, Comm, F32, Memory, OK, SUM, assert_sum, grow, init_with, on_threads, send, shrink, split,
    unique_id,
};
use libnccl::sys::{ncclResult_t, ncclScalarResidence_t};
use serde_json::Value;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/what-it-finds.md");

rank_tasks!(
    messages,
    leaks,
    leaks_of_child,
    fail,
    pass_undocumented_arguments,
    free,
    shrink_with_different_flags,
    grow_by_one
);

#[track_caller]
fn run(task: &str, variables: &[(&str, &str)]) -> Vec<String> {
    processes::run(task, [[0], [1]], variables)
}

const STRICT: (&str, &str) = ("LIBNCCL_CPU_STRICT", "1");
const IGNORE: &str = "LIBNCCL_CPU_IGNORE";

fn messages(process: &RankProcess) {
    let parent = process.join();
    for count in 1..=3 {
        let child = split(parent.0, 0, 0).unwrap();
        if process.rank() == 0 {
            assert_eq!(send(&[0_f32; 4][..count], 1, child.0), OK);
        }
        assert_sum(child.0, 2);
        child.destroy();
    }
    parent.destroy();
}

#[test]
fn finding_is_reported_once_per_call_site_unless_ignored() {
    for (variables, is_reported) in [
        (&[][..], true),
        (&[(IGNORE, "late-rank, race")], true),
        (&[(IGNORE, "unreceived-message")], false),
        (&[(IGNORE, "race,unreceived-message")], false),
    ] {
        let printed = run("messages", variables).concat();
        let lines: Vec<_> = printed.lines().filter(|line| line.ends_with(" [unreceived-message]")).collect();
        if !is_reported {
            assert!(!printed.contains("libnccl-cpu"), "{variables:?}: {printed}");
            continue;
        }
        // The ranks are destroyed at about the same time, so either or both find an unreceived send.
        let (more, first): (Vec<&str>, Vec<&str>) =
            lines.into_iter().partition(|line| line.contains(" more like this: in "));
        let more = more.iter().map(|line| line.split(' ').nth(1).unwrap().parse::<usize>().unwrap());
        assert!((1..=2).contains(&first.len()), "{variables:?}: {printed}");
        assert!((3..=6).contains(&(first.len() + more.sum::<usize>())), "{variables:?}: {printed}");
    }
}

#[test]
fn unknown_finding_name_error_lists_the_documented_names() {
    let printed = run("messages", &[(IGNORE, "race,races")]).concat();
    let refusal = "LIBNCCL_CPU_IGNORE is \"race,races\", which is ignored; expected names of findings, separated by commas: ";
    let names = printed.lines().find_map(|line| Some(line.split_once(refusal)?.1));
    let names: Vec<_> = names.unwrap_or_else(|| panic!("{printed}")).split(", ").collect();
    let page = std::fs::read_to_string(PAGE).unwrap();
    let (_, table) = page.split_once("| finding | what | reported by |").expect("the table");
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    let explained: Vec<_> = rows.map(|row| row.split('`').nth(1).expect("a name")).collect();
    assert_eq!(names, explained);
    assert!(printed.contains("[unreceived-message]"), "{printed}");
}

/// Creates one or two objects of each kind that a communicator owns. Odd ranks destroy them again.
fn make(comm: Comm, rank: usize) {
    let mut memory = ptr::null_mut();
    assert_eq!(nccl!(ncclMemAlloc(&mut memory, 4096)), OK);
    let (mut window, mut handles, mut reduction) = (ptr::null_mut(), [ptr::null_mut(); 2], SUM);
    assert_eq!(nccl!(ncclCommWindowRegister(comm.0, memory, 4096, &mut window, 0)), OK);
    for handle in &mut handles {
        assert_eq!(nccl!(ncclCommRegister(comm.0, memory, 4096, handle)), OK);
    }
    let scalar = (&raw const SCALAR).cast_mut().cast();
    let residence = ncclScalarResidence_t::ncclScalarHostImmediate;
    assert_eq!(nccl!(ncclRedOpCreatePreMulSum(&mut reduction, scalar, F32, residence, comm.0)), OK);
    if rank % 2 == 1 {
        assert_eq!(nccl!(ncclRedOpDestroy(reduction, comm.0)), OK);
        handles.into_iter().for_each(|handle| assert_eq!(nccl!(ncclCommDeregister(comm.0, handle)), OK));
        assert_eq!(nccl!(ncclCommWindowDeregister(comm.0, window)), OK);
        assert_eq!(nccl!(ncclMemFree(memory)), OK);
    }
}

static SCALAR: f32 = 2.0;

fn leaks(process: &RankProcess) {
    let comm = process.join();
    make(comm, process.rank());
    if process.rank() == 1 {
        comm.destroy();
    }
}

/// Destroys communicators, but not the objects that rank 0 created from one of them.
fn leaks_of_child(process: &RankProcess) {
    let parent = process.join();
    let child = split(parent.0, 0, 0).unwrap();
    make(child, process.rank());
    child.destroy();
    parent.destroy();
}

#[test]
fn leaked_objects_are_listed_in_strict_mode() {
    let all = [
        "1 window was not deregistered before END; comm 0x [leaked-window]",
        "2 registered buffers were not deregistered before END; comm 0x [leaked-registration]",
        "1 custom reduction was not destroyed before END; comm 0x [leaked-reduction]",
        "4096 bytes from ncclMemAlloc were not freed before the process exits [leaked-memory]",
    ];
    let communicator = "comm 0x was not destroyed before the process exits [leaked-communicator]";
    let without_windows = [communicator, all[1], all[2], all[3]];
    let with_communicator = [&[communicator][..], &all].concat();
    for (task, variables, end, expected) in [
        ("leaks", &[][..], "", &[][..]),
        ("leaks", &[STRICT], "the process exits", &with_communicator),
        ("leaks", &[STRICT, (IGNORE, "leaked-window")], "the process exits", &without_windows),
        ("leaks_of_child", &[STRICT], "its communicator was destroyed", &all),
    ] {
        let [leaves, destroys] = &run(task, variables)[..] else { panic!() };
        let lines: Vec<String> = leaves.lines().filter_map(line_of_leak).collect();
        let expected: Vec<String> = expected.iter().map(|line| line.replace("END", end)).collect();
        assert_eq!(lines, expected, "{task} {variables:?}: {leaves}");
        assert_eq!(destroys.lines().find_map(line_of_leak), None, "{destroys}");
    }
}

/// Frees memory that is registered with one of two communicators: by itself on rank 0, in a window on rank 1. Frees it again after the
/// deregistration if the first call was refused.
fn free(process: &RankProcess) {
    let comm = process.join();
    let other = split(comm.0, 0, 0).unwrap();
    let (comm, other) = if std::env::var("TEST_CHILD").is_ok() { (other, comm) } else { (comm, other) };
    let mut memory = ptr::null_mut();
    assert_eq!(nccl!(ncclMemAlloc(&mut memory, 8192)), OK);
    let (mut window, mut handle) = (ptr::null_mut(), ptr::null_mut());
    assert_eq!(nccl!(ncclCommWindowRegister(comm.0, memory, 4096, &mut window, 0)), OK);
    if process.rank() == 0 {
        assert_eq!(nccl!(ncclCommWindowDeregister(comm.0, window)), OK);
        window = ptr::null_mut();
        assert_eq!(nccl!(ncclCommRegister(comm.0, memory.wrapping_byte_add(8191), 1, &mut handle)), OK);
    }
    let is_refused = nccl!(ncclMemFree(memory)) == ncclResult_t::ncclInvalidUsage;
    assert_eq!(nccl!(ncclCommWindowDeregister(comm.0, window)), OK);
    assert_eq!(nccl!(ncclCommDeregister(comm.0, handle)), OK);
    // It was freed, unless it was refused.
    assert_eq!(nccl!(ncclMemFree(memory)) == OK, is_refused);
    assert_eq!(is_refused, std::env::var("TEST_REFUSES").is_ok());
    other.destroy();
    comm.destroy();
}

#[test]
fn free_of_registered_memory_is_a_finding_and_refused_in_strict_mode() {
    const REFUSES: (&str, &str) = ("TEST_REFUSES", "");
    let found = |variables: &[(&str, &str)]| {
        let printed = run("free", variables).into_iter();
        printed
            .map(|printed| {
                printed.lines().filter(|line| line.ends_with(" [free-under-reference]")).collect::<String>()
            })
            .collect::<Vec<_>>()
    };
    for variables in [&[][..], &[STRICT, REFUSES], &[("TEST_CHILD", "")]] {
        let references = ["it is registered by ncclCommRegister as 0x", "it is in the window 0x"];
        for (line, reference) in found(variables).iter().zip(references) {
            assert!(line.contains(reference), "{line}");
            assert_eq!(line.matches("ncclMemFree frees 8192 bytes at 0x").count(), 1, "{line}");
        }
    }
    assert_eq!(found(&[STRICT, (IGNORE, "free-under-reference")]), ["", ""]);
}

/// Returns a line about a leak, without the communicator's name, which must be rank 0 of 2.
fn line_of_leak(line: &str) -> Option<String> {
    let text = line.strip_prefix("libnccl-cpu: ").filter(|_| line.contains("leaked-"))?;
    let Some((start, rest)) = text.split_once("comm 0x") else { return Some(text.to_owned()) };
    let (_, rest) = rest.split_once(" rank 0 nranks 2 cudaDev 0 commId 0x").expect(line);
    let (_, end) = rest.split_once(' ').expect(line);
    Some(format!("{start}comm 0x {end}"))
}

/// Fails in the same call with two counts, and exits without cleanup, like a killed program.
fn fail(process: &RankProcess) {
    let comm = process.join();
    for count in 1..=2 {
        let code =
            nccl!(ncclAllReduce(ptr::null(), ptr::null_mut(), count, F32, SUM, comm.0, ptr::null_mut()));
        assert_eq!(code, ARGUMENT);
    }
    if process.rank() == 0 {
        // SAFETY: ends the process immediately.
        unsafe { libc::_exit(0) };
    }
}

/// Returns the findings in a file: kind, rank, and the count of all its lines.
fn findings_in(file: &Path) -> BTreeMap<(String, Option<u64>), u64> {
    let mut found = BTreeMap::new();
    for line in fs::read_to_string(file).unwrap().lines() {
        let line: Value = serde_json::from_str(line).expect(line);
        let text = line["text"].as_str().expect("a text");
        assert!(!text.is_empty() && line["process"].as_u64().is_some_and(|process| process > 0), "{line}");
        let finding = line["finding"].as_str().expect("a name").to_owned();
        let count = line["count"].as_u64().expect("a count");
        *found
            .entry((finding, line.get("rank").map(|rank| rank.as_u64().expect("a number"))))
            .or_default() += count;
    }
    found
}

#[test]
fn findings_file_is_shared_or_per_process() {
    let directory = tempfile::tempdir().unwrap();
    for (task, variables, file, expected) in [
        ("fail", &[][..], "one", &[("failed-call", None, 3), ("leaked-communicator", Some(1), 1)][..]),
        ("fail", &[(IGNORE, "failed-call")], "one", &[("leaked-communicator", Some(1), 1)]),
        (
            "leaks",
            &[],
            "each-%p.json",
            &[
                ("leaked-communicator", Some(0), 1),
                ("leaked-memory", None, 1),
                ("leaked-reduction", Some(0), 1),
                ("leaked-registration", Some(0), 1),
                ("leaked-window", Some(0), 1),
            ],
        ),
    ] {
        let own = tempfile::tempdir_in(&directory).unwrap();
        let path = own.path().join(file);
        let variables = [variables, &[("LIBNCCL_CPU_REPORT", path.to_str().unwrap())]].concat();
        let printed = run(task, &variables).concat();
        assert!(!printed.contains("libnccl-cpu"), "{task}: {printed}");
        let mut files: Vec<_> = fs::read_dir(own.path()).unwrap().map(|file| file.unwrap().path()).collect();
        assert_eq!(files.len(), if file.contains("%p") { 2 } else { 1 }, "{files:?}");
        let found = files.drain(..).flat_map(|file| findings_in(&file));
        let expected = expected.iter().map(|&(name, rank, count)| ((name.to_owned(), rank), count));
        assert_eq!(found.collect::<BTreeMap<_, _>>(), expected.collect(), "{task} {variables:?}");
    }
}

#[test]
fn unusable_findings_file_is_reported() {
    let printed = run("fail", &[("LIBNCCL_CPU_REPORT", "/no/such/directory/file")]).concat();
    let expected = "libnccl-cpu: LIBNCCL_CPU_REPORT is \"/no/such/directory/file\", which cannot be opened: No such file";
    assert_eq!(printed.matches(expected).count(), 2, "{printed}");
}

/// Line numbers need debug information, which tests do not have.
#[test]
fn finding_has_a_stack_trace_if_enabled() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    let variables = [("LIBNCCL_CPU_STACKS", "1"), ("LIBNCCL_CPU_REPORT", path.to_str().unwrap())];
    let printed = run("messages", &variables).concat();
    let frames: Vec<_> =
        printed.lines().skip_while(|line| !line.ends_with(" [unreceived-message]")).skip(1).collect();
    assert_eq!(frames.first(), Some(&"    ncclCommDestroy"), "{printed}");
    assert!(frames.iter().any(|frame| frame.starts_with("    cpu::findings::messages")), "{printed}");
    let recorded = fs::read_to_string(path).unwrap();
    let first: Value = serde_json::from_str(recorded.lines().next().unwrap()).unwrap();
    assert_eq!(first["stacks"][0][0], "ncclCommDestroy", "{first}");
}

fn pass_undocumented_arguments(process: &RankProcess) {
    let comm = process.join();
    let (memory, mut window) = (Memory::new(1024), ptr::null_mut());
    split(comm.0, -7, 0).unwrap().destroy();
    assert_eq!(nccl!(ncclCommWindowRegister(comm.0, memory.start.cast(), 4096, &mut window, 0x100)), OK);
    assert_eq!(nccl!(ncclCommWindowDeregister(comm.0, window)), OK);
    assert_eq!(nccl!(ncclCommSuspend(comm.0, 4)), OK);
    if process.rank() == 0 {
        shrink(comm.0, &[1], 2).unwrap().destroy();
    }
    comm.destroy();
}

#[test]
fn undocumented_arguments_are_findings_only_in_strict_mode() {
    for (strict, is_reported) in [("0", false), ("1", true)] {
        let printed = run("pass_undocumented_arguments", &[("LIBNCCL_CPU_STRICT", strict)]).concat();
        for text in [
            "ncclCommSplit: color -7 is neither NCCL_SPLIT_NOCOLOR nor at least 0 [undocumented-argument]",
            "ncclCommWindowRegister: winFlags are 0x100, and NCCL ignores all but ",
            "ncclCommSuspend: flags are 0x4, and NCCL ignores all but 0x1 [undocumented-argument]",
            "ncclCommShrink: shrinkFlags are 0x2, and NCCL ignores all but 0x1 [undocumented-argument]",
        ] {
            assert_eq!(printed.contains(text), is_reported, "{strict}: {text}: {printed}");
        }
    }
}

/// Ranks 0 and 1 shrink to continue without rank 2, and pass different flags.
fn shrink_with_different_flags(process: &RankProcess) {
    let comm = process.join();
    if process.rank() < 2 {
        shrink(comm.0, &[2], process.rank() as i32).unwrap().destroy();
    }
    assert_eq!(nccl!(ncclCommAbort(comm.0)), OK);
}

/// A communicator with a name grows by a rank without options, which is no difference.
fn grow_by_one(process: &RankProcess) {
    let (_, comm) = init_with(unique_id(), 1, 0, |config| config.commName = c"data".as_ptr());
    let mut id = process.id;
    assert_eq!(nccl!(ncclCommGetUniqueId(comm.0, &mut id)), OK);
    on_threads(2, |rank| {
        let (parent, number) = if rank == 0 { ({ comm }.0, -1) } else { (ptr::null_mut(), 1) };
        grow(parent, 2, Some(&id), number).unwrap().destroy();
    });
    comm.destroy();
}

#[test]
fn different_shrink_flags_are_a_finding_but_new_ranks_of_grow_are_not() {
    let printed = processes::run("shrink_with_different_flags", [[0], [1], [2]], &[]).concat();
    let text =
        "the ranks called ncclCommShrink with different shrinkFlags (rank 1: 1, rank 0: 0); communicator ";
    assert_eq!(printed.matches(text).count(), 1, "{printed}");
    let printed = processes::run("grow_by_one", [[0]], &[]).concat();
    assert!(!printed.contains("[different-arguments]"), "{printed}");
}
