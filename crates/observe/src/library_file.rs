//! The identity of a library file, which distinguishes two builds of one NCCL version.

use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};

/// Properties that distinguish two library files of the same version.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "ras", derive(serde::Serialize, serde::Deserialize))]
pub struct Identity {
    /// The size of the file in bytes.
    pub size: u64,
    /// The linker's build id in hexadecimal.
    pub build_id: Option<String>,
}

impl Identity {
    /// Reads the identity of a file, which need not be a library.
    ///
    /// # Errors
    /// Returns the system's error if the file cannot be read.
    pub fn of(file: &File) -> io::Result<Self> {
        Ok(Self { size: file.metadata()?.len(), build_id: build_id(file) })
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes, ", self.size)?;
        match &self.build_id {
            Some(id) => write!(f, "build id {id}"),
            None => f.write_str("no build id"),
        }
    }
}

/// Returns a 64-bit hash (FNV-1a over words of 8 bytes) of a whole file. Not cryptographic. Hashing NCCL takes 0.1 s to 1 s, or
/// several seconds in an unoptimized build.
///
/// # Errors
/// Returns the system's error if the file cannot be read.
pub fn hash(mut file: &File) -> io::Result<u64> {
    file.seek(SeekFrom::Start(0))?;
    let (mut buffer, mut hash) = (vec![0; 1 << 20], 0xcbf2_9ce4_8422_2325_u64);
    loop {
        let mut length = 0;
        while length < buffer.len() {
            match file.read(&mut buffer[length..])? {
                0 => break,
                read => length += read,
            }
        }
        for word in buffer[..length].chunks(8) {
            let mut bytes = [0; 8];
            bytes[..word.len()].copy_from_slice(word);
            hash = (hash ^ u64::from_le_bytes(bytes)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        if length < buffer.len() {
            return Ok(hash);
        }
    }
}

/// The size of an ELF program header in bytes.
const PROGRAM_HEADER: usize = 56;

/// Returns the build id of a 64-bit little-endian ELF file.
fn build_id(file: &File) -> Option<String> {
    const PT_NOTE: u64 = 4;
    const LONGEST: u64 = 64 << 10;
    let header = read_at(file, 0, 64)?;
    if !header.starts_with(b"\x7fELF\x02\x01") || number(&header, 54, 2) != PROGRAM_HEADER as u64 {
        return None;
    }
    let length = PROGRAM_HEADER * number(&header, 56, 2) as usize;
    let headers = read_at(file, number(&header, 32, 8), length)?;
    let mut notes = headers.chunks_exact(PROGRAM_HEADER).filter(|header| number(header, 0, 4) == PT_NOTE);
    notes.find_map(|header| {
        let length = number(header, 32, 8).min(LONGEST) as usize;
        gnu_build_id(&read_at(file, number(header, 8, 8), length)?)
    })
}

fn gnu_build_id(mut notes: &[u8]) -> Option<String> {
    const NT_GNU_BUILD_ID: u64 = 3;
    loop {
        let (header, rest) = notes.split_at_checked(12)?;
        let [name, id] = [0, 4].map(|at| number(header, at, 4) as usize);
        let (owner, rest) = rest.split_at_checked(name.next_multiple_of(4))?;
        let (bytes, rest) = rest.split_at_checked(id.next_multiple_of(4))?;
        if owner == b"GNU\0" && number(header, 8, 4) == NT_GNU_BUILD_ID {
            return Some(bytes[..id].iter().map(|byte| format!("{byte:02x}")).collect());
        }
        notes = rest;
    }
}

fn read_at(mut file: &File, at: u64, length: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0; length];
    file.seek(SeekFrom::Start(at)).ok()?;
    file.read_exact(&mut bytes).ok()?;
    Some(bytes)
}

/// Returns the little-endian number of `size` bytes at the offset `at`.
fn number(bytes: &[u8], at: usize, size: usize) -> u64 {
    bytes[at..at + size].iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use super::{Identity, gnu_build_id, hash};

    #[test]
    fn build_id_is_that_of_gnu() {
        let other = b"\x04\0\0\0\x03\0\0\0\x01\0\0\0GNU\0abc\0";
        let own = b"\x04\0\0\0\x02\0\0\0\x03\0\0\0GNU\0\xab\x01\0\0";
        assert_eq!(gnu_build_id(&[&other[..], own].concat()).as_deref(), Some("ab01"));
        for end in 0..other.len() + own.len() {
            assert_eq!(gnu_build_id(&[&other[..], own].concat()[..end]), None);
        }
        assert_eq!(gnu_build_id(&[0xff; 64]), None);
    }

    #[test]
    fn file_that_is_no_library_has_a_size_and_a_hash() {
        let directory = tempfile::tempdir().unwrap();
        let hashes = [&b"one"[..], b"two", b""].map(|text| {
            let path = directory.path().join("file");
            fs::write(&path, text).unwrap();
            let file = File::open(&path).unwrap();
            assert_eq!(Identity::of(&file).unwrap(), Identity { size: text.len() as u64, build_id: None });
            hash(&file).unwrap()
        });
        assert!(hashes[0] != hashes[1] && hashes[1] != hashes[2]);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn program_has_the_build_id_that_readelf_prints() {
        let program = std::env::current_exe().unwrap();
        let identity = Identity::of(&File::open(&program).unwrap()).unwrap();
        let Ok(output) = std::process::Command::new("readelf").arg("-n").arg(&program).output() else {
            return;
        };
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let expected = text.lines().find_map(|line| line.trim().strip_prefix("Build ID: "));
        assert_eq!(identity.build_id.as_deref(), expected);
    }
}
