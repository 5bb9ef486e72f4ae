//! The call of an operation as a value.

use std::panic::Location;

use super::arguments::Arguments;
use super::grouping::Start;
use crate::buffer::RawSlice;
use crate::config::RawCollectiveConfig;
use crate::{CollectiveConfig, Communicator, Operation, Result, StreamRef};

#[derive(Clone, Copy)]
pub(super) struct Call<'a> {
    pub(super) operation: &'static Operation,
    pub(super) communicator: &'a Communicator,
    pub(super) send: RawSlice,
    /// The only buffer of an operation in place.
    pub(super) recv: RawSlice,
    pub(super) arguments: Arguments<'a>,
    pub(super) config: Option<&'a CollectiveConfig>,
    pub(super) stream: StreamRef<'a>,
    pub(super) site: &'static Location<'static>,
}

/// The arguments that C gets: the buffers as this rank uses them, and the rest as C has it.
#[derive(Clone, Copy)]
pub(super) struct Checked {
    pub(super) send: RawSlice,
    pub(super) recv: RawSlice,
    /// The count, as the operation has it.
    pub(super) count: usize,
    /// The root or the other rank; of an exchange, the destination and the source.
    pub(super) ranks: [i32; 2],
}

impl Checked {
    pub(super) const NONE: Self =
        Self { send: RawSlice::NONE, recv: RawSlice::NONE, count: 0, ranks: [0; 2] };
}

impl Call<'_> {
    /// Returns the options as a C struct, if there are any, which is kept as long as NCCL may read it. NCCL has been entered.
    #[cold]
    pub(super) fn raw_config(
        self,
        start: Start<'_>,
        config: &CollectiveConfig,
    ) -> Result<Option<RawCollectiveConfig>> {
        if config.is_default() {
            return Ok(None);
        }
        let Self { operation, communicator, .. } = self;
        let library = communicator.library();
        let raw = config.to_raw(operation.name, library.version, &library.backend.to_string())?;
        if let Some(raw) = start.keep_arguments(raw.clone()) {
            communicator.keep_options(raw);
        }
        Ok(Some(raw))
    }
}
