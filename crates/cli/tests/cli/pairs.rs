//! `nccl bench pairs`.

use tempfile::TempDir;

use crate::common::{assert_has, bench, interrupted, json, list, read, run, undisturbed};

/// Runs the command, which must exit with this status. Returns stdout and stderr.
fn pairs(arguments: &str, status: i32) -> (String, String) {
    run(&mut bench(&format!("pairs {arguments}")), status)
}

#[test]
fn table_has_a_row_and_a_column_for_each_rank() {
    for launch in ["", "--processes"] {
        let (stdout, stderr) = pairs(&format!("--ranks 3 -s 64K -n 10 {launch}"), 0);
        assert_eq!(stderr, "");
        let rows: Vec<Vec<&str>> = stdout
            .lines()
            .filter(|line| !line.starts_with('#') && !line.contains("from"))
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(rows.len(), 6, "{stdout}");
        for (index, row) in rows.iter().enumerate() {
            let rank = index % 3;
            assert_eq!((row[0], row[rank + 1], row.len()), (&*rank.to_string(), "-", 4), "{stdout}");
        }
    }
}

#[test]
fn planted_slow_and_wrong_ranks_are_visible() {
    undisturbed(|| {
        let mut command = bench("pairs --ranks 4 -s 8K -n 3 --processes");
        let (stdout, _) = run(command.env("LIBNCCL_CPU_PLANT", "slow:2:30000"), 0);
        assert_has(&stdout, &["# rank 2 is slow: "]);
        check_planted_slow_and_wrong_ranks();
    });
}

fn check_planted_slow_and_wrong_ranks() {
    let mut command = bench("pairs --ranks 8 -s 8K -n 5 --json");
    let (stdout, stderr) = run(command.env("LIBNCCL_CPU_PLANT", "slow:3:30000,wrong:5"), 1);
    let matrix = json(&stdout);
    let ranks = list(&matrix["ranks"]);
    let is_slow = |rank: usize| ranks[rank]["is_slow"].as_bool().expect("a truth value");
    let latency = |rank: usize| ranks[rank]["latency_us"].as_f64().expect("a number");
    assert!(is_slow(3), "{stdout}");
    assert!((0..8).all(|rank| rank == 3 || latency(rank) < latency(3)), "{stdout}");
    for (from, row) in list(&matrix["links"]).iter().enumerate() {
        for (to, link) in list(row).iter().enumerate() {
            assert_eq!(link.is_null(), from == to, "{from} to {to}");
            if !link.is_null() {
                assert_eq!(link["wrong"], u64::from(from == 5), "{from} to {to}");
                assert_eq!(link["first_wrong"].as_u64(), (from == 5).then_some(1024), "{from} to {to}");
                assert!(link["bandwidth"].as_f64() > Some(0.0), "{from} to {to}");
            }
        }
    }
    assert_has(&stderr, &["error: rank 5 to 0: 1 element wrong, the first at index 1024; "]);
}

#[test]
fn limits_are_exit_codes() {
    pairs("--ranks 2 -s 64K -n 10 --min-bandwidth 0.000001 --max-latency 100000000", 0);
    let (stdout, stderr) = pairs("--ranks 3 -s 64K -n 10 --min-bandwidth 1000000", 1);
    assert!(stdout.starts_with("# nccl "), "{stdout}");
    assert!(stderr.starts_with("error: rank 0 to 1: "), "{stderr}");
    let (_, stderr) = pairs("--ranks 5 -s 64K -n 10 --max-latency 0.001", 1);
    assert!(stderr.starts_with("error: ranks 0 and 1: ") && stderr.ends_with("; and 2 more\n"), "{stderr}");
}

#[test]
fn heat_map_has_a_cell_for_each_pair() {
    let directory = TempDir::new().expect("a directory");
    let file = directory.path().join("pairs.svg");
    pairs(&format!("--ranks 3 -s 64K -n 10 --svg {}", file.display()), 0);
    let svg = read(&file);
    let titles = ["Bandwidth of 65536 bytes (GB/s)", "Latency of 8 bytes (us)", "to rank", "from rank"];
    assert_has(&svg, &titles);
    assert_has(&svg, &["prefers-color-scheme: dark"]);
    // Two matrices of six cells; the scales have narrower rectangles.
    assert_eq!(svg.matches("width=\"159\" height=\"159\"").count(), 12, "{svg}");
    let (stdout, stderr) = pairs("--ranks 2 -s 1K --min-bandwidth 1000000 --svg /dev/full", 1);
    assert!(stdout.starts_with("# nccl "), "{stdout}");
    let errors: Vec<_> = stderr.lines().collect();
    assert!(errors[0].ends_with("GB/s, expected 1000000"), "{stderr}");
    assert!(errors[1].starts_with("error: cannot write /dev/full: "), "{stderr}");
    let (_, stderr) = pairs("--ranks 2 -s 1K --svg /nowhere/pairs.svg", 1);
    assert_has(&stderr, &["cannot create /nowhere/pairs.svg"]);
}

#[test]
fn signal_prints_the_pairs_that_the_progress_bar_has_counted() {
    for launch in ["", "--processes"] {
        // The sends of the last rank take much longer than the test.
        let mut command = bench(&format!("pairs --ranks 3 -s 1K --iters 1000 {launch}"));
        command.env("LIBNCCL_CPU_PLANT", "slow:2:300000");
        let (stdout, _) = interrupted(command, "1/3 pairs, ranks 0 and 1");
        assert_has(&stdout, &["\n# Interrupted after 1 of 3 pairs\n"]);
        // Without a measured link, it has no median.
        assert!(!stdout.contains("is slow"), "{stdout}");
        let row = stdout.lines().find(|line| line.starts_with("         2")).expect("a row of rank 2");
        assert_eq!(row.split_whitespace().collect::<Vec<_>>(), ["2", "-", "-", "-"], "{stdout}");
    }
}
