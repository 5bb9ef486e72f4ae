use std::fmt;
use std::str::FromStr;

use crate::sys;

/// A version of NCCL, as `major.minor.patch`.
///
/// ```
/// use libnccl::Version;
///
/// let version: Version = "2.27.3".parse()?;
/// assert!(version < Version::new(2, 32, 3));
/// assert_eq!(Version::from_code(22_703), version);
/// assert_eq!((version.code(), version.to_string().as_str()), (22_703, "2.27.3"));
/// # Ok::<(), libnccl::error::ParseError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// Major version.
    pub major: u32,
    /// Minor version.
    pub minor: u32,
    /// Patch level.
    pub patch: u32,
}

impl Version {
    /// The NCCL version of this crate's vendored header.
    pub const HEADER: Self = Self::new(sys::NCCL_MAJOR, sys::NCCL_MINOR, sys::NCCL_PATCH);

    /// The oldest version that this crate supports.
    pub(crate) const OLDEST: Self = Self::since("ncclGetVersion");

    /// Creates the version `major.minor.patch`.
    #[must_use]
    pub const fn new(major: u32, minor: u32, patch: u32) -> Self {
        Self { major, minor, patch }
    }

    /// Creates a version from the number that `ncclGetVersion` returns. For example, `2804` is 2.8.4. From 2.9 on, NCCL uses
    /// another format: `23203` is 2.32.3.
    #[doc(alias = "NCCL_VERSION_CODE")]
    #[must_use]
    pub const fn from_code(code: u32) -> Self {
        let major_unit = if code < 10_000 { 1_000 } else { 10_000 };
        Self::new(code / major_unit, code % major_unit / 100, code % 100)
    }

    /// Returns the number that `ncclGetVersion` returns for this version. Saturates at `u32::MAX`.
    #[must_use]
    pub const fn code(self) -> u32 {
        let major_unit = if self.major <= 2 && self.minor <= 8 { 1_000 } else { 10_000 };
        let (major, minor) = (self.major.saturating_mul(major_unit), self.minor.saturating_mul(100));
        major.saturating_add(minor).saturating_add(self.patch)
    }

    /// Returns the first version that has `item`, a C function, enum value or field; see [`sys::since`].
    pub(crate) const fn since(item: &str) -> Self {
        match sys::since(item) {
            Some(code) => Self::from_code(code),
            None => Self::HEADER,
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

impl FromStr for Version {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parts: Option<Vec<u32>> = text.split('.').map(|part| part.parse().ok()).collect();
        match parts.as_deref() {
            Some(&[major, minor, patch]) => Ok(Self::new(major, minor, patch)),
            _ => {
                let expected = "expected major.minor.patch, such as 2.32.3";
                Err(ParseError::new(format_args!("{text:?} is not an NCCL version; {expected}")))
            }
        }
    }
}

/// The error returned when text or bytes are not a valid value, such as a [`DataType`](crate::data_type::DataType) or a
/// [`UniqueId`](crate::unique_id::UniqueId).
// Defined here and not in `error`, which imports `Version`.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ParseError(Box<str>);

impl ParseError {
    pub(crate) fn new(problem: impl fmt::Display) -> Self {
        Self(problem.to_string().into())
    }
}

impl fmt::Debug for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
