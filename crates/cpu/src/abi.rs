//! NCCL's functions as C calls them: arguments are checked and become safe types, failures become result
//! codes.
//!
//! # Safety
//!
//! The contract of every function here is its C declaration's: a pointer that is not NULL points to what the
//! header says, and buffers stay as they are until the call, or the group that it is in, has ended.
#![allow(unsafe_code, non_snake_case)]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::offset_of;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use libnccl::sys::{
    NCCL_API_MAGIC, NCCL_CONFIG_UNDEF_INT, NCCL_VERSION_CODE, cudaStream_t, ncclComm_t, ncclConfig_t,
    ncclDataType_t, ncclRedOp_t, ncclResult_t, ncclScalarResidence_t, ncclUniqueId,
};

use crate::buffer::{Source, Target};
use crate::collective::{Call, Function};
use crate::communicator::Communicator;
use crate::data_type::DataType;
use crate::failure::{Failure, Result};
use crate::group::{self, Init, Lane, Task};
use crate::point_to_point::Message;
use crate::process::Process;
use crate::unique_id::UniqueId;
use crate::world::{Alarm, MAX_RANKS, World};
use crate::{bootstrap, handle, last_error, memory, param};

/// Runs a call and turns what became of it into a result code and the last error. No panic gets out.
fn answer(call: impl FnOnce() -> Result) -> ncclResult_t {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => ncclResult_t::ncclSuccess,
        Ok(Err(failure)) => fail(&failure),
        Err(_) => fail(&Failure::internal("a panic inside the CPU implementation, which is a bug in it")),
    }
}

fn fail(failure: &Failure) -> ncclResult_t {
    last_error::set(&failure.text);
    failure.code
}

/// The same for a call whose failure calls the group off that it is in.
fn answer_in_group(function: &str, call: impl FnOnce() -> Result) -> ncclResult_t {
    answer(|| call().inspect_err(|failure| group::fail(function, failure)))
}

/// Writes a result.
///
/// # Safety
///
/// `slot` is NULL or can be written.
unsafe fn put<T>(slot: *mut T, value: T) -> Result {
    check(slot, "the result")?;
    // SAFETY: the caller vouches for a pointer that is not NULL.
    unsafe { slot.write(value) };
    Ok(())
}

fn check<T>(pointer: *const T, what: &str) -> Result {
    if pointer.is_null() { Err(Failure::argument(format!("the pointer to {what} is NULL"))) } else { Ok(()) }
}

/// A rank that a caller names.
fn rank_of(number: c_int, ranks: usize, what: &str) -> Result<usize> {
    usize::try_from(number)
        .ok()
        .filter(|rank| *rank < ranks)
        .ok_or_else(|| Failure::argument(format!("invalid {what} {number}: it has to be in 0..{ranks}")))
}

fn number_of_ranks(number: c_int) -> Result<usize> {
    usize::try_from(number).ok().filter(|ranks| (1..=MAX_RANKS).contains(ranks)).ok_or_else(|| {
        Failure::argument(format!("invalid number of ranks {number}: it has to be in 1..={MAX_RANKS}"))
    })
}

pub(crate) unsafe extern "C" fn ncclGetVersion(version: *mut c_int) -> ncclResult_t {
    // SAFETY: the C declaration's contract.
    answer(|| unsafe { put(version, NCCL_VERSION_CODE as c_int) })
}

pub(crate) unsafe extern "C" fn ncclGetUniqueId(uniqueId: *mut ncclUniqueId) -> ncclResult_t {
    answer(|| {
        check(uniqueId, "the unique id")?;
        let id = UniqueId::generate()?.raw();
        // SAFETY: the C declaration's contract.
        unsafe { put(uniqueId, id) }
    })
}

pub(crate) unsafe extern "C" fn ncclCommInitRank(
    comm: *mut ncclComm_t,
    nranks: c_int,
    commId: ncclUniqueId,
    rank: c_int,
) -> ncclResult_t {
    // SAFETY: the same contract; a config may be NULL.
    answer_in_group("ncclCommInitRank", || unsafe { init(comm, nranks, &commId, rank, std::ptr::null()) })
}

pub(crate) unsafe extern "C" fn ncclCommInitRankConfig(
    comm: *mut ncclComm_t,
    nranks: c_int,
    commId: ncclUniqueId,
    rank: c_int,
    config: *mut ncclConfig_t,
) -> ncclResult_t {
    // SAFETY: the same contract.
    answer_in_group("ncclCommInitRankConfig", || unsafe { init(comm, nranks, &commId, rank, config) })
}

/// # Safety
///
/// The contract of `ncclCommInitRankConfig`.
unsafe fn init(
    comm: *mut ncclComm_t,
    nranks: c_int,
    id: &ncclUniqueId,
    rank: c_int,
    config: *const ncclConfig_t,
) -> Result {
    check(comm, "the communicator")?;
    let ranks = number_of_ranks(nranks)?;
    let rank_index = rank_of(rank, ranks, "rank")?;
    // SAFETY: the caller's contract.
    unsafe { check_config(config) }?;
    let id = UniqueId::new(id)?;
    group::init(Init {
        meet: Box::new(move || {
            let world = bootstrap::meet(&id, ranks, rank_index)?;
            Ok(Communicator::new(Arc::new(world), rank_index, rank))
        }),
        // SAFETY: the caller's contract: the slot can be written until the group has ended.
        accept: Box::new(move |communicator| unsafe { comm.write(handle::add(communicator)) }),
    })
}

/// Checks what of a config matters here: that it is one.
///
/// # Safety
///
/// `config` is NULL or points to as many bytes as its first field, `size`, says, and at least to that and
/// `magic`.
unsafe fn check_config(config: *const ncclConfig_t) -> Result {
    if config.is_null() {
        return Ok(());
    }
    // SAFETY: the caller's contract. The struct may be an older and shorter one, so it is not made a
    // reference.
    let (size, magic) = unsafe { ((*config).size, (*config).magic) };
    if magic != NCCL_API_MAGIC || size < offset_of!(ncclConfig_t, cgaClusterSize) {
        return Err(Failure::argument("the config was not initialized with NCCL_CONFIG_INITIALIZER"));
    }
    // SAFETY: `size` covers it.
    let blocking = unsafe { (*config).blocking };
    if ![0, 1, NCCL_CONFIG_UNDEF_INT].contains(&blocking) {
        return Err(Failure::argument(format!(
            "invalid config value {blocking} of blocking: it has to be 0 or 1"
        )));
    }
    Ok(())
}

pub(crate) unsafe extern "C" fn ncclCommInitAll(
    comm: *mut ncclComm_t,
    ndev: c_int,
    devlist: *const c_int,
) -> ncclResult_t {
    answer(|| {
        check(comm, "the communicators")?;
        let ranks = number_of_ranks(ndev)?;
        let devices: Vec<c_int> = (0..ranks)
            // SAFETY: the C declaration's contract: a device list has `ndev` entries.
            .map(|rank| if devlist.is_null() { rank as c_int } else { unsafe { *devlist.add(rank) } })
            .collect();
        let mut known = std::collections::BTreeSet::new();
        for device in &devices {
            if *device < 0 {
                return Err(Failure::argument(format!("invalid device {device}")));
            }
            if !known.insert(*device) {
                return Err(Failure::usage(format!("device {device} is twice in the list")));
            }
        }
        let me = Process::current().map_err(|error| Failure::system("/proc/self/stat", error))?;
        let world = Arc::new(World::create(&vec![me; ranks])?.0);
        for (rank, device) in devices.into_iter().enumerate() {
            let handle = handle::add(Communicator::new(Arc::clone(&world), rank, device));
            // SAFETY: the C declaration's contract: there is room for `ndev` communicators.
            unsafe { comm.add(rank).write(handle) };
        }
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn ncclCommFinalize(comm: ncclComm_t) -> ncclResult_t {
    answer(|| if comm.is_null() { Ok(()) } else { handle::get(comm)?.finalize() })
}

pub(crate) unsafe extern "C" fn ncclCommDestroy(comm: ncclComm_t) -> ncclResult_t {
    answer(|| if comm.is_null() { Ok(()) } else { handle::remove(comm).map(drop) })
}

pub(crate) unsafe extern "C" fn ncclCommAbort(comm: ncclComm_t) -> ncclResult_t {
    answer(|| {
        if !comm.is_null() {
            handle::remove(comm)?.give_up(Alarm::Aborted);
        }
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn ncclGetErrorString(result: ncclResult_t) -> *const c_char {
    let text = match result {
        ncclResult_t::ncclSuccess => c"no error",
        ncclResult_t::ncclUnhandledCudaError => c"a CUDA call failed",
        ncclResult_t::ncclSystemError => c"a system call failed",
        ncclResult_t::ncclInternalError => c"internal error, a bug in the library",
        ncclResult_t::ncclInvalidArgument => c"invalid argument",
        ncclResult_t::ncclInvalidUsage => c"invalid usage",
        ncclResult_t::ncclRemoteError => c"another rank failed or is gone",
        ncclResult_t::ncclInProgress => c"operation in progress",
        ncclResult_t::ncclTimeout => c"timeout",
        _ => c"unknown result code",
    };
    text.as_ptr()
}

pub(crate) unsafe extern "C" fn ncclGetLastError(_: ncclComm_t) -> *const c_char {
    last_error::pointer()
}

pub(crate) unsafe extern "C" fn ncclCommGetAsyncError(
    comm: ncclComm_t,
    asyncError: *mut ncclResult_t,
) -> ncclResult_t {
    // SAFETY: the C declaration's contract.
    answer(|| unsafe { put(asyncError, handle::get(comm)?.state()) })
}

pub(crate) unsafe extern "C" fn ncclCommCount(comm: ncclComm_t, count: *mut c_int) -> ncclResult_t {
    // SAFETY: the C declaration's contract.
    answer(|| unsafe { put(count, handle::get(comm)?.ranks() as c_int) })
}

pub(crate) unsafe extern "C" fn ncclCommCuDevice(comm: ncclComm_t, device: *mut c_int) -> ncclResult_t {
    // SAFETY: the C declaration's contract.
    answer(|| unsafe { put(device, handle::get(comm)?.device()) })
}

pub(crate) unsafe extern "C" fn ncclCommUserRank(comm: ncclComm_t, rank: *mut c_int) -> ncclResult_t {
    // SAFETY: the C declaration's contract.
    answer(|| unsafe { put(rank, handle::get(comm)?.rank() as c_int) })
}

pub(crate) unsafe extern "C" fn ncclMemAlloc(ptr: *mut *mut c_void, size: usize) -> ncclResult_t {
    answer(|| {
        check(ptr, "the pointer")?;
        let memory = memory::allocate(size)?;
        // SAFETY: the C declaration's contract.
        unsafe { put(ptr, memory) }
    })
}

pub(crate) unsafe extern "C" fn ncclMemFree(ptr: *mut c_void) -> ncclResult_t {
    // SAFETY: the C declaration's contract: who frees memory no longer uses it.
    answer(|| unsafe { memory::free(ptr) })
}

pub(crate) unsafe extern "C" fn ncclRedOpCreatePreMulSum(
    op: *mut ncclRedOp_t,
    scalar: *mut c_void,
    datatype: ncclDataType_t,
    residence: ncclScalarResidence_t,
    comm: ncclComm_t,
) -> ncclResult_t {
    answer(|| {
        let communicator = handle::get(comm)?;
        check(op, "the reduction")?;
        check(scalar, "the scalar")?;
        let data_type = DataType::new(datatype)?;
        if residence.0 > ncclScalarResidence_t::ncclScalarHostImmediate.0 {
            return Err(Failure::argument(format!("invalid residence {} of a scalar", residence.0)));
        }
        let mut bytes = [0; 8];
        // SAFETY: the C declaration's contract: one element. Device memory is host memory here, and reading
        // it now instead of at every use is what NCCL allows: it must not change before the last use.
        unsafe { Source::new(scalar.cast(), data_type.size()) }.read(0, &mut bytes[..data_type.size()]);
        // SAFETY: the C declaration's contract.
        unsafe { put(op, communicator.create_scalar(data_type, bytes)) }
    })
}

pub(crate) unsafe extern "C" fn ncclRedOpDestroy(op: ncclRedOp_t, comm: ncclComm_t) -> ncclResult_t {
    answer(|| handle::get(comm)?.destroy_scalar(op))
}

/// The arguments of a collective.
struct Arguments {
    function: Function,
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    datatype: ncclDataType_t,
    op: Option<ncclRedOp_t>,
    root: c_int,
    comm: ncclComm_t,
}

/// # Safety
///
/// The contract of the function that was called.
unsafe fn collective(arguments: &Arguments) -> ncclResult_t {
    let Arguments { function, send, receive, count, datatype, op, root, comm } = *arguments;
    answer_in_group(function.name(), || {
        let communicator = handle::get(comm)?;
        communicator.ready()?;
        let (rank, ranks) = (communicator.rank(), communicator.ranks());
        let root = rank_of(root, ranks, "root")?;
        let data_type = DataType::new(datatype)?;
        let reduction = op.map(|op| communicator.reduction(op, data_type)).transpose()?;
        data_type.bytes(count.saturating_mul(ranks))?;
        if count == 0 {
            return Ok(());
        }
        let call = Call { function, count, data_type, reduction, root };
        let (inputs, outputs) = (call.inputs(rank, ranks), call.outputs(rank, ranks));
        if inputs > 0 {
            check(send, "the send buffer")?;
        }
        if outputs > 0 {
            check(receive, "the receive buffer")?;
        }
        let bytes = count * data_type.size();
        // SAFETY: the caller's contract: the buffers are as long as the function says and stay until the
        // call, or the group, has ended, and with it every use of these.
        let (send, receive) = unsafe {
            (Source::new(send.cast(), inputs * bytes), Target::new(receive.cast(), outputs * bytes))
        };
        let own = Arc::clone(&communicator);
        let operation = Box::pin(async move { call.run(own.world(), own.rank(), send, receive).await });
        group::run(Task { communicator, lane: Lane::Collective, operation })
    })
}

pub(crate) unsafe extern "C" fn ncclReduce(
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    datatype: ncclDataType_t,
    op: ncclRedOp_t,
    root: c_int,
    comm: ncclComm_t,
    _: cudaStream_t,
) -> ncclResult_t {
    let (function, op) = (Function::Reduce, Some(op));
    // SAFETY: the same contract.
    unsafe { collective(&Arguments { function, send, receive, count, datatype, op, root, comm }) }
}

pub(crate) unsafe extern "C" fn ncclBcast(
    buff: *mut c_void,
    count: usize,
    datatype: ncclDataType_t,
    root: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    // SAFETY: a broadcast in place.
    unsafe { ncclBroadcast(buff, buff, count, datatype, root, comm, stream) }
}

pub(crate) unsafe extern "C" fn ncclBroadcast(
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    datatype: ncclDataType_t,
    root: c_int,
    comm: ncclComm_t,
    _: cudaStream_t,
) -> ncclResult_t {
    let (function, op) = (Function::Broadcast, None);
    // SAFETY: the same contract.
    unsafe { collective(&Arguments { function, send, receive, count, datatype, op, root, comm }) }
}

pub(crate) unsafe extern "C" fn ncclAllReduce(
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    datatype: ncclDataType_t,
    op: ncclRedOp_t,
    comm: ncclComm_t,
    _: cudaStream_t,
) -> ncclResult_t {
    let (function, op, root) = (Function::AllReduce, Some(op), 0);
    // SAFETY: the same contract.
    unsafe { collective(&Arguments { function, send, receive, count, datatype, op, root, comm }) }
}

pub(crate) unsafe extern "C" fn ncclReduceScatter(
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    datatype: ncclDataType_t,
    op: ncclRedOp_t,
    comm: ncclComm_t,
    _: cudaStream_t,
) -> ncclResult_t {
    let (function, op, root) = (Function::ReduceScatter, Some(op), 0);
    // SAFETY: the same contract.
    unsafe { collective(&Arguments { function, send, receive, count, datatype, op, root, comm }) }
}

pub(crate) unsafe extern "C" fn ncclAllGather(
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    datatype: ncclDataType_t,
    comm: ncclComm_t,
    _: cudaStream_t,
) -> ncclResult_t {
    let (function, op, root) = (Function::AllGather, None, 0);
    // SAFETY: the same contract.
    unsafe { collective(&Arguments { function, send, receive, count, datatype, op, root, comm }) }
}

pub(crate) unsafe extern "C" fn ncclAlltoAll(
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    datatype: ncclDataType_t,
    comm: ncclComm_t,
    _: cudaStream_t,
) -> ncclResult_t {
    let (function, op, root) = (Function::AlltoAll, None, 0);
    // SAFETY: the same contract.
    unsafe { collective(&Arguments { function, send, receive, count, datatype, op, root, comm }) }
}

pub(crate) unsafe extern "C" fn ncclGather(
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    datatype: ncclDataType_t,
    root: c_int,
    comm: ncclComm_t,
    _: cudaStream_t,
) -> ncclResult_t {
    let (function, op) = (Function::Gather, None);
    // SAFETY: the same contract.
    unsafe { collective(&Arguments { function, send, receive, count, datatype, op, root, comm }) }
}

pub(crate) unsafe extern "C" fn ncclScatter(
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    datatype: ncclDataType_t,
    root: c_int,
    comm: ncclComm_t,
    _: cudaStream_t,
) -> ncclResult_t {
    let (function, op) = (Function::Scatter, None);
    // SAFETY: the same contract.
    unsafe { collective(&Arguments { function, send, receive, count, datatype, op, root, comm }) }
}

/// Checks the arguments of a send or a receive. `None` if there is nothing to do.
fn message(
    buffer: *const c_void,
    count: usize,
    datatype: ncclDataType_t,
    peer: c_int,
    comm: ncclComm_t,
) -> Result<Option<(Arc<Communicator>, Message, usize)>> {
    let communicator = handle::get(comm)?;
    communicator.ready()?;
    let peer = rank_of(peer, communicator.ranks(), "peer")?;
    let data_type = DataType::new(datatype)?;
    data_type.bytes(count)?;
    if count == 0 {
        return Ok(None);
    }
    check(buffer, "the buffer")?;
    Ok(Some((communicator, Message { count, data_type }, peer)))
}

pub(crate) unsafe extern "C" fn ncclSend(
    sendbuff: *const c_void,
    count: usize,
    datatype: ncclDataType_t,
    peer: c_int,
    comm: ncclComm_t,
    _: cudaStream_t,
) -> ncclResult_t {
    answer_in_group("ncclSend", || {
        let Some((communicator, message, peer)) = message(sendbuff, count, datatype, peer, comm)? else {
            return Ok(());
        };
        // SAFETY: the C declaration's contract, as for collectives.
        let from = unsafe { Source::new(sendbuff.cast(), message.count * message.data_type.size()) };
        let own = Arc::clone(&communicator);
        let operation = Box::pin(async move { message.send(own.world(), own.rank(), peer, from).await });
        group::run(Task { communicator, lane: Lane::SendTo(peer), operation })
    })
}

pub(crate) unsafe extern "C" fn ncclRecv(
    recvbuff: *mut c_void,
    count: usize,
    datatype: ncclDataType_t,
    peer: c_int,
    comm: ncclComm_t,
    _: cudaStream_t,
) -> ncclResult_t {
    answer_in_group("ncclRecv", || {
        let Some((communicator, message, peer)) = message(recvbuff, count, datatype, peer, comm)? else {
            return Ok(());
        };
        // SAFETY: the C declaration's contract, as for collectives.
        let to = unsafe { Target::new(recvbuff.cast(), message.count * message.data_type.size()) };
        let own = Arc::clone(&communicator);
        let operation = Box::pin(async move { message.receive(own.world(), own.rank(), peer, to).await });
        group::run(Task { communicator, lane: Lane::ReceiveFrom(peer), operation })
    })
}

pub(crate) unsafe extern "C" fn ncclGroupStart() -> ncclResult_t {
    answer(|| {
        group::start();
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn ncclGroupEnd() -> ncclResult_t {
    answer(group::end)
}

pub(crate) unsafe extern "C" fn ncclParamGetParameter(
    key: *const c_char,
    value: *mut *const c_char,
    valueLen: *mut c_int,
) -> ncclResult_t {
    answer(|| {
        check(key, "the key")?;
        check(value, "the value")?;
        // SAFETY: the C declaration's contract: a string that ends.
        let key = unsafe { CStr::from_ptr(key) };
        let found = param::value(key)
            .ok_or_else(|| Failure::argument(format!("there is no parameter {}", key.to_string_lossy())))?;
        // SAFETY: the C declaration's contract.
        unsafe {
            put(valueLen, found.count_bytes() as c_int)?;
            put(value, found.as_ptr())
        }
    })
}

pub(crate) unsafe extern "C" fn ncclParamGetAllParameterKeys(
    table: *mut *mut *const c_char,
    tableLen: *mut c_int,
) -> ncclResult_t {
    answer(|| {
        check(table, "the table")?;
        // SAFETY: the C declaration's contract.
        unsafe {
            put(tableLen, param::PARAMETERS.len() as c_int)?;
            put(table, param::keys())
        }
    })
}

pub(crate) unsafe extern "C" fn ncclParamDumpAll() {
    for (key, value) in param::PARAMETERS {
        println!("{}={}", key.to_string_lossy(), value.to_string_lossy());
    }
}
