//! Verdicts on reports that are made up.

use serde_json::{Value, json};

use libnccl_observe::ras::{Report, verdicts};

fn rank(rank: u64, all_reduce: u64, broadcast: u64) -> Value {
    json!({
        "rank": rank, "host": "10.0.0.1", "pid": 100 + rank, "cuda_dev": rank, "nvml_dev": rank,
        "status": { "init_state": 0, "async_error": 0, "finalize_called": false, "destroy_flag": false, "abort_flag": false },
        "collective_counts": { "AllReduce": all_reduce, "Broadcast": broadcast },
    })
}

fn missing(rank: u64, unresponsive: bool, considered_dead: bool) -> Value {
    json!({
        "rank": rank, "host": "10.0.0.2", "pid": 100 + rank, "cuda_dev": rank, "nvml_dev": rank,
        "status": { "unresponsive": unresponsive, "considered_dead": considered_dead },
    })
}

fn report(ranks: &[Value], missing: &[Value]) -> Report {
    changed(ranks, missing, |_| ())
}

/// Returns the report of these ranks with a change in it.
fn changed(ranks: &[Value], missing: &[Value], change: impl FnOnce(&mut Value)) -> Report {
    let communicator = json!({
        "hash": "0xab", "secondary_hash": "0x1:0x2", "size": ranks.len() + missing.len(),
        "ranks_count": ranks.len(), "missing_ranks_count": missing.len(), "ranks": ranks, "missing_ranks": missing,
    });
    let initialising = json!({ "hash": "0x0", "secondary_hash": "0x0:0x0", "size": 0 });
    let mut report = json!({
        "nccl_version": "2.30.7", "communicators_count": 2, "communicators": [communicator, initialising],
        "ras": { "collection_time_sec": 0.001, "timeouts_count": 0 },
    });
    change(&mut report);
    Report::parse(report.to_string().as_bytes()).unwrap()
}

/// Returns the report of two ranks in which these values, by their JSON pointers, are others, and those without one are
/// left out. `#` is the communicator, and `@` its rank 1.
fn odd(changes: &[(&str, Option<Value>)]) -> Report {
    changed(&[rank(0, 120, 3), rank(1, 120, 3)], &[], |report| {
        for (pointer, value) in changes {
            let pointer = pointer.replace('@', "#/ranks/1").replace('#', "/communicators/0");
            let (parent, key) = pointer.rsplit_once('/').unwrap();
            let parent = report.pointer_mut(parent).unwrap();
            match value {
                Some(value) => parent[key] = value.clone(),
                None => drop(parent.as_object_mut().unwrap().remove(key)),
            }
        }
    })
}

/// Returns the report of ranks with these numbers of all-reduces.
fn level(counts: &[u64]) -> Report {
    let ranks: Vec<Value> = counts.iter().zip(0..).map(|(count, number)| rank(number, *count, 0)).collect();
    report(&ranks, &[])
}

fn texts(reports: &[Report]) -> Vec<String> {
    verdicts(reports).iter().map(ToString::to_string).collect()
}

/// Returns the texts of the verdicts on ranks with these numbers of all-reduces in each report.
fn texts_of<const RANKS: usize>(reports: &[[u64; RANKS]]) -> Vec<String> {
    texts(&reports.iter().map(|counts| level(counts)).collect::<Vec<_>>())
}

/// Expects one verdict, which begins like this.
#[track_caller]
fn assert_only<const RANKS: usize>(reports: &[[u64; RANKS]], start: &str) {
    let texts = texts_of(reports);
    assert!(texts.len() == 1 && texts[0].starts_with(start), "{reports:?}: {texts:#?}");
}

#[track_caller]
fn assert_none<const RANKS: usize>(reports: &[[u64; RANKS]]) {
    assert_eq!(texts_of(reports), [""; 0], "{reports:?}");
}

#[test]
fn rank_that_others_wait_for_is_a_straggler() {
    assert_eq!(
        texts_of(&[[120, 120, 117, 120], [121, 121, 118, 121]]),
        [
            "rank 2 of 4 is a straggler: it has launched 118 AllReduce, others up to 121 (process 102 on 10.0.0.1, \
          device 2; communicator 00000000000000ab)"
        ]
    );
    // Of two ranks, it is the one behind.
    assert_only(&[[120, 119], [121, 120], [122, 121]], "rank 1 of 2 is a straggler");
    assert_none(&[[120, 120], [121, 121]]);
}

#[test]
fn one_report_names_no_straggler() {
    assert_none(&[[120, 120, 117, 120]]);
    assert_none(&[[5, 5, 5, 6]]);
}

#[test]
fn rank_behind_in_three_of_four_reports_is_a_straggler() {
    let (slow, even) = (|at: u64| [at, at, at - 1, at], |at: u64| [at; 4]);
    assert_only(
        &[slow(10), slow(11), even(12), slow(13)],
        "rank 2 of 4 is a straggler: it has launched 12 AllReduce, others up to 13",
    );
    assert_only(&[slow(10), slow(11), slow(12), even(13)], "rank 2 of 4 is a straggler: it has launched 11 ");
    assert_none(&[slow(10), even(11), even(12), slow(13)]);
    assert_none(&[slow(10), even(11)]);
}

#[test]
fn ranks_apart_by_what_is_launched_during_a_report_are_sound() {
    assert_none(&[[100_000, 100_001], [150_000, 149_999], [200_003, 200_000]]);
    assert_none(&[[100_000, 99_999], [150_000, 149_999], [200_000, 199_999]]);
    assert_none(&[[100_000, 99_999], [150_000, 149_997], [200_000, 199_990], [250_000, 249_000]]);
    assert_none(&[[7_000, 7_900, 7_100], [17_900, 17_000, 17_100], [27_000, 27_100, 27_900]]);
    assert_none(&[[10, 10, 10, 11], [20, 20, 20, 21], [30, 30, 30, 31], [40, 40, 40, 41]]);
    // The job ends, or pauses, in the meantime.
    assert_none(&[[100_000, 99_999], [150_000, 149_999], [160_000; 2], [160_000; 2], [160_001; 2]]);
}

#[test]
fn lag_that_stays_or_swings_while_all_move_is_none() {
    assert_none(&[[10, 10, 7], [110, 110, 107], [210, 210, 207], [310, 310, 307]]);
    assert_none(&[[10, 10, 10], [110, 110, 70], [210, 210, 200], [310, 310, 250]]);
}

#[test]
fn counters_that_wrap_or_restart_are_compared() {
    assert_none(&[[1000, 1000, 1000], [3, 3, 3], [9, 9, 9]]);
    assert_none(&[[u64::MAX, u64::MAX], [0, 0], [u64::MAX, u64::MAX - 1]]);
    for reports in [
        [[1000, 1000, 1000], [1010, 0, 1010], [1020, 10, 1020]],
        [[0, u64::MAX, 0], [u64::MAX, 0, 1], [1, 2, u64::MAX]],
        [[u64::MAX, 0, u64::MAX], [u64::MAX, 0, u64::MAX], [0, 0, 0]],
    ] {
        assert!(texts_of(&reports).iter().all(|text| !text.is_empty()));
    }
}

#[test]
fn communicator_without_progress_is_frozen_if_ranks_are_apart_and_else_idle() {
    let apart = level(&[120, 120, 117, 120]);
    let texts_apart = texts(&[apart.clone(), apart]);
    assert_eq!(
        texts_apart[0],
        "communicator 00000000000000ab of 4 ranks is frozen: no rank has launched a collective between the reports, and rank 2 \
         is behind"
    );
    assert!(texts_apart[1].starts_with("rank 2 of 4 is a straggler"));
    let idle = verdicts(&[level(&[7, 7]), level(&[7, 7])]);
    assert!(idle.len() == 1 && !idle[0].is_problem() && idle[0].to_string().contains(" is idle: "));
    assert_eq!(texts(&[level(&[0, 0]), level(&[0, 0])]), [""; 0], "nothing was ever launched");
    assert_eq!(texts(&[level(&[7, 7]), level(&[8, 8])]), [""; 0]);
}

#[test]
fn rank_with_more_of_one_and_less_of_another_collective_is_mismatched() {
    let ranks = [rank(0, 120, 3), rank(1, 119, 4), rank(2, 120, 3), rank(3, 118, 3)];
    let one = report(&ranks, &[]);
    let texts = texts(&[one.clone(), one]);
    assert_eq!(
        texts[0],
        "rank 1 of 4 has called other collectives than rank 0: 1 Broadcast more and 1 AllReduce less (process 101 \
         on 10.0.0.1, device 1; communicator 00000000000000ab)"
    );
    assert!(texts[1].ends_with("and rank 3 is behind"), "{texts:?}");
    assert!(texts.len() == 3 && texts[2].starts_with("rank 3 of 4 is a straggler"), "{texts:?}");
}

#[test]
fn missing_ranks_are_dead_unresponsive_or_gone() {
    let missing = [missing(1, true, true), missing(2, true, false), missing(3, false, false)];
    let one = report(&[rank(0, 5, 0)], &missing);
    let texts = texts(&[one.clone(), one]);
    let starts = [
        "rank 1 of 4 is dead: its process cannot be reached any more (process 101 on 10.0.0.2, device 1;",
        "rank 2 of 4 does not answer: its process is stopped, has ended, or cannot be reached (process 102",
        "rank 3 of 4 cannot be judged: its process answers, but does not have this \
         communicator (any longer) (process 103",
        "communicator 00000000000000ab of 4 ranks is frozen: no rank has launched a collective between the reports, and ranks 1, 2 \
         are missing",
    ];
    assert_eq!(texts.len(), starts.len());
    assert!(texts.iter().zip(starts).all(|(text, start)| text.starts_with(start)), "{texts:#?}");
}

#[test]
fn rank_that_has_left_is_named_if_it_had_before_and_others_go_on() {
    let left = |at: u64| report(&[rank(0, at, 0), rank(1, at, 0)], &[missing(2, false, false)]);
    assert_eq!(texts(&[level(&[5, 5, 5]), left(6)]), [""; 0]);
    assert_eq!(texts(&[left(5), left(6)]).len(), 1);
    let mut last = left(6);
    last.communicators[0]
        .ranks
        .iter_mut()
        .for_each(|rank| rank.status.as_mut().unwrap().finalize_called = true);
    assert_eq!(texts(&[left(5), last]), [""; 0]);
}

/// Expects one verdict on a report, about this subject and with this problem.
#[track_caller]
fn assert_incomplete(changes: &[(&str, Option<Value>)], subject: &str, problem: &str) {
    let texts = texts(&[odd(changes)]);
    let start = format!("{subject} cannot be judged: {problem}");
    assert!(texts.len() == 1 && texts[0].starts_with(&start), "{changes:?}: {texts:#?}");
}

#[test]
fn rank_without_state_counters_or_reason_is_incomplete() {
    const RANK: &str = "rank 1 of 2";
    assert_eq!(texts(&[odd(&[])]), [""; 0]);
    let cut = json!({ "init_state": 0, "async_error": 0 });
    for status in [None, Some(json!(null)), Some(json!("unknown")), Some(json!({})), Some(cut)] {
        let problem = "the report does not have its state (process 101 on 10.0.0.1, device 1; communicator 00000000000000ab)";
        assert_incomplete(&[("@/status", status)], RANK, problem);
    }
    for counters in [
        None,
        Some(json!(null)),
        Some(json!({})),
        Some(json!([])),
        Some(json!({ "AllReduce": -5, "Broadcast": 3 })),
        Some(json!({ "AllReduce": 18_446_744_073_709_551_616.0, "Broadcast": 3 })),
        Some(json!({ "AllReduce": null })),
    ] {
        assert_incomplete(
            &[("@/collective_counts", counters)],
            RANK,
            "the report does not have its counters (",
        );
    }
    let changes = [("@/collective_counts/Broadcast", None)];
    assert_incomplete(&changes, RANK, "the report does not have its number of Broadcast (");
    for status in [json!(null), json!({}), json!({ "unresponsive": true }), json!("dead")] {
        let mut missing = missing(1, true, false);
        missing["status"] = status;
        let changes = [
            ("#/ranks", Some(json!([rank(0, 120, 3)]))),
            ("#/ranks_count", None),
            ("#/missing_ranks", Some(json!([missing]))),
            ("#/missing_ranks_count", None),
        ];
        assert_incomplete(&changes, RANK, "the report does not say why it is missing (process 101");
    }
}

#[test]
fn rank_whose_counters_are_unknown_is_no_straggler_and_holds_nobody_up() {
    let report = |at: u64| {
        let mut unknown = rank(2, 0, 0);
        unknown["collective_counts"] = json!({});
        report(&[rank(0, at, 0), rank(1, at, 0), unknown], &[])
    };
    let texts = texts(&[report(10), report(20), report(30)]);
    assert!(texts.len() == 1 && texts[0].starts_with("rank 2 of 3 cannot be judged"), "{texts:#?}");
}

#[test]
fn ranks_without_an_entry_are_named() {
    let assert_unlisted = |size: u64, problem: &str| {
        let subject = format!("communicator 00000000000000ab of {size} ranks");
        assert_incomplete(&[("#/size", Some(json!(size)))], &subject, problem);
    };
    assert_unlisted(3, "rank 2 has no entry");
    assert_unlisted(10, "ranks 2, 3, 4, 5, 6, 7, 8, 9 have no entry");
    assert_unlisted(u64::MAX, "18446744073709551613 ranks (the first: 2, 3, 4, 5, 6, 7, 8, 9) have no entry");
    let none = [("#/ranks", None), ("#/ranks_count", None)];
    assert_incomplete(&none, "communicator 00000000000000ab of 2 ranks", "ranks 0, 1 have no entry");
}

#[test]
fn contradictions_of_a_report_are_named() {
    const COMMUNICATOR: &str = "communicator 00000000000000ab of 2 ranks";
    for (pointer, value, subjects, problem) in [
        ("@/rank", 1_804_289_383, &["rank 1804289383 of 2"][..], "ranks are below 2 (process 101"),
        ("@/rank", 2, &["rank 2 of 2"], "ranks are below 2 (process 101"),
        ("@/rank", 0, &["rank 0 of 2"], "the report lists it 2 times (process 100"),
        ("#/size", 1, &["rank 1 of 1"], "ranks are below 1 ("),
        ("#/size", 0, &["rank 0 of 0", "rank 1 of 0"], "ranks are below 0 ("),
        ("#/ranks_count", 7, &[COMMUNICATOR], "the report states 7 ranks that have answered, and lists 2"),
        ("#/missing_ranks_count", 5, &[COMMUNICATOR], "the report states 5 missing ranks, and lists 0"),
        ("/communicators_count", 9, &["the job"], "the report states 9 communicators, and lists 2"),
    ] {
        let mut texts = texts(&[odd(&[(pointer, Some(json!(value)))])]);
        // The rank whose number has changed.
        texts.retain(|text| !text.ends_with(": rank 1 has no entry"));
        let is_so = |(text, subject): (&String, &&str)| text.starts_with(*subject) && text.contains(problem);
        let all = texts.len() == subjects.len() && texts.iter().zip(subjects).all(is_so);
        assert!(all, "{pointer} {value}: {texts:#?}");
    }
    let mut twice = odd(&[("/communicators_count", Some(json!(3)))]);
    twice.communicators.push(twice.communicators[0].clone());
    let text = "communicator 00000000000000ab of 2 ranks cannot be judged: the report lists it 2 times";
    assert_eq!(texts(&[twice]), [text]);
}

#[test]
fn numbers_of_a_rank_that_cannot_be_are_compared_with_none() {
    for rank in [0, 2, 1_804_289_383] {
        let at = |number: u64| {
            odd(&[("@/rank", Some(json!(rank))), ("@/collective_counts/AllReduce", Some(json!(number)))])
        };
        for reports in [[at(7), at(7), at(7)], [at(7), at(8), at(9)]] {
            let texts = texts(&reports);
            let is_of_numbers = |text: &String| text.contains("straggler") || text.contains(" behind");
            assert!(!texts.iter().any(is_of_numbers), "{rank}: {texts:#?}");
        }
    }
}

#[test]
fn time_outs_of_the_last_report_are_a_problem() {
    let late = odd(&[("/ras/timeouts_count", Some(json!(2)))]);
    assert!(texts(&[late, odd(&[])]).iter().all(|text| !text.contains("time-outs")));
    let late = [("/ras/timeouts_count", Some(json!(2)))];
    assert_incomplete(&late, "the job", "2 time-outs of processes that were queried");
    for absent in [("/ras", None), ("/ras/timeouts_count", None), ("/ras/timeouts_count", Some(json!(null)))]
    {
        assert_incomplete(&[absent], "the job", "the report does not say how many processes have timed out");
    }
}

#[test]
fn rank_beside_a_mismatched_one_is_no_straggler() {
    let reports = [1, 2, 3]
        .map(|step| report(&[rank(0, 10 * step, 3 * step), rank(1, 10 * step - 1, 3 * step + 1)], &[]));
    let texts = texts(&reports);
    assert!(
        texts.len() == 1 && texts[0].starts_with("rank 1 of 2 has called other collectives"),
        "{texts:#?}"
    );
}

#[test]
fn rank_that_stays_in_its_initialization_is_named() {
    let unready = |is_unready: bool| {
        let mut ranks = [rank(0, 0, 0), rank(1, 0, 0)];
        if is_unready {
            ranks[1]["status"]["init_state"] = json!(7);
        }
        report(&ranks, &[])
    };
    let texts_of = |states: [bool; 2]| texts(&states.map(unready));
    let expected = "rank 1 of 2 cannot be judged: it is still in its initialization, and others are ready";
    let found = texts_of([true, true]);
    assert!(found.len() == 1 && found[0].starts_with(expected), "{found:#?}");
    assert_eq!(texts_of([true, false]), Vec::<String>::new());
}

#[test]
fn rank_that_has_stopped_is_a_straggler_if_half_of_the_reports_show_it() {
    assert_only(&[[5, 5, 5], [8, 5, 8]], "rank 1 of 3 is a straggler");
}

#[test]
fn mismatch_that_is_over_is_none() {
    let mixed = |at: u64| report(&[rank(0, at, 3), rank(1, at - 1, 4), rank(2, at, 3)], &[]);
    let same = report(&[rank(0, 8, 4), rank(1, 8, 4), rank(2, 8, 4)], &[]);
    assert_eq!(texts(&[mixed(5), mixed(6), mixed(7), same]), [""; 0]);
}

#[test]
fn failure_and_death_count_if_the_last_report_has_them() {
    let sound = level(&[5, 5, 5]);
    let dead = report(&[rank(0, 5, 0), rank(1, 5, 0)], &[missing(2, true, true)]);
    assert!(texts(&[sound.clone(), sound.clone(), dead.clone()])[0].starts_with("rank 2 of 3 is dead"));
    assert!(texts(&[dead, sound]).iter().all(|text| !text.contains("is dead")));
}

#[test]
fn errors_and_aborts_of_ranks_are_failures() {
    let mut ranks = [rank(0, 5, 0), rank(1, 5, 0), rank(2, 5, 0)];
    ranks[1]["status"]["async_error"] = json!(6);
    ranks[2]["status"]["abort_flag"] = json!(true);
    let texts = texts(&[report(&ranks, &[])]);
    assert_eq!(texts.len(), 2);
    assert!(
        texts[0].starts_with("rank 2 of 3 has failed: it has aborted its communicator (process 102"),
        "{texts:?}"
    );
    assert!(texts[1].starts_with("rank 1 of 3 has failed: it reports ncclRemoteError"), "{texts:?}");
}

#[test]
fn verdict_as_json_has_its_kind_communicator_and_rank() {
    let verdicts = verdicts(&[report(&[rank(0, 5, 0)], &[missing(1, true, false)])]);
    assert_eq!(
        serde_json::to_value(&verdicts).unwrap(),
        json!([{
            "verdict": "unresponsive",
            "communicator": { "hash": "0xab", "secondary_hash": "0x1:0x2", "size": 2 },
            "rank": { "rank": 1, "host": "10.0.0.2", "pid": 101, "cuda_dev": 1 },
        }])
    );
}
