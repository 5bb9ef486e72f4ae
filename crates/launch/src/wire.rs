//! The three messages of the exchange; the module's documentation has their layout.

use std::io::{self, Read};
use std::net::TcpStream;
use std::time::Duration;

use super::deadline::Deadline;
use super::job::{Name, Nonce};
use libnccl::UniqueId;

/// The name and the version of the protocol.
const MAGIC: [u8; 8] = *b"libnccl\x03";

/// The number of missing ranks that a reply names.
pub(super) const NAMED: usize = 32;

/// The bytes of a reason; what is longer is cut.
const REASON: usize = 1024;

/// The message with which a rank joins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) job: [u8; 16],
    pub(super) root_nonce: Nonce,
    pub(super) nonce: Nonce,
    pub(super) rank: u32,
    pub(super) size: u32,
    pub(super) wait: Duration,
    pub(super) name: Name,
}

impl Hello {
    pub(super) const BYTES: usize = 84 + Name::TEXT;

    pub(super) fn to_bytes(self) -> [u8; Self::BYTES] {
        let wait = u32::try_from(self.wait.as_millis()).unwrap_or(u32::MAX);
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..24].copy_from_slice(&self.job);
        bytes[24..40].copy_from_slice(&self.root_nonce);
        bytes[40..56].copy_from_slice(&self.nonce);
        bytes[56..60].copy_from_slice(&self.rank.to_le_bytes());
        bytes[60..64].copy_from_slice(&self.size.to_le_bytes());
        bytes[64..68].copy_from_slice(&wait.to_le_bytes());
        bytes[68..84].copy_from_slice(&self.name.hash);
        bytes[84..].copy_from_slice(&self.name.text);
        bytes
    }

    /// Returns `None` if this is another protocol, or another version.
    pub(super) fn parse(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        (array::<8>(bytes, 0) == MAGIC).then(|| Self {
            job: array(bytes, 8),
            root_nonce: array(bytes, 24),
            nonce: array(bytes, 40),
            rank: u32::from_le_bytes(array(bytes, 56)),
            size: u32::from_le_bytes(array(bytes, 60)),
            wait: Duration::from_millis(u32::from_le_bytes(array(bytes, 64)).into()),
            name: Name { hash: array(bytes, 68), text: array(bytes, 84) },
        })
    }
}

/// What a rank has made of the id, or of what it needs before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Report {
    Begun,
    /// The reason.
    Failed(String),
}

impl Report {
    pub(super) const BYTES: usize = 12 + REASON;

    pub(super) fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        let kind: u32 = match self {
            Self::Begun => 1,
            Self::Failed(reason) => {
                write_reason(&mut bytes[12..], reason);
                2
            }
        };
        bytes[8..12].copy_from_slice(&kind.to_le_bytes());
        bytes
    }

    /// Returns `None` if this is another protocol, or another version.
    pub(super) fn parse(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        match (array::<8>(bytes, 0), u32::from_le_bytes(array(bytes, 8))) {
            (MAGIC, 1) => Some(Self::Begun),
            (MAGIC, 2) => Some(Self::Failed(read_text(&bytes[12..]))),
            _ => None,
        }
    }
}

/// The reason why rank 0 refuses a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    OtherJob,
    OtherExchange,
    /// The number of ranks that the refusing side has.
    OtherSize(u32),
    RankOutOfRange,
    AlreadyJoined,
}

/// A message of rank 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Reply {
    Accepted,
    Id(UniqueId),
    /// The first of the missing ranks, and their number.
    Missing(Vec<u32>, u32),
    Refused(Refusal),
    /// A rank, and why it has failed.
    Failed(u32, String),
    /// All ranks have reported that they have begun.
    Begun,
}

impl Reply {
    pub(super) const BYTES: usize = 32 + REASON;

    pub(super) fn to_bytes(&self, nonce: &Nonce) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..24].copy_from_slice(nonce);
        let (kind, number): (u32, u32) = match self {
            Self::Accepted => (1, 0),
            Self::Id(id) => {
                bytes[32..32 + UniqueId::BYTES].copy_from_slice(id.as_bytes());
                (2, 0)
            }
            Self::Missing(ranks, missing) => {
                for (place, rank) in bytes[32..].chunks_exact_mut(4).zip(ranks) {
                    place.copy_from_slice(&rank.to_le_bytes());
                }
                (3, *missing)
            }
            Self::Refused(refusal) => {
                let reason = match refusal {
                    Refusal::OtherJob => 1,
                    Refusal::OtherExchange => 2,
                    Refusal::OtherSize(size) => {
                        bytes[32..36].copy_from_slice(&size.to_le_bytes());
                        3
                    }
                    Refusal::RankOutOfRange => 4,
                    Refusal::AlreadyJoined => 5,
                };
                (4, reason)
            }
            Self::Failed(rank, reason) => {
                write_reason(&mut bytes[32..], reason);
                (5, *rank)
            }
            Self::Begun => (6, 0),
        };
        bytes[24..28].copy_from_slice(&kind.to_le_bytes());
        bytes[28..32].copy_from_slice(&number.to_le_bytes());
        bytes
    }

    /// Returns `None` if this is another protocol or version, or the reply to another rank.
    pub(super) fn parse(bytes: &[u8; Self::BYTES], nonce: &Nonce) -> Option<Self> {
        if array::<8>(bytes, 0) != MAGIC || array::<16>(bytes, 8) != *nonce {
            return None;
        }
        let number = u32::from_le_bytes(array(bytes, 28));
        Some(match u32::from_le_bytes(array(bytes, 24)) {
            1 => Self::Accepted,
            2 => Self::Id(UniqueId::from_bytes(array(bytes, 32))),
            3 => {
                let named = usize::try_from(number).map_or(NAMED, |missing| missing.min(NAMED));
                let ranks = (0..named).map(|i| u32::from_le_bytes(array(bytes, 32 + 4 * i))).collect();
                Self::Missing(ranks, number)
            }
            4 => Self::Refused(match number {
                1 => Refusal::OtherJob,
                2 => Refusal::OtherExchange,
                3 => Refusal::OtherSize(u32::from_le_bytes(array(bytes, 32))),
                4 => Refusal::RankOutOfRange,
                5 => Refusal::AlreadyJoined,
                _ => return None,
            }),
            5 => Self::Failed(number, read_text(&bytes[32..])),
            6 => Self::Begun,
            _ => return None,
        })
    }
}

fn write_reason(place: &mut [u8], reason: &str) {
    const CUT: &[u8] = b"...";
    let count = reason.len().min(place.len());
    place[..count].copy_from_slice(&reason.as_bytes()[..count]);
    if count < reason.len() {
        place[count - CUT.len()..].copy_from_slice(CUT);
    }
}

/// Returns a text of another process without what could change a terminal.
pub(super) fn read_text(bytes: &[u8]) -> String {
    let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    let mut reason = String::new();
    for character in String::from_utf8_lossy(text).chars() {
        if character.is_control() && character != '\n' {
            reason.extend(character.escape_default());
        } else {
            reason.push(character);
        }
    }
    reason
}

/// Returns the `N` bytes at `start`, all of which exist.
fn array<const N: usize>(bytes: &[u8], start: usize) -> [u8; N] {
    std::array::from_fn(|i| bytes[start + i])
}

/// Reads exactly as many bytes as `buffer` has, by the deadline.
pub(super) fn read_by(mut stream: &TcpStream, mut buffer: &mut [u8], deadline: &Deadline) -> io::Result<()> {
    while !buffer.is_empty() {
        let remaining = deadline.remaining();
        if remaining.is_zero() {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "no complete answer in time"));
        }
        stream.set_read_timeout(Some(remaining))?;
        match stream.read(buffer) {
            Ok(0) => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the connection was closed")),
            Ok(count) => buffer = &mut buffer[count..],
            // The loop looks at the deadline.
            Err(error) if is_retry(&error) || error.kind() == io::ErrorKind::TimedOut => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Returns `true` for an error that says to try again later.
pub(super) fn is_retry(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests {
    use super::{Hello, Name, REASON, Refusal, Reply, Report};
    use libnccl::UniqueId;
    use libnccl_test_support::random_inputs::{Random, inputs};
    use std::time::Duration;

    fn hello() -> Hello {
        Hello {
            job: [1; 16],
            root_nonce: [2; 16],
            nonce: [3; 16],
            rank: 4,
            size: 5,
            wait: Duration::from_millis(6),
            name: Name::new("data"),
        }
    }

    #[test]
    fn hello_round_trips() {
        assert_eq!(Hello::parse(&hello().to_bytes()), Some(hello()));
        let forever = Hello { wait: Duration::MAX, ..hello() };
        let parsed = Hello::parse(&forever.to_bytes()).unwrap();
        assert_eq!(parsed.wait, Duration::from_millis(u32::MAX.into()));
        let mut newer = hello().to_bytes();
        newer[7] += 1;
        assert_eq!(Hello::parse(&newer), None);
    }

    #[test]
    fn replies_round_trip_for_their_rank_alone() {
        for reply in [
            Reply::Accepted,
            Reply::Id(UniqueId::from_bytes([7; 128])),
            Reply::Missing(vec![1, 3], 2),
            Reply::Missing((1..=32).collect(), 1000),
            Reply::Refused(Refusal::OtherJob),
            Reply::Refused(Refusal::OtherExchange),
            Reply::Refused(Refusal::OtherSize(9)),
            Reply::Refused(Refusal::RankOutOfRange),
            Reply::Refused(Refusal::AlreadyJoined),
            Reply::Failed(2, "no library:\n  not found".into()),
            Reply::Failed(0, "é".repeat(REASON / 2)),
            Reply::Begun,
        ] {
            let bytes = reply.to_bytes(&[3; 16]);
            assert_eq!(Reply::parse(&bytes, &[4; 16]), None);
            assert_eq!(Reply::parse(&bytes, &[3; 16]), Some(reply));
        }
    }

    #[test]
    fn reports_round_trip() {
        for report in [Report::Begun, Report::Failed("no library".into()), Report::Failed(String::new())] {
            assert_eq!(Report::parse(&report.to_bytes()), Some(report));
        }
        let mut newer = Report::Begun.to_bytes();
        newer[7] += 1;
        assert_eq!(Report::parse(&newer), None);
    }

    #[test]
    fn reason_is_cut_and_cannot_control_a_terminal() {
        let received = |reason: &str| match Report::parse(&Report::Failed(reason.into()).to_bytes()) {
            Some(Report::Failed(reason)) => reason,
            other => panic!("{other:?}"),
        };
        assert_eq!(received(&"x".repeat(REASON + 1)), "x".repeat(REASON - 3) + "...");
        // In the middle of a character.
        assert_eq!(received(&"é".repeat(REASON)), "é".repeat(REASON / 2 - 2) + "\u{fffd}...");
        assert_eq!(received("\x1b[2Jred\r\n\u{9b}1m"), "\\u{1b}[2Jred\\r\n\\u{9b}1m");
    }

    #[test]
    fn random_bytes_are_parsed_or_refused() {
        let mut random = Random(11);
        for _ in inputs(20_000) {
            let mut bytes = hello().to_bytes();
            random.change(&mut bytes);
            if let Some(parsed) = Hello::parse(&bytes) {
                assert_eq!(parsed.to_bytes(), bytes);
            }
            let mut bytes = Report::Failed("no library".into()).to_bytes();
            random.change(&mut bytes);
            if let Some(Report::Failed(reason)) = Report::parse(&bytes) {
                assert!(!reason.contains(|c: char| c.is_control() && c != '\n'), "{reason:?}");
            }
            let mut bytes = Reply::Missing(vec![1, 3], 2).to_bytes(&[3; 16]);
            random.change(&mut bytes[24..]);
            match Reply::parse(&bytes, &[3; 16]) {
                Some(Reply::Missing(ranks, count)) => {
                    assert!(ranks.len() <= 32 && ranks.len() as u64 <= count.into());
                }
                Some(Reply::Id(id)) => assert_eq!(id.as_bytes()[..], bytes[32..160]),
                Some(Reply::Accepted | Reply::Refused(_) | Reply::Failed(..) | Reply::Begun) | None => {}
            }
        }
    }
}
