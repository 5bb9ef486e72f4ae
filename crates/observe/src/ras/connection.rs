//! A connection to the service. Requests and most replies are lines of text. Waits have deadlines, and buffers have limits.

use std::io::{ErrorKind, Write};
use std::net::TcpStream;

use super::error::RasError;
use libnccl::Version;
use libnccl_launch::connection::{self, Deadline};

/// The maximum length of a reply's line in bytes. NCCL's lines are shorter than 1024 bytes.
const MAX_LINE: usize = 64 << 10;

/// The maximum size of a report in bytes.
pub(super) const MAX_REPORT: usize = 256 << 20;

/// A request, and the first NCCL version that supports it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Request<'a> {
    pub(super) line: &'a str,
    pub(super) since: Version,
}

#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
    address: Box<str>,
    /// The bytes that were received but not consumed yet.
    buffer: Vec<u8>,
}

impl Connection {
    pub(super) fn new(stream: TcpStream, address: String) -> Self {
        Self { stream, address: address.into(), buffer: Vec::new() }
    }

    pub(super) fn buffer(&self) -> &[u8] {
        &self.buffer
    }

    /// Removes the first `length` bytes of the buffer.
    pub(super) fn consume(&mut self, length: usize) {
        self.buffer.drain(..length);
    }

    pub(super) fn send(&mut self, request: &str) -> Result<(), RasError> {
        // In one write: the service needs another iteration for a line that arrives in parts.
        let sent = self.stream.write_all(format!("{request}\n").as_bytes());
        sent.map_err(|error| self.closed(request, error.to_string()))
    }

    /// Waits for more bytes, and returns their number, or 0 at the end of the stream.
    pub(super) fn receive(&mut self, request: &str, deadline: &Deadline) -> Result<usize, RasError> {
        let mut bytes = [0; 16 << 10];
        let read = connection::read_some(&self.stream, &mut bytes, deadline);
        let count = read.map_err(|error| match error.kind() {
            ErrorKind::TimedOut => {
                let (address, elapsed) = (self.address.clone(), deadline.elapsed());
                RasError::Timeout { request: request.into(), address, elapsed }
            }
            _ => self.closed(request, error.to_string()),
        })?;
        self.buffer.extend_from_slice(&bytes[..count]);
        Ok(count)
    }

    /// Returns the next line of a reply, without the newline.
    pub(super) fn read_line(&mut self, request: &str, deadline: &Deadline) -> Result<String, RasError> {
        let mut searched = 0;
        loop {
            if let Some(end) = self.buffer[searched..].iter().position(|byte| *byte == b'\n') {
                let line = String::from_utf8_lossy(&self.buffer[..searched + end]).into_owned();
                self.consume(searched + end + 1);
                return Ok(line);
            }
            searched = self.buffer.len();
            if searched > MAX_LINE {
                let start = excerpt(&self.buffer);
                return Err(protocol(request, format!("a line of more than {MAX_LINE} bytes: {start}")));
            }
            if self.receive(request, deadline)? == 0 {
                return Err(self.ended(request));
            }
        }
    }

    /// Sends a request whose reply is `OK`.
    pub(super) fn command(&mut self, request: Request<'_>, deadline: &Deadline) -> Result<(), RasError> {
        self.send(request.line)?;
        let reply = self.read_line(request.line, deadline)?;
        check_error(request, &reply)?;
        if reply == "OK" {
            return Ok(());
        }
        Err(protocol(request.line, format!("the reply is {}; expected OK", excerpt(reply.as_bytes()))))
    }

    /// Sends a request, and returns all bytes that the service sends until it closes the connection.
    pub(super) fn query(&mut self, request: Request<'_>, deadline: &Deadline) -> Result<Vec<u8>, RasError> {
        self.send(request.line)?;
        // After an error, the connection stays open.
        let first = self.read_line(request.line, deadline)?;
        check_error(request, &first)?;
        loop {
            if self.buffer.len() > MAX_REPORT {
                return Err(protocol(request.line, format!("a reply of more than {MAX_REPORT} bytes")));
            }
            if self.receive(request.line, deadline)? == 0 {
                break;
            }
        }
        let mut reply = first.into_bytes();
        reply.push(b'\n');
        reply.append(&mut self.buffer);
        Ok(reply)
    }

    pub(super) fn ended(&self, request: &str) -> RasError {
        let problem = match self.buffer.as_slice() {
            [] => "it had sent nothing".into(),
            received => format!("it ended with {}", excerpt(received)),
        };
        self.closed(request, problem)
    }

    pub(super) fn closed(&self, request: &str, problem: String) -> RasError {
        RasError::Closed { request: request.into(), address: self.address.clone(), problem: problem.into() }
    }
}

/// Fails if the reply to a request is an error.
fn check_error(request: Request<'_>, reply: &str) -> Result<(), RasError> {
    if reply.starts_with("ERROR: Unknown command") {
        return Err(RasError::Unsupported { request: request.line.into(), since: request.since });
    }
    if reply.starts_with("ERROR: ") || reply.starts_with("BUSY: ") {
        let reply = reply.chars().take(500).collect::<String>().into();
        return Err(RasError::Refused { request: request.line.into(), reply });
    }
    Ok(())
}

pub(super) fn protocol(request: &str, problem: String) -> RasError {
    RasError::Protocol { request: request.into(), problem: problem.into() }
}

/// Returns the first bytes of a reply, quoted, for an error message.
pub(super) fn excerpt(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(80)]).into_owned();
    if bytes.len() > 80 { format!("{text:?}...") } else { format!("{text:?}") }
}
