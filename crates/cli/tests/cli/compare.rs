//! `nccl bench compare`.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::common::{
    NCCL, assert_has, assert_visible, changed_library, fifo, json, list, nccl, read, run, within_limit,
};
use crate::snapshot::Session;

/// Runs the command, which must exit with this status, in a directory. Returns stdout and stderr.
fn compare(directory: &Path, arguments: &str, status: i32) -> (String, String) {
    run(nccl(&format!("bench compare {arguments}")).current_dir(directory), status)
}

/// Returns a result of `nccl bench --json`, of three sizes on two ranks.
pub(crate) fn result() -> Value {
    json(include_str!("result.json"))
}

/// A session with a result, `a.json`, and others that are derived from it.
struct Results(Session);

impl Results {
    fn new() -> Self {
        let session = Session::new();
        session.write("a.json", include_str!("result.json"));
        Self(session)
    }

    /// Writes the result with a change as `b.json`.
    fn write(&self, change: impl FnOnce(&mut Value)) {
        let mut result = result();
        change(&mut result);
        self.0.write("b.json", result.to_string());
    }

    fn compare(&mut self, arguments: &str) -> String {
        let arguments = format!("bench compare {arguments}");
        self.0.run(&arguments, &mut nccl(&arguments))
    }
}

/// Multiplies all times of a row's measurement.
fn slow_down(measured: &mut Value, factor: f64) {
    let multiply = |value: &mut Value| *value = json!(value.as_f64().expect("a number") * factor);
    multiply(&mut measured["time_us"]);
    for iterations in measured["iterations"].as_array_mut().expect("iterations") {
        for name in ["min_us", "median_us", "p99_us", "max_us"] {
            multiply(&mut iterations[name]);
        }
    }
}

/// Calls a function with each measurement.
fn for_each_measured(result: &mut Value, mut change: impl FnMut(&mut Value)) {
    for row in result["rows"].as_array_mut().expect("rows") {
        change(&mut row["out_of_place"]);
        change(&mut row["in_place"]);
    }
}

fn without_iterations(measured: &mut Value, time: Value) {
    measured["iterations"] = json!([]);
    measured["time_us"] = time;
}

#[test]
fn slower_row_is_below_the_threshold_and_named() {
    let mut results = Results::new();
    results.write(|result| slow_down(&mut result["rows"][1]["in_place"], 2.0));
    for arguments in [
        "a.json b.json --threshold 0.95",
        "a.json b.json --threshold 0.4",
        "b.json a.json --threshold 0.95",
        "a.json b.json --json --threshold 0.95",
    ] {
        results.compare(arguments);
    }
    results.0.check("compare_threshold");
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
fn planted_slowdown_is_shown_as_that_factor() {
    let mut results = Results::new();
    for factor in [0.25, 1.25, 2.0, 8.0] {
        results.write(|result| for_each_measured(result, |measured| slow_down(measured, factor)));
        results.0.add(&format!("# Times multiplied by {factor}"), "");
        results.compare("a.json b.json");
    }
    results.0.check("compare_planted_slowdown");
}

#[test]
fn statistic_is_the_mean_if_a_row_has_not_the_iterations_of_all_ranks() {
    let mut results = Results::new();
    results.compare("a.json a.json");
    results.write(|result| {
        result["rows"][0]["in_place"]["iterations"] = json!([]);
        result["rows"][1]["out_of_place"]["time_us"] = json!(7.5);
    });
    results.compare("a.json b.json");
    results.compare("a.json b.json --json");
    results.write(|result| {
        drop(result["rows"][2]["in_place"]["iterations"].as_array_mut().expect("iterations").pop());
    });
    results.compare("a.json b.json");
    results.compare("b.json a.json");
    results.0.check("compare_statistic");
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

#[test]
fn other_results_are_refused_and_differences_named() {
    let mut results = Results::new();
    let changes: [fn(&mut Value); 8] = [
        |result| result["operation"] = json!("broadcast"),
        |result| drop(result["ranks"].as_array_mut().expect("ranks").pop()),
        |result| result["schema"] = json!(7),
        |result| result["rows"] = json!([]),
        |result| for_each_measured(result, |measured| without_iterations(measured, json!(0))),
        |result| result["parameters"]["iters"] = json!(99),
        |result| result["host"] = json!("elsewhere"),
        |result| drop(result["rows"].as_array_mut().expect("rows").remove(0)),
    ];
    for change in changes {
        results.write(change);
        results.compare("a.json b.json");
    }
    results.compare("a.json c.json");
    results.0.check("compare_differences");
}

#[test]
fn mismatches_of_either_side_are_named_and_an_error() {
    let mut results = Results::new();
    for place in ["out_of_place", "in_place"] {
        results.write(|result| result["rows"][1][place]["wrong"] = json!(3));
        for arguments in ["a.json b.json", "b.json a.json --threshold 0.01", "a.json b.json --json"] {
            results.compare(arguments);
        }
        // Also the mismatches of a row that the other side lacks.
        let mut other = result();
        drop(other["rows"].as_array_mut().expect("rows").remove(1));
        results.0.write("c.json", other.to_string());
        results.compare("c.json b.json");
    }
    // Unchecked results have no mismatches.
    results.write(|result| result["rows"][1]["in_place"]["wrong"] = Value::Null);
    assert_eq!(json(&results.compare("a.json b.json --json"))["wrong"], json!([]));
    results.0.check("compare_mismatches");
}

#[test]
fn row_whose_times_have_no_ratio_is_named() {
    let mut results = Results::new();
    for time in [json!(0), json!(0.0), json!(-1.5), json!(-0.0), json!(1e-320)] {
        // An infinite ratio does not count.
        let own = if time == json!(1e-320) { 1e300 } else { 1.0 };
        let change = |time| |result: &mut Value| without_iterations(&mut result["rows"][1]["in_place"], time);
        results.0.add(&format!("# {own} us, {time} us"), "");
        results.write(change(json!(own)));
        fs::rename(results.0.path("b.json"), results.0.path("c.json")).expect("the file is renamed");
        results.write(change(time));
        for arguments in ["c.json b.json", "b.json c.json"] {
            let table = results.compare(arguments);
            assert_eq!(printed(&table).len(), 5, "{table}");
            let (_, stderr) = compare(&results.0.path(""), &format!("{arguments} --threshold 0.001"), 1);
            assert_eq!(stderr, "error: 1 of the rows have no ratio, which could be below 0.001\n");
        }
    }
    results.0.check("compare_no_ratio");
}

#[test]
fn rows_of_each_cycle_are_compared_with_those_of_the_same() {
    let mut results = Results::new();
    let mut result = result();
    result["parameters"]["run_cycles"] = json!(2);
    let row = result["rows"][0].clone();
    result["rows"] = json!([row, row]);
    results.0.write("a.json", result.to_string());
    slow_down(&mut result["rows"][1]["in_place"], 4.0);
    results.0.write("b.json", result.to_string());
    results.compare("a.json b.json");
    result["rows"].as_array_mut().expect("rows").remove(1);
    results.0.write("b.json", result.to_string());
    results.compare("a.json b.json");
    results.0.check("compare_cycles");
}

#[test]
fn control_characters_of_a_result_are_escaped() {
    let mut results = Results::new();
    let evil = |name: &str| json!(format!("{name}\u{1b}[2J\u{9b}\n\u{7f}"));
    let change = |result: &mut Value| {
        result["operation"] = evil("operation");
        for name in ["version", "backend", "path"] {
            result["library"][name] = evil(name);
        }
        result["rows"][0]["data_type"] = evil("type");
        result["rows"][0]["op"] = evil("op");
    };
    results.write(change);
    fs::rename(results.0.path("b.json"), results.0.path("a.json")).expect("the file is renamed");
    results.write(|result| {
        change(result);
        result["rows"][1]["data_type"] = evil("other");
        for name in ["host", "launch"] {
            result[name] = evil(name);
        }
        result["ranks"][0]["device"] = evil("device");
    });
    assert_visible(&results.compare("a.json b.json"));
    let printed = results.compare("a.json b.json --json");
    assert_visible(&printed);
    assert_eq!(json(&printed)["operation"], evil("operation"));
    results.write(|result| result["operation"] = evil("another"));
    results.compare("a.json b.json");
    assert_visible(&compare(&results.0.path(""), "a.json b.json", 1).1);
    results.0.check("compare_control_characters");
}

#[test]
fn verdict_of_a_comparison_is_not_lost_with_its_output() {
    let results = Results::new();
    results.write(|result| slow_down(&mut result["rows"][1]["in_place"], 2.0));
    for json in ["", " --json"] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let mut command = nccl(&format!("bench compare a.json b.json --threshold 0.95{json}"));
        let (_, stderr) = run(command.current_dir(results.0.path("")).stdout(writer), 1);
        assert_eq!(stderr, "error: 1 of 6 ratios are below 0.95\n");
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

/// The table of `nccl bench` has the format of nccl-tests.
#[test]
fn output_of_nccl_tests_is_one_side() {
    let mut results = Results::new();
    let table = run(&mut nccl("bench all_reduce --ranks 2 -b 64 -e 64 -n 5 --cpu"), 0).0;
    let theirs = table.replace("starting: all_reduce", "starting: all_reduce_perf");
    let theirs = theirs
        .replace("# nccl 0", "# nccl-tests version 2.19.6 nccl-headers=22809 nccl-library=22809\n# nccl 0");
    results.0.write("perf.txt", &theirs);
    let (stdout, _) = compare(&results.0.path(""), "a.json perf.txt", 0);
    let parts = ["# B: perf.txt: NCCL 2.28.9 (nccl-tests)\n", "# A, B: mean of the loop\n"];
    assert_has(&stdout, &parts);
    assert_eq!(printed(&stdout).len(), 2, "{stdout}");
    let time =
        theirs.lines().find(|line| line.starts_with("  ")).and_then(|row| row.split_whitespace().nth(5));
    let time: f64 = time.expect("a row").parse().expect("a time");
    assert_eq!(printed(&stdout)[0][1].parse(), Ok(time), "{stdout}");
    results.0.write("perf.txt", "# nothing\n");
    results.compare("a.json perf.txt");
    results.0.check("compare_nccl_tests");
}

#[test]
fn result_in_a_fifo_needs_a_writer() {
    let results = Results::new();
    results.write(|_| {});
    let directory = results.0.path("");
    fifo(&directory.join("fifo"));
    let (_, stderr) = within_limit({
        let directory = directory.clone();
        move || compare(&directory, "fifo b.json", 1)
    });
    assert_eq!(stderr, "error: cannot read fifo: a FIFO to which nobody writes\n");
    // As with a shell's <(...).
    let line = format!("cat a.json | '{NCCL}' bench compare /dev/stdin b.json");
    let (stdout, _) = run(Command::new("sh").args(["-c", &line]).current_dir(directory), 0);
    assert_eq!(printed(&stdout).len(), 6, "{stdout}");
}

#[cfg(not(feature = "link"))]
#[test]
fn link_without_the_feature_is_an_error_that_says_so() {
    Session::new().replay("compare_link", Session::nccl);
}
