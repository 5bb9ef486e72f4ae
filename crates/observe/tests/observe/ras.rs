//! The feature `ras`: the client against services that answer as NCCL does, and against ones that do not.

mod service;
mod verdicts;

use std::net::TcpListener;
use std::thread;
use std::time::{Duration, Instant};

use libnccl::Version;
use libnccl_observe::ras::{EventGroup, RasClient, RasError};
use libnccl_test_support::random_inputs::inputs;
use service::{Service, Step};

/// The time that a request on a machine with other work may take more than its timeout.
const GRACE: Duration = Duration::from_secs(5);

const TEXT: &str = "NCCL version 2.32.3 compiled with CUDA 13.0\n\nErrors\n======\n\nWarnings\n========\n\n";
const JSON: &str = "{ \"nccl_version\": \"2.32.3\",\n \"communicators\": [\n\n ] }\n";

fn client(service: &Service) -> RasClient {
    RasClient::new(&service.address()).expect("an address").timeout(Duration::from_secs(8))
}

/// The steps of a service that answers a handshake.
fn greeted(steps: &[Step]) -> Vec<Step> {
    let hello = [Step::Expect("CLIENT PROTOCOL 2"), Step::Send(b"SERVER PROTOCOL 2\n")];
    let timeout = [Step::Expect("TIMEOUT 1"), Step::Send(b"OK\n")];
    hello.into_iter().chain(timeout).chain(steps.iter().copied()).collect()
}

#[test]
fn report_as_text_is_read_to_its_end() {
    let parts = [Step::Send(&TEXT.as_bytes()[..20]), Step::Pause, Step::Send(&TEXT.as_bytes()[20..])];
    let status = Service::start(greeted(&[&[Step::Expect("STATUS")], &parts[..]].concat()));
    assert_eq!(client(&status).status().unwrap(), TEXT);
    let verbose = Service::start(greeted(&[&[Step::Expect("VERBOSE STATUS")], &parts[..]].concat()));
    assert_eq!(client(&verbose).verbose_status().unwrap(), TEXT);
}

#[test]
fn report_as_json_is_parsed() {
    let json = [
        Step::Expect("SET FORMAT json"),
        Step::Send(b"OK\n"),
        Step::Expect("STATUS"),
        Step::Send(JSON.as_bytes()),
    ];
    let service = Service::start(greeted(&json));
    assert_eq!(client(&service).report().unwrap().nccl_version, "2.32.3");
}

#[test]
fn diagnostics_and_profiler_mask_are_answered() {
    let line = "10.0.0.1:7 NCCL DIAG === RAS Diagnostics ===\n";
    let service = Service::start(greeted(&[Step::Expect("DIAGNOSTICS"), Step::Send(line.as_bytes())]));
    assert_eq!(client(&service).diagnostics().unwrap(), line);
    let mask = [Step::Expect("CONTROL PROFILER_MASK coll,p2p"), Step::Send(b"OK\n")];
    client(&Service::start(greeted(&mask))).set_profiler_mask("coll,p2p").unwrap();
    let mask = [
        Step::Expect("CONTROL PROFILER_MASK x"),
        Step::Send(b"ERROR: Invalid profiler mask value 'x'\n"),
        Step::Silence,
    ];
    let refused = client(&Service::start(greeted(&mask))).set_profiler_mask("x").unwrap_err();
    let text = "CONTROL PROFILER_MASK x: the job answered: ERROR: Invalid profiler mask value 'x'";
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
    let service = Service::start(greeted(&[
        Step::Expect("SET FORMAT json"),
        Step::Send(b"OK\n"),
        Step::Expect("MONITOR lifecycle,trace"),
        Step::Send(b"OK\n"),
        Step::Send(EVENT.as_bytes()),
        Step::Send(start.as_bytes()),
        Step::Pause,
        Step::Send(end.as_bytes()),
        Step::Pause,
    ]));
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
fn request_that_an_older_nccl_lacks_is_unsupported_with_the_release() {
    let unknown = [
        Step::Expect("SET FORMAT json"),
        Step::Send(b"ERROR: Unknown command SET FORMAT json\n"),
        Step::Silence,
    ];
    let error = client(&Service::start(greeted(&unknown))).report().unwrap_err();
    let (request, since) = ("SET FORMAT json".into(), Version::new(2, 28, 7));
    assert_eq!(error, RasError::Unsupported { request, since });
    let unknown =
        [Step::Expect("DIAGNOSTICS"), Step::Send(b"ERROR: Unknown command DIAGNOSTICS\n"), Step::Silence];
    let error = client(&Service::start(greeted(&unknown))).diagnostics().unwrap_err();
    assert!(
        error.to_string().ends_with("does not know this request, which needs 2.31.2 or newer"),
        "{error}"
    );
}

#[test]
fn port_without_a_process_is_an_error_at_once() {
    let unused = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let began = Instant::now();
    let error = RasClient::new(&unused.to_string()).unwrap().report().unwrap_err();
    assert!(matches!(error, RasError::Connect { .. }), "{error}");
    assert!(error.to_string().contains("NCCL_RAS_ENABLE=1"), "{error}");
    assert!(began.elapsed() < GRACE);
}

#[test]
fn process_that_never_answers_is_a_timeout() {
    for steps in
        [vec![Step::Silence], greeted(&[Step::Expect("STATUS"), Step::Send(b"NCCL ver"), Step::Silence])]
    {
        let service = Service::start(steps);
        let timeout = Duration::from_millis(300);
        let began = Instant::now();
        let error = client(&service).timeout(timeout).status().unwrap_err();
        assert!(matches!(error, RasError::Timeout { elapsed, .. } if elapsed >= timeout), "{error}");
        assert!(began.elapsed() < timeout + GRACE);
    }
}

#[test]
fn request_reaches_another_process_if_some_are_stopped() {
    let steps = greeted(&[Step::Expect("STATUS"), Step::Send(TEXT.as_bytes())]);
    let service = Service::start_with(vec![vec![Step::Silence], vec![Step::Silence], steps]);
    assert_eq!(client(&service).status().unwrap(), TEXT);
}

#[test]
fn connection_that_ends_early_is_an_error_with_the_request() {
    let closed = [
        (vec![], "CLIENT PROTOCOL 2: "),
        (vec![Step::Expect("CLIENT PROTOCOL 2"), Step::Send(b"SERVER PRO")], "CLIENT PROTOCOL 2: "),
        (greeted(&[Step::Expect("STATUS")]), "STATUS: "),
        (greeted(&[Step::Expect("STATUS"), Step::Send(&TEXT.as_bytes()[..60])]), "STATUS: "),
        (greeted(&[Step::Expect("STATUS"), Step::Send(b"NCCL\n\nWarnings\n========\n\n")]), "STATUS: "),
    ];
    for (steps, request) in closed {
        let error = client(&Service::start(steps)).status().unwrap_err();
        assert!(matches!(error, RasError::Closed { .. }), "{error}");
        assert!(error.to_string().starts_with(request), "{error}");
    }
    let json = [
        Step::Expect("SET FORMAT json"),
        Step::Send(b"OK\n"),
        Step::Expect("STATUS"),
        Step::Send(b"{ \"ncc\n"),
    ];
    let error = client(&Service::start(greeted(&json))).report().unwrap_err();
    assert!(error.to_string().contains("control character") || error.to_string().contains("EOF"), "{error}");
}

#[test]
fn other_service_on_the_port_is_named_by_its_answer() {
    let http = [Step::Expect("CLIENT PROTOCOL 2"), Step::Send(b"HTTP/1.1 400 Bad Request\r\n\r\n")];
    let error = client(&Service::start(http.to_vec())).report().unwrap_err();
    assert!(matches!(error, RasError::Protocol { .. }), "{error}");
    assert!(
        error.to_string().contains("\"HTTP/1.1 400 Bad Request\\r\"; expected SERVER PROTOCOL"),
        "{error}"
    );
    for number in ["3", "20", "-2", "x", ""] {
        let answer = format!("SERVER PROTOCOL {number}\n").leak();
        let other = [Step::Expect("CLIENT PROTOCOL 2"), Step::Send(answer.as_bytes())];
        let error = client(&Service::start(other.to_vec())).status().unwrap_err();
        let expected = format!("\"SERVER PROTOCOL {number}\"; expected SERVER PROTOCOL 2");
        assert!(error.to_string().ends_with(&expected), "{error}");
    }
    static LINE: [u8; 100_000] = [b'x'; 100_000];
    let endless = [Step::Expect("CLIENT PROTOCOL 2"), Step::Send(&LINE), Step::Silence];
    let error = client(&Service::start(endless.to_vec())).report().unwrap_err();
    assert!(error.to_string().contains("a line of more than 65536 bytes"), "{error}");
}

#[test]
fn random_answers_are_an_answer_or_an_error_in_time() {
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
