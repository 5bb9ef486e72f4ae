//! The rules by which our header and an official one agree.
//!
//! Ours describes one release. An official header of that release, or of a newer one, must declare the same items in
//! the same words. One of an older release must declare exactly those of our items whose `Since` it has reached, with
//! the same types. Items that NVIDIA spelled differently in older releases are listed here and nowhere else.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::declarations::{Declaration, Header, Kind};

/// An item whose declarations differ.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Difference {
    pub(crate) item: String,
    pub(crate) reason: Reason,
    ours: String,
    official: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Reason {
    /// Our header does not declare the item.
    Unknown,
    /// Our comment names no release, or not the one that introduced the item.
    Since,
    /// The declarations differ, or the official header has none.
    Declaration,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { item, ours, official, .. } = self;
        write!(f, "{item}: ours: {ours}; official: {official}")
    }
}

impl Difference {
    /// Returns the item as the official header declares it.
    pub(crate) fn official(&self) -> String {
        format!("{}: {}", self.item, self.official)
    }
}

/// Returns the differences between the headers, by name of the item.
pub(crate) fn differences(ours: &Header, official: &Header) -> Vec<Difference> {
    let older = official.version < ours.version;
    let theirs = if older { respelled(official) } else { official.items.clone() };
    let names: BTreeSet<_> = ours.items.keys().chain(theirs.keys()).collect();
    names
        .into_iter()
        .filter_map(|name| {
            let (reason, ours, official) =
                difference(name, ours.items.get(name), theirs.get(name), official.version, older)?;
            Some(Difference { item: name.clone(), reason, ours, official })
        })
        .collect()
}

fn difference(
    name: &str,
    ours: Option<&Declaration>,
    theirs: Option<&Declaration>,
    version: u32,
    older: bool,
) -> Option<(Reason, String, String)> {
    let absent = || "not declared".to_string();
    let (ours, theirs) = match (ours, theirs) {
        (Some(ours), theirs) => (ours, theirs),
        (None, theirs) => return Some((Reason::Unknown, absent(), theirs?.text.clone())),
    };
    let since =
        ours.since.map_or("its comment names no release".into(), |code| format!("since {}", release(code)));
    let Some(theirs) = theirs else {
        let expected = !older || ours.since.is_some_and(|code| code <= version);
        // NCCL never removed anything from its API: the item was introduced later than its comment says.
        let reason = if older { Reason::Since } else { Reason::Declaration };
        return expected.then(|| (reason, format!("{} ({since})", ours.text), absent()));
    };
    if ours.since.is_some_and(|code| code > version) || (ours.since.is_none() && has_since(name, ours.kind)) {
        return Some((Reason::Since, since, format!("declared in {}", release(version))));
    }
    let same = if older {
        ours.abi == theirs.abi || changes_with_releases(name, ours, theirs)
    } else {
        ours.text == theirs.text
    };
    (!same).then(|| (Reason::Declaration, ours.text.clone(), theirs.text.clone()))
}

/// Returns the release of a version code: `2.32.3` for 23203.
pub(crate) fn release(code: u32) -> String {
    format!("{}.{}.{}", code / 10_000, code / 100 % 100, code % 100)
}

/// Returns whether the item's comment must name a release. Macros have no documentation in Rust, opaque structs are
/// documented at the handle, and CUDA's handles do not belong to NCCL.
fn has_since(name: &str, kind: Kind) -> bool {
    !matches!(kind, Kind::Constant | Kind::Macro | Kind::Opaque) && !name.starts_with("cuda")
}

/// Returns whether the value of an item changes with nearly every release.
fn changes_with_releases(name: &str, ours: &Declaration, theirs: &Declaration) -> bool {
    match name {
        "NCCL_MAJOR" | "NCCL_MINOR" | "NCCL_PATCH" | "NCCL_VERSION_CODE" => true,
        // The number of values before them.
        "ncclNumTypes" | "ncclNumResults" => true,
        // A function from 2.24.3 to 2.29.7, later hidden by a macro of the same name. In the view of NCCL's own build
        // it is a function in all releases, and compared as such.
        "ncclResetDebugInit" | "pncclResetDebugInit" => {
            (ours.kind, theirs.kind) == (Kind::Macro, Kind::Function)
        }
        // An initializer grows with its struct.
        _ => name.ends_with("_INITIALIZER"),
    }
}

/// Returns the declarations of an older release in today's spelling, of which each has the same ABI.
fn respelled(official: &Header) -> BTreeMap<String, Declaration> {
    let respell = |(name, declaration): (&String, &Declaration)| {
        let mut name = name.clone();
        let mut declaration = declaration.clone();
        // The twin of ncclGetLastError was misspelled, and never exported.
        if official.version < 2_16_05 && name == "pncclGetError" {
            name = "pncclGetLastError".into();
        }
        // The struct of windows had another name in 2.27.
        if official.version < 2_28_03 {
            name = if name == "ncclWindow" { "ncclWindow_vidmem".into() } else { name };
            declaration.abi = replace_word(&declaration.abi, "ncclWindow", "ncclWindow_vidmem");
        }
        // The handle was the struct, and functions took a pointer to it; now the handle is that pointer.
        if official.version < 2_30_07 {
            declaration.abi = match name.as_str() {
                "ncclParamHandle_t" => format!("* mut {}", declaration.abi),
                _ => declaration.abi.replace("* mut ncclParamHandle_t", "ncclParamHandle_t"),
            };
        }
        (name, declaration)
    };
    official.items.iter().map(respell).collect()
}

fn replace_word(text: &str, old: &str, new: &str) -> String {
    text.split(' ').map(|word| if word == old { new } else { word }).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::declarations::VIEWS;

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

    /// A small header of 2.27.7, with everything that was spelled differently in that release.
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

    fn read(text: &str, view: &[&str]) -> Header {
        let directory = tempfile::tempdir().unwrap();
        let header = directory.path().join("nccl.h");
        fs::write(&header, text).unwrap();
        Header::read(&header, &crate::checkout::root().join("vendor-headers/stubs"), view).unwrap()
    }

    /// Returns the names of the items that differ, in either view.
    fn differing(ours: &str, official: &str) -> Vec<String> {
        let lines = VIEWS.iter().flat_map(|view| differences(&read(ours, view), &read(official, view)));
        let names: BTreeSet<_> = lines.map(|difference| difference.item).collect();
        names.into_iter().collect()
    }

    #[track_caller]
    fn with(text: &str, old: &str, new: &str) -> String {
        assert_eq!(text.matches(old).count(), 1, "{old}");
        text.replace(old, new)
    }

    #[test]
    #[cfg_attr(not(libclang), ignore = "needs libclang")]
    fn differences_of_equal_headers_and_of_an_older_one_are_none() {
        assert!(differing(OURS, OURS).is_empty());
        assert_eq!(differing(OURS, OLDER), Vec::<String>::new());
    }

    #[test]
    #[cfg_attr(not(libclang), ignore = "needs libclang")]
    fn differences_in_the_same_release_are_named() {
        let cases = [
            ("int minCTAs;", "long minCTAs;", &["ncclConfig.minCTAs"][..]),
            ("const char *key", "char *key", &["ncclParamBind"]),
            ("const char *key", "const char *name", &["ncclParamBind"]),
            ("void ncclResetDebugInit();", "int ncclResetDebugInit();", &["ncclResetDebugInit"]),
            ("ncclResult_t pncclGetVersion(int *version);", "", &["pncclGetVersion"]),
            ("ncclInProgress = 7", "ncclInProgress = 6", &["ncclInProgress"]),
            ("ncclTimeout = 8,", "", &["ncclTimeout"]),
            ("#define NCCL_CONFIG_UNDEF_PTR NULL", "", &["NCCL_CONFIG_UNDEF_PTR"]),
            ("ncclConfig_t), 0, 0 }", "ncclConfig_t), 0, 1 }", &["NCCL_CONFIG_INITIALIZER"]),
            ("ncclConfig_v23100", "ncclConfig_v23200", &["ncclConfig", "ncclConfig_t"]),
        ];
        for (old, new, expected) in cases {
            let broken = with(OURS, old, new);
            assert_eq!(differing(OURS, &broken), expected, "official: {new}");
            assert_eq!(differing(&broken, OURS), expected, "ours: {new}");
        }
    }

    #[test]
    #[cfg_attr(not(libclang), ignore = "needs libclang")]
    fn differences_from_an_older_release_are_named() {
        let cases = [
            ("int minCTAs;", "long minCTAs;", &["ncclConfig.minCTAs"][..]),
            (
                "size_t size; int minCTAs;",
                "int minCTAs; size_t size;",
                &["ncclConfig.minCTAs", "ncclConfig.size"],
            ),
            ("ncclWindowUse(ncclWindow_t *", "ncclWindowUse(ncclWindow_t ", &["ncclWindowUse"]),
            ("ncclResult_t ncclGetVersion(int *);", "", &["ncclGetVersion"]),
            ("void ncclResetDebugInit", "int ncclResetDebugInit", &["ncclResetDebugInit"]),
            ("ncclInProgress = 7", "ncclInProgress = 6", &["ncclInProgress"]),
            (
                "#define NCCL_CONFIG_UNDEF_PTR NULL",
                "#define NCCL_CONFIG_UNDEF_PTR 0",
                &["NCCL_CONFIG_UNDEF_PTR"],
            ),
            ("#define NCCL_CONFIG_UNDEF_PTR NULL", "#define NCCL_GONE(x) x", &["NCCL_GONE"]),
        ];
        for (old, new, expected) in cases {
            assert_eq!(differing(OURS, &with(OLDER, old, new)), expected, "{new}");
        }
    }

    #[test]
    #[cfg_attr(not(libclang), ignore = "needs libclang")]
    fn differences_of_a_wrong_since_are_named() {
        let early =
            with(OURS, "2.29.2. */\n            int numRmaCtx", "2.27.3. */\n            int numRmaCtx");
        assert_eq!(differing(&early, OLDER), ["ncclConfig.numRmaCtx"]);
        let late =
            with(OURS, "2.14.3. */\n            ncclInProgress", "2.28.3. */\n            ncclInProgress");
        assert_eq!(differing(&late, OLDER), ["ncclInProgress"]);
        let none = with(OURS, "/** Since NCCL 2.30.4. */\n        ncclResult_t", "ncclResult_t");
        assert_eq!(differing(&none, OURS), ["ncclParamBind"]);
        let found = differences(&read(&late, &[]), &read(OLDER, &[]));
        let lines: Vec<_> = found.iter().map(Difference::to_string).collect();
        assert_eq!(lines, ["ncclInProgress: ours: since 2.28.3; official: declared in 2.27.7"]);
        assert_eq!(found[0].reason, Reason::Since);
    }

    #[test]
    #[cfg_attr(not(libclang), ignore = "needs libclang")]
    fn differences_from_a_newer_release_are_additions_or_changes() {
        let newer = with(OURS, "CODE 23203", "CODE 23300");
        let newer = with(
            &newer,
            "ncclResult_t pncclGetVersion",
            "ncclResult_t ncclNew(int flags);\n        ncclResult_t pncclGetVersion",
        );
        let found = differences(&read(OURS, &[]), &read(&newer, &[]));
        let found: Vec<_> = found.iter().map(|found| (found.official(), found.reason)).collect();
        assert_eq!(
            found,
            [
                ("NCCL_VERSION_CODE: u32 = 23300".into(), Reason::Declaration),
                ("ncclNew: fn ( flags : c_int ) -> ncclResult_t".into(), Reason::Unknown),
            ]
        );
    }

    #[test]
    #[cfg_attr(not(libclang), ignore = "needs libclang")]
    fn parameter_handle_of_older_releases_was_the_struct() {
        let former = with(
            OURS,
            "struct ncclParamHandle *ncclParamHandle_t",
            "struct ncclParamHandle ncclParamHandle_t",
        );
        let former = with(&former, "ncclParamHandle_t *out", "ncclParamHandle_t **out");
        let former = with(&former, "CODE 23203", "CODE 23004");
        assert_eq!(differing(OURS, &former), Vec::<String>::new());
        let later = with(&former, "CODE 23004", "CODE 23102");
        assert_eq!(differing(OURS, &later), ["ncclParamBind", "ncclParamHandle_t"]);
    }
}
