//! Leaks: what is left of a program when its process ends.

use std::collections::BTreeMap;

use cuda_common::finding::Finding;

use crate::allocation::Kind;
use crate::driver::State;

impl State {
    /// Returns what is left, by kind and device, each with its description.
    pub(crate) fn leaks(&self) -> Vec<(Finding, String)> {
        let mut memory = BTreeMap::<_, (usize, usize)>::new();
        for allocation in self.allocations.all() {
            let finding = match allocation.kind {
                Kind::Device | Kind::Managed => Finding::LeakedDeviceMemory,
                Kind::Pinned | Kind::Registered => Finding::LeakedHostMemory,
            };
            let (number, bytes) =
                memory.entry((finding, allocation.device, allocation.kind.memory())).or_default();
            (*number, *bytes) = (*number + 1, *bytes + allocation.length);
        }
        // Those of graphs are not the program's.
        let of_graphs = |stream| self.execs.values().any(|exec| exec.streams.contains(stream));
        let own = self.streams.iter().filter(|&(&id, _)| self.is_own_stream(id));
        let streams =
            own.filter(|(id, _)| !of_graphs(id)).map(|(_, stream)| (Finding::LeakedStream, stream.context));
        let events = self.events.values().map(|event| (Finding::LeakedEvent, event.context));
        let mut objects = BTreeMap::<_, usize>::new();
        for (finding, context) in streams.chain(events) {
            let device = self.contexts.get(&context).map(|context| context.device);
            device.into_iter().for_each(|device| *objects.entry((finding, device)).or_default() += 1);
        }
        let count =
            |number: usize, what: &str| format!("{number} {what}{}", if number == 1 { "" } else { "s" });
        let memory = memory.into_iter().map(|((finding, device, memory), (number, bytes))| {
            let allocations = count(number, "allocation");
            (
                finding,
                format!(
                    "{bytes} bytes of {memory} in {allocations}, made on device {device}, were not freed"
                ),
            )
        });
        let objects = objects.into_iter().map(|((finding, device), number)| {
            let what = if finding == Finding::LeakedStream { "stream" } else { "event" };
            let were = if number == 1 { "was" } else { "were" };
            (finding, format!("{} of device {device} {were} not destroyed", count(number, what)))
        });
        memory.chain(objects).collect()
    }
}
