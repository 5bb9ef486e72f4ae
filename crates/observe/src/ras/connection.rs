//! A connection to the service: requests are lines, and so are most answers. Nothing waits beyond a deadline, and nothing
//! is kept beyond a limit.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use super::error::RasError;
use libnccl::Version;
use libnccl_launch::connection::Deadline;

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

/// The result of waiting for more bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Received {
    More,
    End,
    /// Nothing by the deadline.
    Late,
}

impl Connection {
    pub(super) fn new(stream: TcpStream, address: String) -> Self {
        Self { stream, address: address.into(), buffer: Vec::new() }
    }

    pub(super) fn address(&self) -> &str {
        &self.address
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
        sent.map_err(|error| self.closed(request, &error))
    }

    /// Waits for more bytes, or the end of the connection.
    pub(super) fn receive(&mut self, request: &str, deadline: &Deadline) -> Result<Received, RasError> {
        let mut bytes = [0; 16 << 10];
        loop {
            // A zero timeout is refused, as it would mean none.
            let remaining = deadline.remaining();
            if remaining.is_zero() {
                return Ok(Received::Late);
            }
            let limited = self.stream.set_read_timeout(Some(remaining.max(Duration::from_micros(1))));
            limited.map_err(|error| self.closed(request, &error))?;
            match self.stream.read(&mut bytes) {
                Ok(0) => return Ok(Received::End),
                Ok(count) => {
                    self.buffer.extend_from_slice(&bytes[..count]);
                    return Ok(Received::More);
                }
                // The loop looks at the deadline.
                Err(error)
                    if matches!(
                        error.kind(),
                        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
                    ) => {}
                Err(error) => return Err(self.closed(request, &error)),
            }
        }
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
                return Err(protocol(
                    request,
                    format!("a line of more than {MAX_LINE} bytes: {}", self.begin()),
                ));
            }
            match self.receive(request, deadline)? {
                Received::More => {}
                Received::Late => return Err(self.late(request, deadline)),
                Received::End => return Err(self.ended(request)),
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
            match self.receive(request.line, deadline)? {
                Received::More => {}
                Received::Late => return Err(self.late(request.line, deadline)),
                Received::End => break,
            }
        }
        let mut answer = first.into_bytes();
        answer.push(b'\n');
        answer.append(&mut self.buffer);
        Ok(answer)
    }

    pub(super) fn late(&self, request: &str, deadline: &Deadline) -> RasError {
        let address = self.address.clone();
        RasError::Timeout { request: request.into(), address, elapsed: deadline.elapsed() }
    }

    pub(super) fn ended(&self, request: &str) -> RasError {
        let problem = match self.buffer.len() {
            0 => "it had sent nothing".into(),
            _ => format!("it ended with {}", self.begin()),
        };
        RasError::Closed { request: request.into(), address: self.address.clone(), problem: problem.into() }
    }

    fn closed(&self, request: &str, error: &io::Error) -> RasError {
        let problem = error.to_string().into();
        RasError::Closed { request: request.into(), address: self.address.clone(), problem }
    }

    fn begin(&self) -> String {
        excerpt(&self.buffer)
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
