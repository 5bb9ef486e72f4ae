//! The figures as tables.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::measurement::{Cell, Measurements};
use super::{Way, target};

/// From this size on an operation is a matter of moving bytes.
const LARGE: u64 = 1 << 20;

/// `speed` is how many bytes this machine reads and writes in a second when it copies.
pub(crate) fn text(machine: &str, speed: f64, results: &Measurements) -> String {
    let mut text = format!("{machine}\n\n");
    let missed = times(&mut text, results);
    limits(&mut text, speed, results);
    memory(&mut text, results);
    let measured =
        results.cells().into_iter().map(|cell| ratios(results, cell).flatten().count()).sum::<usize>();
    text += &format!("{missed} of {measured} ratios miss their targets\n");
    text
}

/// Answers how many ratios miss their targets.
fn times(text: &mut String, results: &Measurements) -> usize {
    let mut missed = 0;
    *text +=
        "Microseconds, and after ours how many times OpenMPI's time is ours (`< t`: the target is t):\n\n";
    *text += "| operation | ranks | size | OpenMPI | malloc | | ncclMemAlloc | | threads | |\n";
    *text += "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n";
    for cell in results.cells() {
        row(text, cell);
        *text += &format!(" {} |", microseconds(results.nanoseconds(Way::OpenMpi, cell)));
        for (way, ratio) in Way::OURS.into_iter().zip(ratios(results, cell)) {
            let target = target::ratio(way, cell);
            let ratio = match ratio {
                Some(ratio) if ratio < target => {
                    missed += 1;
                    format!("{ratio:.2} < {target}")
                }
                Some(ratio) => format!("{ratio:.2}"),
                None => "-".into(),
            };
            *text += &format!(" {} | {ratio} |", microseconds(results.nanoseconds(way, cell)));
        }
        *text += "\n";
    }
    missed
}

fn limits(text: &mut String, speed: f64, results: &Measurements) {
    let large: Vec<Cell> = results.cells().into_iter().filter(|cell| cell.bytes >= LARGE).collect();
    if large.is_empty() {
        *text += "\n";
        return;
    }
    _ = write!(
        text,
        "\nCopying reads and writes {:.2} GB/s, all cores together. How much of that is reached, counting only the \
         bytes\nthat have to move:\n\n",
        speed / 1e9
    );
    *text +=
        "| operation | ranks | size | bytes | at that speed | OpenMPI | malloc | ncclMemAlloc | threads |\n";
    *text += "|---|--:|--:|--:|--:|--:|--:|--:|--:|\n";
    for cell in large {
        row(text, cell);
        let nanoseconds = target::moved(cell) as f64 / speed * 1e9;
        *text += &format!(" {} | {} |", size(target::moved(cell)), microseconds(Some(nanoseconds)));
        for way in Way::ALL {
            let share = results.nanoseconds(way, cell).map(|taken| nanoseconds / taken * 100.0);
            *text += &share.map_or(" - |".into(), |share| format!(" {share:.0}% |"));
        }
        *text += "\n";
    }
    *text += "\n";
}

fn memory(text: &mut String, results: &Measurements) {
    *text += "The most resident memory of a rank, beside its buffers:\n\n";
    *text += "| ranks | OpenMPI | malloc | ncclMemAlloc | threads |\n|--:|--:|--:|--:|--:|\n";
    for ranks in results.cells().into_iter().map(|cell| cell.ranks).collect::<BTreeSet<u32>>() {
        _ = write!(text, "| {ranks} |");
        for way in Way::ALL {
            *text +=
                &results.beside(way, ranks).map_or(" - |".into(), |bytes| format!(" {} |", mebibytes(bytes)));
        }
        *text += "\n";
    }
    *text += "\n";
}

/// OpenMPI's time over ours, for each of our ways.
fn ratios(results: &Measurements, cell: Cell) -> impl Iterator<Item = Option<f64>> {
    Way::OURS.into_iter().map(move |way| results.ratio(way, cell))
}

fn row(text: &mut String, cell: Cell) {
    _ = write!(text, "| {} | {} | {} |", cell.operation, cell.ranks, size(cell.bytes));
}

fn microseconds(nanoseconds: Option<f64>) -> String {
    match nanoseconds.map(|nanoseconds| nanoseconds / 1e3) {
        None => "-".into(),
        Some(value) if value < 10.0 => format!("{value:.2}"),
        Some(value) if value < 100.0 => format!("{value:.1}"),
        Some(value) => format!("{value:.0}"),
    }
}

fn size(bytes: u64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    match units.into_iter().find(|(bits, _)| bytes.trailing_zeros() >= *bits) {
        Some((bits, unit)) => format!("{} {unit}", bytes >> bits),
        None => format!("{bytes} B"),
    }
}

pub(crate) fn mebibytes(bytes: f64) -> String {
    format!("{:.1} MiB", bytes / f64::from(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missed_target_is_marked_and_counted() {
        let mut results = Measurements::default();
        let line = |nanoseconds| format!("all_reduce\t2\t1048576\t{nanoseconds}\t3097152\t2097152\t1\n");
        results.add(Way::OpenMpi, &line(200_000)).unwrap();
        results.add(Way::Malloc, &line(150_000)).unwrap();
        results.add(Way::NcclMemAlloc, &line(125_000)).unwrap();
        let text = text("a machine", 8e9, &results);
        assert!(
            text.contains("| all_reduce | 2 | 1 MiB | 200 | 150 | 1.33 | 125 | 1.60 < 2 | - | - |"),
            "{text}"
        );
        assert!(text.contains("| all_reduce | 2 | 1 MiB | 4 MiB | 524 | 262% | 350% | 419% | - |"), "{text}");
        assert!(text.contains("| 2 | 1.0 MiB | 1.0 MiB | 1.0 MiB | - |"), "{text}");
        assert!(text.ends_with("1 of 2 ratios miss their targets\n"), "{text}");
    }

    #[test]
    fn sizes_are_exact() {
        assert_eq!(["64 KiB", "1028 B", "4 B"], [65536, 1028, 4].map(size));
    }
}
