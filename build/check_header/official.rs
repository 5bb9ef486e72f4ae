//! Compares our headers with NVIDIA's of one version, for `cargo xtask headers`: `nccl.h` in both views, with the `pnccl` twins,
//! and `nccl_device_host.h` if that version has the device API.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::compare::{Difference, Reason, differences, release as spelled};
use super::declarations::{Header, Kind};

/// The macros that select the two views of `nccl.h`: a program's, and the view of NCCL's own build on Linux.
const VIEWS: [&[&str]; 2] = [&[], &["-DNCCL_OS_LINUX"]];

/// The result of the comparison with one version.
struct Comparison {
    /// The number of items compared.
    items: usize,
    /// The numbers of the official header's items, by kind.
    summary: String,
    differences: BTreeSet<Difference>,
    /// Our header's version, if the official one is newer.
    older: Option<u32>,
}

/// Compares the headers in `root/vendor-headers` with those in `directory/include`. The directory is named after the version.
/// Prints a line for the version, and one for each difference.
///
/// # Errors
/// Returns an error if a header cannot be read, or if the official `nccl.h` has a version other than the directory's name says.
pub(crate) fn run(root: &Path, directory: &Path) -> Result<(), String> {
    let release = directory.file_name().unwrap_or_default().to_string_lossy();
    compare(&root.join("vendor-headers"), &release, &directory.join("include"))?.print(&release);
    Ok(())
}

impl Comparison {
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

/// Compares the headers with NVIDIA's headers of one version, in both views.
fn compare(vendor: &Path, release: &str, include: &Path) -> Result<Comparison, String> {
    let stubs = vendor.join("stubs");
    let mut found = BTreeSet::new();
    let mut names = BTreeSet::new();
    let mut summary = String::new();
    let mut older = None;
    for view in VIEWS {
        let ours = Header::read(&vendor.join("nccl.h"), &stubs, view)?;
        let theirs = Header::read(&include.join("nccl.h"), &stubs, view)?;
        // A post-release such as 2.26.2.post1 has the header of its original.
        if !release.starts_with(&spelled(theirs.version)) {
            return Err(format!("the package's header has version {}", spelled(theirs.version)));
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
        let (more, count) = device_differences(vendor, include)?;
        found.extend(more);
        items += count;
        summary += &format!(", {count} items of the device API");
    }
    Ok(Comparison { items, summary, differences: found, older })
}

/// Returns the differences, except the items that only newer versions have.
fn disagreements(ours: &Header, theirs: &Header) -> impl Iterator<Item = Difference> {
    differences(ours, theirs).into_iter().filter(|difference| difference.reason != Reason::OnlyOurs)
}

/// Compares our header of the device API's host functions with the official one, which exists since 2.32.3 and also
/// declares the kernels' types. Returns the differences, and the number of items that ours adds to `nccl.h`.
fn device_differences(vendor: &Path, include: &Path) -> Result<(Vec<Difference>, usize), String> {
    /// A function that is declared, but that no library exports.
    const NOT_EXPORTED: &str = "ncclCftBarrierCreateRequirement";
    let stubs = vendor.join("stubs");
    let host = Header::read(&vendor.join("nccl.h"), &stubs, &[])?;
    let mut ours = Header::read(&vendor.join("nccl_device_host.h"), &stubs, &[])?;
    // Official headers take `bool` from CUDA's headers.
    let view = ["-include", "stdbool.h", &format!("-I{}", include.display())];
    let mut theirs = Header::read(&include.join("nccl_device/host.h"), &stubs, &view)?;
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
