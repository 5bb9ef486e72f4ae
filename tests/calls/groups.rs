//! Groups that fail: by an error, an early return, a panic, or their end.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use libnccl::communicator::ShrinkMode;
use libnccl::error::ResultCode;
use libnccl::window::{Signal, WaitSignal, WindowFlags};
use libnccl::{Communicator, Config, Error, Group, ReduceOp, Result};
use libnccl_test_support::fake_nccl::{FakeNccl, IN_PROGRESS, INVALID_USAGE, SUCCESS};

use crate::fixture::{Fixture, WORK, id, recv, send, stream, work};
use crate::methods::{OPERATIONS, Start};

fn grouped<'scope>(g: &'scope Group<'scope, '_>, comm: &'scope Communicator) -> Result<()> {
    comm.all_reduce(send::<f32>(3), recv::<f32>(3), ReduceOp::Sum, g.stream(stream()))
}

fn own_error<T>() -> Result<T> {
    Err(Error::Aborted { call: "the closure" })
}

type Fill = for<'s, 'e> fn(&'s Group<'s, 'e>, &'s Fixture) -> Result<()>;

/// A description, the function that fails with code 6, the start of the group's error, and the closure.
#[rustfmt::skip]
const FAILURES: &[(&str, Option<&str>, &str, Fill)] = &[
    ("a call that fails", Some("ncclAllReduce"), "ncclAllReduce failed", |g, f| grouped(g, &f.comm)),
    ("a later call that fails", Some("ncclSend"), "ncclSend failed", |g, f| {
        grouped(g, &f.comm)?;
        f.comm.send(send::<f32>(1), 0, g.stream(stream()))
    }),
    ("an error that is ignored", Some("ncclSend"), "ncclSend failed", |g, f| {
        let _ = f.comm.send(send::<f32>(1), 0, g.stream(stream()));
        grouped(g, &f.comm)
    }),
    ("the first of two errors", Some("ncclSend"), "ncclSend failed", |g, f| {
        let _ = f.comm.send(send::<f32>(1), 0, g.stream(stream()));
        let _ = f.comm.send(send::<f32>(1), 9, g.stream(stream()));
        Ok(())
    }),
    ("an early return", None, "the closure: ", |g, f| {
        grouped(g, &f.comm)?;
        own_error()
    }),
    ("a wrong argument after an operation", None, "send: peer 9", |g, f| {
        grouped(g, &f.comm)?;
        f.comm.send(send::<f32>(1), 9, g.stream(stream()))
    }),
    ("a wrong argument that is ignored", None, "send: peer 9", |g, f| {
        grouped(g, &f.comm)?;
        let _ = f.comm.send(send::<f32>(1), 9, g.stream(stream()));
        Ok(())
    }),
    ("an error in an inner group", Some("ncclSend"), "ncclSend failed", |g, f| {
        grouped(g, &f.comm)?;
        g.group(|g| f.comm.send(send::<f32>(1), 0, g.stream(stream())))
    }),
    ("an ignored error in an inner group", Some("ncclSend"), "ncclSend failed", |g, f| {
        grouped(g, &f.comm)?;
        let _ = g.group(|g| f.comm.send(send::<f32>(1), 0, g.stream(stream())));
        Ok(())
    }),
    ("an early return of an inner group", None, "the closure: ", |g, f| {
        g.group(|g| { grouped(g, &f.comm)?; own_error() })
    }),
    ("the end", Some("ncclGroupEnd"), "ncclGroupEnd failed", |g, f| grouped(g, &f.comm)),
];

// Regression: cudarc panics in drop if a group's end fails, and the end may be forgotten.
// Regression: nccl4py starts half a group after an exception.
// Regression: monarch leaves a group open on an early return.
#[test]
fn failed_group_starts_nothing_and_returns_cause() {
    for (name, fails, text, fill) in FAILURES {
        let fixture = Fixture::new();
        if let Some(function) = fails {
            fixture.fake.set_code_once(function, 0, 6);
        }
        let error = fixture.nccl.group(|g| fill(g, &fixture)).unwrap_err();
        assert!(error.to_string().starts_with(text), "{name}: {error}");
        assert_eq!(fixture.fake.take_started(), [] as [String; 0], "{name}");
        fixture.fake.take_log();

        // The member has failed: it can only be queried and destroyed.
        assert!(matches!(work(&fixture.comm), Err(Error::InvalidUsage { .. })), "{name}");
        assert!(matches!(fixture.comm.split(None, 0).init(), Err(Error::InvalidUsage { .. })), "{name}");
        assert!(matches!(fixture.nccl.group(|g| grouped(g, &fixture.comm)), Err(Error::InvalidUsage { .. })));
        assert_eq!(fixture.comm.async_error().unwrap(), ResultCode::SUCCESS);
        // A revocation makes it usable for its children.
        fixture.comm.revoke().unwrap();
        fixture.comm.split(None, 0).init().unwrap();
        fixture.comm.shrink(&[0], ShrinkMode::Default).init().unwrap();
        // Another communicator has not failed, and no group is open.
        let spare = fixture.spare();
        work(&spare).unwrap();
        fixture.nccl.group(|g| grouped(g, &spare)).unwrap();
        drop(spare);
        fixture.close(name);
    }
}

/// NCCL would wait for the missing ranks, and the operations would wait without a limit.
#[test]
fn group_that_creates_communicators_has_no_operations() {
    let fixture = Fixture::new();
    let (nccl, comm, config) = (&fixture.nccl, &fixture.comm, Config::new());
    let init =
        |g: &Group<'_, '_>| fixture.nccl.communicator(4, 2, &id(1)).config(&config).init_in(g).map(drop);
    let refused = nccl.group(|g| {
        init(g)?;
        init(g)?;
        let _ = grouped(g, comm);
        Ok(())
    });
    let text = "all_reduce: a group that creates communicators contains no operations";
    assert_eq!(refused.unwrap_err().to_string(), text);
    work(comm).unwrap();
    let refused = nccl.group(|g| {
        grouped(g, comm)?;
        let _ = init(g);
        Ok(())
    });
    let text = "init_in: a group that creates communicators contains no operations";
    assert_eq!(refused.unwrap_err().to_string(), text);
    assert!(!fixture.fake.take_started().iter().any(|call| call.contains("InitRank")));
}

/// NCCL itself would start it, without the memory that it needs.
#[test]
fn operation_between_suspend_and_resume_is_refused() {
    let fixture = Fixture::new();
    let Fixture { fake, nccl, comm, .. } = &fixture;
    // Refused by NCCL, and by a version without the function.
    fake.set_code_once("ncclCommSuspend", 0, INVALID_USAGE);
    comm.suspend().unwrap_err();
    work(comm).unwrap();
    // It may have freed some memory before it failed.
    for code in [SUCCESS, 1] {
        fake.set_code_once("ncclCommSuspend", 0, code);
        assert_eq!(comm.suspend().is_ok(), code == SUCCESS);
        fake.take_started();
        for result in [work(comm), nccl.group(|g| grouped(g, comm)), comm.split(None, 0).init().map(drop)] {
            let error = result.unwrap_err().to_string();
            assert!(error.ends_with(": the communicator is suspended; call `resume` first"), "{error}");
        }
        assert_eq!(fake.take_started(), [] as [String; 0]);
        assert_eq!(comm.async_error().unwrap(), ResultCode::SUCCESS);
        comm.resume().unwrap();
        work(comm).unwrap();
    }
    comm.suspend().unwrap();
    let spare = fixture.spare();
    spare.suspend().unwrap();
    spare.destroy().unwrap();
    fixture.close("suspended");
}

#[test]
fn failure_before_first_operation_leaves_members_usable() {
    let fixture = Fixture::new();
    for is_ignored in [false, true] {
        let wrong = fixture.nccl.group(|g| {
            let sent = fixture.comm.send(send::<f32>(1), 9, g.stream(stream()));
            if is_ignored { Ok(()) } else { sent }
        });
        assert!(matches!(wrong, Err(Error::InvalidArgument { .. })));
    }
    fixture.fake.set_code_once("ncclGroupStart", 0, 3);
    assert!(matches!(fixture.nccl.group(|g| grouped(g, &fixture.comm)), Err(Error::Nccl { .. })));
    fixture.fake.take_log();
    work(&fixture.comm).unwrap();
    assert_eq!(fixture.fake.take_log(), [WORK]);
    fixture.close("nothing queued");
}

#[test]
fn group_of_two_communicators_succeeds_or_fails_as_one() {
    for code in [SUCCESS, 2] {
        let fixture = Fixture::new();
        let spare = fixture.spare();
        fixture.fake.set_code_once("ncclGroupEnd", 0, code);
        let result = fixture.nccl.group(|g| {
            grouped(g, &fixture.comm)?;
            grouped(g, &spare)?;
            grouped(g, &fixture.comm)
        });
        let started = fixture.fake.take_started();
        assert_eq!(result.is_ok(), code == SUCCESS);
        let expected = [WORK, &WORK.replace("comm0", "comm1"), WORK];
        assert_eq!(started, if code == SUCCESS { &expected[..] } else { &[] });
        for comm in [&fixture.comm, &spare] {
            assert_eq!(work(comm).is_ok(), code == SUCCESS);
        }
        drop(spare);
        fixture.close("two communicators");
    }
}

#[test]
fn group_end_in_progress_waits_for_all_members() {
    let fixture = Fixture::new();
    let spare = fixture.spare();
    fixture.fake.set_code_once("ncclGroupEnd", 0, IN_PROGRESS);
    fixture.fake.set_async_states([IN_PROGRESS, SUCCESS, IN_PROGRESS], SUCCESS);
    let both = fixture.nccl.group(|g| {
        grouped(g, &fixture.comm)?;
        grouped(g, &spare)
    });
    both.unwrap();
    let polls = fixture.fake.take_log().into_iter().filter(|call| call.contains("AsyncError"));
    assert_eq!(polls.count(), 4);
    drop(spare);
    fixture.close("in progress");
}

#[test]
fn failed_simulation_fails_its_members() {
    let fixture = Fixture::new();
    fixture.fake.set_code_once("ncclGroupSimulateEnd", 0, INVALID_USAGE);
    let error = fixture.nccl.simulate(|g| grouped(g, &fixture.comm)).unwrap_err();
    assert!(matches!(error, Error::Nccl { call: "ncclGroupSimulateEnd", .. }), "{error}");
    assert!(work(&fixture.comm).is_err());

    let spare = fixture.spare();
    let nested = fixture.nccl.simulate(|g| {
        grouped(g, &spare)?;
        fixture.nccl.simulate(|_| Ok(())).map(drop)
    });
    assert!(matches!(nested, Err(Error::InvalidUsage { .. })));
    drop(spare);
    fixture.close("simulate");
}

/// NCCL leaves the sends and receives of a simulation in the queue, and starts them with the next group.
#[test]
fn operation_that_nccl_does_not_simulate_is_invalid_usage() {
    // Also in place, and `reduce_scatter`.
    const SIMULATED: [&str; 4] = ["all_reduce", "reduce", "all_gather", "barrier"];
    let others: [(&str, Start); 4] = [
        ("barrier", |f, on| f.comm.barrier(recv::<f32>(1), on)),
        ("send_recv", |f, on| f.comm.send_recv(send::<f32>(1), recv::<f32>(1), 0, 0, on)),
        ("signal", |f, on| f.comm.signal(0, Signal::default(), on)),
        ("wait_signal", |f, on| {
            f.comm.wait_signal(&[WaitSignal { count: 1, peer: 0, signal: Signal::default() }], on)
        }),
    ];
    let operations = OPERATIONS.into_iter().map(|(name, _, start)| (name, start));
    for (name, start) in operations.chain(others) {
        let (fixture, is_simulated) = (Fixture::new(), SIMULATED.iter().any(|start| name.starts_with(start)));
        match fixture.nccl.simulate(|g| start(&fixture, g.stream(stream()))) {
            Ok(estimate) => assert!(is_simulated && estimate == Some(12.5), "{name}: {estimate:?}"),
            Err(error) => {
                assert!(!is_simulated, "{name}: {error}");
                assert!(matches!(error, Error::InvalidUsage { call, .. } if call == name), "{name}: {error}");
                assert!(error.to_string().contains("NCCL does not simulate"), "{name}: {error}");
            }
        }
        // Nothing was queued, and the communicator has not failed.
        fixture.nccl.group(|g| grouped(g, &fixture.comm)).unwrap();
        assert_eq!(fixture.fake.take_started(), [WORK], "{name}");
        fixture.close(name);
    }
    let fixture = Fixture::new();
    let init = fixture.nccl.simulate(|g| fixture.nccl.communicator(4, 2, &id(1)).init_in(g).map(drop));
    assert!(matches!(init, Err(Error::InvalidUsage { call: "init_in", .. })), "{init:?}");
    let mut buffer = fixture.nccl.alloc::<f32>(1).unwrap();
    let window = fixture.nccl.simulate(|g| {
        // SAFETY: the fake has no other ranks.
        unsafe { g.register_window(&fixture.comm, &mut buffer, WindowFlags::DEFAULT) }.map(drop)
    });
    assert!(matches!(window, Err(Error::InvalidUsage { call: "register_window", .. })), "{window:?}");
    drop(buffer);
    fixture.close("register_window");
}

/// NCCL starts the operations of a nonblocking communicator, and of one with a single rank.
#[test]
fn communicator_that_nccl_does_not_simulate_is_invalid_usage() {
    let fake = FakeNccl::new();
    let nccl = fake.nccl();
    let refused = |comm: &Communicator, text: &str| {
        let error = nccl.simulate(|g| grouped(g, comm)).unwrap_err();
        assert!(matches!(error, Error::InvalidUsage { call: "all_reduce", .. }), "{error}");
        assert!(error.to_string().contains(text), "{error}");
        work(comm).unwrap();
        assert_eq!(fake.take_started().len(), 1, "the work");
    };
    let config = Config::new().timeout(Duration::from_secs(9));
    refused(&nccl.communicator(4, 2, &id(1)).config(&config).init().unwrap(), "is nonblocking");
    fake.set(|fake| fake.size_and_rank = (1, 0));
    refused(&nccl.communicator(1, 0, &id(1)).init().unwrap(), "has one rank");
    fake.assert_clean("refused");
}

#[test]
fn simulation_started_by_nccl_is_waited_for_and_an_error() {
    let fixture = Fixture::new();
    fixture.fake.set_code_once("ncclGroupSimulateEnd", 0, IN_PROGRESS);
    fixture.fake.set_async_states([IN_PROGRESS, IN_PROGRESS], SUCCESS);
    let error = fixture.nccl.simulate(|g| grouped(g, &fixture.comm)).unwrap_err();
    assert!(error.to_string().contains("NCCL has started the operations"), "{error}");
    assert_eq!(fixture.fake.async_states_left(), 0);
    work(&fixture.comm).unwrap();
    fixture.close("nonblocking");
}

/// Drops, finishes and fails communicators that a group creates.
#[test]
fn pending_communicator_is_destroyed_once() {
    let named = Config::new().name("pending");
    let begin = |fixture: &Fixture, g: &Group<'_, '_>| {
        fixture.nccl.communicator(4, 2, &id(1)).config(&named).init_in(g)
    };
    let make = |fixture: &Fixture| fixture.nccl.group(|g| begin(fixture, g));
    type Act<'a> = (&'a str, &'a dyn Fn(&Fixture));
    let acts: [Act<'_>; 8] = [
        ("dropped after the group", &|f| drop(make(f).unwrap())),
        ("finished", &|f| drop(make(f).unwrap().finish().unwrap())),
        ("dropped inside the group", &|f| f.nccl.group(|g| begin(f, g).map(drop)).unwrap()),
        ("dropped inside another group", &|f| {
            let pending = make(f).unwrap();
            let fill = |_: &Group<'_, '_>| {
                drop(pending);
                own_error::<()>()
            };
            f.nccl.group(fill).unwrap_err();
        }),
        ("finished inside the group", &|f| {
            assert!(f.nccl.group(|g| Ok(begin(f, g)?.finish().is_err())).unwrap());
        }),
        ("with a group that fails", &|f| {
            let mut pending = None;
            let failed = f.nccl.group(|g| {
                pending = Some(begin(f, g)?);
                own_error::<()>()
            });
            failed.unwrap_err();
            assert!(matches!(pending.unwrap().finish(), Err(Error::InvalidUsage { .. })));
        }),
        ("with a group whose end fails", &|f| {
            f.fake.set_code_once("ncclGroupEnd", 0, 6);
            make(f).map(drop).unwrap_err();
        }),
        ("with a panic", &|f| {
            let fill = || {
                f.nccl.group(|g| {
                    let _pending = begin(f, g)?;
                    panic!("on purpose") as Result<()>
                })
            };
            catch_unwind(AssertUnwindSafe(fill)).unwrap_err();
        }),
    ];
    for (name, act) in acts {
        let fixture = Fixture::new();
        act(&fixture);
        fixture.close(name);
    }
}

/// In 2.23.4 to 2.32.3, a failed initialization leaves the thread in a group.
#[test]
fn group_left_open_by_failed_init_is_closed() {
    let options = Config::new().min_ctas(1);
    type Act<'a> = (&'static str, &'a dyn Fn(&Fixture) -> Result<()>);
    let acts: [Act<'_>; 4] = [
        ("ncclCommInitRank", &|f| f.nccl.communicator(4, 2, &id(1)).init().map(drop)),
        ("ncclCommInitRankConfig", &|f| f.nccl.communicator(4, 2, &id(1)).config(&options).init().map(drop)),
        ("ncclCommInitAll", &|f| f.nccl.init_all(&[0]).map(drop)),
        ("ncclCommInitRankConfig", &|f| {
            f.nccl.group(|g| {
                let _ = f.nccl.communicator(4, 2, &id(1)).config(&options).init_in(g);
                Ok(())
            })
        }),
    ];
    for (number, (function, act)) in acts.into_iter().enumerate() {
        let fixture = Fixture::new();
        fixture.fake.set(|fake| fake.leaves_group_open = true);
        fixture.fake.set_code_once(function, 0, 1);
        let error = act(&fixture).unwrap_err();
        assert!(matches!(error, Error::Nccl { call, .. } if call == function), "{error}");
        work(&fixture.comm).unwrap();
        assert_eq!(fixture.fake.take_started(), [WORK], "{number}: {function}");
        fixture.close(&format!("{number}: {function}"));
    }
}
