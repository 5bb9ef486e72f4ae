//! Endings: every way to end a communicator, after any history, in any order.

use std::panic::{AssertUnwindSafe, catch_unwind};

use libnccl::{Communicator, Config, Error, Result};

use crate::codes::CODES;
use crate::fake_nccl::{FakeNccl, SUCCESS};
use crate::fixture::{Fixture, id, recv, stream, work};

/// A way to end a communicator, whether it succeeds or not.
type Ending = (&'static str, fn(Communicator));

const ENDINGS: &[Ending] = &[
    ("drop", drop),
    ("destroy", |comm| drop(comm.destroy())),
    ("abort", |comm| drop(comm.abort())),
    ("finalize", |comm| drop(comm.finalize())),
    ("finalize and destroy", |comm| {
        let _ = comm.finalize().and_then(libnccl::Finalized::destroy);
    }),
    ("finalize and abort", |comm| {
        let _ = comm.finalize().and_then(libnccl::Finalized::abort);
    }),
    ("abort by a handle", |comm| drop(comm.abort_handle().abort())),
    ("panic", |comm| {
        let unwound = catch_unwind(AssertUnwindSafe(move || {
            let _comm = comm;
            panic!("on purpose")
        }));
        assert!(unwound.is_err());
    }),
];

/// Something that may have happened to a communicator before its end.
type History = (&'static str, fn(&Fixture, &Communicator));

const HISTORIES: &[History] = &[
    ("nothing", |_, _| {}),
    ("work", |_, comm| work(comm).unwrap()),
    ("a failed call", |fixture, comm| {
        fixture.fake.answer_once("ncclAllReduce", 0, 6);
        work(comm).unwrap_err();
    }),
    ("a failed group", |fixture, comm| {
        let fail = fixture.nccl.group(|g| {
            g.recv(comm, recv::<f32>(1), 0, stream())?;
            Err::<(), _>(Error::Aborted { call: "the closure" })
        });
        fail.unwrap_err();
    }),
    ("an operator", |_, comm| {
        let halves = comm.pre_mul_sum(0.5_f32).unwrap();
        halves.all_reduce_in_place(recv(1), stream()).unwrap();
    }),
    ("an operator in a failed group", |fixture, comm| {
        let halves = comm.pre_mul_sum(0.5_f32).unwrap();
        let fail = fixture.nccl.group(|g| {
            halves.on(g).all_reduce_in_place(recv(1), stream())?;
            Err::<(), _>(Error::Aborted { call: "the closure" })
        });
        fail.unwrap_err();
    }),
    ("an operator that outlives an abort", |_, comm| {
        let halves = comm.pre_mul_sum(0.5_f32).unwrap();
        comm.abort_handle().abort().unwrap();
        assert!(matches!(halves.all_reduce_in_place(recv(1), stream()), Err(Error::Aborted { .. })));
    }),
    ("an abort by a handle", |_, comm| comm.abort_handle().abort().unwrap()),
    ("a child that could not be made", |fixture, comm| {
        fixture.fake.answer_once("ncclCommSplit", 0, 3);
        comm.split(Some(1), 0).unwrap_err();
    }),
];

// Regression: baracuda uses and frees a communicator again after its abort.
// Regression: nccl4py closes resources on a hanging communicator before it aborts.
// Regression: monarch, cubecl, candle and mistral.rs leak communicators.
#[test]
fn every_ending_after_any_history_ends_handles_once() {
    for (history_name, history) in HISTORIES {
        for (end_name, end) in ENDINGS {
            let fixture = Fixture::new();
            let comm = fixture.spare();
            history(&fixture, &comm);
            end(comm);
            fixture.close(&format!("{end_name} after {history_name}"));
        }
    }
}

// Regression: cudarc panics in drop if the abort fails.
#[test]
fn every_ending_any_result_code_ends_handles_once() {
    for (name, end) in ENDINGS {
        for function in ["ncclCommDestroy", "ncclCommAbort", "ncclCommFinalize"] {
            for code in CODES {
                let fixture = Fixture::new();
                fixture.fake.answer(function, code);
                end(fixture.spare());
                fixture.close(&format!("{name}, {function} answers {code}"));
            }
        }
    }
}

/// Ends a parent, its child and its grandchild in every order, and in every way.
#[test]
fn parent_and_children_in_any_order_end_once() {
    let orders = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
    for order in orders {
        for (name, end) in ENDINGS {
            let fake = FakeNccl::new();
            let nccl = fake.nccl();
            let config = Config::new().name("parent");
            let parent = nccl.init_rank_with(4, 2, &id(1), &config).unwrap();
            let child = parent.split(Some(0), 0).unwrap().unwrap();
            let grandchild = child.split_with(Some(0), 0, &Config::new().name("other")).unwrap().unwrap();
            drop(child.pre_mul_sum(3_i32).unwrap());
            let mut family = [Some(parent), Some(child), Some(grandchild)];
            for index in order {
                end(family[index].take().unwrap());
            }
            fake.assert_clean(&format!("{name} in the order {order:?}"));
        }
    }
}

/// A communicator that reports an impossible size or rank is ended, together with its siblings.
#[test]
fn invalid_size_or_rank_from_nccl_ends_communicator() {
    for (size, rank) in [(0, 0), (-1, 0), (4, -1), (4, 4)] {
        let fake = FakeNccl::new();
        let nccl = fake.nccl();
        fake.set_size_and_rank(size, rank);
        for result in [nccl.init_rank(4, 2, &id(1)).map(drop), nccl.init_all(&[0, 1]).map(drop)] {
            assert!(result.is_err(), "rank {rank} of {size}");
        }
        fake.assert_clean(&format!("rank {rank} of {size}"));
    }
}

#[test]
fn into_raw_then_from_raw_keeps_handle_and_name() {
    let fake = FakeNccl::new();
    let nccl = fake.nccl();
    let named = Config::new().name("which NCCL keeps a pointer to");
    let raw = nccl.init_rank_with(4, 2, &id(1), &named).unwrap().into_raw();
    fake.take_log();
    // Reuses the name's memory if it was freed.
    let _others: Vec<Box<[u8]>> = (0..64).map(|_| vec![b'x'; 46].into()).collect();
    // SAFETY: given up just before.
    let comm = unsafe { Communicator::from_raw(&nccl, raw) }.unwrap();
    assert_eq!(comm.as_raw(), raw);
    comm.abort_handle().abort().unwrap();
    assert!(comm.as_raw().is_null() && comm.into_raw().is_null());
    fake.assert_clean("raw");
}

#[test]
fn destroy_all_with_one_failure_ends_all() {
    for code in [SUCCESS, 1] {
        let fake = FakeNccl::new();
        let comms = fake.nccl().init_all(&[0, 1, 2]).unwrap();
        fake.answer_once("ncclCommDestroy", 1, code);
        let result: Result<()> = Communicator::destroy_all(comms);
        assert_eq!(result.is_ok(), code == SUCCESS);
        fake.assert_clean("destroy_all");
    }
}
