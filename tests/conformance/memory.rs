//! `ncclMemAlloc`, and registration of buffers.

use std::ptr;

use libnccl::sys::ncclResult_t;

use crate::rank::{ARGUMENT, OK, Rank, USAGE};
use crate::{Case, cases};

pub(crate) fn cases() -> Vec<Case> {
    cases! {
        1..=1 => allocated_memory_is_aligned_and_freed, buffer_is_deregistered_once;
        1..=3 => registered_memory_is_reduced;
    }
}

fn allocated_memory_is_aligned_and_freed(rank: &Rank) {
    let is_cpu = rank.implementation.is_cpu_backend();
    for size in [1, 4096, 10_000, 1 << 20, (4 << 20) + 1] {
        // Twice: freed contents must not reappear on the CPU backend.
        for _ in 0..2 {
            let buffer = rank.allocate_by_nccl(size);
            assert_eq!(buffer.address.addr() % 4096, 0);
            assert!(!is_cpu || buffer.read::<u8>().iter().all(|byte| *byte == 0), "{size}");
            buffer.write(&vec![0xa5_u8; size]);
            assert!(buffer.read::<u8>().iter().all(|byte| *byte == 0xa5));
            check!(rank, ncclMemFree(buffer.address));
        }
    }
    assert_eq!(call!(rank, ncclMemFree(ptr::null_mut())), OK);
    if is_cpu && !rank.implementation.has_device_memory() {
        let mut memory = ptr::dangling_mut();
        assert_eq!((call!(rank, ncclMemAlloc(&mut memory, 0)), memory), (OK, ptr::null_mut()));
        assert_eq!(call!(rank, ncclMemAlloc(ptr::null_mut(), 1)), ARGUMENT);
        for size in [usize::MAX, usize::MAX - 4096, 1 << 60] {
            let mut memory = ptr::dangling_mut();
            assert_eq!(call!(rank, ncclMemAlloc(&mut memory, size)), ncclResult_t::ncclSystemError, "{size}");
            assert_eq!(memory, ptr::dangling_mut(), "the pointer is written on success only");
        }
        let (buffer, mut foreign) = (rank.upload_to_nccl(&[0_u8; 10_000]), 0_u64);
        for wrong in [ptr::from_mut(&mut foreign).cast(), buffer.at(4096)] {
            assert_eq!(call!(rank, ncclMemFree(wrong)), ARGUMENT);
            rank.assert_last_error(&format!("{wrong:p} is not from ncclMemAlloc"));
        }
        assert_eq!(
            [call!(rank, ncclMemFree(buffer.at(0))), call!(rank, ncclMemFree(buffer.at(0)))],
            [OK, ARGUMENT]
        );
    }
}

fn registered_memory_is_reduced(rank: &Rank) {
    let (comm, mut handle) = (rank.join("communicator"), ptr::null_mut());
    let buffer = rank.upload_to_nccl(&vec![1_i32; 100_000]);
    check!(rank, ncclCommRegister(comm, buffer.at(0), buffer.bytes, &mut handle));
    // In stream order: all start before any has ended.
    (0..3).for_each(|_| rank.start_sum(comm, &buffer));
    assert!(buffer.read::<i32>().iter().all(|element| *element == (rank.size as i32).pow(3)));
    rank.barrier("all work is done");
    check!(rank, ncclCommDeregister(comm, handle));
    check!(rank, ncclMemFree(buffer.at(0)));
    rank.assert_works(comm);
    rank.destroy(comm);
}

fn buffer_is_deregistered_once(rank: &Rank) {
    let comms = ["one", "other"].map(|name| rank.join(name));
    let buffer = rank.upload_to_nccl(&[0_u8; 4096]);
    let register = |comm, size| {
        let mut handle = ptr::null_mut();
        check!(rank, ncclCommRegister(comm, buffer.at(0), size, &mut handle));
        handle
    };
    let deregister = |comm, handle| call!(rank, ncclCommDeregister(comm, handle));
    let handles = [register(comms[0], 4096), register(comms[0], 4096), register(comms[0], 7)];
    if rank.implementation.is_cpu_backend() {
        assert!((0..3).all(|index| !handles[..index].contains(&handles[index])), "two have one handle");
        let other = register(comms[1], 4096);
        assert_eq!(deregister(comms[0], other), USAGE, "another communicator's");
        rank.assert_last_error("is not a registration of this communicator");
        for handle in handles {
            assert_eq!([deregister(comms[0], handle), deregister(comms[0], handle)], [OK, USAGE]);
        }
        assert!(!handles.contains(&register(comms[0], 4096)), "a handle is reused");
    } else {
        handles
            .into_iter()
            .filter(|handle| !handle.is_null())
            .for_each(|handle| assert_eq!(deregister(comms[0], handle), OK));
    }
    // One buffer is still registered on the CPU backend.
    comms.into_iter().for_each(|comm| rank.destroy(comm));
}
