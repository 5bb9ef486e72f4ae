//! The result of a run, as written by `nccl bench --json` and read by `nccl bench compare` and `nccl bench plot`.
//!
//! Sizes are in bytes, times in microseconds (`_us`), and bandwidths in GB/s (10^9 bytes). Readers accept unknown fields, so that
//! fields can be added without a new schema number.

use std::fmt::{self, Display, Formatter};
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use libnccl_observe::library_file::Identity;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::bench::data::FirstWrong;

pub(crate) const SCHEMA: u32 = 1;

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) schema: u32,
    pub(crate) program: String,
    /// The start time in UTC, in the format of RFC 3339.
    pub(crate) started: String,
    pub(crate) command: Vec<String>,
    pub(crate) library: Library,
    pub(crate) host: String,
    pub(crate) operation: String,
    pub(crate) ranks: Vec<Rank>,
    /// The start method of the ranks: `threads`, `processes`, or the name of the launcher.
    pub(crate) launch: String,
    /// The parameters with all defaults filled in.
    pub(crate) parameters: Map<String, Value>,
    pub(crate) rows: Vec<Row>,
    /// The first mismatch of each rank and row.
    #[serde(default)]
    pub(crate) wrong: Vec<WrongElement>,
    pub(crate) average_bus_bandwidth: f64,
    /// True if a signal or a failure ended the run before all rows were measured.
    pub(crate) interrupted: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Library {
    pub(crate) version: String,
    /// The library's file, if known; `None` for the CPU backend in the program.
    pub(crate) path: Option<PathBuf>,
    /// The identity of the file at `path`, if known.
    pub(crate) file: Option<LibraryFile>,
    /// `link`, `dlopen`, or `cpu` for the CPU backend in the program.
    pub(crate) backend: String,
    /// The file of the CUDA emulation's driver, if it was used.
    pub(crate) stand_in: Option<String>,
}

/// Properties that distinguish library files of the same version.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct LibraryFile {
    #[serde(flatten)]
    pub(crate) identity: Identity,
    /// A 64-bit hash of the content in hexadecimal.
    pub(crate) hash: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Rank {
    pub(crate) rank: usize,
    pub(crate) host: String,
    pub(crate) pid: u32,
    /// The PCI address and the name of the GPU; `None` for host memory.
    pub(crate) device: Option<String>,
}

/// The measurement of one size, data type, reduction and root.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) bytes: u64,
    pub(crate) count: u64,
    pub(crate) data_type: String,
    pub(crate) op: Option<String>,
    pub(crate) root: Option<usize>,
    pub(crate) out_of_place: Option<Measured>,
    /// `None` for an operation without an in-place form.
    pub(crate) in_place: Option<Measured>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Measured {
    pub(crate) time_us: f64,
    pub(crate) algbw: f64,
    pub(crate) busbw: f64,
    /// The number of mismatches on all ranks; `None` if results were not checked.
    pub(crate) wrong: Option<u64>,
    /// The times of single iterations, for each rank. Empty if they were not measured.
    #[serde(default)]
    pub(crate) iterations: Vec<Iterations>,
}

/// The times of a rank's single iterations, from the call until the result is available. They are measured after the row's times.
///
/// Ranks wait for each other, so a slow rank makes all times long. Three medians identify it: a rank that enters late has a short
/// `wait_us` and a long `late_us`; a rank that is slow within the operation has a long `own_us`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Iterations {
    pub(crate) rank: usize,
    pub(crate) min_us: f64,
    pub(crate) median_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) max_us: f64,
    /// The median time from this rank's call until the result is available, including the wait for the others.
    pub(crate) wait_us: f64,
    /// The median delay between the first rank's call and this rank's call; `None` on several hosts, whose clocks differ.
    pub(crate) late_us: Option<f64>,
    /// The median time of the operation if this rank enters after all others, which then wait only for this rank.
    pub(crate) own_us: Option<f64>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct WrongElement {
    pub(crate) bytes: u64,
    pub(crate) data_type: String,
    pub(crate) op: Option<String>,
    pub(crate) in_place: bool,
    /// The rank that received the element.
    pub(crate) rank: usize,
    #[serde(flatten)]
    pub(crate) first: FirstWrong,
}

impl Display for LibraryFile {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}, hash {}", self.identity, self.hash)
    }
}

impl Report {
    /// Reads a report. Fails if its schema is not [`SCHEMA`].
    pub(crate) fn from_json(text: impl AsRef<[u8]>) -> Result<Self> {
        #[derive(Deserialize)]
        struct Header {
            schema: u32,
        }
        let text = text.as_ref();
        let context = "not a result of nccl bench --json";
        let Header { schema } = serde_json::from_slice(text).context(context)?;
        ensure!(
            schema == SCHEMA,
            "schema {schema} of nccl bench --json is not known; this program reads schema {SCHEMA}"
        );
        serde_json::from_slice(text).context(context)
    }

    /// Returns the bus bandwidth in GB/s of a row if it takes `time_us`; for a single rank, which has no bus, the algorithm
    /// bandwidth. Does not scale the row's bandwidth: with `--report_cputime`, it was not computed from the row's time.
    pub(crate) fn bandwidth(&self, row: &Row, measured: &Measured, time_us: f64) -> f64 {
        let ranks = self.ranks.len().max(1) as f64;
        // In a hypercube, a rank's own part is not counted.
        let counted = if self.operation == "hypercube" { (ranks - 1.0) / ranks } else { 1.0 };
        let factor = if measured.busbw > 0.0 { measured.busbw / measured.algbw } else { 1.0 };
        row.bytes as f64 * counted * factor / time_us / 1e3
    }
}

impl Row {
    pub(crate) fn measured(&self) -> impl Iterator<Item = &Measured> {
        [&self.out_of_place, &self.in_place].into_iter().flatten()
    }
}
