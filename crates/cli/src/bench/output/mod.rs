//! The output of a run, which rank 0 writes as rows are measured: a table, JSON, or comma-separated values.

pub(crate) mod csv;
pub(crate) mod description;
pub(crate) mod progress;
pub(crate) mod report;
pub(crate) mod statistic;
mod table;

use std::io::Write;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result};
use libnccl::{Backend, Nccl};

use crate::bench::arguments::MeasureArguments;
use crate::bench::measure::shape::Shape;
use crate::bench::measure::usage::Usage;
use crate::bench::measure::work::Measurement;
use crate::bench::parameters::Parameters;
use crate::bench::plot;
use crate::bench::start::Start;
use crate::{gpu, named_file, output};
use description::Description;
use progress::Progress;
use report::{Library, Report, Row, SCHEMA, WrongElement};
use table::Table;

/// The output that the user asked for.
#[derive(Clone)]
struct Settings {
    /// The file; `Some(None)` for stdout.
    json: Option<Option<PathBuf>>,
    csv: Option<Option<PathBuf>>,
    plot: Option<PathBuf>,
    launch: String,
    /// The process that shows the progress of this one's rank.
    parent: Option<String>,
}

/// An output that is being written.
enum Sink {
    Stdout(Box<dyn Write + Send>),
    /// A file, and what it will have.
    File(PathBuf, Vec<u8>),
}

impl Sink {
    fn open(file: &Option<PathBuf>) -> Result<Self> {
        let Some(file) = file else { return Ok(Self::Stdout(output::stdout())) };
        named_file::check(file)?;
        Ok(Self::File(file.clone(), vec![]))
    }

    fn write(&mut self, text: &str) -> Result<()> {
        match self {
            Self::Stdout(stdout) => {
                stdout.write_all(text.as_bytes())?;
                stdout.flush()?;
            }
            Self::File(_, bytes) => bytes.extend_from_slice(text.as_bytes()),
        }
        Ok(())
    }

    fn finish(self) -> Result<()> {
        match self {
            Self::Stdout(_) => Ok(()),
            Self::File(path, bytes) => named_file::write(&path, &bytes),
        }
    }
}

/// The output, shared by the thread of rank 0 and that of signals.
#[derive(Clone)]
pub(crate) struct Output {
    settings: Settings,
    written: Arc<Mutex<Option<Written>>>,
}

/// The output as far as it is written.
struct Written {
    table: Option<Table<Box<dyn Write + Send>>>,
    csv: Option<Sink>,
    json: Option<Sink>,
    plot: Option<PathBuf>,
    report: Report,
    progress: Progress,
}

impl Output {
    /// Returns an output to which nothing is written yet.
    pub(crate) fn new(arguments: &MeasureArguments, start: &Start) -> Self {
        let json = arguments.json.clone().or_else(|| arguments.output_file.clone().map(Some));
        let plot = arguments.plot.clone();
        let (launch, parent) = (start.to_string(), start.parent().map(str::to_owned));
        let settings = Settings { json, csv: arguments.csv.clone(), plot, launch, parent };
        Self { settings, written: Arc::default() }
    }

    /// Returns whether stdout has a table.
    pub(crate) fn has_table(&self) -> bool {
        let Settings { json, csv, .. } = &self.settings;
        ![json, csv].contains(&&Some(None))
    }

    /// Writes what comes before the rows.
    pub(crate) fn begin(&self, nccl: &Nccl, all: &[Parameters], ranks: &[Description]) -> Result<()> {
        let parameters = all.first().context("nothing to measure")?;
        let stand_in = if parameters.gpus > 0 { gpu::stand_in() } else { None };
        let mut csv = self.settings.csv.as_ref().map(Sink::open).transpose()?;
        if let Some(csv) = &mut csv {
            csv.write(&format!("{}\n", csv::HEAD))?;
        }
        let table = if self.has_table() {
            let library = format!("{} ({})", nccl.version(), nccl.backend());
            let mut table = Table::new(output::stdout());
            table.head(&library, stand_in.as_ref(), parameters, ranks)?;
            Some(table)
        } else {
            None
        };
        let cycles = u64::from(parameters.procedure.run_cycles);
        let rows = all.iter().map(|parameters| parameters.sizes().count() as u64 * cycles);
        let rows = (cycles > 0).then(|| rows.sum());
        let report = Report {
            schema: SCHEMA,
            program: format!("nccl {}", env!("CARGO_PKG_VERSION")),
            started: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            command: std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect(),
            library: library(nccl, stand_in.map(|stand_in| stand_in.path().display().to_string())),
            host: ranks.first().map(|first| first.rank.host.clone()).unwrap_or_default(),
            operation: parameters.benchmark.to_string(),
            ranks: ranks.iter().map(|description| description.rank.clone()).collect(),
            launch: self.settings.launch.clone(),
            parameters: parameters.report(),
            rows: vec![],
            wrong: vec![],
            average_bus_bandwidth: 0.0,
            interrupted: false,
        };
        let json = self.settings.json.as_ref().map(Sink::open).transpose()?;
        self.settings.plot.as_deref().map_or(Ok(()), named_file::check)?;
        let progress = Progress::new(rows, "rows", self.settings.parent.as_deref());
        *self.lock() = Some(Written { table, csv, json, plot: self.settings.plot.clone(), report, progress });
        Ok(())
    }

    /// Writes a row; `in_place` is `None` for an operation without an in-place form.
    pub(crate) fn row(
        &self,
        parameters: &Parameters,
        shape: &Shape,
        out_of_place: Measurement,
        in_place: Option<Measurement>,
    ) -> Result<()> {
        let mut written = self.lock();
        let written = written.as_mut().context("a row before the head")?;
        let row = Row {
            bytes: (shape.total() * parameters.data_type.size()) as u64,
            count: shape.count as u64,
            data_type: parameters.data_type.to_string(),
            op: parameters.op().map(|op| op.to_string()),
            root: parameters.root(),
            out_of_place: Some(out_of_place.measured.clone()),
            in_place: in_place.as_ref().map(|measurement| measurement.measured.clone()),
        };
        let forms = [(Some(&out_of_place), false), (in_place.as_ref(), true)];
        let wrong = forms.into_iter().flat_map(|(measurement, in_place)| {
            let wrong = measurement.map(|measurement| &measurement.wrong[..]).unwrap_or_default();
            wrong.iter().map(move |(rank, first)| (*rank, first.clone(), in_place))
        });
        let wrong: Vec<_> = wrong
            .map(|(rank, first, in_place)| WrongElement {
                bytes: row.bytes,
                data_type: row.data_type.clone(),
                op: row.op.clone(),
                in_place,
                rank,
                offset: first.offset as u64,
                got: first.got,
                expected: first.expected,
            })
            .collect();
        let Written { table, csv, report, progress, .. } = written;
        progress.row(
            || format!("{} bytes of {}", row.bytes, row.data_type),
            || -> Result<()> {
                if let Some(table) = table {
                    let columns = [Some(&out_of_place), in_place.as_ref()]
                        .map(|measurement| measurement.and_then(|measurement| measurement.columns));
                    table.row(parameters, &row, columns, &wrong)?;
                }
                if let Some(csv) = csv {
                    csv.write(&format!("{}\n", csv::line(&row)))?;
                }
                Ok(())
            },
        )?;
        report.rows.push(row);
        report.wrong.extend(wrong);
        Ok(())
    }

    /// Writes what comes after the rows. Returns the number of wrong elements of all rows.
    pub(crate) fn finish(&self, usage: Option<Usage>) -> Result<u64> {
        self.lock().take().map_or(Ok(0), |written| written.finish(usage, false))
    }

    /// Writes what comes after the rows that have been measured, as the others will not be. Returns `false` if the output
    /// is blocked, or was written.
    pub(crate) fn interrupt(&self) -> bool {
        const LIMIT: Duration = Duration::from_secs(1);

        let start = Instant::now();
        while start.elapsed() < LIMIT {
            // The thread of rank 0 has it while it prints, which takes for ever if nobody reads.
            if let Ok(mut written) = self.written.try_lock() {
                let finished = written.take().map(|written| written.finish(None, true));
                return finished.is_some_and(|result| result.is_ok());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        false
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Written>> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Written {
    fn finish(mut self, usage: Option<Usage>, interrupted: bool) -> Result<u64> {
        drop(self.progress);
        self.report.interrupted = interrupted;
        let measured: Vec<_> = self.report.rows.iter().flat_map(Row::measured).collect();
        let bandwidths = measured.iter().map(|measured| measured.busbw).fold(0.0, |sum, busbw| sum + busbw);
        self.report.average_bus_bandwidth = bandwidths / measured.len().max(1) as f64;
        let wrong: Option<u64> = measured.iter().filter_map(|measured| measured.wrong).reduce(|a, b| a + b);
        if let Some(table) = self.table {
            table.foot(&self.report, wrong, usage)?;
        }
        self.csv.map_or(Ok(()), Sink::finish)?;
        if let Some(mut json) = self.json {
            json.write(&self.report.to_json()?)?;
            json.finish()?;
        }
        if let Some(file) = &self.plot {
            let name = format!("NCCL {}", self.report.library.version);
            plot::write(&[(name, self.report)], file)?;
        }
        Ok(wrong.unwrap_or(0))
    }
}

fn library(nccl: &Nccl, stand_in: Option<String>) -> Library {
    let (path, backend) = match nccl.backend() {
        Backend::Linked { path } => (path.clone(), "link"),
        Backend::Loaded { path, .. } => (Some(path.clone()), "dlopen"),
        _ => (None, "cpu"),
    };
    Library { version: nccl.version().to_string(), path, backend: backend.into(), stand_in }
}
