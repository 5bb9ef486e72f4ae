//! Comparison of our header with NVIDIA's, version by version.

use std::path::Path;

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::build_script::{BuildScript, failure};
use crate::nvidia_packages::{self, VERSIONS};

/// The versions to compare with.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct Options {
    /// Versions of NCCL, such as 2.32.3
    versions: Vec<String>,
    /// All versions: 10 GB of downloads
    #[arg(long)]
    all: bool,
}

/// Compares the headers of versions with ours.
pub(crate) fn run(root: &Path, options: &Options) -> Result<()> {
    let versions: Vec<&str> = options.versions.iter().map(String::as_str).collect();
    compare(root, if options.all { &VERSIONS } else { &versions })
}

/// Compares `vendor-headers/nccl.h`, and `nccl_device_host.h` if the version has the device API, with the headers of
/// each version. Prints a line for each version, and one for each difference.
pub(crate) fn compare(root: &Path, versions: &[&str]) -> Result<()> {
    let mut script = None;
    let mut failed = Vec::new();
    println!("version   items  differences  wrong since  declared");
    for &version in versions {
        let compared = nvidia_packages::obtain(version).and_then(|directory| {
            let script = match &mut script {
                Some(script) => script,
                None => script.insert(BuildScript::build(root)?),
            };
            let output = script.run(root, "headers", &directory)?;
            let lines = String::from_utf8_lossy(&output.stdout).into_owned();
            let differences = differences(&lines).with_context(|| failure(&output))?;
            Ok((lines, differences))
        });
        match compared {
            Ok((lines, differences)) => {
                print!("{lines}");
                if differences > 0 {
                    failed.push(version);
                }
            }
            Err(error) => {
                eprintln!("{version}: {error:#}");
                failed.push(version);
            }
        }
    }
    if !failed.is_empty() {
        bail!("{} of {} versions failed: {}", failed.len(), versions.len(), failed.join(", "));
    }
    Ok(())
}

/// Adds up the differences and wrong `Since` in the first line of the build script's output: version, items, differences, wrong
/// `Since`.
fn differences(lines: &str) -> Option<usize> {
    let mut words = lines.lines().next()?.split_whitespace().skip(2);
    let mut number = || words.next()?.parse::<usize>().ok();
    Some(number()? + number()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_a_comparison_are_read() {
        let lines = "2.31.2      431            2            1  46 functions, 46 twins\n  ncclSend: ours: fn; theirs: fn\n";
        assert_eq!(differences(lines), Some(3));
        assert_eq!(differences(""), None);
    }
}
