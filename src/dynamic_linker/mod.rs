//! The dynamic linker of this process: the objects that it has loaded, where it searches for files, and which files it can map.
#![allow(unsafe_code)]

#[cfg(all(feature = "dlopen", target_os = "linux"))]
pub(crate) mod elf;
#[cfg(target_os = "linux")]
mod object;
#[cfg(all(feature = "dlopen", target_os = "linux", target_env = "gnu"))]
pub(crate) mod search;

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::PathBuf;

#[cfg(all(target_os = "linux", any(feature = "dlopen", all(nccl_linked, not(nccl_archive)))))]
pub(crate) use object::Object;
#[cfg(target_os = "linux")]
pub(crate) use object::Scope;
#[cfg(target_os = "linux")]
pub use object::keep_loaded;

/// Does nothing: NCCL, and plugins that contain it, exist for Linux only.
#[cfg(not(target_os = "linux"))]
pub fn keep_loaded() {}

/// Returns the files that are mapped into this process. Reads `/proc/self/maps`; returns none on systems without this file.
pub fn mapped_files() -> BTreeSet<PathBuf> {
    mappings(&maps()).map(|(_, path)| path.into()).collect()
}

/// Returns the file that is mapped at an address.
pub(crate) fn mapped_file_at(address: usize) -> Option<PathBuf> {
    mappings(&maps()).find(|(range, _)| range.contains(&address)).map(|(_, path)| path.into())
}

fn maps() -> String {
    std::fs::read("/proc/self/maps")
        .map_or_else(|_| String::new(), |text| String::from_utf8_lossy(&text).into())
}

/// Parses the lines `start-end permissions offset device inode   /path`. Skips mappings without a file.
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
    use super::{mapped_file_at, mapped_files, mappings};

    #[test]
    fn mappings_without_a_file_are_left_out() {
        let maps =
            "7f00-7f10 r-xp 00000000 fe:00 12   /usr/lib/a b.so\n7f10-7f20 rw-p 00000000 00:00 0 [heap]\n";
        assert_eq!(mappings(maps).collect::<Vec<_>>(), [(0x7f00..0x7f10, "/usr/lib/a b.so")]);
    }

    #[test]
    fn this_program_is_found_by_address_and_in_the_list() {
        let program = std::env::current_exe().unwrap();
        let address = this_program_is_found_by_address_and_in_the_list as *const () as usize;
        assert_eq!(mapped_file_at(address).as_ref(), Some(&program));
        assert!(mapped_files().contains(&program));
        assert_eq!(mapped_file_at(0), None);
    }
}
