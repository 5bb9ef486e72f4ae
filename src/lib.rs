#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![deny(unsafe_code)]

mod backend;
mod buffer;
mod buffer_traits;
mod collective_config;
mod communicator;
mod config;
mod data_type;
mod encryption;
mod error;
mod group;

mod memory;
mod nccl;
mod parameters;
mod reduce_op;
mod result_code;
mod stream;
pub mod sys;
mod unique_id;
mod version;

pub use backend::Backend;
pub use buffer::{DeviceSlice, DeviceSliceMut, MemorySpace};
pub use buffer_traits::{Buffer, BufferMut, Stream};
pub use collective_config::CollectiveConfig;
pub use communicator::{
    AbortHandle, Communicator, Finalized, MemoryStatistic, Operations, PendingCommunicator, PreMulSum,
    PreMulSumOperations, Properties, Registration, ShrinkMode, Signal, WaitSignal, Window, WindowFlags,
    WindowOffset,
};
pub use config::{Config, CtaPolicy, GraphUsageMode, HostCftMode, NvlsHostMode};
pub use data_type::{DataType, Element, ParseDataTypeError};
pub use encryption::Encryption;
pub use error::{Attempt, Error, LoadError, Result};
pub use group::Group;
pub use memory::NcclBuffer;
pub use nccl::{Function, Nccl};
pub use parameters::{ParameterValue, Parameters};
pub use reduce_op::{ParseReduceOpError, ReduceOp};
pub use result_code::ResultCode;
pub use stream::StreamRef;
pub use unique_id::{ParseUniqueIdError, UniqueId};
pub use version::{ParseVersionError, Version};
