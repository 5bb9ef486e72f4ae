//! The operations of communicators.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;

use libnccl::Operation;
use libnccl::sys::*;

use crate::arguments::{in_place, with_elements, without_elements};
use crate::library::forward;
use crate::thread::record;

const ALL_REDUCE: [&Operation; 2] = [Operation::of("all_reduce"), Operation::of("all_reduce_in_place")];
const BROADCAST: [&Operation; 2] = [Operation::of("broadcast"), Operation::of("broadcast_in_place")];
const REDUCE: [&Operation; 2] = [Operation::of("reduce"), Operation::of("reduce_in_place")];
const ALL_GATHER: &Operation = Operation::of("all_gather");
const REDUCE_SCATTER: &Operation = Operation::of("reduce_scatter");
const ALL_TO_ALL: &Operation = Operation::of("all_to_all");
const GATHER: &Operation = Operation::of("gather");
const SCATTER: &Operation = Operation::of("scatter");
const SEND: &Operation = Operation::of("send");
const RECV: &Operation = Operation::of("recv");
const PUT_SIGNAL: &Operation = Operation::of("put_signal");
const SIGNAL: &Operation = Operation::of("signal");
const WAIT_SIGNAL: &Operation = Operation::of("wait_signal");
const REGISTER_WINDOW: &Operation = Operation::of("register_window");

/// Defines the hooks of operations: the name, the arguments, the communicator, and the arguments that are recorded, by the size
/// of the communicator. With a second name, also that of the form with options.
macro_rules! operations {
    ($(
        $name:ident $(and $with_options:ident)?: $arguments:tt of $comm:ident => |$size:pat_param| $recorded:expr;
    )*) => {
        $(
            operation! { $name $arguments () $comm |$size| $recorded }
            $(operation! { $with_options $arguments (config: *const ncclCollConfig_t) $comm |$size| $recorded })?
        )*

        /// The hooks of operations.
        pub(crate) const HOOKS: Functions = Functions {
            $($name: Some($name), $($with_options: Some($with_options),)?)*
            ..Functions::EMPTY
        };
    };
}

macro_rules! operation {
    (
        $name:ident ($($argument:ident: $type:ty),* $(,)?) ($($option:ident: $option_type:ty)?)
        $comm:ident |$size:pat_param| $recorded:expr
    ) => {
        unsafe extern "C" fn $name(
            $($argument: $type,)*
            $($option: $option_type)?
        ) -> ncclResult_t {
            record($comm, |$size| $recorded, || forward!(functions.$name($($argument,)* $($option)?)))
        }
    };
}

operations! {
    ncclAllReduce and ncclAllReduceConfig: (
        sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t, op: ncclRedOp_t,
        comm: ncclComm_t, stream: cudaStream_t,
    ) of comm => |size| {
        with_elements(in_place(ALL_REDUCE, sendbuff, recvbuff), (count, size), datatype, None, stream)
    };

    ncclBroadcast and ncclBroadcastConfig: (
        sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t, root: c_int,
        comm: ncclComm_t, stream: cudaStream_t,
    ) of comm => |size| {
        with_elements(in_place(BROADCAST, sendbuff, recvbuff), (count, size), datatype, Some(root), stream)
    };

    ncclBcast: (
        buff: *mut c_void, count: usize, datatype: ncclDataType_t, root: c_int, comm: ncclComm_t,
        stream: cudaStream_t,
    ) of comm => |size| with_elements(BROADCAST[1], (count, size), datatype, Some(root), stream);

    ncclReduce and ncclReduceConfig: (
        sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t, op: ncclRedOp_t,
        root: c_int, comm: ncclComm_t, stream: cudaStream_t,
    ) of comm => |size| with_elements(in_place(REDUCE, sendbuff, recvbuff), (count, size), datatype, Some(root), stream);

    ncclAllGather and ncclAllGatherConfig: (
        sendbuff: *const c_void, recvbuff: *mut c_void, sendcount: usize, datatype: ncclDataType_t, comm: ncclComm_t,
        stream: cudaStream_t,
    ) of comm => |size| with_elements(ALL_GATHER, (sendcount, size), datatype, None, stream);

    ncclReduceScatter and ncclReduceScatterConfig: (
        sendbuff: *const c_void, recvbuff: *mut c_void, recvcount: usize, datatype: ncclDataType_t, op: ncclRedOp_t,
        comm: ncclComm_t, stream: cudaStream_t,
    ) of comm => |size| with_elements(REDUCE_SCATTER, (recvcount, size), datatype, None, stream);

    ncclAlltoAll and ncclAlltoAllConfig: (
        sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t, comm: ncclComm_t,
        stream: cudaStream_t,
    ) of comm => |size| with_elements(ALL_TO_ALL, (count, size), datatype, None, stream);

    ncclGather and ncclGatherConfig: (
        sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t, root: c_int,
        comm: ncclComm_t, stream: cudaStream_t,
    ) of comm => |size| with_elements(GATHER, (count, size), datatype, Some(root), stream);

    ncclScatter and ncclScatterConfig: (
        sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t, root: c_int,
        comm: ncclComm_t, stream: cudaStream_t,
    ) of comm => |size| with_elements(SCATTER, (count, size), datatype, Some(root), stream);

    ncclSend: (
        sendbuff: *const c_void, count: usize, datatype: ncclDataType_t, peer: c_int, comm: ncclComm_t,
        stream: cudaStream_t,
    ) of comm => |size| with_elements(SEND, (count, size), datatype, Some(peer), stream);

    ncclRecv: (
        recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t, peer: c_int, comm: ncclComm_t,
        stream: cudaStream_t,
    ) of comm => |size| with_elements(RECV, (count, size), datatype, Some(peer), stream);

    ncclPutSignal: (
        localbuff: *const c_void, count: usize, datatype: ncclDataType_t, peer: c_int, peerWin: ncclWindow_t,
        peerWinOffset: usize, sigIdx: c_int, ctx: c_int, flags: c_uint, comm: ncclComm_t, stream: cudaStream_t,
    ) of comm => |size| with_elements(PUT_SIGNAL, (count, size), datatype, Some(peer), stream);

    ncclSignal: (
        peer: c_int, sigIdx: c_int, ctx: c_int, flags: c_uint, comm: ncclComm_t, stream: cudaStream_t,
    ) of comm => |_| without_elements(SIGNAL, Some(peer), stream);

    ncclWaitSignal: (
        nDesc: c_int, signalDescs: *mut ncclWaitSignalDesc_t, comm: ncclComm_t, stream: cudaStream_t,
    ) of comm => |_| without_elements(WAIT_SIGNAL, None, stream);

    ncclCommWindowRegister: (
        comm: ncclComm_t, buff: *mut c_void, size: usize, win: *mut ncclWindow_t, winFlags: c_int,
    ) of comm => |_| without_elements(REGISTER_WINDOW, None, ptr::null_mut());
}
