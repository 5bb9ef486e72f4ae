use serde_json::json;

use super::read_nccl_tests;

const TABLE: &str = "\
# nccl-tests version 2.19.6 nccl-headers=23203 nccl-library=22809
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 2 minBytes 8 maxBytes 16 step: 2(factor) warmup iters: 1 iters: 20 agg iters: 3 validation: 1 graph: 0 unalign: 2
#
# Using devices
#  Rank  0 Group  0 Pid 101855 on       n013 device  0 [0000:81:00] NVIDIA A100-PCIE-40GB
#  Rank  1 Group  0 Pid 101855 on       n013 device  1 [0000:82:00] NVIDIA A100-PCIE-40GB
#
#                                                              out-of-place                       in-place          
       8             2     float     sum      -1     2.00    0.00    0.00       0     4.00    0.00    0.00     N/A
      16             4     float     sum      -1     5.00    0.00    0.00       0     1.00     9.00     2.00    50.00     6.00    0.00    0.00       3     1.00     3.00     2.00    50.00
# Out of bounds values : 0 OK
";

#[test]
fn table_of_nccl_tests_is_a_result() {
    let report = read_nccl_tests(TABLE.as_bytes()).unwrap();
    assert_eq!(
        (&*report.operation, report.ranks.len(), &*report.library.version),
        ("all_reduce", 2, "2.28.9")
    );
    assert_eq!(report.ranks[1].device.as_deref(), Some("[0000:82:00] NVIDIA A100-PCIE-40GB"));
    let parameters = json!({
        "min_bytes": 8, "max_bytes": 16, "warmup_iters": 1, "iters": 20, "agg_iters": 3, "check": 1, "graph": 0,
        "unalign": 2,
    });
    assert_eq!(json!(report.parameters), parameters);
    let [one, two] = &report.rows[..] else { panic!("{:?}", report.rows) };
    let (out, place) = (one.out_of_place.as_ref().unwrap(), one.in_place.as_ref().unwrap());
    assert_eq!((one.bytes, &*one.data_type, one.op.as_deref(), one.root), (8, "float", Some("sum"), None));
    assert_eq!((out.time_us, out.busbw, out.wrong), (2.0, 0.004, Some(0)));
    assert_eq!((place.time_us, place.wrong), (4.0, None));
    let (out, place) = (two.out_of_place.as_ref().unwrap(), two.in_place.as_ref().unwrap());
    assert_eq!((out.time_us, place.time_us, place.wrong), (5.0, 6.0, Some(3)));
}

#[test]
fn fields_follow_the_operation() {
    let row = |operation: &str, fields: &str| {
        let text = format!(
            "# Collective test starting: {operation}\n#  Rank  0 Group  0 Pid 1 on a device 0 x\n8 2 half {fields}\n"
        );
        let report = read_nccl_tests(text.as_bytes()).unwrap();
        let row = &report.rows[0];
        (row.op.clone(), row.root, row.out_of_place.as_ref().map(|measured| measured.time_us))
    };
    assert_eq!(row("reduce_perf", "max 3 1.5 0 0 0 2 0 0 0"), (Some("max".into()), Some(3), Some(1.5)));
    assert_eq!(row("sendrecv", "sum -1 N/A 0 0 0 2 0 0 0"), (None, None, None));
    assert_eq!(row("hypercube_perf_mpi", "-1 1.5 0 0 0 2 0 0 N/A"), (None, None, Some(1.5)));
}

#[test]
fn many_mismatches_and_a_failure_are_kept() {
    let wrong = TABLE
        .replace("0.00    3 ", "0.00    2.09715e+06 ")
        .replace("       3     1.00", "  2.09715e+06  1.00");
    let report = read_nccl_tests(wrong.as_bytes()).unwrap();
    assert_eq!(report.rows[1].in_place.as_ref().unwrap().wrong, Some(2_097_150));
    let failed = TABLE.replace("       3     1.00", "     N/A     1.00").replace(": 0 OK", ": 2 FAILED");
    assert!(read_nccl_tests(failed.as_bytes()).unwrap_err().to_string().contains("FAILED"));
}

#[test]
fn other_text_is_refused() {
    for text in
        ["# a text", "# Collective test starting: ls_perf", "# Collective test starting: all_reduce_perf"]
    {
        assert!(read_nccl_tests(text.as_bytes()).is_err(), "{text}");
    }
}
