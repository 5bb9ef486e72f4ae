//! Reports of findings: races, and leaks when the process exits.

use std::collections::BTreeMap;

use cudarc::driver::sys::CUresult::*;

use crate::allocation::Kind;
use crate::config::{Config, Races};
use crate::error::print;
use crate::race::Race;
use crate::state::State;
use cuda_common::finding::{self, Finding};

/// Reports a finding unless it is ignored. Without `is_reported`, it is only appended to the findings file.
pub(crate) fn say(config: Config, finding: Finding, count: u64, text: &str, is_reported: bool) {
    if config.ignored.has(finding) {
        return;
    }
    finding::append(finding, count, None, text, &[]);
    if is_reported {
        print(&format!("libnccl: {text} [{}]\n", finding.name()));
    }
}

impl State {
    /// Reports races. Of several races between the same functions, only the first is reported.
    pub(crate) fn report(&mut self, found: Vec<Race>) {
        let Config { ignored, races, .. } = self.config;
        for race in found.into_iter().filter(|race| !ignored.has(race.finding())) {
            if race.is_new {
                let (text, stacks) = (race.to_string(), race.stacks());
                finding::append(race.finding(), 1, None, &text, &stacks);
                let (head, sides) = text.split_once('\n').unwrap_or((&text, ""));
                let mut report = format!("libnccl: {head} [{}]\n", race.finding().name());
                for (side, frames) in sides.lines().zip(&stacks) {
                    report += &format!("{side}\n");
                    report.extend(frames.iter().map(|frame| format!("        {frame}\n")));
                }
                print(&report);
            }
            if races == Races::Error {
                for stream in race.streams() {
                    if let Ok(context) = self.context_of(stream) {
                        self.fail(context, CUDA_ERROR_ASSERT);
                    }
                }
            }
        }
    }

    pub(crate) fn leaks(&self) -> Vec<(Finding, String)> {
        let mut memory = BTreeMap::<_, (usize, usize)>::new();
        for allocation in self.allocations.all() {
            let finding = match allocation.kind {
                Kind::Device | Kind::Managed => Finding::LeakedDeviceMemory,
                Kind::Pinned | Kind::Registered => Finding::LeakedHostMemory,
            };
            let key = (finding, allocation.device, allocation.kind.memory());
            let (number, bytes) = memory.entry(key).or_default();
            (*number, *bytes) = (*number + 1, *bytes + allocation.length);
        }
        // The program did not create the streams of graphs.
        let of_graphs = |stream| self.execs.values().any(|exec| exec.streams.contains(stream));
        let own = self.streams.iter().filter(|&(id, _)| self.is_own_stream(*id) && !of_graphs(id));
        let streams = own.map(|(_, stream)| (Finding::LeakedStream, stream.context));
        let events = self.events.values().map(|event| (Finding::LeakedEvent, event.context));
        let mut objects = BTreeMap::<_, usize>::new();
        for (finding, context) in streams.chain(events) {
            if let Some(context) = self.contexts.get(&context) {
                *objects.entry((finding, context.device)).or_default() += 1;
            }
        }
        let count =
            |number: usize, what: &str| format!("{number} {what}{}", if number == 1 { "" } else { "s" });
        let memory = memory.into_iter().map(|((finding, device, memory), (number, bytes))| {
            let allocations = count(number, "allocation");
            let text = format!(
                "{bytes} bytes of {memory} in {allocations}, made on device {device}, were not freed"
            );
            (finding, text)
        });
        let objects = objects.into_iter().map(|((finding, device), number)| {
            let what = if finding == Finding::LeakedStream { "stream" } else { "event" };
            let were = if number == 1 { "was" } else { "were" };
            (finding, format!("{} of device {device} {were} not destroyed", count(number, what)))
        });
        memory.chain(objects).collect()
    }
}
