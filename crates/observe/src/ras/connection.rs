//! A connection to the service: requests are lines, and so are most answers. Nothing waits beyond a deadline, and nothing
//! is kept beyond a limit.

use std::io::{ErrorKind, Write};
use std::net::TcpStream;

use super::error::RasError;
use libnccl::Version;
use libnccl_launch::connection::{self, Deadline};

/// Bytes of a line of an answer. NCCL's have less than 1024.
const MAX_LINE: usize = 64 << 10;

/// Bytes of a report.
pub(super) const MAX_REPORT: usize = 256 << 20;

/// A request, and the first release that knows it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Request<'a> {
    pub(super) line: &'a str,
    pub(super) since: Version,
}

#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
    address: Box<str>,
    /// The bytes that were received and not used.
    buffer: Vec<u8>,
}

impl Connection {
    pub(super) fn new(stream: TcpStream, address: String) -> Self {
        Self { stream, address: address.into(), buffer: Vec::new() }
    }

    /// Returns the bytes that were received and not used.
    pub(super) fn buffer(&self) -> &[u8] {
        &self.buffer
    }

    /// Removes the first `length` bytes of the buffer.
    pub(super) fn consume(&mut self, length: usize) {
        self.buffer.drain(..length);
    }

    pub(super) fn send(&mut self, request: &str) -> Result<(), RasError> {
        // In one write: a line that arrives in parts costs the service another turn.
        let sent = self.stream.write_all(format!("{request}\n").as_bytes());
        sent.map_err(|error| self.closed(request, error.to_string()))
    }

    /// Waits for more bytes, and returns their number: 0 at the end of the connection.
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

    /// Returns the next line of an answer, without its end.
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

    /// Sends a request whose answer is `OK`.
    pub(super) fn command(&mut self, request: Request<'_>, deadline: &Deadline) -> Result<(), RasError> {
        self.send(request.line)?;
        let answer = self.read_line(request.line, deadline)?;
        check_error(request, &answer)?;
        if answer == "OK" {
            return Ok(());
        }
        Err(protocol(request.line, format!("the answer is {}; expected OK", excerpt(answer.as_bytes()))))
    }

    /// Sends a request that the service answers with bytes until it closes the connection, and returns them.
    pub(super) fn query(&mut self, request: Request<'_>, deadline: &Deadline) -> Result<Vec<u8>, RasError> {
        self.send(request.line)?;
        // After an error, the connection stays open.
        let first = self.read_line(request.line, deadline)?;
        check_error(request, &first)?;
        loop {
            if self.buffer.len() > MAX_REPORT {
                return Err(protocol(request.line, format!("an answer of more than {MAX_REPORT} bytes")));
            }
            if self.receive(request.line, deadline)? == 0 {
                break;
            }
        }
        let mut answer = first.into_bytes();
        answer.push(b'\n');
        answer.append(&mut self.buffer);
        Ok(answer)
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

/// Returns an error if the answer to a request is one.
fn check_error(request: Request<'_>, answer: &str) -> Result<(), RasError> {
    if answer.starts_with("ERROR: Unknown command") {
        return Err(RasError::Unsupported { request: request.line.into(), since: request.since });
    }
    if answer.starts_with("ERROR: ") || answer.starts_with("BUSY: ") {
        let answer = answer.chars().take(500).collect::<String>().into();
        return Err(RasError::Refused { request: request.line.into(), answer });
    }
    Ok(())
}

pub(super) fn protocol(request: &str, problem: String) -> RasError {
    RasError::Protocol { request: request.into(), problem: problem.into() }
}

/// Returns the first bytes of an answer, quoted, for an error.
pub(super) fn excerpt(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(80)]).into_owned();
    if bytes.len() > 80 { format!("{text:?}...") } else { format!("{text:?}") }
}
