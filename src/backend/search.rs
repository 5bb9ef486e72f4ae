//! The places where a libnccl may be, in search order.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The environment variable that names the library's file.
pub(super) const PATH_VARIABLE: &str = "LIBNCCL_PATH";
/// The library's file names; Python packages have only the first.
const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];
/// The file names of RCCL, AMD's implementation of the same functions.
const RCCL_NAMES: [&str; 2] = ["librccl.so.1", "librccl.so"];
/// The directory in which AMD's packages install RCCL.
const ROCM: &str = "/opt/rocm";

/// A file, or a bare name for the dynamic linker to find.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) source: &'static str,
    pub(super) path: PathBuf,
}

/// Returns the candidates, reading the environment through `variable`.
///
/// If the user names a library, it is the only candidate: falling back to another would hide a mistake.
///
/// NCCL comes before RCCL wherever it is: if both are installed, this crate prefers the one it is named after. The
/// places are examined lazily, as most programs need only the first.
pub(super) fn candidates(variable: impl Fn(&str) -> Option<OsString>) -> impl Iterator<Item = Candidate> {
    type Place = (&'static str, fn(&Path) -> Vec<PathBuf>);
    const PLACES: [Place; 11] = [
        (PATH_VARIABLE, |file| vec![file.into()]),
        ("dynamic linker", |_| NAMES.map(PathBuf::from).into()),
        ("VIRTUAL_ENV", python_package),
        ("CONDA_PREFIX", python_package),
        ("python3", |path| python_prefix(path).map_or_else(Vec::new, |prefix| python_package(&prefix))),
        ("CONDA_PREFIX", |prefix| in_directory(&prefix.join("lib"), NAMES)),
        ("NCCL_HOME", |prefix| in_directory(&prefix.join("lib"), NAMES)),
        ("CUDA_HOME", |prefix| in_directory(&prefix.join("lib64"), NAMES)),
        ("dynamic linker", |_| RCCL_NAMES.map(PathBuf::from).into()),
        ("ROCM_PATH", |prefix| in_directory(&prefix.join("lib"), RCCL_NAMES)),
        ("ROCm's default directory", |prefix| in_directory(&prefix.join("lib"), RCCL_NAMES)),
    ];
    let variable = move |source| match source {
        "dynamic linker" => Some(OsString::new()),
        "ROCm's default directory" => Some(ROCM.into()),
        "python3" => variable("PATH"),
        name => variable(name).filter(|value| !value.is_empty()),
    };
    let places = if variable(PATH_VARIABLE).is_some() { &PLACES[..1] } else { &PLACES[1..] };
    places.iter().flat_map(move |(source, files)| {
        let files = variable(source).map_or_else(Vec::new, |value| files(Path::new(&value)));
        files.into_iter().map(|path| Candidate { source, path })
    })
}

/// Returns the first of the files that exists in `directory`, else the first, so that an error can name it.
fn in_directory(directory: &Path, names: [&str; 2]) -> Vec<PathBuf> {
    let files = names.map(|name| directory.join(name));
    vec![files.iter().find(|file| file.exists()).unwrap_or(&files[0]).clone()]
}

/// Returns the libraries that `pip install nvidia-nccl-cu12` (or `-cu13`) has put into a Python environment.
fn python_package(prefix: &Path) -> Vec<PathBuf> {
    let versions = std::fs::read_dir(prefix.join("lib")).into_iter().flatten().flatten();
    let mut files: Vec<_> = versions
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("python3"))
        .flat_map(|entry| ["site-packages", "dist-packages"].map(|packages| entry.path().join(packages)))
        .map(|packages| packages.join("nvidia/nccl/lib/libnccl.so.2"))
        .filter(|file| file.exists())
        .collect();
    files.sort();
    files
}

/// Returns the prefix of the `python3` that a shell would start. It is useless for a wrapper script (pyenv's shims).
fn python_prefix(path: &Path) -> Option<PathBuf> {
    let python = std::env::split_paths(path)
        .find_map(|directory| std::fs::canonicalize(directory.join("python3")).ok())?;
    Some(python.parent()?.parent()?.into())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::{Candidate, candidates};

    fn touch(file: &Path) {
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, "").unwrap();
    }

    fn search(environment: &[(&str, &Path)]) -> Vec<(&'static str, String)> {
        let variable = |name: &str| Some(environment.iter().find(|(n, _)| *n == name)?.1.into());
        let pair = |Candidate { source, path }| (source, path.display().to_string());
        candidates(variable).map(pair).collect()
    }

    #[test]
    fn empty_environment_searches_the_dynamic_linker_for_nccl_then_for_rccl() {
        let found = search(&[]);
        let bare = ["libnccl.so.2", "libnccl.so", "librccl.so.1", "librccl.so"];
        assert_eq!(found[..4], bare.map(|name| ("dynamic linker", name.to_string())));
        let (source, path) = &found[4];
        assert!(
            *source == "ROCm's default directory" && path.starts_with("/opt/rocm/lib/librccl.so"),
            "{found:?}"
        );
        assert_eq!(found.len(), 5);
        assert_eq!(search(&[("LIBNCCL_PATH", Path::new(""))]), found);
    }

    #[test]
    fn rccl_candidates_come_after_all_nccl_candidates() {
        let directory = tempfile::tempdir().unwrap();
        touch(&directory.path().join("lib/librccl.so"));
        let found = search(&[("ROCM_PATH", directory.path()), ("NCCL_HOME", Path::new("/no/nccl"))]);
        let sources: Vec<_> = found.iter().map(|(source, _)| *source).skip(2).collect();
        let linker = "dynamic linker";
        assert_eq!(sources, ["NCCL_HOME", linker, linker, "ROCM_PATH", "ROCm's default directory"]);
        assert_eq!(found[5].1, directory.path().join("lib/librccl.so").display().to_string());
    }

    #[test]
    fn library_named_by_the_user_is_the_only_candidate() {
        let conda = Path::new("/conda");
        let found = search(&[("CONDA_PREFIX", conda), ("LIBNCCL_PATH", Path::new("/x/libnccl.so.2"))]);
        assert_eq!(found, [("LIBNCCL_PATH", "/x/libnccl.so.2".into())]);
    }

    // Regression: cudarc never looks for libnccl.so.2.
    #[test]
    fn candidates_are_python_then_nccl_home_then_cuda_home() {
        let directory = tempfile::tempdir().unwrap();
        let venv = directory.path().join("venv");
        let python = directory.path().join("python");
        let nccl = directory.path().join("nccl");
        let package = "lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2";
        touch(&venv.join(package));
        touch(&python.join(package));
        touch(&python.join("bin/python3"));
        touch(&nccl.join("lib/libnccl.so"));
        let found = search(&[
            ("CUDA_HOME", Path::new("/no/cuda")),
            ("NCCL_HOME", &nccl),
            ("PATH", &python.join("bin")),
            ("VIRTUAL_ENV", &venv),
        ]);
        let expected = [
            ("VIRTUAL_ENV", venv.join(package)),
            ("python3", fs::canonicalize(&python).unwrap().join(package)),
            ("NCCL_HOME", nccl.join("lib/libnccl.so")),
            ("CUDA_HOME", "/no/cuda/lib64/libnccl.so.2".into()),
        ];
        assert_eq!(found[2..6], expected.map(|(source, path)| (source, path.display().to_string())));
    }
}
