use serde_json::json;

use super::{Table, exponent, general, number, usage_text};
use crate::bench::arguments::MeasureArguments;
use crate::bench::measure::ranks::Description;
use crate::bench::output::report::{Library, Measured, Report, Row};
use crate::bench::parameters::Parameters;

#[test]
fn usage_has_the_format_of_nccl_tests() {
    let expected = "Initialization 300 MB | User-Allocated 2.00 GB | Collective 1.50 KB | Total  2.29 GB";
    assert_eq!(usage_text([300 << 20, 2 << 30, 1536]), expected);
    let expected = "Initialization 0.00 B | User-Allocated 50.0 KB | Collective -20.0 KB | Total  30.0 KB";
    assert_eq!(usage_text([0, 50 << 10, -(20 << 10)]), expected);
}

#[test]
fn number_fits_the_width() {
    let texts = [(0.0, "0.00"), (1.234, "1.23"), (9999.994, "9999.99"), (12_345.6, "12345.6")];
    for (value, text) in texts {
        assert_eq!(number(value, 7), text);
    }
    assert_eq!(number(1_234_567.0, 7), "1234567");
    assert_eq!(number(12_345_678.0, 7), "1.2e+07");
    assert_eq!(number(12_345_678.0, 6), "1e+07");
    assert_eq!(number(999.996, 6), "1000.0");
}

#[test]
fn general_and_exponent_are_those_of_c() {
    for (value, text) in [
        (0.0, "0"),
        (6.0, "6"),
        (0.123_456_789, "0.123457"),
        (123.456_789, "123.457"),
        (100_000.0, "100000"),
        (999_999.5, "1e+06"),
        (1_234_567.0, "1.23457e+06"),
        (0.000_1, "0.0001"),
        (0.000_012_345, "1.2345e-05"),
    ] {
        assert_eq!(general(value), text, "{value}");
    }
    assert_eq!(exponent(12_345_678.0, 1), "1.2e+07");
}

/// Returns the table of a row on 4 ranks.
fn table(arguments: &str) -> String {
    let arguments = MeasureArguments::parse(arguments);
    let parameters = Parameters::new(&arguments, 0, (1, 4)).unwrap().remove(0);
    let shape = parameters.shape(4000).unwrap();
    let mut out = Vec::new();
    let mut table = Table::new(&mut out);
    let measured = Measured { time_us: 1.0, algbw: 4.0, busbw: 6.0, wrong: Some(0), iterations: vec![] };
    let rank = json!({ "rank": 0, "host": "host", "pid": 7, "device": null });
    let rank = json!({ "rank": rank, "device": 0, "host_bytes": null, "device_bytes": 0 });
    let ranks: Vec<Description> = serde_json::from_value(json!([rank])).unwrap();
    table.head("2.32.3 (here)", &Library::default(), &parameters, &ranks).unwrap();
    let row = Row {
        bytes: (shape.total() * 4) as u64,
        count: shape.count as u64,
        data_type: "float".into(),
        op: parameters.op().map(|op| op.to_string()),
        root: parameters.root(),
        out_of_place: Some(measured.clone()),
        in_place: parameters.benchmark.has_in_place().then_some(measured),
    };
    let columns = [Some([1.0, 3.0, 2.0, 50.0]); 2];
    table.row(&parameters, &row, columns, &[]).unwrap();
    let report = Report {
        operation: "all_reduce".into(),
        rows: vec![row],
        average_bus_bandwidth: 6.0,
        ..Report::default()
    };
    table.foot(&report, Some(0), None).unwrap();
    String::from_utf8(out).unwrap()
}

/// The lines after the first one are those that nccl-tests' `writeDeviceReport`, `writeResultHeader`,
/// `writeBenchmarkLineBody` and `writeResultFooter` print, except the name of the program.
#[test]
fn table_has_the_format_of_nccl_tests() {
    let text = table("all_reduce -b 8 -e 4000 -f 2 -m 3 -w 1 -u 2");
    let expected = "\
# Collective test starting: all_reduce
# nThread 4 nGpus 1 minBytes 8 maxBytes 4000 step: 2(factor) warmup iters: 1 iters: 20 agg iters: 3 \
validation: 1 graph: 0 unalign: 2
#
# Using devices
#  Rank  0 Group  0 Pid      7 on       host device  0 [host memory]
#
#                                                              out-of-place                       in-place          
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong 
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)         
        4000          1000     float     sum      -1     1.00    4.00    6.00       0     1.00    4.00    6.00       0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 6 
#
# Collective test concluded: all_reduce
#
";
    let (first, rest) = text.split_once('\n').unwrap();
    assert!(first.ends_with(" with NCCL 2.32.3 (here)"));
    assert_eq!(rest, expected);
}

#[test]
fn columns_of_single_iterations_and_timestamps_are_those_of_nccl_tests() {
    let text = table("all_reduce -I 1 -S 1");
    let lines: Vec<_> =
        text.lines().filter(|line| line.contains("i_min") || line.starts_with("        4000")).collect();
    let titles = "#       size         count      type   redop    root     time   algbw   busbw  #wrong    i_min    \
                  i_max    i_p99    i_cv%     time   algbw   busbw  #wrong    i_min    i_max    i_p99    i_cv%           \
                  timestamp";
    assert_eq!(lines[0], titles);
    let row = "        4000          1000     float     sum      -1     1.00    4.00    6.00       0     1.00     \
               3.00     2.00    50.00     1.00    4.00    6.00       0     1.00     3.00     2.00    50.00  20";
    assert!(lines[1].starts_with(row), "{}", lines[1]);
    assert_eq!(lines[1].len(), row.len() - 2 + 19, "{}", lines[1]);
}
