use std::time::Duration;

use libnccl_observe::ras::Report;

use super::{has_findings, interval};

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
