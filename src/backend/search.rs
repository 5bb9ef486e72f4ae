//! Where a libnccl may be, in the order in which it is looked for.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The variable that names the library's file.
pub(super) const PATH_VARIABLE: &str = "LIBNCCL_PATH";
/// The library's names; packages from Python's index have only the first.
const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];

/// A file, or a bare name for the dynamic linker to find.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) source: &'static str,
    pub(super) path: PathBuf,
}

/// The candidates, reading the environment through `variable`.
///
/// A library that the user names is the only one: falling back to another would hide a mistake.
///
/// Each place is looked at when its turn comes: most programs need none but the first.
pub(super) fn candidates(variable: impl Fn(&str) -> Option<OsString>) -> impl Iterator<Item = Candidate> {
    type Place = (&'static str, fn(&Path) -> Vec<PathBuf>);
    const PLACES: [Place; 8] = [
        (PATH_VARIABLE, |file| vec![file.into()]),
        ("dynamic linker", |_| NAMES.map(PathBuf::from).into()),
        ("VIRTUAL_ENV", python_package),
        ("CONDA_PREFIX", python_package),
        ("python3", |path| python_prefix(path).map_or_else(Vec::new, |prefix| python_package(&prefix))),
        ("CONDA_PREFIX", |prefix| in_directory(&prefix.join("lib"))),
        ("NCCL_HOME", |prefix| in_directory(&prefix.join("lib"))),
        ("CUDA_HOME", |prefix| in_directory(&prefix.join("lib64"))),
    ];
    let variable = move |source| match source {
        "dynamic linker" => Some(OsString::new()),
        "python3" => variable("PATH"),
        name => variable(name).filter(|value| !value.is_empty()),
    };
    let places = if variable(PATH_VARIABLE).is_some() { &PLACES[..1] } else { &PLACES[1..] };
    places.iter().flat_map(move |(source, files)| {
        let files = variable(source).map_or_else(Vec::new, |value| files(Path::new(&value)));
        files.into_iter().map(|path| Candidate { source, path })
    })
}

/// The first of the names that `directory` has, else the first name, so that a report can say what is missing.
fn in_directory(directory: &Path) -> Vec<PathBuf> {
    let files = NAMES.map(|name| directory.join(name));
    vec![files.iter().find(|file| file.exists()).unwrap_or(&files[0]).clone()]
}

/// What `pip install nvidia-nccl-cu12` (or `-cu13`) puts into a Python environment.
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

/// The prefix of the `python3` that a shell would start. A wrapper script (pyenv's shims) leads nowhere.
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
    fn without_an_environment_only_the_dynamic_linker_is_asked() {
        let names = [("dynamic linker", "libnccl.so.2".into()), ("dynamic linker", "libnccl.so".into())];
        assert_eq!(search(&[]), names);
        assert_eq!(search(&[("LIBNCCL_PATH", Path::new(""))]), names);
    }

    #[test]
    fn a_named_library_is_the_only_candidate() {
        let conda = Path::new("/conda");
        let found = search(&[("CONDA_PREFIX", conda), ("LIBNCCL_PATH", Path::new("/x/libnccl.so.2"))]);
        assert_eq!(found, [("LIBNCCL_PATH", "/x/libnccl.so.2".into())]);
    }

    #[test]
    fn python_then_conda_then_the_toolkits() {
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
        assert_eq!(found[2..], expected.map(|(source, path)| (source, path.display().to_string())));
    }
}
