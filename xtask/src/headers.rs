//! Comparison of our header with NVIDIA's, release by release.

use std::path::Path;

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::build_script::{BuildScript, failure};
use crate::nvidia_packages::{self, Part};
use crate::releases::Selection;

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
    /// What the build script printed: a line for the release, and one for each difference.
    lines: String,
    /// The number of items compared.
    pub(crate) items: usize,
    differences: usize,
}

/// Compares `vendor-headers/nccl.h`, and `nccl_device_host.h` if the release has the device API, with the headers of
/// each release. Prints a line for each release, and one for each difference.
pub(crate) fn run(root: &Path, options: &Options) -> Result<()> {
    let releases = options.selection.releases();
    let part = if options.drop { Part::Headers } else { Part::All };
    nvidia_packages::prefetch(&releases, part);
    println!("release   items  differences  wrong since  declared");
    let mut script = None;
    let mut failed = Vec::new();
    for release in &releases {
        let compared = nvidia_packages::obtain_part(release, part).and_then(|directory| {
            let script = match &mut script {
                Some(script) => script,
                None => script.insert(BuildScript::build(root)?),
            };
            compare(root, script, &directory)
        });
        match compared {
            Ok(comparison) => {
                print!("{}", comparison.lines);
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
        let count = self.differences;
        (count > 0).then(|| format!("the headers differ in {count} items: see `cargo xtask headers`"))
    }

    /// Reads the numbers in the first line: the items, the differences and the wrong `Since`.
    fn parse(lines: &str) -> Option<Self> {
        let mut words = lines.lines().next()?.split_whitespace().skip(1);
        let mut number = || words.next()?.parse::<usize>().ok();
        let (items, others, since) = (number()?, number()?, number()?);
        Some(Self { lines: lines.to_owned(), items, differences: others + since })
    }
}

/// Compares the headers with those of one release, in the directory that has its name.
pub(crate) fn compare(root: &Path, script: &BuildScript, directory: &Path) -> Result<Comparison> {
    let output = script.run(root, "headers", directory)?;
    Comparison::parse(&String::from_utf8_lossy(&output.stdout)).with_context(|| failure(&output))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_a_comparison_are_read() {
        let lines = "2.31.2      431            2            1  46 functions, 46 twins\n  ncclSend: ours: fn; theirs: fn\n";
        let comparison = Comparison::parse(lines).unwrap();
        assert_eq!((comparison.items, comparison.differences), (431, 3));
        assert_eq!(comparison.lines, lines);
        assert!(comparison.problem().unwrap().contains("differ in 3 items"));
        assert!(Comparison::parse("").is_none());
    }
}
