//! The thread that answers, and its port.
//!
//! It exists while the process has communicators. As in NCCL, every process listens, and the kernel chooses one for each
//! connection. Where the port belongs to another user's job, a line in the log is all that happens.

use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::net::sockopt::{set_socket_reuseaddr, set_socket_reuseport};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with};

use super::monitor::Monitor;
use super::session::Session;
use crate::diag::debug::{self, Subsystem};

/// NCCL's default.
const DEFAULT_ADDRESS: &str = "localhost:28028";

/// Connections that the kernel keeps until they are accepted.
const BACKLOG: i32 = 1024;

/// Clients that are served at a time. For another one, that which has been quiet for longest has to go.
const MAX_CLIENTS: usize = 64;

/// Of these, clients that monitor, which may be quiet for as long as they like.
const MAX_MONITORS: usize = 32;

/// The time for a request, and for reading its answer.
const QUIET: Duration = Duration::from_secs(10);

/// The interval in which the processes are looked at for a client that monitors them.
const MONITOR_INTERVAL: Duration = Duration::from_millis(200);

/// The service of this process.
static SERVICE: Mutex<Weak<Service>> = Mutex::new(Weak::new());

/// A process's service. It ends when its last user drops it.
#[derive(Debug)]
pub(crate) struct Service {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// The process that has the thread: a forked child has none.
    pid: u32,
}

#[derive(Debug)]
struct Shared {
    ends: AtomicBool,
    /// Wakes the thread.
    wake: OwnedFd,
    /// Set once the thread ends soon after it is told to: it resolves no name any more.
    is_quick: AtomicBool,
}

impl Service {
    /// Returns the service of this process, which it starts if there is none. There is none if it is not wanted.
    pub(crate) fn of_process() -> Option<Arc<Self>> {
        let address = address()?;
        let mut service = SERVICE.lock().unwrap_or_else(PoisonError::into_inner);
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
                debug::info(Subsystem::Ras, || format!("RAS cannot be started: {error}"));
                None
            }
        }
    }

    fn start(address: String) -> io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let is_quick = address.starts_with("localhost:") || address.parse::<SocketAddr>().is_ok();
        let shared =
            Arc::new(Shared { ends: AtomicBool::new(false), wake, is_quick: AtomicBool::new(is_quick) });
        let run = {
            let shared = Arc::clone(&shared);
            move || {
                // Resolving a name may take long, and nobody has to wait for it.
                if let Err(error) = open(&address).and_then(|listener| serve(&listener, &shared)) {
                    debug::info(Subsystem::Ras, || format!("RAS has no client port at {address}: {error}"));
                }
            }
        };
        let thread = thread::Builder::new().name("libnccl-cpu-ras".into()).spawn(run)?;
        Ok(Self { shared, thread: Some(thread), pid: std::process::id() })
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if self.pid != std::process::id() {
            // The parent's, and its descriptor too.
            std::mem::forget(thread);
            return;
        }
        self.shared.ends.store(true, SeqCst);
        let _ = rustix::io::write(&self.shared.wake, &1u64.to_ne_bytes());
        // One that still resolves a name ends when it has.
        if self.shared.is_quick.load(SeqCst) || thread.is_finished() {
            let _ = thread.join();
        }
    }
}

/// Returns the address to listen at; `None` if there is to be no service. NCCL has one by default, this implementation if
/// the environment says so: `NCCL_RAS_ENABLE=1`, or an address.
fn address() -> Option<String> {
    let variable = |name| {
        libnccl::internal::environment::variable(name).map(|value| value.to_string_lossy().into_owned())
    };
    let address = variable("NCCL_RAS_ADDR").filter(|address| !address.is_empty());
    let is_enabled = match variable("NCCL_RAS_ENABLE") {
        Some(enable) => enable.trim() == "1",
        None => address.is_some(),
    };
    is_enabled.then(|| address.unwrap_or_else(|| DEFAULT_ADDRESS.into()))
}

/// Listens at the first address of a name, beside the other processes of this user.
fn open(address: &str) -> io::Result<TcpListener> {
    let unknown = || io::Error::new(io::ErrorKind::InvalidInput, "expected host:port or [IPv6]:port");
    let address = address.to_socket_addrs()?.next().ok_or_else(unknown)?;
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    set_socket_reuseaddr(&socket, true)?;
    set_socket_reuseport(&socket, true)?;
    bind(&socket, &address)?;
    listen(&socket, BACKLOG)?;
    debug::info(Subsystem::Ras, || format!("RAS client listening socket at {}", describe(address)));
    Ok(TcpListener::from(socket))
}

/// Formats an address as NCCL does.
fn describe(address: SocketAddr) -> String {
    format!("{}<{}>", address.ip(), address.port())
}

/// Serves clients until the service ends.
fn serve(listener: &TcpListener, shared: &Shared) -> io::Result<()> {
    shared.is_quick.store(true, SeqCst);
    let mut sessions: Vec<Session> = Vec::new();
    let mut monitor = None;
    let interval = Timespec { tv_sec: 0, tv_nsec: MONITOR_INTERVAL.subsec_nanos().into() };
    while !shared.ends.load(SeqCst) {
        let mut watched =
            vec![PollFd::new(&shared.wake, PollFlags::IN), PollFd::new(listener, PollFlags::IN)];
        watched.extend(
            sessions.iter().map(|session| PollFd::from_borrowed_fd(session.fd(), session.interest())),
        );
        match poll(&mut watched, (!sessions.is_empty()).then_some(&interval)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let is_ready: Vec<bool> = watched[2..].iter().map(|fd| !fd.revents().is_empty()).collect();
        let is_asked = !watched[1].revents().is_empty();
        let (mut ready, mut monitors) = (is_ready.into_iter(), 0);
        sessions.retain_mut(|session| {
            let goes_on = !ready.next().unwrap_or(false) || session.receive();
            monitors += usize::from(session.monitors());
            goes_on && monitors <= MAX_MONITORS
        });
        let now = Instant::now();
        sessions.retain(|session| session.monitors() || now < session.heard() + QUIET);
        if is_asked {
            match listener.accept() {
                Ok((stream, _)) if stream.set_nonblocking(true).is_ok() => {
                    if sessions.len() == MAX_CLIENTS {
                        close_quietest(&mut sessions);
                    }
                    sessions.push(Session::new(stream));
                }
                Ok(_) => {}
                // Out of descriptors, for instance: the connection is still there, and poll would return at once.
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                    thread::sleep(MONITOR_INTERVAL / 20);
                }
                Err(_) => {}
            }
        }
        if sessions.iter().any(Session::monitors) {
            // Before a client learns that it monitors: it gets all that happens from then on.
            let events = monitor.get_or_insert_with(Monitor::new).poll();
            sessions.retain_mut(|session| !session.monitors() || session.notify(&events));
        } else {
            monitor = None;
        }
        sessions.retain_mut(Session::send);
    }
    Ok(())
}

fn close_quietest(sessions: &mut Vec<Session>) {
    let others = sessions.iter().enumerate().filter(|(_, session)| !session.monitors());
    if let Some((quietest, _)) = others.min_by_key(|(_, session)| session.heard()) {
        sessions.remove(quietest);
    }
}
