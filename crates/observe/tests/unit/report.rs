use super::*;
use libnccl_test_support::random_inputs::{Random, inputs};

/// A report of NCCL 2.28, with the comma or without.
fn sample(comma: &str) -> String {
    format!(
        r#"{{ "nccl_version": "2.28.9", "cuda_runtime_version": 12080, "cuda_driver_version": 13000,
  "timestamp": "2026-11-22 19:08:23", "communicators_count": 1, "communicators": [ {{
    "hash": "0xabcdef0012345678", "secondary_hash": "0xa482312ac0ba3842:0x370e4961290f2502",
    "size": 2, "ranks_count": 1, "missing_ranks_count": 1,
    "ranks": [ {{ "rank": 0, "host": "10.0.0.1", "pid": 19309, "cuda_dev": 0, "nvml_dev": 0,
      "status": {{ "init_state": 0, "async_error": 0, "finalize_called": false, "destroy_flag": false, "abort_flag": false }},
      "collective_counts": {{ "Broadcast": 0, "Reduce": 0, "AllGather": 0, "ReduceScatter": 0, "AllReduce": 120 }} }} ],
    "missing_ranks": [ {{ "rank": 1, "host": "10.0.0.1", "pid": 19310, "cuda_dev": 1,
      "nvml_dev": 1{comma}
      "status": {{ "unresponsive": true, "considered_dead": false }} }} ] }} ],
  "ras": {{ "collection_time_sec": 0.001, "timeouts_count": 0 }}
}}"#
    )
}

#[test]
fn report_with_and_without_the_comma_is_parsed() {
    let report = Report::parse(sample(",").as_bytes()).unwrap();
    assert_eq!(Report::parse(sample("").as_bytes()).unwrap(), report);
    let communicator = &report.communicators[0];
    let rank = &communicator.ranks[0];
    assert_eq!((rank.pid, rank.collective_counts["AllReduce"]), (19309, 120));
    assert_eq!(rank.status.as_ref().unwrap().state(), RankState::Running);
    let missing = &communicator.missing_ranks[0];
    let status = missing.status.unwrap();
    assert_eq!((missing.rank, status.unresponsive, status.considered_dead), (1, true, false));
    assert_eq!(communicator.unresponsive(), 1);
    assert_eq!(report.ras, Collection { collection_time_sec: Some(0.001), timeouts_count: Some(0) });
}

#[test]
fn report_of_another_shape_is_refused_with_the_place() {
    for (json, problem) in [
        ("", "EOF while parsing"),
        ("OK", "expected value at line 1 column 1"),
        ("[]", "expected struct Report"),
        (r#"{"nccl_version": "2", "communicators": 3}"#, "invalid type: integer `3`, expected a sequence"),
        (r#"{"nccl_version": "2"}"#, "missing field `communicators`"),
    ] {
        let error = Report::parse(json.as_bytes()).unwrap_err().to_string();
        assert!(error.starts_with("a report: ") && error.contains(problem), "{json}: {error}");
    }
    let deep = "[".repeat(100_000);
    assert!(Report::parse(deep.as_bytes()).is_err());
}

#[test]
fn state_of_a_rank_is_derived_as_nccl_does() {
    let status = RankStatus {
        init_state: 0,
        async_error: 0,
        finalize_called: false,
        destroy_flag: false,
        abort_flag: false,
    };
    assert_eq!(status.state().to_string(), "RUNNING");
    assert_eq!(RankStatus { init_state: 7, ..status.clone() }.state().to_string(), "INIT");
    let finalized = RankStatus { finalize_called: true, ..status };
    assert_eq!(finalized.state().to_string(), "FINALIZE");
    assert_eq!(RankStatus { abort_flag: true, ..finalized }.state().to_string(), "ABORT");
}

#[test]
fn random_reports_are_parsed_or_refused() {
    let (mut random, sample, mut parsed) = (Random(7), sample(""), 0);
    let first = Report::parse(sample.as_bytes()).unwrap();
    for _ in inputs(20_000) {
        let mut bytes = sample.clone().into_bytes();
        random.change(&mut bytes);
        if random.below(4) == 0 {
            bytes.truncate(random.below(bytes.len()));
        }
        if let Ok(report) = Report::parse(&bytes) {
            // Alone, and between reports of the same job.
            let mixed = [first.clone(), report.clone(), first.clone(), report];
            for reports in [&mixed[1..2], &mixed[..]] {
                let verdicts = crate::ras::verdicts(reports);
                verdicts.iter().for_each(|verdict| assert!(!verdict.to_string().is_empty()));
            }
            parsed += 1;
        }
    }
    assert!(parsed > 0);
}
