//! Compares our header with another: an official one (`cargo xtask headers`), or a user's.
//!
//! Our header describes one version. A header of that version must declare the same items in the same words. A header of an older
//! version must declare exactly our items that are not newer (see `Since`), with the same types. A header of a newer version must
//! declare all our items. Items that NVIDIA spelled differently in older versions are listed here and nowhere else.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::panic;
use std::path::Path;

use super::declarations::{Declaration, Header, Kind};
use crate::bindings;

/// The result of a comparison without contradictions.
#[derive(Debug)]
pub(crate) struct Report {
    /// One line: the headers, and the number of items.
    pub(crate) summary: String,
    /// The items that only one header declares, a line each; empty if there are none.
    pub(crate) list: String,
}

/// Compares a header with the one that the bindings were generated from. If `is_strict`, an item that only one header declares is
/// an error too.
///
/// # Errors
/// Returns the reason, with the value of `LIBNCCL_CHECK_HEADER`, if the header cannot be compared with the bindings. Returns a
/// list of the items that differ if the header contradicts the bindings or, with `is_strict`, if only one header declares an
/// item.
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
        let read = || Header::read(header, &vendor.join("stubs"), &[]);
        let mut header =
            panic::catch_unwind(read).unwrap_or_else(|payload| Err(bindings::panic_message(&*payload)))?;
        // Without the twins, which are not in the bindings, and the types of CUDA, which are the stubs'.
        header
            .items
            .retain(|name, _| ["NCCL_", "RCCL_", "nccl"].iter().any(|prefix| name.starts_with(prefix)));
        Ok(header)
    };
    let theirs = read(path).and_then(|theirs| Ok((read(&vendor.join("nccl.h"))?, theirs)));
    let (ours, theirs) = theirs
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
    /// Only our header declares the item: theirs is of an older version, or RCCL's.
    OnlyOurs,
    /// Only our header declares the item, although our comment names no newer version.
    Missing,
    /// Their header declares the item, but our comment names a newer version, or none.
    Since,
    /// The declarations differ.
    Declaration,
    /// An allowed difference of a newer header: names of parameters, numbers that grow.
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
    fn ours(&self) -> String {
        format!("{}: {}", self.item, self.ours)
    }
}

/// Returns the differences between the headers, by name of the item.
pub(crate) fn differences(ours: &Header, theirs: &Header) -> Vec<Difference> {
    let declared = if theirs.version < ours.version { respelled(theirs) } else { theirs.items.clone() };
    let names: BTreeSet<_> = ours.items.keys().chain(declared.keys()).collect();
    let difference = |name: &String| {
        let (reason, ours, theirs) = match (ours.items.get(name), declared.get(name)) {
            (Some(declaration), None) => missing(declaration, ours.version, theirs),
            (Some(one), Some(other)) => difference(name, one, other, theirs.version, ours.version)?,
            (None, declaration) => (Reason::OnlyTheirs, NOT_DECLARED.into(), declaration?.text.clone()),
        };
        Some(Difference { item: name.clone(), reason, ours, theirs })
    };
    names.into_iter().filter_map(difference).collect()
}

const NOT_DECLARED: &str = "not declared";

/// Returns the difference if only our header, of version `version`, declares an item.
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

/// Returns the difference between two declarations of an item; theirs is of version `version`.
fn difference(
    name: &str,
    ours: &Declaration,
    theirs: &Declaration,
    version: u32,
    our_version: u32,
) -> Option<(Reason, String, String)> {
    // A setting of NCCL's build.
    if name == "NCCL_SUFFIX" {
        return None;
    }
    let is_same = ours.text == theirs.text;
    let may_differ = version != our_version
        && (ours.abi == theirs.abi && !is_reordered(ours, theirs)
            || changes_with_releases(name, ours, theirs));
    let texts = |reason| Some((reason, ours.text.clone(), theirs.text.clone()));
    if !is_same && !may_differ {
        return texts(Reason::Declaration);
    }
    let wrong_since = |since| Some((Reason::Since, since, format!("declared in {}", release(version))));
    match ours.since {
        Some(code) if code > version => wrong_since(format!("since {}", release(code))),
        None if has_since(name, ours.kind) => wrong_since("its comment names no version".into()),
        _ if version > our_version && !is_same => texts(Reason::Spelling),
        _ => None,
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

/// Formats a version code: `2.32.3` for 23203.
pub(crate) fn release(code: u32) -> String {
    format!("{}.{}.{}", code / 10_000, code / 100 % 100, code % 100)
}

/// Returns whether the item's comment must name a version. Macros have no documentation in Rust, opaque structs are
/// documented at the handle, and CUDA's handles do not belong to NCCL.
fn has_since(name: &str, kind: Kind) -> bool {
    !matches!(kind, Kind::Constant | Kind::Macro | Kind::Opaque) && !name.starts_with("cuda")
}

/// Returns whether the value of an item changes with nearly every version.
fn changes_with_releases(name: &str, ours: &Declaration, theirs: &Declaration) -> bool {
    match name {
        "NCCL_MAJOR" | "NCCL_MINOR" | "NCCL_PATCH" | "NCCL_VERSION_CODE" => true,
        // The number of values before them.
        "ncclNumTypes" | "ncclNumResults" => true,
        // A function from 2.24.3 to 2.29.7, later hidden by a macro of the same name. In NCCL's own build it is a function
        // in all versions, and compared as such.
        "ncclResetDebugInit" | "pncclResetDebugInit" => {
            (ours.kind, theirs.kind) == (Kind::Macro, Kind::Function)
        }
        // An initializer grows with its struct.
        _ => name.ends_with("_INITIALIZER"),
    }
}

/// Returns the declarations of an older version in today's spelling, each with the same ABI.
fn respelled(theirs: &Header) -> BTreeMap<String, Declaration> {
    let respell = |(name, declaration): (&String, &Declaration)| {
        let mut name = name.as_str();
        let mut declaration = declaration.clone();
        // The twin of ncclGetLastError was misspelled, and never exported.
        if theirs.version < 2_16_05 && name == "pncclGetError" {
            name = "pncclGetLastError";
        }
        // The struct of windows had another name in 2.27.
        if theirs.version < 2_28_03 {
            name = renamed_window(name);
            declaration.abi = declaration.abi.split(' ').map(renamed_window).collect::<Vec<_>>().join(" ");
        }
        // The handle was the struct, and functions took a pointer to it; now the handle is that pointer.
        if theirs.version < 2_30_07 {
            declaration.abi = match name {
                "ncclParamHandle_t" => format!("* mut {}", declaration.abi),
                _ => declaration.abi.replace("* mut ncclParamHandle_t", "ncclParamHandle_t"),
            };
        }
        (name.to_owned(), declaration)
    };
    theirs.items.iter().map(respell).collect()
}

fn renamed_window(word: &str) -> &str {
    if word == "ncclWindow" { "ncclWindow_vidmem" } else { word }
}
