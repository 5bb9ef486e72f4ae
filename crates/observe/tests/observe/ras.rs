//! The feature `ras`: the client against services that respond as NCCL does, and against hostile ones.

mod service;
mod verdicts;

use std::net::TcpListener;
use std::thread;
use std::time::{Duration, Instant};

use libnccl::Version;
use libnccl_observe::ras::{EventGroup, RasClient, RasError};
use libnccl_test_support::random_inputs::inputs;
use service::{Service, Step};

/// The time by which a request on a busy machine may exceed its timeout.
const GRACE: Duration = Duration::from_secs(5);

const TEXT: &str = "NCCL version 2.32.3 compiled with CUDA 13.0\n\nErrors\n======\n\nWarnings\n========\n\n";
const JSON: &str = "{ \"nccl_version\": \"2.32.3\",\n \"communicators\": [\n\n ] }\n";

fn client(service: &Service) -> RasClient {
    RasClient::new(&service.address()).expect("an address").timeout(Duration::from_secs(8))
}

/// The steps of a service that replies to these requests, without newlines.
fn replying(replies: &[(&'static str, &'static str)]) -> Vec<Step> {
    replies
        .iter()
        .flat_map(|(request, reply)| [Step::Expect(request), Step::Send(reply.as_bytes())])
        .collect()
}

/// The steps of a service that replies to a handshake, and then to these requests.
fn greeted(replies: &[(&'static str, &'static str)]) -> Vec<Step> {
    let hello = [("CLIENT PROTOCOL 2", "SERVER PROTOCOL 2\n"), ("TIMEOUT 1", "OK\n")];
    replying(&[&hello, replies].concat())
}

const JSON_FORMAT: (&str, &str) = ("SET FORMAT json", "OK\n");

/// Starts a service that takes these steps after the replies.
fn service(replies: &[(&'static str, &'static str)], steps: &[Step]) -> Service {
    Service::start([greeted(replies), steps.to_vec()].concat())
}

#[test]
fn reports_are_read_to_their_ends() {
    let (start, end) = TEXT.split_at(20);
    let parts = [Step::Pause, Step::Send(end.as_bytes())];
    assert_eq!(client(&service(&[("STATUS", start)], &parts)).status().unwrap(), TEXT);
    assert_eq!(client(&service(&[("VERBOSE STATUS", start)], &parts)).verbose_status().unwrap(), TEXT);
    let json = service(&[JSON_FORMAT, ("STATUS", JSON)], &[]);
    assert_eq!(client(&json).report().unwrap().nccl_version, "2.32.3");
}

#[test]
fn diagnostics_and_profiler_mask_are_served() {
    let line = "10.0.0.1:7 NCCL DIAG === RAS Diagnostics ===\n";
    assert_eq!(client(&service(&[("DIAGNOSTICS", line)], &[])).diagnostics().unwrap(), line);
    let mask = service(&[("CONTROL PROFILER_MASK coll,p2p", "OK\n")], &[]);
    client(&mask).set_profiler_mask("coll,p2p").unwrap();
    let reply = "ERROR: Invalid profiler mask value 'x'\n";
    let mask = service(&[("CONTROL PROFILER_MASK x", reply)], &[Step::Silence]);
    let refused = client(&mask).set_profiler_mask("x").unwrap_err();
    let text = "CONTROL PROFILER_MASK x: the job replied: ERROR: Invalid profiler mask value 'x'";
    assert_eq!(refused.to_string(), text);
    let blank = client(&Service::start(vec![])).set_profiler_mask("all\nSTATUS").unwrap_err();
    assert!(matches!(blank, RasError::Refused { .. }), "{blank}");
}

#[test]
fn monitor_returns_events_and_the_end_of_the_process() {
    const EVENT: &str = "{\n  \"timestamp\": \"2026-11-22 19:08:23\",\n  \"group\": \"LIFECYCLE\",\n  \"event\": \"PEER_DEAD\",\n  \
        \"peer\": {\n    \"host\": \"10.0.0.1\",\n    \"pid\": 7,\n    \"cuda_devs\": [3],\n    \"nvml_devs\": [3]\n  },\n  \
        \"details\": \"\"\n}\n";
    let (start, end) = EVENT.split_at(70);
    let [event, start, end] = [EVENT, start, end].map(|text| Step::Send(text.as_bytes()));
    let steps = [event, start, Step::Pause, end, Step::Pause];
    let service = service(&[JSON_FORMAT, ("MONITOR lifecycle,trace", "OK\n")], &steps);
    let mut monitor = client(&service).monitor(&[EventGroup::Lifecycle, EventGroup::Trace]).unwrap();
    for _ in 0..2 {
        let event = monitor.next_event(GRACE).unwrap().expect("an event");
        assert_eq!(
            event.to_string(),
            "[2026-11-22 19:08:23] PEER_DEAD: Process 7 on node 10.0.0.1 managing GPU 3"
        );
    }
    assert_eq!(monitor.next_event(Duration::from_millis(1)).unwrap(), None);
    assert!(matches!(monitor.next_event(GRACE), Err(RasError::Closed { .. })));
}

#[test]
fn request_that_an_older_nccl_lacks_is_unsupported_with_the_version() {
    let json = service(&[("SET FORMAT json", "ERROR: Unknown command SET FORMAT json\n")], &[Step::Silence]);
    let (request, since) = ("SET FORMAT json".into(), Version::new(2, 28, 7));
    assert_eq!(client(&json).report().unwrap_err(), RasError::Unsupported { request, since });
    let diagnostics = service(&[("DIAGNOSTICS", "ERROR: Unknown command DIAGNOSTICS\n")], &[Step::Silence]);
    let error = client(&diagnostics).diagnostics().unwrap_err().to_string();
    assert!(error.ends_with("does not support this request, which needs 2.31.2 or newer"), "{error}");
}

#[test]
fn port_without_a_process_is_an_immediate_error() {
    let unused = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let began = Instant::now();
    let error = RasClient::new(&unused.to_string()).unwrap().report().unwrap_err();
    assert!(matches!(error, RasError::Connect { .. }), "{error}");
    assert!(error.to_string().contains("NCCL_RAS_ENABLE=1"), "{error}");
    assert!(began.elapsed() < GRACE);
}

#[test]
fn process_that_never_replies_is_a_timeout() {
    for service in [Service::start(vec![Step::Silence]), service(&[("STATUS", "NCCL ver")], &[Step::Silence])]
    {
        let timeout = Duration::from_millis(300);
        let began = Instant::now();
        let error = client(&service).timeout(timeout).status().unwrap_err();
        assert!(matches!(error, RasError::Timeout { elapsed, .. } if elapsed >= timeout), "{error}");
        assert!(began.elapsed() < timeout + GRACE);
    }
}

#[test]
fn request_reaches_another_process_if_some_are_stopped() {
    let steps = greeted(&[("STATUS", TEXT)]);
    let service = Service::start_with(vec![vec![Step::Silence], vec![Step::Silence], steps]);
    assert_eq!(client(&service).status().unwrap(), TEXT);
}

#[test]
fn connection_that_ends_early_is_an_error_with_the_request() {
    let hello = "CLIENT PROTOCOL 2";
    let closed = [
        (vec![], "CLIENT PROTOCOL 2: "),
        (replying(&[(hello, "SERVER PRO")]), "CLIENT PROTOCOL 2: "),
        (greeted(&[("STATUS", "")]), "STATUS: "),
        (greeted(&[("STATUS", &TEXT[..60])]), "STATUS: "),
        (greeted(&[("STATUS", "NCCL\n\nWarnings\n========\n\n")]), "STATUS: "),
    ];
    for (steps, request) in closed {
        let error = client(&Service::start(steps)).status().unwrap_err();
        assert!(matches!(error, RasError::Closed { .. }), "{error}");
        assert!(error.to_string().starts_with(request), "{error}");
    }
    let json = service(&[JSON_FORMAT, ("STATUS", "{ \"ncc\n")], &[]);
    let error = client(&json).report().unwrap_err();
    assert!(error.to_string().contains("control character") || error.to_string().contains("EOF"), "{error}");
}

#[test]
fn other_service_on_the_port_is_named_by_its_reply() {
    let greeting =
        |reply| Service::start([replying(&[("CLIENT PROTOCOL 2", reply)]), vec![Step::Silence]].concat());
    let error = client(&greeting("HTTP/1.1 400 Bad Request\r\n\r\n")).report().unwrap_err();
    assert!(matches!(error, RasError::Protocol { .. }), "{error}");
    assert!(
        error.to_string().contains("\"HTTP/1.1 400 Bad Request\\r\"; expected SERVER PROTOCOL"),
        "{error}"
    );
    for number in ["3", "20", "-2", "x", ""] {
        let reply = format!("SERVER PROTOCOL {number}\n").leak();
        let error = client(&greeting(reply)).status().unwrap_err();
        let expected = format!("\"SERVER PROTOCOL {number}\"; expected SERVER PROTOCOL 2");
        assert!(error.to_string().ends_with(&expected), "{error}");
    }
    let error = client(&greeting("x".repeat(100_000).leak())).report().unwrap_err();
    assert!(error.to_string().contains("a line of more than 65536 bytes"), "{error}");
}

#[test]
fn random_replies_are_a_reply_or_an_error_by_the_deadline() {
    let timeout = Duration::from_millis(100);
    let service = Service::random(5);
    for number in inputs(50) {
        let client = RasClient::new(&service.address()).unwrap().timeout(timeout);
        let began = Instant::now();
        let _ = match number % 4 {
            0 => client.status().map(drop),
            1 => client.report().map(drop),
            2 => client.diagnostics().map(drop),
            _ => client.monitor(&[]).and_then(|mut monitor| monitor.next_event(timeout)).map(drop),
        };
        assert!(began.elapsed() < GRACE, "{:?}", began.elapsed());
        thread::yield_now();
    }
}
