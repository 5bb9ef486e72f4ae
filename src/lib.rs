#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![deny(unsafe_code)]

mod backend;
mod buffer;
mod communicator;
mod data_type;
mod error;
mod group;
mod nccl;
mod reduce_op;
mod result_code;
mod stream;
pub mod sys;
mod unique_id;
mod version;

pub use backend::Backend;
pub use buffer::{DeviceSlice, DeviceSliceMut, MemorySpace};
pub use communicator::Communicator;
pub use data_type::{DataType, Element};
pub use error::{Attempt, Error, LoadError, Result};
pub use group::Group;
pub use nccl::{Function, Nccl};
pub use reduce_op::ReduceOp;
pub use result_code::ResultCode;
pub use stream::StreamRef;
pub use unique_id::{ParseUniqueIdError, UniqueId};
pub use version::{ParseVersionError, Version};
