//! A check that a file is a shared object that this process can map.
//!
//! It runs before `dlopen`, which crashes on some truncated files (SIGBUS) and reports other defects unclearly.

use std::env::consts::ARCH;
use std::fs::File;
use std::io::{Error, ErrorKind, Read, Result};
use std::os::unix::fs::FileExt;
use std::path::Path;

const HEADER: u64 = 64;
/// The ELF numbers of architectures, with Rust's names.
const MACHINES: [(u16, &str); 6] =
    [(3, "x86"), (21, "powerpc64"), (40, "arm"), (62, "x86_64"), (183, "aarch64"), (243, "riscv64")];

/// Checks the file; an error describes its defect. The error's kind is `Unsupported` for an object of another architecture.
pub(crate) fn check(path: &Path) -> Result<()> {
    let metadata = path.metadata()?;
    if metadata.is_dir() {
        return Err(invalid("is a directory; expected the library's file"));
    }
    if !metadata.is_file() {
        return Err(invalid("is not a regular file"));
    }
    let (file, length) = (File::open(path)?, metadata.len());
    let truncated = |needed: u64| {
        invalid(format!("is truncated: it has {length} bytes, but its ELF headers require {needed}"))
    };
    if length == 0 {
        return Err(invalid("is empty"));
    }
    let mut header = Vec::new();
    (&file).take(HEADER).read_to_end(&mut header)?;
    if !header.starts_with(b"\x7fELF") {
        return Err(invalid("is not a shared object (no ELF header)"));
    }
    if (header.len() as u64) < HEADER {
        return Err(truncated(HEADER));
    }
    let [class, encoding] = [header[4], header[5]];
    if class != 2 {
        return Err(foreign("is a 32-bit object; this process is 64-bit"));
    }
    if encoding != if cfg!(target_endian = "little") { 1 } else { 2 } {
        return Err(invalid("has the other byte order"));
    }
    let machine = u16_at(&header, 18);
    let own = MACHINES.iter().find(|(_, name)| *name == ARCH);
    if own.is_some_and(|(own, _)| *own != machine) {
        let other = MACHINES.iter().find(|(number, _)| *number == machine);
        let other = other.map_or_else(|| format!("ELF machine {machine}"), |(_, name)| name.to_string());
        return Err(foreign(format!("is built for {other}; this process is {ARCH}")));
    }
    const SHARED_OBJECT: u16 = 3;
    if u16_at(&header, 16) != SHARED_OBJECT {
        return Err(invalid("is an ELF file, but not a shared object"));
    }

    // The program headers, and the segments that they describe, must lie within the file.
    let (table, size, count) = (u64_at(&header, 32), u16_at(&header, 54), u16_at(&header, 56));
    const PROGRAM_HEADER: u16 = 56;
    if count == 0 {
        return Err(invalid("has no program headers"));
    }
    if size != PROGRAM_HEADER {
        return Err(invalid(format!("has program headers of {size} bytes; expected {PROGRAM_HEADER}")));
    }
    let table_size = usize::from(size) * usize::from(count);
    let end = table.saturating_add(table_size as u64);
    if end > length {
        return Err(truncated(end));
    }
    let mut headers = vec![0; table_size];
    file.read_exact_at(&mut headers, table)?;
    let furthest = headers
        .chunks_exact(usize::from(size))
        .map(|header| u64_at(header, 8).saturating_add(u64_at(header, 32)))
        .max()
        .unwrap_or_default();
    if furthest > length {
        return Err(truncated(furthest));
    }
    Ok(())
}

fn invalid(problem: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidData, problem.into())
}

fn foreign(problem: impl Into<String>) -> Error {
    Error::new(ErrorKind::Unsupported, problem.into())
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_ne_bytes(std::array::from_fn(|i| bytes[at + i]))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(std::array::from_fn(|i| bytes[at + i]))
}
