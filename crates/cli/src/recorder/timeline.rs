//! The timeline of a job as one page of HTML, without scripts.

use std::fmt::Write;
use std::ops::Range;

use itertools::Itertools;

use super::finding::Finding;
use super::recording::{Job, Rank, Record, State};
use crate::output::in_xml;

/// The width of a timeline in pixels.
const WIDTH: f64 = 1200.0;
const LEFT: f64 = 70.0;
const ROW: f64 = 26.0;

/// Returns the page: the findings, the omitted files, and for each communicator a row per rank.
pub(super) fn page(jobs: &[Job], findings: &[Finding], left_out: &[String]) -> String {
    let mut text = String::new();
    if findings.is_empty() {
        text += "<p>All ranks agree.</p>\n";
    }
    text.extend(findings.iter().map(|finding| format!("<pre>{}</pre>\n", in_xml(&finding.to_string()))));
    text.extend(left_out.iter().map(|problem| format!("<p>Left out: {}</p>\n", in_xml(problem))));
    let chart = |job: &Job| format!("<h2>{}</h2>\n{}\n", in_xml(&job.to_string()), chart(job));
    let charts: String = jobs.iter().map(chart).collect();
    format!(include_str!("timeline.html"), findings = text, charts = charts)
}

fn chart(job: &Job) -> String {
    let records = job.ranks.values().flat_map(|rank| &rank.records);
    let times = records.flat_map(|record| [Some(record.queued_ns), record.completed_ns]).flatten();
    let (start, end) = times.minmax().into_option().unwrap_or_default();
    // Calls that have not returned last until the end, which is drawn slightly later.
    let span = ((end - start) as f64).max(1000.0) * 1.05;
    let x = |time: u64| LEFT + (time.saturating_sub(start)) as f64 / span * (WIDTH - LEFT - 10.0);
    let rows = rows(job);
    let height = ROW * (rows.len() as f64 + 2.0);
    let mut svg = format!("<svg viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\">");
    for tick in 0..=5 {
        let time = span * f64::from(tick) / 5.0;
        let at = LEFT + f64::from(tick) / 5.0 * (WIDTH - LEFT - 10.0);
        let bottom = ROW * (rows.len() as f64 + 1.0);
        let anchor = if tick == 5 { "end" } else { "middle" };
        let _ = write!(
            svg,
            "<line class=\"grid\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"10\" y2=\"{bottom:.1}\"/>\
             <text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">{}</text>",
            bottom + 14.0,
            duration(time)
        );
    }
    for (row, (label, records)) in rows.iter().enumerate() {
        let y = ROW * (row as f64 + 0.5);
        let _ = write!(svg, "<text x=\"4\" y=\"{:.1}\">{label}</text>", y + 16.0);
        for (index, record) in records.iter().enumerate() {
            let next = records.get(index + 1).map(|next| next.queued_ns);
            let until = match record.state {
                State::Called | State::Failed => start.saturating_add(span as u64),
                State::Completed | State::Queued => {
                    record.completed_ns.or(next).unwrap_or(record.queued_ns).max(record.queued_ns)
                }
            };
            let (from, to) = (x(record.queued_ns), x(until));
            svg.push_str(&bar(record, from, (to - from).max(2.0), y));
        }
    }
    svg + "</svg>"
}

/// Returns the label and the records of each row. Consecutive ranks without a recording share one row.
fn rows(job: &Job) -> Vec<(String, &[Record])> {
    let label = |gap: &Range<usize>| match gap.len() {
        1 => format!("rank {}: no recording", gap.start),
        _ => format!("ranks {} to {}: no recording", gap.start, gap.end - 1),
    };
    let gaps = job.missing().map(|gap| (gap.start, (label(&gap), <&[Record]>::default())));
    let ranks =
        job.ranks.iter().map(|(rank, Rank { records, .. })| (*rank, (format!("rank {rank}"), &records[..])));
    gaps.chain(ranks).sorted_by_key(|(first, _)| *first).map(|(_, row)| row).collect()
}

fn bar(record: &Record, x: f64, width: f64, y: f64) -> String {
    let class = match record.state {
        State::Called => "called",
        State::Failed => "failed",
        State::Queued => "queued",
        State::Completed => "done",
    };
    let p2p = if record.collective.is_none() { " p2p" } else { "" };
    let number = record.collective.map_or_else(String::new, |number| format!("collective {number}: "));
    let site = record.site.as_ref().map_or_else(String::new, |site| format!("\n{site}"));
    let title = in_xml(&format!("{number}{record}{site}"));
    format!(
        "<rect class=\"{class}{p2p}\" x=\"{x:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"16\" rx=\"2\">\
         <title>{title}</title></rect>",
        y + 4.0
    )
}

fn duration(nanoseconds: f64) -> String {
    match nanoseconds {
        n if n >= 1e9 => format!("{:.1} s", n / 1e9),
        n if n >= 1e6 => format!("{:.1} ms", n / 1e6),
        n => format!("{:.1} us", n / 1e3),
    }
}
