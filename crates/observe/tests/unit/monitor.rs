use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use super::{Connection, Monitor, first_event};
use libnccl_test_support::random_inputs::{Random, inputs};

const EVENTS: &str = r#"{
  "timestamp": "2026-11-22 19:08:23",
  "group": "LIFECYCLE",
  "event": "PEER_DEAD",
  "peer": {
    "host": "10.0.0.1",
    "pid": 29497,
    "cuda_devs": [2, 3],
    "nvml_devs": [2, 3]
  },
  "details": ""
}
{
  "timestamp": "2026-11-22 19:08:24",
  "group": "TRACE",
  "event": "PEER_CONNECTING",
  "peer": { "addr": "10.0.0.1<37429>" },
  "details": "attempt 2",
  "new_field": [{}]
}
"#;

#[test]
fn events_are_split_where_objects_end_and_awaited_until_then() {
    let (first, length) = first_event(EVENTS.as_bytes()).unwrap().unwrap();
    let text = "[2026-11-22 19:08:23] PEER_DEAD: Process 29497 on node 10.0.0.1 managing GPUs 2,3";
    assert_eq!(first.to_string(), text);
    let (second, _) = first_event(&EVENTS.as_bytes()[length..]).unwrap().unwrap();
    assert_eq!(second.to_string(), "[2026-11-22 19:08:24] PEER_CONNECTING: 10.0.0.1<37429> attempt 2");
    for end in 0..length {
        assert_eq!(first_event(&EVENTS.as_bytes()[..end]).unwrap(), None, "{end}");
    }
}

#[test]
fn blanks_between_events_are_not_kept() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut service, _) = listener.accept().unwrap();
    service.write_all(&[b' '; 1 << 16]).unwrap();
    let mut monitor = Monitor::new(Connection::new(stream, "the service".into()));
    assert_eq!(monitor.next_event(Duration::from_millis(500)).unwrap(), None);
    assert_eq!(monitor.connection.buffer(), b"");
}

#[test]
fn random_events_are_parsed_or_refused() {
    let mut random = Random(3);
    for _ in inputs(20_000) {
        let mut bytes = EVENTS.as_bytes().to_vec();
        random.change(&mut bytes);
        bytes.truncate(random.below(bytes.len()));
        if let Ok(Some((_, length))) = first_event(&bytes) {
            assert!(length <= bytes.len());
        }
    }
}
