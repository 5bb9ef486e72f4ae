use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use super::compiler::compile;
use super::configuration::Peer;
use crate::wheel::Wheel;

/// The launcher, the library and its tuning for shared memory.
const IMPI_RT: Wheel<'static> = Wheel {
    package: "impi-rt",
    release: "2021.18.1",
    folder: "impi-rt-2021.18.1",
    size: "129 MB",
    target: |path| {
        let path = path.strip_prefix("impi_rt-2021.18.1.data/data").ok()?;
        let name = path.file_name()?.to_str()?;
        let is_kept = ["mpiexec.hydra", "hydra_pmi_proxy", "hydra_bstrap_proxy", "libmpi.so.12"]
            .contains(&name)
            || path.starts_with("opt/mpi/etc") && name.ends_with("_shm.dat");
        is_kept.then_some(path)
    },
    required: &[
        "bin/mpiexec.hydra",
        "bin/hydra_pmi_proxy",
        "bin/hydra_bstrap_proxy",
        "lib/libmpi.so.12",
        "opt/mpi/etc/tuning_generic_shm.dat",
    ],
};

/// The headers for C and C++.
const IMPI_DEVEL: Wheel<'static> = Wheel {
    package: "impi-devel",
    release: "2021.18.1",
    folder: "impi-devel-2021.18.1",
    size: "3 MB",
    target: |path| {
        let path = path.strip_prefix("impi_devel-2021.18.1.data/data").ok()?;
        (path.parent()? == Path::new("include")).then_some(path)
    },
    required: &["include/mpi.h", "include/mpicxx.h"],
};

/// The headers and the static library for host memory. The shared library needs the SYCL runtime, and is slower for
/// small calls.
const ONECCL_DEVEL: Wheel<'static> = Wheel {
    package: "oneccl-devel",
    release: "2022.1.2",
    folder: "oneccl-devel-2022.1.2",
    size: "29 MB",
    target: |path| {
        let path = path.strip_prefix("oneccl_devel-2022.1.2.data/data").ok()?;
        (path.starts_with("include") || path == Path::new(ONECCL_LIBRARY)).then_some(path)
    },
    required: &["include/oneapi/ccl.hpp", ONECCL_LIBRARY],
};

const ONECCL_LIBRARY: &str = "lib/ccl/cpu/lib/libccl.a";

/// The memory functions of Intel's compilers, which oneCCL was built with.
const INTEL_CMPLR_LIB_RT: Wheel<'static> = Wheel {
    package: "intel-cmplr-lib-rt",
    release: "2026.2.0",
    folder: "intel-cmplr-lib-rt-2026.2.0",
    size: "41 MB",
    target: |path| {
        let path = path.strip_prefix("intel_cmplr_lib_rt-2026.2.0.data/data").ok()?;
        (path == Path::new("lib/libintlc.so.5")).then_some(path)
    },
    required: &["lib/libintlc.so.5"],
};

/// The package that brings hwloc, which oneCCL calls.
const TCMLIB: Wheel<'static> = Wheel {
    package: "tcmlib",
    release: "1.6.0",
    folder: "tcmlib-1.6.0",
    size: "3 MB",
    target: |path| {
        let path = path.strip_prefix("tcmlib-1.6.0.data/data").ok()?;
        (path == Path::new("lib/libhwloc.so.15")).then_some(path)
    },
    required: &["lib/libhwloc.so.15"],
};

/// The program of a peer of OpenMPI, and its launcher.
#[derive(Debug)]
pub(crate) struct PeerProgram {
    pub(crate) peer: Peer,
    mpiexec: PathBuf,
    program: PathBuf,
}

impl PeerProgram {
    /// Builds the program in a folder, after downloading the peer if needed.
    pub(crate) fn build(peer: Peer, directory: &Path) -> Result<Self> {
        let runtime = IMPI_RT.obtain()?;
        let mut arguments =
            vec![include(&IMPI_DEVEL.obtain()?), library(&runtime, "lib/libmpi.so.12"), rpath(&runtime)];
        let (program, source) = match peer {
            Peer::IntelMpi => ("intel-mpi", "mpi.c"),
            Peer::OneCcl => ("oneccl", "oneccl.cpp"),
        };
        let program = directory.join(program);
        if peer == Peer::OneCcl {
            let oneccl = ONECCL_DEVEL.obtain()?;
            arguments.extend([include(&oneccl), library(&oneccl, ONECCL_LIBRARY)]);
            for (wheel, file) in [(&INTEL_CMPLR_LIB_RT, "lib/libintlc.so.5"), (&TCMLIB, "lib/libhwloc.so.15")]
            {
                let folder = wheel.obtain()?;
                arguments.extend([library(&folder, file), rpath(&folder)]);
            }
            arguments.extend(["-lstdc++", "-lm", "-ldl", "-pthread"].map(String::from));
        }
        compile(&program, &[source, "measure.c", "support.c"], &arguments)?;
        Ok(Self { peer, mpiexec: runtime.join("bin/mpiexec.hydra"), program })
    }

    /// Returns the command that starts the ranks.
    pub(crate) fn command(&self, ranks: u32) -> Command {
        let mut command = Command::new(&self.mpiexec);
        command.env("I_MPI_FABRICS", "shm").env("I_MPI_PIN", "off");
        if self.peer == Peer::OneCcl {
            // The calling thread does the work, and calls MPI's blocking operation.
            command
                .env("CCL_WORKER_OFFLOAD", "0")
                .env("CCL_ATL_SYNC_COLL", "1")
                .env("CCL_LOG_LEVEL", "error");
        }
        command.args(["-n", &ranks.to_string()]).arg(&self.program);
        command
    }
}

/// Returns the option that adds a wheel's headers. Warnings about them are of no use here.
fn include(folder: &Path) -> String {
    format!("-isystem{}", folder.join("include").display())
}

fn library(folder: &Path, file: &str) -> String {
    folder.join(file).display().to_string()
}

fn rpath(folder: &Path) -> String {
    format!("-Wl,-rpath,{}", folder.join("lib").display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wheels_of_the_peers_have_hashes_and_keep_their_required_files() {
        for wheel in [IMPI_RT, IMPI_DEVEL, ONECCL_DEVEL, INTEL_CMPLR_LIB_RT, TCMLIB] {
            crate::wheel::requirement(wheel.package, wheel.release).unwrap();
            assert_eq!(wheel.folder, format!("{}-{}", wheel.package, wheel.release));
            let data = format!("{}-{}.data/data", wheel.package.replace('-', "_"), wheel.release);
            for file in wheel.required {
                assert_eq!((wheel.target)(&Path::new(&data).join(file)), Some(Path::new(file)));
                assert_eq!((wheel.target)(Path::new(file)), None, "{file} outside {data}");
            }
            assert_eq!((wheel.target)(&Path::new(&data).join("lib/libmpi_ilp64.so.4")), None);
        }
    }

    #[test]
    fn command_of_either_peer_starts_the_ranks_unpinned_in_shared_memory() {
        for (peer, variables) in [(Peer::IntelMpi, 2), (Peer::OneCcl, 5)] {
            let program = PeerProgram { peer, mpiexec: "/bin/mpiexec.hydra".into(), program: "/p".into() };
            let command = program.command(2);
            assert_eq!(command.get_args().collect::<Vec<_>>(), ["-n", "2", "/p"]);
            assert_eq!(command.get_envs().count(), variables);
            let value =
                |name: &str| command.get_envs().find(|(key, _)| *key == name).and_then(|(_, value)| value);
            assert_eq!(
                (value("I_MPI_FABRICS"), value("I_MPI_PIN")),
                (Some("shm".as_ref()), Some("off".as_ref()))
            );
        }
    }
}
