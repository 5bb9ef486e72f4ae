//! Our header against NVIDIA's, release by release.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Result, bail};

use crate::compare::{differences, release as spelled};
use crate::declarations::{Header, Kind, VIEWS};
use crate::official;

/// Compares `vendor-headers/nccl.h`, and where a release has it the header of the device API's host functions, with
/// the headers of each release, and prints one line for each release that agrees, and one for each difference.
pub(crate) fn compare(root: &Path, releases: &[String]) -> Result<()> {
    let mut failed = Vec::new();
    for release in releases {
        match compare_one(root, release) {
            Ok(summary) => println!("{release}: {summary}"),
            Err(error) => {
                eprintln!("{release}: {error:#}");
                failed.push(release.as_str());
            }
        }
    }
    if !failed.is_empty() {
        bail!("{} of {} releases failed: {}", failed.len(), releases.len(), failed.join(", "));
    }
    Ok(())
}

fn compare_one(root: &Path, release: &str) -> Result<String> {
    let vendor = root.join("vendor-headers");
    let stubs = vendor.join("stubs");
    let include = official::obtain(release)?.join("include");
    let official = include.join("nccl.h");
    let mut found = BTreeSet::new();
    let mut summary = String::new();
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
    }
    if include.join("nccl_device/host.h").is_file() {
        let (more, count) = device_differences(&vendor, &include)?;
        found.extend(more);
        summary += &format!(", {count} items of the device API");
    }
    for line in &found {
        println!("{release}: {line}");
    }
    if !found.is_empty() {
        bail!("{} differences", found.len());
    }
    Ok(format!("{summary} agree"))
}

/// The differences between our header of the device API's host functions and the official one, which exists since
/// 2.32.3 and brings kernels' types along; and how many items ours has beyond `nccl.h`.
fn device_differences(vendor: &Path, include: &Path) -> Result<(Vec<String>, usize)> {
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
