use std::ffi::c_char;
use std::fmt;
use std::str::FromStr;

use crate::error::ParseError;
use crate::sys;

/// The id that the ranks of a new communicator use to find each other: 128 opaque bytes.
///
/// One rank creates it with [`Nccl::unique_id`](crate::nccl::Nccl::unique_id) and sends it to the others, for instance in a file,
/// through a socket or in an environment variable. Its [`Display`](fmt::Display) form is 256 hexadecimal digits. The process that
/// created it must live until all ranks have joined.
///
/// ```
/// use libnccl::UniqueId;
///
/// let id = libnccl_cpu::nccl().unique_id()?;
/// assert_eq!(UniqueId::from_bytes(*id.as_bytes()), id);
/// assert_eq!(id.to_string().parse(), Ok(id));
/// assert!("abc".parse::<UniqueId>().is_err());
/// # Ok::<(), libnccl::Error>(())
/// ```
#[doc(alias = "ncclUniqueId")]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct UniqueId([u8; Self::BYTES]);

impl UniqueId {
    /// The size of an id in bytes.
    #[doc(alias = "NCCL_UNIQUE_ID_BYTES")]
    pub const BYTES: usize = sys::NCCL_UNIQUE_ID_BYTES as usize;

    /// Creates an id from bytes that another rank sent.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        Self(bytes)
    }

    /// Returns the bytes of the id, to send to the other ranks.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; Self::BYTES] {
        &self.0
    }

    /// Creates an id from an array of C characters, for instance from the crate cudarc: `UniqueId::from_c_chars(*id.internal())`.
    #[must_use]
    pub fn from_c_chars(chars: [c_char; Self::BYTES]) -> Self {
        Self(chars.map(|char| char.to_ne_bytes()[0]))
    }

    /// Returns the id as an array of C characters, for instance for the crate cudarc: `Id::uninit(id.to_c_chars())`.
    #[must_use]
    pub fn to_c_chars(self) -> [c_char; Self::BYTES] {
        self.0.map(|byte| c_char::from_ne_bytes([byte]))
    }

    pub(crate) fn from_raw(raw: sys::ncclUniqueId) -> Self {
        Self::from_c_chars(raw.internal)
    }

    pub(crate) fn to_raw(self) -> sys::ncclUniqueId {
        sys::ncclUniqueId { internal: self.to_c_chars() }
    }
}

impl From<[u8; UniqueId::BYTES]> for UniqueId {
    fn from(bytes: [u8; Self::BYTES]) -> Self {
        Self(bytes)
    }
}

impl AsRef<[u8]> for UniqueId {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// Writes 256 hexadecimal digits.
impl fmt::Display for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Writes the first digits only, because an id is a secret and logs are often public.
impl fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UniqueId({:02x}{:02x}..)", self.0[0], self.0[1])
    }
}

fn wrong_length(found: usize) -> ParseError {
    ParseError::new(format_args!("a unique id has {} bytes; {found} were given", UniqueId::BYTES))
}

impl TryFrom<&[u8]> for UniqueId {
    type Error = ParseError;

    fn try_from(bytes: &[u8]) -> Result<Self, Self::Error> {
        bytes.try_into().map(Self).map_err(|_| wrong_length(bytes.len()))
    }
}

impl FromStr for UniqueId {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let expected = "a unique id is written in 256 hexadecimal digits";
        let digit = |(position, found): (usize, char)| {
            found
                .to_digit(16)
                .map(|digit| digit as u8)
                .ok_or_else(|| ParseError::new(format_args!("{expected}; character {position} is {found:?}")))
        };
        let digits = text.chars().enumerate().map(digit).collect::<Result<Vec<u8>, _>>()?;
        if digits.len() != 2 * Self::BYTES {
            return Err(ParseError::new(format_args!("{expected}; {} were given", digits.len())));
        }
        let mut id = [0; Self::BYTES];
        for (byte, pair) in id.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = pair[0] << 4 | pair[1];
        }
        Ok(Self(id))
    }
}

/// Serializes the id as a string: its `Display` form.
#[cfg(feature = "serde")]
impl serde::Serialize for UniqueId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for UniqueId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;

        impl serde::de::Visitor<'_> for Visitor {
            type Value = UniqueId;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a unique id of {} hexadecimal digits", 2 * UniqueId::BYTES)
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<UniqueId, E> {
                text.parse().map_err(E::custom)
            }
        }

        deserializer.deserialize_str(Visitor)
    }
}
