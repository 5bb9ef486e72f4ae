//! `nccl bench plot`, and `nccl bench --plot`.

use std::fs;
use std::path::Path;

use serde_json::json;
use tempfile::TempDir;

use crate::common::{assert_has, nccl, read, run};
use crate::results::{self, result};
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
    for (side, name) in ["a.json", "b.json"].into_iter().enumerate() {
        let mut result = result("");
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
    for [first, second] in
        [["1e-300", "1e300"], ["1e300", "1e300"], ["2.3e-308", "1.7e308"], ["5e-324", "1.0"]]
    {
        let row = format!("/rows/1/out_of_place/time_us={second} /rows/1/in_place/time_us={second}");
        let changes = format!("all/iterations=[] all/time_us={first} {row} /rows/2-");
        fs::write(directory.join("a.json"), result(&changes).to_string()).expect("the file is written");
        bench(directory, "plot a.json -o own.svg", 0);
        let svg = read(&directory.join("own.svg"));
        assert_eq!(lines(&svg).len(), 2, "{changes}: {svg}");
        assert!(svg.len() < 100_000, "{changes}: {} bytes", svg.len());
    }
}

#[test]
fn results_are_labelled_or_refused() {
    Session::new().replay("plot_results", results::command);
}
