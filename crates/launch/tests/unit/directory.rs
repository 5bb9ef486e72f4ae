use std::os::unix::fs::symlink;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc;
use std::thread;
use std::time::SystemTime;

use libnccl_test_support::random_inputs::{Random, inputs};

use super::*;

const JOB: u128 = 7;

fn make_fifo(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

/// Returns the result of `act`; fails if that takes too long.
fn soon<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || sender.send(act()));
    receiver.recv_timeout(Duration::from_secs(20)).expect("a result soon")
}

#[test]
fn announcement_that_is_no_regular_file_is_refused_immediately() {
    let temp = tempfile::tempdir().unwrap();
    let (directory, path) = (temp.path().to_owned(), file(temp.path(), JOB));
    let refused = |problem: &str| {
        let directory = directory.clone();
        let error = soon(move || read(&directory, JOB)).unwrap_err();
        assert_eq!(error, format!("{}: {problem}", path.display()));
        fs::remove_file(&path).or_else(|_| fs::remove_dir(&path)).unwrap();
    };
    make_fifo(&path);
    refused("not a regular file");
    symlink("/dev/zero", &path).unwrap();
    refused("not a regular file");
    fs::create_dir(&path).unwrap();
    refused("not a regular file");
    // Longer than memory.
    File::create(&path).unwrap().set_len(1 << 40).unwrap();
    refused("the announcement of rank 0 has no valid text");
}

/// Includes files that grow, shrink or disappear while they are read.
#[test]
fn random_files_are_read_or_refused() {
    let temp = tempfile::tempdir().unwrap();
    let path = file(temp.path(), JOB);
    let announcement = Announcement { nonce: 1, port: 7, hosts: vec!["node1".into()] };
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = Random(19);
            while !is_done.load(Relaxed) {
                let mut bytes = announcement.to_string().into_bytes();
                random.change_all(&mut bytes);
                fs::write(&path, bytes).unwrap();
                if random.below(8) == 0 {
                    fs::remove_file(&path).unwrap();
                }
            }
        });
        for _ in inputs(5_000) {
            if let Ok((read, _)) = read(temp.path(), JOB) {
                assert!(read.port > 0 && read.hosts.len() <= 8, "{read:?}");
            }
        }
        is_done.store(true, Relaxed);
    });
}

#[test]
fn announcement_of_the_future_does_not_seem_new() {
    let temp = tempfile::tempdir().unwrap();
    let path = file(temp.path(), JOB);
    let announcement = Announcement { nonce: 1, port: 7, hosts: vec!["node1".into()] };
    fs::write(&path, announcement.to_string()).unwrap();
    let hour = Duration::from_secs(3600);
    for (time, written) in
        [(SystemTime::now() - hour, "3600 s ago"), (SystemTime::now() + hour, "in the future")]
    {
        File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
        let (_, text) = read(temp.path(), JOB).unwrap();
        assert_eq!(text, format!("{}, written {written}", path.display()));
    }
}

#[test]
fn announcement_that_was_replaced_is_not_removed() {
    let temp = tempfile::tempdir().unwrap();
    let path = file(temp.path(), JOB);
    let published = || Published { path: path.clone(), text: "text".into() };
    make_fifo(&path);
    let first = published();
    soon(move || drop(first));
    fs::remove_file(&path).unwrap();
    File::create(&path).unwrap().set_len(1 << 40).unwrap();
    let second = published();
    soon(move || drop(second));
    assert!(path.exists());
    fs::write(&path, "text").unwrap();
    drop(published());
    assert!(!path.exists());
}
