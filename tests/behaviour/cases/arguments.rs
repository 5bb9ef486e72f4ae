//! Invalid arguments: they are found before NCCL is called, and the error names the values.

use libnccl::buffer::AnyBuffer;
use libnccl::error::InvalidArgumentKind as Kind;
use libnccl::{
    CallOptions, Communicator, Config, DataType, Error, Nccl, ReduceOp, Result, Slice, SliceMut, sys,
};

use super::common::{SHORT, STREAM, assert_works, cases, of_one_thread, of_one_thread_with, on_threads};

cases! {
    wrong_length_error_names_both_lengths,
    wrong_counts_error_names_them,
    root_or_peer_out_of_range_is_an_error,
    buffer_in_the_wrong_memory_is_an_error,
    views_of_two_types_are_an_error,
    partial_or_misaligned_elements_are_an_error,
    reduction_of_another_communicator_or_type_is_an_error,
    communicator_of_a_wrong_value_is_an_error,
}

const SUM: ReduceOp = ReduceOp::Sum;

/// Asserts the kind of an error and its text, in which `*` is an address.
#[track_caller]
fn check<T>(kind: Kind, result: Result<T>, text: &str) {
    let error = result.err().expect("an error");
    let is_kind = matches!(error, Error::InvalidArgument { kind: found, .. } if found == kind);
    assert!(is_kind, "{error} is not of the kind {kind:?}");
    let found = error.to_string();
    match text.split_once('*') {
        Some((start, end)) => assert!(found.starts_with(start) && found.ends_with(end), "{found}"),
        None => assert_eq!(found, text),
    }
}

/// Passes one element too few to each operation, on rank 1 of 3.
// Regression: cudarc checks neither receive buffers nor roots.
// Regression: baracuda does not check lengths, or panics.
// Regression: ferrotorch guesses the data type from the size, and checks no sizes.
// Regression: monarch's all_to_all does not check what it writes to.
fn wrong_length_error_names_both_lengths(nccl: &Nccl) {
    // A call that is not refused waits for the other ranks.
    let comms = of_one_thread_with(nccl, 3, &Config::new().timeout(SHORT));
    let comm = &comms[1];
    let (send, mut recv) = (vec![0_i32; 12], vec![0_i32; 12]);
    let plain = "holds 11 elements but needs 12";
    let each = "holds 11 elements but needs 12 (3 ranks x 4)";
    for (wrong, buffer, lengths) in [
        (comm.all_reduce(&send, &mut recv[..11], SUM, STREAM), "all_reduce: the receive", plain),
        (comm.broadcast(&send[..11], &mut recv, 1, STREAM), "broadcast: the root's send", plain),
        (comm.reduce(&send, &mut recv[..11], SUM, 1, STREAM), "reduce: the root's receive", plain),
        (comm.all_gather(&send[..4], &mut recv[..11], STREAM), "all_gather: the receive", each),
        (comm.reduce_scatter(&send[..11], &mut recv[..4], SUM, STREAM), "reduce_scatter: the send", each),
        (comm.all_to_all(&send, &mut recv[..11], STREAM), "all_to_all: the receive", each),
        (comm.gather(&send[..4], &mut recv[..11], 1, STREAM), "gather: the root's receive", each),
        (comm.scatter(&send[..11], &mut recv[..4], 1, STREAM), "scatter: the root's send", each),
    ] {
        check(Kind::Length, wrong, &format!("{buffer} buffer {lengths}"));
    }
    let uneven = "buffer's 11 elements are not a multiple of 3, the communicator's size";
    for (wrong, buffer) in [
        (comm.all_gather_in_place(&mut recv[..11], STREAM), "all_gather_in_place: the"),
        (comm.reduce_scatter_in_place(&mut recv[..11], SUM, STREAM), "reduce_scatter_in_place: the"),
        (comm.all_to_all(&send[..11], &mut recv, STREAM), "all_to_all: the send"),
    ] {
        check(Kind::Length, wrong, &format!("{buffer} {uneven}"));
    }
    let empty = comm.barrier(&mut [0_u8; 0], STREAM);
    check(Kind::Length, empty, "barrier: the buffer is empty; expected one element");
    // SAFETY: never read, as the length is an error.
    let huge = unsafe { Slice::<i32>::from_device_ptr(std::ptr::dangling(), usize::MAX) };
    let refused = device_library().init_all(&[0, 1]).unwrap()[0].all_gather(huge, &mut [0; 0], STREAM);
    check(Kind::Length, refused, "*needs more than usize::MAX (2 ranks x 18446744073709551615)");
}

/// On rank 1 of 3.
fn wrong_counts_error_names_them(nccl: &Nccl) {
    let comms = of_one_thread_with(nccl, 3, &Config::new().timeout(SHORT));
    let comm = &comms[1];
    let (send, mut recv) = ([0_i32; 4], [0_i32; 9]);
    let max = usize::MAX;
    #[rustfmt::skip]
    let wrong = [
        (comm.all_gather_v(&send, &mut recv, &[4, 4], STREAM),
            "all_gather_v: 2 counts; expected 3, one for each rank"),
        (comm.all_gather_v(&send, &mut recv, &[0, 3, 2], STREAM),
            "all_gather_v: the send buffer holds 4 elements; expected 3, the count of rank 1"),
        (comm.all_gather_v(&send, &mut recv, &[4, 4, 4], STREAM),
            "all_gather_v: the receive buffer holds 9 elements but needs 12"),
        (comm.all_gather_v(&send, &mut recv, &[max, 4, 1], STREAM),
            "all_gather_v: the sum of the counts is more than usize::MAX"),
        (comm.reduce_scatter_v(&send, &mut recv[..2], &[1, 2, 2], SUM, STREAM),
            "reduce_scatter_v: the send buffer holds 4 elements but needs 5"),
        (comm.reduce_scatter_v(&send, &mut recv, &[1, 2, 1], SUM, STREAM),
            "reduce_scatter_v: the receive buffer holds 9 elements; expected 2, the count of rank 1"),
        (comm.all_to_all_v(&send, &mut recv, &[1, 2, 2], &[1, 2, 1], STREAM),
            "all_to_all_v: the send buffer holds 4 elements but needs 5"),
        (comm.all_to_all_v(&send, &mut recv, &[1, 2, 1], &[4, 2, 4], STREAM),
            "all_to_all_v: the receive buffer holds 9 elements but needs 10"),
        (comm.all_to_all_v(&send, &mut recv, &[1, 2, 1], &[1, 3, 1], STREAM),
            "all_to_all_v: this rank sends 2 elements to itself; its receive counts have 3"),
        (comm.all_to_all_v(&send, &mut recv, &[4], &[1, 3, 1], STREAM),
            "all_to_all_v: 1 send counts; expected 3, one for each rank"),
        (comm.gather_v(&send, &mut recv, &[1, 4, 1, 0], 1, STREAM),
            "gather_v: 4 counts; expected 3, one for each rank"),
        (comm.gather_v(&send, &mut recv, &[4, 4, 4], 1, STREAM),
            "gather_v: the root's receive buffer holds 9 elements but needs 12"),
        (comm.gather_v(&send, &mut recv, &[1, 5, 1], 1, STREAM),
            "gather_v: the send buffer holds 4 elements; expected 5, the count of rank 1"),
        (comm.scatter_v(&send, &mut recv[..2], &[1, 2, 2], 1, STREAM),
            "scatter_v: the root's send buffer holds 4 elements but needs 5"),
        (comm.scatter_v(&send, &mut recv, &[1, 3, 0], 1, STREAM),
            "scatter_v: the receive buffer holds 9 elements; expected 3, the count of rank 1"),
        (comm.all_gather_v_in_place(&mut recv, &[4, 4], STREAM),
            "all_gather_v_in_place: 2 counts; expected 3, one for each rank"),
        (comm.all_gather_v_in_place(&mut recv, &[3, 3, 4], STREAM),
            "all_gather_v_in_place: the in-place buffer holds 9 elements but needs 10"),
        (comm.reduce_scatter_v_in_place(&mut recv, &[9, max, 4], SUM, STREAM),
            "reduce_scatter_v_in_place: the sum of the counts is more than usize::MAX"),
        (comm.gather_v_in_place(&mut recv, &[4, 4, 4], 1, STREAM),
            "gather_v_in_place: the root's buffer holds 9 elements but needs 12"),
        (comm.scatter_v_in_place(&mut recv, &[], 1, STREAM),
            "scatter_v_in_place: 0 counts; expected 3, one for each rank"),
        (comm.send_recv(&send, &mut recv, 1, 1, STREAM),
            "send_recv: this rank sends 4 elements to itself; it receives 9"),
    ];
    wrong.into_iter().for_each(|(result, text)| check(Kind::Length, result, text));
    let options = libnccl::config::CollectiveConfig::new().max_ctas(1);
    let refused = comm.send_recv(&send, &mut recv, 0, 0, CallOptions::on(STREAM).config(&options));
    assert!(matches!(refused, Err(Error::InvalidUsage { call: "send_recv", .. })), "{refused:?}");
    drop(comms);
    // Nothing was started.
    on_threads(nccl, 3, &Config::new(), |comm| {
        comm.all_gather_v(&[0_u8; 2], &mut [0_u8; 3], &[1, 1, 1], STREAM).unwrap_err();
        assert_works(&comm);
    });
}

// Regression: cudarc checks neither receive buffers nor roots.
fn root_or_peer_out_of_range_is_an_error(nccl: &Nccl) {
    let comms = of_one_thread(nccl, 2);
    let comm = &comms[0];
    let (send, mut recv) = ([0_u8; 4], [0_u8; 4]);
    for rank in [2, usize::MAX] {
        for (what, wrong) in [
            ("broadcast: root", comm.broadcast(&send, &mut recv, rank, STREAM)),
            ("broadcast_in_place: root", comm.broadcast_in_place(&mut recv, rank, STREAM)),
            ("reduce: root", comm.reduce(&send, &mut recv, ReduceOp::Max, rank, STREAM)),
            ("gather: root", comm.gather(&send, &mut recv, rank, STREAM)),
            ("scatter: root", comm.scatter(&send, &mut recv, rank, STREAM)),
            ("gather_v: root", comm.gather_v(&send, &mut recv, &[], rank, STREAM)),
            ("scatter_v_in_place: root", comm.scatter_v_in_place(&mut recv, &[], rank, STREAM)),
            ("send: peer", comm.send(&send, rank, STREAM)),
            ("recv: peer", comm.recv(&mut recv, rank, STREAM)),
            ("send_recv: send peer", comm.send_recv(&send, &mut recv, rank, 0, STREAM)),
            ("send_recv: recv peer", comm.send_recv(&send, &mut recv, 0, rank, STREAM)),
        ] {
            check(Kind::Rank, wrong, &format!("{what} {rank} is not below 2, the communicator's size"));
        }
    }
}

/// Returns the CPU backend without the parameter that says it works on host memory.
fn device_library() -> Nccl {
    let functions = sys::Functions { ncclParamGetParameter: None, ..libnccl_cpu::TABLE };
    // SAFETY: the CPU backend's functions.
    unsafe { Nccl::from_table("CPU that claims to be a GPU", functions) }.unwrap()
}

fn buffer_in_the_wrong_memory_is_an_error(nccl: &Nccl) {
    let comms = device_library().init_all(&[0]).unwrap();
    let (send, mut recv, comm) = ([1_i64; 4], [0_i64; 4], &comms[0]);
    for (buffer, wrong) in [
        ("all_reduce: the send buffer", comm.all_reduce(&send, &mut recv, SUM, STREAM)),
        ("recv: the receive buffer", comm.recv(&mut recv, 0, STREAM)),
        ("all_reduce_in_place: the buffer", comm.all_reduce_in_place(&mut recv, SUM, STREAM)),
    ] {
        let problem = format!("{buffer} is in host memory; the communicator works on device memory");
        check(Kind::MemorySpace, wrong, &problem);
    }
    // SAFETY: this "device" is the host, and the calls are complete when they return.
    let (send, mut recv) = unsafe {
        (Slice::from_device_ptr(send.as_ptr(), 4), SliceMut::from_device_ptr(recv.as_mut_ptr(), 4))
    };
    comm.all_reduce(send, recv.reborrow(), SUM, STREAM).unwrap();

    let (comms, mut own) = (of_one_thread(nccl, 1), [0_i64; 4]);
    let problem = "is in device memory; the communicator works on host memory";
    let wrong = comms[0].all_reduce(send, &mut own, SUM, STREAM);
    check(Kind::MemorySpace, wrong, &format!("all_reduce: the send buffer {problem}"));
    let wrong = comms[0].all_gather(&own, recv, STREAM);
    check(Kind::MemorySpace, wrong, &format!("all_gather: the receive buffer {problem}"));
}

fn views_of_two_types_are_an_error(nccl: &Nccl) {
    let comm = of_one_thread(nccl, 1).remove(0);
    let (send, mut recv) = ([1.0_f32; 2], [0_i64; 2]);
    let (from, mut to) = (Slice::from(&send).into_any(), SliceMut::from(&mut recv).into_any());
    let expected = "the elements of the send buffer are float, of the receive buffer int64";
    let result = comm.all_reduce(from, to.reborrow(), SUM, STREAM);
    check(Kind::DataType, result, &format!("all_reduce: {expected}"));
    let result = nccl.group(|g| comm.all_gather(from, to, g.stream(STREAM)));
    check(Kind::DataType, result, &format!("all_gather: {expected}"));
    assert_eq!(recv, [0; 2]);
    comm.broadcast_in_place(&mut recv, 0, STREAM).unwrap();
}

fn partial_or_misaligned_elements_are_an_error(nccl: &Nccl) {
    let mut elements = [0_u64; 2];
    // SAFETY: the bytes of the elements.
    let bytes = unsafe { std::slice::from_raw_parts_mut(elements.as_mut_ptr().cast::<u8>(), 16) };
    assert_eq!(Slice::from_bytes(DataType::Float64, &*bytes).unwrap().len(), 2);
    assert_eq!(Slice::from_bytes(DataType::Float64, &[]).unwrap().len(), 0);
    let (length, address) = (Kind::Length, Kind::Address);
    let partial = "6 bytes are not a multiple of 4, the size of float";
    let wrong = Slice::from_bytes(DataType::Float32, &bytes[..6]);
    check(length, wrong, &format!("Slice::from_bytes: {partial}"));
    let wrong = SliceMut::from_bytes(DataType::Bfloat16, &mut bytes[1..5]);
    check(
        address,
        wrong,
        "SliceMut::from_bytes: the address 0x* is not a multiple of 2, the size of bfloat16",
    );

    // With a buffer, only the operation sees the bytes.
    let comm = of_one_thread(nccl, 1).remove(0);
    let (from, to) = bytes.split_at_mut(8);
    let floats = AnyBuffer::new(DataType::Float32, &from[..6]);
    let wrong = comm.all_reduce(floats, AnyBuffer::new(DataType::Float32, &mut *to), SUM, STREAM);
    check(length, wrong, &format!("all_reduce: {partial}"));
    let wrong = nccl.group(|g| comm.send(floats, 0, g.stream(STREAM)));
    check(length, wrong, &format!("send: {partial}"));
    let wrong = comm.recv(AnyBuffer::new(DataType::Float16, &mut to[1..5]), 0, STREAM);
    check(address, wrong, "recv: the address 0x* is not a multiple of 2, the size of half");
    let wrong = comm.pre_mul_sum_any(DataType::Float16, &[1]);
    check(length, wrong, "pre_mul_sum_any: the scalar has 1 bytes; expected 2, the size of half");
    let sum = comm.pre_mul_sum_any(DataType::Float16, &[0, 0]).unwrap();
    let wrong = comm.all_reduce_in_place(AnyBuffer::new(DataType::Float16, &mut to[..5]), &sum, STREAM);
    check(length, wrong, "all_reduce_in_place: 5 bytes are not a multiple of 2, the size of half");
    assert_eq!(elements, [0; 2]);
    comm.broadcast_in_place(AnyBuffer::new(DataType::Float64, &mut []), 0, STREAM).unwrap();
}

fn reduction_of_another_communicator_or_type_is_an_error(nccl: &Nccl) {
    let [comm, other] = [(); 2].map(|()| of_one_thread(nccl, 1).remove(0));
    let threefold = other.pre_mul_sum_any(DataType::Uint8, &[3]).unwrap();
    let mut bytes = [0; 8];
    let mut reduce = |comm: &Communicator, data_type| {
        comm.all_reduce_in_place(AnyBuffer::new(data_type, &mut bytes), &threefold, STREAM)
    };
    let problem = "all_reduce_in_place: the reduction belongs to another communicator";
    check(Kind::Communicator, reduce(&comm, DataType::Uint8), problem);
    let problem = "all_reduce_in_place: the elements of the buffer are int8, and the reduction is of uint8";
    check(Kind::DataType, reduce(&other, DataType::Int8), problem);
    reduce(&other, DataType::Uint8).unwrap();
    let empty = comm.pre_mul_sum_device::<f32>(&[]);
    check(Kind::Length, empty, "pre_mul_sum_device: the scalar's buffer is empty; expected one element");
}

fn communicator_of_a_wrong_value_is_an_error(nccl: &Nccl) {
    // SAFETY: null is refused.
    let null = unsafe { Communicator::from_raw(nccl, std::ptr::null_mut()) };
    check(Kind::Address, null, "from_raw: the handle is null");
    check(Kind::Device, nccl.init_all(&[0, -3]), "init_all: device -3 is negative");
    let (id, config) = (nccl.unique_id().unwrap(), Config::new().min_ctas(0));
    let wrong = nccl.communicator(1, 0, &id).config(&config).init();
    check(Kind::Value, wrong, "init: min_ctas is 0; expected 1 to 2147483647");
}
