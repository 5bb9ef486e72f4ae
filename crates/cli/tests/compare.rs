//! Runs `nccl bench compare` as a user does.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};
use tempfile::TempDir;

fn nccl(folder: &Path, arguments: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nccl"));
    command.arg("bench").args(arguments.split_whitespace()).current_dir(folder);
    command.output().expect("the program starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns what a comparison prints, and the error. The status has to be `status`.
fn compare(folder: &Path, arguments: &str, status: i32) -> (String, String) {
    let Output { status: ended, stdout, stderr } = nccl(folder, &format!("compare {arguments}"));
    let (stdout, stderr) = (text(&stdout), text(&stderr));
    assert_eq!(ended.code(), Some(status), "{arguments}\n{stdout}{stderr}");
    (stdout, stderr)
}

/// A folder with a result, `a.json`, and others that are made of it.
struct Results {
    folder: TempDir,
    result: Value,
}

impl Results {
    fn new() -> Self {
        let folder = TempDir::new().expect("a folder");
        let arguments = "all_reduce --cpu --ranks 2 -b 8 -e 1K -f 8 -n 5 --json=a.json";
        let Output { status, stderr, .. } = nccl(folder.path(), arguments);
        assert!(status.success(), "{}", text(&stderr));
        let read = fs::read_to_string(folder.path().join("a.json")).expect("the result");
        Self { result: serde_json::from_str(&read).expect("JSON"), folder }
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
    let comparison: Value = serde_json::from_str(&stdout).expect("JSON");
    assert_eq!((&comparison["schema"], &comparison["operation"]), (&json!(1), &json!("all_reduce")));
    let rows = comparison["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 6);
    let row = &rows[0];
    assert_eq!((&row["bytes"], &row["in_place"], &row["is_below"]), (&json!(8), &json!(false), &json!(true)));
    assert_eq!(row["ratio"], json!(0.25));
    let [low, high] = ["low", "high"].map(|name| row[name].as_f64().expect("a number"));
    assert!(low <= 0.25 && high >= 0.25, "{row}");
    assert_eq!((&rows[1]["ratio"], &rows[1]["is_below"]), (&json!(1.0), &json!(false)));
}

#[test]
fn other_operation_or_number_of_ranks_is_refused() {
    let results = Results::new();
    results.write(|result| result["operation"] = json!("broadcast"));
    let (_, stderr) = compare(results.path(), "a.json b.json", 1);
    let expected = "error: a.json is of all_reduce, and b.json of broadcast: only results of one operation can be compared\n";
    assert_eq!(stderr, expected);
    results.write(|result| drop(result["ranks"].as_array_mut().expect("ranks").pop()));
    let (_, stderr) = compare(results.path(), "a.json b.json", 1);
    assert!(stderr.starts_with("error: a.json is of 2 ranks, and b.json of 1: "), "{stderr}");
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
    assert!(stdout.contains("# differs: iters: 5, 99\n"), "{stdout}");
    assert!(
        stdout.lines().any(|line| line.starts_with("# differs: host: ") && line.ends_with(", elsewhere"))
    );
    assert!(stdout.contains("# not compared: 8 bytes of float, sum, in a.json alone\n"), "{stdout}");
    assert!(
        stdout.contains("# not compared: 8 bytes of float, sum, in place, in a.json alone\n"),
        "{stdout}"
    );
    results.write(|result| result["rows"] = json!([]));
    let (_, stderr) = compare(results.path(), "a.json b.json", 1);
    assert_eq!(stderr, "error: a.json and b.json have no row in common\n");
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
    assert!(stderr.contains("error: the measurement with cpu ended: exit status: 2\n"), "{stderr}");
}

#[test]
fn one_backend_or_one_file_is_an_invalid_command_line() {
    let folder = TempDir::new().expect("a folder");
    let (_, stderr) = compare(folder.path(), "--backend cpu -- all_reduce", 2);
    assert!(stderr.starts_with("error: --backend is given 1 times: expected two to compare\n"), "{stderr}");
    let (_, stderr) = compare(folder.path(), "--backend cpu --backend cpu", 2);
    assert!(stderr.starts_with("error: no operation to measure: "), "{stderr}");
    let (_, stderr) = compare(folder.path(), "a.json", 2);
    assert!(stderr.contains("2 values required"), "{stderr}");
    let (_, stderr) = compare(folder.path(), "a.json b.json --threshold 0", 2);
    assert!(stderr.contains("expected a number above 0, such as 0.95"), "{stderr}");
}

#[cfg(not(feature = "link"))]
#[test]
fn link_without_the_feature_is_an_error_that_says_so() {
    let folder = TempDir::new().expect("a folder");
    let (_, stderr) = compare(folder.path(), "--backend link --backend cpu -- all_reduce", 1);
    assert!(stderr.contains("this program is not linked with NCCL"), "{stderr}");
    assert!(stderr.ends_with("error: the measurement with link ended: exit status: 1\n"), "{stderr}");
}
