//! Services that follow a script, and serve one connection at a time.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use libnccl_test_support::random_inputs::Random;

/// A step of a script. The connection is closed after the last step.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Step {
    /// Reads a line and ends if it is another one.
    Expect(&'static str),
    Send(&'static [u8]),
    Pause,
    /// Waits until the client closes the connection.
    Silence,
}

#[derive(Debug)]
pub(crate) struct Service {
    address: SocketAddr,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Service {
    /// Follows one script for each connection.
    pub(crate) fn start(script: Vec<Step>) -> Self {
        Self::start_with(vec![script])
    }

    /// Follows the scripts one after the other, then the last one.
    pub(crate) fn start_with(scripts: Vec<Vec<Step>>) -> Self {
        let mut number = 0;
        Self::serve(move |stream| {
            follow(&scripts[number.min(scripts.len() - 1)], stream);
            number += 1;
        })
    }

    /// Replies to each line with random bytes, some of them valid in the protocol.
    pub(crate) fn random(seed: u64) -> Self {
        let mut random = Random(seed);
        Self::serve(move |stream| {
            const REPLIES: [&[u8]; 8] = [
                b"SERVER PROTOCOL 2\n",
                b"OK\n",
                b"ERROR: Unknown command\n",
                b"{",
                b"\n",
                b"\xff\x00",
                b"Warnings\n",
                b"SERVER PROTOCOL",
            ];
            stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap());
            // Usually, at least the handshake succeeds.
            for reply in [0, 1, 1].into_iter().chain([8; 5]) {
                if lines.read_until(b'\n', &mut Vec::new()).is_err() && random.below(2) == 0 {
                    return;
                }
                let reply = if reply == 8 || random.below(8) == 0 { random.below(8) } else { reply };
                let times = if random.below(50) == 0 { 10_000 } else { 1 };
                if (0..times).any(|_| (&stream).write_all(REPLIES[reply]).is_err()) || random.below(16) == 0 {
                    return;
                }
            }
        })
    }

    fn serve(mut reply: impl FnMut(TcpStream) + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, ends) = (listener.local_addr().unwrap(), Arc::new(AtomicBool::new(false)));
        let has_ended = Arc::clone(&ends);
        let thread = thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if has_ended.load(SeqCst) {
                    return;
                }
                reply(stream);
            }
        });
        Self { address, ends, thread: Some(thread) }
    }

    pub(crate) fn address(&self) -> String {
        self.address.to_string()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.ends.store(true, SeqCst);
        let _ = TcpStream::connect(self.address);
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) && !thread::panicking() {
            panic!("the service has panicked");
        }
    }
}

fn follow(script: &[Step], mut stream: TcpStream) {
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut lines = BufReader::new(stream.try_clone().unwrap());
    for step in script {
        match step {
            Step::Expect(expected) => {
                let mut line = String::new();
                if lines.read_line(&mut line).is_err() || line.trim_end() != *expected {
                    return;
                }
            }
            Step::Send(bytes) if stream.write_all(bytes).is_err() => return,
            Step::Send(_) => {}
            Step::Pause => thread::sleep(Duration::from_millis(100)),
            Step::Silence => {
                let _ = lines.read_to_end(&mut Vec::new());
            }
        }
    }
}
