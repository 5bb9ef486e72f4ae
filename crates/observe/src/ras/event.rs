use std::fmt;

use serde::{Deserialize, Serialize};

/// A group of events that [`RasClient::monitor`](super::RasClient::monitor) can report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EventGroup {
    /// Processes that join or are considered dead. Every process sees those of all others.
    Lifecycle,
    /// Connections between processes: made, lost, slow, recovered. A process sees those of its neighbours.
    Trace,
}

impl EventGroup {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Lifecycle => "lifecycle",
            Self::Trace => "trace",
        }
    }
}

/// An event of a job.
///
/// [`Display`](fmt::Display) writes it as NCCL does in text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Event {
    /// The local time of the process that reports it, `YYYY-MM-DD hh:mm:ss`.
    pub timestamp: String,
    /// `LIFECYCLE` or `TRACE`.
    pub group: String,
    /// The name, such as `PEER_NEW`, `PEER_DEAD` or `PEER_UNRESPONSIVE`.
    pub event: String,
    /// The process that it is about, if there is one.
    #[serde(default)]
    pub peer: Option<Peer>,
    /// The details; may be empty.
    #[serde(default)]
    pub details: String,
}

/// A process that an [`Event`] is about. Fields that the job does not know are empty.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Peer {
    /// The IP address of its host.
    pub host: String,
    /// The process id; 0 if it is unknown.
    pub pid: i64,
    /// The CUDA devices of its ranks.
    pub cuda_devs: Vec<i64>,
    /// The NVML devices of its ranks.
    pub nvml_devs: Vec<i64>,
    /// The address of its connection, where that is all that is known.
    pub addr: String,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}] {}:", self.timestamp, self.event)?;
        if let Some(peer) = &self.peer {
            write!(f, " {peer}")?;
        }
        if !self.details.is_empty() {
            write!(f, " {}", self.details)?;
        }
        Ok(())
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.addr.is_empty() {
            return f.write_str(&self.addr);
        }
        write!(f, "Process {} on node {}", self.pid, self.host)?;
        if let Some((first, rest)) = self.cuda_devs.split_first() {
            write!(f, " managing GPU{} {first}", if rest.is_empty() { "" } else { "s" })?;
            rest.iter().try_for_each(|device| write!(f, ",{device}"))?;
        }
        Ok(())
    }
}
