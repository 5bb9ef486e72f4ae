//! Collectives, with and without per-call options, their custom reductions, and groups.
#![allow(unsafe_code, non_snake_case)]

use std::ffi::{c_int, c_void};
use std::mem::offset_of;
use std::sync::Arc;

use libnccl::sys::{
    cudaStream_t, ncclCollConfig_t, ncclComm_t, ncclDataType_t, ncclRedOp_t, ncclResult_t,
    ncclScalarResidence_t, ncclSimInfo_t,
};

use super::guard::{check_mapped, check_not_null, check_rank, guard, guard_comm, guard_in_group, write_out};
use crate::coll::call::Function;
use crate::coll::collective::Collective;
use crate::coll::plan::Call;
use crate::comm::communicator::Communicator;
use crate::comm::config::check_config;
use crate::comm::{group, handle};
use crate::diag::error::Error;
use crate::reduce::data_type::DataType;
use crate::shm::buffer::{ReadBuf, WriteBuf};

struct Arguments {
    function: Function,
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    datatype: ncclDataType_t,
    op: Option<ncclRedOp_t>,
    root: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
}

/// Runs a collective.
///
/// # Safety
/// The arguments must meet the contract of the C function `arguments.function`.
unsafe fn collective(arguments: &Arguments) -> ncclResult_t {
    let Arguments { function, send, recv, count, datatype, op, root, comm, stream } = *arguments;
    let call = |communicator: &Arc<Communicator>| {
        let context = communicator.check_operable()?;
        let (rank, ranks) = (context.rank, context.state.ranks());
        let root = check_rank(root, ranks, "root")?;
        let data_type = DataType::new(datatype)?;
        let (reduction, scalar) =
            op.map(|op| communicator.custom_reductions.get(op, data_type)).transpose()?.unzip();
        data_type.check_count(count, ranks)?;
        let call = Call::new(function, count, data_type, reduction, root, ranks);
        let (input, output) = (call.input(rank), call.output(rank));
        if input > 0 {
            check_not_null(send, "the send buffer")?;
        }
        if output > 0 {
            check_not_null(recv, "the receive buffer")?;
        }
        // SAFETY: by the caller's contract, the buffers are as long as the function requires and stay valid until the call, or the group,
        // has ended. All uses of them end by then.
        let (send, recv) =
            unsafe { (ReadBuf::of_caller(send.cast(), input), WriteBuf::of_caller(recv.cast(), output)) };
        call.check_overlap(rank, send, recv)?;
        let collective = Collective { call, scalar: scalar.flatten(), send, recv };
        group::run(communicator, context, collective, stream)
    };
    guard_in_group(function.symbol(), || handle::with(comm, call))
}

/// Defines an operation's function and its variant with per-call options. `op` and `root` are listed if the function has them.
macro_rules! define_collectives {
    ($($operation:ident: $name:ident, $with_config:ident($($option:ident: $type:ty),*);)*) => {$(
        pub(super) unsafe extern "C" fn $name(
            sendbuff: *const c_void,
            recvbuff: *mut c_void,
            count: usize,
            datatype: ncclDataType_t,
            $($option: $type,)*
            comm: ncclComm_t,
            stream: cudaStream_t,
        ) -> ncclResult_t {
            const FUNCTION: Function = Function::named(stringify!($operation));
            #[allow(unused_mut)]
            let mut arguments = Arguments {
                function: FUNCTION,
                send: sendbuff,
                recv: recvbuff,
                count,
                datatype,
                op: None,
                root: 0,
                comm,
                stream,
            };
            $(arguments.$option = $option.into();)*
            // SAFETY: the same contract.
            unsafe { collective(&arguments) }
        }

        pub(super) unsafe extern "C" fn $with_config(
            sendbuff: *const c_void,
            recvbuff: *mut c_void,
            count: usize,
            datatype: ncclDataType_t,
            $($option: $type,)*
            comm: ncclComm_t,
            stream: cudaStream_t,
            config: *const ncclCollConfig_t,
        ) -> ncclResult_t {
            // SAFETY: the same contract.
            match guard_in_group(stringify!($with_config), || unsafe { check_config(config) }) {
                // SAFETY: the same contract.
                ncclResult_t::ncclSuccess => unsafe {
                    $name(sendbuff, recvbuff, count, datatype, $($option,)* comm, stream)
                },
                code => code,
            }
        }
    )*};
}

define_collectives! {
    all_reduce: ncclAllReduce, ncclAllReduceConfig(op: ncclRedOp_t);
    broadcast: ncclBroadcast, ncclBroadcastConfig(root: c_int);
    reduce: ncclReduce, ncclReduceConfig(op: ncclRedOp_t, root: c_int);
    all_gather: ncclAllGather, ncclAllGatherConfig();
    reduce_scatter: ncclReduceScatter, ncclReduceScatterConfig(op: ncclRedOp_t);
    all_to_all: ncclAlltoAll, ncclAlltoAllConfig();
    gather: ncclGather, ncclGatherConfig(root: c_int);
    scatter: ncclScatter, ncclScatterConfig(root: c_int);
}

pub(super) unsafe extern "C" fn ncclBcast(
    buff: *mut c_void,
    count: usize,
    datatype: ncclDataType_t,
    root: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    // SAFETY: the contract of a broadcast in place.
    unsafe { ncclBroadcast(buff, buff, count, datatype, root, comm, stream) }
}

pub(super) unsafe extern "C" fn ncclRedOpCreatePreMulSum(
    op: *mut ncclRedOp_t,
    scalar: *mut c_void,
    datatype: ncclDataType_t,
    residence: ncclScalarResidence_t,
    comm: ncclComm_t,
) -> ncclResult_t {
    guard_comm(comm, |communicator| {
        check_not_null(op, "the reduction")?;
        check_not_null(scalar, "the scalar")?;
        let data_type = DataType::new(datatype)?;
        if residence.0 > ncclScalarResidence_t::ncclScalarHostImmediate.0 {
            return Err(Error::argument(format!("invalid ncclScalarResidence_t {}", residence.0)));
        }
        let is_on_device = residence == ncclScalarResidence_t::ncclScalarDevice;
        match communicator.driver().filter(|_| is_on_device) {
            Some(driver) => {
                driver.resolve("the scalar", scalar.addr(), data_type.size())?;
            }
            None => check_mapped(scalar, data_type.size(), "scalar")?,
        }
        // SAFETY: the C declaration's contract: one element. In device memory (host memory here), it stays valid until the last operation
        // that uses it has run.
        let place = unsafe { ReadBuf::of_caller(scalar.cast(), data_type.size()) };
        let mut bytes = [0; 8];
        if !is_on_device {
            place.read(0, &mut bytes[..data_type.size()]);
        }
        let place = is_on_device.then_some(place);
        // SAFETY: the C declaration's contract.
        unsafe { write_out(op, communicator.custom_reductions.create(data_type, bytes, place)?) }
    })
}

pub(super) unsafe extern "C" fn ncclRedOpDestroy(op: ncclRedOp_t, comm: ncclComm_t) -> ncclResult_t {
    guard(|| handle::get(comm)?.custom_reductions.destroy(op))
}

const SIM_INFO_MAGIC: u32 = 0x7468_5283;

pub(super) unsafe extern "C" fn ncclGroupStart() -> ncclResult_t {
    guard(|| {
        group::start();
        Ok(())
    })
}

pub(super) unsafe extern "C" fn ncclGroupEnd() -> ncclResult_t {
    guard(group::end)
}

pub(super) unsafe extern "C" fn ncclGroupSimulateEnd(simInfo: *mut ncclSimInfo_t) -> ncclResult_t {
    guard(|| {
        // Even if the rest fails, the group has ended.
        let Some(estimate) = group::simulate()? else { return Ok(()) };
        if simInfo.is_null() {
            return Ok(());
        }
        // SAFETY: the pointer is not NULL, so by the C declaration's contract it points to the struct of some version.
        let size = unsafe { (*simInfo).size };
        // SAFETY: as above, and `size` covers it.
        if size < offset_of!(ncclSimInfo_t, version) || unsafe { (*simInfo).magic } != SIM_INFO_MAGIC {
            return Err(Error::argument(
                "the simulation's info was not initialized with NCCL_SIM_INFO_INITIALIZER",
            ));
        }
        if estimate > 0.0 && size >= offset_of!(ncclSimInfo_t, estimatedTime) + size_of::<f32>() {
            // SAFETY: as above, and `size` covers it.
            unsafe { (*simInfo).estimatedTime = estimate };
        }
        Ok(())
    })
}
