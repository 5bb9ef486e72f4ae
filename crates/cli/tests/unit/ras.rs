use std::time::Duration;

use libnccl_observe::ras::Report;

use super::interval;

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
