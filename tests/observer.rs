//! Observers: the events they receive, their order, and that a misbehaving observer is harmless.

use std::cell::RefCell;
use std::panic::{Location, panic_any};
use std::rc::Rc;
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::Duration;

use libnccl::communicator::AbortHandle;
use libnccl::observer::{
    CommunicatorEvent, CommunicatorId, Membership, Observer, OperationEnd, OperationStart,
};
use libnccl::window::Signal;
use libnccl::{Communicator, Config, Error, Nccl, ReduceOp, StreamRef, UniqueId};
use libnccl_observe::Recorder;
use libnccl_test_support::init_in_group;

const STREAM: StreamRef<'static> = StreamRef::DEFAULT;

/// Records events as text.
#[derive(Default)]
struct Diary(Mutex<Vec<String>>);

impl Diary {
    fn write(&self, line: String) {
        self.0.lock().unwrap().push(line);
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl Observer for Diary {
    fn on_start(&self, start: &OperationStart<'_>) {
        let group = start.group().map_or_else(String::new, |group| format!(" in the group of {group}"));
        self.write(format!("{} {}{group}", start.number(), start.operation().name));
    }

    fn on_end(&self, end: &OperationEnd<'_>) {
        let result = if end.result.is_ok() { "done" } else { "failed" };
        self.write(format!("{} to {} {result}", end.first, end.last));
    }

    fn on_communicator(&self, communicator: &Membership, event: CommunicatorEvent) {
        self.write(format!("rank {} of {}: {event:?}", communicator.rank, communicator.size));
    }
}

enum Event<'a> {
    Start(&'a OperationStart<'a>),
    End(&'a OperationEnd<'a>),
    Communicator(&'a Membership, CommunicatorEvent),
}

/// Calls a function at every event.
struct Each<F>(F);

impl<F: Fn(Event<'_>) + Send + Sync + 'static> Observer for Each<F> {
    fn on_start(&self, start: &OperationStart<'_>) {
        (self.0)(Event::Start(start));
    }

    fn on_end(&self, end: &OperationEnd<'_>) {
        (self.0)(Event::End(end));
    }

    fn on_communicator(&self, communicator: &Membership, event: CommunicatorEvent) {
        (self.0)(Event::Communicator(communicator, event));
    }
}

/// Returns an observer that calls a function.
fn each(act: impl Fn(Event<'_>) + Send + Sync + 'static) -> Arc<dyn Observer> {
    Arc::new(Each(act))
}

/// Returns a communicator of one rank that an observer watches.
fn alone(nccl: &Nccl, config: &Config) -> Communicator {
    nccl.communicator(1, 0, &nccl.unique_id().unwrap()).config(config).init().unwrap()
}

fn observed(nccl: &Nccl) -> (Arc<Diary>, Communicator) {
    let diary = Arc::new(Diary::default());
    let comm = alone(nccl, &Config::new().observer(diary.clone()));
    (diary, comm)
}

#[test]
fn observer_is_notified_of_operations_groups_and_the_lifetime_of_a_communicator() {
    let nccl = libnccl_cpu::nccl();
    let (diary, comm) = observed(&nccl);
    let [mut sum, mut maximum] = [[1_i32; 3], [2; 3]];
    comm.all_reduce_in_place(&mut sum, ReduceOp::Sum, STREAM).unwrap();
    nccl.group(|g| {
        comm.all_reduce_in_place(&mut sum, ReduceOp::Sum, g.stream(STREAM))?;
        comm.all_reduce_in_place(&mut maximum, ReduceOp::Max, g.stream(STREAM))
    })
    .unwrap();
    comm.barrier(&mut [0_u8], STREAM).unwrap();
    comm.synchronize(&STREAM, Duration::from_secs(10)).unwrap();
    comm.destroy().unwrap();
    let expected = [
        "rank 0 of 1: Created",
        "1 all_reduce_in_place",
        "1 to 1 done",
        "2 all_reduce_in_place in the group of 2",
        "3 all_reduce_in_place in the group of 2",
        "2 to 3 done",
        "4 barrier",
        "4 to 4 done",
        "rank 0 of 1: StreamCompleted(0)",
        "rank 0 of 1: Ended",
    ];
    assert_eq!(diary.take(), expected);
}

/// Of buffers that are longer than the sum of the counts, the length counts.
#[test]
fn observer_is_notified_of_the_values_of_a_call() {
    let (nccl, values) = (libnccl_cpu::nccl(), Arc::new(Mutex::new(Vec::new())));
    let noted = values.clone();
    let observer = each(move |event| {
        let Event::Start(start) = event else { return };
        let ends = match (start.peer(), start.source()) {
            (None, None) => String::new(),
            (peer, source) => format!(", peer {peer:?}, source {source:?}"),
        };
        let text = format!(
            "{} of {:?} sends {} ({} bytes), receives {} ({} bytes){ends}",
            start.operation().name,
            start.data_type(),
            start.sent(),
            start.bytes_sent(),
            start.received(),
            start.bytes_received(),
        );
        noted.lock().unwrap().push((text, start.site().unwrap()));
    });
    let config = Config::new().rma_eager_init(true).observer(observer);
    let comm = alone(&nccl, &config);
    let (two, mut five) = ([1_i32; 2], [0_i32; 5]);
    let line = line!();
    comm.signal(0, Signal::default(), STREAM).unwrap();
    comm.reduce(&[1.0; 2], &mut [0.0; 2], ReduceOp::Sum, 0, STREAM).unwrap();
    comm.all_gather_v(&two, &mut five, &[2], STREAM).unwrap();
    comm.reduce_scatter_v(&five, &mut [0_i32; 2], &[2], ReduceOp::Sum, STREAM).unwrap();
    comm.all_to_all_v(&two, &mut five, &[1], &[1], STREAM).unwrap();
    comm.gather_v(&two, &mut five, &[2], 0, STREAM).unwrap();
    comm.scatter_v(&five, &mut [0_i32; 2], &[2], 0, STREAM).unwrap();
    let (comms, mut buffers) = (init_in_group(&nccl, 2, &config).unwrap(), [vec![0_i32; 2], vec![0_i32; 5]]);
    let [received_by_0, received_by_1] = &mut buffers;
    nccl.group(|g| {
        comms[0].send_recv(&[1_i32; 5], received_by_0, 1, 1, g.stream(STREAM))?;
        comms[1].send_recv(&two, received_by_1, 0, 0, g.stream(STREAM))
    })
    .unwrap();
    let expected = [
        "signal of None sends 0 (0 bytes), receives 0 (0 bytes), peer Some(0), source None",
        "reduce of Some(Float64) sends 2 (16 bytes), receives 2 (16 bytes), peer Some(0), source None",
        "all_gather_v of Some(Int32) sends 2 (8 bytes), receives 5 (20 bytes)",
        "reduce_scatter_v of Some(Int32) sends 5 (20 bytes), receives 2 (8 bytes)",
        "all_to_all_v of Some(Int32) sends 2 (8 bytes), receives 5 (20 bytes)",
        "gather_v of Some(Int32) sends 2 (8 bytes), receives 5 (20 bytes), peer Some(0), source None",
        "scatter_v of Some(Int32) sends 5 (20 bytes), receives 2 (8 bytes), peer Some(0), source None",
        "send_recv of Some(Int32) sends 5 (20 bytes), receives 2 (8 bytes), peer Some(1), source Some(1)",
        "send_recv of Some(Int32) sends 2 (8 bytes), receives 5 (20 bytes), peer Some(0), source Some(0)",
    ];
    let (texts, sites): (Vec<_>, Vec<&Location<'_>>) = values.lock().unwrap().drain(..).unzip();
    assert_eq!(texts, expected);
    assert!(sites[..7].iter().map(|site| site.line()).eq(line + 1..line + 8), "{sites:?}");
    assert!(sites.iter().all(|site| site.file() == file!()), "{sites:?}");
}

#[test]
fn observer_of_a_borrowed_communicator_is_notified_of_the_end_of_the_borrow() {
    let (nccl, diary) = (libnccl_cpu::nccl(), Arc::new(Diary::default()));
    let owner = alone(&nccl, &Config::new());
    let barrier = |borrowed: &Communicator| {
        borrowed.observe(diary.clone());
        borrowed.barrier(&mut [0_u8], STREAM)
    };
    // SAFETY: live, and used by nothing else as long as it is borrowed.
    unsafe { Communicator::borrow_raw(&nccl, owner.as_raw(), barrier) }.unwrap();
    assert_eq!(diary.take(), ["1 barrier", "1 to 1 done", "rank 0 of 1: Ended"]);
}

#[test]
fn observer_is_not_notified_of_a_refused_operation() {
    let nccl = libnccl_cpu::nccl();
    let (diary, comm) = observed(&nccl);
    diary.take();
    comm.broadcast_in_place(&mut [1_u8], 7, STREAM).unwrap_err();
    nccl.group(|_| {
        comm.barrier(&mut [0_u8], STREAM).unwrap_err();
        Ok(())
    })
    .unwrap();
    let abort = comm.abort_handle();
    abort.abort().unwrap();
    assert!(matches!(comm.barrier(&mut [0_u8], STREAM), Err(Error::Aborted { .. })));
    assert_eq!(diary.take(), ["rank 0 of 1: Aborted"]);
}

#[test]
fn observer_is_notified_once_of_a_failed_group() {
    let nccl = libnccl_cpu::nccl();
    let (diary, comm) = observed(&nccl);
    diary.take();
    let [mut first, mut second, mut third] = [[0_u8]; 3];
    nccl.group(|g| {
        comm.barrier(&mut first, g.stream(STREAM))?;
        comm.barrier(&mut second, g.stream(STREAM))?;
        // Refused, which cancels the group.
        comm.broadcast_in_place(&mut third, 9, g.stream(STREAM))
    })
    .unwrap_err();
    let expected = [
        "1 barrier in the group of 1",
        "2 barrier in the group of 1",
        "1 to 2 failed",
        "rank 0 of 1: Failed",
    ];
    assert_eq!(diary.take(), expected);
}

/// Checks that each end covers exactly the operations that have started and not ended.
#[derive(Default)]
struct Pairs {
    open: Mutex<Vec<u64>>,
    /// The numbers of starts, of ends and of operations that ended.
    seen: Mutex<[u64; 3]>,
    wrong: Mutex<Vec<String>>,
}

impl Observer for Pairs {
    fn on_start(&self, start: &OperationStart<'_>) {
        let (mut open, call) = (self.open.lock().unwrap(), start.call());
        open.push(start.number());
        let first = start.group().unwrap_or(start.number());
        let is_first_of_group = call.is_grouped() && open.len() == 1;
        if open[0] != first || call.is_first_of_group() != is_first_of_group {
            self.wrong.lock().unwrap().push(format!("{start:?} of group {:?}, open {open:?}", start.group()));
        }
        self.seen.lock().unwrap()[0] += 1;
    }

    fn on_end(&self, end: &OperationEnd<'_>) {
        let open = std::mem::take(&mut *self.open.lock().unwrap());
        if open != (end.first..=end.last).collect::<Vec<_>>() {
            self.wrong.lock().unwrap().push(format!("end of {} to {}, open {open:?}", end.first, end.last));
        }
        let mut seen = self.seen.lock().unwrap();
        (seen[1], seen[2]) = (seen[1] + 1, seen[2] + open.len() as u64);
    }
}

/// Runs an operation, a group of three, a group that fails, and an operation; calls `at` before, between and after them.
fn run_groups(nccl: &Nccl, comm: &Communicator, at: impl Fn(usize)) {
    let (mut buffers, sum) = ([[1_i32]; 3], ReduceOp::Sum);
    at(0);
    comm.all_reduce_in_place(&mut buffers[0], sum, STREAM).unwrap();
    at(1);
    nccl.group(|g| {
        for (point, buffer) in (2..).zip(&mut buffers) {
            at(point);
            comm.all_reduce_in_place(buffer, sum, g.stream(STREAM))?;
        }
        at(5);
        Ok(())
    })
    .unwrap();
    at(6);
    nccl.group(|g| {
        for (point, buffer) in (7..9).zip(&buffers) {
            at(point);
            comm.send(buffer, 0, g.stream(STREAM))?;
        }
        at(9);
        Ok(())
    })
    .unwrap_err();
    at(10);
    comm.all_reduce_in_place(&mut [1_i32], sum, STREAM).unwrap_err();
    at(11);
}

/// The number of operations that start at each of the points of `run_groups` or later. The last one is refused.
const STARTED_FROM: [u64; 12] = [6, 5, 5, 4, 3, 2, 2, 2, 1, 0, 0, 0];

#[test]
fn observer_added_at_each_point_of_a_group_sees_starts_and_ends_in_pairs() {
    let nccl = libnccl_cpu::nccl();
    for (point, started) in STARTED_FROM.into_iter().enumerate() {
        for earlier in [None, Some(Arc::new(Pairs::default()))] {
            let mut config = Config::new();
            if let Some(earlier) = &earlier {
                config = config.observer(earlier.clone());
            }
            let comm = alone(&nccl, &config);
            let added = Arc::new(Pairs::default());
            let recorder = Recorder::new(comm.membership().clone(), 16);
            run_groups(&nccl, &comm, |now| {
                if now == point {
                    comm.observe(added.clone());
                    comm.observe(Arc::new(recorder.clone()));
                }
            });
            for (pairs, started) in [(Some(&added), started), (earlier.as_ref(), STARTED_FROM[0])] {
                let Some(pairs) = pairs else { continue };
                assert_eq!(*pairs.wrong.lock().unwrap(), [""; 0], "point {point}");
                let [starts, _, ended] = *pairs.seen.lock().unwrap();
                assert_eq!([starts, ended], [started; 2], "point {point}");
            }
            let state = recorder.to_json("test");
            assert!(!state.contains("in a call"), "point {point}: {state}");
        }
    }
}

/// At the start and at the end of an operation in a group.
#[test]
fn observer_added_by_an_observer_sees_starts_and_ends_in_pairs() {
    thread_local! {
        // An observer may not contain a communicator.
        static OBSERVED: RefCell<Option<Rc<Communicator>>> = const { RefCell::new(None) };
    }
    let (nccl, added) = (libnccl_cpu::nccl(), [(); 2].map(|()| Arc::new(Pairs::default())));
    let [at_start, at_end] = added.clone();
    let add = |pairs: &Arc<Pairs>| OBSERVED.with_borrow(Clone::clone).unwrap().observe(pairs.clone());
    let adds = each(move |event| match event {
        Event::Start(start) if start.number() == 2 => add(&at_start),
        Event::End(end) if end.last == 4 => add(&at_end),
        _ => {}
    });
    let comm = Rc::new(alone(&nccl, &Config::new().observer(adds)));
    OBSERVED.set(Some(comm.clone()));
    run_groups(&nccl, &comm, |_| ());
    for pairs in added {
        assert_eq!(*pairs.wrong.lock().unwrap(), [""; 0]);
        let [starts, _, ended] = *pairs.seen.lock().unwrap();
        assert!(starts == ended && starts > 0, "{starts}");
    }
}

#[test]
fn children_inherit_observers_unless_they_have_their_own() {
    let nccl = libnccl_cpu::nccl();
    let (diary, comm) = observed(&nccl);
    diary.take();
    let child = comm.split(Some(0), 0).init().unwrap().unwrap();
    assert_eq!(diary.take(), ["rank 0 of 1: Created"]);
    child.barrier(&mut [0_u8], STREAM).unwrap();
    assert_eq!(diary.take(), ["1 barrier", "1 to 1 done"]);
    let own = Arc::new(Diary::default());
    let config = Config::new().observer(own.clone());
    let other = comm.split(Some(0), 0).config(&config).init().unwrap().unwrap();
    other.barrier(&mut [0_u8], STREAM).unwrap();
    assert_eq!(diary.take(), [""; 0]);
    assert_eq!(own.take(), ["rank 0 of 1: Created", "1 barrier", "1 to 1 done"]);
}

#[test]
fn abort_handle_finds_an_observer_by_its_type() {
    let config = Config::new().observer(each(|_| ())).observer(Arc::new(Diary::default()));
    let comm = alone(&libnccl_cpu::nccl(), &config);
    let handle = comm.abort_handle();
    assert!(handle.observer::<Diary>().is_some());
    assert!(handle.observer::<Each<fn(Event<'_>)>>().is_none());
}

#[test]
fn communicator_members_and_children_share_an_identity() {
    let (nccl, members) = (libnccl_cpu::nccl(), Arc::new(Mutex::new(Vec::<Membership>::new())));
    let seen = members.clone();
    let observer = each(move |event| {
        if let Event::Communicator(communicator, CommunicatorEvent::Created) = event {
            seen.lock().unwrap().push(communicator.clone());
        }
    });
    let id = nccl.unique_id().unwrap();
    let config = Config::new().name("gradients").observer(observer);
    thread::scope(|scope| {
        for rank in 0..2 {
            let (nccl, config) = (&nccl, &config);
            scope.spawn(move || {
                let comm = nccl.communicator(2, rank, &id).config(config).init().unwrap();
                drop(comm.split(Some(0), 0).init().unwrap());
            });
        }
    });
    let members = members.lock().unwrap();
    let parent = CommunicatorId::of_unique_id(&id);
    let child = members.iter().find(|one| one.parent == Some(parent)).and_then(|one| one.id).unwrap();
    let count = |id, parent| members.iter().filter(|one| (one.id, one.parent) == (Some(id), parent)).count();
    assert_eq!((count(parent, None), count(child, Some(parent)), members.len()), (2, 2, 4), "{members:?}");
    assert_ne!(parent, child);
    assert!(members.iter().all(|one| one.size == 2 && one.name.as_deref() == Some("gradients")));
    assert_ne!(parent, CommunicatorId::of_unique_id(&UniqueId::from([7; UniqueId::BYTES])));
    let ids: Vec<_> = nccl.init_all(&[0, 1]).unwrap().iter().map(|comm| comm.membership().id).collect();
    assert!(ids[0].is_some() && ids[0] == ids[1], "{ids:?}");
}

#[test]
fn panic_of_an_observer_does_no_harm_even_if_its_payload_panics() {
    struct Payload;
    impl Drop for Payload {
        fn drop(&mut self) {
            panic!("at the drop of a payload");
        }
    }
    let nccl = libnccl_cpu::nccl();
    let diary = Arc::new(Diary::default());
    let panics = each(|_| panic_any(Payload));
    let config = Config::new().observer(panics).observer(diary.clone());
    let comm = alone(&nccl, &config);
    let mut sum = [1; 2];
    comm.all_reduce_in_place(&mut sum, ReduceOp::Sum, STREAM).unwrap();
    nccl.group(|g| comm.all_reduce_in_place(&mut sum, ReduceOp::Sum, g.stream(STREAM))).unwrap();
    assert_eq!(sum, [1; 2]);
    comm.destroy().unwrap();
    // The one after it received every event.
    assert_eq!(diary.take().len(), 6);
}

#[test]
fn observer_that_uses_communicators_does_no_harm() {
    let nccl = libnccl_cpu::nccl();
    let (other, results) = (Mutex::new(alone(&nccl, &Config::new())), Arc::new(Mutex::new(Vec::new())));
    let pushed = results.clone();
    let comm = alone(
        &nccl,
        &Config::new().observer(each(move |event| {
            if matches!(event, Event::Start(_)) {
                let created = libnccl_cpu::nccl().init_all(&[0]);
                let result = other.lock().unwrap().barrier(&mut [0_u8], STREAM);
                pushed.lock().unwrap().extend([created.map(drop), result]);
            }
        })),
    );
    let mut buffer = [0_u8];
    comm.barrier(&mut buffer, STREAM).unwrap();
    nccl.group(|g| comm.barrier(&mut buffer, g.stream(STREAM))).unwrap();
    let results = results.lock().unwrap();
    let refused = |result: &libnccl::Result<()>| matches!(result, Err(Error::InvalidUsage { .. }));
    assert_eq!(results.iter().map(refused).collect::<Vec<_>>(), [false, false, true, true], "{results:?}");
}

#[test]
fn observer_that_aborts_its_own_communicator_ends_it_after_the_call() {
    let (nccl, handle, diary) = (libnccl_cpu::nccl(), Arc::new(OnceLock::new()), Arc::new(Diary::default()));
    let own: Arc<OnceLock<AbortHandle>> = handle.clone();
    let aborting = each(move |event| {
        if matches!(event, Event::Start(_)) {
            own.get().unwrap().abort().unwrap();
        }
    });
    let comm = alone(&nccl, &Config::new().observer(aborting).observer(diary.clone()));
    handle.set(comm.abort_handle()).unwrap();
    let _ = comm.barrier(&mut [0_u8], STREAM);
    assert!(matches!(comm.barrier(&mut [0_u8], STREAM), Err(Error::Aborted { .. })));
    let events = diary.take();
    assert!(events.contains(&"rank 0 of 1: Aborted".to_owned()) && events[1] == "1 barrier", "{events:?}");
    assert!(events.last().unwrap().starts_with("1 to 1"), "{events:?}");
}

#[test]
fn process_observer_is_given_to_later_communicators() {
    let nccl = libnccl_cpu::nccl();
    let name = "observed by the process";
    let [diary, own] = [(); 2].map(|()| Arc::new(Diary::default()));
    let before = alone(&nccl, &Config::new().name(name));
    let given = diary.clone();
    libnccl::observer::observe(|_| panic!("while an observer is made"));
    libnccl::observer::observe(move |communicator| {
        (communicator.name.as_deref() == Some(name)).then(|| given.clone() as Arc<dyn Observer>)
    });
    before.barrier(&mut [0_u8], STREAM).unwrap();
    let comms = init_in_group(&nccl, 1, &Config::new().name(name).observer(own.clone())).unwrap();
    comms[0].barrier(&mut [0_u8], STREAM).unwrap();
    for diary in [diary, own] {
        assert_eq!(diary.take(), ["rank 0 of 1: Created", "1 barrier", "1 to 1 done"]);
    }
}

#[test]
fn observers_are_part_of_the_options() {
    let observer: Arc<dyn Observer> = Arc::new(Diary::default());
    let config = Config::new().observer(observer.clone());
    assert_eq!(config, config.clone());
    assert_ne!(config, Config::new());
    assert_ne!(config, Config::new().observer(Arc::new(Diary::default())));
}

#[test]
fn drop_of_a_communicator_survives_its_observers() {
    struct Panics;
    impl Observer for Panics {}
    impl Drop for Panics {
        fn drop(&mut self) {
            panic!("while an observer is dropped");
        }
    }
    let comm = alone(&libnccl_cpu::nccl(), &Config::new());
    comm.observe(Arc::new(Panics));
    comm.destroy().unwrap();
    // Enough to overflow the stack if each drop were nested in another.
    let comm = alone(&libnccl_cpu::nccl(), &Config::new());
    let observer: Arc<dyn Observer> = Arc::new(Diary::default());
    (0..10_000).for_each(|_| comm.observe(observer.clone()));
    std::thread::Builder::new().stack_size(128 << 10).spawn(|| drop(comm)).unwrap().join().unwrap();
}

#[test]
fn timeout_of_an_observed_operation_names_its_number_and_ends_it() {
    let diary = Arc::new(Diary::default());
    let config = Config::new().timeout(Duration::from_millis(400)).observer(diary.clone());
    let comms = init_in_group(&libnccl_cpu::nccl(), 2, &config).unwrap();
    diary.take();
    let error = comms[0].barrier(&mut [0_u8], STREAM).unwrap_err().to_string();
    assert!(error.starts_with("barrier, operation 1 on rank 0 of 2: not done after "), "{error}");
    let expected = ["1 barrier", "rank 0 of 2: TimedOut", "rank 0 of 2: Aborted", "1 to 1 failed"];
    assert_eq!(diary.take(), expected);
}
