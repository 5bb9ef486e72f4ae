//! `nccl recorder`: compares what the ranks of a job have recorded.

mod calls;
mod finding;
mod live;
mod pytorch;
mod recording;
mod timeline;

use std::collections::BTreeMap;
use std::io::{Write, stdout};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::{Args, Subcommand};
use itertools::Itertools;
use serde::Serialize;

use crate::{file, output};
use finding::{Finding, Kind, name_ranks};
use recording::{Job, LibraryFile, Recordings};

#[derive(Debug, Subcommand)]
pub(crate) enum RecorderCommand {
    /// Say at which operation the ranks of a job diverged, and which ranks are to blame
    Diff(DiffArguments),
}

#[derive(Debug, Args)]
#[command(after_help = include_str!("../help/recorder_diff.txt").trim_end())]
pub(crate) struct DiffArguments {
    /// Recordings of the ranks, or directories with them
    #[arg(required_unless_present = "pid", value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Request the recordings of the ranks that run as process PID, or below it if it is their launcher; may be repeated
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(i32).range(1..))]
    pid: Vec<i32>,
    /// Time that these ranks have to write their recordings
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = humantime::parse_duration, requires = "pid")]
    timeout: Duration,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Write a page with a timeline of each rank to FILE
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// The result of the comparison. The field names are also the names in the JSON.
#[derive(Debug, Serialize)]
struct Report {
    communicators: Vec<Summary>,
    findings: Vec<Finding>,
    left_out: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Summary {
    id: String,
    name: Option<String>,
    size: usize,
    recorded: usize,
}

pub(crate) fn run(RecorderCommand::Diff(arguments): &RecorderCommand) -> Result<ExitCode> {
    let written = match &arguments.pid[..] {
        [] => vec![],
        processes => live::request(processes, arguments.timeout)?,
    };
    let files = recording::candidates(&arguments.paths, written)?;
    if let Some(dumps) = pytorch::read(&files)? {
        let is_sound = pytorch::diff(&dumps, arguments.json)?;
        let problem = "there is no timeline of PyTorch's dumps, only of libnccl's recordings";
        ensure!(arguments.html.is_none(), "--html: {problem}");
        return Ok(if is_sound { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    let Recordings { jobs, left_out, lacks_some } = recording::read(files)?;
    for problem in &left_out {
        anstream::eprintln!("warning: left out: {}", output::in_line(problem));
    }
    for problem in jobs.iter().filter_map(different_libraries) {
        anstream::eprintln!("warning: {problem}");
    }
    let findings = compare(&jobs);
    let is_sound = findings.is_empty() && !lacks_some && !jobs.is_empty();
    let summary = |job: &Job| {
        let (id, name, recorded) = (job.id.clone(), job.name.clone(), job.ranks.len());
        Summary { id, name, size: job.size, recorded }
    };
    let communicators = jobs.iter().map(summary).collect();
    let report = Report { communicators, findings, left_out };
    if arguments.json {
        output::print_json(&report)?;
    } else {
        print(&jobs, &report.findings)?;
    }
    // After the result, because it may fail.
    if let Some(file) = &arguments.html {
        file::write(file, timeline::page(&jobs, &report.findings, &report.left_out).as_bytes())?;
    }
    Ok(if is_sound { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn print(jobs: &[Job], findings: &[Finding]) -> Result<()> {
    let mut out = stdout();
    if jobs.is_empty() {
        writeln!(out, "the recordings have no communicator")?;
    }
    for job in jobs {
        writeln!(out, "{job}: {} of {} ranks recorded", job.ranks.len(), job.size)?;
        let mut findings = findings.iter().filter(|finding| finding.communicator == job.id).peekable();
        if findings.peek().is_none() {
            let last = job.ranks.values().map(recording::Rank::last_collective).max().unwrap_or(0);
            let first = job.ranks.values().map(recording::Rank::first_collective).max();
            match first.filter(|first| *first > 1) {
                Some(first) => writeln!(out, "  all ranks agree, from collective {first} to {last}")?,
                None => writeln!(out, "  all ranks agree, up to collective {last}")?,
            }
        }
        findings.try_for_each(|finding| write!(out, "  {finding}"))?;
    }
    Ok(())
}

fn compare(jobs: &[Job]) -> Vec<Finding> {
    let mut findings: Vec<Finding> = jobs.iter().filter_map(missing_ranks).collect();
    // A circular wait causes missing calls and unmatched sends and receives.
    if let Some(circular) = calls::circular(jobs) {
        findings.push(circular);
        return findings;
    }
    for job in jobs {
        let collective = calls::different_collective(job);
        let unmatched = calls::unmatched(job);
        if collective.is_none() && unmatched.is_empty() && job.ranks.len() == job.size {
            findings.extend(not_completed(job));
        }
        findings.extend(collective);
        findings.extend(unmatched);
    }
    findings
}

fn different_libraries(job: &Job) -> Option<String> {
    let mut users: BTreeMap<_, (Vec<usize>, &LibraryFile)> = BTreeMap::new();
    for (rank, recorded) in &job.ranks {
        let Some(library) = &recorded.library else { continue };
        // A library with a build id has no hash.
        let contents = (library.size, &library.build_id, &library.hash);
        if library.build_id.is_some() || library.hash.is_some() {
            users.entry(contents).or_insert_with(|| (vec![], library)).0.push(*rank);
        }
    }
    let uses = users.values().map(|(ranks, library)| format!("{}: {library}", name_ranks(ranks))).join("; ");
    (users.len() > 1).then(|| format!("{job}: the ranks use different NCCL libraries: {uses}"))
}

fn missing_ranks(job: &Job) -> Option<Finding> {
    let (missing, size) = (job.missing().flatten(), job.size);
    let finding = |count| Finding::missing(&job.id, "recording", missing, count, size, job.open_calls());
    Some(size - job.ranks.len()).filter(|count| *count > 0).map(finding)
}

/// Returns the call that has not returned on some ranks, although no rank is missing in it.
fn not_completed(job: &Job) -> Option<Finding> {
    let (_, record) = job.open_calls().next()?;
    let ranks: Vec<usize> = job.open_calls().map(|(rank, _)| rank).collect();
    let callers = match record.collective {
        Some(_) => "all ranks called it",
        None => "each send has its receive",
    };
    let problem = format!("{record} has not returned on {}, although {callers}", name_ranks(&ranks));
    let finding = Finding::new(&job.id, Kind::NotCompleted, ranks, problem, job.open_calls());
    Some(Finding { collective: record.collective, ..finding })
}
