//! `nccl bench pairs`.

use crate::common::{assert_has, bench, interrupted, json, list, run, undisturbed};
use crate::snapshot::Session;

#[test]
fn table_and_heat_map_have_each_pair_and_limits_are_exit_codes() {
    Session::new().replay("pairs", Session::shell);
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
