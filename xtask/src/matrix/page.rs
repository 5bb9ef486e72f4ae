//! `docs/generated/compatibility.md`.

use std::fmt::Write as _;

use anyhow::Result;

use super::checks::CHECKS;
use super::findings::Findings;
use super::quirks::QUIRKS;
use super::row::Row;
use crate::releases::{NEWEST, OLDEST, RELEASES};

pub(super) const PAGE: &str = "docs/generated/compatibility.md";

/// Returns the whole page.
pub(super) fn page(rows: &[Row]) -> Result<String> {
    let mut page = String::new();
    write!(
        page,
        "# Compatibility\n\n\
         Written by `cargo xtask matrix --all` from {} of {} versions: NVIDIA's packages of the Python package index for\n\
         x86_64, on a machine without a GPU. Three programs ran each version: one that loads it, one linked with {newest}\n\
         and one linked with {oldest}. All three agree on each cell, including the error messages. `.ci/matrix` compares all\n\
         rows with the libraries; `.ci/run nightly` includes it.\n\n\
         The packages are built for CUDA 12, and before 2.16 for CUDA 11. The packages for CUDA 13, from 2.27.7 to 2.32.3,\n\
         were run manually, with the directory `nvidia/nccl` of each as `$LIBNCCL_CACHE/VERSION`: `cargo xtask matrix VERSION`\n\
         finds the same headers and the same cells.\n\n\
         ## Checks\n\n\
         {}\n",
        rows.len(),
        RELEASES.len(),
        CHECKS_EXPLANATION.trim(),
        newest = *NEWEST,
        oldest = *OLDEST,
    )?;
    head(&mut page, std::iter::once("header").chain(CHECKS.iter().map(|(_, title)| *title)))?;
    for row in rows {
        writeln!(page, "{}", checks(row))?;
    }
    write!(page, "\n## NCCL's own behavior\n\n{}\n", QUIRKS_EXPLANATION.trim())?;
    head(&mut page, QUIRKS.iter().map(|quirk| quirk.title))?;
    for row in rows {
        writeln!(page, "{}", quirks(row))?;
    }
    page.push('\n');
    for quirk in QUIRKS {
        let affected = ranges(rows, |row| {
            row.findings.get(quirk.name).is_some_and(|finding| quirk.is_shown_by(&finding.text))
        });
        writeln!(page, "- **{}** ({affected}): {}", quirk.title, quirk.description)?;
    }
    Ok(page)
}

const CHECKS_EXPLANATION: &str = "
A cell is the result of the check: a number, NCCL's result code, or `ok`. `-` marks a function that the version does not
have; calling it is an error that names both versions.

- **header**: the number of declarations of the official header that were compared with `vendor-headers/nccl.h`. All
  agree, and so does the version that each declaration's comment names.
- **functions**: the functions that the library exports, which are exactly the documented ones of the version; **missing**:
  the others.
- **options**: the fields of `ncclConfig_t` that the version has; setting another one is an error.
- **codes**: the result codes for which NCCL has a message.
- **bytes of an id**: the bytes of the 128 that NCCL writes; the facade sets the others to zero.
- **ids**: two ids, which differ. **no network**: creating an id twice without a network.
- **groups**: an empty group, for which 2.13.4 needs a GPU. The thread is outside of any group afterwards, also after a
  nested group, a failed one and a panic.
- **wrong arguments**: the arguments that the facade rejects before it calls NCCL; three of them are options that the
  oldest versions do not have. **null**: NCCL's own checks.
- **no GPU**: every way to create a communicator; the thread is outside of any group afterwards. **allocation** is
  `ncclMemAlloc`.
";

const QUIRKS_EXPLANATION: &str = "
The same libraries, called in C without the facade: the result code of each call (0 is success, 1 a CUDA error, 3 an
internal error, 4 an invalid argument, 5 invalid usage), and how the process ended if a call did not return.
";

fn head<'a>(page: &mut String, titles: impl Iterator<Item = &'a str>) -> Result<()> {
    let titles: Vec<_> = titles.collect();
    writeln!(page, "\n| release | {} |\n|---|{}", titles.join(" | "), "---|".repeat(titles.len()))?;
    Ok(())
}

/// Returns the release's row of the first table.
pub(super) fn checks(row: &Row) -> String {
    let cells: Vec<&str> = CHECKS.iter().map(|(name, _)| text(&row.findings, name)).collect();
    format!("| {} | {} | {} |", row.release, row.header_items, cells.join(" | "))
}

/// Returns the release's row of the second table.
pub(super) fn quirks(row: &Row) -> String {
    let cells: Vec<&str> = QUIRKS.iter().map(|quirk| text(&row.findings, quirk.name)).collect();
    format!("| {} | {} |", row.release, cells.join(" | "))
}

fn text<'a>(findings: &'a Findings, name: &str) -> &'a str {
    findings.get(name).map_or("?", |finding| &finding.text)
}

/// Returns the releases with a property, with neighbours as ranges: `2.17.1 to 2.22.3, 2.32.3`.
fn ranges(rows: &[Row], property: impl Fn(&Row) -> bool) -> String {
    let runs = rows
        .chunk_by(|one, other| property(one) == property(other))
        .filter(|run| run.first().is_some_and(&property));
    let ranges = runs.filter_map(|run| match run {
        [one] => Some(one.release.clone()),
        [first, .., last] => Some(format!("{} to {}", first.release, last.release)),
        [] => None,
    });
    let ranges: Vec<_> = ranges.collect();
    if ranges.is_empty() { "none".into() } else { ranges.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::super::findings::Finding;
    use super::*;

    fn row(release: &str, finding: &str) -> Row {
        let finding = Finding { text: finding.into(), detail: String::new() };
        Row {
            release: release.into(),
            header_items: 7,
            findings: [("second-id".to_string(), finding)].into(),
        }
    }

    #[test]
    fn ranges_join_neighbours() {
        let rows = [row("1", "3, hangs"), row("2", "3, hangs"), row("3", "3, 3"), row("4", "SIGSEGV")];
        let shown = |row: &Row| QUIRKS[0].is_shown_by(&row.findings["second-id"].text);
        assert_eq!(ranges(&rows, shown), "1 to 2, 4");
        assert_eq!(ranges(&rows[2..3], shown), "none");
        assert_eq!(quirks(&rows[0]), format!("| 1 | 3, hangs |{}", " ? |".repeat(QUIRKS.len() - 1)));
    }

    /// Returns the rows that a page was written from, without their details.
    fn parse(page: &str) -> Vec<Row> {
        let cells = |line: &str| -> Vec<String> {
            line.trim_matches('|').split('|').map(|cell| cell.trim().to_string()).collect()
        };
        let lines: Vec<Vec<String>> = page
            .lines()
            .filter(|line| line.starts_with("| ") && !line.starts_with("| release"))
            .map(cells)
            .collect();
        let (checks, quirks) = lines.split_at(lines.len() / 2);
        let names = || CHECKS.iter().map(|(name, _)| *name).chain(QUIRKS.iter().map(|quirk| quirk.name));
        let findings = |texts: Vec<&String>| {
            let finding = |text: &String| Finding { text: text.clone(), detail: String::new() };
            names().map(String::from).zip(texts.into_iter().map(finding)).collect()
        };
        let row = |(checks, quirks): (&Vec<String>, &Vec<String>)| Row {
            release: checks[0].clone(),
            header_items: checks[1].parse().unwrap(),
            findings: findings(checks[2..].iter().chain(&quirks[1..]).collect()),
        };
        checks.iter().zip(quirks).map(row).collect()
    }

    #[test]
    fn committed_page_has_the_present_text() {
        let committed = std::fs::read_to_string(crate::checkout::root().join(PAGE)).unwrap();
        assert_eq!(page(&parse(&committed)).unwrap(), committed);
    }
}
