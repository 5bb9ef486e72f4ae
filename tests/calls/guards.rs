//! Guards of buffers: they are made with the operation's stream, and live until NCCL has enqueued the operation.

use std::cell::RefCell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use libnccl::buffer::{Buffer, BufferMut, BufferResult};
use libnccl::config::CollectiveConfig;
use libnccl::error::InvalidArgumentKind;
use libnccl::window::{Signal, WaitSignal};
use libnccl::{CallOptions, Config, Error, ReduceOp, Result, Slice, SliceMut, StreamRef};
use libnccl_test_support::fake_nccl::{FakeNccl, IN_PROGRESS, SUCCESS};

use crate::fixture::{Fixture, id, recv, send, stream, work};

/// A buffer in stream-ordered memory, whose guards record the last call before they are created and dropped.
struct Tensor<'f> {
    fake: &'f FakeNccl,
    name: &'static str,
    events: &'f RefCell<Vec<String>>,
}

/// The guard of a [`Tensor`].
struct Guard<'a>(&'a Tensor<'a>);

impl Tensor<'_> {
    fn record(&self, event: &str) {
        let last = last_call(self.fake);
        self.events.borrow_mut().push(format!("{} {event} after {last}", self.name));
    }

    fn guard<'a>(&'a self, stream: StreamRef<'a>) -> Guard<'a> {
        self.record(&format!("on {:?}", stream.as_raw()));
        Guard(self)
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.0.record("released");
    }
}

impl<'a> Buffer<'a> for &'a Tensor<'_> {
    type Element = f32;
    type Guard = Guard<'a>;

    unsafe fn into_slice(self, stream: StreamRef<'a>) -> BufferResult<(Slice<'a, f32>, Guard<'a>)> {
        Ok((send(3), self.guard(stream)))
    }
}

impl<'a> BufferMut<'a> for &'a mut Tensor<'_> {
    type Element = f32;
    type Guard = Guard<'a>;

    unsafe fn into_slice_mut(self, stream: StreamRef<'a>) -> BufferResult<(SliceMut<'a, f32>, Guard<'a>)> {
        Ok((recv(3), self.guard(stream)))
    }
}

/// Runs `act` with two tensors, and returns the events.
fn events<R>(fixture: &Fixture, act: impl FnOnce(&Tensor<'_>, &mut Tensor<'_>) -> R) -> (R, Vec<String>) {
    let events = RefCell::default();
    let [send, mut recv] = ["send", "recv"].map(|name| Tensor { fake: &fixture.fake, name, events: &events });
    let result = act(&send, &mut recv);
    (result, events.take())
}

const BEFORE: [&str; 2] = ["send on 0x5 after ncclCommCuDevice", "recv on 0x5 after ncclCommCuDevice"];

/// Returns the last call that is not one for the text of an error.
fn last_call(fake: &FakeNccl) -> &'static str {
    let is_text = |function: &str| ["ncclGetErrorString", "ncclGetLastError"].contains(&function);
    fake.calls().iter().rfind(|function| !is_text(function)).copied().unwrap_or_default()
}

fn released(after: &str) -> [String; 2] {
    ["send", "recv"].map(|name| format!("{name} released after {after}"))
}

#[test]
fn guard_lives_until_the_call_returns() {
    for code in [SUCCESS, 3] {
        let fixture = Fixture::new();
        fixture.fake.set_code_once("ncclAllReduce", 0, code);
        let (result, events) =
            events(&fixture, |send, recv| fixture.comm.all_reduce(send, recv, ReduceOp::Sum, stream()));
        assert_eq!(result.is_ok(), code == SUCCESS);
        assert_eq!(events[..2], BEFORE);
        let last = last_call(&fixture.fake);
        assert_eq!(events[2..], released(last), "{events:?}");
        assert!(code != SUCCESS || last == "ncclAllReduce", "{last}");
        fixture.close("ungrouped");
    }
}

#[test]
fn guard_of_call_in_progress_lives_until_it_is_enqueued() {
    let fake = FakeNccl::new();
    let nccl = fake.nccl();
    for (states, timeout, succeeds) in [
        (vec![IN_PROGRESS; 3], Duration::from_secs(600), true),
        (vec![IN_PROGRESS; 1 << 20], Duration::from_millis(30), false),
    ] {
        let config = Config::new().timeout(timeout);
        let comm = nccl.communicator(4, 2, &id(1)).config(&config).init().unwrap();
        let recorded = RefCell::default();
        let tensor = Tensor { fake: &fake, name: "send", events: &recorded };
        fake.set_code_once("ncclSend", 0, IN_PROGRESS);
        fake.set_async_states(states, SUCCESS);
        let result = comm.send(&tensor, 0, stream());
        assert_eq!(result.is_ok(), succeeds, "{result:?}");
        let last = if succeeds { "ncclCommGetAsyncError" } else { "ncclCommAbort" };
        assert_eq!(recorded.borrow().last(), Some(&format!("send released after {last}")));
        fake.set_async_states([], SUCCESS);
    }
}

#[test]
fn guards_of_a_group_live_until_the_shortest_timeout_has_aborted_all_its_members() {
    for timeouts in [[30, 600_000], [600_000, 30]] {
        let fake = FakeNccl::new();
        let nccl = fake.nccl();
        let comms = timeouts.map(|timeout| {
            nccl.communicator(4, 2, &id(1)).timeout(Duration::from_millis(timeout)).init().unwrap()
        });
        let recorded = RefCell::default();
        let tensors = ["first", "second"].map(|name| Tensor { fake: &fake, name, events: &recorded });
        fake.set_async_states([], IN_PROGRESS);
        fake.set_code_once("ncclGroupEnd", 0, IN_PROGRESS);
        let members = comms.iter().zip(&tensors);
        let ended = nccl.group(|g| {
            members.into_iter().try_for_each(|(comm, tensor)| comm.send(tensor, 0, g.stream(stream())))
        });
        assert!(matches!(ended, Err(Error::Timeout { .. })), "{ended:?}");
        assert_eq!(fake.calls().iter().filter(|function| **function == "ncclCommAbort").count(), 2);
        for tensor in ["first", "second"] {
            let released = format!("{tensor} released after ncclCommAbort");
            assert!(recorded.borrow().contains(&released), "{:?}", recorded.borrow());
        }
    }
}

#[test]
fn guard_in_group_lives_until_group_end() {
    /// The code after the operation, in the group.
    type Then = fn(&Fixture) -> Result<()>;
    let cases: [(&str, Option<&str>, Then); 5] = [
        ("success", None, |_| Ok(())),
        ("an end that fails", Some("ncclGroupEnd"), |_| Ok(())),
        ("a call that fails", Some("ncclAllReduce"), |_| Ok(())),
        ("a later error", None, |_| Err(Error::Aborted { call: "the closure" })),
        ("a panic", None, |_| panic!("on purpose")),
    ];
    for ((name, fails, then), is_nested) in cases.into_iter().flat_map(|case| [(case, false), (case, true)]) {
        let fixture = Fixture::new();
        if let Some(function) = fails {
            fixture.fake.set_code_once(function, usize::from(is_nested && function == "ncclGroupEnd"), 1);
        }
        let (result, events) = events(&fixture, |send, recv| {
            catch_unwind(AssertUnwindSafe(|| {
                fixture.nccl.group(|g| {
                    if is_nested {
                        g.group(|g| fixture.comm.all_reduce(send, recv, ReduceOp::Sum, g.stream(stream())))?;
                    } else {
                        fixture.comm.all_reduce(send, recv, ReduceOp::Sum, g.stream(stream()))?;
                    }
                    then(&fixture)
                })
            }))
        });
        let succeeds = matches!(result, Ok(Ok(())));
        assert_eq!(succeeds, name == "success", "{name}");
        assert_eq!(events[2..], released("ncclGroupEnd"), "{name}: {events:?}");
        assert_eq!(fixture.fake.take_started().len(), usize::from(succeeds), "{name}");
        fixture.close(name);
    }
}

#[test]
fn guard_of_refused_operation_is_dropped() {
    let fixture = Fixture::new();
    let (result, events) = events(&fixture, |send, recv| {
        fixture.nccl.simulate(|g| {
            let _ = fixture.comm.broadcast(send, recv, 0, g.stream(stream()));
            fixture.comm.all_reduce_in_place(crate::fixture::recv::<u8>(1), ReduceOp::Sum, g.stream(stream()))
        })
    });
    result.unwrap_err();
    let dropped = released("ncclGroupStart");
    assert!(dropped.iter().all(|event| events[2..].contains(event)), "before the all_reduce: {events:?}");
    fixture.close("refused");
}

/// A buffer of one element, whose conversion is a function that returns the guard.
struct Custom<F>(F);

/// The result of a conversion.
type Prepared<G, E = NotReady> = std::result::Result<G, E>;

impl<'a, G: 'a, E, F> Buffer<'a> for Custom<F>
where
    E: std::error::Error + Send + Sync + 'static,
    F: FnOnce() -> Prepared<G, E> + 'a,
{
    type Element = f32;
    type Guard = G;

    unsafe fn into_slice(self, _: StreamRef<'a>) -> BufferResult<(Slice<'a, f32>, G)> {
        Ok((send(1), (self.0)()?))
    }
}

/// Calls a function when it is dropped.
struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// Returns a buffer whose guard calls a function when it is dropped.
fn guarded<F: FnMut()>(on_drop: F) -> Custom<impl FnOnce() -> Prepared<OnDrop<F>>> {
    Custom(|| Ok(OnDrop(on_drop)))
}

/// An error whose text panics if it is empty.
#[derive(Debug)]
struct NotReady(&'static str);

impl fmt::Display for NotReady {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        assert!(!self.0.is_empty(), "on purpose");
        f.write_str(self.0)
    }
}

impl std::error::Error for NotReady {}

fn not_ready(text: &'static str) -> Custom<impl FnOnce() -> Prepared<()>> {
    Custom(move || Err(NotReady(text)))
}

#[test]
fn buffer_that_is_not_ready_refuses_the_operation_and_its_group() {
    let fixture = Fixture::new();
    let refused = |error: Error| {
        assert!(
            matches!(error, Error::InvalidArgument { kind: InvalidArgumentKind::NotReady, .. }),
            "{error}"
        );
        assert_eq!(error.to_string(), "all_reduce: a buffer is not ready: it is being copied");
    };
    let comm = &fixture.comm;
    let buffer = || not_ready("it is being copied");
    refused(comm.all_reduce(buffer(), recv::<f32>(3), ReduceOp::Sum, stream()).unwrap_err());
    let tenfold = comm.pre_mul_sum(10.0_f32).unwrap();
    refused(comm.all_reduce(buffer(), recv::<f32>(3), &tenfold, stream()).unwrap_err());
    drop(tenfold);
    let ended = fixture.nccl.group(|g| {
        // The error is ignored.
        let _ = comm.all_reduce(buffer(), recv::<f32>(3), ReduceOp::Sum, g.stream(stream()));
        comm.all_reduce(send::<f32>(3), recv::<f32>(3), ReduceOp::Sum, g.stream(stream()))
    });
    refused(ended.unwrap_err());
    assert_eq!(fixture.fake.take_started().len(), 0);
    fixture.close("not ready");
}

#[test]
fn panic_of_a_conversion_or_its_error_leaves_the_communicator_usable() {
    let Fixture { fake, nccl, comm, .. } = &Fixture::new();
    let panics = || Custom(|| -> Prepared<()> { panic!("on purpose") });
    let calls: [&dyn Fn() -> Result<()>; 4] = [
        &|| comm.send(not_ready(""), 0, stream()),
        &|| nccl.group(|g| comm.send(not_ready(""), 0, g.stream(stream()))),
        &|| comm.send(panics(), 0, stream()),
        &|| nccl.group(|g| comm.send(panics(), 0, g.stream(stream()))),
    ];
    for call in calls {
        catch_unwind(AssertUnwindSafe(call)).unwrap_err();
        comm.send(send::<f32>(1), 0, stream()).unwrap();
        // A group still waits for it.
        fake.set_code_once("ncclGroupEnd", 0, IN_PROGRESS);
        fake.set_async_states([IN_PROGRESS], SUCCESS);
        nccl.group(|g| comm.send(send::<f32>(1), 0, g.stream(stream()))).unwrap();
        assert_eq!(fake.async_states_left(), 0);
    }
    comm.abort_handle().abort().unwrap();
    assert!(comm.as_raw().is_null(), "aborted immediately");
}

/// An error whose text is the result of a group.
#[derive(Debug)]
struct UsesNccl(FakeNccl);

impl fmt::Display for UsesNccl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0.nccl().group(|_| Ok(())))
    }
}

impl std::error::Error for UsesNccl {}

#[test]
fn text_of_a_conversions_error_may_use_nccl() {
    let fixture = Fixture::new();
    let Fixture { fake, nccl, comm, .. } = &fixture;
    let buffer = || Custom(|| Err::<(), _>(UsesNccl(fake.clone())));
    for (result, text) in [
        (comm.send(buffer(), 0, stream()), "Ok(())"),
        (
            nccl.group(|g| comm.send(buffer(), 0, g.stream(stream()))),
            "Err(group: a group is open on this thread; only methods of the group can be called inside it)",
        ),
    ] {
        let error = result.unwrap_err().to_string();
        assert!(error.ends_with(&format!("a buffer is not ready: {text}")), "{error}");
        assert_eq!(fake.take_started().len(), 0);
        comm.send(send::<f32>(1), 0, stream()).unwrap();
        assert_eq!(fake.take_started().len(), 1);
    }
    fixture.close("texts");
}

#[test]
fn guard_of_refused_operation_may_use_its_open_group() {
    let fixture = Fixture::new();
    let Fixture { fake, nccl, comm, .. } = &fixture;
    let added = RefCell::default();
    let result = nccl.group(|g| {
        let add = || added.replace(Some(comm.send(send::<f32>(1), 0, g.stream(stream()))));
        let guarded = guarded(move || drop(add()));
        comm.all_reduce(guarded, recv::<f32>(0), ReduceOp::Sum, g.stream(stream()))
    });
    assert!(matches!(result, Err(Error::InvalidArgument { .. })), "{result:?}");
    added.take().unwrap().unwrap();
    assert_eq!(fake.take_started().len(), 0);
}

/// They run outside NCCL, and after the end of their group.
#[test]
fn conversion_and_guard_may_use_the_communicator() {
    let fixture = Fixture::new();
    let Fixture { fake, nccl, comm, .. } = &fixture;
    let uses = || {
        work(comm).unwrap();
        nccl.group(|g| comm.recv(recv::<f32>(1), 0, g.stream(stream()))).unwrap();
    };
    comm.send(guarded(uses), 0, stream()).unwrap();
    let spare = fixture.spare();
    nccl.group(|g| {
        comm.send(guarded(uses), 0, g.stream(stream()))?;
        spare.send(guarded(uses), 0, g.stream(stream()))
    })
    .unwrap();
    let refuses = || {
        uses();
        Err::<(), _>(NotReady("it is being copied"))
    };
    comm.send(Custom(refuses), 0, stream()).unwrap_err();
    assert_eq!(fake.take_started().len(), 3 + 4 * 2);
    drop(spare);
    fixture.close("uses");
}

#[test]
fn panic_of_a_guard_leaves_no_group_open() {
    let Fixture { nccl, comm, .. } = &Fixture::new();
    let panics = || guarded(|| panic!("on purpose"));
    let calls: [&dyn Fn() -> Result<()>; 2] = [&|| comm.send(panics(), 0, stream()), &|| {
        nccl.group(|g| comm.send(panics(), 0, g.stream(stream())))
    }];
    for call in calls {
        catch_unwind(AssertUnwindSafe(call)).unwrap_err();
        nccl.group(|_| Ok(())).unwrap();
        comm.send(send::<f32>(1), 0, stream()).unwrap();
    }
}

#[test]
fn guard_using_its_group_after_the_end_is_refused() {
    let fixture = Fixture::new();
    let Fixture { nccl, comm, fake, .. } = &fixture;
    let errors = RefCell::default();
    let errors = &errors;
    nccl.group(|g| {
        let late = move || {
            let results = [
                comm.send(send::<f32>(1), 0, g.stream(stream())),
                comm.recv(recv::<f32>(1), 0, g.stream(stream())),
                nccl.communicator(4, 2, &id(1)).init_in(g).map(drop),
                g.group(|_| Ok(())),
            ];
            *errors.borrow_mut() = results.map(|result| result.unwrap_err().to_string()).to_vec();
        };
        comm.send(guarded(late), 0, g.stream(stream()))
    })
    .unwrap();
    let expected = ["send", "recv", "init_in", "group"].map(|call| format!("{call}: the group has ended"));
    assert_eq!(errors.take(), expected);
    assert_eq!(fake.take_started().len(), 1);
    fixture.close("after the end");
}

/// NCCL reads options and signals until the end of the group.
#[test]
fn signals_in_a_group_may_be_temporaries() {
    let fixture = Fixture::new();
    let config = CollectiveConfig::new().max_ctas(2).alg_selection("ring");
    fixture
        .nccl
        .group(|g| {
            let on = CallOptions::on(stream()).config(&config);
            fixture.comm.all_reduce_in_place(recv::<f32>(3), ReduceOp::Sum, g.stream(on))?;
            let signal = WaitSignal { count: 1, peer: 0, signal: Signal::default() };
            fixture.comm.wait_signal(&[signal], g.stream(stream()))
        })
        .unwrap();
    fixture.close("temporary");
}

/// This restriction makes another crate's slice safe to use with any communicator.
#[test]
fn device_of_a_slice_restricts_it_and_cannot_be_changed() {
    let fixture = Fixture::new();
    let comm = &fixture.comm;
    let (own, other) = (comm.device(), comm.device() + 1);
    comm.send(send::<f32>(3).on_device(Some(own)), 0, stream()).unwrap();
    let elsewhere = send::<f32>(3).on_device(Some(other));
    for slice in [elsewhere, elsewhere.on_device(None), elsewhere.on_device(Some(own))] {
        let error = comm.send(slice, 0, stream()).unwrap_err();
        let expected =
            format!("send: the send buffer is on device {other}; the communicator is on device {own}");
        assert_eq!(error.to_string(), expected);
    }
    assert_eq!(fixture.fake.take_started().len(), 1);
    fixture.close("devices");
}
