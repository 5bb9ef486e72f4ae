use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use super::watch;

#[test]
fn watch_expires_after_the_last_operation() {
    let (sender, expired) = channel();
    let start = Instant::now();
    let operations = watch(Duration::from_millis(400), move || sender.send(()).unwrap()).unwrap();
    for _ in 0..8 {
        operations.fetch_add(1, Ordering::Relaxed);
        thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(expired.recv(), Ok(()));
    assert!(start.elapsed() >= Duration::from_millis(1000));
}
