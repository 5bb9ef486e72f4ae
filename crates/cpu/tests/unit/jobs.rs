use std::thread;

use super::*;

#[test]
fn outcome_is_the_first_error_or_panic_unless_discarded() {
    for discards in [false, true] {
        let (jobs, (go, wait)) = (Arc::new(Jobs::default()), mpsc::channel::<()>());
        let panics = move || {
            wait.recv().unwrap();
            panic!("on purpose")
        };
        jobs.run(true, panics).unwrap();
        if discards {
            jobs.discard_result();
        }
        jobs.run(false, || Ok(())).unwrap();
        go.send(()).unwrap();
        jobs.wait_idle();
        assert!(!jobs.is_exclusive());
        assert_eq!(jobs.result().err().map(|error| error.text), (!discards).then(|| Error::panic().text));
    }
}

#[test]
fn call_numbers_continue_after_started_and_enqueued_calls() {
    let jobs = StreamJobs::default();
    assert_eq!(jobs.number(4, 2), 5);
    lock(&jobs.counts).enqueued.push_back("one".into());
    assert_eq!(jobs.number(4, 1), 7, "calls 5 and 6 may not have begun");
    lock(&jobs.counts).enqueued.clear();
    assert_eq!(jobs.number(9, 1), 10, "two calls on the host since");
}

#[test]
fn wait_ends_when_no_job_runs_or_none_is_enqueued() {
    let jobs = Arc::new(StreamJobs::default());
    lock(&jobs.counts).enqueued.extend(["one".into(), "two".into()]);
    let running = jobs.begin(None);
    let (one, two) = (Arc::clone(&jobs), Arc::clone(&jobs));
    let not_running = thread::spawn(move || one.wait_not_running());
    let idle = thread::spawn(move || two.wait_idle());
    assert!(!jobs.is_idle());
    drop(running);
    not_running.join().unwrap();
    assert!(!idle.is_finished(), "one is enqueued");
    assert_eq!(jobs.discarded(), ["two".into()]);
    drop(jobs.begin(None));
    idle.join().unwrap();
    assert!(jobs.is_idle());
    // A job of a graph counts while it runs.
    let running = jobs.begin(Some(1));
    assert!(!jobs.is_idle());
    drop(running);
    assert!(jobs.is_idle());
}
