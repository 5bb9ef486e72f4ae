//! Guards of buffers: they learn the operation's stream, and live until NCCL has enqueued the operation.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use libnccl::buffer::{Buffer, BufferMut, BufferResult};
use libnccl::config::CollectiveConfig;
use libnccl::error::InvalidArgumentKind;
use libnccl::window::{Signal, WaitSignal};
use libnccl::{
    CallOptions, Communicator, Config, Error, Group, Nccl, ReduceOp, Result, Slice, SliceMut, StreamRef,
};
use libnccl_test_support::fake_nccl::{FakeNccl, IN_PROGRESS, SUCCESS};

use crate::fixture::{Fixture, id, recv, send, stream};

/// A buffer in stream-ordered memory, whose guards record what was called before they are made and dropped.
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
        fixture.fake.answer_once("ncclAllReduce", 0, code);
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
    for (states, succeeds) in [(vec![IN_PROGRESS; 3], true), (vec![IN_PROGRESS; 1 << 20], false)] {
        let config = Config::new().timeout(Duration::from_millis(30));
        let comm = nccl.communicator(4, 2, &id(1)).config(&config).init().unwrap();
        let recorded = RefCell::default();
        let tensor = Tensor { fake: &fake, name: "send", events: &recorded };
        fake.answer_once("ncclSend", 0, IN_PROGRESS);
        fake.set_async_states(states, SUCCESS);
        let result = comm.send(&tensor, 0, stream());
        assert_eq!(result.is_ok(), succeeds, "{result:?}");
        let last = if succeeds { "ncclCommGetAsyncError" } else { "ncclCommAbort" };
        assert_eq!(recorded.borrow().last(), Some(&format!("send released after {last}")));
        fake.set_async_states([], SUCCESS);
    }
}

#[test]
fn guards_of_a_group_that_is_given_up_live_until_all_its_members_are_ended() {
    let fake = FakeNccl::new();
    let nccl = fake.nccl();
    let comms = [30, 600_000].map(|timeout| {
        let config = Config::new().timeout(Duration::from_millis(timeout));
        nccl.communicator(4, 2, &id(1)).config(&config).init().unwrap()
    });
    let recorded = RefCell::default();
    let tensors = ["first", "second"].map(|name| Tensor { fake: &fake, name, events: &recorded });
    fake.set_async_states([], IN_PROGRESS);
    fake.answer_once("ncclGroupEnd", 0, IN_PROGRESS);
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

#[test]
fn guard_in_group_lives_until_its_end() {
    type Act = fn(&Fixture, &Tensor<'_>, &mut Tensor<'_>) -> Result<()>;
    let acts: [(&str, bool, Act); 6] = [
        ("success", true, |f, send, recv| {
            f.nccl.group(|g| f.comm.all_reduce(send, recv, ReduceOp::Sum, g.stream(stream())))
        }),
        ("a group in the group", true, |f, send, recv| {
            f.nccl.group(|g| g.group(|g| f.comm.all_reduce(send, recv, ReduceOp::Sum, g.stream(stream()))))
        }),
        ("an end that fails", false, |f, send, recv| {
            f.fake.answer_once("ncclGroupEnd", 0, 1);
            f.nccl.group(|g| f.comm.all_reduce(send, recv, ReduceOp::Sum, g.stream(stream())))
        }),
        ("a call that fails", false, |f, send, recv| {
            f.fake.answer_once("ncclAllReduce", 0, 1);
            f.nccl.group(|g| f.comm.all_reduce(send, recv, ReduceOp::Sum, g.stream(stream())))
        }),
        ("a later error", false, |f, send, recv| {
            f.nccl.group(|g| {
                f.comm.all_reduce(send, recv, ReduceOp::Sum, g.stream(stream()))?;
                f.comm.send(crate::fixture::send::<u8>(1), 9, g.stream(stream()))
            })
        }),
        ("a panic", false, |f, send, recv| {
            let panics = || {
                f.nccl.group(|g| {
                    f.comm.all_reduce(send, recv, ReduceOp::Sum, g.stream(stream()))?;
                    panic!("on purpose")
                })
            };
            catch_unwind(AssertUnwindSafe(panics)).unwrap_or(Err(Error::Aborted { call: "panic" }))
        }),
    ];
    for (name, succeeds, act) in acts {
        let fixture = Fixture::new();
        let (result, events) = events(&fixture, |send, recv| act(&fixture, send, recv));
        assert_eq!(result.is_ok(), succeeds, "{name}: {result:?}");
        assert_eq!(events[2..], released("ncclGroupEnd"), "{name}: {events:?}");
        assert_eq!(fixture.fake.take_started().len(), usize::from(succeeds), "{name}");
        fixture.close(name);
    }
}

#[test]
fn guard_of_operation_that_is_refused_is_dropped() {
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

/// A buffer that is never ready.
struct NotReady;

impl<'a> Buffer<'a> for NotReady {
    type Element = f32;
    type Guard = ();

    unsafe fn into_slice(self, _: StreamRef<'a>) -> BufferResult<(Slice<'a, f32>, ())> {
        Err("it is on its way".into())
    }
}

#[test]
fn buffer_that_is_not_ready_refuses_the_operation_and_its_group() {
    let fixture = Fixture::new();
    let expected = "all_reduce: a buffer is not ready: it is on its way";
    let refused = |error: Error| {
        assert!(
            matches!(error, Error::InvalidArgument { kind: InvalidArgumentKind::NotReady, .. }),
            "{error}"
        );
        assert_eq!(error.to_string(), expected);
    };
    let comm = &fixture.comm;
    refused(comm.all_reduce(NotReady, recv::<f32>(3), ReduceOp::Sum, stream()).unwrap_err());
    let tenfold = comm.pre_mul_sum(10.0_f32).unwrap();
    refused(comm.all_reduce(NotReady, recv::<f32>(3), &tenfold, stream()).unwrap_err());
    drop(tenfold);
    let ended = fixture.nccl.group(|g| {
        // An error that nobody looks at.
        let _ = comm.all_reduce(NotReady, recv::<f32>(3), ReduceOp::Sum, g.stream(stream()));
        comm.all_reduce(send::<f32>(3), recv::<f32>(3), ReduceOp::Sum, g.stream(stream()))
    });
    refused(ended.unwrap_err());
    assert_eq!(fixture.fake.take_started().len(), 0);
    fixture.close("not ready");
}

/// A buffer that is never ready, for a reason whose text panics.
#[derive(Debug)]
struct Unspeakable;

impl std::fmt::Display for Unspeakable {
    fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        panic!("on purpose")
    }
}

impl std::error::Error for Unspeakable {}

impl<'a> Buffer<'a> for Unspeakable {
    type Element = f32;
    type Guard = ();

    unsafe fn into_slice(self, _: StreamRef<'a>) -> BufferResult<(Slice<'a, f32>, ())> {
        Err(Box::new(self))
    }
}

#[test]
fn panic_of_the_text_why_a_buffer_is_not_ready_leaves_the_communicator_usable() {
    let Fixture { fake, nccl, comm, .. } = &Fixture::new();
    let calls: [&dyn Fn() -> Result<()>; 2] = [&|| comm.send(Unspeakable, 0, stream()), &|| {
        nccl.group(|g| comm.send(Unspeakable, 0, g.stream(stream())))
    }];
    for call in calls {
        catch_unwind(AssertUnwindSafe(call)).unwrap_err();
        comm.send(send::<f32>(1), 0, stream()).unwrap();
        // A group still waits for it.
        fake.answer_once("ncclGroupEnd", 0, IN_PROGRESS);
        fake.set_async_states([IN_PROGRESS], SUCCESS);
        nccl.group(|g| comm.send(send::<f32>(1), 0, g.stream(stream()))).unwrap();
        assert_eq!(fake.async_states_left(), 0);
    }
    comm.abort_handle().abort().unwrap();
    assert!(comm.as_raw().is_null(), "aborted immediately");
}

/// A buffer whose guard panics.
struct Panicking;

struct PanickingGuard;

impl<'a> Buffer<'a> for Panicking {
    type Element = f32;
    type Guard = PanickingGuard;

    unsafe fn into_slice(self, _: StreamRef<'a>) -> BufferResult<(Slice<'a, f32>, PanickingGuard)> {
        Ok((send(1), PanickingGuard))
    }
}

impl Drop for PanickingGuard {
    fn drop(&mut self) {
        panic!("on purpose");
    }
}

#[test]
fn panic_of_a_guard_leaves_no_group_open() {
    let Fixture { nccl, comm, .. } = &Fixture::new();
    let group = || nccl.group(|g| comm.send(Panicking, 0, g.stream(stream())));
    catch_unwind(AssertUnwindSafe(group)).unwrap_err();
    nccl.group(|_| Ok(())).unwrap();
    comm.send(send::<f32>(1), 0, stream()).unwrap();
}

/// A buffer whose guard goes on using the group.
struct Late<'s, 'e> {
    nccl: &'s Nccl,
    group: &'s Group<'s, 'e>,
    comm: &'s Communicator,
    errors: &'s RefCell<Vec<String>>,
}

struct LateGuard<'s, 'e>(Late<'s, 'e>);

impl<'s, 'e> Buffer<'s> for Late<'s, 'e> {
    type Element = f32;
    type Guard = LateGuard<'s, 'e>;

    unsafe fn into_slice(self, _: StreamRef<'s>) -> BufferResult<(Slice<'s, f32>, LateGuard<'s, 'e>)> {
        Ok((send(1), LateGuard(self)))
    }
}

impl Drop for LateGuard<'_, '_> {
    fn drop(&mut self) {
        let Late { nccl, group, comm, errors } = self.0;
        let results = [
            comm.send(send::<f32>(1), 0, group.stream(stream())),
            comm.recv(recv::<f32>(1), 0, group.stream(stream())),
            nccl.communicator(4, 2, &id(1)).init_in(group).map(drop),
            group.group(|_| Ok(())),
        ];
        errors.borrow_mut().extend(results.map(|result| result.unwrap_err().to_string()));
    }
}

#[test]
fn guard_that_uses_its_group_after_the_end_is_refused() {
    let fixture = Fixture::new();
    let errors = RefCell::default();
    fixture
        .nccl
        .group(|g| {
            let Fixture { nccl, comm, .. } = &fixture;
            comm.send(Late { nccl, group: g, comm, errors: &errors }, 0, g.stream(stream()))
        })
        .unwrap();
    let expected = ["send", "recv", "init_in", "group"].map(|call| format!("{call}: the group has ended"));
    assert_eq!(errors.into_inner(), expected);
    assert_eq!(fixture.fake.take_started().len(), 1);
    fixture.close("after the end");
}

/// NCCL reads options and signals until the end of the group.
#[test]
fn signals_may_be_temporary_in_a_group() {
    let fixture = Fixture::new();
    let config = CollectiveConfig::new().max_ctas(2);
    fixture
        .nccl
        .group(|g| {
            fixture.comm.all_reduce_in_place(
                recv::<f32>(3),
                ReduceOp::Sum,
                g.stream(CallOptions::on(stream()).config(&config)),
            )?;
            let signal = WaitSignal { count: 1, peer: 0, signal: Signal::default() };
            fixture.comm.wait_signal(&[signal], g.stream(stream()))
        })
        .unwrap();
    fixture.close("temporary");
}

/// The restriction is what makes a slice of a foreign crate safe to use with any communicator.
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
