//! The events that a monitoring client gets: processes that join, stop, go on, or end.

use std::fmt::Write;

use super::job::{Condition, HOST, Job, Processes};
use super::request::{EventGroups, Format};

/// The processes as they were known last.
#[derive(Debug)]
pub(super) struct Monitor {
    known: Processes,
}

#[derive(Debug)]
pub(super) struct Event {
    name: &'static str,
    is_lifecycle: bool,
    pid: u64,
    devices: String,
}

impl Monitor {
    pub(super) fn new() -> Self {
        Self { known: Job::collect().processes() }
    }

    /// Returns what has happened since the last call. Processes that have left as they should are forgotten.
    pub(super) fn poll(&mut self) -> Vec<Event> {
        let current = Job::collect().processes();
        let mut events = Vec::new();
        for (process, (devices, condition)) in current.iter() {
            let before = self.known.get(process).map(|(_, condition)| condition);
            let devices = devices.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
            let mut push = |name, is_lifecycle| {
                events.push(Event { name, is_lifecycle, pid: process.pid, devices: devices.clone() });
            };
            if before.is_none() {
                push("PEER_NEW", true);
            }
            match (before.unwrap_or(&Condition::Runs), condition) {
                (Condition::Stopped, Condition::Runs) => push("PEER_RECOVERED", false),
                (Condition::Runs, Condition::Stopped) => push("PEER_UNRESPONSIVE", false),
                (Condition::Runs | Condition::Stopped, Condition::Ended) => push("PEER_DEAD", true),
                _ => {}
            }
        }
        self.known = current;
        events
    }
}

impl Event {
    pub(super) fn is_in(&self, groups: EventGroups) -> bool {
        if self.is_lifecycle { groups.lifecycle } else { groups.trace }
    }

    pub(super) fn format(&self, format: Format, timestamp: &str) -> String {
        let Self { name, is_lifecycle, pid, devices } = self;
        let mut out = String::new();
        // Writing to a string cannot fail.
        let _ = match format {
            Format::Text => {
                let plural = if devices.contains(',') { "s" } else { "" };
                writeln!(
                    out,
                    "[{timestamp}] {name}: Process {pid} on node {HOST} managing GPU{plural} {devices} "
                )
            }
            Format::Json => {
                let group = if *is_lifecycle { "LIFECYCLE" } else { "TRACE" };
                writeln!(
                    out,
                    "{{\n  \"timestamp\": \"{timestamp}\",\n  \"group\": \"{group}\",\n  \"event\": \"{name}\",\n  \
                     \"peer\": {{\n    \"host\": \"{HOST}\",\n    \"pid\": {pid},\n    \"cuda_devs\": [{devices}],\n    \
                     \"nvml_devs\": [{devices}]\n  }},\n  \"details\": \"\"\n}}"
                )
            }
        };
        out
    }
}
