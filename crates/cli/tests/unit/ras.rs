use std::time::Duration;

use libnccl_observe::ras::{Report, verdicts};

use super::{has_findings, interval, metrics};

#[test]
fn interval_is_three_times_that_of_a_report_within_limits() {
    let mut report = Report::parse(br#"{ "nccl_version": "2.30.7", "communicators": [] }"#).unwrap();
    for (seconds, milliseconds) in
        [(0.001, 100), (0.1, 300), (5.0, 1000), (-1.0, 100), (f64::NAN, 100), (f64::MAX, 100)]
    {
        report.ras.collection_time_sec = Some(seconds);
        assert_eq!(interval(&report), Duration::from_millis(milliseconds), "{seconds}");
    }
}

#[test]
fn report_as_text_has_findings_if_a_section_is_not_empty() {
    let report = |errors: &str, warnings: &str| {
        format!("Job summary\n\nErrors\n======\n\n{errors}Warnings\n========\n\n{warnings}")
    };
    assert!(!has_findings(&report("", "")));
    assert!(has_findings(&report("DEAD\n  1 job process\n\n", "")));
    assert!(has_findings(&report("", "#0-0 (abcdef0012345678) MISMATCH\n")));
}

#[test]
fn metrics_have_a_type_and_escaped_labels() {
    let json = br#"{ "nccl_version": "2.30.7 \"x\"", "communicators": [ { "hash": "0xab", "secondary_hash": "0x1:0x2",
        "size": 2, "ranks": [ { "rank": 0, "host": "10.0.0.1\u001b", "pid": 7, "cuda_dev": 3,
        "collective_counts": { "AllReduce": 5 } } ],
        "missing_ranks": [ { "rank": 1, "status": { "unresponsive": true, "considered_dead": true } } ] } ] }"#;
    let report = Report::parse(json).unwrap();
    let metrics = metrics(&report, &verdicts(std::slice::from_ref(&report)));
    for line in [
        "nccl_ras_communicators{version=\"2.30.7 \\\"x\\\"\"} 1",
        "nccl_ras_missing_ranks{communicator=\"0xab\",secondary=\"0x1:0x2\"} 1",
        "# TYPE nccl_ras_collectives_total counter",
        "nccl_ras_collectives_total{communicator=\"0xab\",secondary=\"0x1:0x2\",rank=\"0\",host=\"10.0.0.1\\\\u001b\",pid=\"7\",\
         device=\"3\",collective=\"AllReduce\"} 5",
        "nccl_ras_verdicts{verdict=\"dead\"} 1",
        // A dead rank, a rank without a state, and unexplained timeouts.
        "nccl_ras_problems 3",
    ] {
        assert!(metrics.lines().any(|printed| printed == line), "{line}\n{metrics}");
    }
}

#[test]
fn what_a_report_does_not_say_has_no_sample_and_what_it_says_twice_has_one() {
    let rank = r#"{ "rank": 0, "host": "h", "collective_counts": { "AllReduce": 5 } }"#;
    let communicator = format!(r#"{{ "hash": "0xab", "size": 3, "ranks": [ {rank}, {rank} ] }}"#);
    let json =
        format!(r#"{{ "nccl_version": "2.30.7", "communicators": [ {communicator}, {communicator} ] }}"#);
    let report = Report::parse(json.as_bytes()).unwrap();
    let metrics = metrics(&report, &verdicts(std::slice::from_ref(&report)));
    for (start, count) in [
        ("nccl_ras_collectives_total{", 1),
        ("nccl_ras_missing_ranks{communicator=\"0xab\",secondary=\"\"} 2", 1),
        ("nccl_ras_async_error{", 0),
        ("nccl_ras_collection_seconds ", 0),
        ("nccl_ras_collection_timeouts ", 0),
    ] {
        let samples = metrics.lines().filter(|line| line.starts_with(start)).count();
        assert_eq!(samples, count, "{start}\n{metrics}");
    }
}
