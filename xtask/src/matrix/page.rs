//! `docs/compatibility.md`.

use std::fmt::Write as _;

use anyhow::Result;

use super::Row;
use super::cell::{CHECKS, Cell, TRAPS};

pub(super) const PAGE: &str = "docs/compatibility.md";

/// The whole page.
pub(super) fn page(rows: &[Row]) -> Result<String> {
    let mut page = String::new();
    write!(
        page,
        "# Compatibility\n\n\
         Written by `cargo xtask matrix --all` from {} of {} releases: NVIDIA's packages of the Python package index for\n\
         x86_64, on a machine without a GPU. Each release was run by {}. All three find the same in each cell, to the\n\
         texts of the errors. `cargo xtask matrix --some 3` compares the rows of the newest release, of the oldest, and of\n\
         another one every day with what it finds.\n\n\
         The packages are those for CUDA 12, and for CUDA 11 before 2.16. Those for CUDA 13, from 2.27.7 to 2.32.3, were run\n\
         by hand, with the folder `nvidia/nccl` of each as `$LIBNCCL_CACHE/RELEASE`: `cargo xtask matrix RELEASE` finds the\n\
         same headers and the same in each cell.\n\n\
         ## What works\n\n\
         {}\n",
        rows.len(),
        crate::releases::RELEASES.len(),
        crate::matrix::ways(),
        EXPLANATION.trim(),
    )?;
    head(&mut page, std::iter::once("header").chain(CHECKS.map(|(_, title)| title)))?;
    for row in rows {
        writeln!(page, "{}", checks(row))?;
    }
    write!(page, "\n## What NCCL itself does\n\n{}\n", TRAPS_EXPLANATION.trim())?;
    head(&mut page, TRAPS.into_iter().map(|(_, title)| title))?;
    for row in rows {
        writeln!(page, "{}", traps(row))?;
    }
    page.push('\n');
    for ((name, title), meaning) in TRAPS.into_iter().zip(MEANINGS) {
        let met = ranges(rows, |row| row.cell.get(name).is_some_and(|found| is_sprung(name, &found.text)));
        writeln!(page, "- **{title}** ({met}): {meaning}")?;
    }
    Ok(page)
}

const EXPLANATION: &str = "
What stands in a cell is what was found: a number, or what NCCL answered, or `ok`; `-` is a function that the release
does not have, and that is an error which names both releases.

- **header**: how many declarations of the official header were compared with `vendor-headers/nccl.h`; all agree, and
  so does the release from which on each is documented.
- **functions**: those that the library has, exactly those that are documented for it; **missing**: the others.
- **options**: of the fields of `ncclConfig_t`, those that the release knows; setting another one is an error.
- **codes**: the codes for which NCCL has a text of their own.
- **bytes of an id**: those that NCCL writes of the 128; the others are made zero.
- **ids**: two, which differ. **no network**: making an id twice where there is no network.
- **groups**: an empty group; 2.13.4 asks for a GPU. No thread is inside a group after one, nor after a group in a
  group, a refused one or a panic.
- **wrong arguments**: those that are refused before NCCL is called; three are options, which the oldest releases do not
  know. **null**: NCCL's own checks.
- **no GPU**: making a communicator, in each way; the thread is outside of any group afterwards. **allocation** is
  `ncclMemAlloc`.
";

const TRAPS_EXPLANATION: &str = "
The same libraries, called in C without the facade: what each call answered (0 is success, 1 a CUDA error, 3 an internal
error, 4 an invalid argument, 5 invalid usage), and how the process ended if it did.
";

/// In the order of the traps.
const MEANINGS: [&str; TRAPS.len()] = [
    "after an id that could not be made, making another never returns. The facade asks once, and answers the same \
     error from then on (*no network* above).",
    "`ncclCommInitRankConfig` that fails follows what `*comm` held before. The facade makes it null.",
    "`ncclCommInitRankConfig` that fails returns inside the group that it has opened: the end of a group that nobody \
     has started is a success. The facade leaves it (*no GPU* above).",
    "`ncclCommSplit` of a null communicator. A `Communicator` is never null; nor in the following.",
    "`ncclCommShrink` of a null communicator.",
    "`ncclRedOpCreatePreMulSum` for a null communicator.",
    "`ncclRedOpDestroy` for a null communicator.",
    "`ncclCommCount` of a communicator that is all zeros. A `Communicator` is what NCCL made, until it is destroyed.",
    "`ncclCommDestroy` of a communicator that is all zeros.",
];

/// Whether what was found is the trap, and not the way out of it.
fn is_sprung(trap: &str, text: &str) -> bool {
    let wrong = |answers: &[&str]| answers.contains(&text);
    text.contains("SIG")
        || text.contains("hangs")
        || match trap {
            "open-group" => wrong(&["1, 0"]),
            // No communicator of zeros has a number of ranks, or an end.
            "zeroed-count" | "zeroed-destroy" => wrong(&["0"]),
            _ => false,
        }
}

fn head<'a>(page: &mut String, titles: impl Iterator<Item = &'a str>) -> Result<()> {
    let titles: Vec<_> = titles.collect();
    writeln!(page, "\n| release | {} |\n|---|{}", titles.join(" | "), "---|".repeat(titles.len()))?;
    Ok(())
}

/// The row of the first table.
pub(super) fn checks(row: &Row) -> String {
    let cells = CHECKS.map(|(name, _)| text(&row.cell, name));
    format!("| {} | {} | {} |", row.release, row.header_items, cells.join(" | "))
}

/// The row of the second.
pub(super) fn traps(row: &Row) -> String {
    format!("| {} | {} |", row.release, TRAPS.map(|(name, _)| text(&row.cell, name)).join(" | "))
}

fn text<'a>(cell: &'a Cell, name: &str) -> &'a str {
    cell.get(name).map_or("?", |found| &found.text)
}

/// `2.17.1 to 2.22.3, 2.32.3`: the releases of which something holds; runs of neighbours are written as such.
fn ranges(rows: &[Row], holds: impl Fn(&Row) -> bool) -> String {
    let runs =
        rows.chunk_by(|one, other| holds(one) == holds(other)).filter(|run| run.first().is_some_and(&holds));
    let spelled = runs.filter_map(|run| match run {
        [one] => Some(one.release.clone()),
        [first, .., last] => Some(format!("{} to {}", first.release, last.release)),
        [] => None,
    });
    let spelled: Vec<_> = spelled.collect();
    if spelled.is_empty() { "none".into() } else { spelled.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::super::cell::Found;
    use super::*;

    fn row(release: &str, trap: &str) -> Row {
        let found = Found { text: trap.into(), detail: String::new() };
        Row { release: release.into(), header_items: 7, cell: [("second-id".to_string(), found)].into() }
    }

    #[test]
    fn neighbours_are_a_range() {
        let rows = [row("1", "3, hangs"), row("2", "3, hangs"), row("3", "3, 3"), row("4", "SIGSEGV")];
        let sprung = |row: &Row| is_sprung("second-id", &row.cell["second-id"].text);
        assert_eq!(ranges(&rows, sprung), "1 to 2, 4");
        assert_eq!(ranges(&rows[2..3], sprung), "none");
        assert_eq!(traps(&rows[0]), format!("| 1 | 3, hangs |{}", " ? |".repeat(TRAPS.len() - 1)));
    }
}
