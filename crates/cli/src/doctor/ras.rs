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
const LIMIT: Duration = Duration::from_millis(30);
/// The time to wait for the addresses of a host.
const RESOLVED_WITHIN: Duration = Duration::from_millis(100);

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

/// The state of an address.
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

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::findings;
    use crate::doctor::finding::{Finding, Level};
    use crate::settings::Settings;
    use crate::system::System;

    fn at(variable: &str, value: &str) -> Finding {
        let root = tempfile::tempdir().unwrap();
        findings(&Settings::of(&System::at(root.path(), &[(variable, value)]))).remove(0)
    }

    /// Serves one connection with this answer.
    fn server(answer: &'static [u8]) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut question = [0; 18];
            let _ = stream.read_exact(&mut question).and_then(|()| stream.write_all(answer));
        });
        address
    }

    #[test]
    fn port_is_free_or_a_jobs_or_another_programs() {
        let job = at("NCCL_RAS_ADDR", &server(b"SERVER PROTOCOL 2\n"));
        assert!(job.level == Level::Ok && job.text.starts_with("a job of NCCL answers"), "{job:?}");
        let other = at("NCCL_RAS_ADDR", &server(b"HTTP/1.1 400 Bad Request\r\n\r\n"));
        assert!(other.level == Level::Warning && other.text.contains("does not answer as"), "{other:?}");
        // An address of this host that no other test listens at.
        let free = TcpListener::bind("127.83.71.9:0").unwrap().local_addr().unwrap().to_string();
        assert_eq!(at("NCCL_RAS_ADDR", &free), Finding::ok(format!("{free} is free")));
    }

    #[test]
    fn address_that_cannot_be_reached_is_not_called_free() {
        for address in ["255.255.255.255:9", "[ff0e::1%1]:9", "[2001:db8::1]:9"] {
            let unknown = at("NCCL_RAS_ADDR", address);
            assert_eq!(unknown.level, Level::Warning, "{unknown:?}");
        }
        let text = "255.255.255.255:9 cannot be reached, so it is not known whether it is free";
        assert_eq!(at("NCCL_RAS_ADDR", "255.255.255.255:9").text, text);
    }

    #[test]
    fn address_without_a_port_is_a_warning_and_a_switched_off_ras_is_fine() {
        assert_eq!(at("NCCL_RAS_ADDR", "localhost").level, Level::Warning);
        assert_eq!(at("NCCL_RAS_ENABLE", "0").level, Level::Ok);
    }
}
