//! NVIDIA's packages of NCCL and of CUDA's runtime library.

use std::path::PathBuf;

use anyhow::{Error, Result, bail};
use cuda_test_support::toolkit::Release;

use crate::wheel::Wheel;

/// Returns the directory with `lib/` and `include/` of a version, after downloading the package if needed.
pub(crate) fn obtain(release: &str) -> Result<PathBuf> {
    let wheel = Wheel {
        package: &package(release)?,
        release,
        folder: release,
        size: "some hundred MB",
        target: |path| path.strip_prefix("nvidia/nccl").ok(),
        required: &["include/nccl.h", "lib/libnccl.so.2"],
    };
    wheel.obtain()
}

/// Returns folders of CUDA's runtime library, after downloading the packages if needed: one with `lib/` and `include/`,
/// others whose `include/` has headers that the first one's include, and at last that of CUPTI.
pub(crate) fn obtain_cudart(major: &str) -> Result<Vec<PathBuf>> {
    let release = match major {
        "12" => Release::Cuda12,
        "13" => Release::Cuda13,
        _ => bail!("{major:?} is not a major version of the CUDA emulation; expected 12 or 13"),
    };
    release.obtain().map(|toolkit| toolkit.directories).map_err(Error::msg)
}

/// Returns folders whose `include/` have the headers that the crate cuda-core is built with, that with `cuda.h` first, after
/// downloading the packages if needed.
pub(crate) fn obtain_cuda_core_headers() -> Result<Vec<PathBuf>> {
    let curand = Wheel {
        package: "nvidia-curand",
        release: "10.4.5.25",
        folder: "curand-10.4.5.25",
        size: "80 MB",
        target: |path| path.strip_prefix("nvidia/cu13").ok().filter(|path| path.starts_with("include")),
        required: &["include/curand.h"],
    };
    let mut folders = obtain_cudart("13")?;
    folders.push(curand.obtain()?);
    Ok(folders)
}

/// Returns the package that has a release. NVIDIA names packages after the CUDA release that they were built with,
/// which changed with NCCL 2.16.
fn package(release: &str) -> Result<String> {
    let parts: Vec<&str> = release.split('.').collect();
    let numbers: Vec<u32> = parts.iter().map_while(|part| part.parse().ok()).collect();
    // The text becomes the name of a folder and an argument of pip.
    let plain = parts.iter().all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric()));
    match numbers[..] {
        [major, minor, _, ..] if plain => {
            Ok(format!("nvidia-nccl-cu{}", if (major, minor) < (2, 16) { 11 } else { 12 }))
        }
        _ => bail!("{release:?} is not a version of NCCL; expected one such as 2.32.3"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wheel;

    #[test]
    fn package_of_every_release_has_a_hash() {
        for release in crate::releases::RELEASES.iter() {
            wheel::requirement(&package(release).unwrap(), release).unwrap();
        }
    }

    #[test]
    fn runtime_library_of_an_unknown_release_is_refused() {
        let error = obtain_cudart("11").unwrap_err().to_string();
        assert_eq!(error, "\"11\" is not a major version of the CUDA emulation; expected 12 or 13");
    }

    #[test]
    fn package_depends_on_the_release_and_malformed_ones_are_rejected() {
        assert_eq!(package("2.13.4").unwrap(), "nvidia-nccl-cu11");
        assert_eq!(package("2.16.5").unwrap(), "nvidia-nccl-cu12");
        assert_eq!(package("2.26.2.post1").unwrap(), "nvidia-nccl-cu12");
        for wrong in ["", "2.32", "../2.3.4", "2.3.4/x", "2.3.4..", "-r.1.2", "latest"] {
            assert!(package(wrong).is_err(), "{wrong}");
        }
    }
}
