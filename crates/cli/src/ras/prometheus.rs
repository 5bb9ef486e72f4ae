//! A report as metrics in Prometheus's text format.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{Display, Write};

use libnccl_observe::ras::{Report, ReportedCommunicator, Verdict};

use crate::escapes::in_lines;

pub(super) fn metrics(report: &Report, verdicts: &[Verdict]) -> String {
    let mut out = Metrics::default();
    let communicators: Vec<&ReportedCommunicator> =
        report.communicators.iter().filter(|one| !one.is_initialising()).collect();
    out.family(
        "nccl_ras_communicators",
        "gauge",
        "Communicators of the job, as far as the process that answered knows it",
    );
    out.sample("nccl_ras_communicators", &[("version", &report.nccl_version)], communicators.len());
    out.family("nccl_ras_ranks", "gauge", "Ranks of a communicator");
    for one in &communicators {
        out.sample("nccl_ras_ranks", &names(one), one.size);
    }
    out.family("nccl_ras_missing_ranks", "gauge", "Ranks of a communicator that have not answered");
    for one in &communicators {
        out.sample("nccl_ras_missing_ranks", &names(one), one.unanswered());
    }
    out.family("nccl_ras_collectives_total", "counter", "Collectives that a rank has launched");
    let ranks = || communicators.iter().flat_map(|one| one.ranks.iter().map(move |rank| (names(one), rank)));
    for ([hash, secondary], rank) in ranks() {
        for (collective, count) in &rank.collective_counts {
            let labels: [Label<'_>; 7] = [
                hash,
                secondary,
                ("rank", &rank.rank),
                ("host", &rank.host),
                ("pid", &rank.pid),
                ("device", &rank.cuda_dev),
                ("collective", collective),
            ];
            out.sample("nccl_ras_collectives_total", &labels, count);
        }
    }
    out.family("nccl_ras_async_error", "gauge", "Asynchronous error of a rank, a ncclResult_t");
    for ([hash, secondary], rank) in ranks() {
        if let Some(status) = &rank.status {
            out.sample("nccl_ras_async_error", &[hash, secondary, ("rank", &rank.rank)], status.async_error);
        }
    }
    out.family("nccl_ras_verdicts", "gauge", "Conclusions by kind; idle is not a problem");
    let mut kinds: BTreeMap<String, u64> = BTreeMap::new();
    for verdict in verdicts {
        let kind = serde_json::to_value(&verdict.kind)
            .ok()
            .and_then(|kind| kind["verdict"].as_str().map(str::to_owned));
        *kinds.entry(kind.unwrap_or_default()).or_default() += 1;
    }
    for (kind, count) in kinds {
        out.sample("nccl_ras_verdicts", &[("verdict", &kind)], count);
    }
    out.family("nccl_ras_problems", "gauge", "Conclusions that something is wrong");
    out.sample("nccl_ras_problems", &[], verdicts.iter().filter(|verdict| verdict.is_problem()).count());
    out.family("nccl_ras_collection_seconds", "gauge", "Time that the job took for the report");
    if let Some(seconds) = report.ras.collection_time_sec {
        out.sample("nccl_ras_collection_seconds", &[], seconds);
    }
    out.family("nccl_ras_collection_timeouts", "gauge", "Processes that were given up for the report");
    if let Some(timeouts) = report.ras.timeouts_count {
        out.sample("nccl_ras_collection_timeouts", &[], timeouts);
    }
    out.text
}

type Label<'a> = (&'a str, &'a dyn Display);

fn names(communicator: &ReportedCommunicator) -> [Label<'_>; 2] {
    [("communicator", &communicator.hash), ("secondary", &communicator.secondary_hash)]
}

#[derive(Debug, Default)]
struct Metrics {
    text: String,
    /// The samples that there are, without their values.
    known: BTreeSet<String>,
}

// Writing to a string cannot fail.
impl Metrics {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &[Label<'_>], value: impl Display) {
        let labels: Vec<String> =
            labels.iter().map(|(key, text)| format!("{key}=\"{}\"", escape(&text.to_string()))).collect();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        // Of an entry that a report has twice, the first: Prometheus refuses the file otherwise.
        if self.known.insert(format!("{name}{labels}")) {
            let _ = writeln!(self.text, "{name}{labels} {value}");
        }
    }
}

/// Escapes a label. Prometheus refuses a file with an escape that is not its own, as that of a control character is.
fn escape(text: &str) -> String {
    in_lines(text).replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
#[path = "../../tests/unit/prometheus.rs"]
mod tests;
