//! Comparison of our header with NVIDIA's, release by release.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Error, Result, bail};
use clap::Args;

use crate::bindings;
use crate::compare::{Difference, Reason, differences, release as spelled};
use crate::declarations::{Header, Kind};
use crate::nvidia_packages::{self, Part};
use crate::releases::Selection;

/// The macros that select the two views of `nccl.h`: a program's, and that of NCCL's own build on Linux.
const VIEWS: [&[&str]; 2] = [&[], &["-DNCCL_OS_LINUX"]];

#[derive(Debug, Args)]
pub(crate) struct Options {
    #[command(flatten)]
    selection: Selection,
    /// Keep only the headers of new downloads: a few MB for all releases instead of 10 GB
    #[arg(long)]
    drop: bool,
}

/// The result of the comparison with one release.
#[derive(Debug)]
pub(crate) struct Comparison {
    /// The number of items compared.
    pub(crate) items: usize,
    /// The number of the official header's items by kind, as text.
    summary: String,
    differences: BTreeSet<Difference>,
    /// Our header's release, if the official one is newer.
    older: Option<u32>,
}

/// Compares `vendor-headers/nccl.h`, and `nccl_device_host.h` if the release has the device API, with the headers of
/// each release. Prints a line for each release, and one for each difference.
pub(crate) fn run(root: &Path, options: &Options) -> Result<()> {
    let releases = options.selection.releases()?;
    let part = if options.drop { Part::Headers } else { Part::All };
    nvidia_packages::prefetch(&releases, part);
    println!("release   items  differences  wrong since  declared");
    let mut failed = Vec::new();
    for release in &releases {
        match compare(root, release, part) {
            Ok(comparison) => {
                comparison.print(release);
                if comparison.problem().is_some() {
                    failed.push(release.as_str());
                }
            }
            Err(error) => {
                eprintln!("{release}: {error:#}");
                failed.push(release);
            }
        }
    }
    println!("{} of {} releases agree", releases.len() - failed.len(), releases.len());
    if !failed.is_empty() {
        bail!("{} of {} releases failed: {}", failed.len(), releases.len(), failed.join(", "));
    }
    Ok(())
}

impl Comparison {
    /// Returns an error message, `None` if the headers agree.
    pub(crate) fn problem(&self) -> Option<String> {
        let count = self.differences.len();
        (count > 0).then(|| format!("the headers differ in {count} items: see `cargo xtask headers`"))
    }

    fn count(&self, reasons: &[Reason]) -> usize {
        self.differences.iter().filter(|difference| reasons.contains(&difference.reason)).count()
    }

    fn print(&self, release: &str) {
        let since = self.count(&[Reason::Since, Reason::Missing]);
        let others = self.differences.len() - since;
        println!("{release:<8} {:>6} {others:>12} {since:>12}  {}", self.items, self.summary);
        if let Some(ours) = self.older {
            let add = self.count(&[Reason::OnlyTheirs]);
            let change = self.differences.len() - add;
            println!(
                "{release} is newer than vendor-headers/nccl.h, which is of {}: {add} items to add, {change} to change",
                spelled(ours)
            );
        }
        for difference in &self.differences {
            match (self.older, difference.reason) {
                (Some(_), Reason::OnlyTheirs) => println!("  add     {}", difference.theirs()),
                (Some(_), _) => println!("  change  {difference}"),
                (None, _) => println!("  {difference}"),
            }
        }
    }
}

/// Compares the headers with those of one release, in both views.
pub(crate) fn compare(root: &Path, release: &str, part: Part) -> Result<Comparison> {
    bindings::find_libclang()?;
    let vendor = root.join("vendor-headers");
    let stubs = vendor.join("stubs");
    let include = nvidia_packages::obtain_part(release, part)?.join("include");
    let official = include.join("nccl.h");
    let mut found = BTreeSet::new();
    let mut names = BTreeSet::new();
    let mut summary = String::new();
    let mut older = None;
    for view in VIEWS {
        let ours = read(&vendor.join("nccl.h"), &stubs, view)?;
        let theirs = read(&official, &stubs, view)?;
        // A post-release such as 2.26.2.post1 has the header of its original.
        if !release.starts_with(&spelled(theirs.version)) {
            bail!("the package's header is of release {}", spelled(theirs.version));
        }
        found.extend(disagreements(&ours, &theirs));
        if view.is_empty() {
            summary = counts(&theirs);
        }
        older = (theirs.version > ours.version).then_some(ours.version);
        names.extend(theirs.items.into_keys());
    }
    let mut items = names.len();
    if include.join("nccl_device/host.h").is_file() {
        let (more, count) = device_differences(&vendor, &include)?;
        found.extend(more);
        items += count;
        summary += &format!(", {count} items of the device API");
    }
    Ok(Comparison { items, summary, differences: found, older })
}

/// Returns the differences, but for the items that only newer releases have.
fn disagreements(ours: &Header, theirs: &Header) -> impl Iterator<Item = Difference> {
    differences(ours, theirs).into_iter().filter(|difference| difference.reason != Reason::OnlyOurs)
}

fn read(header: &Path, stubs: &Path, defines: &[&str]) -> Result<Header> {
    Header::read(header, stubs, defines).map_err(Error::msg)
}

/// Compares our header of the device API's host functions with the official one, which exists since 2.32.3 and also
/// declares the kernels' types. Returns the differences, and the number of items that ours adds to `nccl.h`.
fn device_differences(vendor: &Path, include: &Path) -> Result<(Vec<Difference>, usize)> {
    /// A function that is declared, but that no library exports.
    const NOT_EXPORTED: &str = "ncclCftBarrierCreateRequirement";
    let stubs = vendor.join("stubs");
    let host = read(&vendor.join("nccl.h"), &stubs, &[])?;
    let mut ours = read(&vendor.join("nccl_device_host.h"), &stubs, &[])?;
    // Official headers take `bool` from CUDA's headers.
    let view = ["-include", "stdbool.h", &format!("-I{}", include.display())];
    let mut theirs = read(&include.join("nccl_device/host.h"), &stubs, &view)?;
    ours.items.retain(|name, declaration| {
        // Types that the host only passes on are opaque here, and have fields there.
        declaration.kind != Kind::Opaque && !host.items.contains_key(name) && name != "NCCL_DEVICE_HOST_H_"
    });
    theirs.items.retain(|name, declaration| {
        let is_more =
            declaration.kind == Kind::Function && name != NOT_EXPORTED && !host.items.contains_key(name);
        is_more || ours.items.contains_key(name)
    });
    Ok((disagreements(&ours, &theirs).collect(), ours.items.len()))
}

/// Returns the number of declarations by kind: "27 functions, 27 twins, ...".
fn counts(header: &Header) -> String {
    let mut counts = BTreeMap::<(Kind, bool), usize>::new();
    for (name, declaration) in &header.items {
        let twin = declaration.kind == Kind::Function && name.starts_with("pnccl");
        *counts.entry((declaration.kind, twin)).or_default() += 1;
    }
    let counts = counts.iter().map(|((kind, twin), count)| {
        if *twin { format!("{count} twins") } else { format!("{count} {}", plural(*kind)) }
    });
    counts.collect::<Vec<_>>().join(", ")
}

fn plural(kind: Kind) -> &'static str {
    match kind {
        Kind::Function => "functions",
        Kind::Struct => "types",
        Kind::Opaque => "opaque types",
        Kind::Field => "fields",
        Kind::Alias => "type aliases",
        Kind::EnumValue => "enum values",
        Kind::Constant => "constants",
        Kind::Macro => "other macros",
    }
}
