//! The messages of the exchange, which the crate's documentation lists, and a connection that sends and receives them.

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use super::connection::{self, Deadline};
use super::job::{Name, Nonce};
use libnccl::UniqueId;

/// The name at the start of each message. The protocol version, the length of the text, and the text follow.
const NAME: &[u8] = b"libnccl";
const VERSION: u8 = 4;
const HEADER: usize = NAME.len() + 1 + 4;

/// The maximum length of a text in bytes.
const MAX: usize = 4096;
/// The maximum length of a reason in bytes. A longer reason is truncated.
const REASON: usize = 1024;
/// The maximum number of missing ranks that a message names.
pub(super) const NAMED: usize = 32;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Message {
    Hello(Hello),
    Accepted,
    Refused {
        /// Set if another attempt cannot succeed.
        is_final: bool,
        reason: String,
    },
    Id(UniqueId),
    /// From a rank: it has begun. From rank 0: all ranks have begun.
    Begun,
    Failed(u32, String),
    /// The first of the missing ranks, and the number of all missing ranks.
    Missing(Vec<u32>, u32),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) job: u128,
    /// The nonce that rank 0 has published, or 0.
    pub(super) root_nonce: Nonce,
    pub(super) nonce: Nonce,
    pub(super) rank: u32,
    pub(super) size: u32,
    /// The time until the rank's deadline.
    pub(super) wait: Duration,
    pub(super) name: Name,
}

impl Message {
    fn parse(text: &str) -> Option<Self> {
        let (kind, rest) = text.split_once(' ').unwrap_or((text, ""));
        Some(match kind {
            "hello" => {
                let mut fields = rest.splitn(7, ' ');
                let mut hex = || u128::from_str_radix(fields.next()?, 16).ok();
                let (job, root_nonce, nonce) = (hex()?, hex()?, hex()?);
                let mut number = || fields.next()?.parse::<u32>().ok();
                let (rank, size, wait) = (number()?, number()?, number()?);
                let (wait, name) = (Duration::from_millis(wait.into()), Name::parse(fields.next()?));
                Self::Hello(Hello { job, root_nonce, nonce, rank, size, wait, name })
            }
            "accepted" => Self::Accepted,
            "refused" => Self::Refused { is_final: false, reason: printable(rest) },
            "refused-for-good" => Self::Refused { is_final: true, reason: printable(rest) },
            "id" => Self::Id(rest.parse().ok()?),
            "begun" => Self::Begun,
            "failed" => {
                let (rank, reason) = rest.split_once(' ')?;
                Self::Failed(rank.parse().ok()?, printable(reason))
            }
            "missing" => {
                let mut numbers = rest.split(' ').map(|number| number.parse::<u32>().ok());
                let count = numbers.next()??;
                let ranks: Vec<u32> = numbers.collect::<Option<_>>()?;
                (ranks.len() == NAMED.min(count as usize)).then_some(Self::Missing(ranks, count))?
            }
            _ => return None,
        })
    }
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hello(Hello { job, root_nonce, nonce, rank, size, wait, name }) => {
                let wait = u32::try_from(wait.as_millis()).unwrap_or(u32::MAX);
                let name = name.text();
                write!(f, "hello {job:032x} {root_nonce:032x} {nonce:032x} {rank} {size} {wait} {name}")
            }
            Self::Accepted => f.write_str("accepted"),
            Self::Refused { is_final: false, reason } => write!(f, "refused {}", cut(reason)),
            Self::Refused { is_final: true, reason } => write!(f, "refused-for-good {}", cut(reason)),
            Self::Id(id) => write!(f, "id {id}"),
            Self::Begun => f.write_str("begun"),
            Self::Failed(rank, reason) => write!(f, "failed {rank} {}", cut(reason)),
            Self::Missing(ranks, count) => {
                write!(f, "missing {count}")?;
                ranks.iter().take(NAMED).try_for_each(|rank| write!(f, " {rank}"))
            }
        }
    }
}

fn cut(reason: &str) -> String {
    if reason.len() <= REASON {
        return reason.into();
    }
    let end = (0..=REASON - 3).rev().find(|end| reason.is_char_boundary(*end)).unwrap_or(0);
    format!("{}...", &reason[..end])
}

/// Escapes control characters in a text from another process, because they could change a terminal's state.
fn printable(text: &str) -> String {
    let is_text = |character: char| !character.is_control() || character == '\n';
    let escaped = |character: char| {
        if is_text(character) { character.into() } else { character.escape_default().to_string() }
    };
    text.chars().map(escaped).collect()
}

pub(super) struct Peer {
    pub(super) stream: TcpStream,
    pub(super) address: SocketAddr,
    /// Set if there may be something to read.
    pub(super) is_ready: bool,
    version: u8,
    /// The received part of the next message.
    received: Vec<u8>,
}

impl Peer {
    pub(super) fn new(stream: TcpStream, address: SocketAddr) -> Self {
        Self { stream, address, is_ready: true, version: VERSION, received: Vec::new() }
    }

    /// Sends a message in one write. All messages fit into the socket's buffer.
    pub(super) fn send(&mut self, message: &Message) -> io::Result<()> {
        let text = message.to_string();
        let bytes = [NAME, &[self.version], &(text.len() as u32).to_le_bytes(), text.as_bytes()].concat();
        if self.stream.write(&bytes)? == bytes.len() { Ok(()) } else { Err(ErrorKind::WriteZero.into()) }
    }

    /// Returns the next message, or `None` if it is not complete yet.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidData`] if the bytes are not a message. [`ErrorKind::UnexpectedEof`] if the stream has ended.
    /// [`ErrorKind::Unsupported`] if the message has a different protocol version, which later messages to this peer use.
    pub(super) fn receive_if_ready(&mut self) -> io::Result<Option<Message>> {
        if !std::mem::take(&mut self.is_ready) {
            return Ok(None);
        }
        match self.receive(|mut stream, bytes| stream.read(bytes)) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
            received => received.map(Some),
        }
    }

    pub(super) fn receive_by(&mut self, deadline: &Deadline) -> io::Result<Message> {
        self.receive(|stream, bytes| connection::read_some(stream, bytes, deadline))
    }

    fn receive(&mut self, read: impl Fn(&TcpStream, &mut [u8]) -> io::Result<usize>) -> io::Result<Message> {
        let foreign = || io::Error::new(ErrorKind::InvalidData, "a reply that is not of this protocol");
        loop {
            let begun = &self.received[..self.received.len().min(NAME.len())];
            let length = self.received.get(NAME.len() + 1..HEADER).and_then(|length| length.try_into().ok());
            let length = length.map(|length| u32::from_le_bytes(length) as usize);
            if !NAME.starts_with(begun) || length.is_some_and(|length| !(1..=MAX).contains(&length)) {
                return Err(foreign());
            }
            // At most one message: poll does not report bytes that have already been read.
            let end = HEADER + length.unwrap_or(0);
            if length.is_some() && self.received.len() == end {
                let received = std::mem::take(&mut self.received);
                let version = received[NAME.len()];
                self.version = version;
                if version != VERSION {
                    let text =
                        format!("version {version} of the protocol of libnccl-launch; expected {VERSION}");
                    return Err(io::Error::new(ErrorKind::Unsupported, text));
                }
                let text = std::str::from_utf8(&received[HEADER..]).ok();
                return text.and_then(Message::parse).ok_or_else(foreign);
            }
            let (mut bytes, missing) = ([0; MAX], end - self.received.len());
            match read(&self.stream, &mut bytes[..missing]) {
                Ok(0) => return Err(connection::closed()),
                Ok(count) => self.received.extend(&bytes[..count]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

#[cfg(test)]
#[path = "../tests/unit/wire.rs"]
mod tests;
