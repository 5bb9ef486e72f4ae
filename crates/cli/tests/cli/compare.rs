//! `nccl bench compare`.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::common::{changed_library, json, list, nccl, read, run};
use crate::results;
use crate::snapshot::Session;

/// Runs the command, which must exit with this status, in a directory. Returns stdout and stderr.
fn compare(directory: &Path, arguments: &str, status: i32) -> (String, String) {
    run(nccl(&format!("bench compare {arguments}")).current_dir(directory), status)
}

#[test]
fn results_are_compared() {
    let session = Session::new();
    session.write("perf.txt", include_str!("perf.txt"));
    session.replay("compare_results", results::command);
}

/// Returns each row's printed figures: times, bandwidths and ratio.
fn printed(table: &str) -> Vec<[&str; 5]> {
    let rows = table.lines().filter(|line| !line.starts_with('#')).skip(1);
    rows.map(|row| row.split_whitespace().skip(5).collect::<Vec<_>>()[..5].try_into().expect("columns"))
        .collect()
}

/// Checks that the ratio is the quotient of the printed figures.
fn check_json(comparison: &Value) {
    for row in list(&comparison["rows"]) {
        let [a, b, bandwidth, other, ratio, low, high] =
            ["/times_us/0", "/times_us/1", "/busbws/0", "/busbws/1", "/ratio", "/low", "/high"]
                .map(|field| row.pointer(field).and_then(Value::as_f64).expect("a number"));
        assert!((a / b / ratio - 1.0).abs() < 1e-12, "{row}");
        assert!((other / bandwidth / ratio - 1.0).abs() < 1e-9, "{row}");
        assert!((low..=high).contains(&ratio), "{row}");
    }
}

#[test]
fn backends_are_measured_in_turn_and_the_ratio_is_the_quotient_of_the_printed_figures() {
    let directory = TempDir::new().expect("a directory");
    // An even and an odd number of rounds, whose medians differ.
    for rounds in [2, 3] {
        let arguments = format!("--backend cpu --backend cpu --rounds {rounds}");
        let measurement = "-- all_reduce --ranks 2 -b 8 -e 64 -f 8 -n 3";
        let (table, _) = compare(directory.path(), &format!("{arguments} {measurement}"), 0);
        assert_eq!(printed(&table).len(), 4, "{table}");
        assert_eq!(table.matches(&format!(", {rounds} rounds\n")).count(), 2, "{table}");
        let (stdout, _) = compare(directory.path(), &format!("{arguments} --json {measurement}"), 0);
        check_json(&json(&stdout));
    }
}

#[test]
fn bandwidth_at_the_mean_is_that_of_the_measurement() {
    for operation in ["all_reduce", "all_gather", "alltoallv", "hypercube"] {
        let directory = TempDir::new().expect("a directory");
        let file = directory.path().join("a.json");
        for (ranks, factor) in [(1, "algbw"), (2, "busbw")] {
            let arguments = format!("bench {operation} --cpu --ranks {ranks} -b 1K -e 1K -n 2 --json=");
            run(&mut nccl(&format!("{arguments}{}", file.display())), 0);
            let mut result = json(&read(&file));
            let measured = &mut result["rows"][0]["out_of_place"];
            measured["iterations"] = json!([]);
            let expected = measured[factor].as_f64().expect("a number");
            fs::write(&file, result.to_string()).expect("the file is written");
            let (stdout, _) = compare(directory.path(), "a.json a.json --json", 0);
            let bandwidth = json(&stdout)["rows"][0]["busbws"][0].as_f64().expect("a number");
            assert!((bandwidth - expected).abs() <= expected * 1e-9, "{operation}: {bandwidth}, {expected}");
        }
    }
}

/// The library fails in each process except the first.
#[test]
fn failure_keeps_the_rounds_that_were_measured() {
    let directory = TempDir::new().expect("a directory");
    let file = directory.path().join("used");
    let library = changed_library(
        directory.path(),
        &format!(
            "ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {{
                if (fopen(\"{0}\", \"r\")) return ncclInternalError;
                fclose(fopen(\"{0}\", \"w\"));
                return pncclGetUniqueId(id);
            }}",
            file.display()
        ),
    );
    let arguments = format!(
        "--backend dlopen --backend cpu -- all_reduce --ranks 2 -e 8 -n 1 --library {}",
        library.display()
    );
    let (stdout, stderr) = compare(directory.path(), &arguments, 1);
    assert_eq!(printed(&stdout).len(), 2, "{stdout}");
    assert!(stderr.ends_with("error: the measurement with dlopen ended: exit status: 1\n"), "{stderr}");
    let (stdout, _) = compare(directory.path(), &arguments, 1);
    assert_eq!(stdout, "");
}

#[cfg(not(feature = "link"))]
#[test]
fn link_without_the_feature_is_an_error_that_says_so() {
    Session::new().replay("compare_link", Session::shell);
}
