//! Connections that are not ranks, and wrong ranks: they are refused, reported, and do not disturb the others.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use libnccl::UniqueId;
use libnccl_launch::Launch;
use libnccl_test_support::random_inputs::{Random, inputs};

use crate::rank_process::{LONG, free_port, manual, of_job, start, wait_until};

fn launch(rank: usize, size: usize, port: u16, timeout: Duration) -> Launch {
    Launch::from_variables(manual(rank, size, port)).unwrap().timeout(timeout)
}

pub(crate) fn id(launch: &Launch) -> libnccl_launch::Result<UniqueId> {
    launch.unique_id(&libnccl_cpu::nccl())
}

pub(crate) fn connect(port: u16) -> TcpStream {
    wait_until(|| TcpStream::connect(("127.0.0.1", port)).is_ok());
    TcpStream::connect(("127.0.0.1", port)).unwrap()
}

/// The start of a message of this protocol.
const MAGIC: &[u8] = b"libnccl\x04";

fn message(text: &str) -> Vec<u8> {
    [MAGIC, &(text.len() as u32).to_le_bytes(), text.as_bytes()].concat()
}

/// Returns the text of the next message, or an error at the end of the stream and for bytes that are not a message.
pub(crate) fn receive(stream: &mut TcpStream) -> std::io::Result<String> {
    let mut header = [0; 12];
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    stream.read_exact(&mut header)?;
    assert_eq!(header[..8], *MAGIC);
    let mut text = vec![0; u32::from_le_bytes(header[8..].try_into().unwrap()) as usize];
    stream.read_exact(&mut text)?;
    Ok(String::from_utf8(text).unwrap())
}

/// Sends garbage of several kinds, one connection at a time or many that stay open.
fn send_garbage(port: u16, count: usize) {
    let mut open = Vec::new();
    for i in 0..count {
        let mut stream = connect_again(port);
        let noise: Vec<u8> = (0..200).map(|byte| (byte * 31 + i * 17) as u8).collect();
        let _ = match i % 7 {
            0 => stream.write_all(b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n"),
            1 => stream.write_all(&noise),
            2 => Ok(()), // Closed immediately.
            3 => stream.write_all(&[MAGIC, &noise[..30]].concat()),
            4 => stream.write_all(&[MAGIC, &noise[..130]].concat()),
            5 => stream.write_all(b"\0\xce\xf7\x85\x3c\x0d\x01\0\0\0"), // A TCPStore's client.
            _ => stream.write_all(&[MAGIC, &[0; 140]].concat()),
        };
        if i % 3 == 0 {
            open.push(stream);
        }
        if open.len() > 100 {
            open.remove(0);
        }
    }
}

/// Connects to a port that was seen open.
fn connect_again(port: u16) -> TcpStream {
    TcpStream::connect(("127.0.0.1", port)).unwrap()
}

/// Starts rank 0 of `size` ranks, disturbs it, and starts the others: all get one id.
fn check_root(size: usize, launch: impl Fn(usize) -> Launch + Sync, port: u16, disturb: impl FnOnce()) {
    thread::scope(|scope| {
        let start = |rank| {
            let launch = launch(rank);
            scope.spawn(move || id(&launch).unwrap())
        };
        let root = start(0);
        drop(connect(port));
        disturb();
        assert!(!root.is_finished());
        let others: Vec<_> = (1..size).map(start).collect();
        let id = root.join().unwrap();
        others.into_iter().for_each(|rank| assert_eq!(rank.join().unwrap(), id));
    });
}

/// Checks the rank 0 of a job without an id.
fn check(size: usize, disturb: impl FnOnce(u16)) {
    let port = free_port();
    check_root(size, |rank| launch(rank, size, port, IN_TIME), port, || disturb(port));
}

const IN_TIME: Duration = Duration::from_secs(50);

#[test]
fn thousand_garbage_connections_have_no_effect() {
    check(2, |port| send_garbage(port, 1_000));
}

#[test]
fn garbage_is_reported_with_the_missing_rank() {
    let port = free_port();
    thread::scope(|scope| {
        let root = scope.spawn(move || id(&launch(0, 2, port, Duration::from_secs(2))));
        drop(connect(port));
        send_garbage(port, 70);
        let error = root.join().unwrap().unwrap_err().to_string();
        assert!(error.starts_with("rank 1 of 2 did not join within "), "{error}");
        assert!(error.contains("; no other rank came; refused: "), "{error}");
        assert!(error.contains("a message that is no hello ("), "{error}");
        assert!(error.contains("closed without a hello ("), "{error}");
    });
}

#[test]
fn rank_0_says_at_the_deadline_where_it_listened_and_who_came() {
    let port = free_port();
    let launch = move |rank, seconds| launch(rank, 12, port, Duration::from_secs(seconds));
    thread::scope(|scope| {
        let root = scope.spawn(move || id(&launch(0, 3)));
        let others = [1, 2, 3, 4, 5, 6, 7, 8, 9, 11].map(|rank| scope.spawn(move || id(&launch(rank, 50))));
        let error = root.join().unwrap().unwrap_err().to_string();
        assert!(error.starts_with("rank 10 of 12 did not join within "), "{error}");
        let listened =
            format!(" s: rank 0 listened at 127.0.0.1:{port}; rank 1 came from 127.0.0.1; rank 2 came ");
        assert!(error.contains(&listened), "{error}");
        assert!(error.ends_with("; rank 8 came from 127.0.0.1; 2 more came"), "{error}");
        for rank in others {
            let error = rank.join().unwrap().unwrap_err().to_string();
            assert!(error.ends_with(": according to rank 0"), "{error}");
        }
    });
    let alone = id(&launch(0, 0)).unwrap_err().to_string();
    assert!(alone.ends_with(&format!("rank 0 listened at 127.0.0.1:{port}; no other rank came")), "{alone}");
}

/// Clients that send a byte now and then, and one that sends nothing, are closed after 5 s.
#[test]
fn slow_clients_have_no_effect() {
    check(3, |port| {
        let slow: Vec<_> = (0..50).map(|_| connect_again(port)).collect();
        let drip = |mut stream: &TcpStream| {
            stream.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
            let _ = stream.write(&MAGIC[..1]);
            // The root closes it.
            matches!(stream.read(&mut [0]), Ok(0)) || stream.write(&[0]).is_err()
        };
        let closed = std::cell::RefCell::new(vec![false; slow.len()]);
        wait_until(|| {
            thread::sleep(Duration::from_millis(100));
            let mut closed = closed.borrow_mut();
            slow.iter().zip(&mut *closed).for_each(|(stream, closed)| *closed = *closed || drip(stream));
            closed.iter().all(|closed| *closed)
        });
    });
}

/// Returns a hello with this job id, whose rank would wait for `wait` milliseconds.
pub(crate) fn hello(job: &str, rank: u32, size: u32, wait: u32) -> Vec<u8> {
    let hash = job.bytes().fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d_u128, |hash, byte| {
        (hash ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b)
    });
    message(&format!("hello {hash:032x} {:032x} {:032x} {rank} {size} {wait} *", 0, 7))
}

/// A wait that is longer than any test.
pub(crate) const FOREVER: u32 = u32::MAX;

/// Sends a hello, and returns the replies.
fn replies(port: u16, hello: &[u8]) -> Vec<String> {
    let mut stream = connect_again(port);
    stream.write_all(hello).unwrap();
    std::iter::from_fn(|| receive(&mut stream).ok()).collect()
}

#[test]
fn process_without_the_job_id_is_refused_and_changes_nothing() {
    let port = free_port();
    let launch = |rank| Launch::from_variables(of_job("a secret", rank, 3, port)).unwrap().timeout(IN_TIME);
    check_root(3, launch, port, || {
        for job in ["", "job/", "job/another", &format!("port/{port}")] {
            for rank in 0..4 {
                let replies = replies(port, &hello(job, rank, 3, 0));
                assert_eq!(replies, ["refused it is of another job"], "{job:?}, rank {rank}");
            }
        }
        connect_again(port).write_all(&[hello("job/another", 1, 3, 0), failed("a lie")].concat()).unwrap();
    });
}

/// Returns the report of a rank that has failed.
fn failed(reason: &str) -> Vec<u8> {
    message(&format!("failed 1 {reason}"))
}

#[test]
fn reports_that_are_none_are_refused_and_change_nothing() {
    check(3, |port| {
        let mut other_version = failed("of a later version");
        other_version[7] += 1;
        let not_whole = failed("not whole");
        let reports = [
            message("failed"),
            message("failing 1 really"),
            // Without an id, it cannot have begun.
            message("begun"),
            message(""),
            other_version,
            vec![0; 1024],
            vec![0xff; 8192],
            [MAGIC, &[0xff; 4], b"failed 1 too long"].concat(),
            not_whole[..not_whole.len() - 1].to_vec(),
        ];
        for report in reports {
            let mut stream = connect_again(port);
            stream.write_all(&hello(&format!("port/{port}"), 1, 3, FOREVER)).unwrap();
            assert_eq!(receive(&mut stream).unwrap(), "accepted");
            let _ = stream.write_all(&report);
            let _ = stream.shutdown(Shutdown::Write);
            assert!(rest(&mut stream).is_empty());
        }
    });
}

/// Returns the bytes received until the end of a connection, which may be reset.
fn rest(stream: &mut TcpStream) -> Vec<u8> {
    let mut rest = Vec::new();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    match stream.read_to_end(&mut rest).map_err(|error| error.kind()) {
        Ok(_) | Err(ErrorKind::ConnectionReset) => rest,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn foreign_process_in_a_job_without_a_secret_ends_no_other_wait() {
    let mut lies = Vec::new();
    check(4, |port| {
        // A constant job id.
        assert_eq!(replies(port, &hello("", 1, 4, 0)), ["refused it is of another job"]);
        for _ in 0..20 {
            // They join as rank 2, for a moment.
            let replies = replies(port, &hello(&format!("port/{port}"), 2, 4, 0));
            assert!(replies[0] == "accepted" && replies[1].starts_with("missing "), "{replies:?}");
        }
        // A report of its failure does not block rank 2 either.
        for _ in 0..2 {
            let hello = hello(&format!("port/{port}"), 2, 4, FOREVER);
            let mut stream = connect_again(port);
            stream.write_all(&[hello, failed("a lie")].concat()).unwrap();
            assert_eq!(receive(&mut stream).unwrap(), "accepted");
            lies.push(stream);
        }
    });
}

#[test]
fn rank_with_another_number_of_ranks_is_refused_immediately() {
    check(2, |port| {
        let started = Instant::now();
        let error = id(&launch(1, 3, port, IN_TIME)).unwrap_err().to_string();
        assert_eq!(error, format!("tcp://127.0.0.1:{port}: this is rank 1 of 3; rank 0 expects 2 ranks"));
        assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
    });
}

#[test]
fn second_process_of_a_rank_is_refused() {
    let port = free_port();
    let root = start(LONG, &manual(0, 3, port));
    let first = start(LONG, &manual(1, 3, port));
    thread::sleep(Duration::from_millis(700));
    // Its deadline does not end the exchange of the others either.
    start(4_000, &manual(1, 3, port)).expect_error("another process has joined as rank 1");
    start(LONG, &manual(2, 3, port)).expect_sum(6);
    root.expect_sum(6);
    first.expect_sum(6);
}

/// Listens instead of rank 0, and replies to each connection, which stays open. Returns the port.
fn fake_root(reply: impl Fn(usize, &mut TcpStream) + Send + 'static) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        let mut open = Vec::new();
        for mut stream in listener.incoming().flatten() {
            reply(open.len(), &mut stream);
            open.push(stream);
        }
    });
    port
}

#[test]
fn refusal_is_the_error_also_if_the_deadline_cuts_a_later_attempt_short() {
    let port = fake_root(|attempt, stream| {
        receive(stream).unwrap();
        if attempt == 0 {
            stream.write_all(&message("refused it is of another job")).unwrap();
        }
    });
    let error = id(&launch(1, 2, port, Duration::from_secs(2))).unwrap_err().to_string();
    assert!(error.ends_with("it is of another job"), "{error}");
}

/// Another program listens at the address of rank 0. It replies with garbage, or not at all.
#[test]
fn garbage_from_the_root_is_an_error_by_the_deadline() {
    let replies: [&[u8]; 4] = [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", &[0xff; 1024], &[0; 5000]];
    for reply in replies {
        let port = fake_root(move |_, stream| drop(stream.write_all(reply)));
        let started = Instant::now();
        let error = id(&launch(1, 2, port, Duration::from_millis(800))).unwrap_err().to_string();
        assert!(error.starts_with("rank 0 of 2 did not join within "), "{error}");
        assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    }
}

#[test]
fn rank_of_another_version_of_the_protocol_is_refused_immediately_with_both_versions() {
    let port = free_port();
    let expected = "version 9 of the protocol of libnccl-launch; expected 4";
    thread::scope(|scope| {
        let root = scope.spawn(move || id(&launch(0, 2, port, Duration::from_secs(3))));
        let mut stream = connect(port);
        stream.write_all(b"libnccl\x09\x0c\0\0\0another text").unwrap();
        let mut reply = Vec::new();
        stream.read_to_end(&mut reply).unwrap();
        assert_eq!(reply[..8], *b"libnccl\x09");
        assert_eq!(
            String::from_utf8_lossy(&reply[12..]),
            format!("refused-for-good this rank has {expected}")
        );
        let error = root.join().unwrap().unwrap_err().to_string();
        assert!(error.contains(&format!("a rank of {expected} (")), "{error}");
    });
}

#[test]
fn rank_0_of_another_version_of_the_protocol_is_an_immediate_error_with_both_versions() {
    let port = fake_root(|_, stream| stream.write_all(b"libnccl\x09\x03\0\0\0new").unwrap());
    let error = id(&launch(1, 2, port, Duration::from_secs(3000))).unwrap_err().to_string();
    assert!(error.ends_with("rank 0 has version 9 of the protocol of libnccl-launch; expected 4"), "{error}");
}

/// Randomly changed hellos. Some are still valid hellos of a rank, and some have a report of a failure.
#[test]
fn random_hellos_are_accepted_or_refused_and_the_root_goes_on() {
    const RANKS: usize = 40;
    let port = free_port();
    let launch = |rank| launch(rank, RANKS, port, 60 * IN_TIME);
    check_root(RANKS, launch, port, || {
        let mut random = Random(23);
        for input in inputs(2_000) {
            let mut bytes = hello(&format!("port/{port}"), random.next() as u32 % 5, RANKS as u32, 0);
            if random.below(3) == 0 {
                bytes.extend(failed("no library: libnccl.so.2: not found"));
            }
            random.change_all(&mut bytes);
            let mut stream = connect_again(port);
            let _ = stream.write_all(&bytes);
            if random.below(2) == 0 {
                let _ = stream.shutdown(Shutdown::Write);
                let reply = rest(&mut stream);
                // A refusal has the rank's version.
                let is_one = reply.is_empty() || reply.starts_with(&MAGIC[..MAGIC.len() - 1]);
                assert!(is_one, "input {input}: {reply:?}");
            }
        }
    });
}

/// Randomly changed replies of rank 0.
#[test]
fn random_replies_are_an_id_or_an_error_by_the_deadline() {
    let random = std::sync::Mutex::new(Random(29));
    let port = fake_root(move |_, stream| {
        let mut random = random.lock().unwrap();
        let id = format!("id {}", "03".repeat(128));
        let second = [&id, "missing 1 1", "missing 500 1", "refused why", "accepted", "failed 7 why"];
        let mut bytes = ["accepted", second[random.below(6)], "begun"].map(message).concat();
        random.change_all(&mut bytes);
        let _ = receive(stream).and_then(|_| stream.write_all(&bytes));
        let _ = stream.shutdown(Shutdown::Both);
    });
    for input in inputs(100) {
        let started = Instant::now();
        let _ = id(&launch(1, 2, port, Duration::from_millis(30)));
        assert!(started.elapsed() < Duration::from_secs(5), "input {input}: {:?}", started.elapsed());
    }
}

#[test]
fn exchanges_in_a_row_give_each_its_own_id() {
    let port = free_port();
    let [first, second] = thread::scope(|scope| {
        [0, 1]
            .map(|rank| {
                scope.spawn(move || {
                    let launch = launch(rank, 2, port, Duration::from_secs(50));
                    [(); 3].map(|()| id(&launch).unwrap())
                })
            })
            .map(|rank| rank.join().unwrap())
    });
    assert_eq!(first, second);
    assert!(first[0] != first[1] && first[1] != first[2] && first[0] != first[2], "{first:?}");
}
