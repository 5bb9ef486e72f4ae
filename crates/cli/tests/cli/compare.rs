//! `nccl bench compare`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use libnccl_test_support::random_inputs::Random;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::common::{
    NCCL, assert_has, assert_visible, changed_library, fifo, in_time, json, list, nccl, read, run,
};

/// Runs the command, which has to end with this status, in a folder. Returns stdout and stderr.
fn compare(folder: &Path, arguments: &str, status: i32) -> (String, String) {
    run(nccl(&format!("bench compare {arguments}")).current_dir(folder), status)
}

/// Returns what a measurement writes as `a.json`.
fn measure(folder: &Path, arguments: &str) -> Value {
    run(nccl(&format!("bench {arguments} --cpu --json=a.json")).current_dir(folder), 0);
    json(&read(&folder.join("a.json")))
}

/// A folder with a result, `a.json`, and others that are made of it.
struct Results {
    folder: TempDir,
    result: Value,
}

impl Results {
    fn new() -> Self {
        let folder = TempDir::new().expect("a folder");
        Self { result: measure(folder.path(), "all_reduce --ranks 2 -b 8 -e 1K -f 8 -n 5"), folder }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Writes the result with a change as `b.json`.
    fn write(&self, change: impl FnOnce(&mut Value)) -> PathBuf {
        let mut result = self.result.clone();
        change(&mut result);
        let path = self.path().join("b.json");
        fs::write(&path, result.to_string()).expect("the file is written");
        path
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

#[test]
fn slower_row_is_below_the_threshold_and_named() {
    let results = Results::new();
    results.write(|result| slow_down(&mut result["rows"][1]["in_place"], 2.0));
    let (stdout, stderr) = compare(results.path(), "a.json b.json --threshold 0.95", 1);
    let below: Vec<&str> = stdout.lines().filter(|line| line.ends_with("below the threshold")).collect();
    assert_eq!(below.len(), 1, "{stdout}");
    let fields: Vec<&str> = below[0].split_whitespace().collect();
    assert_eq!((fields[0], fields[4], fields[9]), ("64", "in", "0.500"), "{stdout}");
    assert_eq!(stderr, "error: 1 of 6 ratios are below 0.95\n");
    compare(results.path(), "a.json b.json --threshold 0.4", 0);
    compare(results.path(), "b.json a.json --threshold 0.95", 0);
    compare(results.path(), "a.json b.json", 0);
}

#[test]
fn json_has_ratio_and_spread_of_each_row() {
    let results = Results::new();
    results.write(|result| slow_down(&mut result["rows"][0]["out_of_place"], 4.0));
    let (stdout, _) = compare(results.path(), "a.json b.json --json --threshold 0.5", 1);
    let comparison = json(&stdout);
    assert_eq!((&comparison["schema"], &comparison["operation"]), (&json!(2), &json!("all_reduce")));
    let rows = list(&comparison["rows"]);
    assert_eq!(rows.len(), 6);
    let row = &rows[0];
    assert_eq!((&row["bytes"], &row["in_place"], &row["is_below"]), (&json!(8), &json!(false), &json!(true)));
    assert_eq!(row["ratio"], json!(0.25));
    let [low, high] = ["low", "high"].map(|name| row[name].as_f64().expect("a number"));
    assert!((low..=high).contains(&0.25), "{row}");
    assert_eq!((&rows[1]["ratio"], &rows[1]["is_below"]), (&json!(1.0), &json!(false)));
}

/// Returns each row's figures, as they are printed: times, bandwidths and ratio.
fn printed(table: &str) -> Vec<[&str; 5]> {
    let rows = table.lines().filter(|line| !line.starts_with('#')).skip(1);
    rows.map(|row| row.split_whitespace().skip(5).collect::<Vec<_>>()[..5].try_into().expect("columns"))
        .collect()
}

/// Returns the least and the most that a printed number can stand for.
fn rounded(text: &str) -> [f64; 2] {
    let decimals = text.split_once('.').map_or(0, |(_, decimals)| decimals.len() as i32);
    let value: f64 = text.parse().expect("a number");
    [-0.500_001, 0.500_001].map(|half| value + half * 0.1_f64.powi(decimals))
}

/// Checks that the ratio is the quotient of the figures beside it, all as far as they are printed.
fn check_quotients(table: &str) {
    for row in printed(table) {
        let [a, b, bandwidth, other, ratio] = row.map(rounded);
        for (over, under) in [(a, b), (other, bandwidth)] {
            // By multiplication: a figure may be printed as 0.
            let is_quotient = over[0] <= ratio[1] * under[1] && ratio[0] * under[0].max(0.0) <= over[1];
            assert!(is_quotient, "{row:?}\n{table}");
        }
    }
}

/// Checks the same of the JSON, which has all digits.
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
fn ratio_is_the_quotient_of_the_figures_beside_it() {
    let results = Results::new();
    let mut random = Random(1);
    for _ in 0..20 {
        results.write(|result| {
            for row in result["rows"].as_array_mut().expect("rows") {
                for place in ["out_of_place", "in_place"] {
                    // From a thousandth to a thousandfold.
                    slow_down(
                        &mut row[place],
                        10_f64.powf((random.next() >> 40) as f64 / (1 << 24) as f64 * 6.0 - 3.0),
                    );
                }
            }
        });
        check_quotients(&compare(results.path(), "a.json b.json", 0).0);
        let (stdout, _) = compare(results.path(), "a.json b.json --json", 0);
        check_json(&json(&stdout));
    }
}

#[test]
fn usage_of_a_measurement_is_that_of_nccl() {
    let folder = TempDir::new().expect("a folder");
    let (_, stderr) = compare(folder.path(), "--backend cpu --backend cpu -- all_reduce --bogus", 1);
    assert!(stderr.contains("Usage: nccl bench "), "{stderr}");
}

#[test]
fn ratio_of_rounds_is_the_quotient_of_the_figures_beside_it() {
    let folder = TempDir::new().expect("a folder");
    // An even and an odd number, of which the medians differ.
    for rounds in [2, 3] {
        let arguments = format!("--backend cpu --backend cpu --rounds {rounds}");
        let measurement = "-- all_reduce --ranks 2 -b 8 -e 64 -f 8 -n 3";
        check_quotients(&compare(folder.path(), &format!("{arguments} {measurement}"), 0).0);
        let (stdout, _) = compare(folder.path(), &format!("{arguments} --json {measurement}"), 0);
        check_json(&json(&stdout));
    }
}

#[test]
fn planted_slowdown_is_shown_as_that_factor() {
    let results = Results::new();
    for (factor, ratio) in [(0.25, "4.000"), (1.25, "0.800"), (2.0, "0.500"), (8.0, "0.125")] {
        results.write(|result| {
            for row in result["rows"].as_array_mut().expect("rows") {
                for place in ["out_of_place", "in_place"] {
                    slow_down(&mut row[place], factor);
                }
            }
        });
        let (stdout, _) = compare(results.path(), "a.json b.json", 0);
        assert!(printed(&stdout).iter().all(|row| row[4] == ratio), "{factor}\n{stdout}");
        assert!(
            stdout.ends_with(&format!("# geometric mean of the ratios: {ratio}\n")),
            "{factor}\n{stdout}"
        );
    }
}

#[test]
fn statistic_is_the_mean_if_a_row_has_no_iterations() {
    let results = Results::new();
    let (stdout, _) = compare(results.path(), "a.json a.json", 0);
    assert_has(&stdout, &["# A, B: median of single iterations\n"]);
    results.write(|result| {
        result["rows"][0]["in_place"]["iterations"] = json!([]);
        result["rows"][1]["out_of_place"]["time_us"] = json!(7.5);
    });
    let (stdout, _) = compare(results.path(), "a.json b.json", 0);
    assert_has(&stdout, &["# A, B: mean of the loop\n"]);
    assert_eq!(printed(&stdout)[2][1], "7.500", "{stdout}");
    let (stdout, _) = compare(results.path(), "a.json b.json --json", 0);
    let comparison = json(&stdout);
    assert_eq!(comparison["statistic"], json!("mean"));
    assert_eq!(comparison["rows"][0]["low"], Value::Null);
}

#[test]
fn bandwidth_at_the_mean_is_that_of_the_measurement() {
    for operation in ["all_reduce", "all_gather", "alltoallv", "hypercube"] {
        let folder = TempDir::new().expect("a folder");
        for (ranks, factor) in [(1, "algbw"), (2, "busbw")] {
            let arguments = format!("{operation} --ranks {ranks} -b 1K -e 1K -n 2");
            let mut result = measure(folder.path(), &arguments);
            let measured = &mut result["rows"][0]["out_of_place"];
            measured["iterations"] = json!([]);
            let expected = measured[factor].as_f64().expect("a number");
            fs::write(folder.path().join("a.json"), result.to_string()).expect("the file is written");
            let (stdout, _) = compare(folder.path(), "a.json a.json --json", 0);
            let bandwidth = json(&stdout)["rows"][0]["busbws"][0].as_f64().expect("a number");
            assert!((bandwidth - expected).abs() <= expected * 1e-9, "{operation}: {bandwidth}, {expected}");
        }
    }
}

#[test]
fn other_operation_or_number_of_ranks_is_refused() {
    let results = Results::new();
    results.write(|result| result["operation"] = json!("broadcast"));
    let (_, stderr) = compare(results.path(), "a.json b.json", 1);
    let expected = "error: a.json measured all_reduce, b.json measured broadcast: only results of one operation can be compared\n";
    assert_eq!(stderr, expected);
    results.write(|result| drop(result["ranks"].as_array_mut().expect("ranks").pop()));
    let (_, stderr) = compare(results.path(), "a.json b.json", 1);
    assert!(stderr.starts_with("error: a.json has 2 ranks, b.json has 1: "), "{stderr}");
    results.write(|result| result["schema"] = json!(7));
    let (_, stderr) = compare(results.path(), "a.json b.json", 1);
    assert!(stderr.starts_with("error: b.json: schema 7 "), "{stderr}");
    let (_, stderr) = compare(results.path(), "a.json c.json", 1);
    assert!(stderr.starts_with("error: cannot read c.json: "), "{stderr}");
}

#[test]
fn other_parameters_and_missing_rows_are_named() {
    let results = Results::new();
    results.write(|result| {
        result["parameters"]["iters"] = json!(99);
        result["host"] = json!("elsewhere");
        result["rows"].as_array_mut().expect("rows").remove(0);
    });
    let (stdout, _) = compare(results.path(), "a.json b.json", 0);
    let host = stdout.lines().find(|line| line.starts_with("# differs: host: "));
    assert!(host.is_some_and(|line| line.ends_with(", elsewhere")), "{stdout}");
    let notes = [
        "# differs: iters: 5, 99\n",
        "# not compared: 8 bytes of float, sum, in a.json alone\n",
        "# not compared: 8 bytes of float, sum, in place, in a.json alone\n",
    ];
    assert_has(&stdout, &notes);
    results.write(|result| result["rows"] = json!([]));
    let (_, stderr) = compare(results.path(), "a.json b.json", 1);
    assert_eq!(stderr, "error: a.json and b.json have no row in common\n");
}

#[test]
fn wrong_elements_of_either_side_are_named_and_an_error() {
    let results = Results::new();
    for (place, form) in [("out_of_place", ""), ("in_place", ", in place")] {
        results.write(|result| result["rows"][1][place]["wrong"] = json!(3));
        let row = format!("64 bytes of float, sum{form}, in b.json: 3 elements");
        for arguments in ["a.json b.json", "b.json a.json --threshold 0.01"] {
            let (stdout, stderr) = compare(results.path(), arguments, 1);
            assert_has(&stdout, &[&format!("# wrong: {row}\n"), " 1.000 "]);
            assert_eq!(stderr, "error: wrong elements in 1 of the rows: their times are meaningless\n");
        }
        let (stdout, _) = compare(results.path(), "a.json b.json --json", 1);
        assert_eq!(json(&stdout)["wrong"], json!([row]));
        // Those of a row that the other side lacks, too.
        let mut other = results.result.clone();
        drop(other["rows"].as_array_mut().expect("rows").remove(1));
        fs::write(results.path().join("c.json"), other.to_string()).expect("the file is written");
        compare(results.path(), "c.json b.json", 1);
    }
    // Not checked is not wrong.
    results.write(|result| result["rows"][1]["in_place"]["wrong"] = Value::Null);
    let (stdout, _) = compare(results.path(), "a.json b.json --json", 0);
    assert_eq!(json(&stdout)["wrong"], json!([]));
}

#[test]
fn row_whose_times_have_no_ratio_is_named() {
    let results = Results::new();
    for time in [json!(0), json!(0.0), json!(-1.5), json!(-0.0), json!(1e-320)] {
        // A ratio beyond all numbers is none.
        let own = if time == json!(1e-320) { 1e300 } else { 1.0 };
        let change = |result: &mut Value, time: &Value| {
            result["rows"][1]["in_place"]["iterations"] = json!([]);
            result["rows"][1]["in_place"]["time_us"] = time.clone();
        };
        let path = results.write(|result| change(result, &json!(own)));
        fs::rename(&path, results.path().join("c.json")).expect("the file is renamed");
        results.write(|result| change(result, &time));
        for arguments in ["c.json b.json", "b.json c.json"] {
            let (_, stderr) = compare(results.path(), &format!("{arguments} --threshold 0.001"), 1);
            assert_eq!(stderr, "error: 1 of the rows have no ratio, which could be below 0.001\n");
            let (stdout, _) = compare(results.path(), arguments, 0);
            assert_has(
                &stdout,
                &["# not compared: 64 bytes of float, sum, in place: no two times above 0\n"],
            );
            assert_eq!(printed(&stdout).len(), 5, "{stdout}");
        }
    }
    results.write(|result| {
        for place in ["out_of_place", "in_place"] {
            for row in result["rows"].as_array_mut().expect("rows") {
                row[place]["iterations"] = json!([]);
                row[place]["time_us"] = json!(0);
            }
        }
    });
    let (_, stderr) = compare(results.path(), "a.json b.json", 1);
    let expected =
        "error: a.json and b.json cannot be compared; 8 bytes of float, sum: no two times above 0\n";
    assert_eq!(stderr, expected);
}

#[test]
fn rows_of_each_cycle_are_compared_with_those_of_the_same() {
    let folder = TempDir::new().expect("a folder");
    let mut result = measure(folder.path(), "all_reduce --ranks 2 -b 8 -e 8 -n 5 -N 2");
    slow_down(&mut result["rows"][1]["in_place"], 4.0);
    fs::write(folder.path().join("b.json"), result.to_string()).expect("the file is written");
    let (stdout, _) = compare(folder.path(), "a.json b.json", 0);
    let ratios: Vec<&str> = printed(&stdout).iter().map(|row| row[4]).collect();
    assert_eq!(ratios, ["1.000", "1.000", "1.000", "0.250"], "{stdout}");
    result["rows"].as_array_mut().expect("rows").remove(1);
    fs::write(folder.path().join("b.json"), result.to_string()).expect("the file is written");
    let (stdout, _) = compare(folder.path(), "a.json b.json", 0);
    assert_has(&stdout, &["# not compared: 8 bytes of float, sum, in place, cycle 2, in a.json alone\n"]);
}

#[test]
fn statistic_is_the_mean_if_the_iterations_of_a_rank_are_missing() {
    let results = Results::new();
    results.write(|result| {
        drop(result["rows"][2]["in_place"]["iterations"].as_array_mut().expect("iterations").pop());
    });
    for arguments in ["a.json b.json", "b.json a.json"] {
        assert_has(&compare(results.path(), arguments, 0).0, &["# A, B: mean of the loop\n"]);
    }
}

#[test]
fn control_characters_of_a_result_are_escaped() {
    let results = Results::new();
    let evil = |name: &str| json!(format!("{name}\u{1b}[2J\u{9b}\n\u{7f}"));
    let escaped = |name: &str| format!(r"{name}\u001b[2J\u009b\u000a\u007f");
    let path = results.write(|result| {
        result["operation"] = evil("operation");
        for name in ["version", "backend", "path"] {
            result["library"][name] = evil(name);
        }
        result["rows"][0]["data_type"] = evil("type");
        result["rows"][0]["op"] = evil("op");
    });
    fs::rename(&path, results.path().join("a.json")).expect("the file is renamed");
    let path = results.write(|result| {
        *result = json(&read(&results.path().join("a.json")));
        result["rows"][1]["data_type"] = evil("other");
        for name in ["host", "launch"] {
            result[name] = evil(name);
        }
        result["ranks"][0]["device"] = evil("device");
    });
    assert!(path.ends_with("b.json"));
    let (table, _) = compare(results.path(), "a.json b.json", 0);
    assert_visible(&table);
    let [operation, version, backend, path] = ["operation", "version", "backend", "path"].map(escaped);
    let parts = [
        format!("# {operation} with 2 ranks\n"),
        format!("# A: a.json: NCCL {version} ({backend}, {path})\n"),
        format!(", {}\n", escaped("launch")),
        format!(", {}\n", escaped("host")),
        format!(", {} host memory\n", escaped("device")),
        format!("# not compared: 64 bytes of {}, sum, in b.json alone\n", escaped("other")),
        format!("  {}  {}  ", escaped("type"), escaped("op")),
    ];
    for part in &parts {
        assert_has(&table, &[part]);
    }
    let (printed, _) = compare(results.path(), "a.json b.json --json", 0);
    assert_visible(&printed);
    assert_eq!(json(&printed)["operation"], evil("operation"));
    results.write(|result| result["operation"] = evil("another"));
    let (_, stderr) = compare(results.path(), "a.json b.json", 1);
    assert_visible(&stderr);
    assert_has(&stderr, &[r", b.json measured another\u001b[2J\u009b"]);
}

#[test]
fn verdict_of_a_comparison_is_not_lost_with_its_output() {
    let results = Results::new();
    results.write(|result| slow_down(&mut result["rows"][1]["in_place"], 2.0));
    for json in ["", " --json"] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let mut command = nccl(&format!("bench compare a.json b.json --threshold 0.95{json}"));
        let (_, stderr) = run(command.current_dir(results.path()).stdout(writer), 1);
        assert_eq!(stderr, "error: 1 of 6 ratios are below 0.95\n");
    }
}

/// The library fails in each process but the first.
#[test]
fn failure_keeps_the_rounds_that_were_measured() {
    let folder = TempDir::new().expect("a folder");
    let file = folder.path().join("used");
    let library = changed_library(
        folder.path(),
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
    let (stdout, stderr) = compare(folder.path(), &arguments, 1);
    assert_eq!(printed(&stdout).len(), 2, "{stdout}");
    assert!(stderr.ends_with("error: the measurement with dlopen ended: exit status: 1\n"), "{stderr}");
    let (stdout, _) = compare(folder.path(), &arguments, 1);
    assert_eq!(stdout, "");
}

/// The table of `nccl bench` has the format of nccl-tests.
#[test]
fn output_of_nccl_tests_is_one_side() {
    let results = Results::new();
    let table = run(&mut nccl("bench all_reduce --ranks 2 -b 64 -e 64 -n 5 --cpu"), 0).0;
    let theirs = table.replace("starting: all_reduce", "starting: all_reduce_perf");
    let theirs = theirs
        .replace("# nccl 0", "# nccl-tests version 2.19.6 nccl-headers=22809 nccl-library=22809\n# nccl 0");
    fs::write(results.path().join("perf.txt"), &theirs).expect("the file is written");
    let (stdout, _) = compare(results.path(), "a.json perf.txt", 0);
    let parts = [
        "# B: perf.txt: NCCL 2.28.9 (nccl-tests)\n",
        "# differs: min_bytes: 8, 64\n",
        "# not compared: 8 bytes of float, sum, in a.json alone\n",
        "# A, B: mean of the loop\n",
    ];
    assert_has(&stdout, &parts);
    assert_eq!(printed(&stdout).len(), 2, "{stdout}");
    let time =
        theirs.lines().find(|line| line.starts_with("  ")).and_then(|row| row.split_whitespace().nth(5));
    let time: f64 = time.expect("a row").parse().expect("a time");
    assert_eq!(printed(&stdout)[0][1].parse(), Ok(time), "{stdout}");
    fs::write(results.path().join("perf.txt"), "# nothing\n").expect("the file is written");
    let (_, stderr) = compare(results.path(), "a.json perf.txt", 1);
    assert!(stderr.starts_with("error: perf.txt: no line \"# Collective test starting\": "), "{stderr}");
}

#[test]
fn result_in_a_fifo_needs_a_writer() {
    let results = Results::new();
    results.write(|_| {});
    let path = results.path().join("fifo");
    fifo(&path);
    let folder = results.path().to_owned();
    let (_, stderr) = in_time(move || compare(&folder, "fifo b.json", 1));
    assert_eq!(stderr, "error: cannot read fifo: a FIFO to which nobody writes\n");
    // As a shell's <(...) gives it.
    let line = format!("cat a.json | '{NCCL}' bench compare /dev/stdin b.json");
    let (stdout, _) = run(Command::new("sh").args(["-c", &line]).current_dir(results.path()), 0);
    assert_eq!(printed(&stdout).len(), 6, "{stdout}");
}

#[test]
fn backends_are_measured_in_turn() {
    let folder = TempDir::new().expect("a folder");
    let arguments = "--backend cpu --backend cpu --rounds 2 -- all_reduce --ranks 2 -b 8 -e 64 -f 8 -n 3";
    let (stdout, _) = compare(folder.path(), arguments, 0);
    assert_eq!(stdout.matches(": cpu: NCCL ").count(), 2, "{stdout}");
    assert_eq!(stdout.matches(", 2 rounds\n").count(), 2, "{stdout}");
    assert_eq!(stdout.lines().filter(|line| !line.starts_with('#')).count(), 1 + 4, "{stdout}");
    let (_, stderr) = compare(folder.path(), "--backend cpu --backend cpu -- all_reduce -b 64 -e 8", 1);
    assert_has(&stderr, &["error: the measurement with cpu ended: exit status: 2\n"]);
}

#[test]
fn one_backend_or_one_file_is_an_invalid_command_line() {
    let folder = TempDir::new().expect("a folder");
    let (_, stderr) = compare(folder.path(), "--backend cpu -- all_reduce", 2);
    assert!(stderr.starts_with("error: --backend is given 1 times: expected two to compare\n"), "{stderr}");
    let (_, stderr) = compare(folder.path(), "--backend cpu --backend cpu", 2);
    assert!(stderr.starts_with("error: no operation to measure: "), "{stderr}");
    let (_, stderr) = compare(folder.path(), "a.json", 2);
    assert_has(&stderr, &["2 values required"]);
    let (_, stderr) = compare(folder.path(), "a.json b.json --threshold 0", 2);
    assert_has(&stderr, &["expected a number above 0, such as 0.95"]);
}

#[cfg(not(feature = "link"))]
#[test]
fn link_without_the_feature_is_an_error_that_says_so() {
    let folder = TempDir::new().expect("a folder");
    let (_, stderr) = compare(folder.path(), "--backend link --backend cpu -- all_reduce", 1);
    assert_has(&stderr, &["this program is not linked with NCCL"]);
    assert!(stderr.ends_with("error: the measurement with link ended: exit status: 1\n"), "{stderr}");
}
