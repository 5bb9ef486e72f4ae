//! The files that are mapped into this process, from `/proc/self/maps`; none on systems without it.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::PathBuf;

pub(crate) fn files() -> BTreeSet<PathBuf> {
    mappings(&maps()).map(|(_, path)| path.into()).collect()
}

pub(crate) fn file_of(address: usize) -> Option<PathBuf> {
    mappings(&maps()).find(|(range, _)| range.contains(&address)).map(|(_, path)| path.into())
}

fn maps() -> String {
    std::fs::read("/proc/self/maps")
        .map_or_else(|_| String::new(), |text| String::from_utf8_lossy(&text).into())
}

/// Parses the lines `start-end permissions offset device inode   /path`; those without a file are left out.
fn mappings(maps: &str) -> impl Iterator<Item = (Range<usize>, &str)> {
    maps.lines().filter_map(|line| {
        let path = &line[line.find('/')?..];
        let (start, rest) = line.split_once('-')?;
        let (end, _) = rest.split_once(' ')?;
        let address = |text| usize::from_str_radix(text, 16).ok();
        Some((address(start)?..address(end)?, path))
    })
}

#[cfg(test)]
mod tests {
    use super::{file_of, files, mappings};

    #[test]
    fn mappings_without_a_file_are_left_out() {
        let maps =
            "7f00-7f10 r-xp 00000000 fe:00 12   /usr/lib/a b.so\n7f10-7f20 rw-p 00000000 00:00 0 [heap]\n";
        assert_eq!(mappings(maps).collect::<Vec<_>>(), [(0x7f00..0x7f10, "/usr/lib/a b.so")]);
    }

    #[test]
    fn this_program_is_found_by_address_and_in_the_list() {
        let program = std::env::current_exe().unwrap();
        assert_eq!(
            file_of(this_program_is_found_by_address_and_in_the_list as *const () as usize).as_ref(),
            Some(&program)
        );
        assert!(files().contains(&program));
        assert_eq!(file_of(0), None);
    }
}
