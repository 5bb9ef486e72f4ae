//! NVIDIA's packages of NCCL and of CUDA's runtime library.

use std::path::PathBuf;
use std::sync::LazyLock;

use anyhow::{Error, Result, bail};
use cuda_test_support::toolkit::Release;

use crate::wheel::{self, Wheel};

const HEADER: &str = include_str!("../../vendor-headers/nccl.h");

/// The NCCL versions that NVIDIA publishes on the Python package index, oldest first, from the list at the top of our header.
/// `wheels.txt` has the hashes of the packages.
pub(crate) static VERSIONS: LazyLock<Vec<&str>> = LazyLock::new(|| {
    let after = HEADER.split_once("- Releases:").map_or("", |(_, after)| after);
    let list = after.split_once("\n *\n").map_or("", |(list, _)| list);
    list.split_whitespace().filter(|word| *word != "*").collect()
});

/// Returns the directory with `lib/` and `include/` of a version, after downloading the package if needed.
pub(crate) fn obtain(version: &str) -> Result<PathBuf> {
    let wheel = Wheel {
        package: &package(version)?,
        version,
        directory: version,
        size: "some hundred MB",
        target: |path| path.strip_prefix("nvidia/nccl").ok(),
        required: &["include/nccl.h", "lib/libnccl.so.2"],
    };
    wheel.obtain()
}

/// Returns whether the package of a version is in the cache.
pub(crate) fn is_kept(version: &str) -> Result<bool> {
    Ok(wheel::cache()?.join(version).is_dir())
}

/// Returns directories of CUDA's runtime library, after downloading the packages if needed: first the one with `lib/` and
/// `include/`, then others with headers that its headers include, and finally CUPTI's directory.
pub(crate) fn obtain_cudart(major: &str) -> Result<Vec<PathBuf>> {
    let version = match major {
        "12" => Release::Cuda12,
        "13" => Release::Cuda13,
        _ => bail!("{major:?} is not a major version of the CUDA emulation; expected 12 or 13"),
    };
    version.obtain().map(|toolkit| toolkit.directories).map_err(Error::msg)
}

/// Returns the directories whose `include/` has the headers for the crate cuda-core, the one with `cuda.h` first, after downloading
/// the packages if needed.
pub(crate) fn obtain_cuda_core_headers() -> Result<Vec<PathBuf>> {
    let curand = Wheel {
        package: "nvidia-curand",
        version: "10.4.5.25",
        directory: "curand-10.4.5.25",
        size: "80 MB",
        target: |path| path.strip_prefix("nvidia/cu13").ok().filter(|path| path.starts_with("include")),
        required: &["include/curand.h"],
    };
    let mut directories = obtain_cudart("13")?;
    directories.push(curand.obtain()?);
    Ok(directories)
}

/// Returns the name of an NCCL version's package. It contains the CUDA version for which NVIDIA built NCCL, which changed with
/// NCCL 2.16.
fn package(version: &str) -> Result<String> {
    let parts: Vec<&str> = version.split('.').collect();
    let numbers: Vec<u32> = parts.iter().map_while(|part| part.parse().ok()).collect();
    // The text becomes the name of a directory and an argument of pip.
    let plain = parts.iter().all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric()));
    match numbers[..] {
        [major, minor, _, ..] if plain => {
            Ok(format!("nvidia-nccl-cu{}", if (major, minor) < (2, 16) { 11 } else { 12 }))
        }
        _ => bail!("{version:?} is not a version of NCCL; expected one such as 2.32.3"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(version: &str) -> Vec<u32> {
        version.split('.').map(|part| part.parse().unwrap()).collect()
    }

    #[test]
    fn newest_version_is_that_of_the_header() {
        let value = |name: &str| {
            let line = HEADER.lines().find_map(|line| line.strip_prefix(&format!("#define {name} ")));
            line.unwrap().trim().to_string()
        };
        let newest = ["NCCL_MAJOR", "NCCL_MINOR", "NCCL_PATCH"].map(value).join(".");
        assert_eq!(VERSIONS.last(), Some(&newest.as_str()));
        assert!(VERSIONS.is_sorted_by(|one, other| numbers(one) < numbers(other)));
    }

    #[test]
    fn package_of_every_version_has_a_hash() {
        for version in VERSIONS.iter() {
            wheel::requirement(&package(version).unwrap(), version).unwrap();
        }
    }

    #[test]
    fn runtime_library_of_an_unknown_version_is_refused() {
        let error = obtain_cudart("11").unwrap_err().to_string();
        assert_eq!(error, "\"11\" is not a major version of the CUDA emulation; expected 12 or 13");
    }

    #[test]
    fn package_depends_on_the_version_and_malformed_ones_are_rejected() {
        assert_eq!(package("2.13.4").unwrap(), "nvidia-nccl-cu11");
        assert_eq!(package("2.16.5").unwrap(), "nvidia-nccl-cu12");
        assert_eq!(package("2.26.2.post1").unwrap(), "nvidia-nccl-cu12");
        for wrong in ["", "2.32", "../2.3.4", "2.3.4/x", "2.3.4..", "-r.1.2", "latest"] {
            assert!(package(wrong).is_err(), "{wrong}");
        }
    }
}
