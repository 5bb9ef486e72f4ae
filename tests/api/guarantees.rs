//! Guarantees of the public API's types and signatures, and of the README.

use std::hash::Hash;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::{fmt, fs};

use libnccl::buffer::MemorySpace;
use libnccl::communicator::{AbortHandle, MemoryStatistic, Properties, ShrinkMode};
use libnccl::config::{CollectiveConfig, Encryption};
use libnccl::error::{InvalidArgumentKind, LoadError, ResultCode};
use libnccl::window::{Registration, Window};
use libnccl::{
    Backend, Communicator, Config, DataType, Error, Nccl, NcclBuffer, PreMulSum, ReduceOp, UniqueId, Version,
};

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

// Regression: cudarc's error does not implement std::error::Error, and has no text.
#[test]
fn types_have_the_traits_that_programs_need() {
    // A tuple has a trait if all its members have it.
    fn error<T: std::error::Error + Send + Sync + 'static>() {}
    error::<Error>();
    error::<LoadError>();
    fn send<T: Send>() {}
    send::<(Communicator, Nccl)>();
    fn shared<T: Send + Sync + 'static>() {}
    shared::<(Mutex<Communicator>, Registration, Window<f32>, NcclBuffer<f32>, PreMulSum<'static, f32>)>();
    shared::<(CollectiveConfig, AbortHandle)>();
    fn unwinds<T: UnwindSafe + RefUnwindSafe>() {}
    unwinds::<(Config, AbortHandle, Registration)>();
    fn hashed<T: Clone + Eq + Hash + fmt::Debug>() {}
    hashed::<(UniqueId, Version, ResultCode, InvalidArgumentKind, Config, CollectiveConfig, Encryption<'_>)>(
    );
    hashed::<(Properties, MemoryStatistic, ShrinkMode, DataType, ReduceOp, MemorySpace)>();
    fn compared<T: Clone + Eq + fmt::Debug>() {}
    compared::<(Error, LoadError, Backend)>();
    let missing = || libnccl_cpu::nccl().require("ncclNoSuchFunction");
    assert_eq!(missing(), missing());
    assert!(missing().unwrap_err().to_string().contains("ncclNoSuchFunction"));
}

/// A `main` that returns an error prints its `Debug` text.
#[test]
fn debug_text_of_errors_is_the_display_text() {
    let nccl = libnccl_cpu::nccl();
    // SAFETY: not even a function of its version.
    let empty = unsafe { Nccl::from_table("nothing", libnccl::sys::Functions::EMPTY) };
    let errors: [Box<dyn std::error::Error>; 5] = [
        nccl.require("ncclNoSuchFunction").unwrap_err().into(),
        empty.unwrap_err().into(),
        "float3".parse::<DataType>().unwrap_err().into(),
        "mean".parse::<ReduceOp>().unwrap_err().into(),
        "2.x".parse::<Version>().unwrap_err().into(),
    ];
    for error in errors {
        assert_eq!(format!("{error:?}"), error.to_string());
    }
}

/// The name and the documentation of each option match its C field and the field's first version.
#[test]
fn documentation_of_an_option_names_its_field_and_version() {
    let source = read("src/config/mod.rs");
    for (start, c_struct, options) in
        [("pub struct Config =>", "ncclConfig", 20), ("pub struct CollectiveConfig =>", "ncclCollConfig", 7)]
    {
        let list = source.split(start).nth(1).unwrap().split("others {").next().unwrap();
        let paragraphs: Vec<_> = list.split("\n\n").filter(|option| option.contains(" => ")).collect();
        assert_eq!(paragraphs.len(), options, "{c_struct}");
        for paragraph in paragraphs {
            let (doc, rest) = paragraph.split_once("    #[doc(alias = \"").unwrap();
            let (alias, rest) = rest.split_once("\")]\n    ").unwrap();
            let (option, rest) = rest.split_once(": ").unwrap();
            let field = rest.split(" => ").nth(1).unwrap().split([',', ';']).next().unwrap();
            assert_eq!(field, alias);
            assert_eq!(option.replace('_', ""), field.to_lowercase());
            let since = libnccl::sys::since(&format!("{c_struct}.{field}")).map(Version::from_code).unwrap();
            let doc = doc.trim().replace("\n    /// ", " ");
            assert!(doc.ends_with(&format!(" Since NCCL {since}.")), "{option}: {doc}");
        }
    }
}

// Regression: baracuda's README example does not compile.
// Regression: baracuda's README example can deadlock, as it has no group.
#[test]
fn readme_example_is_a_doctest() {
    assert!(read("tests/guides/src/lib.rs").contains("#[doc = include_str!(\"../../../README.md\")]"));
    let readme = read("README.md");
    let example = readme.split("```rust\n").nth(1).unwrap().split("```").next().unwrap();
    for part in ["fn main()", "nccl.group(|g| {"] {
        assert!(example.contains(part), "no {part:?} in {example}");
    }
}

/// Returns the targets of the links in a page's text: `[text](target)`.
fn links(markdown: &str) -> impl Iterator<Item = &str> {
    // What is between fences is code.
    let text = markdown.split("```").step_by(2);
    text.flat_map(|text| text.split("](").skip(1).filter_map(|link| link.split(')').next()))
}

/// Returns the anchors of the headings of a page.
fn anchors(markdown: &str) -> impl Iterator<Item = String> {
    let headings = markdown.lines().filter(|line| line.starts_with('#'));
    headings.map(|line| {
        let text = line.trim_start_matches(['#', ' ']).to_lowercase().replace(' ', "-");
        text.chars().filter(|letter| letter.is_alphanumeric() || matches!(letter, '-' | '_')).collect()
    })
}

/// Returns the pages of a directory and its subdirectories.
fn pages(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let (directories, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    let own = files.into_iter().filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    own.chain(directories.iter().flat_map(|directory| pages(directory))).collect()
}

#[test]
fn page_links_lead_to_files_and_headings() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    // crates.io resolves their links from the repository's root, and docs.rs does not resolve them.
    let elsewhere = ["cpu", "cli", "launch", "observe"].map(|package| format!("crates/{package}/README.md"));
    let elsewhere: Vec<_> =
        elsewhere.iter().map(|page| root.join(page)).chain([root.join("CHANGELOG.md")]).collect();
    let others =
        ["README.md", "CONTRIBUTING.md", "SECURITY.md", "examples/README.md"].map(|page| root.join(page));
    let mut dead = Vec::new();
    for page in pages(&root.join("docs")).iter().chain(&others).chain(&elsewhere) {
        let text = fs::read_to_string(page).unwrap();
        for target in links(&text).filter(|target| !target.starts_with("https://")) {
            let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
            let is_relative = !path.is_empty();
            let path = if is_relative { page.parent().unwrap().join(path) } else { page.clone() };
            let is_heading =
                || fs::read_to_string(&path).is_ok_and(|text| anchors(&text).any(|found| found == anchor));
            let is_dead = !path.exists() || !anchor.is_empty() && !is_heading();
            if is_dead || is_relative && elsewhere.contains(page) {
                dead.push(format!("{}: {target}", page.display()));
            }
        }
    }
    assert!(dead.is_empty(), "{dead:#?}");
}

/// The table of libnccl-cpu names every function of `sys`, which may grow with every version (docs/semver.md).
#[test]
fn packages_require_each_other_at_the_exact_version() {
    let exact = format!(r#"version = "={}" }}"#, env!("CARGO_PKG_VERSION"));
    let manifest = read("Cargo.toml");
    for package in ["libnccl", "libnccl-cpu", "libnccl-launch", "libnccl-observe"] {
        let requirement =
            |line: &&str| line.starts_with(&format!("{package} = ")) && line.contains("version");
        let found: Vec<_> = manifest.lines().filter(requirement).collect();
        assert!(matches!(found[..], [line] if line.ends_with(&exact)), "{package}: {found:?}");
    }
    for package in ["cpu", "cli", "launch", "observe"] {
        // Packages for tests have a path and no version, and are not published.
        let manifest = read(&format!("crates/{package}/Cargo.toml"));
        let mut requirements = manifest.lines().filter(|line| line.starts_with("libnccl")).peekable();
        assert!(requirements.peek().is_some(), "{package}");
        let of_workspace = |line: &str| line.contains("workspace = true") || line.contains(" = { path = ");
        assert!(requirements.all(of_workspace), "{package}");
    }
}
