//! Tests of the header check in `build/check_header`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::compare::{Difference, Reason, Report, differences, run};
use crate::declarations::Header;
use crate::{checkout, libclang};

const NCCL: &str = include_str!("../../vendor-headers/nccl.h");

/// A small part of RCCL's header.
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

/// Writes the text into a header in a new directory.
fn written(text: &str) -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let header = directory.path().join("nccl.h");
    fs::write(&header, text).unwrap();
    (directory, header)
}

fn run_text(text: &str, is_strict: bool) -> Result<Report, String> {
    run(checkout(), written(text).1.as_os_str(), is_strict)
}

/// Replaces texts, each of which occurs once.
#[track_caller]
fn with(text: &str, changes: &[(&str, &str)]) -> String {
    changes.iter().fold(text.to_string(), |text, (old, new)| {
        assert_eq!(text.matches(old).count(), 1, "{old}");
        text.replace(old, new)
    })
}

#[test]
fn path_without_header_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let missing = directory.path().join("absent.h");
    let absent = format!("is {missing:?}, which cannot be read: No such file or directory (os error 2)");
    let no_file = format!("is {:?}, which is not a file; expected a header", directory.path());
    for (path, expected) in [
        (Path::new("nccl.h"), "is \"nccl.h\"; expected an absolute path"),
        (&missing, &absent),
        (directory.path(), &no_file),
    ] {
        let error = run(checkout(), path.as_os_str(), false).unwrap_err();
        assert!(error.starts_with(&format!("LIBNCCL_CHECK_HEADER {expected}")), "{error}");
    }
}

#[test]
fn header_of_another_library_is_refused() {
    let Some(()) = libclang() else { return };
    for (text, expected) in [
        ("int ncclSend(void);", "it does not define NCCL_VERSION_CODE, as every nccl.h does"),
        ("#define NCCL_VERSION_CODE \"2.32\"", "expected a number such as 23203"),
        ("#define NCCL_VERSION_CODE 23203\nncclResult_t ncclSend(", "unknown type name 'ncclResult_t'"),
        ("#include <absent.h>", "'absent.h' file not found"),
    ] {
        let (_directory, header) = written(text);
        let error = run(checkout(), header.as_os_str(), false).unwrap_err();
        assert!(error.starts_with(&format!("LIBNCCL_CHECK_HEADER is {header:?}, which cannot")), "{error}");
        assert!(error.contains(&format!("{}: ", header.display())) && error.contains(expected), "{error}");
    }
}

#[test]
fn header_next_to_cuda_and_c_library_headers_is_read_with_the_stubs() {
    let Some(()) = libclang() else { return };
    let (directory, header) = written(NCCL);
    for other in ["cuda_runtime.h", "limits.h", "stddef.h"] {
        fs::write(directory.path().join(other), "#error not this one").unwrap();
    }
    assert_eq!(run(checkout(), header.as_os_str(), true).unwrap().list, "");
}

#[test]
fn older_header_lists_newer_items() {
    let Some(()) = libclang() else { return };
    let older = with(
        NCCL,
        &[
            ("NCCL_VERSION_CODE 23203", "NCCL_VERSION_CODE 23102"),
            ("ncclResult_t ncclSetEncryption(const ncclEncryptionConfig_t *config);", ""),
            ("#define NCCL_WIN_REQUIRED_ALIGNMENT 4096", ""),
        ],
    );
    let Report { list, summary } = run_text(&older, false).unwrap();
    for line in ["  ncclSetEncryption: since 2.32.3\n", "  NCCL_WIN_REQUIRED_ALIGNMENT: in 2.32.3\n"] {
        assert!(list.contains(line), "{line}: {list}");
    }
    assert!(summary.contains("nccl.h, of 2.31.2, and the bindings, of 2.32.3: "), "{summary}");
    assert_eq!(run_text(&older, true).unwrap_err().split_once('\n').unwrap().1, list);
}

#[test]
fn newer_header_may_add_items_and_rename_parameters() {
    let Some(()) = libclang() else { return };
    let version = ("NCCL_VERSION_CODE 23203", "NCCL_VERSION_CODE 23300");
    let count = "ncclResult_t ncclCommCount(const ncclComm_t comm, int *";
    let renamed = (&*format!("{count}count)"), &*format!("{count}ranks)"));
    let profiled = "ncclResult_t pncclCommCount";
    let added = (profiled, &*format!("ncclResult_t ncclNew(int flags);\n{profiled}"));
    let report = run_text(&with(NCCL, &[version, renamed, added]), false).unwrap();
    let expected = "only in the header, of 2.33.0:\n  ncclNew: fn ( flags : c_int ) -> ncclResult_t\n";
    assert_eq!(report.list, expected);
    let init = "ncclResult_t ncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank)";
    let swapped = init.replace("nranks", "r").replace("rank", "nranks").replace("int r,", "int rank,");
    let error = run_text(&with(NCCL, &[version, (init, &swapped)]), false).unwrap_err();
    assert!(error.contains("  ncclCommInitRank: ours: fn ("), "{error}");
}

#[test]
fn rccl_header_may_lack_items_and_add_others() {
    let Some(()) = libclang() else { return };
    let Report { list, .. } = run_text(RCCL, false).unwrap();
    for line in [
        "in both, although NCCL has them later:\n  ncclGather: ours: since 2.28.3; theirs: declared in 2.21.5\n",
        "  ncclSend: since 2.13.4\n",
        "only in the header, of 2.21.5:\n  RCCL_GATHER_SCATTER: #define 1\n  ncclAllToAll: fn (",
        "  ncclFp8E4M3: ncclDataType_t (10)\n",
    ] {
        assert!(list.contains(line), "{line}: {list}");
    }
    assert!(!list.contains("ncclBcast") && !list.contains("\n  cuda"), "{list}");
    let error =
        run_text(&RCCL.replace("int root, ncclComm_t", "size_t root, ncclComm_t"), false).unwrap_err();
    assert!(error.contains("2 contradict the bindings"), "{error}");
    // Without its macros it is an incomplete header of NCCL.
    let error = run_text(&RCCL.replace("RCCL_", "NCCL_"), false).unwrap_err();
    assert!(error.contains("\n  ncclSend: ours: fn ("), "{error}");
}

/// The macros that select the two views of `nccl.h`: for programs, and for NCCL's own build on Linux.
const VIEWS: [&[&str]; 2] = [&[], &["-DNCCL_OS_LINUX"]];

/// A small header of 2.32.3.
const OURS: &str = "
    #include <cuda_runtime.h>
    #define NCCL_VERSION_CODE 23203
    #define NCCL_CONFIG_UNDEF_PTR NULL
    /** Since NCCL 2.13.4. */
    typedef enum {
        /** Since NCCL 2.13.4. */
        ncclSuccess = 0,
        /** Since NCCL 2.14.3. */
        ncclInProgress = 7,
        /** Since NCCL 2.30.3. */
        ncclTimeout = 8,
        /** Since NCCL 2.13.4. */
        ncclNumResults = 9
    } ncclResult_t;
    /** Since NCCL 2.27.3. */
    typedef struct ncclWindow_vidmem *ncclWindow_t;
    /** Since NCCL 2.30.4. */
    typedef struct ncclParamHandle *ncclParamHandle_t;
    /** Since NCCL 2.14.3. */
    typedef struct ncclConfig_v23100 {
        /** Since NCCL 2.14.3. */
        size_t size;
        /** Since NCCL 2.17.1. */
        int minCTAs;
        /** Since NCCL 2.29.2. */
        int numRmaCtx;
    } ncclConfig_t;
    #define NCCL_CONFIG_INITIALIZER { sizeof(ncclConfig_t), 0, 0 }
    /** Since NCCL 2.13.4. */
    ncclResult_t ncclGetVersion(int *version);
    ncclResult_t pncclGetVersion(int *version);
    /** Since NCCL 2.27.3. */
    ncclResult_t ncclWindowUse(ncclWindow_t *window, ncclConfig_t *config);
    #ifdef NCCL_OS_LINUX
    /** Since NCCL 2.24.3. */
    void ncclResetDebugInit();
    #else
    #define ncclResetDebugInit()
    #endif
    /** Since NCCL 2.30.4. */
    ncclResult_t ncclParamBind(ncclParamHandle_t *out, const char *key);
    ";

/// A small header of 2.27.7, with everything that was spelled differently in that version.
const OLDER: &str = "
    #include <cuda_runtime.h>
    #define NCCL_VERSION_CODE 22707
    #define NCCL_CONFIG_UNDEF_PTR NULL
    typedef enum { ncclSuccess = 0, ncclInProgress = 7, ncclNumResults = 8 } ncclResult_t;
    typedef struct ncclWindow *ncclWindow_t;
    typedef struct ncclConfig_v22700 { size_t size; int minCTAs; } ncclConfig_t;
    #define NCCL_CONFIG_INITIALIZER { sizeof(ncclConfig_t), 0 }
    ncclResult_t ncclGetVersion(int *);
    ncclResult_t pncclGetVersion(int *);
    ncclResult_t ncclWindowUse(ncclWindow_t *win, ncclConfig_t *config);
    void ncclResetDebugInit();
    ";

/// Reads a header in all views.
fn views(text: &str) -> [Header; VIEWS.len()] {
    let (_directory, header) = written(text);
    VIEWS.map(|view| Header::read(&header, &checkout().join("vendor-headers/stubs"), view).unwrap())
}

/// Returns the items that differ in any view.
fn differing(ours: &[Header], theirs: &[Header]) -> BTreeSet<String> {
    let found = ours.iter().zip(theirs).flat_map(|(ours, theirs)| differences(ours, theirs));
    found
        .filter(|difference| difference.reason != Reason::OnlyOurs)
        .map(|difference| difference.item)
        .collect()
}

#[track_caller]
fn assert_differing(ours: &[Header], theirs: &[Header], expected: &[&str], change: &str) {
    assert!(differing(ours, theirs).iter().eq(expected), "{change}: {:?}", differing(ours, theirs));
}

#[test]
fn differences_from_the_same_and_from_an_older_version_are_named() {
    let Some(()) = libclang() else { return };
    let ours = views(OURS);
    assert_differing(&ours, &ours, &[], "nothing");
    assert_differing(&ours, &views(OLDER), &[], "nothing");
    let undefined = "#define NCCL_CONFIG_UNDEF_PTR NULL";
    #[rustfmt::skip]
    let changes = [
        (OURS, "int minCTAs;", "long minCTAs;", &["ncclConfig.minCTAs"][..]),
        (OURS, "const char *key", "char *key", &["ncclParamBind"]),
        (OURS, "const char *key", "const char *name", &["ncclParamBind"]),
        (OURS, "void ncclResetDebugInit();", "int ncclResetDebugInit();", &["ncclResetDebugInit"]),
        (OURS, "ncclResult_t pncclGetVersion(int *version);", "", &["pncclGetVersion"]),
        (OURS, "ncclInProgress = 7", "ncclInProgress = 6", &["ncclInProgress"]),
        (OURS, "ncclTimeout = 8,", "", &["ncclTimeout"]),
        (OURS, undefined, "", &["NCCL_CONFIG_UNDEF_PTR"]),
        (OURS, "ncclConfig_t), 0, 0 }", "ncclConfig_t), 0, 1 }", &["NCCL_CONFIG_INITIALIZER"]),
        (OURS, "ncclConfig_v23100", "ncclConfig_v23200", &["ncclConfig", "ncclConfig_t"]),
        (OLDER, "int minCTAs;", "long minCTAs;", &["ncclConfig.minCTAs"]),
        (OLDER, "size_t size; int minCTAs;", "int minCTAs; size_t size;", &["ncclConfig.minCTAs", "ncclConfig.size"]),
        (OLDER, "ncclWindowUse(ncclWindow_t *", "ncclWindowUse(ncclWindow_t ", &["ncclWindowUse"]),
        (OLDER, "ncclResult_t ncclGetVersion(int *);", "", &["ncclGetVersion"]),
        (OLDER, "void ncclResetDebugInit", "int ncclResetDebugInit", &["ncclResetDebugInit"]),
        (OLDER, "ncclInProgress = 7", "ncclInProgress = 6", &["ncclInProgress"]),
        (OLDER, undefined, "#define NCCL_CONFIG_UNDEF_PTR 0", &["NCCL_CONFIG_UNDEF_PTR"]),
        (OLDER, undefined, "#define NCCL_GONE(x) x", &["NCCL_GONE"]),
    ];
    for (header, old, new, expected) in changes {
        let changed = views(&with(header, &[(old, new)]));
        assert_differing(&ours, &changed, expected, new);
        if header == OURS {
            assert_differing(&changed, &ours, expected, new);
        }
    }
}

#[test]
fn wrong_since_is_named() {
    let Some(()) = libclang() else { return };
    let since = |old, new, item: &str| {
        let [old, new] = [old, new].map(|since| format!("{since}\n        {item}"));
        views(&with(OURS, &[(&old, &new)]))
    };
    let older = views(OLDER);
    let early = since("2.29.2. */", "2.27.3. */", "int numRmaCtx");
    assert_differing(&early, &older, &["ncclConfig.numRmaCtx"], "too early");
    let late = since("2.14.3. */", "2.28.3. */", "ncclInProgress");
    assert_differing(&late, &older, &["ncclInProgress"], "too late");
    let none = with(OURS, &[("/** Since NCCL 2.30.4. */\n    ncclResult_t", "ncclResult_t")]);
    assert_differing(&views(&none), &views(OURS), &["ncclParamBind"], "missing");
    let mut found = differences(&late[0], &older[0]);
    found.retain(|difference| difference.reason == Reason::Since);
    let lines: Vec<_> = found.iter().map(Difference::to_string).collect();
    assert_eq!(lines, ["ncclInProgress: ours: since 2.28.3; theirs: declared in 2.27.7"]);
}

#[test]
fn parameter_handle_of_older_versions_was_the_struct() {
    let Some(()) = libclang() else { return };
    let former = |version| {
        let handle = "struct ncclParamHandle ncclParamHandle_t";
        let changes = [
            ("struct ncclParamHandle *ncclParamHandle_t", handle),
            ("ncclParamHandle_t *out", "ncclParamHandle_t **out"),
            ("CODE 23203", version),
        ];
        views(&with(OURS, &changes))
    };
    let ours = views(OURS);
    assert_differing(&ours, &former("CODE 23004"), &[], "2.30.4");
    assert_differing(&ours, &former("CODE 23102"), &["ncclParamBind", "ncclParamHandle_t"], "2.31.2");
}
