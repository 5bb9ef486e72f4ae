//! The port of NCCL's RAS, at which a running job answers questions.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::finding::Finding;
use crate::settings::Settings;

const DEFAULT: &str = "localhost:28028";
/// The time to wait for a connection, and for its answer. A stopped process accepts connections and never answers.
const LIMIT: Duration = Duration::from_millis(100);
const RESOLVED_WITHIN: Duration = Duration::from_millis(200);

pub(super) fn findings(settings: &Settings) -> Vec<Finding> {
    if settings.value("NCCL_RAS_ENABLE").is_some_and(|value| value != "1") {
        return vec![Finding::ok(format!("{}: jobs answer no questions", settings.text("NCCL_RAS_ENABLE")))];
    }
    let address = settings.value("NCCL_RAS_ADDR").unwrap_or(DEFAULT);
    let advice = "give each job a port of its own by NCCL_RAS_ADDR=localhost:PORT";
    let Some(addresses) = resolve(address).filter(|addresses| !addresses.is_empty()) else {
        return vec![Finding::warning(
            format!("no address of {address}; expected a host of this network and a port, such as {DEFAULT}"),
            advice,
        )];
    };
    vec![match addresses.iter().map(ask).max().unwrap_or(State::Unknown) {
        State::Unknown => Finding::warning(
            format!("{address} cannot be reached, so it is not known whether it is free"),
            advice,
        ),
        State::Free => Finding::ok(format!("{address} is free")),
        State::Ras => {
            Finding::ok(format!("a job of NCCL answers at {address}: `nccl ras --addr {address}` asks it"))
        }
        State::Silent => Finding::warning(
            format!("at {address}, something accepts connections and does not answer as NCCL's RAS"),
            advice,
        ),
    }]
}

/// Returns the addresses of a host; `None` if there is none, or if its name server does not answer in time.
fn resolve(address: &str) -> Option<Vec<SocketAddr>> {
    let (sender, receiver) = mpsc::channel();
    let address = address.to_owned();
    thread::spawn(move || {
        let addresses = address.to_socket_addrs().map(Iterator::collect);
        // The receiver may have gone.
        let _ = sender.send(addresses);
    });
    receiver.recv_timeout(RESOLVED_WITHIN).ok()?.ok()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum State {
    /// Neither a connection nor a refusal.
    Unknown,
    Free,
    Silent,
    Ras,
}

fn ask(address: &SocketAddr) -> State {
    let mut stream = match TcpStream::connect_timeout(address, LIMIT) {
        Ok(stream) => stream,
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => return State::Free,
        Err(_) => return State::Unknown,
    };
    let mut answer = [0; 16];
    let asked = stream
        .set_read_timeout(Some(LIMIT))
        .and_then(|()| stream.set_write_timeout(Some(LIMIT)))
        .and_then(|()| stream.write_all(b"CLIENT PROTOCOL 2\n"))
        .and_then(|()| stream.read_exact(&mut answer));
    if asked.is_ok() && answer.starts_with(b"SERVER PROTOCOL ") { State::Ras } else { State::Silent }
}
