//! A client's connection.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use libnccl::sys::{NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH};
use rustix::event::PollFlags;

use super::job::{HOST, Job};
use super::monitor::Event;
use super::request::{EventGroups, Format, Request};
use super::{json, text};
use crate::diag::debug;

/// Bytes of a request at most, as in NCCL.
const MAX_REQUEST: usize = 1024;

/// Bytes of events that a client may leave unread.
const MAX_UNREAD: usize = 1 << 20;

#[derive(Debug)]
pub(super) struct Session {
    stream: TcpStream,
    /// The bytes that are no whole request yet.
    input: Vec<u8>,
    /// The bytes that have yet to be sent.
    output: Vec<u8>,
    format: Format,
    groups: EventGroups,
    /// Set once nothing follows the output.
    ends: bool,
    /// The time of the last whole request.
    heard: Instant,
}

impl Session {
    pub(super) fn new(stream: TcpStream) -> Self {
        let (input, output) = (Vec::new(), Vec::new());
        let (format, groups) = (Format::default(), EventGroups::default());
        Self { stream, input, output, format, groups, ends: false, heard: Instant::now() }
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Returns what to wait for.
    pub(super) fn interest(&self) -> PollFlags {
        if self.output.is_empty() { PollFlags::IN } else { PollFlags::OUT }
    }

    pub(super) fn monitors(&self) -> bool {
        !self.groups.is_empty() && !self.ends
    }

    pub(super) fn heard(&self) -> Instant {
        self.heard
    }

    /// Receives what has arrived, and queues the answers. Returns `false` if the connection is done.
    pub(super) fn receive(&mut self) -> bool {
        // A client that does not read its answer is not asked for more.
        !self.output.is_empty() || self.ends || self.read_requests()
    }

    /// Sends what is queued, as far as that is possible without waiting. Returns `false` if the connection is done.
    pub(super) fn send(&mut self) -> bool {
        while !self.output.is_empty() {
            match (&self.stream).write(&self.output) {
                Ok(0) => return false,
                Ok(count) => drop(self.output.drain(..count)),
                Err(error) => return matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
            }
        }
        !self.ends
    }

    /// Queues the events that the client wants. Returns `false` if it has left too many unread.
    pub(super) fn notify(&mut self, events: &[Event]) -> bool {
        let timestamp = timestamp();
        for event in events.iter().filter(|event| event.is_in(self.groups)) {
            self.output.extend_from_slice(event.format(self.format, &timestamp).as_bytes());
        }
        self.output.len() <= MAX_UNREAD
    }

    fn read_requests(&mut self) -> bool {
        let mut bytes = [0; MAX_REQUEST];
        match (&self.stream).read(&mut bytes) {
            // Its answer has been sent.
            Ok(0) => return false,
            Ok(count) => self.input.extend_from_slice(&bytes[..count]),
            Err(error) => return matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
        }
        while let Some(end) = self.input.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.input.drain(..=end).collect();
            let line = line[..end].strip_suffix(b"\r").unwrap_or(&line[..end]);
            self.respond(&String::from_utf8_lossy(line));
            if self.ends {
                return true;
            }
        }
        self.input.len() < MAX_REQUEST
    }

    fn respond(&mut self, line: &str) {
        self.heard = Instant::now();
        let answer = match Request::parse(line) {
            Ok(Request::Protocol) => "SERVER PROTOCOL 2\n".into(),
            Ok(Request::Timeout | Request::ProfilerMask) => "OK\n".into(),
            Ok(Request::Format(format)) => {
                self.format = format;
                "OK\n".into()
            }
            Ok(Request::Monitor(groups)) => {
                self.groups = groups;
                "OK\n".into()
            }
            Ok(Request::Status { is_verbose }) => {
                self.ends = true;
                report(self.format, is_verbose)
            }
            Ok(Request::Diagnostics) => {
                self.ends = true;
                match self.format {
                    Format::Text => diagnostics(),
                    Format::Json => "ERROR: diagnostics only supports text output\n".into(),
                }
            }
            Err(error) => format!("{error}\n"),
        };
        self.output.extend_from_slice(answer.as_bytes());
    }
}

fn version() -> String {
    format!("{NCCL_MAJOR}.{NCCL_MINOR}.{NCCL_PATCH}+cpu{}", env!("CARGO_PKG_VERSION"))
}

fn timestamp() -> String {
    debug::now(c"%F %T")
}

fn report(format: Format, is_verbose: bool) -> String {
    let begin = Instant::now();
    let job = Job::collect();
    match format {
        Format::Text => text::report(&job, &version(), is_verbose, begin.elapsed()),
        Format::Json => json::report(&job, &version(), &timestamp(), begin.elapsed()),
    }
}

/// Returns the diagnostics: there is nothing to diagnose but how the ranks reach each other.
fn diagnostics() -> String {
    let begin = Instant::now();
    let processes = Job::collect().processes().len();
    let line = |text: &str| format!("{HOST}:{} NCCL DIAG {text}\n", std::process::id());
    let milliseconds = begin.elapsed().as_secs_f64() * 1e3;
    [
        line("=== RAS Diagnostics ==="),
        line("[INFO] GPU inventory: none, this is the CPU implementation"),
        line("[OK]   transport: shared memory of one host"),
        line(&format!("RAS diagnostics completed in {milliseconds:.1} ms across {processes} RAS peers")),
    ]
    .concat()
}
