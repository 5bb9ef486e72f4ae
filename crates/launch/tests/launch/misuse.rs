//! Connections that are no ranks, and ranks that are wrong: they are refused, reported, and disturb nobody.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use libnccl::UniqueId;
use libnccl_launch::Launch;
use libnccl_test_support::random_inputs::{Random, inputs};

use crate::rank_process::{LONG, by_hand, free_port, of_job, start, wait_until};

fn launch(rank: usize, size: usize, port: u16, timeout: Duration) -> Launch {
    Launch::from_variables(by_hand(rank, size, port)).unwrap().timeout(timeout)
}

pub(crate) fn id(launch: &Launch) -> libnccl_launch::Result<UniqueId> {
    launch.unique_id(&libnccl_cpu::nccl())
}

pub(crate) fn connect(port: u16) -> TcpStream {
    wait_until(|| TcpStream::connect(("127.0.0.1", port)).is_ok());
    TcpStream::connect(("127.0.0.1", port)).unwrap()
}

/// The start of a hello of this protocol.
const MAGIC: &[u8] = b"libnccl\x03";

/// The bytes of a reply, and those of a report.
pub(crate) const REPLY: usize = 1056;
const REPORT: usize = 1036;

/// Sends garbage of several kinds, one connection at a time or many that stay open.
fn send_garbage(port: u16, count: usize) {
    let mut open = Vec::new();
    for i in 0..count {
        let mut stream = connect_again(port);
        let noise: Vec<u8> = (0..200).map(|byte| (byte * 31 + i * 17) as u8).collect();
        let _ = match i % 7 {
            0 => stream.write_all(b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n"),
            1 => stream.write_all(&noise),
            2 => Ok(()), // Closed at once.
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

#[test]
fn thousand_garbage_connections_have_no_effect() {
    let port = free_port();
    thread::scope(|scope| {
        let root = scope.spawn(move || id(&launch(0, 2, port, Duration::from_secs(50))));
        drop(connect(port));
        let garbage = scope.spawn(move || send_garbage(port, 1_000));
        garbage.join().unwrap();
        let rank = id(&launch(1, 2, port, Duration::from_secs(50))).unwrap();
        assert_eq!(root.join().unwrap().unwrap(), rank);
    });
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

/// Clients that send a byte now and then, and one that only listens, are given up after 5 s.
#[test]
fn slow_clients_have_no_effect() {
    let port = free_port();
    let started = Instant::now();
    thread::scope(|scope| {
        let root = scope.spawn(move || id(&launch(0, 3, port, Duration::from_secs(50))));
        drop(connect(port));
        let slow: Vec<_> = (0..50).map(|_| connect_again(port)).collect();
        let first = scope.spawn(move || id(&launch(1, 3, port, Duration::from_secs(50))));
        let drip = |mut stream: &TcpStream| {
            stream.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
            let _ = stream.write(&MAGIC[..1]);
            // The root closes it.
            matches!(stream.read(&mut [0]), Ok(0)) || stream.write(&[0]).is_err()
        };
        let mut closed = vec![false; slow.len()];
        while started.elapsed() < Duration::from_secs(20) && !closed.iter().all(|closed| *closed) {
            thread::sleep(Duration::from_millis(100));
            for (stream, closed) in slow.iter().zip(&mut closed) {
                *closed = *closed || drip(stream);
            }
        }
        assert!(closed.iter().all(|closed| *closed));
        let last = id(&launch(2, 3, port, Duration::from_secs(50))).unwrap();
        assert_eq!([root.join().unwrap().unwrap(), first.join().unwrap().unwrap()], [last; 2]);
    });
}

/// Returns the hello of a stranger, who takes this for the job's id and would wait for no time at all.
pub(crate) fn hello(job: &str, rank: u32, size: u32) -> Vec<u8> {
    let hash = job.bytes().fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d_u128, |hash, byte| {
        (hash ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b)
    });
    let numbers = [rank, size, 0].map(u32::to_le_bytes).concat();
    [MAGIC, &hash.to_be_bytes(), &[0; 16], &[7; 16], &numbers, &[0; 80]].concat()
}

/// Sends a hello, and returns the kinds of the replies.
fn replies(port: u16, hello: &[u8]) -> Vec<u8> {
    let mut stream = connect_again(port);
    stream.write_all(hello).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let mut replies = Vec::new();
    stream.read_to_end(&mut replies).unwrap();
    replies.chunks(REPLY).map(|reply| reply[24]).collect()
}

const ACCEPTED: u8 = 1;
const MISSING: u8 = 3;
const REFUSED: u8 = 4;

#[test]
fn stranger_who_does_not_know_the_job_is_refused_and_changes_nothing() {
    let port = free_port();
    let launch = |rank| {
        let variables = of_job("a secret", rank, 3, port);
        Launch::from_variables(variables).unwrap().timeout(Duration::from_secs(50))
    };
    thread::scope(|scope| {
        let root = scope.spawn(move || id(&launch(0)));
        drop(connect(port));
        for job in ["", "job/", "job/another", &format!("port/{port}")] {
            for rank in 0..4 {
                assert_eq!(replies(port, &hello(job, rank, 3)), [REFUSED], "{job:?}, rank {rank}");
            }
        }
        connect_again(port).write_all(&[hello("job/another", 1, 3), report(2, b"a lie")].concat()).unwrap();
        let others = [1, 2].map(|rank| scope.spawn(move || id(&launch(rank))));
        let id = root.join().unwrap().unwrap();
        assert_eq!(others.map(|rank| rank.join().unwrap().unwrap()), [id; 2]);
    });
}

/// Returns the report of a rank: 1 for one that has begun, 2 for one that has failed.
fn report(kind: u8, reason: &[u8]) -> Vec<u8> {
    let mut report = [MAGIC, &[kind, 0, 0, 0], reason].concat();
    report.resize(REPORT, 0);
    report
}

#[test]
fn reports_that_are_none_are_refused_and_change_nothing() {
    let port = free_port();
    let launch = move |rank| launch(rank, 3, port, Duration::from_secs(50));
    thread::scope(|scope| {
        let root = scope.spawn(move || id(&launch(0)));
        drop(connect(port));
        let mut other_version = report(2, b"of a later release");
        other_version[7] += 1;
        let reports = [
            report(3, b""),
            // It has no id with which it could have begun.
            report(1, b""),
            other_version,
            vec![0; REPORT],
            vec![0xff; 5 * REPORT],
            report(2, b"not whole")[..REPORT - 1].to_vec(),
        ];
        for report in reports {
            let mut hello = hello(&format!("port/{port}"), 1, 3);
            hello[64..].fill(0xff);
            let mut stream = connect_again(port);
            stream.write_all(&hello).unwrap();
            stream.read_exact(&mut [0; REPLY]).unwrap();
            let _ = stream.write_all(&report);
            let _ = stream.shutdown(Shutdown::Write);
            stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
            let mut rest = Vec::new();
            match stream.read_to_end(&mut rest).map_err(|error| error.kind()) {
                Ok(_) | Err(ErrorKind::ConnectionReset) => assert!(rest.is_empty(), "{rest:?}"),
                Err(error) => panic!("{error}"),
            }
        }
        assert!(!root.is_finished());
        let others = [1, 2].map(|rank| scope.spawn(move || id(&launch(rank))));
        let id = root.join().unwrap().unwrap();
        assert_eq!(others.map(|rank| rank.join().unwrap().unwrap()), [id; 2]);
    });
}

#[test]
fn random_reports_are_a_failure_or_change_nothing() {
    let port = free_port();
    let mut hello = hello("job/7", 1, 2);
    hello[64..].fill(0xff);
    let mut random = Random(31);
    for input in inputs(200) {
        thread::scope(|scope| {
            let launch =
                Launch::from_variables(of_job("7", 0, 2, port)).unwrap().timeout(Duration::from_secs(50));
            let root = scope.spawn(move || id(&launch));
            let started = Instant::now();
            drop(connect(port));
            let mut bytes = report(2, b"no library: libnccl.so.2: not found");
            random.change_all(&mut bytes);
            for report in [bytes, report(2, b"the end")] {
                // The first one may have been the end.
                let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { continue };
                let _ = stream.write_all(&[&hello[..], &report].concat());
                let _ = stream.shutdown(Shutdown::Write);
                let _ = stream.set_read_timeout(Some(Duration::from_secs(30)));
                let _ = stream.read_to_end(&mut Vec::new());
            }
            let error = root.join().unwrap().unwrap_err().to_string();
            assert!(error.starts_with("rank 1 failed: "), "input {input}: {error}");
            assert!(!error.contains(|c: char| c.is_control() && c != '\n'), "input {input}: {error:?}");
            // Who has reported a failure is not waited for.
            assert!(started.elapsed() < Duration::from_secs(20), "input {input}: {:?}", started.elapsed());
        });
    }
}

#[test]
fn stranger_in_a_job_without_a_secret_ends_the_wait_of_nobody_else() {
    let port = free_port();
    let launch = move |rank| launch(rank, 4, port, Duration::from_secs(50));
    thread::scope(|scope| {
        let root = scope.spawn(move || id(&launch(0)));
        drop(connect(port));
        // A constant of all jobs.
        assert_eq!(replies(port, &hello("", 1, 4)), [REFUSED]);
        let first = scope.spawn(move || id(&launch(1)));
        for _ in 0..20 {
            // They take the place of rank 2, for a moment.
            assert_eq!(replies(port, &hello(&format!("port/{port}"), 2, 4)), [ACCEPTED, MISSING]);
        }
        // Nor does a report of its failure hold it.
        let lies = [2, 2].map(|rank| {
            let mut hello = hello(&format!("port/{port}"), rank, 4);
            hello[64..].fill(0xff);
            let mut stream = connect_again(port);
            stream.write_all(&[hello, report(2, b"a lie")].concat()).unwrap();
            stream.read_exact(&mut [0; REPLY]).unwrap();
            stream
        });
        let others = [first, scope.spawn(move || id(&launch(2))), scope.spawn(move || id(&launch(3)))];
        let id = root.join().unwrap().unwrap();
        assert_eq!(others.map(|rank| rank.join().unwrap().unwrap()), [id; 3]);
        drop(lies);
    });
}

#[test]
fn rank_that_waits_no_longer_learns_who_is_missing_and_may_come_again() {
    let port = free_port();
    let launch = move |rank, seconds| launch(rank, 3, port, Duration::from_secs(seconds));
    thread::scope(|scope| {
        let root = scope.spawn(move || id(&launch(0, 50)));
        let error = id(&launch(1, 4)).unwrap_err().to_string();
        assert!(error.starts_with("rank 2 of 3 did not join within "), "{error}");
        assert!(error.ends_with(": according to rank 0"), "{error}");
        let others = [1, 2].map(|rank| scope.spawn(move || id(&launch(rank, 50))));
        let id = root.join().unwrap().unwrap();
        assert_eq!(others.map(|rank| rank.join().unwrap().unwrap()), [id; 2]);
    });
}

#[test]
fn rank_with_another_number_of_ranks_is_refused_at_once() {
    let port = free_port();
    thread::scope(|scope| {
        let root = scope.spawn(move || id(&launch(0, 2, port, Duration::from_secs(50))));
        let started = Instant::now();
        let error = id(&launch(1, 3, port, Duration::from_secs(40))).unwrap_err().to_string();
        let expected = format!("tcp://127.0.0.1:{port}: this is rank 1 of 3; rank 0 expects 2 ranks");
        assert_eq!(error, expected);
        assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
        let rank = id(&launch(1, 2, port, Duration::from_secs(50))).unwrap();
        assert_eq!(root.join().unwrap().unwrap(), rank);
    });
}

#[test]
fn second_process_of_a_rank_is_refused() {
    let port = free_port();
    let root = start(LONG, &by_hand(0, 3, port));
    let first = start(LONG, &by_hand(1, 3, port));
    thread::sleep(Duration::from_millis(700));
    // Neither does its deadline end the exchange of the others.
    start(4_000, &by_hand(1, 3, port)).expect_error("another process has joined as rank 1");
    start(LONG, &by_hand(2, 3, port)).expect_sum(6);
    root.expect_sum(6);
    first.expect_sum(6);
}

#[test]
fn rank_of_another_job_is_refused() {
    let port = free_port();
    let root = start(LONG, &of_job("mine", 0, 2, port));
    start(4_000, &of_job("yours", 1, 2, port)).expect_error("it is of another job");
    start(LONG, &of_job("mine", 1, 2, port)).expect_sum(3);
    root.expect_sum(3);
}

#[test]
fn refusal_is_the_error_also_if_the_deadline_cuts_a_later_attempt_short() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        let mut open = Vec::new();
        for mut stream in listener.incoming().flatten() {
            let mut hello = [0; 148];
            stream.read_exact(&mut hello).unwrap();
            if open.is_empty() {
                let reply = [MAGIC, &hello[40..56], &[4, 0, 0, 0, 1, 0, 0, 0], &[0; 1024]].concat();
                stream.write_all(&reply).unwrap();
            }
            open.push(stream);
        }
    });
    let error = id(&launch(1, 2, port, Duration::from_secs(2))).unwrap_err().to_string();
    assert!(error.ends_with("it is of another job"), "{error}");
}

/// Something else listens at the address of rank 0: it answers with garbage, or not at all.
#[test]
fn garbage_from_the_root_is_an_error_by_the_deadline() {
    let answers: [&[u8]; 4] = [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", &[0xff; REPLY], &[0; 5000]];
    for answer in answers {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        thread::spawn(move || {
            let mut open = Vec::new();
            for mut stream in listener.incoming().flatten() {
                let _ = stream.write_all(answer);
                open.push(stream);
            }
        });
        let started = Instant::now();
        let error = id(&launch(1, 2, port, Duration::from_millis(800))).unwrap_err().to_string();
        assert!(error.starts_with("rank 0 of 2 did not join within "), "{error}");
        assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    }
}

/// Hellos of ranks, changed, of which some are still those of a rank: the ranks that are left out come to no harm.
#[test]
fn random_hellos_are_answered_or_refused_and_the_root_goes_on() {
    let port = free_port();
    thread::scope(|scope| {
        let root = scope.spawn(move || id(&launch(0, 40, port, Duration::from_secs(3000))));
        drop(connect(port));
        let mut random = Random(23);
        for input in inputs(2_000) {
            let mut bytes = hello(&format!("port/{port}"), random.next() as u32 % 45, 40);
            random.change_all(&mut bytes);
            let mut stream = connect_again(port);
            let _ = stream.write_all(&bytes);
            if random.below(2) == 0 {
                let _ = stream.shutdown(Shutdown::Write);
                stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
                let mut reply = Vec::new();
                match stream.read_to_end(&mut reply).map_err(|error| error.kind()) {
                    Ok(_) | Err(ErrorKind::ConnectionReset) => {}
                    Err(error) => panic!("input {input}: {error}"),
                }
                assert!(
                    reply.len() % REPLY == 0 && reply.len() <= 2 * REPLY,
                    "input {input}: {} bytes",
                    reply.len()
                );
            }
        }
        assert!(!root.is_finished());
        // Still another rank is answered as before.
        assert_eq!(replies(port, &hello(&format!("port/{port}"), 40, 40)), [REFUSED]);
        end(port, root);
    });
}

/// Ends the exchange of 40 ranks, of which none has come, without waiting for it.
fn end<T>(port: u16, root: thread::ScopedJoinHandle<'_, T>) {
    let streams: Vec<TcpStream> = (1..40)
        .map(|rank| {
            let mut bytes = hello(&format!("port/{port}"), rank, 40);
            bytes[64..].fill(0xff);
            let mut stream = connect_again(port);
            stream.write_all(&bytes).unwrap();
            stream
        })
        .collect();
    for mut stream in streams {
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream.read_exact(&mut [0; 2 * REPLY]).unwrap();
    }
    root.join().unwrap();
}

/// Replies of rank 0, changed.
#[test]
fn random_replies_are_an_id_or_an_error_by_the_deadline() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        let mut random = Random(29);
        for mut stream in listener.incoming().flatten() {
            let mut hello = [0; 148];
            if stream.read_exact(&mut hello).is_err() {
                continue;
            }
            let reply = |kind: u32, number: u32| {
                let numbers = [kind, number].map(u32::to_le_bytes).concat();
                [MAGIC, &hello[40..56], &numbers, &[3; 1024]].concat()
            };
            let second = [reply(2, 0), reply(3, 1), reply(3, 500), reply(4, 1), reply(1, 0), reply(5, 7)];
            let mut bytes = [reply(1, 0), second[random.below(6)].clone(), reply(6, 0)].concat();
            random.change_all(&mut bytes);
            let _ = stream.write_all(&bytes);
        }
    });
    for input in inputs(100) {
        let started = Instant::now();
        let _ = id(&launch(1, 2, port, Duration::from_millis(30)));
        assert!(started.elapsed() < Duration::from_secs(5), "input {input}: {:?}", started.elapsed());
    }
}

/// Three exchanges in a row, at one address, as ranks create several communicators.
#[test]
fn exchanges_in_a_row_give_each_its_own_id() {
    let port = free_port();
    let ids: Vec<Vec<UniqueId>> = thread::scope(|scope| {
        let start = |rank| {
            scope.spawn(move || {
                let launch = launch(rank, 4, port, Duration::from_secs(50));
                (0..3).map(|_| id(&launch).unwrap()).collect()
            })
        };
        let ranks: Vec<_> = (0..4).map(start).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    assert!(ids.iter().all(|of_rank| *of_rank == ids[0]), "{ids:?}");
    assert!(ids[0][0] != ids[0][1] && ids[0][1] != ids[0][2] && ids[0][0] != ids[0][2], "{ids:?}");
}
