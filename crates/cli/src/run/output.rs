//! The output of the ranks: each line with its rank, and optionally also in files.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};

use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};
use anyhow::{Context, Result};

use crate::file;

const COLORS: [AnsiColor; 6] = [
    AnsiColor::Cyan,
    AnsiColor::Green,
    AnsiColor::Yellow,
    AnsiColor::Magenta,
    AnsiColor::Blue,
    AnsiColor::Red,
];

/// The longest line in bytes. A longer line is printed in parts.
const MAX_LINE: u64 = 64 << 10;

#[derive(Debug, Clone, Copy)]
pub(super) enum Stream {
    Stdout,
    Stderr,
}

impl Stream {
    pub(super) const ALL: [Self; 2] = [Self::Stdout, Self::Stderr];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }

    /// Writes the bytes in one piece, because the ranks share the stream.
    fn write(self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Stdout => io::stdout().lock().write_all(bytes),
            Self::Stderr => io::stderr().lock().write_all(bytes),
        }
    }

    pub(super) fn has_color(self) -> bool {
        let choice = match self {
            Self::Stdout => AutoStream::choice(&io::stdout()),
            Self::Stderr => AutoStream::choice(&io::stderr()),
        };
        choice != ColorChoice::Never
    }
}

pub(super) struct Output {
    stream: Stream,
    prefix: Vec<u8>,
    log: Option<File>,
}

impl Output {
    /// Creates a rank's output. `log` is the directory of the ranks' files, and `colors` names the streams with colors.
    pub(super) fn new(
        stream: Stream,
        rank: usize,
        ranks: usize,
        log: Option<&Path>,
        colors: &str,
    ) -> Result<Self> {
        let width = (ranks - 1).to_string().len();
        let has_color = colors.contains(stream.name());
        let color = if has_color { COLORS[rank % COLORS.len()].on_default() } else { Style::new() };
        let prefix = format!("{color}[{rank:width$}]{color:#} ").into_bytes();
        let log = log.map(|directory| create(&directory.join(rank.to_string()), stream)).transpose()?;
        Ok(Self { stream, prefix, log })
    }

    /// Copies lines until the end of `from`. Reports the first error, and reads the rest, so that no rank blocks on a full pipe.
    pub(super) fn copy(mut self, from: impl Read, report: impl FnOnce(io::Error)) {
        let (mut from, mut report) = (BufReader::new(from), Some(report));
        let mut line = vec![];
        loop {
            line.clone_from(&self.prefix);
            let read = (&mut from).take(MAX_LINE).read_until(b'\n', &mut line);
            let goes_on = matches!(read, Ok(1..));
            let written = read.and_then(|_| match goes_on && report.is_some() {
                true => self.write(&mut line),
                false => Ok(()),
            });
            if let Err(error) = written
                && let Some(report) = report.take()
            {
                report(error);
            }
            if !goes_on {
                return;
            }
        }
    }

    fn write(&mut self, line: &mut Vec<u8>) -> io::Result<()> {
        if let Some(log) = &mut self.log {
            log.write_all(&line[self.prefix.len()..])?;
        }
        if line.last() != Some(&b'\n') {
            line.push(b'\n');
        }
        self.stream.write(line)
    }
}

fn create(directory: &Path, stream: Stream) -> Result<File> {
    let path: PathBuf = directory.join(format!("{}.log", stream.name()));
    fs::create_dir_all(directory)
        .and_then(|()| file::create(&path))
        .with_context(|| format!("cannot create {}", path.display()))
}
