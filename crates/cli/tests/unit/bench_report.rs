use super::{Iterations, Measured, Rank, Report, Row, SCHEMA};

impl Report {
    /// Returns a report with one row.
    pub(crate) fn example() -> Self {
        let iterations = Iterations {
            rank: 0,
            min_us: 1.0,
            median_us: 2.0,
            p99_us: 3.0,
            max_us: 4.0,
            wait_us: 2.0,
            late_us: Some(0.5),
            own_us: None,
        };
        let measured =
            Measured { time_us: 1.5, algbw: 2.0, busbw: 3.0, wrong: Some(1), iterations: vec![iterations] };
        Self {
            schema: SCHEMA,
            operation: "all_reduce".into(),
            ranks: vec![Rank { rank: 0, host: "host".into(), pid: 7, device: None }],
            rows: vec![Row {
                bytes: 8,
                count: 2,
                data_type: "float".into(),
                op: Some("sum".into()),
                root: None,
                out_of_place: Some(measured),
                in_place: None,
            }],
            ..Self::default()
        }
    }
}
