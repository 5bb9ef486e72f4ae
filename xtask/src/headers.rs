//! Our header against NVIDIA's, release by release.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Result, bail};

use crate::compare::{differences, release as spelled};
use crate::declarations::{Header, Kind, VIEWS};
use crate::official;

/// Compares `vendor-headers/nccl.h` with the header of each release and prints one line for each release that
/// agrees, and one for each difference.
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
    let official = official::obtain(release)?.join("include/nccl.h");
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
    for line in &found {
        println!("{release}: {line}");
    }
    if !found.is_empty() {
        bail!("{} differences", found.len());
    }
    Ok(format!("{summary} agree"))
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
