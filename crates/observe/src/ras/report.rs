use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::connection::{MAX_REPORT, excerpt, protocol};
use super::error::RasError;

/// A report about a running job, collected by the process that replies to the client.
///
/// ```
/// use libnccl_observe::ras::Report;
///
/// # fn main() -> Result<(), libnccl_observe::ras::RasError> {
/// let report = Report::parse(br#"{ "nccl_version": "2.30.7", "communicators": [], "a new field": 1 }"#)?;
/// assert_eq!((report.nccl_version.as_str(), report.communicators.len()), ("2.30.7", 0));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Report {
    /// The NCCL version of the process that replied, such as `2.30.7`, with the version's suffix if it has one.
    pub nccl_version: String,
    /// The version of the CUDA runtime, such as 13000 for CUDA 13.0; -1 if it is unknown.
    #[serde(default = "unknown")]
    pub cuda_runtime_version: i64,
    /// The newest CUDA version that the driver supports, such as 13000 for CUDA 13.0; -1 if it is unknown.
    #[serde(default = "unknown")]
    pub cuda_driver_version: i64,
    /// The local time of the process that replied, `YYYY-MM-DD hh:mm:ss`.
    #[serde(default)]
    pub timestamp: String,
    /// The number of communicators, according to the report. Should equal the length of `communicators`.
    #[serde(default)]
    pub communicators_count: Option<u64>,
    /// The communicators of the job. During initialization, some NCCL versions list a communicator with size 0.
    pub communicators: Vec<ReportedCommunicator>,
    /// Statistics about the collection of the report.
    #[serde(default)]
    pub ras: Collection,
}

/// A communicator in a [`Report`], with the state of each rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ReportedCommunicator {
    /// The hash that NCCL's log calls `commHash`. It is unique only together with `secondary_hash`.
    pub hash: String,
    /// The hashes of rank 0's host and process, separated by a colon.
    #[serde(default)]
    pub secondary_hash: String,
    /// The number of ranks of the communicator.
    pub size: u64,
    /// The number of ranks that have responded, according to the report. Should equal the length of `ranks`.
    #[serde(default)]
    pub ranks_count: Option<u64>,
    /// The number of missing ranks, according to the report. Should equal the length of `missing_ranks`.
    #[serde(default)]
    pub missing_ranks_count: Option<u64>,
    /// The ranks that have responded.
    #[serde(default)]
    pub ranks: Vec<RankReport>,
    /// The ranks that have not responded, or whose processes do not have the communicator.
    #[serde(default)]
    pub missing_ranks: Vec<MissingRank>,
}

/// The identity of a communicator in a [`Report`]. [`Display`](fmt::Display) writes the hash with 16 hexadecimal digits.
/// Recordings, errors and NCCL's text report show the same digits.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[non_exhaustive]
pub struct CommunicatorId {
    /// The communicator's [`hash`](ReportedCommunicator::hash).
    pub hash: String,
    /// The communicator's [`secondary_hash`](ReportedCommunicator::secondary_hash).
    pub secondary_hash: String,
    /// The number of ranks of the communicator.
    pub size: u64,
}

impl fmt::Display for CommunicatorId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:0>16}", self.hash.strip_prefix("0x").unwrap_or(&self.hash))
    }
}

/// The part of a [`Report`] about a rank that has responded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RankReport {
    /// The number of the rank in its communicator.
    pub rank: u64,
    /// The IP address of the rank's host.
    pub host: String,
    /// The process id; -1 if it is unknown.
    #[serde(default = "unknown")]
    pub pid: i64,
    /// The CUDA device.
    #[serde(default = "unknown")]
    pub cuda_dev: i64,
    /// The NVML device.
    #[serde(default = "unknown")]
    pub nvml_dev: i64,
    /// The status of the rank's communicator; `None` if the report does not contain a complete status.
    #[serde(default, deserialize_with = "known")]
    pub status: Option<RankStatus>,
    /// The number of times that the rank has launched each collective. The keys are `Broadcast`, `Reduce`, `AllGather`,
    /// `ReduceScatter` and `AllReduce`. If a collective is not in the map, its number is unknown. If one of the numbers is
    /// malformed, the map is empty.
    ///
    /// NCCL does not count sends, receives, operations built from them (`AlltoAll`, `Gather`, `Scatter`), one-sided operations,
    /// launches of CUDA graphs, or collectives that use copy engines or symmetric memory.
    #[serde(default, deserialize_with = "known")]
    pub collective_counts: BTreeMap<String, u64>,
}

/// The status of a rank's communicator, as the rank reports it. [`state`](Self::state) summarizes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RankStatus {
    /// The result of the initialization, a `ncclResult_t`; 7 while it is in progress.
    pub init_state: i64,
    /// The asynchronous error, a `ncclResult_t`.
    pub async_error: i64,
    /// Set once `ncclCommFinalize` was called.
    pub finalize_called: bool,
    /// Set once `ncclCommDestroy` was called.
    pub destroy_flag: bool,
    /// Set once the communicator was aborted.
    pub abort_flag: bool,
}

/// The state of a rank's communicator. The variants have the same names as in NCCL's text report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RankState {
    /// The communicator is not ready yet.
    Init,
    /// Operations can be called.
    Running,
    /// `ncclCommFinalize` or `ncclCommDestroy` was called.
    Finalize,
    /// The communicator was aborted.
    Abort,
}

/// The part of a [`Report`] about a missing rank. The rank has not responded, or its process does not have the communicator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MissingRank {
    /// The number of the rank in its communicator.
    pub rank: u64,
    /// The IP address of the rank's host, or `unknown`.
    #[serde(default = "unknown_host")]
    pub host: String,
    /// The process id; -1 if it is unknown.
    #[serde(default = "unknown")]
    pub pid: i64,
    /// The CUDA device.
    #[serde(default = "unknown")]
    pub cuda_dev: i64,
    /// The NVML device.
    #[serde(default = "unknown")]
    pub nvml_dev: i64,
    /// The reason why the rank is missing; `None` if the report does not contain a complete reason.
    #[serde(default, deserialize_with = "known")]
    pub status: Option<MissingStatus>,
}

/// The reason why a rank is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MissingStatus {
    /// Set if the rank's process does not respond. Otherwise, the process responds, but does not have the communicator.
    pub unresponsive: bool,
    /// Set if the rank's process has not responded for a minute.
    pub considered_dead: bool,
}

/// Statistics about the collection of a [`Report`]. A field is `None` if its value is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Collection {
    /// The time in seconds that it took to query the processes.
    pub collection_time_sec: Option<f64>,
    /// The number of processes that timed out, or that can be reached only through a process that timed out.
    pub timeouts_count: Option<u64>,
}

fn unknown() -> i64 {
    -1
}

fn unknown_host() -> String {
    "unknown".into()
}

/// Returns a part of a report, or the default if it is null or malformed: the rest of the report remains useful.
fn known<'de, D: Deserializer<'de>, T: DeserializeOwned + Default>(deserializer: D) -> Result<T, D::Error> {
    let value = Value::deserialize(deserializer)?;
    Ok(T::deserialize(value).unwrap_or_default())
}

impl Report {
    /// Parses a report in JSON. Unknown fields are ignored. NCCL 2.28.7 to 2.28.9 omit a comma in `missing_ranks`; it is
    /// inserted.
    ///
    /// # Errors
    /// [`RasError::Protocol`] if `json` is larger than 256 MiB or is not a valid report. If it is not valid, the error contains
    /// the position of the mistake.
    pub fn parse(json: &[u8]) -> Result<Self, RasError> {
        if json.len() > MAX_REPORT {
            return Err(protocol(
                "a report",
                format!("it has {} bytes; expected at most {MAX_REPORT}", json.len()),
            ));
        }
        let parsed = serde_json::from_slice(json).or_else(|error| {
            let repaired = insert_commas(json);
            if repaired.len() == json.len() { Err(error) } else { serde_json::from_slice(&repaired) }
        });
        parsed.map_err(|error| protocol("a report", format!("{error}; it begins with {}", excerpt(json))))
    }
}

impl ReportedCommunicator {
    /// Returns the identity of the communicator.
    #[must_use]
    pub fn id(&self) -> CommunicatorId {
        let Self { hash, secondary_hash, size, .. } = self;
        CommunicatorId { hash: hash.clone(), secondary_hash: secondary_hash.clone(), size: *size }
    }

    /// Returns whether the communicator was still being initialized when the report was collected. The report lists such a
    /// communicator with size 0 and without ranks.
    #[must_use]
    pub fn is_initializing(&self) -> bool {
        self.size == 0 && self.ranks.is_empty() && self.missing_ranks.is_empty()
    }

    /// Returns the number of the communicator's ranks that have no entry in [`ranks`](Self::ranks).
    #[must_use]
    pub fn unresponsive(&self) -> u64 {
        let ranks = self.ranks.iter().map(|rank| rank.rank).filter(|rank| *rank < self.size);
        self.size - ranks.collect::<BTreeSet<u64>>().len() as u64
    }
}

/// Inserts the missing comma between the number of an NVML device and a string.
fn insert_commas(json: &[u8]) -> Vec<u8> {
    const KEY: &[u8] = b"\"nvml_dev\":";
    let mut repaired = Vec::with_capacity(json.len() + 64);
    let mut rest = json;
    while let Some(at) = rest.windows(KEY.len()).position(|window| window == KEY) {
        let number = at + KEY.len();
        let is_number = |byte: &u8| byte.is_ascii_digit() || matches!(byte, b'-' | b' ');
        let end = number + rest[number..].iter().take_while(|byte| is_number(byte)).count();
        repaired.extend_from_slice(&rest[..end]);
        rest = &rest[end..];
        if rest.trim_ascii_start().first() == Some(&b'"') {
            repaired.push(b',');
        }
    }
    repaired.extend_from_slice(rest);
    repaired
}

impl RankStatus {
    /// Returns the communicator's state, derived from the fields as in NCCL's text report.
    #[must_use]
    pub fn state(&self) -> RankState {
        match self {
            Self { abort_flag: true, .. } => RankState::Abort,
            Self { finalize_called: true, .. } | Self { destroy_flag: true, .. } => RankState::Finalize,
            Self { init_state: 0, .. } => RankState::Running,
            _ => RankState::Init,
        }
    }
}

/// Writes the state's name in NCCL's text report, such as `RUNNING`.
impl fmt::Display for RankState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Init => "INIT",
            Self::Running => "RUNNING",
            Self::Finalize => "FINALIZE",
            Self::Abort => "ABORT",
        })
    }
}

#[cfg(test)]
#[path = "../../tests/unit/report.rs"]
mod tests;
