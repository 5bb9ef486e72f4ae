//! The implementations of NCCL that this program can reach.

use std::env;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use cudarc::driver::{CudaContext, sys};
use libnccl::buffer::MemorySpace;
use libnccl::{Nccl, Version};

use crate::Case;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Implementation {
    InProcess,
    SharedObject,
    Emulation,
    /// The shared object behind libnccl-trace, which records the calls.
    Recorded,
    WithoutGpu,
    Gpu,
}

impl Implementation {
    pub(crate) const ALL: [Self; 6] =
        [Self::InProcess, Self::SharedObject, Self::Emulation, Self::Recorded, Self::WithoutGpu, Self::Gpu];

    /// Returns why the implementation is absent.
    pub(crate) fn examine(self) -> Result<(), String> {
        match self {
            Self::InProcess => Ok(()),
            Self::SharedObject | Self::Emulation | Self::Recorded => {
                let program = env::current_exe().map_err(|error| error.to_string())?;
                let needed = if self == Self::Recorded { "libnccl_trace.so" } else { "libnccl_cpu.so" };
                match program.with_file_name(needed).exists() {
                    true => Ok(()),
                    false => Err(format!("{needed} is not in this program's directory")),
                }
            }
            // With a GPU, the same calls return other codes.
            Self::WithoutGpu if has_gpu().is_ok() => Err("there is a GPU".into()),
            Self::WithoutGpu => match nvidia_library() {
                Some(_) => Ok(()),
                None => Err("LIBNCCL_TEST_LIBRARY is not set, and no NCCL was downloaded".into()),
            },
            Self::Gpu => {
                has_gpu()?;
                let nccl = Nccl::load().map_err(|error| error.to_string().replace('\n', "; "))?;
                if nccl.memory_space() != MemorySpace::Device {
                    return Err(format!("no NCCL for GPUs: {} works on host memory", nccl.backend()));
                }
                println!("NCCL {} for the GPU: {}", nccl.version(), nccl.backend());
                Ok(())
            }
        }
    }

    pub(crate) fn numbers_of_ranks(self, case: &Case) -> Vec<usize> {
        match self {
            Self::WithoutGpu if case.name.ends_with("without_communicator") => vec![1],
            Self::WithoutGpu => vec![],
            // It forwards every call in the same way, and reads arguments at their limits in the same way.
            Self::Recorded if !case.name.starts_with("arguments::") => vec![],
            Self::Gpu => (1..=2).filter(|ranks| case.ranks.contains(ranks)).collect(),
            _ => vec![*case.ranks.end()],
        }
    }

    /// Returns the reason why the implementation cannot run a number of ranks.
    pub(crate) fn lacks(self, ranks: usize) -> Option<&'static str> {
        /// The first version with an option that lets two ranks share a GPU.
        const SHARED_GPU: Version = Version::new(2, 30, 3);
        static FOUND: OnceLock<Version> = OnceLock::new();
        let shares = self == Self::Gpu && ranks > 1;
        (shares && *FOUND.get_or_init(|| self.load().version()) < SHARED_GPU)
            .then_some("two ranks on one GPU need NCCL 2.30.3 or newer")
    }

    /// Loads the implementation, in the process of a rank.
    pub(crate) fn load(self) -> Nccl {
        let open = |path: &Path| {
            // SAFETY: the file is an NCCL: built from crates/cpu-so with this program, or named as one.
            unsafe { Nccl::open(path) }.expect("the library can be loaded")
        };
        match self {
            Self::InProcess => libnccl_cpu::nccl(),
            Self::SharedObject | Self::Emulation => open(&libnccl_test_support::shared_object("nccl_cpu")),
            Self::Recorded => open(&libnccl_test_support::shared_object("nccl_trace")),
            Self::WithoutGpu => open(&nvidia_library().expect("found by the parent before")),
            Self::Gpu => Nccl::load().expect("loaded by the parent before"),
        }
    }

    pub(crate) fn has_process_per_rank(self) -> bool {
        matches!(self, Self::SharedObject | Self::Gpu)
    }

    pub(crate) fn has_device_memory(self) -> bool {
        matches!(self, Self::Emulation | Self::Gpu)
    }

    /// Returns the device of a rank: ranks that are processes share the first one.
    pub(crate) fn device(self, rank: usize) -> usize {
        if self == Self::Gpu { 0 } else { rank }
    }

    /// Returns whether the implementation is the CPU backend, whose error texts are known.
    pub(crate) fn is_cpu_backend(self) -> bool {
        matches!(self, Self::InProcess | Self::SharedObject | Self::Emulation | Self::Recorded)
    }

    /// Prepares the environment of a rank's process. `directory` is for this case alone.
    pub(crate) fn prepare(self, command: &mut Command, directory: &Path, ranks: usize) {
        match self {
            Self::Emulation => {
                libnccl_test_support::install(&directory.join("libraries"));
                command.env("LD_LIBRARY_PATH", directory.join("libraries")).env("LIBNCCL_CPU_RACES", "error");
            }
            Self::Recorded => {
                let library = libnccl_test_support::shared_object("nccl_cpu");
                command.env("LIBNCCL_TRACE_LIBRARY", library);
            }
            Self::Gpu if ranks > 1 => {
                // Reductions in NVLink's switches (NVLS) do not support a shared GPU.
                command.env("NCCL_MULTI_RANK_GPU_ENABLE", "1").env("NCCL_NVLS_ENABLE", "0");
            }
            _ => {}
        }
        if env::var_os("NCCL_DEBUG").is_none() && self == Self::Gpu {
            command.env("NCCL_DEBUG", "WARN");
        }
    }
}

impl fmt::Display for Implementation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InProcess => "CPU in process",
            Self::SharedObject => "CPU shared object",
            Self::Emulation => "CPU on the CUDA emulation",
            Self::Recorded => "CPU behind libnccl-trace",
            Self::WithoutGpu => "NVIDIA without a GPU",
            Self::Gpu => "GPU",
        })
    }
}

fn has_gpu() -> Result<(), String> {
    // Checked first, because cudarc panics without a driver.
    // SAFETY: loads the system's driver, which any program may load.
    if !unsafe { sys::is_culib_present() } {
        return Err("no NVIDIA driver (libcuda.so)".into());
    }
    match CudaContext::device_count() {
        Ok(1..) => Ok(()),
        Ok(_) => Err("the NVIDIA driver sees no GPU".into()),
        Err(error) => Err(format!("the NVIDIA driver cannot be used: {error}")),
    }
}

/// Returns the NCCL of `LIBNCCL_TEST_LIBRARY`, or the newest downloaded one.
fn nvidia_library() -> Option<PathBuf> {
    if let Some(path) = env::var_os("LIBNCCL_TEST_LIBRARY") {
        return Some(path.into());
    }
    let cache = env::var_os("LIBNCCL_CACHE").map(PathBuf::from);
    let cache = cache.or_else(|| Some(Path::new(&env::var_os("HOME")?).join(".cache/libnccl")))?;
    let path = cache.join("2.32.3/lib/libnccl.so.2");
    path.exists().then_some(path)
}
