//! The tables of a comparison with OpenMPI and its peers.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::configuration::{Configuration, Setup};
use super::format::{mebibytes, microseconds, size};
use super::measurement::{Cell, Measurements};
use super::target;

/// The size in bytes from which on the memory bandwidth limits an operation.
const LARGE: u64 = 1 << 20;

/// Returns all tables. `copy_speed` is the number of bytes that a copy on all cores reads and writes in a second.
pub(crate) fn text(copy_speed: f64, results: &Measurements, configurations: &[Configuration]) -> String {
    let mut text = String::new();
    let references: Vec<Configuration> = configurations
        .iter()
        .copied()
        .filter(|configuration| !matches!(configuration, Configuration::Current(_)))
        .collect();
    let missed = times(&mut text, results, &references);
    bandwidth(&mut text, copy_speed, results, configurations);
    memory(&mut text, results, configurations);
    let measured = results
        .cells()
        .into_iter()
        .map(|cell| ratios(results, &references, cell).flatten().count())
        .sum::<usize>();
    text += &format!("{missed} of {measured} ratios miss their targets\n");
    text
}

/// Writes the table of times; returns the number of ratios that miss their targets.
fn times(text: &mut String, results: &Measurements, references: &[Configuration]) -> usize {
    let mut missed = 0;
    let divided =
        if let [only] = references { format!("{only}'s") } else { "the fastest other library's".into() };
    *text += &format!(
        "Median times in microseconds. The column after each of ours is {divided} time divided by ours; `< t` marks \
         a ratio that\nmisses its target t:\n\n| operation | ranks | size |"
    );
    *text += &headings(references);
    *text += " malloc | | ncclMemAlloc | | threads | |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|";
    *text += &"--:|".repeat(references.len());
    *text += "\n";
    for cell in results.cells() {
        start_row(text, cell);
        for &reference in references {
            *text += &format!(" {} |", microseconds(results.nanoseconds(reference, cell)));
        }
        let has_peers = |&reference: &Configuration| {
            matches!(reference, Configuration::Peer(_)) && results.nanoseconds(reference, cell).is_some()
        };
        let has_peers = references.iter().any(has_peers);
        for (setup, ratio) in Setup::ALL.into_iter().zip(ratios(results, references, cell)) {
            let target = if has_peers { target::WITH_PEERS } else { target::ratio(setup, cell) };
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
fn bandwidth(text: &mut String, copy_speed: f64, results: &Measurements, configurations: &[Configuration]) {
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
    *text += "| operation | ranks | size | bytes | at that speed |";
    *text += &headings(configurations);
    *text += "\n|---|--:|--:|--:|--:|";
    *text += &"--:|".repeat(configurations.len());
    *text += "\n";
    for cell in large {
        start_row(text, cell);
        let bytes = target::min_bytes_moved(cell);
        let nanoseconds = bytes as f64 / copy_speed * 1e9;
        *text += &format!(" {} | {} |", size(bytes), microseconds(Some(nanoseconds)));
        for &configuration in configurations {
            let share = results.nanoseconds(configuration, cell).map(|taken| nanoseconds / taken * 100.0);
            *text += &share.map_or(" - |".into(), |share| format!(" {share:.0}% |"));
        }
        *text += "\n";
    }
    *text += "\n";
}

/// Writes the table of memory use.
fn memory(text: &mut String, results: &Measurements, configurations: &[Configuration]) {
    *text += "Peak resident memory of a rank beyond its buffers:\n\n| ranks |";
    *text += &headings(configurations);
    *text += "\n|--:|";
    *text += &"--:|".repeat(configurations.len());
    *text += "\n";
    for ranks in results.cells().into_iter().map(|cell| cell.ranks).collect::<BTreeSet<u32>>() {
        _ = write!(text, "| {ranks} |");
        for &configuration in configurations {
            let bytes = results.memory(configuration, ranks);
            *text += &bytes.map_or(" - |".into(), |bytes| format!(" {} |", mebibytes(bytes)));
        }
        *text += "\n";
    }
    *text += "\n";
}

/// Returns the ratio to the fastest of the other libraries, for each setup of ours.
fn ratios(
    results: &Measurements,
    references: &[Configuration],
    cell: Cell,
) -> impl Iterator<Item = Option<f64>> {
    Setup::ALL.into_iter().map(move |setup| {
        references
            .iter()
            .filter_map(|&reference| results.ratio(reference, Configuration::Current(setup), cell))
            .min_by(f64::total_cmp)
    })
}

/// Returns the heads of the configurations' columns.
fn headings(configurations: &[Configuration]) -> String {
    configurations.iter().map(|configuration| format!(" {configuration} |")).collect()
}

fn start_row(text: &mut String, cell: Cell) {
    _ = write!(text, "| {} | {} | {} |", cell.operation, cell.ranks, size(cell.bytes));
}

#[cfg(test)]
mod tests {
    use super::super::configuration::Peer;
    use super::*;

    #[test]
    fn text_marks_and_counts_missed_targets() {
        let mut results = Measurements::default();
        let line = |nanoseconds| format!("all_reduce\t2\t1048576\t{nanoseconds}\t3097152\t2097152\t1\n");
        results.add(Configuration::OpenMpi, &line(200_000)).unwrap();
        results.add(Configuration::Current(Setup::Malloc), &line(150_000)).unwrap();
        results.add(Configuration::Current(Setup::NcclMemAlloc), &line(125_000)).unwrap();
        let text = text(8e9, &results, &Configuration::with_openmpi(&[]));
        assert!(text.contains("each of ours is OpenMPI's time divided by ours"), "{text}");
        assert!(
            text.contains("| operation | ranks | size | OpenMPI | malloc | | ncclMemAlloc | | threads | |\n"),
            "{text}"
        );
        assert!(
            text.contains("| all_reduce | 2 | 1 MiB | 200 | 150 | 1.33 | 125 | 1.60 < 2 | - | - |"),
            "{text}"
        );
        assert!(text.contains("| all_reduce | 2 | 1 MiB | 4 MiB | 524 | 262% | 350% | 419% | - |"), "{text}");
        assert!(text.contains("| 2 | 1.0 MiB | 1.0 MiB | 1.0 MiB | - |"), "{text}");
        assert!(text.ends_with("1 of 2 ratios miss their targets\n"), "{text}");
    }

    #[test]
    fn text_with_peers_compares_with_the_fastest_in_each_cell() {
        let mut results = Measurements::default();
        let line =
            |bytes, nanoseconds| format!("all_reduce\t2\t{bytes}\t{nanoseconds}\t3097152\t2097152\t1\n");
        let peers = [Peer::IntelMpi, Peer::OneCcl];
        for (configuration, small, large) in [
            (Configuration::OpenMpi, 500, 200_000),
            (Configuration::Peer(Peer::IntelMpi), 300, 250_000),
            (Configuration::Peer(Peer::OneCcl), 4000, 150_000),
            (Configuration::Current(Setup::Malloc), 250, 160_000),
            (Configuration::Current(Setup::NcclMemAlloc), 250, 125_000),
        ] {
            results.add(configuration, &line(4, small)).unwrap();
            results.add(configuration, &line(1_048_576, large)).unwrap();
        }
        // No peer has this operation, so that OpenMPI and the target of 1 remain.
        results.add(Configuration::OpenMpi, "broadcast\t4\t4\t900\t9\t8\t1\n").unwrap();
        results.add(Configuration::Current(Setup::Malloc), "broadcast\t4\t4\t1000\t9\t8\t1\n").unwrap();
        let text = text(8e9, &results, &Configuration::with_openmpi(&peers));
        for expected in [
            "each of ours is the fastest other library's time divided by ours",
            "| operation | ranks | size | OpenMPI | Intel MPI | oneCCL | malloc | | ncclMemAlloc | | threads | |\n",
            "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n",
            "| all_reduce | 2 | 4 B | 0.50 | 0.30 | 4.00 | 0.25 | 1.20 | 0.25 | 1.20 | - | - |",
            // Against OpenMPI alone, the target of 1.20 would be 2.
            "| all_reduce | 2 | 1 MiB | 200 | 250 | 150 | 160 | 0.94 < 1 | 125 | 1.20 | - | - |",
            "| broadcast | 4 | 4 B | 0.90 | - | - | 1.00 | 0.90 < 1 | - | - | - | - |",
            "| all_reduce | 2 | 1 MiB | 4 MiB | 524 | 262% | 210% | 350% | 328% | 419% | - |",
            "| ranks | OpenMPI | Intel MPI | oneCCL | malloc | ncclMemAlloc | threads |\n",
        ] {
            assert!(text.contains(expected), "{expected}\n{text}");
        }
        assert!(text.ends_with("2 of 5 ratios miss their targets\n"), "{text}");
    }
}
