//! A TCPStore server with the operations that a client needs to publish a key. It replies as PyTorch's servers do.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

/// A server that runs until the test ends.
pub(crate) struct StoreServer {
    pub(crate) port: u16,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    keys: Mutex<BTreeMap<Vec<u8>, Vec<u8>>>,
    /// All keys that were ever set.
    history: Mutex<Vec<String>>,
    changed: Condvar,
}

/// The PyTorch version that the server imitates.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Release {
    /// 2.5 and newer.
    WithPing,
    /// 2.2 to 2.4, which close the connection at a PING.
    WithoutPing,
}

impl StoreServer {
    pub(crate) fn start(release: Release) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (port, state) = (listener.local_addr().unwrap().port(), Arc::new(State::default()));
        let of_server = Arc::clone(&state);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let state = Arc::clone(&of_server);
                thread::spawn(move || serve(stream?, release, &state));
            }
        });
        Self { port, state }
    }

    pub(crate) fn set(&self, key: &str, value: &str) {
        self.state.keys.lock().unwrap().insert(key.into(), value.into());
    }

    /// Returns the keys that are currently set.
    pub(crate) fn keys(&self) -> Vec<String> {
        self.state.keys.lock().unwrap().keys().map(|key| String::from_utf8_lossy(key).into_owned()).collect()
    }

    /// Returns the keys that clients have set, in order.
    pub(crate) fn history(&self) -> Vec<String> {
        self.state.history.lock().unwrap().clone()
    }
}

fn serve(mut stream: TcpStream, release: Release, state: &State) -> io::Result<()> {
    let mut is_valid = false;
    loop {
        let [operation] = read(&mut stream)?;
        if operation != 0 && !is_valid {
            return Ok(()); // Closes the connection, as for everything that is not understood.
        }
        match operation {
            0 if !is_valid && u32::from_le_bytes(read(&mut stream)?) == 0x3c85_f7ce => is_valid = true,
            1 => {
                let (key, value) = (text(&mut stream)?, text(&mut stream)?);
                state.history.lock().unwrap().push(String::from_utf8_lossy(&key).into_owned());
                state.keys.lock().unwrap().insert(key, value);
                state.changed.notify_all();
            }
            3 => {
                let key = text(&mut stream)?;
                // The older server closes the connection if the key is missing.
                let Some(value) = state.keys.lock().unwrap().get(&key).cloned() else { return Ok(()) };
                stream.write_all(&[&(value.len() as u64).to_le_bytes(), &value[..]].concat())?;
            }
            5 | 6 => {
                let count = u64::from_le_bytes(read(&mut stream)?);
                let wanted = (0..count).map(|_| text(&mut stream)).collect::<io::Result<Vec<_>>>()?;
                let mut keys = state.keys.lock().unwrap();
                let is_missing = |keys: &BTreeMap<_, _>| wanted.iter().any(|key| !keys.contains_key(key));
                if operation == 6 {
                    keys = state.changed.wait_while(keys, |keys| is_missing(keys)).unwrap();
                }
                let reply = u8::from(is_missing(&keys));
                drop(keys);
                stream.write_all(&[reply])?;
            }
            7 => {
                let count = state.keys.lock().unwrap().len() as i64;
                stream.write_all(&count.to_le_bytes())?;
            }
            8 => {
                let key = text(&mut stream)?;
                let deleted = i64::from(state.keys.lock().unwrap().remove(&key).is_some());
                stream.write_all(&deleted.to_le_bytes())?;
            }
            13 if release == Release::WithPing => {
                let nonce: [u8; 4] = read(&mut stream)?;
                stream.write_all(&nonce)?;
            }
            _ => return Ok(()),
        }
    }
}

fn read<const N: usize>(stream: &mut TcpStream) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn text(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let length = u64::from_le_bytes(read(stream)?);
    assert!(length <= 8192, "a key or a value of {length} bytes");
    let mut bytes = vec![0; length as usize];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}
