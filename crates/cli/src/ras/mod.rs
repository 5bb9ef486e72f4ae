//! `nccl ras`: asks a running job which of its ranks are late, stuck, failed or dead.

mod prometheus;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::io::{self, Write, stdout};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use anyhow::Result;
use clap::{Args, ValueEnum};
use libnccl_observe::ras::{
    EventGroup, RankReport, RankState, RasClient, RasError, Report, ReportedCommunicator, Verdict, verdicts,
};
use serde_json::{Value, json};

use crate::escapes::{in_line, in_lines};
use crate::output;

const HELP: &str = "\
Every process of a job answers at NCCL_RAS_ADDR (NCCL 2.24 and newer; verdicts need 2.28.7). The CPU backend does \
if NCCL_RAS_ENABLE=1 is set.

Examples:
  nccl ras                                   the job on this host: who is late, stuck, failed or dead?
  nccl ras --addr node7:28028 --watch 10     the same every 10 s, of a job that node7 is or will be part of
  nccl ras monitor                           processes that join or die, as it happens
  nccl ras --prometheus                      metrics for node_exporter's textfile collector

Exit status:
  0    Nothing is wrong
  1    No report: no process listens, none answers, or no communicator is ready
  2    Invalid command line
  3    Something is wrong, or missing in the report, which the first lines name
  141  The reader of the output closed it";

#[derive(Debug, Args)]
#[command(after_help = HELP)]
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
    /// Time in which each answer has to come
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
    let valid = seconds.filter(|seconds| !seconds.is_zero());
    valid.ok_or_else(|| "expected a number of seconds above 0".into())
}

const PROBLEM: u8 = 3;

/// The time between two reports, and that in which they are taken: ranks of a sound job are apart for moments, and only
/// for moments.
const INTERVAL: Duration = Duration::from_millis(100);
const SAMPLING: Duration = Duration::from_millis(900);

/// The time between two reports at most, also if they take long.
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
            write!(stdout(), "{}", in_lines(&client.diagnostics()?))?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn status(client: &RasClient, arguments: &RasArguments) -> Result<ExitCode> {
    let Some(interval) = arguments.watch else { return Ok(report(client, arguments, None)?.0) };
    let (mut before, mut absent) = (None, String::new());
    loop {
        match report(client, arguments, before.take()) {
            Ok((_, last)) => {
                (before, absent) = (last, String::new());
                thread::sleep(interval);
                if !arguments.json {
                    writeln!(stdout())?;
                }
            }
            Err(error) if is_absence(&error) => {
                let problem = error.to_string();
                if problem != absent {
                    anstream::eprintln!("{} waiting: {}", now(), in_line(&problem));
                }
                absent = problem;
                thread::sleep(interval.min(MAX_INTERVAL));
            }
            Err(error) => return Err(error),
        }
    }
}

/// Returns `true` for the error if a job is not there yet, ends, or does not answer.
fn is_absence(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref();
    matches!(error, Some(RasError::Connect { .. } | RasError::Closed { .. } | RasError::Timeout { .. }))
}

/// Prints one report. Returns the exit status, and the report with which the next one is compared.
fn report(
    client: &RasClient,
    arguments: &RasArguments,
    before: Option<(Report, Instant)>,
) -> Result<(ExitCode, Option<(Report, Instant)>)> {
    let (reports, elapsed) = match sample(client, before) {
        Err(RasError::Unsupported { since, .. }) => {
            return Ok((report_as_text(client, since, arguments.watch.is_some())?, None));
        }
        sampled => sampled?,
    };
    let verdicts = verdicts(&reports);
    let Some(last) = reports.last() else { return Ok((ExitCode::FAILURE, None)) };
    if arguments.prometheus {
        write!(stdout(), "{}", in_lines(&prometheus::metrics(last, &verdicts)))?;
    } else if arguments.json {
        output::print_json(&as_json(last, &verdicts, reports.len(), elapsed)?)?;
    } else {
        print(client, last, &verdicts, reports.len(), elapsed, arguments)?;
    }
    let code = if verdicts.iter().any(Verdict::is_problem) {
        ExitCode::from(PROBLEM)
    } else if is_empty(last) {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    };
    // What does not move until the next one is frozen for that long.
    Ok((code, Some((last.clone(), Instant::now()))))
}

fn now() -> impl Display {
    humantime::format_rfc3339_seconds(SystemTime::now())
}

/// Returns `true` if a report has no communicator, or none that is ready: nothing is known of its job.
fn is_empty(report: &Report) -> bool {
    report.communicators.iter().all(ReportedCommunicator::is_initialising)
}

/// Takes reports for [`SAMPLING`], two at least. Returns them after `before`, and the time since the first one.
fn sample(
    client: &RasClient,
    before: Option<(Report, Instant)>,
) -> Result<(Vec<Report>, Duration), RasError> {
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

/// Returns the time from this report to the next: three times that of the report, as verdicts on stragglers ask for.
fn interval(report: &Report) -> Duration {
    let seconds = report.ras.collection_time_sec.unwrap_or_default();
    let interval = Duration::try_from_secs_f64(3.0 * seconds).unwrap_or_default();
    interval.clamp(INTERVAL, MAX_INTERVAL)
}

fn print(
    client: &RasClient,
    last: &Report,
    verdicts: &[Verdict],
    reports: usize,
    elapsed: Duration,
    arguments: &RasArguments,
) -> Result<()> {
    let mut out = Vec::new();
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
        writeln!(
            out,
            "no problem found in collectives; sends and receives are not counted: `nccl recorder diff` compares them"
        )?;
    }
    writeln!(out)?;
    write_table(&mut out, last)?;
    writeln!(out, "\nNCCL {}, {reports} reports in {:.1} s", last.nccl_version, elapsed.as_secs_f64())?;
    stdout().write_all(in_lines(&String::from_utf8_lossy(&out)).as_bytes())?;
    if arguments.verbose {
        // A failure does not change the verdict.
        match client.verbose_status() {
            Ok(report) => write!(stdout(), "\n{}", in_lines(&report))?,
            Err(error) => anstream::eprintln!("warning: {}", in_line(&error.to_string())),
        }
    }
    Ok(())
}

fn write_table(out: &mut impl Write, report: &Report) -> io::Result<()> {
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
    let text = |(name, (least, most)): (&str, (u64, u64))| {
        if least == most { format!("{name} {most}") } else { format!("{name} {least}-{most}") }
    };
    let ranges: Vec<String> = used.map(text).collect();
    if ranges.is_empty() { "nothing".into() } else { ranges.join(", ") }
}

/// Prints the report of an NCCL that has no JSON, which the verdicts are made of.
fn report_as_text(client: &RasClient, since: libnccl::Version, is_watched: bool) -> Result<ExitCode> {
    let report = client.status()?;
    if is_watched {
        writeln!(stdout(), "{}", now())?;
    }
    write!(stdout(), "{}\nVerdicts need NCCL {since} or newer.\n", in_lines(&report))?;
    Ok(if has_findings(&report) { ExitCode::from(PROBLEM) } else { ExitCode::SUCCESS })
}

/// Returns whether something follows the headings of the last two sections of a report.
fn has_findings(report: &str) -> bool {
    let mut lines = report.lines().skip_while(|line| *line != "Errors");
    lines.any(|line| {
        !line.is_empty() && !matches!(line, "Errors" | "Warnings") && !line.bytes().all(|byte| byte == b'=')
    })
}

fn as_json(last: &Report, verdicts: &[Verdict], reports: usize, elapsed: Duration) -> Result<Value> {
    let verdicts = verdicts.iter().map(|verdict| {
        let mut value = serde_json::to_value(verdict)?;
        value["text"] = verdict.to_string().into();
        value["is_problem"] = verdict.is_problem().into();
        Ok(value)
    });
    let verdicts: Vec<Value> = verdicts.collect::<Result<_>>()?;
    Ok(json!({
        "time": now().to_string(),
        "verdicts": verdicts,
        "reports": reports,
        "elapsed_seconds": elapsed.as_secs_f64(),
        "last_report": last,
    }))
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
                Ok(Some(event)) if is_json => {
                    writeln!(stdout(), "{}", in_lines(&serde_json::to_string(&event)?))?;
                }
                Ok(Some(event)) => writeln!(stdout(), "{}", in_lines(&event.to_string()))?,
                // The process that reported the events has ended; another one may go on.
                Err(RasError::Closed { .. }) => break,
                Err(error) => return Err(error.into()),
            }
        }
    }
}

#[cfg(test)]
#[path = "../../tests/unit/ras.rs"]
mod tests;
