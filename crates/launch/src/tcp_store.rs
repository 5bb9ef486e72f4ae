//! A client of the TCPStore of PyTorch 2.2 and newer, with the operations that publish one key. Integers are little-endian.
//!
//! One of PyTorch's two server implementations serves no other client while it reads a message. Therefore every message is sent
//! in one write, and a connection in an unknown state is dropped.

use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use super::announcement::MAX_BYTES;
use super::connection::{self, Deadline, read_by};

/// The time limit for a reply that does not depend on another rank.
const REPLY: Duration = Duration::from_secs(5);

/// The start of a connection: operation 0 with the magic number 0x3c85f7ce.
const VALIDATE: [u8; 5] = [0, 0xce, 0xf7, 0x85, 0x3c];
const SET: u8 = 1;
const GET: u8 = 3;
const CHECK: u8 = 5;
const WAIT: u8 = 6;
const GETNUMKEYS: u8 = 7;
const DELETE_KEY: u8 = 8;
const PING: u8 = 13;

#[derive(Debug)]
pub(super) struct TcpStore(TcpStream);

impl TcpStore {
    /// Connects to the store on a host, at the first address that works.
    pub(super) fn connect_to(host: &str, port: u16, deadline: &Deadline) -> Result<Self, String> {
        let mut problem = String::new();
        for address in connection::resolve(host, port, deadline)? {
            match Self::connect(address, deadline) {
                Ok(store) => return Ok(store),
                Err(error) => problem = format!("TCPStore at {address}: {error}"),
            }
        }
        Err(problem)
    }

    fn connect(address: SocketAddr, deadline: &Deadline) -> io::Result<Self> {
        let nonce = *b"libn";
        let ping = [&VALIDATE[..], &[PING], &nonce].concat();
        let store = Self(connection::connect(address, REPLY, deadline)?);
        let mut echo = [0; 4];
        match store.request(&ping, &mut echo, deadline) {
            Ok(()) if echo == nonce => return Ok(store),
            Ok(()) => return Err(not_a_store()),
            // Versions 2.2 to 2.4 have no PING, and close the connection.
            Err(error) if error.kind() != io::ErrorKind::TimedOut => {}
            Err(error) => return Err(error),
        }
        let store = Self(connection::connect(address, REPLY, deadline)?);
        let mut keys = [0; 8];
        store.request(&[&VALIDATE[..], &[GETNUMKEYS]].concat(), &mut keys, deadline)?;
        if i64::from_le_bytes(keys) < 0 { Err(not_a_store()) } else { Ok(store) }
    }

    pub(super) fn local_address(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    pub(super) fn set(&self, key: &str, value: &[u8], deadline: &Deadline) -> io::Result<()> {
        // SET has no reply; CHECK has one.
        let message = [&[SET][..], &text(key), &text(value), &[CHECK], &keys(key)].concat();
        let mut missing = [1];
        self.request(&message, &mut missing, deadline)?;
        if missing == [0] { Ok(()) } else { Err(io::Error::other("the store has not kept a key")) }
    }

    /// Waits for a key until the deadline, and returns its value.
    pub(super) fn get(&self, key: &str, deadline: &Deadline) -> io::Result<Vec<u8>> {
        (&self.0).write_all(&[&[WAIT][..], &keys(key)].concat())?;
        read_by(&self.0, &mut [0], deadline).map_err(|error| match error.kind() {
            io::ErrorKind::TimedOut => io::Error::other("rank 0 has not set it"),
            _ => error,
        })?;
        let mut length = [0; 8];
        self.request(&[&[GET][..], &text(key)].concat(), &mut length, deadline)?;
        let length = usize::try_from(u64::from_le_bytes(length)).ok().filter(|length| *length <= MAX_BYTES);
        let length = length.ok_or_else(|| io::Error::other(format!("the value of {key} is too long")))?;
        let mut value = vec![0; length];
        read_by(&self.0, &mut value, &deadline.part(REPLY))?;
        Ok(value)
    }

    pub(super) fn delete(&self, key: &str, deadline: &Deadline) -> io::Result<()> {
        self.request(&[&[DELETE_KEY][..], &text(key)].concat(), &mut [0; 8], deadline)
    }

    fn request(&self, message: &[u8], reply: &mut [u8], deadline: &Deadline) -> io::Result<()> {
        (&self.0).write_all(message)?;
        read_by(&self.0, reply, &deadline.part(REPLY))
    }
}

fn not_a_store() -> io::Error {
    io::Error::other("the reply is not from a TCPStore of PyTorch 2.2 or newer")
}

fn text(bytes: impl AsRef<[u8]>) -> Vec<u8> {
    let bytes = bytes.as_ref();
    [&(bytes.len() as u64).to_le_bytes(), bytes].concat()
}

fn keys(key: &str) -> Vec<u8> {
    [&1_u64.to_le_bytes()[..], &text(key)].concat()
}

#[cfg(test)]
#[path = "../tests/unit/tcp_store.rs"]
mod tests;
