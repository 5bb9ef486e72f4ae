use super::TcpStore;
use crate::connection::Deadline;
use libnccl_test_support::random_inputs::{Random, inputs};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

/// A server that sends different bytes on each connection. The result is an error by the deadline, or a short value.
#[test]
fn random_replies_are_errors_or_values() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = Random(13);
            for stream in listener.incoming() {
                if is_done.load(Relaxed) {
                    break;
                }
                let Ok(mut stream) = stream else { continue };
                let mut answer = b"libn\0\x08\0\0\0\0\0\0\0abcdefgh".to_vec();
                let start = if random.below(4) == 0 { 0 } else { 4 };
                random.change(&mut answer[start..]);
                let _ = stream.read(&mut [0; 64]);
                let _ = stream.write_all(&answer[..random.below(answer.len() + 1)]);
                let _ = stream.shutdown(std::net::Shutdown::Write);
            }
        });
        // A connection takes longer than parsing a message.
        for _ in inputs(200) {
            let deadline = Deadline::after(Duration::from_secs(10));
            if let Ok(value) = TcpStore::connect(address, &deadline).and_then(|s| s.get("/k", &deadline)) {
                assert!(value.len() <= super::MAX_BYTES);
            }
        }
        is_done.store(true, Relaxed);
        drop(std::net::TcpStream::connect(address).unwrap());
    });
}
