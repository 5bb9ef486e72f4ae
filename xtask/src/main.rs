//! Maintenance of libnccl; `cargo xtask help` lists the tasks.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;

mod bench_peers;
mod bindings;
mod checkout;
mod compare;
mod coverage;
mod cpu_so;
mod declarations;
mod gpu_pack;
mod headers;
mod imports;
mod matrix;
mod official;
mod process;
mod releases;
mod words;

/// Maintenance of libnccl.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
enum Task {
    /// Write the committed bindings (src/sys/generated) anew from vendor-headers/nccl.h
    Bindings {
        /// Write nothing; show what would change and fail if anything would
        #[arg(long)]
        check: bool,
    },
    /// Compare vendor-headers/nccl.h with the official headers of releases, downloading what is needed
    Headers(headers::Options),
    /// Run releases, loaded and linked, against the checks in tests/matrix; with --all, write docs/compatibility.md
    Matrix(matrix::Options),
    /// Write docs/coverage.md, which says how each C function is reached and tested, anew from the sources
    Coverage {
        /// Write nothing; fail if anything would change
        #[arg(long)]
        check: bool,
    },
    /// Print the folder that holds lib/ and include/ of NVIDIA's package of a release, downloading it if needed
    Official {
        /// A release of NCCL, such as 2.32.3
        release: String,
    },
    /// Build the CPU implementation as a shared object and put it into a folder as libnccl.so.2
    CpuSo {
        /// The folder, created if needed
        directory: PathBuf,
        /// Build it optimised
        #[arg(long)]
        release: bool,
    },
    /// Put all that a machine with a GPU needs to test this checkout into a folder: run its run.sh there
    GpuPack {
        /// The folder, created if needed
        directory: PathBuf,
    },
    /// Find circles of imports between the files of each crate, and production code that imports tests
    Imports,
    /// Find private terms, and doc comments whose first line is no verb or noun phrase
    Words,
    /// Measure the CPU implementation side by side with OpenMPI, downloading OpenMPI if needed
    BenchPeers(bench_peers::Options),
}

fn main() -> ExitCode {
    match run(Task::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(task: Task) -> Result<()> {
    match task {
        Task::Bindings { check: true } => bindings::check(root()),
        Task::Bindings { check: false } => bindings::write(root()),
        Task::Coverage { check } => coverage::run(root(), check),
        Task::Headers(options) => headers::run(root(), &options),
        Task::Matrix(options) => matrix::run(root(), &options),
        Task::Official { release } => {
            println!("{}", official::obtain(&release)?.display());
            Ok(())
        }
        Task::CpuSo { directory, release } => {
            println!("{}", cpu_so::place(&directory, release)?.display());
            Ok(())
        }
        Task::GpuPack { directory } => {
            println!("{}", gpu_pack::pack(&directory)?.display());
            Ok(())
        }
        Task::Imports => imports::check(root()),
        Task::Words => words::check(root()),
        Task::BenchPeers(options) => bench_peers::run(&options),
    }
}

/// The root of the checkout.
fn root() -> &'static Path {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest)
}
