//! An NCCL library's file, read without loading it.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::File;
use std::io;
use std::path::Path;
use std::str::FromStr;

use libnccl::Version;
use libnccl_observe::library_file::{self, Identity};
use object::read::elf::ElfFile64;
use object::{Endianness, Object, ObjectSection, ObjectSymbol, ReadCache};

use crate::file;

/// The text that the CPU backend writes before its reports.
const CPU_BACKEND: &str = "libnccl-cpu: ";
/// The error of a version that refuses unknown words in `NCCL_ALGO` and `NCCL_PROTO`; older ones ignore them.
const UNKNOWN_WORD: &str = "Unrecognized element token";

/// The identity of the file, and the content of its strings.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct NcclFile {
    /// The release, from the text that NCCL prints when it starts.
    pub(crate) version: Option<Version>,
    /// The release of CUDA that the library was compiled with.
    pub(crate) cuda: Option<Cuda>,
    /// The names of the variables that it reads.
    pub(crate) variables: BTreeSet<String>,
    pub(crate) is_cpu_backend: bool,
    /// True if it fails if `NCCL_ALGO` or `NCCL_PROTO` has an unknown word.
    pub(crate) refuses_unknown_words: bool,
    pub(crate) identity: Identity,
}

/// A release of CUDA.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Cuda {
    pub(crate) major: u32,
    pub(crate) minor: u32,
}

impl fmt::Display for Cuda {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

impl FromStr for Cuda {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const EXPECTED: &str = "expected major.minor";

        let part = |text: &str| text.parse().map_err(|_| EXPECTED);
        let (major, minor) = text.split_once('.').ok_or(EXPECTED)?;
        Ok(Self { major: part(major)?, minor: part(minor)? })
    }
}

impl NcclFile {
    /// Reads the file; `None` if it is no 64-bit shared object with constants.
    ///
    /// NCCL's file has hundreds of megabytes of GPU code: its constants alone are read.
    pub(crate) fn read(path: &Path) -> Option<Self> {
        let opened = file::open(path, File::options().read(true)).ok()?;
        let identity = Identity::of(&opened).ok()?;
        let cache = ReadCache::new(opened);
        let file = ElfFile64::<Endianness, _>::parse(&cache).ok()?;
        let constants = file.section_by_name(".rodata")?.data().ok()?;
        Some(Self { identity, ..Self::from_constants(constants) })
    }

    /// Returns whether a shared object defines NCCL's functions, whatever its name.
    pub(crate) fn has_nccl(path: &Path) -> bool {
        let defines = || {
            let cache = ReadCache::new(file::open(path, File::options().read(true)).ok()?);
            let file = ElfFile64::<Endianness, _>::parse(&cache).ok()?;
            let is_nccl = |symbol: object::read::elf::ElfSymbol64<'_, '_, Endianness, _>| {
                symbol.is_definition() && symbol.name() == Ok("ncclGetUniqueId")
            };
            Some(file.dynamic_symbols().any(is_nccl))
        };
        defines().unwrap_or(false)
    }

    fn from_constants(constants: &[u8]) -> Self {
        let mut found = Self::default();
        for text in constants.split(|byte| !(0x20..0x7f).contains(byte)) {
            let Ok(text) = std::str::from_utf8(text) else { continue };
            found.is_cpu_backend |= text.contains(CPU_BACKEND);
            if let Some((version, cuda)) =
                text.strip_prefix("NCCL version ").and_then(|rest| rest.split_once("+cuda"))
            {
                found.version = version.parse().ok();
                found.cuda = cuda.parse().ok();
            } else if text.starts_with(UNKNOWN_WORD) {
                found.refuses_unknown_words = true;
            } else if let Some(name) = variable(text) {
                found.variables.insert(name.into());
            }
        }
        found
    }
}

/// Returns the hash of a whole file.
pub(crate) fn hash(path: &Path) -> io::Result<u64> {
    library_file::hash(&file::open(path, File::options().read(true))?)
}

/// Returns the variable's name that a text is. Up to 8 printable bytes of a number, and blanks, may come before it.
fn variable(text: &str) -> Option<&str> {
    let is_name = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_';
    let (before, name) = text.split_at(text.find("NCCL_")?);
    let is_variable = name.len() > 5 && name.bytes().all(is_name) && before.trim_start().len() <= 8;
    is_variable.then_some(name)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::path::Path;

    use libnccl::Version;
    use libnccl_test_support::random_inputs::{Random, inputs};

    use super::{Cuda, NcclFile};

    /// Writes a shared object with these constants, and nothing else.
    pub(crate) fn write_library(file: &Path, constants: &[u8]) {
        const HEADER: usize = 64;
        let names = b"\0.rodata\0.shstrtab\0";
        let mut bytes = vec![0; HEADER];
        bytes[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        let offset = (HEADER + constants.len() + names.len()) as u64;
        let fields: [(usize, &[u8]); 8] = [
            (16, &3u16.to_le_bytes()),
            (18, &62u16.to_le_bytes()),
            (20, &1u32.to_le_bytes()),
            (40, &offset.to_le_bytes()),
            (52, &64u16.to_le_bytes()),
            (58, &64u16.to_le_bytes()),
            (60, &3u16.to_le_bytes()),
            (62, &2u16.to_le_bytes()),
        ];
        for (at, field) in fields {
            bytes[at..at + field.len()].copy_from_slice(field);
        }
        bytes.extend(constants);
        bytes.extend(names);
        let section = |name: u32, kind: u32, offset: usize, size: usize| {
            let mut section = vec![0; 64];
            section[..4].copy_from_slice(&name.to_le_bytes());
            section[4..8].copy_from_slice(&kind.to_le_bytes());
            section[24..32].copy_from_slice(&(offset as u64).to_le_bytes());
            section[32..40].copy_from_slice(&(size as u64).to_le_bytes());
            section
        };
        bytes.extend(section(0, 0, 0, 0));
        bytes.extend(section(1, 1, HEADER, constants.len()));
        bytes.extend(section(9, 3, HEADER + constants.len(), names.len()));
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, bytes).unwrap();
    }

    #[test]
    fn constants_give_the_release_and_the_variables() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("libnccl.so.2");
        write_library(
            &file,
            b"\x01\x02NCCL version 2.32.3+cuda12.9\0NCCL_DEBUG\0\x07MbP?NCCL_P2P_DISABLE\0wr_id == NCCL_IB_DUMMY\0NCCL_ is no name\0NCCL_lower\0",
        );
        let found = NcclFile::read(&file).unwrap();
        assert_eq!(found.version, Some(Version::new(2, 32, 3)));
        assert_eq!(found.cuda, Some(Cuda { major: 12, minor: 9 }));
        assert_eq!(found.identity.to_string(), format!("{} bytes, no build id", found.identity.size));
        assert_eq!(found.variables.iter().collect::<Vec<_>>(), ["NCCL_DEBUG", "NCCL_P2P_DISABLE"]);
    }

    #[test]
    fn random_files_are_read_or_none() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("libnccl.so.2");
        write_library(&file, b"NCCL version 2.32.3+cuda12.9\0NCCL_DEBUG\0NCCL_P2P_DISABLE\0");
        let (good, mut random, mut read) = (std::fs::read(&file).unwrap(), Random(31), 0);
        for _ in inputs(5_000) {
            let mut bytes = good.clone();
            random.change_all(&mut bytes);
            std::fs::write(&file, bytes).unwrap();
            let found = NcclFile::read(&file);
            read += usize::from(found.is_some());
            let variables = found.map(|found| found.variables).unwrap_or_default();
            assert!(variables.iter().all(|name| name.starts_with("NCCL_")), "{variables:?}");
        }
        assert!(read > 0);
    }

    #[test]
    fn file_of_another_kind_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("libnccl.so");
        for bytes in [&b""[..], b"GROUP ( libnccl.so.2 )", b"\x7fELF\x02\x01\x01"] {
            std::fs::write(&file, bytes).unwrap();
            assert_eq!(NcclFile::read(&file), None);
        }
    }
}
