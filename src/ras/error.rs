use std::fmt;
use std::time::Duration;

use crate::Version;
use crate::debug_as_display::debug_as_display;

/// The error of a [`RasClient`](super::RasClient). Its [`Debug`](std::fmt::Debug) text is that of
/// [`Display`](std::fmt::Display).
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum RasError {
    /// The address is not `host:port`.
    Address {
        /// The text that was given.
        address: Box<str>,
    },

    /// No process accepted a connection.
    Connect {
        /// The address of the service.
        address: Box<str>,
        /// The reason.
        problem: Box<str>,
    },

    /// The answer was not complete by the deadline.
    Timeout {
        /// The request, as it was sent.
        request: Box<str>,
        /// The address of the service.
        address: Box<str>,
        /// The time that has passed.
        elapsed: Duration,
    },

    /// The connection ended before the answer did.
    Closed {
        /// The request, as it was sent.
        request: Box<str>,
        /// The address of the service.
        address: Box<str>,
        /// The reason, as far as it is known.
        problem: Box<str>,
    },

    /// The process has an NCCL that does not know the request.
    Unsupported {
        /// The request, as it was sent.
        request: Box<str>,
        /// The first release that knows it.
        since: Version,
    },

    /// The process answered with an error.
    Refused {
        /// The request, as it was sent.
        request: Box<str>,
        /// The answer.
        answer: Box<str>,
    },

    /// The answer is not of this protocol: another service may use the port.
    Protocol {
        /// The request, as it was sent; "a report" for one that was read from elsewhere.
        request: Box<str>,
        /// The answer or the mistake in it, and what was expected.
        problem: Box<str>,
    },
}

impl std::error::Error for RasError {}

debug_as_display!(RasError);

impl fmt::Display for RasError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address { address } => {
                write!(
                    f,
                    "invalid RAS address {address:?}: expected host:port or [IPv6]:port, such as localhost:28028"
                )
            }
            Self::Connect { address, problem } => write!(
                f,
                "no process of a job answers RAS requests at {address}: {problem} (NCCL listens there from 2.24 on, \
                 while a communicator exists, unless NCCL_RAS_ENABLE=0; the CPU implementation with NCCL_RAS_ENABLE=1)"
            ),
            Self::Timeout { request, address, elapsed } => {
                write!(f, "{request}: no complete answer from {address} within {elapsed:.1?}")
            }
            Self::Closed { request, address, problem } => {
                write!(
                    f,
                    "{request}: {address} ended the connection before its answer was complete: {problem}"
                )
            }
            Self::Unsupported { request, since } => {
                write!(
                    f,
                    "{request}: the job's NCCL does not know this request, which needs {since} or newer"
                )
            }
            Self::Refused { request, answer } => write!(f, "{request}: the job answered: {answer}"),
            Self::Protocol { request, problem } => write!(f, "{request}: {problem}"),
        }
    }
}
