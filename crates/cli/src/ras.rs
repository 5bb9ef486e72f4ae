//! `nccl ras`: reports which ranks of a running job are late, stuck, failed or dead.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{Display, Write as _};
use std::io::Write;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use anyhow::Result;
use clap::{Args, ValueEnum};
use itertools::Itertools;
use libnccl_observe::ras::{
    EventGroup, RankReport, RankState, RasClient, RasError, Report, ReportedCommunicator, Verdict, verdicts,
};
use serde_json::{Value, json};

use crate::output::{self, in_line, in_lines, stdout};

#[derive(Debug, Args)]
#[command(after_help = include_str!("help/ras.txt").trim_end())]
pub(crate) struct RasArguments {
    #[arg(value_enum, default_value_t = Action::Status)]
    action: Action,
    /// Also print the job's own report, and all lines about ranks
    #[arg(short, long)]
    verbose: bool,
    /// Print JSON, of status and monitor
    #[arg(long)]
    json: bool,
    /// Print metrics in Prometheus's text format
    #[arg(long, conflicts_with_all = ["json", "verbose", "watch"])]
    prometheus: bool,
    /// Repeat, with so many seconds between reports, and wait for a job that is not there
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    watch: Option<Duration>,
    /// Address of the job, host:port [default: `NCCL_RAS_ADDR`, or localhost:28028]
    #[arg(long, value_name = "ADDRESS")]
    addr: Option<String>,
    /// Time limit for each reply
    #[arg(long, value_name = "SECONDS", default_value = "11", value_parser = seconds)]
    timeout: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Action {
    /// Take some reports within a second, and conclude
    Status,
    /// Print what happens to processes until the job ends
    Monitor,
    /// Let the job check its GPUs, drivers and environment (NCCL 2.31)
    Diagnostics,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds.filter(|time| !time.is_zero()).ok_or_else(|| "expected a number of seconds above 0".into())
}

const PROBLEM: u8 = 3;

/// The time between two reports; `SAMPLING` is the time for all. Ranks of a healthy job differ, but only for moments.
const INTERVAL: Duration = Duration::from_millis(100);
const SAMPLING: Duration = Duration::from_millis(900);

const MAX_INTERVAL: Duration = Duration::from_secs(1);

const MAX_VERDICTS: usize = 32;

pub(crate) fn run(arguments: &RasArguments) -> Result<ExitCode> {
    let client = match &arguments.addr {
        Some(address) => RasClient::new(address)?,
        None => RasClient::from_env()?,
    };
    let client = client.timeout(arguments.timeout);
    match arguments.action {
        Action::Status => status(&client, arguments),
        Action::Monitor => monitor(&client, arguments.json),
        Action::Diagnostics => {
            write!(stdout(), "{}", client.diagnostics()?)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn status(client: &RasClient, arguments: &RasArguments) -> Result<ExitCode> {
    let Some(interval) = arguments.watch else { return report(client, arguments, &mut None) };
    let (mut before, mut absent) = (None, String::new());
    loop {
        match report(client, arguments, &mut before) {
            Ok(_) => {
                absent.clear();
                thread::sleep(interval);
                if !arguments.json {
                    writeln!(stdout())?;
                }
            }
            Err(error) => match error.downcast()? {
                // The job has not started yet, ends, or does not respond.
                error @ (RasError::Connect { .. } | RasError::Closed { .. } | RasError::Timeout { .. }) => {
                    let problem = error.to_string();
                    if problem != absent {
                        anstream::eprintln!("{} waiting: {}", now(), in_line(&problem));
                    }
                    absent = problem;
                    thread::sleep(interval.min(MAX_INTERVAL));
                }
                error => return Err(error.into()),
            },
        }
    }
}

/// A report, and the time when it was printed.
type Printed = (Report, Instant);

/// Prints one report, compared with the previous one in `before`, which it replaces. Returns the exit status.
fn report(client: &RasClient, arguments: &RasArguments, before: &mut Option<Printed>) -> Result<ExitCode> {
    let (reports, elapsed) = match sample(client, before.take()) {
        Err(RasError::Unsupported { since, .. }) => {
            return report_as_text(client, since, arguments.watch.is_some());
        }
        sampled => sampled?,
    };
    let Some(last) = reports.last() else { return Ok(ExitCode::FAILURE) };
    let (verdicts, reports, elapsed) = (verdicts(&reports), reports.len(), elapsed.as_secs_f64());
    if arguments.prometheus {
        write!(stdout(), "{}", metrics(last, &verdicts))?;
    } else if arguments.json {
        output::print_json(&json!({
            "time": now().to_string(),
            "verdicts": verdicts.iter().map(as_json).collect::<Result<Vec<_>>>()?,
            "reports": reports,
            "elapsed_seconds": elapsed,
            "last_report": last,
        }))?;
    } else {
        let source = format!("NCCL {}, {reports} reports in {elapsed:.1} s", last.nccl_version);
        print(client, arguments, last, &verdicts, &source)?;
    }
    let code = match verdicts.iter().any(Verdict::is_problem) {
        true => PROBLEM,
        // No report of a job.
        false => u8::from(is_empty(last)),
    };
    // Counters that do not change until the next report are frozen for that long.
    *before = Some((last.clone(), Instant::now()));
    Ok(code.into())
}

fn now() -> impl Display {
    humantime::format_rfc3339_seconds(SystemTime::now())
}

/// Returns whether a report has no ready communicator, and thus no data on its job.
fn is_empty(report: &Report) -> bool {
    report.communicators.iter().all(ReportedCommunicator::is_initializing)
}

/// Takes reports for [`SAMPLING`], at least two. Returns `before` followed by these reports, and the time since the first one.
fn sample(client: &RasClient, before: Option<Printed>) -> Result<(Vec<Report>, Duration), RasError> {
    let start = Instant::now();
    let first = before.as_ref().map_or(start, |(_, at)| *at);
    let mut reports: Vec<Report> = before.into_iter().map(|(report, _)| report).collect();
    let least = reports.len() + 2;
    loop {
        let report = client.report()?;
        let interval = interval(&report);
        reports.push(report);
        if reports.len() >= least && start.elapsed() >= SAMPLING {
            return Ok((reports, first.elapsed()));
        }
        thread::sleep(interval);
    }
}

/// Returns the time from this report to the next: three times this report's collection time, as verdicts on stragglers require.
fn interval(report: &Report) -> Duration {
    let seconds = report.ras.collection_time_sec.unwrap_or_default();
    Duration::try_from_secs_f64(3.0 * seconds).unwrap_or_default().clamp(INTERVAL, MAX_INTERVAL)
}

fn print(
    client: &RasClient,
    arguments: &RasArguments,
    last: &Report,
    verdicts: &[Verdict],
    source: &str,
) -> Result<()> {
    let mut out = stdout();
    if arguments.watch.is_some() {
        writeln!(out, "{}", now())?;
    }
    let limit = if arguments.verbose { usize::MAX } else { MAX_VERDICTS };
    for verdict in verdicts.iter().take(limit) {
        writeln!(out, "{}: {verdict}", if verdict.is_problem() { "problem" } else { "note" })?;
    }
    if let Some(more) = verdicts.len().checked_sub(limit).filter(|more| *more > 0) {
        writeln!(out, "... and {more} more, which --verbose lists")?;
    }
    if is_empty(last) {
        writeln!(out, "no communicator is ready: nothing is known of the job")?;
    } else if !verdicts.iter().any(Verdict::is_problem) {
        let advice = "sends and receives are not counted: `nccl recorder diff` compares them";
        writeln!(out, "no problem found in collectives; {advice}")?;
    }
    writeln!(out, "\n{}", table(last))?;
    writeln!(out, "\n{source}")?;
    out.flush()?;
    if arguments.verbose {
        // A failure does not change the verdict.
        match client.verbose_status() {
            Ok(report) => write!(stdout(), "\n{report}")?,
            Err(error) => anstream::eprintln!("warning: {}", in_line(&error.to_string())),
        }
    }
    Ok(())
}

fn as_json(verdict: &Verdict) -> Result<Value> {
    let mut value = serde_json::to_value(verdict)?;
    value["text"] = verdict.to_string().into();
    value["is_problem"] = verdict.is_problem().into();
    Ok(value)
}

fn table(report: &Report) -> String {
    if report.communicators.is_empty() {
        return "the processes that responded have no communicator".into();
    }
    let line = |id: &str, size: &str, missing: &str, states: &str, launched: &str| {
        format!("{id:<18} {size:>6} {missing:>7}  {states:<9} {launched}")
    };
    let mut lines = vec![line("communicator", "ranks", "missing", "state", "launched")];
    for one in &report.communicators {
        let init = one.is_initializing().then(|| RankState::Init.to_string());
        let states = one.ranks.iter().map(state).chain(init).sorted().dedup().join(",");
        let [size, missing] = [one.size, one.unresponsive()].map(|number| number.to_string());
        lines.push(line(&one.id().to_string(), &size, &missing, &states, &launched(one)));
    }
    lines.join("\n")
}

fn state(rank: &RankReport) -> String {
    rank.status.as_ref().map_or_else(|| "unknown".into(), |status| status.state().to_string())
}

/// Returns, for each collective, the smallest and the largest number of launches on a rank.
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
    let text = |(name, (least, most)): (&str, (u64, u64))| {
        if least == most { format!("{name} {most}") } else { format!("{name} {least}-{most}") }
    };
    let ranges = used.map(text).join(", ");
    if ranges.is_empty() { "nothing".into() } else { ranges }
}

/// Prints a text report, for an NCCL version without the JSON reports that verdicts need.
fn report_as_text(client: &RasClient, since: libnccl::Version, is_watched: bool) -> Result<ExitCode> {
    let report = client.status()?;
    if is_watched {
        writeln!(stdout(), "{}", now())?;
    }
    write!(stdout(), "{report}\nVerdicts need NCCL {since} or newer.\n")?;
    Ok(if has_findings(&report) { ExitCode::from(PROBLEM) } else { ExitCode::SUCCESS })
}

/// Returns whether a report's last sections, `Errors` and `Warnings`, have any contents.
fn has_findings(report: &str) -> bool {
    let mut lines = report.lines().skip_while(|line| *line != "Errors");
    lines.any(|line| {
        !line.is_empty() && !matches!(line, "Errors" | "Warnings") && !line.bytes().all(|byte| byte == b'=')
    })
}

fn monitor(client: &RasClient, is_json: bool) -> Result<ExitCode> {
    let mut has_begun = false;
    loop {
        let mut monitor = match client.monitor(&[EventGroup::Lifecycle, EventGroup::Trace]) {
            Err(RasError::Connect { .. }) if has_begun => {
                eprintln!("no process of the job is left");
                return Ok(ExitCode::SUCCESS);
            }
            monitor => monitor?,
        };
        has_begun = true;
        loop {
            match monitor.next_event(Duration::from_secs(3600)) {
                Ok(None) => {}
                Ok(Some(event)) if is_json => writeln!(stdout(), "{}", serde_json::to_string(&event)?)?,
                Ok(Some(event)) => writeln!(stdout(), "{event}")?,
                // The process that reported the events has exited, but the job may continue.
                Err(RasError::Closed { .. }) => break,
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Returns a report as metrics in Prometheus's text format. docs/hangs.md lists them.
fn metrics(report: &Report, verdicts: &[Verdict]) -> String {
    let mut out = Metrics::default();
    let communicators = report.communicators.iter().filter(|one| !one.is_initializing()).collect_vec();
    let ranks = || communicators.iter().flat_map(|one| one.ranks.iter().map(move |rank| (names(one), rank)));
    let kind = |verdict: &Verdict| {
        let kind = serde_json::to_value(&verdict.kind).ok();
        kind.and_then(|kind| kind["verdict"].as_str().map(str::to_owned)).unwrap_or_default()
    };
    let kinds = verdicts.iter().map(kind).counts().into_iter().sorted();
    let help = "Communicators of the job, as seen by the process that responded";
    out.family("nccl_ras_communicators", "gauge", help);
    out.sample(&[("version", &report.nccl_version)], communicators.len());
    out.family("nccl_ras_ranks", "gauge", "Ranks of a communicator");
    communicators.iter().for_each(|one| out.sample(&names(one), one.size));
    out.family("nccl_ras_missing_ranks", "gauge", "Ranks of a communicator that have not responded");
    communicators.iter().for_each(|one| out.sample(&names(one), one.unresponsive()));
    out.family("nccl_ras_collectives_total", "counter", "Collectives that a rank has launched");
    for ([hash, secondary], rank) in ranks() {
        let [number, host]: [Label<'_>; 2] = [("rank", &rank.rank), ("host", &rank.host)];
        let [pid, device]: [Label<'_>; 2] = [("pid", &rank.pid), ("device", &rank.cuda_dev)];
        for (collective, count) in &rank.collective_counts {
            out.sample(&[hash, secondary, number, host, pid, device, ("collective", collective)], count);
        }
    }
    out.family("nccl_ras_async_error", "gauge", "Asynchronous error of a rank, a ncclResult_t");
    for ([hash, secondary], rank) in ranks() {
        let error = rank.status.as_ref().map(|status| status.async_error);
        error.into_iter().for_each(|error| out.sample(&[hash, secondary, ("rank", &rank.rank)], error));
    }
    out.family("nccl_ras_verdicts", "gauge", "Conclusions by kind; idle is not a problem");
    kinds.for_each(|(kind, count)| out.sample(&[("verdict", &kind)], count));
    out.family("nccl_ras_problems", "gauge", "Conclusions that something is wrong");
    out.sample(&[], verdicts.iter().filter(|verdict| verdict.is_problem()).count());
    out.family("nccl_ras_collection_seconds", "gauge", "Time that the job took for the report");
    report.ras.collection_time_sec.iter().for_each(|seconds| out.sample(&[], seconds));
    out.family("nccl_ras_collection_timeouts", "gauge", "Processes that were given up for the report");
    report.ras.timeouts_count.iter().for_each(|timeouts| out.sample(&[], timeouts));
    out.text
}

type Label<'a> = (&'a str, &'a dyn Display);

fn names(communicator: &ReportedCommunicator) -> [Label<'_>; 2] {
    [("communicator", &communicator.hash), ("secondary", &communicator.secondary_hash)]
}

#[derive(Debug, Default)]
struct Metrics {
    text: String,
    /// The name of the current family.
    family: &'static str,
    /// The samples so far, without their values.
    known: BTreeSet<String>,
}

// Writing to a string cannot fail.
impl Metrics {
    fn family(&mut self, name: &'static str, kind: &str, help: &str) {
        self.family = name;
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, labels: &[Label<'_>], value: impl Display) {
        let name = self.family;
        let labels =
            labels.iter().map(|(key, text)| format!("{key}=\"{}\"", escape(&text.to_string()))).join(",");
        let labels = if labels.is_empty() { labels } else { format!("{{{labels}}}") };
        // Only the first of duplicate entries: Prometheus would reject the file.
        if self.known.insert(format!("{name}{labels}")) {
            let _ = writeln!(self.text, "{name}{labels} {value}");
        }
    }
}

/// Escapes a label's value. Escapes of control characters are escaped again, because Prometheus rejects unknown escapes.
fn escape(text: &str) -> String {
    in_lines(text).replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
#[path = "../tests/unit/ras.rs"]
mod tests;
