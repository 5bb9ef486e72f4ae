//! The rules by which our header and another agree: an official one, or a user's own.
//!
//! Ours describes one release. A header of that release must declare the same items in the same words. One of an older
//! release must declare exactly those of our items whose `Since` it has reached, with the same types, and one of a newer
//! release all of them. Items that NVIDIA spelled differently in older releases are listed here and nowhere else.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::declarations::{Declaration, Header, Kind};

/// An item whose declarations differ.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Difference {
    pub(crate) item: String,
    pub(crate) reason: Reason,
    ours: String,
    theirs: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Reason {
    /// Our header does not declare the item.
    OnlyTheirs,
    /// Theirs does not, and need not: it is of an older release, or RCCL's.
    OnlyOurs,
    /// Theirs must declare the item, as the release that our comment names is not newer, and does not.
    Missing,
    /// Theirs declares the item, and our comment names a newer release, or none.
    Since,
    /// The declarations differ.
    Declaration,
    /// Theirs is of a newer release, and the declarations differ in what may change: names of parameters, numbers that
    /// grow.
    Spelling,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { item, ours, theirs, .. } = self;
        write!(f, "{item}: ours: {ours}; theirs: {theirs}")
    }
}

impl Difference {
    /// Returns the item as the other header declares it.
    pub(crate) fn theirs(&self) -> String {
        format!("{}: {}", self.item, self.theirs)
    }

    /// Returns the item as our header declares it.
    pub(crate) fn ours(&self) -> String {
        format!("{}: {}", self.item, self.ours)
    }
}

/// Returns the differences between the headers, by name of the item.
pub(crate) fn differences(ours: &Header, theirs: &Header) -> Vec<Difference> {
    let age = theirs.version.cmp(&ours.version);
    let declared = if age == Ordering::Less { respelled(theirs) } else { theirs.items.clone() };
    let names: BTreeSet<_> = ours.items.keys().chain(declared.keys()).collect();
    let difference = |name: &String| {
        let (reason, ours, theirs) = match (ours.items.get(name), declared.get(name)) {
            (Some(declaration), None) => missing(declaration, ours.version, theirs),
            (Some(declaration), Some(theirs_too)) => {
                difference(name, declaration, theirs_too, theirs.version, age)?
            }
            (None, declaration) => (Reason::OnlyTheirs, NOT_DECLARED.into(), declaration?.text.clone()),
        };
        Some(Difference { item: name.clone(), reason, ours, theirs })
    };
    names.into_iter().filter_map(difference).collect()
}

const NOT_DECLARED: &str = "not declared";

/// Returns the difference where our header, which is of release `version`, alone declares an item.
fn missing(ours: &Declaration, version: u32, theirs: &Header) -> (Reason, String, String) {
    // NCCL never removed anything from its API.
    let is_required = !theirs.is_rccl()
        && (theirs.version >= version || ours.since.is_some_and(|code| code <= theirs.version));
    let since =
        ours.since.map_or(format!("in {}", release(version)), |code| format!("since {}", release(code)));
    if is_required {
        (Reason::Missing, format!("{} ({since})", ours.text), NOT_DECLARED.into())
    } else {
        (Reason::OnlyOurs, since, NOT_DECLARED.into())
    }
}

/// Returns the difference between two declarations of an item; theirs is that of release `version`.
fn difference(
    name: &str,
    ours: &Declaration,
    theirs: &Declaration,
    version: u32,
    age: Ordering,
) -> Option<(Reason, String, String)> {
    // Whoever builds NCCL chooses it.
    if name == "NCCL_SUFFIX" {
        return None;
    }
    let is_same = ours.text == theirs.text;
    let may_differ = age.is_ne()
        && (ours.abi == theirs.abi && !is_reordered(ours, theirs)
            || changes_with_releases(name, ours, theirs));
    if !is_same && !may_differ {
        return Some((Reason::Declaration, ours.text.clone(), theirs.text.clone()));
    }
    let declared = || format!("declared in {}", release(version));
    match ours.since {
        Some(code) if code > version => Some((Reason::Since, format!("since {}", release(code)), declared())),
        None if has_since(name, ours.kind) => {
            Some((Reason::Since, "its comment names no release".into(), declared()))
        }
        _ => (age.is_gt() && !is_same).then(|| (Reason::Spelling, ours.text.clone(), theirs.text.clone())),
    }
}

/// Returns whether two declarations have the same words in another order: two parameters of one type changed places.
fn is_reordered(ours: &Declaration, theirs: &Declaration) -> bool {
    let words = |declaration: &Declaration| {
        let mut words: Vec<_> = declaration.text.split(' ').map(String::from).collect();
        words.sort();
        words
    };
    ours.text != theirs.text && words(ours) == words(theirs)
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
fn respelled(theirs: &Header) -> BTreeMap<String, Declaration> {
    let respell = |(name, declaration): (&String, &Declaration)| {
        let mut name = name.clone();
        let mut declaration = declaration.clone();
        // The twin of ncclGetLastError was misspelled, and never exported.
        if theirs.version < 2_16_05 && name == "pncclGetError" {
            name = "pncclGetLastError".into();
        }
        // The struct of windows had another name in 2.27.
        if theirs.version < 2_28_03 {
            name = if name == "ncclWindow" { "ncclWindow_vidmem".into() } else { name };
            declaration.abi = replace_word(&declaration.abi, "ncclWindow", "ncclWindow_vidmem");
        }
        // The handle was the struct, and functions took a pointer to it; now the handle is that pointer.
        if theirs.version < 2_30_07 {
            declaration.abi = match name.as_str() {
                "ncclParamHandle_t" => format!("* mut {}", declaration.abi),
                _ => declaration.abi.replace("* mut ncclParamHandle_t", "ncclParamHandle_t"),
            };
        }
        (name, declaration)
    };
    theirs.items.iter().map(respell).collect()
}

fn replace_word(text: &str, old: &str, new: &str) -> String {
    text.split(' ').map(|word| if word == old { new } else { word }).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// The macros that select the two views of `nccl.h`: a program's, and that of NCCL's own build on Linux.
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

    /// Reads a header in all views.
    fn views(text: &str) -> [Header; VIEWS.len()] {
        VIEWS.map(|view| read(text, view))
    }

    /// Returns the names of the items that differ in any view.
    fn differing(ours: &[Header], theirs: &[Header]) -> Vec<String> {
        let found = ours.iter().zip(theirs).flat_map(|(ours, theirs)| differences(ours, theirs));
        let found = found.filter(|difference| difference.reason != Reason::OnlyOurs);
        let names: BTreeSet<_> = found.map(|difference| difference.item).collect();
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
        let ours = views(OURS);
        assert_eq!(differing(&ours, &ours), Vec::<String>::new());
        assert_eq!(differing(&ours, &views(OLDER)), Vec::<String>::new());
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
        let ours = views(OURS);
        for (old, new, expected) in cases {
            let broken = views(&with(OURS, old, new));
            assert_eq!(differing(&ours, &broken), expected, "theirs: {new}");
            assert_eq!(differing(&broken, &ours), expected, "ours: {new}");
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
        let ours = views(OURS);
        for (old, new, expected) in cases {
            assert_eq!(differing(&ours, &views(&with(OLDER, old, new))), expected, "{new}");
        }
    }

    #[test]
    #[cfg_attr(not(libclang), ignore = "needs libclang")]
    fn differences_of_a_wrong_since_are_named() {
        let early =
            with(OURS, "2.29.2. */\n            int numRmaCtx", "2.27.3. */\n            int numRmaCtx");
        let older = views(OLDER);
        assert_eq!(differing(&views(&early), &older), ["ncclConfig.numRmaCtx"]);
        let late =
            with(OURS, "2.14.3. */\n            ncclInProgress", "2.28.3. */\n            ncclInProgress");
        let late = views(&late);
        assert_eq!(differing(&late, &older), ["ncclInProgress"]);
        let none = with(OURS, "/** Since NCCL 2.30.4. */\n        ncclResult_t", "ncclResult_t");
        assert_eq!(differing(&views(&none), &views(OURS)), ["ncclParamBind"]);
        let mut found = differences(&late[0], &older[0]);
        found.retain(|difference| difference.reason != Reason::OnlyOurs);
        let lines: Vec<_> = found.iter().map(Difference::to_string).collect();
        assert_eq!(lines, ["ncclInProgress: ours: since 2.28.3; theirs: declared in 2.27.7"]);
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
        let found: Vec<_> = found.iter().map(|found| (found.theirs(), found.reason)).collect();
        assert_eq!(
            found,
            [
                ("NCCL_VERSION_CODE: u32 = 23300".into(), Reason::Spelling),
                ("ncclNew: fn ( flags : c_int ) -> ncclResult_t".into(), Reason::OnlyTheirs),
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
        let ours = views(OURS);
        assert_eq!(differing(&ours, &views(&former)), Vec::<String>::new());
        let later = with(&former, "CODE 23004", "CODE 23102");
        assert_eq!(differing(&ours, &views(&later)), ["ncclParamBind", "ncclParamHandle_t"]);
    }
}
