//! The arguments that say which ranks a tool starts, and with which library.

use std::path::PathBuf;

use clap::Args;

use crate::value_parser::{MAX_RANKS, whole};

#[derive(Debug, Clone, Args)]
pub(crate) struct RankArguments {
    /// Number of ranks, unless a launcher has started them [default: one for each GPU; 2 on the CPU]
    #[arg(long, value_name = "N", value_parser = whole::<usize>(2..=MAX_RANKS))]
    pub(crate) ranks: Option<usize>,
    /// Run each rank as a process instead of a thread
    #[arg(long)]
    pub(crate) processes: bool,
    /// Use the CPU backend even if NCCL and GPUs are available
    #[arg(long, conflicts_with = "library")]
    pub(crate) cpu: bool,
    /// Use this NCCL library instead of searching for one
    #[arg(long, value_name = "PATH")]
    pub(crate) library: Option<PathBuf>,
}
