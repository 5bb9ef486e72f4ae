//! The tables of a comparison with OpenMPI.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::configuration::{Configuration, Setup};
use super::format::{mebibytes, microseconds, size};
use super::measurement::{Cell, Measurements};
use super::target;

/// The size in bytes from which on the memory bandwidth limits an operation.
const LARGE: u64 = 1 << 20;

/// Returns all tables. `copy_speed` is the number of bytes that a copy on all cores reads and writes in a second.
pub(crate) fn text(copy_speed: f64, results: &Measurements) -> String {
    let mut text = String::new();
    let missed = times(&mut text, results);
    bandwidth(&mut text, copy_speed, results);
    memory(&mut text, results);
    let measured =
        results.cells().into_iter().map(|cell| ratios(results, cell).flatten().count()).sum::<usize>();
    text += &format!("{missed} of {measured} ratios miss their targets\n");
    text
}

/// Writes the table of times; returns the number of ratios that miss their targets.
fn times(text: &mut String, results: &Measurements) -> usize {
    let mut missed = 0;
    *text += "Median times in microseconds. The column after each of ours is OpenMPI's time divided by ours; `< t` \
              marks a ratio that\nmisses its target t:\n\n";
    *text += "| operation | ranks | size | OpenMPI | malloc | | ncclMemAlloc | | threads | |\n";
    *text += "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n";
    for cell in results.cells() {
        start_row(text, cell);
        *text += &format!(" {} |", microseconds(results.nanoseconds(Configuration::OpenMpi, cell)));
        for (setup, ratio) in Setup::ALL.into_iter().zip(ratios(results, cell)) {
            let target = target::ratio(setup, cell);
            let ratio = match ratio {
                Some(ratio) if ratio < target => {
                    missed += 1;
                    format!("{ratio:.2} < {target}")
                }
                Some(ratio) => format!("{ratio:.2}"),
                None => "-".into(),
            };
            let time = microseconds(results.nanoseconds(Configuration::Current(setup), cell));
            *text += &format!(" {time} | {ratio} |");
        }
        *text += "\n";
    }
    missed
}

/// Writes the table of memory bandwidth reached.
fn bandwidth(text: &mut String, copy_speed: f64, results: &Measurements) {
    let large: Vec<Cell> = results.cells().into_iter().filter(|cell| cell.bytes >= LARGE).collect();
    if large.is_empty() {
        *text += "\n";
        return;
    }
    _ = write!(
        text,
        "\nA copy on all cores reads and writes {:.2} GB/s. The percentages are the shares of that bandwidth that the\n\
         operations reach, counting only the bytes that have to move:\n\n",
        copy_speed / 1e9
    );
    *text +=
        "| operation | ranks | size | bytes | at that speed | OpenMPI | malloc | ncclMemAlloc | threads |\n";
    *text += "|---|--:|--:|--:|--:|--:|--:|--:|--:|\n";
    for cell in large {
        start_row(text, cell);
        let bytes = target::min_bytes_moved(cell);
        let nanoseconds = bytes as f64 / copy_speed * 1e9;
        *text += &format!(" {} | {} |", size(bytes), microseconds(Some(nanoseconds)));
        for configuration in Configuration::WITH_OPENMPI {
            let share = results.nanoseconds(configuration, cell).map(|taken| nanoseconds / taken * 100.0);
            *text += &share.map_or(" - |".into(), |share| format!(" {share:.0}% |"));
        }
        *text += "\n";
    }
    *text += "\n";
}

/// Writes the table of memory use.
fn memory(text: &mut String, results: &Measurements) {
    *text += "Peak resident memory of a rank beyond its buffers:\n\n";
    *text += "| ranks | OpenMPI | malloc | ncclMemAlloc | threads |\n|--:|--:|--:|--:|--:|\n";
    for ranks in results.cells().into_iter().map(|cell| cell.ranks).collect::<BTreeSet<u32>>() {
        _ = write!(text, "| {ranks} |");
        for configuration in Configuration::WITH_OPENMPI {
            let bytes = results.memory(configuration, ranks);
            *text += &bytes.map_or(" - |".into(), |bytes| format!(" {} |", mebibytes(bytes)));
        }
        *text += "\n";
    }
    *text += "\n";
}

/// Returns OpenMPI's time divided by ours, for each setup of ours.
fn ratios(results: &Measurements, cell: Cell) -> impl Iterator<Item = Option<f64>> {
    Setup::ALL
        .into_iter()
        .map(move |setup| results.ratio(Configuration::OpenMpi, Configuration::Current(setup), cell))
}

fn start_row(text: &mut String, cell: Cell) {
    _ = write!(text, "| {} | {} | {} |", cell.operation, cell.ranks, size(cell.bytes));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_marks_and_counts_missed_targets() {
        let mut results = Measurements::default();
        let line = |nanoseconds| format!("all_reduce\t2\t1048576\t{nanoseconds}\t3097152\t2097152\t1\n");
        results.add(Configuration::OpenMpi, &line(200_000)).unwrap();
        results.add(Configuration::Current(Setup::Malloc), &line(150_000)).unwrap();
        results.add(Configuration::Current(Setup::NcclMemAlloc), &line(125_000)).unwrap();
        let text = text(8e9, &results);
        assert!(
            text.contains("| all_reduce | 2 | 1 MiB | 200 | 150 | 1.33 | 125 | 1.60 < 2 | - | - |"),
            "{text}"
        );
        assert!(text.contains("| all_reduce | 2 | 1 MiB | 4 MiB | 524 | 262% | 350% | 419% | - |"), "{text}");
        assert!(text.contains("| 2 | 1.0 MiB | 1.0 MiB | 1.0 MiB | - |"), "{text}");
        assert!(text.ends_with("1 of 2 ratios miss their targets\n"), "{text}");
    }
}
