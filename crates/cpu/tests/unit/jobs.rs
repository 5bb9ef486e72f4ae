use std::thread;

use super::*;

#[test]
fn job_that_panics_is_an_error_and_the_next_runs() {
    let jobs = Arc::new(Jobs::default());
    let (go, wait) = mpsc::channel();
    let (sender, receiver) = mpsc::channel();
    let panics = move || {
        wait.recv().unwrap();
        panic!("on purpose")
    };
    jobs.run(true, panics).unwrap();
    let succeeds = move || {
        sender.send(()).unwrap();
        Ok(())
    };
    jobs.run(false, succeeds).unwrap();
    go.send(()).unwrap();
    receiver.recv().unwrap();
    jobs.wait_idle();
    assert!(!jobs.is_exclusive());
    assert_eq!(jobs.result().unwrap_err().text, Error::panic().text);
}

#[test]
fn discarded_result_of_jobs_in_progress_is_not_reported() {
    let jobs = Arc::new(Jobs::default());
    let (go, wait) = mpsc::channel();
    let fails = move || {
        wait.recv().unwrap();
        Err(Error::usage("discarded"))
    };
    jobs.run(false, fails).unwrap();
    jobs.discard_result();
    jobs.run(false, || Ok(())).unwrap();
    go.send(()).unwrap();
    jobs.wait_idle();
    assert!(jobs.result().is_ok());
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
}

#[test]
fn job_of_a_graph_counts_while_it_runs() {
    let jobs = StreamJobs::default();
    for _launch in 0..2 {
        assert!(jobs.is_idle());
        let running = jobs.begin(Some(1));
        assert!(!jobs.is_idle());
        drop(running);
    }
    jobs.wait_idle();
}
