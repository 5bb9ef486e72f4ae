use std::fmt;
use std::time::Duration;

use libnccl::Version;

/// The error of a [`RasClient`](super::RasClient). [`Debug`](fmt::Debug) and [`Display`](fmt::Display) write the same text.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RasError {
    /// The address of the service does not have the form `host:port` or `[IPv6]:port`.
    #[error("invalid RAS address {address:?}: expected host:port or [IPv6]:port, such as localhost:28028")]
    Address {
        /// The invalid address.
        address: Box<str>,
    },

    /// No process accepted a connection, or the host name could not be resolved.
    #[error(
        "no process of a job serves RAS requests at {address}: {problem} (NCCL listens there from 2.24 on, while a \
         communicator exists and NCCL_RAS_ENABLE is unset or 1; the CPU backend with NCCL_RAS_ENABLE=1)"
    )]
    Connect {
        /// The address of the service.
        address: Box<str>,
        /// The reason why the service cannot be reached.
        problem: Box<str>,
    },

    /// The reply was not complete by the deadline.
    #[error("{request}: no complete reply from {address} within {elapsed:.1?}")]
    Timeout {
        /// The request, as it was sent.
        request: Box<str>,
        /// The address of the service.
        address: Box<str>,
        /// The time since the request began.
        elapsed: Duration,
    },

    /// The connection closed before the reply was complete.
    #[error("{request}: {address} ended the connection before its reply was complete: {problem}")]
    Closed {
        /// The request, as it was sent.
        request: Box<str>,
        /// The address of the service.
        address: Box<str>,
        /// The details, such as the system's error or the start of the incomplete reply.
        problem: Box<str>,
    },

    /// The NCCL of the process that replied does not support the request.
    #[error("{request}: the job's NCCL does not support this request, which needs {since} or newer")]
    Unsupported {
        /// The request, as it was sent.
        request: Box<str>,
        /// The first NCCL version that supports the request.
        since: Version,
    },

    /// The request was rejected, for example because its argument is invalid.
    #[error("{request}: the job replied: {reply}")]
    Refused {
        /// The request, as it was sent.
        request: Box<str>,
        /// The error message.
        reply: Box<str>,
    },

    /// The reply is malformed, for example because another service uses the port.
    #[error("{request}: {problem}")]
    Protocol {
        /// The request, as it was sent, or `a report` if `Report::parse` failed.
        request: Box<str>,
        /// The mistake in the reply, and what was expected.
        problem: Box<str>,
    },
}

impl fmt::Debug for RasError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
