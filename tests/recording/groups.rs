//! Groups that fail, in every way there is.

use std::panic::{AssertUnwindSafe, catch_unwind};

use libnccl::{Communicator, Config, Error, Group, ReduceOp, Result, ResultCode};

use crate::recorder::{IN_PROGRESS, INVALID_USAGE, SUCCESS};
use crate::world::{WORK, World, id, recv, send, stream, work};

fn grouped<'scope>(g: &'scope Group<'scope, '_>, comm: &'scope Communicator) -> Result<()> {
    g.all_reduce(comm, send::<f32>(3), recv::<f32>(3), ReduceOp::Sum, stream())
}

fn own_error<T>() -> Result<T> {
    "x".parse::<libnccl::Version>().map_err(|_| Error::Aborted { call: "the closure" })?;
    unreachable!()
}

type Fill = for<'s, 'e> fn(&'s Group<'s, 'e>, &'s World) -> Result<()>;

/// What the closure does, the function that fails in it (with code 6), and the error that comes out.
#[rustfmt::skip]
const FAILURES: &[(&str, Option<&str>, &str, Fill)] = &[
    ("a call that fails", Some("ncclAllReduce"), "ncclAllReduce failed", |g, w| grouped(g, &w.comm)),
    ("a later call that fails", Some("ncclSend"), "ncclSend failed", |g, w| {
        grouped(g, &w.comm)?;
        g.send(&w.comm, send::<f32>(1), 0, stream())
    }),
    ("an error that is ignored", Some("ncclSend"), "ncclSend failed", |g, w| {
        let _ = g.send(&w.comm, send::<f32>(1), 0, stream());
        grouped(g, &w.comm)
    }),
    ("the first of two errors", Some("ncclSend"), "ncclSend failed", |g, w| {
        let _ = g.send(&w.comm, send::<f32>(1), 0, stream());
        let _ = g.send(&w.comm, send::<f32>(1), 9, stream());
        Ok(())
    }),
    ("an early return", None, "the closure: ", |g, w| {
        grouped(g, &w.comm)?;
        own_error()
    }),
    ("a wrong argument after an operation", None, "send: peer 9", |g, w| {
        grouped(g, &w.comm)?;
        g.send(&w.comm, send::<f32>(1), 9, stream())
    }),
    ("an error in an inner group", Some("ncclSend"), "ncclSend failed", |g, w| {
        grouped(g, &w.comm)?;
        g.group(|g| g.send(&w.comm, send::<f32>(1), 0, stream()))
    }),
    ("an ignored error in an inner group", Some("ncclSend"), "ncclSend failed", |g, w| {
        grouped(g, &w.comm)?;
        let _ = g.group(|g| g.send(&w.comm, send::<f32>(1), 0, stream()));
        Ok(())
    }),
    ("an early return of an inner group", None, "the closure: ", |g, w| {
        g.group(|g| { grouped(g, &w.comm)?; own_error() })
    }),
    ("the end", Some("ncclGroupEnd"), "ncclGroupEnd failed", |g, w| grouped(g, &w.comm)),
];

#[test]
fn a_group_that_fails_starts_nothing_and_says_why() {
    for (name, fails, text, fill) in FAILURES {
        let world = World::new();
        if let Some(function) = fails {
            world.recorder.answer_once(function, 0, 6);
        }
        let error = world.nccl.group(|g| fill(g, &world)).unwrap_err();
        assert!(error.to_string().starts_with(text), "{name}: {error}");
        assert_eq!(world.recorder.take_started(), [] as [String; 0], "{name}");
        world.recorder.take_log();

        // The member has failed: it can be asked and ended, and no more.
        assert!(matches!(work(&world.comm), Err(Error::InvalidUsage { .. })), "{name}");
        assert!(matches!(world.comm.split(None, 0), Err(Error::InvalidUsage { .. })), "{name}");
        assert!(matches!(world.nccl.group(|g| grouped(g, &world.comm)), Err(Error::InvalidUsage { .. })));
        assert_eq!(world.comm.async_error().unwrap(), ResultCode::SUCCESS);
        // Another communicator has not, and the thread is outside.
        let spare = world.spare();
        work(&spare).unwrap();
        world.nccl.group(|g| grouped(g, &spare)).unwrap();
        drop(spare);
        world.close(name);
    }
}

#[test]
fn a_group_that_panics_starts_nothing() {
    let deep: [(&str, Fill); 2] = [
        ("panic", |g, w| {
            grouped(g, &w.comm)?;
            panic!("on purpose")
        }),
        ("panic in an inner group", |g, w| {
            g.group(|g| {
                grouped(g, &w.comm)?;
                panic!("on purpose")
            })
        }),
    ];
    for (name, fill) in deep {
        let world = World::new();
        let caught = catch_unwind(AssertUnwindSafe(|| world.nccl.group(|g| fill(g, &world))));
        assert!(caught.is_err());
        assert_eq!(world.recorder.take_started(), [] as [String; 0]);
        assert!(work(&world.comm).is_err());
        world.close(name);
    }
}

#[test]
fn what_fails_before_anything_is_queued_fails_nobody() {
    let world = World::new();
    let wrong = world.nccl.group(|g| g.send(&world.comm, send::<f32>(1), 9, stream()));
    assert!(matches!(wrong, Err(Error::InvalidArgument { .. })));
    world.recorder.answer_once("ncclGroupStart", 0, 3);
    assert!(matches!(world.nccl.group(|g| grouped(g, &world.comm)), Err(Error::Nccl { .. })));
    world.recorder.take_log();
    work(&world.comm).unwrap();
    assert_eq!(world.recorder.take_log(), [WORK]);
    world.close("nothing queued");
}

#[test]
fn two_communicators_share_a_group_and_its_fate() {
    for code in [SUCCESS, 2] {
        let world = World::new();
        let spare = world.spare();
        world.recorder.answer_once("ncclGroupEnd", 0, code);
        let result = world.nccl.group(|g| {
            grouped(g, &world.comm)?;
            grouped(g, &spare)?;
            grouped(g, &world.comm)
        });
        let started = world.recorder.take_started();
        assert_eq!(result.is_ok(), code == SUCCESS);
        let expected = [WORK, &WORK.replace("comm0", "comm1"), WORK];
        assert_eq!(started, if code == SUCCESS { &expected[..] } else { &[] });
        for comm in [&world.comm, &spare] {
            assert_eq!(work(comm).is_ok(), code == SUCCESS);
        }
        drop(spare);
        world.close("two communicators");
    }
}

#[test]
fn all_members_in_progress_are_waited_for() {
    let world = World::new();
    let spare = world.spare();
    world.recorder.answer_once("ncclGroupEnd", 0, IN_PROGRESS);
    world.recorder.asynchronous([IN_PROGRESS, SUCCESS, IN_PROGRESS], SUCCESS);
    world
        .nccl
        .group(|g| {
            grouped(g, &world.comm)?;
            grouped(g, &spare)
        })
        .unwrap();
    let polls = world.recorder.take_log().into_iter().filter(|call| call.contains("AsyncError"));
    assert_eq!(polls.count(), 4);
    drop(spare);
    world.close("in progress");
}

#[test]
fn simulations_fail_as_groups_do() {
    let world = World::new();
    world.recorder.answer_once("ncclGroupSimulateEnd", 0, INVALID_USAGE);
    let error = world.nccl.simulate(|g| grouped(g, &world.comm)).unwrap_err();
    assert!(matches!(error, Error::Nccl { call: "ncclGroupSimulateEnd", .. }), "{error}");
    assert!(work(&world.comm).is_err());

    let spare = world.spare();
    let nested = world.nccl.simulate(|g| {
        grouped(g, &spare)?;
        world.nccl.simulate(|_| Ok(())).map(drop)
    });
    assert!(matches!(nested, Err(Error::InvalidUsage { .. })));
    drop(spare);
    world.close("simulate");
}

#[test]
fn ordinary_methods_are_refused_in_a_group() {
    let world = World::new();
    world
        .nccl
        .group(|_| {
            let refusals = [
                work(&world.comm),
                world.comm.split(None, 0).map(drop),
                world.comm.pre_mul_sum(1_i32).map(drop),
                world.nccl.init_all(&[0]).map(drop),
                world.nccl.init_rank(1, 0, &id(1)).map(drop),
                world.nccl.grow_rank(2, 1, &id(1), &Config::new()).map(drop),
                world.nccl.group(|_| Ok(())),
            ];
            for refusal in refusals {
                assert!(matches!(refusal, Err(Error::InvalidUsage { .. })), "{refusal:?}");
            }
            Ok(())
        })
        .unwrap();
    assert_eq!(world.recorder.take_log(), ["ncclGroupStart()", "ncclGroupEnd()"]);
    world.close("refusals");
}

/// What becomes of communicators that a group makes.
#[test]
fn pending_communicators_are_ended_once() {
    let make = |world: &World, config: &Config| world.nccl.group(|g| g.init_rank(4, 2, &id(1), config));
    let named = Config::new().name("pending");
    type Act<'a> = (&'a str, &'a dyn Fn(&World));
    let acts: [Act<'_>; 7] = [
        ("dropped after the group", &|world| drop(make(world, &named).unwrap())),
        ("finished", &|world| drop(make(world, &named).unwrap().finish().unwrap())),
        ("dropped inside the group", &|world| {
            world.nccl.group(|g| g.init_rank(4, 2, &id(1), &named).map(drop)).unwrap();
        }),
        ("finished inside the group", &|world| {
            let finish = |g: &Group<'_, '_>| Ok(g.init_rank(4, 2, &id(1), &named)?.finish().is_err());
            assert!(world.nccl.group(finish).unwrap());
        }),
        ("with a group that fails", &|world| {
            let mut pending = None;
            let fill = |g: &Group<'_, '_>| {
                pending = Some(g.init_rank(4, 2, &id(1), &named)?);
                own_error::<()>()
            };
            assert!(world.nccl.group(fill).is_err());
            assert!(matches!(pending.unwrap().finish(), Err(Error::InvalidUsage { .. })));
        }),
        ("with a group whose end fails", &|world| {
            world.recorder.answer_once("ncclGroupEnd", 0, 6);
            assert!(make(world, &named).is_err());
        }),
        ("with a panic", &|world| {
            let fill = || {
                world.nccl.group(|g| {
                    let _pending = g.init_rank(4, 2, &id(1), &named)?;
                    panic!("on purpose") as Result<()>
                })
            };
            assert!(catch_unwind(AssertUnwindSafe(fill)).is_err());
        }),
    ];
    for (name, act) in acts {
        let world = World::new();
        act(&world);
        world.close(name);
    }
}

/// Whether it was the options or `NCCL_COMM_BLOCKING` that made it nonblocking.
#[test]
fn a_pending_one_is_waited_for() {
    let world = World::new();
    world.recorder.answer_once("ncclGroupEnd", 0, IN_PROGRESS);
    let pending = world.nccl.group(|g| g.init_rank(4, 2, &id(1), &Config::new())).unwrap();
    world.recorder.asynchronous([IN_PROGRESS, IN_PROGRESS], SUCCESS);
    pending.finish().unwrap();
    assert_eq!(world.recorder.asynchronous_left(), 0);
    world.close("pending");
}

/// The bug of 2.23.4 to 2.32.3: a communicator that cannot be made leaves the thread in a group.
#[test]
fn a_group_that_nccl_leaves_open_is_closed() {
    let timeless = Config::new().min_ctas(1);
    type Act<'a> = (&'static str, &'a dyn Fn(&World) -> Result<()>);
    let acts: [Act<'_>; 5] = [
        ("ncclCommInitRank", &|world| world.nccl.init_rank(4, 2, &id(1)).map(drop)),
        ("ncclCommInitRankConfig", &|world| world.nccl.init_rank_with(4, 2, &id(1), &timeless).map(drop)),
        ("ncclCommInitAll", &|world| world.nccl.init_all(&[0]).map(drop)),
        ("ncclCommInitRankConfig", &|world| {
            world.nccl.group(|g| g.init_rank(4, 2, &id(1), &timeless)).map(drop)
        }),
        ("ncclCommInitRankConfig", &|world| {
            world.nccl.group(|g| {
                let _ = g.init_rank(4, 2, &id(1), &timeless);
                Ok(())
            })
        }),
    ];
    for (number, (function, act)) in acts.into_iter().enumerate() {
        let world = World::new();
        world.recorder.leak_groups();
        world.recorder.answer_once(function, 0, 1);
        let error = act(&world).unwrap_err();
        assert!(matches!(error, Error::Nccl { call, .. } if call == function), "{error}");
        work(&world.comm).unwrap();
        assert_eq!(world.recorder.take_started(), [WORK], "{number}: {function}");
        world.close(&format!("{number}: {function}"));
    }
}
