//! Findings: their names, and that each is reported once for a place.
//!
//! The environment is read once per process, so each program runs in processes of its own.

use std::process::Stdio;
use std::ptr;

use crate::common::processes::{self, RankProcess, finish};
use crate::common::{Comm, F32, OK, SUM, unique_id};
use libnccl::sys::ncclComm_t;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/what-it-finds.md");

rank_tasks! {
    "messages" => messages,
}

/// Runs two ranks with these variables, and returns what each prints.
#[track_caller]
fn run(task: &str, variables: &[(&str, &str)]) -> [String; 2] {
    let id = unique_id();
    let start = |rank| {
        let mut command = processes::command(task, &id, 2, &[rank]);
        command.stdout(Stdio::null()).envs(variables.iter().copied()).spawn().unwrap()
    };
    [start(0), start(1)].map(finish)
}

fn sum(comm: Comm) {
    let mut buffer = [0_f32; 4];
    let place = buffer.as_mut_ptr().cast();
    assert_eq!(nccl!(ncclAllReduce(place, place, 4, F32, SUM, comm.0, ptr::null_mut())), OK);
}

/// Leaves three communicators, each with a message that nobody receives.
fn messages(process: &RankProcess) {
    let parent = process.join();
    for count in 1..=3 {
        let mut child: ncclComm_t = ptr::null_mut();
        assert_eq!(nccl!(ncclCommSplit(parent.0, 0, 0, &mut child, ptr::null_mut())), OK);
        if process.rank() == 0 {
            let sent = [0_f32; 4];
            let place = sent.as_ptr().cast();
            assert_eq!(nccl!(ncclSend(place, count, F32, 1, child, ptr::null_mut())), OK);
        }
        sum(Comm(child));
        Comm(child).destroy();
    }
    parent.destroy();
}

#[test]
fn finding_is_reported_once_for_a_place_unless_its_name_is_ignored() {
    const IGNORE: &str = "LIBNCCL_CPU_IGNORE";
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
        // The ranks leave at about the same time, so that either finds a message, or both do.
        let (more, first): (Vec<&str>, Vec<&str>) =
            lines.into_iter().partition(|line| line.contains(" more like this: in "));
        let more = more.iter().map(|line| line.split(' ').nth(1).unwrap().parse::<usize>().unwrap());
        assert!((1..=2).contains(&first.len()), "{variables:?}: {printed}");
        assert!((3..=6).contains(&(first.len() + more.sum::<usize>())), "{variables:?}: {printed}");
    }
}

#[test]
fn unknown_name_is_refused_with_the_names_that_the_page_explains() {
    let printed = run("messages", &[("LIBNCCL_CPU_IGNORE", "race,races")]).concat();
    let refusal = "LIBNCCL_CPU_IGNORE is \"race,races\", which is ignored; expected names of findings, separated by commas: ";
    let names = printed.lines().find_map(|line| Some(line.split_once(refusal)?.1));
    let names: Vec<_> = names.unwrap_or_else(|| panic!("{printed}")).split(", ").collect();
    let page = std::fs::read_to_string(PAGE).unwrap();
    let (_, table) = page.split_once("| finding | what | said by |").expect("the table");
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    let explained: Vec<_> = rows.map(|row| row.split('`').nth(1).expect("a name")).collect();
    assert_eq!(names, explained);
    assert!(printed.contains("[unreceived-message]"), "{printed}");
}
