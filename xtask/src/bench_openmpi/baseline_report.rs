//! The table of a comparison of two builds of the CPU backend.

use super::configuration::{Configuration, Setup};
use super::format::{microseconds, size};
use super::measurement::{Measurements, median};

/// Returns the table, a row for each operation, number of ranks, size and setup, and a summary of the ratios.
pub(crate) fn text(results: &Measurements) -> String {
    let mut text = String::from(
        "Median times in microseconds; the ratio is the baseline's time divided by this build's: below 1, this build is\n\
         slower:\n\n\
         | operation | ranks | size | setup | baseline | this build | ratio |\n\
         |---|--:|--:|---|--:|--:|--:|\n",
    );
    let mut ratios = Vec::new();
    for cell in results.cells() {
        for setup in Setup::ALL {
            let (baseline, current) = (Configuration::Baseline(setup), Configuration::Current(setup));
            let ratio = results.ratio(baseline, current, cell);
            let (operation, ranks, size) = (cell.operation, cell.ranks, size(cell.bytes));
            text += &format!(
                "| {operation} | {ranks} | {size} | {setup} | {} | {} | {} |\n",
                microseconds(results.nanoseconds(baseline, cell)),
                microseconds(results.nanoseconds(current, cell)),
                ratio.map_or("-".into(), |ratio| format!("{ratio:.2}")),
            );
            ratios.extend(ratio.map(|ratio| (ratio, format!("{operation}, {ranks} ranks, {size}, {setup}"))));
        }
    }
    text += &summary(&ratios);
    text
}

/// Returns the number of ratios, their median and their minimum with its name.
fn summary(ratios: &[(f64, String)]) -> String {
    let values = ratios.iter().map(|(ratio, _)| *ratio).collect();
    let lowest = ratios.iter().min_by(|(one, _), (other, _)| one.total_cmp(other));
    match (median(values), lowest) {
        (Some(median), Some((min, name))) => {
            format!("\n{} ratios: median {median:.2}, minimum {min:.2} ({name})\n", ratios.len())
        }
        _ => "\n0 ratios\n".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_has_a_row_for_each_setup_and_a_summary() {
        let mut results = Measurements::default();
        for (configuration, nanoseconds) in [
            (Configuration::Baseline(Setup::Malloc), 300),
            (Configuration::Current(Setup::Malloc), 200),
            (Configuration::Baseline(Setup::NcclMemAlloc), 90),
            (Configuration::Current(Setup::NcclMemAlloc), 100),
            (Configuration::Current(Setup::Threads), 100),
        ] {
            results.add(configuration, &format!("broadcast\t4\t2048\t{nanoseconds}\t9\t8\t1\n")).unwrap();
        }
        let text = text(&results);
        let rows: Vec<&str> = text.lines().skip_while(|line| !line.starts_with("|---")).skip(1).collect();
        assert_eq!(
            rows,
            [
                "| broadcast | 4 | 2 KiB | malloc | 0.30 | 0.20 | 1.50 |",
                "| broadcast | 4 | 2 KiB | ncclMemAlloc | 0.09 | 0.10 | 0.90 |",
                "| broadcast | 4 | 2 KiB | threads | - | 0.10 | - |",
                "",
                "2 ratios: median 1.20, minimum 0.90 (broadcast, 4 ranks, 2 KiB, ncclMemAlloc)",
            ]
        );
    }

    #[test]
    fn text_without_measurements_counts_none() {
        assert!(text(&Measurements::default()).ends_with("\n0 ratios\n"));
    }
}
