use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

use super::connection::{Connection, Request, excerpt, protocol};
use super::error::RasError;
use super::monitor::{EventGroup, Monitor};
use super::report::Report;
use libnccl::Version;
use libnccl_launch::connection::{self, Deadline};

/// The address of the service if `NCCL_RAS_ADDR` is not set.
const DEFAULT_ADDRESS: &str = "localhost:28028";

/// The default time limit of a request, the same as in NVIDIA's client.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(11);

/// The time that the service may need beyond the `TIMEOUT` that the client sends, including the time to reply.
const SERVICE_EXCESS: Duration = Duration::from_secs(6);

/// The time limit for the reply to a handshake. A stopped process never replies.
const HANDSHAKE: Duration = Duration::from_secs(1);

/// The pause before a request is retried.
const PAUSE: Duration = Duration::from_millis(20);

/// The maximum number of consecutive attempts whose connection closes before the reply is complete.
const MAX_CLOSED: u32 = 10;

const HELLO: &str = "CLIENT PROTOCOL 2";
const REPLY: &str = "SERVER PROTOCOL 2";
const FIRST: Version = Version::new(2, 24, 3);
const JSON: Request<'static> = Request { line: "SET FORMAT json", since: Version::new(2, 28, 7) };

/// A client of NCCL's RAS service. Each request opens a separate connection.
///
/// ```
/// use std::time::Duration;
///
/// use libnccl_observe::ras::{RasClient, RasError};
///
/// # fn main() -> Result<(), RasError> {
/// let client = RasClient::new("[::1]:1")?.timeout(Duration::from_millis(500));
/// assert_eq!(client.address(), "[::1]:1");
/// assert!(matches!(client.report(), Err(RasError::Connect { .. })));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RasClient {
    host: String,
    port: u16,
    timeout: Duration,
}

impl RasClient {
    /// Creates a client of the service at `host:port` or `[IPv6]:port`.
    ///
    /// # Errors
    /// [`RasError::Address`] if `address` does not have one of these forms. The port is required.
    pub fn new(address: &str) -> Result<Self, RasError> {
        let parsed = connection::parse_address(address.trim());
        let (host, port) = parsed.ok_or_else(|| RasError::Address { address: address.into() })?;
        Ok(Self { host: host.into(), port, timeout: DEFAULT_TIMEOUT })
    }

    /// Creates a client of the service at `NCCL_RAS_ADDR`, or at `localhost:28028` if this variable is not set.
    ///
    /// # Errors
    /// [`RasError::Address`] if the value of the variable is not an address.
    pub fn from_env() -> Result<Self, RasError> {
        match libnccl::internal::environment::variable("NCCL_RAS_ADDR") {
            Some(address) if !address.is_empty() => Self::new(&address.to_string_lossy()),
            _ => Self::new(DEFAULT_ADDRESS),
        }
    }

    /// Sets the time limit of each request, from the connection to the last byte of the reply. Default: 11 s.
    ///
    /// If a process of the job does not respond, the service waits for `timeout` minus 6 s, but for at least 1 s.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Returns the address of the service as `host:port` or `[IPv6]:port`, the syntax of `NCCL_RAS_ADDR`.
    #[must_use]
    pub fn address(&self) -> String {
        connection::format_address(&self.host, self.port)
    }

    /// Returns a report about the job: the text that NVIDIA's tool `ncclras` prints.
    ///
    /// # Errors
    /// Returns any [`RasError`] except `Address`.
    #[doc(alias = "ncclras")]
    pub fn status(&self) -> Result<String, RasError> {
        self.text("STATUS")
    }

    /// Returns a report about the job as text, with more details about each rank than [`status`](Self::status).
    ///
    /// # Errors
    /// Returns any [`RasError`] except `Address`.
    pub fn verbose_status(&self) -> Result<String, RasError> {
        self.text("VERBOSE STATUS")
    }

    fn text(&self, line: &str) -> Result<String, RasError> {
        self.request(|mut connection, deadline| {
            let reply = connection.query(Request { line, since: FIRST }, deadline)?;
            let text = String::from_utf8_lossy(&reply).into_owned();
            // The last headings, which are present even if nothing follows.
            let absent =
                ["Errors", "Warnings"].into_iter().find(|name| text.lines().all(|line| line != *name));
            let Some(absent) = absent else { return Ok(text) };
            let problem = format!("the report has no section {absent}; it begins with {}", excerpt(&reply));
            Err(connection.closed(line, problem))
        })
    }

    /// Returns the job's report. Since NCCL 2.28.7.
    ///
    /// # Errors
    /// Returns any [`RasError`] except `Address`.
    pub fn report(&self) -> Result<Report, RasError> {
        Report::parse(&self.json_report()?)
    }

    /// Returns the JSON text of the job's report, as received. Since NCCL 2.28.7.
    ///
    /// # Errors
    /// Returns any [`RasError`] except `Address`.
    pub fn json_report(&self) -> Result<Vec<u8>, RasError> {
        self.request(|mut connection, deadline| {
            connection.command(JSON, deadline)?;
            connection.query(Request { line: "STATUS", since: FIRST }, deadline)
        })
    }

    /// Makes the job's processes check their GPUs, drivers and environment, and returns one line of text for each finding. Since
    /// NCCL 2.31.
    ///
    /// # Errors
    /// Returns the errors of [`status`](Self::status), or [`RasError::Refused`] if another client's diagnostics are running.
    pub fn diagnostics(&self) -> Result<String, RasError> {
        let diagnostics = Request { line: "DIAGNOSTICS", since: Version::new(2, 31, 2) };
        let reply = self.request(|mut connection, deadline| connection.query(diagnostics, deadline));
        reply.map(|reply| String::from_utf8_lossy(&reply).into_owned())
    }

    /// Subscribes to the events of `groups`, or of [`EventGroup::Lifecycle`] if `groups` is empty. Since NCCL 2.29.2.
    ///
    /// The events come from one process of the job. The subscription ends when this process exits.
    ///
    /// # Errors
    /// Returns any [`RasError`] except `Address`.
    pub fn monitor(&self, groups: &[EventGroup]) -> Result<Monitor, RasError> {
        let names: Vec<&str> = groups.iter().map(|group| group.name()).collect();
        let line = format!("MONITOR {}", names.join(","));
        let monitor = Request { line: line.trim_end(), since: Version::new(2, 29, 2) };
        self.request(|mut connection, deadline| {
            connection.command(JSON, deadline)?;
            connection.command(monitor, deadline).map(|()| Monitor::new(connection))
        })
    }

    /// Sets the events that profiler plugins receive in all processes of the job. The mask is `none`, `all`, a number, or a
    /// comma-separated list of NCCL's event names, such as `coll,p2p`. Since NCCL 2.31.
    ///
    /// # Errors
    /// Returns the errors of [`status`](Self::status), or [`RasError::Refused`] if the mask is invalid.
    pub fn set_profiler_mask(&self, mask: &str) -> Result<(), RasError> {
        let line = format!("CONTROL PROFILER_MASK {mask}");
        if mask.is_empty() || !mask.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(RasError::Refused {
                request: line.into(),
                reply: "expected a mask without blanks".into(),
            });
        }
        let control = Request { line: &line, since: Version::new(2, 31, 2) };
        self.request(|mut connection, deadline| connection.command(control, deadline))
    }

    /// Makes a request on a new connection. Retries if the connected process exits meanwhile: the next connection reaches another
    /// process.
    fn request<T>(
        &self,
        mut request: impl FnMut(Connection, &Deadline) -> Result<T, RasError>,
    ) -> Result<T, RasError> {
        let deadline = Deadline::after(self.timeout);
        let mut attempts = 0;
        loop {
            attempts += 1;
            let result = self.connect(&deadline).and_then(|one| request(one, &deadline));
            match result {
                Err(RasError::Closed { .. }) if attempts < MAX_CLOSED && !deadline.has_passed() => {
                    deadline.sleep(PAUSE);
                }
                result => return result,
            }
        }
    }

    /// Connects to a process that responds.
    fn connect(&self, deadline: &Deadline) -> Result<Connection, RasError> {
        let failed =
            |problem: String| RasError::Connect { address: self.address().into(), problem: problem.into() };
        let addresses = connection::resolve(&self.host, self.port, deadline).map_err(failed)?;
        loop {
            // A name may have several addresses, and NCCL listens on one.
            let mut refusals = Vec::new();
            let mut error = None;
            for address in &addresses {
                match self.shake_hands(*address, deadline) {
                    Ok(Some(mut connection)) => {
                        let patience = deadline.remaining().saturating_sub(SERVICE_EXCESS).as_secs().max(1);
                        let limit = Request { line: &format!("TIMEOUT {patience}"), since: FIRST };
                        return connection.command(limit, deadline).map(|()| connection);
                    }
                    Ok(None) => {}
                    Err(RasError::Connect { problem, .. }) => refusals.push(problem),
                    Err(other) => error = Some(other),
                }
            }
            if refusals.len() == addresses.len() {
                return Err(failed(refusals.join("; ")));
            }
            if let Some(error) = error {
                return Err(error);
            }
            if deadline.has_passed() {
                let (request, address) = (HELLO.into(), self.address().into());
                return Err(RasError::Timeout { request, address, elapsed: deadline.elapsed() });
            }
            deadline.sleep(PAUSE);
        }
    }

    /// Connects to a process; returns `None` if it accepts but does not respond.
    fn shake_hands(&self, address: SocketAddr, deadline: &Deadline) -> Result<Option<Connection>, RasError> {
        let limit = HANDSHAKE.min(self.timeout / 8).max(Duration::from_millis(20));
        let stream = match connection::connect(address, limit, deadline) {
            Ok(stream) => stream,
            // The backlog is full: the processes are stopped or busy.
            Err(error) if error.kind() == ErrorKind::TimedOut => return Ok(None),
            Err(error) => {
                let problem = format!("{address}: {error}").into();
                return Err(RasError::Connect { address: self.address().into(), problem });
            }
        };
        let mut connection = Connection::new(stream, address.to_string());
        connection.send(HELLO)?;
        match connection.read_line(HELLO, &deadline.part(limit)) {
            // Every version up to 2.32 has this number.
            Ok(reply) if reply == REPLY => Ok(Some(connection)),
            Ok(reply) => {
                let reply = excerpt(reply.as_bytes());
                Err(protocol(HELLO, format!("the reply of {address} is {reply}; expected {REPLY}")))
            }
            Err(RasError::Timeout { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{RasClient, RasError};

    #[test]
    fn address_is_host_and_port() {
        for address in ["localhost:28028", "10.0.0.1:1", "[::1]:65535", "node-7.cluster:28028"] {
            assert_eq!(RasClient::new(address).unwrap().address(), address);
        }
        for address in
            ["", "localhost", "localhost:", ":28028", "::1:28028", "[::1:28028", "a:0", "a:65536", "a:x"]
        {
            let error = RasClient::new(address).unwrap_err();
            assert_eq!(error, RasError::Address { address: address.into() });
        }
    }
}
