//! The thread that serves RAS requests, and its port.
//!
//! The thread runs while the process has communicators. As in NCCL, every process listens, and the kernel chooses one for each
//! connection. If the port belongs to another user's job, a line is logged and there is no service.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::sync::{Arc, LazyLock, Mutex, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use libnccl::internal::environment;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::net::sockopt::{set_socket_reuseaddr, set_socket_reuseport};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with};

use super::report::{self, Event, communicators, processes};
use crate::diag::debug::{self, Subsystem};
use crate::sync::lock;

const DEFAULT_ADDRESS: &str = "localhost:28028";

/// The maximum number of connections that the kernel queues until they are accepted.
const BACKLOG: i32 = 1024;

/// The maximum number of clients that are served at a time. An additional client replaces the client that has been quiet for
/// longest. Monitoring clients make no further requests, so they are replaced only if all clients monitor.
const MAX_CLIENTS: usize = 64;

/// The time limit for sending a request and for reading its response. A monitoring client may be quiet for longer.
const QUIET: Duration = Duration::from_secs(10);

const INTERVAL: Duration = Duration::from_millis(200);

/// The maximum length of a request in bytes, as in NCCL.
const MAX_REQUEST: usize = 1024;

/// The maximum number of bytes of events that a client may leave unread.
const MAX_UNREAD: usize = 1 << 20;

static SERVICE: Mutex<Weak<Service>> = Mutex::new(Weak::new());

/// The address to listen on, resolved once. `None` if the environment enables no service: NCCL enables it by default, this
/// library only with `NCCL_RAS_ENABLE=1` or an address.
static ADDRESS: LazyLock<Option<SocketAddr>> = LazyLock::new(|| {
    let variable = |name| environment::variable(name).map(|value| value.to_string_lossy().into_owned());
    let address = variable("NCCL_RAS_ADDR").filter(|address| !address.is_empty());
    let is_enabled = match variable("NCCL_RAS_ENABLE") {
        Some(enable) => enable.trim() == "1",
        None => address.is_some(),
    };
    let name = is_enabled.then(|| address.unwrap_or_else(|| DEFAULT_ADDRESS.into()))?;
    let resolved = name.to_socket_addrs().map(|mut addresses| addresses.next());
    if let Err(error) = &resolved {
        debug::info(Subsystem::Ras, || format!("RAS has no client port at {name}: {error}"));
    }
    resolved.ok().flatten()
});

/// A process's service. It ends when its last user drops it.
pub(crate) struct Service {
    end: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
    /// The pid of the process that has the thread. A forked child has no such thread.
    pid: u32,
}

impl Service {
    /// Returns the service of this process, starting it if there is none and the environment enables it.
    pub(crate) fn of_process() -> Option<Arc<Self>> {
        let address = (*ADDRESS)?;
        let mut service = lock(&SERVICE);
        if let Some(running) = service.upgrade().filter(|running| running.pid == std::process::id()) {
            return Some(running);
        }
        match Self::start(address) {
            Ok(started) => {
                let started = Arc::new(started);
                *service = Arc::downgrade(&started);
                Some(started)
            }
            Err(error) => {
                debug::info(Subsystem::Ras, || format!("RAS has no client port at {address}: {error}"));
                None
            }
        }
    }

    fn start(address: SocketAddr) -> io::Result<Self> {
        let listener = open(address)?;
        // In NCCL's format.
        debug::info(Subsystem::Ras, || {
            format!("RAS client listening socket at {}<{}>", address.ip(), address.port())
        });
        let end = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let of_thread = Arc::clone(&end);
        let serve = move || {
            if let Err(error) = serve(&listener, &of_thread) {
                debug::info(Subsystem::Ras, || format!("RAS has ended: {error}"));
            }
        };
        let thread = thread::Builder::new().name("libnccl-cpu-ras".into()).spawn(serve)?;
        Ok(Self { end, thread: Some(thread), pid: std::process::id() })
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if self.pid != std::process::id() {
            // The thread and its descriptor belong to the parent.
            std::mem::forget(thread);
            return;
        }
        let _ = rustix::io::write(&self.end, &1u64.to_ne_bytes());
        let _ = thread.join();
    }
}

/// Listens on an address, together with the other processes of this user.
fn open(address: SocketAddr) -> io::Result<TcpListener> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    set_socket_reuseaddr(&socket, true)?;
    set_socket_reuseport(&socket, true)?;
    bind(&socket, &address)?;
    listen(&socket, BACKLOG)?;
    Ok(TcpListener::from(socket))
}

fn serve(listener: &TcpListener, end: &OwnedFd) -> io::Result<()> {
    let mut clients: Vec<Client> = Vec::new();
    let mut known = None;
    let interval = Timespec { tv_sec: 0, tv_nsec: INTERVAL.subsec_nanos().into() };
    loop {
        let mut watched = vec![PollFd::new(end, PollFlags::IN), PollFd::new(listener, PollFlags::IN)];
        watched.extend(clients.iter().map(|client| PollFd::new(&client.stream, client.interest())));
        match poll(&mut watched, (!clients.is_empty()).then_some(&interval)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let ends = !watched[0].revents().is_empty();
        let ready: Vec<bool> = watched[1..].iter().map(|fd| !fd.revents().is_empty()).collect();
        let mut is_ready = ready[1..].iter();
        clients.retain_mut(|client| !is_ready.next().is_some_and(|ready| *ready) || client.receive());
        clients.retain(|client| client.monitors() || client.heard.elapsed() < QUIET);
        if ready[0] {
            accept(listener, &mut clients);
        }
        if clients.iter().any(Client::monitors) {
            // Before a monitoring client gets its response, so that it receives all events from then on.
            let now = processes(&communicators());
            let events = known.map(|before| report::events(&before, &now)).unwrap_or_default();
            clients.retain_mut(|client| !client.monitors() || client.notify(&events));
            known = Some(now);
        } else {
            known = None;
        }
        clients.retain_mut(Client::send);
        // After a last round, which serves the requests that have arrived and reports the last events.
        if ends {
            return Ok(());
        }
    }
}

fn accept(listener: &TcpListener, clients: &mut Vec<Client>) {
    match listener.accept() {
        Ok((stream, _)) if stream.set_nonblocking(true).is_ok() => {
            let quietest =
                clients.iter().enumerate().min_by_key(|(_, client)| (client.monitors(), client.heard));
            if let Some((quietest, _)) = quietest.filter(|_| clients.len() == MAX_CLIENTS) {
                clients.remove(quietest);
            }
            clients.push(Client::new(stream));
        }
        // For example, no descriptors are left: the connection is still pending, and poll would return immediately.
        Err(error) if error.kind() != ErrorKind::WouldBlock => thread::sleep(INTERVAL / 20),
        _ => {}
    }
}

struct Client {
    stream: TcpStream,
    input: Vec<u8>,
    output: Vec<u8>,
    is_json: bool,
    groups: Vec<String>,
    /// Set if the connection ends after the output.
    ends: bool,
    heard: Instant,
}

impl Client {
    fn new(stream: TcpStream) -> Self {
        let (input, output, groups) = (Vec::new(), Vec::new(), Vec::new());
        Self { stream, input, output, is_json: false, groups, ends: false, heard: Instant::now() }
    }

    /// Returns the event to poll for. A client that does not read its response cannot make another request.
    fn interest(&self) -> PollFlags {
        if self.output.is_empty() { PollFlags::IN } else { PollFlags::OUT }
    }

    fn monitors(&self) -> bool {
        !self.groups.is_empty() && !self.ends
    }

    /// Receives requests and queues the responses. Returns `false` if the connection is done.
    fn receive(&mut self) -> bool {
        if !self.output.is_empty() {
            return true;
        }
        let mut bytes = [0; MAX_REQUEST];
        match (&self.stream).read(&mut bytes) {
            Ok(0) => return false,
            Ok(count) => self.input.extend_from_slice(&bytes[..count]),
            Err(error) => return matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
        }
        while let Some(end) = self.input.iter().position(|byte| *byte == b'\n').filter(|_| !self.ends) {
            let line: Vec<u8> = self.input.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line[..end]);
            self.heard = Instant::now();
            let response = self.respond(line.trim_end_matches('\r'));
            self.output.extend_from_slice(response.as_bytes());
        }
        self.ends || self.input.len() < MAX_REQUEST
    }

    /// Returns the response to a request: case-insensitive keywords, separated by one space.
    fn respond(&mut self, line: &str) -> String {
        let upper = line.to_ascii_uppercase();
        let after = |keywords: &str| upper.strip_prefix(keywords);
        if let Some(format) = after("SET FORMAT ") {
            if !["TEXT", "JSON"].contains(&format) {
                return format!("ERROR: Invalid format {format}\n");
            }
            self.is_json = format == "JSON";
        } else if let Some(groups) = after("MONITOR") {
            let groups = if groups.is_empty() { " LIFECYCLE" } else { groups };
            let groups: Vec<String> = groups.trim_start().split(',').map(ToOwned::to_owned).collect();
            let is_known = |group: &String| ["LIFECYCLE", "TRACE", "ALL"].contains(&group.as_str());
            if let Some(unknown) = groups.iter().find(|group| !is_known(group)) {
                return format!("ERROR: Invalid event group '{unknown}'\n");
            }
            self.groups = groups;
        } else if after("CLIENT PROTOCOL ").is_some() {
            return "SERVER PROTOCOL 2\n".into();
        } else if let Some(seconds) = after("TIMEOUT ") {
            // Ignored, because the service does not wait for other processes.
            if !seconds.is_empty() && !seconds.parse::<f64>().is_ok_and(|seconds| seconds >= 0.0) {
                return format!("ERROR: Invalid timeout value {seconds}\n");
            }
        } else if after("CONTROL ").is_some() {
            return "ERROR: the CPU backend has no profiler to control\n".into();
        } else {
            return self.report(&upper).unwrap_or_else(|| format!("ERROR: Unknown command {line}\n"));
        }
        "OK\n".into()
    }

    /// Returns the response to a request after which the connection ends.
    fn report(&mut self, request: &str) -> Option<String> {
        let response = match request {
            "STATUS" | "VERBOSE STATUS" if self.is_json => report::json(),
            "STATUS" => report::text(false),
            "VERBOSE STATUS" => report::text(true),
            "DIAGNOSTICS" => report::diagnostics(),
            _ => return None,
        };
        self.ends = true;
        Some(response)
    }

    /// Queues the events in the groups that the client monitors. Returns `false` if too many events are unread.
    fn notify(&mut self, events: &[Event]) -> bool {
        for event in events {
            if self.groups.iter().any(|group| group == event.group || group == "ALL") {
                self.output.extend_from_slice(event.format(self.is_json).as_bytes());
            }
        }
        self.output.len() <= MAX_UNREAD
    }

    /// Sends as much of the queued output as possible without blocking. Returns `false` if the connection is done.
    fn send(&mut self) -> bool {
        while !self.output.is_empty() {
            match (&self.stream).write(&self.output) {
                Ok(0) => return false,
                Ok(count) => drop(self.output.drain(..count)),
                Err(error) => return matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
            }
        }
        !self.ends
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::process::Command;

    use super::*;
    use crate::shm::process::Process;
    use crate::shm::shared_state::SharedState;

    #[test]
    fn death_just_before_the_end_is_reported() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let other = Process::from_pid(u64::from(child.id())).unwrap();
        let state = Arc::new(SharedState::create(&[Process::current().unwrap(), other]).unwrap().0);
        // RAS lists a communicator once its ranks have joined.
        state.set_name(1, "a communicator".into());
        state.register();
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let service = Service::start(address).unwrap();
        let mut client = TcpStream::connect(address).unwrap();
        client.write_all(b"MONITOR\n").unwrap();
        let mut response = [0; 3];
        client.read_exact(&mut response).unwrap();
        assert_eq!(&response, b"OK\n");
        child.kill().unwrap();
        child.wait().unwrap();
        drop(service);
        let mut events = String::new();
        let _ = client.read_to_string(&mut events);
        assert!(events.contains("PEER_DEAD"), "{events:?}");
    }
}
