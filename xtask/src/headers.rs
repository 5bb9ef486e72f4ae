//! Our header against NVIDIA's, release by release.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Result, bail};
use clap::Args;

use crate::compare::{Difference, Reason, differences, release as spelled};
use crate::declarations::{Header, Kind, VIEWS};
use crate::official::{self, Part};
use crate::releases::Selection;

#[derive(Debug, Args)]
pub(crate) struct Options {
    #[command(flatten)]
    selection: Selection,
    /// Keep only the headers of what has to be downloaded: a few megabytes for all releases, in place of ten gigabytes
    #[arg(long)]
    drop: bool,
}

/// What the comparison with one release gave.
#[derive(Debug)]
pub(crate) struct Comparison {
    /// How many items there were to compare.
    pub(crate) items: usize,
    /// The official header's, by kind, in words.
    summary: String,
    differences: BTreeSet<Difference>,
    /// Our release, if the official one is newer.
    older: Option<u32>,
}

/// Compares `vendor-headers/nccl.h`, and where a release has it the header of the device API's host functions, with
/// the headers of each release; prints one line for each release, and one for each difference.
pub(crate) fn run(root: &Path, options: &Options) -> Result<()> {
    let releases = options.selection.releases()?;
    let part = if options.drop { Part::Headers } else { Part::All };
    official::obtain_ahead(&releases, part);
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
    /// In one sentence, unless the headers agree.
    pub(crate) fn problem(&self) -> Option<String> {
        let count = self.differences.len();
        (count > 0).then(|| format!("the headers differ in {count} items: see `cargo xtask headers`"))
    }

    fn count(&self, reason: Reason) -> usize {
        self.differences.iter().filter(|difference| difference.reason == reason).count()
    }

    fn print(&self, release: &str) {
        let since = self.count(Reason::Since);
        let others = self.differences.len() - since;
        println!("{release:<8} {:>6} {others:>12} {since:>12}  {}", self.items, self.summary);
        if let Some(ours) = self.older {
            let (add, change) =
                (self.count(Reason::Unknown), self.differences.len() - self.count(Reason::Unknown));
            println!(
                "{release} is newer than vendor-headers/nccl.h, which is of {}: {add} items to add, {change} to change",
                spelled(ours)
            );
        }
        for difference in &self.differences {
            match (self.older, difference.reason) {
                (Some(_), Reason::Unknown) => println!("  add     {}", difference.official()),
                (Some(_), _) => println!("  change  {difference}"),
                (None, _) => println!("  {difference}"),
            }
        }
    }
}

/// Compares with the headers of one release, in both views.
pub(crate) fn compare(root: &Path, release: &str, part: Part) -> Result<Comparison> {
    let vendor = root.join("vendor-headers");
    let stubs = vendor.join("stubs");
    let include = official::obtain_part(release, part)?.join("include");
    let official = include.join("nccl.h");
    let mut found = BTreeSet::new();
    let mut names = BTreeSet::new();
    let mut summary = String::new();
    let mut older = None;
    for view in VIEWS {
        let ours = Header::read(&vendor.join("nccl.h"), &stubs, view)?;
        let theirs = Header::read(&official, &stubs, view)?;
        // A release after the fact, such as 2.26.2.post1, has the header of its original.
        if !release.starts_with(&spelled(theirs.version)) {
            bail!("the package's header says that it is of {}", spelled(theirs.version));
        }
        found.extend(differences(&ours, &theirs));
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

/// The differences between our header of the device API's host functions and the official one, which exists since
/// 2.32.3 and brings kernels' types along; and how many items ours has beyond `nccl.h`.
fn device_differences(vendor: &Path, include: &Path) -> Result<(Vec<Difference>, usize)> {
    /// Declared, but no library exports it.
    const NOWHERE: &str = "ncclCftBarrierCreateRequirement";
    let stubs = vendor.join("stubs");
    let host = Header::read(&vendor.join("nccl.h"), &stubs, &[])?;
    let mut ours = Header::read(&vendor.join("nccl_device_host.h"), &stubs, &[])?;
    // Official headers take `bool` from CUDA's.
    let view = ["-include", "stdbool.h", &format!("-I{}", include.display())];
    let mut theirs = Header::read(&include.join("nccl_device/host.h"), &stubs, &view)?;
    ours.items.retain(|name, declaration| {
        // What the host only hands on is opaque here and has fields there.
        declaration.kind != Kind::Opaque && !host.items.contains_key(name) && name != "NCCL_DEVICE_HOST_H_"
    });
    theirs.items.retain(|name, declaration| {
        let is_more = declaration.kind == Kind::Function && name != NOWHERE && !host.items.contains_key(name);
        is_more || ours.items.contains_key(name)
    });
    Ok((differences(&ours, &theirs), ours.items.len()))
}

/// "27 functions, 27 twins, ...": what the header declares, by kind.
fn counts(header: &Header) -> String {
    let mut counts = BTreeMap::<(Kind, bool), usize>::new();
    for (name, declaration) in &header.items {
        let twin = declaration.kind == Kind::Function && name.starts_with("pnccl");
        *counts.entry((declaration.kind, twin)).or_default() += 1;
    }
    let counts = counts.iter().map(
        |((kind, twin), count)| {
            if *twin { format!("{count} twins") } else { format!("{count} {kind}") }
        },
    );
    counts.collect::<Vec<_>>().join(", ")
}
