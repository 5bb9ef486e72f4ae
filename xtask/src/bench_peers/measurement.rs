//! What the programs print, and the medians of it.

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use clap::ValueEnum;

use super::{Operation, Way};

/// What was measured. `bytes` are those of the larger buffer of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Cell {
    pub(crate) operation: Operation,
    pub(crate) ranks: u32,
    pub(crate) bytes: u64,
}

/// A line of a program.
#[derive(Debug, PartialEq)]
struct Measurement {
    cell: Cell,
    nanoseconds: f64,
    /// The most memory of a process so far, less its buffers, for each of its ranks.
    beside: f64,
}

#[derive(Debug, Default)]
pub(crate) struct Measurements {
    all: Vec<(Way, Measurement)>,
}

impl Measurements {
    pub(crate) fn add(&mut self, way: Way, printed: &str) -> Result<()> {
        for line in printed.lines() {
            let measurement = parse(line)
                .with_context(|| format!("a program of {way} printed {line:?}, no measurement"))?;
            self.all.push((way, measurement));
        }
        Ok(())
    }

    /// All that was measured with any way, in order.
    pub(crate) fn cells(&self) -> BTreeSet<Cell> {
        self.all.iter().map(|(_, measurement)| measurement.cell).collect()
    }

    pub(crate) fn nanoseconds(&self, way: Way, cell: Cell) -> Option<f64> {
        median(self.rounds(way, cell).collect())
    }

    /// How many times `way`'s time OpenMPI's is. They are compared within each round, seconds apart: what the machine
    /// does differently minutes later is no difference between them.
    pub(crate) fn ratio(&self, way: Way, cell: Cell) -> Option<f64> {
        let rounds = self.rounds(Way::OpenMpi, cell).zip(self.rounds(way, cell));
        median(rounds.map(|(theirs, ours)| theirs / ours).collect())
    }

    fn rounds(&self, way: Way, cell: Cell) -> impl Iterator<Item = f64> {
        let of_cell =
            self.all.iter().filter(move |(with, measurement)| *with == way && measurement.cell == cell);
        of_cell.map(|(_, measurement)| measurement.nanoseconds)
    }

    /// The most bytes that a rank used beside its buffers, in any operation.
    pub(crate) fn beside(&self, way: Way, ranks: u32) -> Option<f64> {
        let of_ranks =
            |&&(with, ref measurement): &&(Way, Measurement)| with == way && measurement.cell.ranks == ranks;
        self.all.iter().filter(of_ranks).map(|(_, measurement)| measurement.beside).max_by(f64::total_cmp)
    }
}

fn parse(line: &str) -> Option<Measurement> {
    let fields: Vec<&str> = line.split('\t').collect();
    let &[operation, ranks, bytes, nanoseconds, peak, buffers, in_process] = fields.as_slice() else {
        return None;
    };
    let cell = Cell {
        operation: Operation::from_str(operation, false).ok()?,
        ranks: ranks.parse().ok()?,
        bytes: bytes.parse().ok()?,
    };
    let [peak, buffers, in_process] = [peak, buffers, in_process].map(|field| field.parse::<f64>().ok());
    Some(Measurement {
        cell,
        nanoseconds: nanoseconds.parse().ok()?,
        beside: (peak? - buffers?).max(0.0) / in_process?,
    })
}

pub(crate) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let (low, high) = (values.get(values.len().checked_sub(1)? / 2)?, values.get(values.len() / 2)?);
    Some((low + high) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CELL: Cell = Cell { operation: Operation::AllToAll, ranks: 2, bytes: 64 };

    #[test]
    fn lines_of_the_programs() {
        assert_eq!(
            parse("all_to_all\t2\t64\t310.5\t5000\t256\t2"),
            Some(Measurement { cell: CELL, nanoseconds: 310.5, beside: 2372.0 })
        );
        for wrong in ["", "all_to_all\t2\t64\t310.5\t5000\t256", "hello\t2\t64\t310.5\t5000\t256\t2"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_cell_has_the_median_of_its_rounds() {
        let mut measurements = Measurements::default();
        for nanoseconds in [3, 9, 5] {
            measurements.add(Way::Malloc, &format!("all_to_all\t2\t64\t{nanoseconds}\t9\t8\t1\n")).unwrap();
        }
        measurements.add(Way::Threads, "all_to_all\t2\t64\t1\t9\t8\t1\n").unwrap();
        assert_eq!(measurements.nanoseconds(Way::Malloc, CELL), Some(5.0));
        assert_eq!(measurements.nanoseconds(Way::OpenMpi, CELL), None);
        assert_eq!(measurements.beside(Way::Malloc, 2), Some(1.0));
        assert_eq!(measurements.cells().len(), 1);
        assert!(measurements.add(Way::Malloc, "an error message\n").is_err());
    }

    #[test]
    fn what_is_compared_is_of_one_round() {
        let mut measurements = Measurements::default();
        // In the second round everything takes twice the time; a median of all rounds over another would be 1.
        for (way, rounds) in [(Way::OpenMpi, [4, 8, 4]), (Way::Malloc, [2, 4, 4])] {
            for nanoseconds in rounds {
                measurements.add(way, &format!("all_to_all\t2\t64\t{nanoseconds}\t9\t8\t1\n")).unwrap();
            }
        }
        assert_eq!(measurements.ratio(Way::Malloc, CELL), Some(2.0));
        assert_eq!(measurements.ratio(Way::Threads, CELL), None);
    }

    #[test]
    fn medians() {
        assert_eq!(median(vec![]), None);
        assert_eq!(median(vec![2.0, 1.0]), Some(1.5));
        assert_eq!(median(vec![9.0, 1.0, 2.0]), Some(2.0));
    }
}
