//! The output of a run, which rank 0 writes: a table, JSON, or comma-separated values.

pub(crate) mod report;
mod table;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use libnccl::{Backend, Nccl};

use super::arguments::MeasureArguments;
use super::measure::Measurement;
use super::measure::ranks::Description;
use super::parameters::{Case, Parameters};
use super::plot;
use super::start::Job;
use crate::nccl_file::{self, NcclFile};
use crate::{file, library, output};
use report::{Library, LibraryFile, Measured, Report, Row, SCHEMA, WrongElement};
use table::Usage;

const CSV_HEAD: &str = "bytes,count,data_type,op,root,\
    out_of_place_time_us,out_of_place_algbw,out_of_place_busbw,out_of_place_wrong,\
    in_place_time_us,in_place_algbw,in_place_busbw,in_place_wrong\n";

/// The requested output, shared by the thread of rank 0 and the signal thread.
#[derive(Clone)]
pub(crate) struct Output {
    /// The file for JSON: `None` for no JSON, `Some(None)` for stdout.
    json: Option<Option<PathBuf>>,
    csv: Option<Option<PathBuf>>,
    plot: Option<PathBuf>,
    written: Arc<Mutex<Option<Written>>>,
}

struct Written {
    /// The stream that the table is written to.
    table: Option<Box<dyn Write + Send>>,
    report: Report,
    progress: ProgressBar,
}

impl Output {
    pub(crate) fn new(arguments: &MeasureArguments) -> Self {
        let MeasureArguments { json, output_file, csv, plot, .. } = arguments.clone();
        Self { json: json.or(output_file.map(Some)), csv, plot, written: Arc::default() }
    }

    pub(crate) fn has_table(&self) -> bool {
        ![&self.json, &self.csv].contains(&&Some(None))
    }

    /// Writes a note as a comment in the table, or to stderr if there is no table.
    pub(crate) fn note(&self, note: &str) -> Result<()> {
        if self.has_table() {
            writeln!(output::stdout(), "# {note}")?;
        } else {
            output::write_to_stderr(&format!("{note}\n"));
        }
        Ok(())
    }

    pub(crate) fn begin(&self, job: &Job, all: &[Parameters], ranks: &[Description]) -> Result<()> {
        let nccl = &job.nccl;
        let parameters = all.first().context("nothing to measure")?;
        let stand_in = if parameters.gpus > 0 { library::emulation() } else { None };
        let files = [&self.json, &self.csv].into_iter().flatten().flatten().chain(&self.plot);
        files.into_iter().try_for_each(|file| file::check(file))?;
        if self.csv == Some(None) {
            write(&None, CSV_HEAD)?;
        }
        if let Some(note) = parameters.reduction().filter(|_| !self.has_table()) {
            self.note(&note)?;
        }
        let cycles = u64::from(parameters.procedure.run_cycles);
        let rows = all.iter().map(|parameters| parameters.sizes().count() as u64 * cycles);
        let rows = (cycles > 0).then(|| rows.sum());
        let report = Report {
            schema: SCHEMA,
            program: format!("nccl {}", env!("CARGO_PKG_VERSION")),
            started: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            command: std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect(),
            library: library(nccl, stand_in.map(|file| file.display().to_string())),
            host: ranks.first().map(|first| first.rank.host.clone()).unwrap_or_default(),
            operation: parameters.benchmark.to_string(),
            ranks: ranks.iter().map(|description| description.rank.clone()).collect(),
            launch: job.launch.clone(),
            parameters: parameters.report(),
            ..Report::default()
        };
        let mut table = self.has_table().then(output::stdout);
        if let Some(table) = &mut table {
            let library = format!("{} ({})", nccl.version(), nccl.backend());
            table::head(table, &library, &report.library, parameters, ranks)?;
        }
        *lock(&self.written) = Some(Written { table, report, progress: progress_bar(rows, "rows") });
        Ok(())
    }

    /// Writes the row of an out-of-place measurement and, if the operation has an in-place form, of an in-place one.
    pub(crate) fn row(&self, case: Case<'_>, measurements: &[Option<Measurement>; 2]) -> Result<()> {
        let Case { parameters, shape, .. } = case;
        let mut written = lock(&self.written);
        let written = written.as_mut().context("a row before the head")?;
        let measurements = measurements.each_ref().map(Option::as_ref);
        let [out_of_place, in_place] = measurements.map(|one| one.map(|one| one.measured.clone()));
        let row = Row {
            bytes: (shape.total() * parameters.data_type.size()) as u64,
            count: shape.count as u64,
            data_type: parameters.data_type.to_string(),
            op: parameters.op().map(|op| op.to_string()),
            root: parameters.root(),
            out_of_place,
            in_place,
        };
        let mut wrong = vec![];
        for (measurement, in_place) in measurements.into_iter().zip([false, true]) {
            for (rank, first) in measurement.iter().flat_map(|measurement| &measurement.wrong).cloned() {
                let (bytes, data_type, op) = (row.bytes, row.data_type.clone(), row.op.clone());
                wrong.push(WrongElement { bytes, data_type, op, in_place, rank, first });
            }
        }
        let Written { table, report, progress } = written;
        progress.set_message(format!("{} bytes of {}", row.bytes, row.data_type));
        progress.inc(1);
        progress.suspend(|| -> Result<()> {
            if let Some(table) = table {
                let columns = measurements.map(|measurement| measurement?.columns);
                table::row(table, parameters, &row, columns, &wrong)?;
            }
            if self.csv == Some(None) { write(&None, &csv_line(&row)) } else { Ok(()) }
        })?;
        report.rows.push(row);
        report.wrong.extend(wrong);
        Ok(())
    }

    /// Completes the output. Returns whether all results are right.
    pub(crate) fn finish(&self, usage: Option<Usage>) -> Result<bool> {
        lock(&self.written).take().map_or(Ok(true), |written| written.finish(self, usage, false))
    }

    /// Completes the output with all measured rows, unless printing blocks or the output is already complete.
    pub(crate) fn interrupt(&self) {
        const LIMIT: Duration = Duration::from_secs(1);

        let start = Instant::now();
        while start.elapsed() < LIMIT {
            // The thread of rank 0 holds the lock while it prints, which blocks if the reader has stopped.
            if let Ok(mut written) = self.written.try_lock() {
                drop(written.take().map(|written| written.finish(self, None, true)));
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Locks a mutex, even if a thread panicked while it held the lock.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Written {
    /// Writes the verdict, then the files. Returns whether all results are right.
    fn finish(mut self, output: &Output, usage: Option<Usage>, interrupted: bool) -> Result<bool> {
        self.progress.finish_and_clear();
        self.report.interrupted = interrupted;
        let measured: Vec<_> = self.report.rows.iter().flat_map(Row::measured).collect();
        let bandwidths = measured.iter().map(|measured| measured.busbw).fold(0.0, |sum, busbw| sum + busbw);
        self.report.average_bus_bandwidth = bandwidths / measured.len().max(1) as f64;
        let wrong: Option<u64> = measured.iter().filter_map(|measured| measured.wrong).reduce(|a, b| a + b);
        let table = self.table.map_or(Ok(()), |mut out| table::foot(&mut out, &self.report, wrong, usage));
        let is_right = wrong.is_none_or(|wrong| wrong == 0);
        if let Some(wrong @ 1..) = wrong {
            output::write_to_stderr(&format!("error: rank 0: {wrong} elements are wrong\n"));
        }
        let csv = output.csv.as_ref().filter(|file| file.is_some()).map_or(Ok(()), |file| {
            let lines: String = self.report.rows.iter().map(csv_line).collect();
            write(file, &format!("{CSV_HEAD}{lines}"))
        });
        let json = output.json.as_ref().map_or(Ok(()), |file| write(file, &output::to_json(&self.report)?));
        let plot = output.plot.as_ref().map_or(Ok(()), |file| {
            let name = format!("NCCL {}", self.report.library.version);
            plot::write(&[(name, self.report)], file)
        });
        conclude(is_right, [table.map_err(Into::into), csv, json, plot])
    }
}

/// Returns the verdict `is_good`, or the first output error if the verdict is good. Prints the other errors.
pub(crate) fn conclude(is_good: bool, written: impl IntoIterator<Item = Result<()>>) -> Result<bool> {
    let mut problems = written.into_iter().filter_map(Result::err);
    let first = if is_good { problems.next() } else { None };
    for problem in problems.filter(|problem| !output::is_closed(problem)) {
        output::write_to_stderr(&format!("error: {problem:#}\n"));
    }
    first.map_or(Ok(is_good), Err)
}

pub(crate) fn exit_code(is_good: bool) -> ExitCode {
    if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn write(file: &Option<PathBuf>, text: &str) -> Result<()> {
    match file {
        Some(file) => file::write(file, text.as_bytes()),
        None => Ok(output::stdout().write_all(text.as_bytes())?),
    }
}

fn library(nccl: &Nccl, stand_in: Option<String>) -> Library {
    let (path, backend) = match nccl.backend() {
        Backend::Linked { path } => (path.clone(), "link"),
        Backend::Loaded { path, .. } => (Some(path.clone()), "dlopen"),
        _ => (None, "cpu"),
    };
    let file = path.as_deref().and_then(|path| {
        let identity = NcclFile::read(path)?.identity;
        Some(LibraryFile { identity, hash: format!("{:016x}", nccl_file::hash(path).ok()?) })
    });
    Library { version: nccl.version().to_string(), path, file, backend: backend.into(), stand_in }
}

fn csv_line(row: &Row) -> String {
    let Row { bytes, count, data_type, op, root, .. } = row;
    let root = root.map(|root| root.to_string()).unwrap_or_default();
    let mut line = format!("{bytes},{count},{data_type},{},{root}", op.as_deref().unwrap_or_default());
    for measured in [&row.out_of_place, &row.in_place] {
        line += &match measured {
            Some(Measured { time_us, algbw, busbw, wrong, .. }) => {
                let wrong = wrong.map(|wrong| wrong.to_string()).unwrap_or_default();
                format!(",{time_us},{algbw},{busbw},{wrong}")
            }
            None => ",,,,".into(),
        };
    }
    line + "\n"
}

/// Returns a progress bar for this many units, or an unknown number if `None`. It is shown only if stderr is a terminal.
pub(crate) fn progress_bar(rows: Option<u64>, unit: &str) -> ProgressBar {
    let template = format!("{{bar:30}} {{pos}}/{{len}} {unit}, {{msg}} [{{elapsed}}, {{eta}} left]");
    let style = ProgressStyle::with_template(&template).unwrap_or_else(|_| ProgressStyle::default_bar());
    let bar = ProgressBar::with_draw_target(rows, ProgressDrawTarget::stderr_with_hz(10)).with_style(style);
    if !bar.is_hidden() {
        bar.enable_steady_tick(Duration::from_millis(200));
    }
    bar
}
