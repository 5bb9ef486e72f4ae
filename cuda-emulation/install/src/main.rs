//! Builds the CUDA emulation.

use std::path::PathBuf;

use anyhow::Result;
use clap::Parser;
use cuda_install::{Profile, install};

/// Build the libraries of the CUDA emulation and copy them to a directory, for `LD_LIBRARY_PATH`
#[derive(Debug, Parser)]
struct Options {
    /// The directory, created if needed
    directory: PathBuf,
    /// Build without optimizations, which is faster
    #[arg(long)]
    debug: bool,
}

fn main() -> Result<()> {
    let options = Options::parse();
    install(&options.directory, if options.debug { Profile::Debug } else { Profile::Optimized })
}
