use libnccl_test_support::random_inputs::Random;

use super::{Comparison, Side};
use crate::bench::output::report::Report;

/// A side with one row, whose iterations have these medians in the rounds.
fn side(name: &str, medians: &[f64]) -> Side {
    let round = |median: &f64| {
        let mut report = Report::from_json(include_str!("../cli/result.json")).unwrap();
        report.rows.truncate(1);
        report.rows[0].bytes = 1000;
        report.rows[0].in_place = None;
        let measured = report.rows[0].out_of_place.as_mut().unwrap();
        measured.iterations.iter_mut().for_each(|rank| rank.median_us = *median);
        report
    };
    Side { name: name.into(), rounds: medians.iter().map(round).collect() }
}

fn compare(one: &[f64], two: &[f64]) -> Comparison {
    Comparison::new(&[side("link", one), side("dlopen", two)], None).expect("a comparison")
}

#[test]
fn figures_of_rounds_are_those_of_the_round_with_the_median_ratio() {
    // The medians of the sides are 3.8 and 0.3, from unrelated rounds.
    let comparison = compare(&[3.8, 0.3, 0.4, 3.9, 3.8], &[3.8, 0.3, 0.3, 0.3, 0.2]);
    let row = &comparison.rows[0];
    assert_eq!((row.times_us, row.ratio), ([0.4, 0.3], 0.4 / 0.3));
    assert_eq!((row.low, row.high), (Some(1.0), Some(3.8 / 0.2)));
    let text = comparison.to_string();
    assert!(text.contains("     0.400       0.300      2.500      3.333   1.333  1.000..19.000\n"), "{text}");
    assert_eq!(compare(&[3.0, 8.0], &[1.0, 2.0]).rows[0].times_us, [3.0, 1.0]);
}

#[test]
fn slowdown_of_each_round_is_the_ratio_despite_noise() {
    let mut random = Random(1);
    for rounds in 1..=9 {
        let noise = [(); 9].map(|()| 1.0 + (random.next() >> 40) as f64);
        let noise = &noise[..rounds];
        let slower: Vec<f64> = noise.iter().map(|time| time * 4.0).collect();
        assert_eq!(compare(noise, &slower).rows[0].ratio, 0.25, "{noise:?}");
    }
}
