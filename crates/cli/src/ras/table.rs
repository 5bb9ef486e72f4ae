//! The communicators of a report, a line for each.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Result, Write};

use libnccl_observe::ras::{RankReport, RankState, Report, ReportedCommunicator};

pub(super) fn write(out: &mut impl Write, report: &Report) -> Result<()> {
    if report.communicators.is_empty() {
        return writeln!(out, "the processes that answered have no communicator");
    }
    writeln!(out, "{:<18} {:>6} {:>7}  {:<9} launched", "communicator", "ranks", "missing", "state")?;
    for communicator in &report.communicators {
        let mut states: BTreeSet<String> = communicator.ranks.iter().map(state).collect();
        if communicator.is_initialising() {
            states.insert(RankState::Init.to_string());
        }
        writeln!(
            out,
            "{:<18} {:>6} {:>7}  {:<9} {}",
            communicator.id().to_string(),
            communicator.size,
            communicator.unanswered(),
            states.into_iter().collect::<Vec<_>>().join(","),
            launched(communicator)
        )?;
    }
    Ok(())
}

fn state(rank: &RankReport) -> String {
    rank.status.as_ref().map_or_else(|| "unknown".into(), |status| status.state().to_string())
}

/// Returns the collectives with the least and the greatest number that a rank has launched.
fn launched(communicator: &ReportedCommunicator) -> String {
    let mut ranges: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for (name, count) in communicator.ranks.iter().flat_map(|rank| &rank.collective_counts) {
        let (least, most) = ranges.entry(name).or_insert((*count, *count));
        (*least, *most) = ((*least).min(*count), (*most).max(*count));
    }
    if ranges.is_empty() {
        return "unknown".into();
    }
    let used = ranges.into_iter().filter(|(_, (_, most))| *most > 0);
    let ranges: Vec<String> = used
        .map(
            |(name, (least, most))| {
                if least == most { format!("{name} {most}") } else { format!("{name} {least}-{most}") }
            },
        )
        .collect();
    if ranges.is_empty() { "nothing".into() } else { ranges.join(", ") }
}
