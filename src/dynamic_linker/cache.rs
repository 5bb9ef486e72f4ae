//! The dynamic linker's cache of files, `/etc/ld.so.cache`. The build script reads it too.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The cache's own file.
pub(crate) const FILE: &str = "/etc/ld.so.cache";

/// Returns the files of this name in the dynamic linker's cache, in its order. The format is glibc's since 2.2; a cache
/// that does not have it has none.
pub(crate) fn files(cache: &[u8], name: &Path) -> Vec<PathBuf> {
    const MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
    const HEADER: usize = 48;
    const ENTRY: usize = 24;
    // An older format may come before it.
    let start = cache.windows(MAGIC.len()).position(|bytes| bytes == MAGIC).unwrap_or(cache.len());
    let cache = &cache[start..];
    let number = |at: usize| {
        let bytes = cache.get(at..at + 4)?;
        Some(u32::from_ne_bytes(bytes.try_into().ok()?) as usize)
    };
    let text = |at: usize| {
        let text = cache.get(number(at)?..)?;
        Some(Path::new(OsStr::from_bytes(text.split(|byte| *byte == 0).next()?)))
    };
    let count = number(MAGIC.len()).unwrap_or_default();
    let entries = cache.get(HEADER..).unwrap_or_default().chunks_exact(ENTRY).take(count).enumerate();
    let is_for_every_processor = |entry: &[u8]| entry[16..].iter().all(|byte| *byte == 0);
    let files = entries.filter(|(_, entry)| is_for_every_processor(entry)).filter_map(|(index, _)| {
        let entry = HEADER + index * ENTRY;
        (text(entry + 4)? == name).then(|| text(entry + 8).map(PathBuf::from))?
    });
    files.collect()
}

/// Returns a cache with these entries: the name, the path, and the processors that it is for.
#[cfg(test)]
pub(crate) fn with(entries: &[(&str, &str, u64)]) -> Vec<u8> {
    let mut strings = Vec::new();
    let mut table = Vec::new();
    let mut text = |text: &str| {
        let at = 48 + 24 * entries.len() + strings.len();
        strings.extend_from_slice(text.as_bytes());
        strings.push(0);
        u32::try_from(at).unwrap().to_ne_bytes()
    };
    for (name, path, processors) in entries {
        table.extend_from_slice(&0x303_u32.to_ne_bytes());
        table.extend_from_slice(&text(name));
        table.extend_from_slice(&text(path));
        table.extend_from_slice(&[0; 4]);
        table.extend_from_slice(&processors.to_ne_bytes());
    }
    let mut cache = b"glibc-ld.so.cache1.1".to_vec();
    cache.extend_from_slice(&u32::try_from(entries.len()).unwrap().to_ne_bytes());
    cache.resize(48, 0);
    [cache, table, strings].concat()
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::{files, with};

    #[test]
    fn cache_gives_the_files_of_a_name_in_its_order() {
        let name = Path::new("libnccl.so.2");
        let bytes = with(&[
            ("libnccl.so.2", "/b/libnccl.so.2", 0),
            ("libnccl.so.2", "/some-processor/libnccl.so.2", 1),
            ("libnccl.so.2", "/a/libnccl.so.2", 0),
            ("libnccl.so", "/b/libnccl.so", 0),
        ]);
        let expected = ["/b/libnccl.so.2", "/a/libnccl.so.2"].map(PathBuf::from);
        assert_eq!(files(&bytes, name), expected);
        // The older format comes first in a cache that has both.
        assert_eq!(files(&[b"ld.so-1.7.0\0\0\0\0\0".as_slice(), &bytes].concat(), name), expected);
        for length in 0..bytes.len() {
            let _ = files(&bytes[..length], name);
        }
    }
}
