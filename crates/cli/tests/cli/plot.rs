//! `nccl bench plot`, and `nccl bench --plot`.

use std::fs;
use std::path::Path;

use serde_json::json;
use tempfile::TempDir;

use crate::common::{assert_has, assert_visible, nccl, read, run};
use crate::compare::result;
use crate::snapshot::Session;

/// Runs `nccl bench` in a directory. Returns the error. The status must be `status`.
fn bench(directory: &Path, arguments: &str, status: i32) -> String {
    run(nccl(&format!("bench {arguments}")).current_dir(directory), status).1
}

/// Returns the lines of the series, in the order of the charts.
fn lines(svg: &str) -> Vec<&str> {
    let is_series = |line: &&str| line.starts_with("<polyline") && line.contains("stroke-width=\"2\"");
    svg.lines().filter(is_series).collect()
}

/// Draws two results with planted times per byte: the means of their loops, and the medians of their iterations, if any. Returns the
/// picture and the output of `nccl bench compare`.
fn draw_and_compare(directory: &Path, loops: [f64; 2], medians: Option<[f64; 2]>) -> (String, String) {
    let measured = result();
    for (side, name) in ["a.json", "b.json"].into_iter().enumerate() {
        let mut result = measured.clone();
        for row in result["rows"].as_array_mut().expect("rows") {
            let bytes = row["bytes"].as_f64().expect("a number");
            for place in ["out_of_place", "in_place"] {
                row[place]["time_us"] = json!(loops[side] * bytes);
                for iterations in row[place]["iterations"].as_array_mut().expect("iterations") {
                    iterations["median_us"] = json!(medians.map(|medians| medians[side] * bytes));
                }
                if medians.is_none() {
                    row[place]["iterations"] = json!([]);
                }
            }
        }
        fs::write(directory.join(name), result.to_string()).expect("the file is written");
    }
    bench(directory, "plot a.json b.json -o both.svg", 0);
    let (table, _) = run(nccl("bench compare a.json b.json").current_dir(directory), 0);
    (read(&directory.join("both.svg")), table)
}

#[test]
fn plot_and_compare_name_and_use_the_same_statistic() {
    let directory = TempDir::new().expect("a directory");
    let directory = directory.path();
    // By the loops, the second is twice as fast; by the iterations, a quarter as fast.
    let (svg, table) = draw_and_compare(directory, [2.0, 1.0], Some([3.0, 12.0]));
    assert_has(&table, &["# A, B: median of single iterations\n", "  0.250  "]);
    let titles = ["Time, median of single iterations", "Bus bandwidth, median of single iterations"];
    assert_has(&svg, &titles);
    let (means, table) = draw_and_compare(directory, [3.0, 12.0], None);
    assert_has(&table, &["# A, B: mean of the loop\n", "  0.250  "]);
    assert_has(&means, &["Time, mean of the loop"]);
    assert_eq!(lines(&svg), lines(&means));
    let (other, table) = draw_and_compare(directory, [2.0, 1.0], None);
    assert_has(&table, &["  2.000  "]);
    assert_ne!(lines(&svg), lines(&other));
}

#[test]
fn results_are_drawn_in_one_picture() {
    let directory = TempDir::new().expect("a directory");
    let directory = directory.path();
    bench(directory, "all_reduce --cpu --ranks 2 -b 8 -e 64K -f 8 -n 2 --json=two.json", 0);
    bench(directory, "all_reduce --cpu --ranks 3 -b 8 -e 64K -f 8 -n 2 -o all --json=three.json", 0);
    bench(directory, "plot two.json three.json -o both.svg", 0);
    let svg = read(&directory.join("both.svg"));
    assert_has(&svg, &["Bus bandwidth", "GB/s", "Time", "microseconds", "size in bytes", "32K"]);
    let labels = [
        "two: all_reduce float sum, 2 ranks, cpu, out of place",
        "three: all_reduce float mulsum, 3 ranks, cpu, out of place",
        "@media (prefers-color-scheme: dark)",
    ];
    assert_has(&svg, &labels);
    // One and six reductions, in two charts.
    assert_eq!(lines(&svg).len(), 14, "{svg}");
    // A measurement draws itself.
    bench(directory, "broadcast --cpu --ranks 2 -b 8 -e 1K -f 8 -n 2 --plot own.svg", 0);
    assert_has(&read(&directory.join("own.svg")), &[": broadcast float root 0, 2 ranks, cpu"]);
}

#[test]
fn values_of_any_size_are_drawn() {
    let directory = TempDir::new().expect("a directory");
    let directory = directory.path();
    let mut result = result();
    drop(result["rows"].as_array_mut().expect("rows").pop());
    for times in [[1e-300, 1e300], [1e300, 1e300], [f64::MIN_POSITIVE, f64::MAX], [5e-324, 1.0]] {
        for (row, time) in result["rows"].as_array_mut().expect("rows").iter_mut().zip(times) {
            for place in ["out_of_place", "in_place"] {
                row[place]["time_us"] = json!(time);
                row[place]["iterations"] = json!([]);
            }
        }
        fs::write(directory.join("a.json"), result.to_string()).expect("the file is written");
        bench(directory, "plot a.json -o own.svg", 0);
        let svg = read(&directory.join("own.svg"));
        assert_eq!(lines(&svg).len(), 2, "{times:?}: {svg}");
        assert!(svg.len() < 100_000, "{times:?}: {} bytes", svg.len());
    }
}

#[test]
fn result_that_is_wrong_or_not_whole_is_labelled() {
    let directory = TempDir::new().expect("a directory");
    let directory = directory.path();
    let mut result = result();
    fs::write(directory.join("a.json"), result.to_string()).expect("the file is written");
    result["rows"][1]["in_place"]["wrong"] = json!(1);
    fs::write(directory.join("wrong.json"), result.to_string()).expect("the file is written");
    result["rows"][1]["in_place"]["wrong"] = json!(null);
    result["interrupted"] = json!(true);
    fs::write(directory.join("ended.json"), result.to_string()).expect("the file is written");
    assert_eq!(bench(directory, "plot a.json wrong.json ended.json -o all.svg", 0), "");
    let label = |name: &str, mark: &str| {
        format!("\n{name}: all_reduce float sum, 2 ranks, cpu, out of place{mark}\n</text>")
    };
    let labels = [label("a", ""), label("wrong", ", with mismatches"), label("ended", ", interrupted")];
    assert_has(&read(&directory.join("all.svg")), &labels.each_ref().map(String::as_str));
}

#[test]
fn row_that_cannot_be_drawn_is_named() {
    let mut session = Session::new();
    for change in [
        json!({ "bytes": 0 }),
        json!({ "out_of_place": { "time_us": 0 } }),
        json!({ "out_of_place": { "time_us": -2 } }),
        json!({ "out_of_place": { "algbw": 0, "busbw": 1 } }),
        json!({ "out_of_place": null, "in_place": null }),
    ] {
        let mut result = result();
        let planted = &mut result["rows"][1];
        for (name, value) in change.as_object().expect("an object") {
            match value.as_object() {
                Some(fields) => {
                    planted[name]["iterations"] = json!([]);
                    fields.iter().for_each(|(field, value)| planted[name][field] = value.clone());
                }
                None => planted[name] = value.clone(),
            }
        }
        session.add(&format!("# {change}"), "");
        session.write("a.json", result.to_string());
        session.nccl("bench plot a.json -o own.svg");
        // Without points, there is no picture.
        result["rows"] = json!([result["rows"][1]]);
        session.write("a.json", result.to_string());
        session.nccl("bench plot a.json -o own.svg");
    }
    session.check("plot_rows");
}

#[test]
fn control_characters_of_a_result_are_escaped() {
    let mut session = Session::new();
    let mut result = result();
    result["operation"] = json!("sum\u{1b}[31m\u{0}");
    result["library"]["backend"] = json!("cpu\u{9b}2J\u{ffff}");
    session.write("a\u{7f}.json", result.to_string());
    let mut command = nccl("bench plot a\u{7f}.json -o own.svg");
    session.run("bench plot a", &mut command);
    let svg = session.read("own.svg");
    assert_visible(&svg);
    // XML permits neither those characters nor the last one.
    assert_has(&svg, &[r"a\u007f: sum\u001b[31m\u0000 float sum, 2 ranks, cpu\u009b2J\uffff, out of place"]);
    result["schema"] = json!("\u{1b}");
    session.write("a\u{7f}.json", result.to_string());
    session.run("bench plot a", &mut command);
    assert_visible(session.text());
    session.check("plot_control_characters");
}

#[test]
fn file_that_is_no_result_is_an_error_that_names_it() {
    let mut session = Session::new();
    session.write("other.json", "{}");
    for arguments in ["other.json -o x.svg", "none.json -o x.svg", "none.json"] {
        session.nccl(&format!("bench plot {arguments}"));
    }
    session.check("plot_no_result");
}
