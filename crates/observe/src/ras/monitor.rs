use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Deserializer;

use super::connection::{Connection, excerpt, protocol};
use super::error::RasError;
use libnccl_launch::connection::Deadline;

/// The maximum size of an event in bytes. NCCL's events are below 1 kB plus 20 bytes for each device.
const MAX_EVENT: usize = 1 << 20;

const REQUEST: &str = "MONITOR";

/// A subscription to the events of a job, created by [`RasClient::monitor`](super::RasClient::monitor).
///
/// ```no_run
/// # use std::time::Duration;
/// # use libnccl_observe::ras::{EventGroup, RasClient, RasError};
/// # fn main() -> Result<(), RasError> {
/// let mut monitor = RasClient::from_env()?.monitor(&[EventGroup::Lifecycle])?;
/// loop {
///     match monitor.next_event(Duration::from_secs(60))? {
///         Some(event) => println!("{event}"),
///         None => println!("nothing for a minute"),
///     }
/// }
/// # }
/// ```
#[derive(Debug)]
pub struct Monitor {
    connection: Connection,
}

impl Monitor {
    pub(super) fn new(connection: Connection) -> Self {
        Self { connection }
    }

    /// Waits for the next event. Returns `None` if there is none within `timeout`.
    ///
    /// # Errors
    /// [`RasError::Closed`] if the process that reports the events has exited. [`RasError::Protocol`] if the process sends
    /// anything other than an event; further calls then fail too.
    pub fn next_event(&mut self, timeout: Duration) -> Result<Option<Event>, RasError> {
        let deadline = Deadline::after(timeout);
        loop {
            // Discarded, so that they need no memory.
            let blanks = self.connection.buffer().iter().take_while(|byte| b" \t\r\n".contains(byte)).count();
            self.connection.consume(blanks);
            if let Some((event, length)) = first_event(self.connection.buffer())? {
                self.connection.consume(length);
                return Ok(Some(event));
            }
            match self.connection.receive(REQUEST, &deadline) {
                Ok(0) => return Err(self.connection.ended(REQUEST)),
                Ok(_) => {}
                Err(RasError::Timeout { .. }) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }
}

/// Returns the event at the start of `bytes` and its length, or `None` if the event is not complete. Nothing separates events.
fn first_event(bytes: &[u8]) -> Result<Option<(Event, usize)>, RasError> {
    let mut events = Deserializer::from_slice(bytes).into_iter::<Event>();
    match events.next() {
        None => Ok(None),
        Some(Ok(event)) => Ok(Some((event, events.byte_offset()))),
        Some(Err(error)) if error.is_eof() && bytes.len() <= MAX_EVENT => Ok(None),
        Some(Err(error)) => {
            Err(protocol(REQUEST, format!("{error}, in {}; expected an event", excerpt(bytes))))
        }
    }
}

/// A group of events that [`RasClient::monitor`](super::RasClient::monitor) can report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EventGroup {
    /// Events about processes that join or are considered dead. Each process reports the events of all processes.
    Lifecycle,
    /// Events about connections that are made, lost, slow or recovered. Each process reports only the events of its own
    /// connections to neighboring processes.
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

/// An event in a job. For example, a process has joined or does not respond.
///
/// [`Display`](fmt::Display) writes the event in NCCL's text format.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Event {
    /// The local time at which the event was reported, `YYYY-MM-DD hh:mm:ss`.
    pub timestamp: String,
    /// The name of the event's group: `LIFECYCLE` or `TRACE`.
    pub group: String,
    /// The name of the event, such as `PEER_NEW`, `PEER_DEAD` or `PEER_UNRESPONSIVE`.
    pub event: String,
    /// The process that the event is about, if there is one.
    #[serde(default)]
    pub peer: Option<Peer>,
    /// Further details; may be empty.
    #[serde(default)]
    pub details: String,
}

/// A process that an [`Event`] is about. A string or list is empty if its value is unknown.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Peer {
    /// The IP address of the process's host.
    pub host: String,
    /// The process id; 0 if it is unknown.
    pub pid: i64,
    /// The CUDA devices of the process's ranks.
    pub cuda_devs: Vec<i64>,
    /// The NVML devices of the process's ranks.
    pub nvml_devs: Vec<i64>,
    /// The address of the process's connection. Set only if nothing else is known about the process.
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

#[cfg(test)]
#[path = "../../tests/unit/monitor.rs"]
mod tests;
