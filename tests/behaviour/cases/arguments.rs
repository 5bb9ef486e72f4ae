//! Invalid arguments: they are found before NCCL is called, and the error names the values.

use std::time::Duration;

use libnccl::buffer::AnyBuffer;
use libnccl::error::InvalidArgumentKind;
use libnccl::{Config, Context, DataType, Error, Nccl, ReduceOp, Result, Slice, SliceMut, sys};

use super::common::{SHORT, STREAM, cases, of_one_thread, of_one_thread_with};

cases! {
    short_buffer_error_names_both_lengths,
    root_or_peer_out_of_range_is_an_error,
    in_place_buffer_not_divisible_by_ranks_is_an_error,
    host_buffer_on_device_communicator_is_an_error,
    device_buffer_on_host_communicator_is_an_error,
    views_of_two_types_are_an_error,
    partial_or_misaligned_elements_are_an_error,
    kind_of_an_invalid_argument_can_be_matched,
    method_that_calls_another_names_itself,
}

/// The default context of a device.
struct Device;

impl Context for Device {
    fn device(&self) -> usize {
        0
    }
    fn make_current(&self) -> std::result::Result<(), Box<dyn std::error::Error>> {
        Ok(())
    }
}

fn method_that_calls_another_names_itself(nccl: &Nccl) {
    let (id, config) = (nccl.unique_id().unwrap(), Config::new().timeout(Duration::from_millis(50)));
    let mut comms = of_one_thread(nccl, 2);
    let in_group = |call: &mut dyn FnMut() -> Result<()>| {
        let mut result = Ok(());
        nccl.group(|_| {
            result = call();
            Ok(())
        })
        .unwrap();
        result
    };
    let init = |size, rank, config: &Config| {
        nccl.communicator(size, rank, &id).device(&Device).config(config).init().map(drop)
    };
    for (text, result) in [
        ("init: rank 2 is not below the size 2", init(2, 2, &config)),
        ("init on rank 0 of 2: not done after ", init(2, 0, &config)),
        ("init: a group is open", in_group(&mut || init(1, 0, &config))),
        ("destroy: a group is open", in_group(&mut || comms.pop().unwrap().destroy())),
    ] {
        let error = result.unwrap_err().to_string();
        assert!(error.starts_with(text), "{text:?}: {error}");
    }
}

fn message(result: Result<()>) -> String {
    match result.unwrap_err() {
        error @ Error::InvalidArgument { .. } => error.to_string(),
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn check(wrong: Result<()>, text: &str) {
    assert_eq!(message(wrong), text);
}

/// Passes one element too few to each operation, on rank 1 of 3.
// Regression: cudarc checks neither receive buffers nor roots.
// Regression: baracuda does not check lengths, or panics.
// Regression: ferrotorch guesses the data type from the size, and checks no sizes.
fn short_buffer_error_names_both_lengths(nccl: &Nccl) {
    // A call that is not refused waits for the other ranks.
    let comms = of_one_thread_with(nccl, 3, &Config::new().timeout(SHORT));
    let comm = &comms[1];
    let (send, mut recv) = (vec![0_i32; 12], vec![0_i32; 12]);
    let wrong = comm.all_reduce(&send, &mut recv[..11], ReduceOp::Sum, STREAM);
    check(wrong, "all_reduce: the receive buffer holds 11 elements, and needs 12");
    let wrong = comm.broadcast(&send[..11], &mut recv, 1, STREAM);
    check(wrong, "broadcast: the root's send buffer holds 11 elements, and needs 12");
    let wrong = comm.reduce(&send, &mut recv[..11], ReduceOp::Sum, 1, STREAM);
    check(wrong, "reduce: the root's receive buffer holds 11 elements, and needs 12");
    let wrong = comm.all_gather(&send[..4], &mut recv[..11], STREAM);
    check(wrong, "all_gather: the receive buffer holds 11 elements, and needs 12, 3 ranks times 4");
    let wrong = comm.reduce_scatter(&send[..11], &mut recv[..4], ReduceOp::Sum, STREAM);
    check(wrong, "reduce_scatter: the send buffer holds 11 elements, and needs 12, 3 ranks times 4");
    // Regression: monarch's all_to_all does not check what it writes to.
    let wrong = comm.all_to_all(&send, &mut recv[..11], STREAM);
    check(wrong, "all_to_all: the receive buffer holds 11 elements, and needs 12, 3 ranks times 4");
    let wrong = comm.gather(&send[..4], &mut recv[..11], 1, STREAM);
    check(wrong, "gather: the root's receive buffer holds 11 elements, and needs 12, 3 ranks times 4");
    let wrong = comm.scatter(&send[..11], &mut recv[..4], 1, STREAM);
    check(wrong, "scatter: the root's send buffer holds 11 elements, and needs 12, 3 ranks times 4");
    // SAFETY: never read, as the length is an error.
    let huge = unsafe { Slice::<i32>::from_device_ptr(std::ptr::dangling(), usize::MAX) };
    let refused = device_library().init_all(&[0, 1]).unwrap()[0].all_gather(huge, &mut [0; 0], STREAM);
    assert!(message(refused).ends_with("needs more than usize::MAX, 2 ranks times 18446744073709551615"));
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
            ("send: peer", comm.send(&send, rank, STREAM)),
            ("recv: peer", comm.recv(&mut recv, rank, STREAM)),
        ] {
            check(wrong, &format!("{what} {rank} is not below 2, the communicator's size"));
        }
    }
}

fn in_place_buffer_not_divisible_by_ranks_is_an_error(nccl: &Nccl) {
    let comms = of_one_thread(nccl, 3);
    let mut buffer = [0_f64; 11];
    for (call, wrong) in [
        ("all_gather_in_place", comms[0].all_gather_in_place(&mut buffer, STREAM)),
        ("reduce_scatter_in_place", comms[0].reduce_scatter_in_place(&mut buffer, ReduceOp::Sum, STREAM)),
    ] {
        assert_eq!(
            message(wrong),
            format!("{call}: the buffer's 11 elements are not a multiple of 3, the communicator's size")
        );
    }
}

/// Returns the CPU backend without the parameter that says it works on host memory.
fn device_library() -> Nccl {
    let functions = sys::Functions { ncclParamGetParameter: None, ..libnccl_cpu::TABLE };
    // SAFETY: the CPU backend's functions.
    unsafe { Nccl::from_table("CPU that claims to be a GPU", functions) }.unwrap()
}

fn host_buffer_on_device_communicator_is_an_error(_: &Nccl) {
    let comms = device_library().init_all(&[0]).unwrap();
    let (send, mut recv, comm) = ([1_i64; 4], [0_i64; 4], &comms[0]);
    for (buffer, wrong) in [
        ("all_reduce: the send buffer", comm.all_reduce(&send, &mut recv, ReduceOp::Sum, STREAM)),
        ("broadcast: the send buffer", comm.broadcast(&send, &mut recv, 0, STREAM)),
        ("reduce: the send buffer", comm.reduce(&send, &mut recv, ReduceOp::Sum, 0, STREAM)),
        ("all_gather: the send buffer", comm.all_gather(&send, &mut recv, STREAM)),
        ("reduce_scatter: the send buffer", comm.reduce_scatter(&send, &mut recv, ReduceOp::Sum, STREAM)),
        ("send: the send buffer", comm.send(&send, 0, STREAM)),
        ("recv: the receive buffer", comm.recv(&mut recv, 0, STREAM)),
        ("all_reduce_in_place: the buffer", comm.all_reduce_in_place(&mut recv, ReduceOp::Sum, STREAM)),
        ("send_recv: the send buffer", comm.send_recv(&send, &mut recv, 0, 0, STREAM)),
    ] {
        check(wrong, &format!("{buffer} is in host memory; the communicator works on device memory"));
    }

    // SAFETY: this "device" is the host, and the calls are complete when they return.
    let (send, recv) = unsafe {
        (Slice::from_device_ptr(send.as_ptr(), 4), SliceMut::from_device_ptr(recv.as_mut_ptr(), 4))
    };
    comm.all_reduce(send, recv, ReduceOp::Sum, STREAM).unwrap();
}

fn device_buffer_on_host_communicator_is_an_error(nccl: &Nccl) {
    let comms = of_one_thread(nccl, 1);
    let mut recv = [0_i8; 4];
    // SAFETY: never read, as the memory space is an error.
    let send = unsafe { Slice::<i8>::from_device_ptr(std::ptr::dangling(), 4) };
    let wrong = comms[0].all_reduce(send, &mut recv, ReduceOp::Sum, STREAM);
    check(wrong, "all_reduce: the send buffer is in device memory; the communicator works on host memory");
    // SAFETY: as above.
    let recv = unsafe { SliceMut::<i8>::from_device_ptr(std::ptr::dangling_mut(), 4) };
    let wrong = comms[0].all_gather(&[1_i8; 4], recv, STREAM);
    check(wrong, "all_gather: the receive buffer is in device memory; the communicator works on host memory");
}

fn views_of_two_types_are_an_error(nccl: &Nccl) {
    let comm = of_one_thread(nccl, 1).remove(0);
    let (send, mut recv) = ([1.0_f32; 2], [0_i64; 2]);
    let (from, mut to) = (Slice::from(&send).into_any(), SliceMut::from(&mut recv).into_any());
    let expected = "the elements of the send buffer are float, of the receive buffer int64";
    let result = comm.all_reduce(from, to.reborrow(), ReduceOp::Sum, STREAM);
    check(result, &format!("all_reduce: {expected}"));
    let result = nccl.group(|g| comm.all_gather(from, to, g.stream(STREAM)));
    assert_eq!(message(result), format!("all_gather: {expected}"));
    assert_eq!(recv, [0; 2]);
    comm.broadcast_in_place(&mut recv, 0, STREAM).unwrap();
}

fn partial_or_misaligned_elements_are_an_error(nccl: &Nccl) {
    let mut elements = [0_u64; 2];
    // SAFETY: the bytes of the elements.
    let bytes = unsafe { std::slice::from_raw_parts_mut(elements.as_mut_ptr().cast::<u8>(), 16) };
    assert_eq!(Slice::from_bytes(DataType::Float64, &*bytes).unwrap().len(), 2);
    assert_eq!(Slice::from_bytes(DataType::Float64, &[]).unwrap().len(), 0);
    let wrong = Slice::from_bytes(DataType::Float32, &bytes[..6]).map(drop);
    check(wrong, "Slice::from_bytes: 6 bytes are not a multiple of 4, the size of float");
    let misaligned = message(SliceMut::from_bytes(DataType::Bfloat16, &mut bytes[1..5]).map(drop));
    assert!(misaligned.ends_with(" is not a multiple of 2, the size of bfloat16"), "{misaligned}");

    // With a buffer, only the operation sees the bytes.
    let comm = of_one_thread(nccl, 1).remove(0);
    let (from, to) = bytes.split_at_mut(8);
    let from = &from[..6];
    let floats = AnyBuffer::new(DataType::Float32, from);
    let expected = "6 bytes are not a multiple of 4, the size of float";
    let wrong = comm.all_reduce(floats, AnyBuffer::new(DataType::Float32, &mut *to), ReduceOp::Sum, STREAM);
    assert_eq!(message(wrong), format!("all_reduce: {expected}"));
    let grouped = nccl.group(|g| comm.send(floats, 0, g.stream(STREAM)));
    assert_eq!(message(grouped), format!("send: {expected}"));
    let few = AnyBuffer::new(DataType::Float64, &mut to[..7]);
    let short = message(comm.broadcast_in_place(few, 0, STREAM));
    assert_eq!(short, "broadcast_in_place: 7 bytes are not a multiple of 8, the size of double");
    let misaligned = message(comm.recv(AnyBuffer::new(DataType::Float16, &mut to[1..5]), 0, STREAM));
    assert!(misaligned.starts_with("recv: the address 0x"), "{misaligned}");
    assert!(misaligned.ends_with(" is not a multiple of 2, the size of half"), "{misaligned}");
    let two = AnyBuffer::new(DataType::Float16, from);
    let wrong = comm.all_reduce(two, AnyBuffer::new(DataType::Bfloat16, to), ReduceOp::Sum, STREAM);
    check(wrong, "all_reduce: the elements of the send buffer are half, of the receive buffer bfloat16");
    assert_eq!(elements, [0; 2]);
    let short = message(comm.pre_mul_sum_any(DataType::Float16, &[1]).map(drop));
    assert_eq!(short, "pre_mul_sum_any: the scalar has 1 bytes; expected 2, the size of half");
    let (_, to) = bytes.split_at_mut(8);
    let sum = comm.pre_mul_sum_any(DataType::Uint8, &[3]).unwrap();
    let other = message(comm.all_reduce_in_place(AnyBuffer::new(DataType::Int8, &mut *to), &sum, STREAM));
    let expected = "all_reduce_in_place: the elements of the buffer are int8, and the reduction is of uint8";
    assert_eq!(other, expected);
    let sum = comm.pre_mul_sum_any(DataType::Float16, &[0, 0]).unwrap();
    let partial = AnyBuffer::new(DataType::Float16, &mut to[..5]);
    let partial = message(comm.all_reduce_in_place(partial, &sum, STREAM));
    assert_eq!(partial, "all_reduce_in_place: 5 bytes are not a multiple of 2, the size of half");
    assert_eq!(elements, [0; 2]);
    let nothing = AnyBuffer::new(DataType::Float64, &mut []);
    comm.broadcast_in_place(nothing, 0, STREAM).unwrap();
}

fn kind_of_an_invalid_argument_can_be_matched(nccl: &Nccl) {
    use InvalidArgumentKind as Kind;

    let comm = of_one_thread(nccl, 1).remove(0);
    let kind = |result: Result<()>| match result.unwrap_err() {
        Error::InvalidArgument { kind, .. } => kind,
        other => panic!("{other}"),
    };
    let (two, mut one) = ([1.0_f32; 2], [0.0_f32]);
    // SAFETY: never read, as the memory space is an error.
    let on_device = unsafe { Slice::<f32>::from_device_ptr(std::ptr::dangling(), 2) };
    let other = Slice::from(&[1_i64]).into_any();
    let mut text = SliceMut::from(&mut one).into_any();
    assert_eq!(kind(comm.all_gather(other, text.reborrow(), STREAM)), Kind::DataType);
    assert_eq!(kind(comm.all_reduce(&two, &mut one, ReduceOp::Sum, STREAM)), Kind::Length);
    assert_eq!(kind(comm.all_gather(on_device, &mut one, STREAM)), Kind::MemorySpace);
    assert_eq!(kind(comm.broadcast_in_place(&mut one, 1, STREAM)), Kind::Rank);
    let other = of_one_thread(nccl, 1).remove(0);
    let halves = comm.pre_mul_sum(0.5_f32).unwrap();
    assert_eq!(kind(other.all_reduce_in_place(&mut [1.0_f32], &halves, STREAM)), Kind::Communicator);
    assert_eq!(kind(nccl.init_all(&[-1]).map(drop)), Kind::Device);
    let id = nccl.unique_id().unwrap();
    assert_eq!(
        kind(nccl.communicator(1, 0, &id).config(&Config::new().min_ctas(0)).init().map(drop)),
        Kind::Value
    );
    // SAFETY: null is what is tested.
    let null = unsafe { libnccl::Communicator::from_raw(nccl, std::ptr::null_mut()) };
    assert_eq!(kind(null.map(drop)), Kind::Address);
}
