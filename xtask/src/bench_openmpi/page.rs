//! `docs/generated/cpu-performance-tables.md`.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::programs::OPENMPI;

/// The page's path below the root of the checkout.
const PATH: &str = "docs/generated/cpu-performance-tables.md";

/// Returns the page with the tables of a run.
pub(crate) fn page(machine: &str, rounds: u32, tables: &str) -> String {
    format!(
        "# Tables of the comparison with OpenMPI\n\n\
         All figures of one run of the CPU backend and OpenMPI {}, medians of {rounds} rounds. This command measures\n\
         them and writes this page:\n\n\
         ```console\n$ cargo xtask bench-openmpi --write\n```\n\n\
         [cpu-performance.md](../cpu-performance.md) describes the method and the targets.\n\n\
         {machine}\n\n{tables}",
        OPENMPI.release
    )
}

/// Writes the page.
pub(crate) fn write(root: &Path, page: &str) -> Result<()> {
    let path = root.join(PATH);
    fs::write(&path, page).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_names_release_rounds_command_and_machine() {
        let page = page("Number of cores: 2, a CPU", 15, "| a table |\n");
        let expected = "\
# Tables of the comparison with OpenMPI

All figures of one run of the CPU backend and OpenMPI 5.0.11, medians of 15 rounds. This command measures
them and writes this page:

```console
$ cargo xtask bench-openmpi --write
```

[cpu-performance.md](../cpu-performance.md) describes the method and the targets.

Number of cores: 2, a CPU

| a table |
";
        assert_eq!(page, expected);
    }

    #[test]
    fn committed_page_has_the_format_that_is_written() {
        let committed = fs::read_to_string(crate::checkout::root().join(PATH)).unwrap();
        let machine = committed.lines().find(|line| line.starts_with("Number of cores: ")).unwrap();
        let tables = committed.split_once(&format!("{machine}\n\n")).unwrap().1;
        let rounds = committed.split_once("medians of ").unwrap().1.split(' ').next().unwrap();
        assert_eq!(page(machine, rounds.parse().unwrap(), tables), committed);
    }
}
