//! `LIBNCCL_CHECK_HEADER`: compares a header of the user's own with the bindings.
//!
//! `cargo xtask headers` compares NVIDIA's headers by the same code.

pub(crate) mod compare;
pub(crate) mod declarations;

use std::any::Any;
use std::env;
use std::ffi::OsStr;
use std::fs;
use std::panic;
use std::path::Path;

use compare::{Difference, Reason, differences, release};
use declarations::Header;

/// A header of NCCL that the build compares with the bindings: `/usr/include/nccl.h`. Default: none.
const CHECK_HEADER: &str = "LIBNCCL_CHECK_HEADER";
/// Set, and not 0, if items that the header lacks fail the build too. Default: they are listed.
const STRICT: &str = "LIBNCCL_CHECK_HEADER_STRICT";

/// The result of a comparison in which nothing contradicts.
#[derive(Debug)]
pub(crate) struct Report {
    /// One line: the headers, and the number of items.
    pub(crate) summary: String,
    /// The items that only one of the two has, a line each; empty if there are none.
    pub(crate) list: String,
}

/// Compares the header that `LIBNCCL_CHECK_HEADER` names, if any. What only one of the two has is listed in a file in `out`.
///
/// # Panics
/// If it contradicts the bindings, or cannot be compared with them, which is what ends a build.
pub(crate) fn check(root: &Path, out: &Path) {
    let variable = |name: &str| {
        println!("cargo::rerun-if-env-changed={name}");
        env::var_os(name).filter(|value| !value.is_empty())
    };
    let is_strict = variable(STRICT).is_some_and(|value| value != "0");
    let Some(header) = variable(CHECK_HEADER) else { return };
    println!("cargo::rerun-if-changed={}", Path::new(&header).display());
    let report = run(root, &header, is_strict).unwrap_or_else(|problem| panic!("{problem}"));
    let file = out.join("check_header.txt");
    let text = format!("{}\n{}", report.summary, report.list);
    fs::write(&file, text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    if !report.list.is_empty() {
        println!("cargo::warning={}; {} lists them", report.summary, file.display());
    }
}

/// Compares a header with the one that the bindings were generated from. With `is_strict`, an item that only one of the
/// two has is an error too.
///
/// # Errors
/// The value of `LIBNCCL_CHECK_HEADER` and why it cannot be compared, or all items that differ.
pub(crate) fn run(root: &Path, header: &OsStr, is_strict: bool) -> Result<Report, String> {
    let path = Path::new(header);
    let named = |problem: String| format!("LIBNCCL_CHECK_HEADER is {header:?}{problem}");
    if path.is_relative() {
        return Err(named("; expected an absolute path".into()));
    }
    let file = fs::metadata(path).map_err(|error| named(format!(", which cannot be read: {error}")))?;
    if !file.is_file() {
        return Err(named(", which is not a file; expected a header, such as /usr/include/nccl.h".into()));
    }
    let vendor = root.join("vendor-headers");
    let read = |header: &Path| -> Result<Header, String> {
        // bindgen panics if there is no libclang, or an unusable one.
        let read = || Header::read(header, &vendor.join("stubs"), &[]);
        let mut header = panic::catch_unwind(read).unwrap_or_else(|payload| Err(reason(&*payload)))?;
        // The twins are not in the bindings, and the types of CUDA are the stubs'.
        header
            .items
            .retain(|name, _| ["NCCL_", "RCCL_", "nccl"].iter().any(|prefix| name.starts_with(prefix)));
        Ok(header)
    };
    let both = || -> Result<_, String> {
        let theirs = read(path)?;
        Ok((read(&vendor.join("nccl.h"))?, theirs))
    };
    let (ours, theirs) = both()
        .map_err(|problem| named(format!(", which cannot be compared with the bindings: {problem}")))?;

    let found = differences(&ours, &theirs);
    let common = theirs.items.keys().filter(|name| ours.items.contains_key(*name)).count();
    let their_release = release(theirs.version);
    let only_theirs = format!("only in the header, of {their_release}");
    type Line = fn(&Difference) -> String;
    let groups: [(&str, &[Reason], Line); 4] = [
        ("contradict the bindings", &[Reason::Declaration, Reason::Missing], Difference::to_string),
        ("in both, although NCCL has them later", &[Reason::Since], Difference::to_string),
        ("only in the bindings", &[Reason::OnlyOurs], Difference::ours),
        (&only_theirs, &[Reason::OnlyTheirs], Difference::theirs),
    ];
    let mut summary = format!(
        "LIBNCCL_CHECK_HEADER={}, of {their_release}, and the bindings, of {}: {common} items in both",
        path.display(),
        release(ours.version)
    );
    let mut list = String::new();
    for (title, reasons, line) in groups {
        let lines: Vec<_> = found.iter().filter(|found| reasons.contains(&found.reason)).map(line).collect();
        if !lines.is_empty() {
            summary += &format!(", {} {title}", lines.len());
            list += &format!("{title}:\n  {}\n", lines.join("\n  "));
        }
    }
    let contradicts = found.iter().any(|found| matches!(found.reason, Reason::Declaration | Reason::Missing));
    if contradicts || (is_strict && !list.is_empty()) {
        return Err(format!("{summary}\n{list}"));
    }
    Ok(Report { summary, list })
}

/// Returns the message of a panic.
fn reason(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("bindgen panicked").into()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    const OURS: &str = include_str!("../vendor-headers/nccl.h");

    /// A small part of what the header of RCCL has.
    const RCCL: &str = "
        #include <hip/hip_runtime.h>
        #include <hip/hip_fp16.h>
        #include <limits.h>
        #define NCCL_VERSION_CODE 22105
        #define RCCL_GATHER_SCATTER 1
        typedef struct ncclComm *ncclComm_t;
        typedef enum { ncclSuccess = 0, ncclNumResults = 8 } ncclResult_t;
        typedef enum { ncclChar = 0, ncclFp8E4M3 = 10, ncclNumTypes = 12 } ncclDataType_t;
        ncclResult_t ncclBcast(void *buff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
            hipStream_t stream);
        ncclResult_t ncclGather(const void *sendbuff, void *recvbuff, size_t sendcount, ncclDataType_t datatype,
            int root, ncclComm_t comm, hipStream_t stream);
        ncclResult_t ncclAllToAll(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
            ncclComm_t comm, hipStream_t stream);
        ";

    fn root() -> &'static Path {
        crate::checkout::root()
    }

    /// Writes the text into a header in a folder of its own.
    fn written(text: &str) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let header = folder.path().join("nccl.h");
        fs::write(&header, text).unwrap();
        (folder, header)
    }

    fn run_text(text: &str, is_strict: bool) -> Result<Report, String> {
        run(root(), written(text).1.as_os_str(), is_strict)
    }

    #[track_caller]
    fn with(text: &str, changes: &[(&str, &str)]) -> String {
        changes.iter().fold(text.to_string(), |text, (old, new)| {
            assert_eq!(text.matches(old).count(), 1, "{old}");
            text.replace(old, new)
        })
    }

    #[test]
    fn path_that_names_no_header_is_refused() {
        let (folder, header) = written("");
        let missing = folder.path().join("absent.h");
        let cases = [
            (Path::new("nccl.h"), "is \"nccl.h\"; expected an absolute path".to_string()),
            (
                &missing,
                format!("is {missing:?}, which cannot be read: No such file or directory (os error 2)"),
            ),
            (folder.path(), format!("is {:?}, which is not a file; expected a header", folder.path())),
        ];
        for (path, expected) in cases {
            let error = run(root(), path.as_os_str(), false).unwrap_err();
            assert!(error.starts_with(&format!("LIBNCCL_CHECK_HEADER {expected}")), "{error}");
        }
        drop(header);
    }

    #[test]
    #[cfg_attr(not(libclang), ignore = "needs libclang")]
    fn header_that_is_not_nccls_is_refused() {
        let cases = [
            ("int ncclSend(void);", "it does not define NCCL_VERSION_CODE, as every nccl.h does"),
            ("#define NCCL_VERSION_CODE \"2.32\"", "expected a number such as 23203"),
            ("#define NCCL_VERSION_CODE 23203\nncclResult_t ncclSend(", "unknown type name 'ncclResult_t'"),
            ("#include <absent.h>", "'absent.h' file not found"),
        ];
        for (text, expected) in cases {
            let (_folder, header) = written(text);
            let error = run(root(), header.as_os_str(), false).unwrap_err();
            assert!(
                error.starts_with(&format!("LIBNCCL_CHECK_HEADER is {header:?}, which cannot")),
                "{error}"
            );
            assert!(
                error.contains(&format!("{}: ", header.display())) && error.contains(expected),
                "{error}"
            );
        }
    }

    #[test]
    #[cfg_attr(not(libclang), ignore = "needs libclang")]
    fn header_beside_others_of_cuda_and_of_a_c_library_is_read_with_the_stubs() {
        let (folder, header) = written(OURS);
        for other in ["cuda_runtime.h", "limits.h", "stddef.h"] {
            fs::write(folder.path().join(other), "#error not this one").unwrap();
        }
        let report = run(root(), header.as_os_str(), true).unwrap();
        assert_eq!(report.list, "");
    }

    #[test]
    #[cfg_attr(not(libclang), ignore = "needs libclang")]
    fn header_of_an_older_release_lists_what_is_newer() {
        let older = with(
            OURS,
            &[
                ("NCCL_VERSION_CODE 23203", "NCCL_VERSION_CODE 23102"),
                ("ncclResult_t ncclSetEncryption(const ncclEncryptionConfig_t *config);", ""),
                ("#define NCCL_WIN_REQUIRED_ALIGNMENT 4096", ""),
            ],
        );
        let report = run_text(&older, false).unwrap();
        for line in ["  ncclSetEncryption: since 2.32.3\n", "  NCCL_WIN_REQUIRED_ALIGNMENT: in 2.32.3\n"] {
            assert!(report.list.contains(line), "{line}: {}", report.list);
        }
        assert!(
            report.summary.contains("nccl.h, of 2.31.2, and the bindings, of 2.32.3: "),
            "{}",
            report.summary
        );
        assert_eq!(run_text(&older, true).unwrap_err().split_once('\n').unwrap().1, report.list);
    }

    #[test]
    #[cfg_attr(not(libclang), ignore = "needs libclang")]
    fn header_of_a_newer_release_may_add_items_and_rename_parameters() {
        let version = ("NCCL_VERSION_CODE 23203", "NCCL_VERSION_CODE 23300");
        let newer = with(
            OURS,
            &[
                version,
                (
                    "ncclResult_t ncclCommCount(const ncclComm_t comm, int *count)",
                    "ncclResult_t ncclCommCount(const ncclComm_t comm, int *ranks)",
                ),
                (
                    "ncclResult_t pncclCommCount",
                    "ncclResult_t ncclNew(int flags);\nncclResult_t pncclCommCount",
                ),
            ],
        );
        let report = run_text(&newer, false).unwrap();
        assert_eq!(
            report.list,
            "only in the header, of 2.33.0:\n  ncclNew: fn ( flags : c_int ) -> ncclResult_t\n"
        );
        let init =
            "ncclResult_t ncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank)";
        let swapped = init.replace("nranks", "r").replace("rank", "nranks").replace("int r,", "int rank,");
        let error = run_text(&with(OURS, &[version, (init, &swapped)]), false).unwrap_err();
        assert!(error.contains("  ncclCommInitRank: ours: fn ("), "{error}");
    }

    #[test]
    #[cfg_attr(not(libclang), ignore = "needs libclang")]
    fn header_of_rccl_may_lack_items_and_have_others() {
        let report = run_text(RCCL, false).unwrap();
        for line in [
            "in both, although NCCL has them later:\n  ncclGather: ours: since 2.28.3; theirs: declared in 2.21.5\n",
            "  ncclSend: since 2.13.4\n",
            "only in the header, of 2.21.5:\n  RCCL_GATHER_SCATTER: #define 1\n  ncclAllToAll: fn (",
            "  ncclFp8E4M3: ncclDataType_t (10)\n",
        ] {
            assert!(report.list.contains(line), "{line}: {}", report.list);
        }
        assert!(!report.list.contains("ncclBcast") && !report.list.contains("\n  cuda"), "{}", report.list);
        let error =
            run_text(&RCCL.replace("int root, ncclComm_t", "size_t root, ncclComm_t"), false).unwrap_err();
        assert!(error.contains("2 contradict the bindings"), "{error}");
        // Without its macros it is an incomplete header of NCCL.
        let error = run_text(&RCCL.replace("RCCL_", "NCCL_"), false).unwrap_err();
        assert!(error.contains("\n  ncclSend: ours: fn ("), "{error}");
    }
}
