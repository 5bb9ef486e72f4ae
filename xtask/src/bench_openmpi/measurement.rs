//! The lines that the programs print, and medians of their figures.

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use clap::ValueEnum;

use super::configuration::Configuration;
use super::operation::Operation;

/// An operation at one size. `bytes` is the size of a rank's larger buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Cell {
    pub(crate) operation: Operation,
    pub(crate) ranks: u32,
    pub(crate) bytes: u64,
}

/// A line of a program's output.
#[derive(Debug, PartialEq)]
struct Measurement {
    cell: Cell,
    nanoseconds: f64,
    /// Peak resident bytes of the process so far, without its buffers, divided by its number of ranks.
    memory: f64,
}

/// The measurements of all configurations and rounds.
#[derive(Debug, Default)]
pub(crate) struct Measurements {
    all: Vec<(Configuration, Measurement)>,
}

impl Measurements {
    /// Adds the output of a program.
    pub(crate) fn add(&mut self, configuration: Configuration, stdout: &str) -> Result<()> {
        for line in stdout.lines() {
            let measurement =
                parse(line).with_context(|| format!("the program for {configuration} printed {line:?}"))?;
            self.all.push((configuration, measurement));
        }
        Ok(())
    }

    /// Returns every cell that was measured in any configuration, in order.
    pub(crate) fn cells(&self) -> BTreeSet<Cell> {
        self.all.iter().map(|(_, measurement)| measurement.cell).collect()
    }

    /// Returns the median time of all rounds.
    pub(crate) fn nanoseconds(&self, configuration: Configuration, cell: Cell) -> Option<f64> {
        median(self.rounds(configuration, cell).collect())
    }

    /// Returns the median of `reference`'s time divided by `configuration`'s. Times of the same round are compared,
    /// which lie seconds apart: the machine's speed drifts within minutes.
    pub(crate) fn ratio(
        &self,
        reference: Configuration,
        configuration: Configuration,
        cell: Cell,
    ) -> Option<f64> {
        let rounds = self.rounds(reference, cell).zip(self.rounds(configuration, cell));
        median(rounds.map(|(reference, time)| reference / time).collect())
    }

    fn rounds(&self, configuration: Configuration, cell: Cell) -> impl Iterator<Item = f64> {
        let of_cell = self
            .all
            .iter()
            .filter(move |(other, measurement)| *other == configuration && measurement.cell == cell);
        of_cell.map(|(_, measurement)| measurement.nanoseconds)
    }

    /// Returns the most bytes that a rank used beyond its buffers, in any operation.
    pub(crate) fn memory(&self, configuration: Configuration, ranks: u32) -> Option<f64> {
        let of_ranks = |&&(other, ref measurement): &&(Configuration, Measurement)| {
            other == configuration && measurement.cell.ranks == ranks
        };
        self.all.iter().filter(of_ranks).map(|(_, measurement)| measurement.memory).max_by(f64::total_cmp)
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
        memory: (peak? - buffers?).max(0.0) / in_process?,
    })
}

pub(crate) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let (low, high) = (values.get(values.len().checked_sub(1)? / 2)?, values.get(values.len() / 2)?);
    Some((low + high) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::super::configuration::Setup;
    use super::*;

    const MALLOC: Configuration = Configuration::Current(Setup::Malloc);
    const THREADS: Configuration = Configuration::Current(Setup::Threads);

    const CELL: Cell = Cell { operation: Operation::AllToAll, ranks: 2, bytes: 64 };

    #[test]
    fn parse_reads_a_line_and_rejects_others() {
        assert_eq!(
            parse("all_to_all\t2\t64\t310.5\t5000\t256\t2"),
            Some(Measurement { cell: CELL, nanoseconds: 310.5, memory: 2372.0 })
        );
        for wrong in ["", "all_to_all\t2\t64\t310.5\t5000\t256", "hello\t2\t64\t310.5\t5000\t256\t2"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn measurements_of_several_rounds_give_medians() {
        let mut measurements = Measurements::default();
        for nanoseconds in [3, 9, 5] {
            measurements.add(MALLOC, &format!("all_to_all\t2\t64\t{nanoseconds}\t9\t8\t1\n")).unwrap();
        }
        measurements.add(THREADS, "all_to_all\t2\t64\t1\t9\t8\t1\n").unwrap();
        assert_eq!(measurements.nanoseconds(MALLOC, CELL), Some(5.0));
        assert_eq!(measurements.nanoseconds(Configuration::OpenMpi, CELL), None);
        assert_eq!(measurements.memory(MALLOC, 2), Some(1.0));
        assert_eq!(measurements.cells().len(), 1);
        assert!(measurements.add(MALLOC, "an error message\n").is_err());
    }

    #[test]
    fn ratio_compares_times_of_the_same_round() {
        let mut measurements = Measurements::default();
        // In the second round everything takes twice the time; the ratio of the medians would be 1.
        for (configuration, rounds) in [(Configuration::OpenMpi, [4, 8, 4]), (MALLOC, [2, 4, 4])] {
            for nanoseconds in rounds {
                measurements
                    .add(configuration, &format!("all_to_all\t2\t64\t{nanoseconds}\t9\t8\t1\n"))
                    .unwrap();
            }
        }
        assert_eq!(measurements.ratio(Configuration::OpenMpi, MALLOC, CELL), Some(2.0));
        assert_eq!(measurements.ratio(Configuration::OpenMpi, THREADS, CELL), None);
    }

    #[test]
    fn median_of_even_and_odd_counts() {
        assert_eq!(median(vec![]), None);
        assert_eq!(median(vec![2.0, 1.0]), Some(1.5));
        assert_eq!(median(vec![9.0, 1.0, 2.0]), Some(2.0));
    }
}
