//! NCCL's data types.

use libnccl::sys::ncclDataType_t;

use crate::diag::error::{Error, Result};

/// Defines the data types in the order of NCCL's numbers: name, NCCL's constant, element size in bytes.
macro_rules! data_types {
    ($($name:ident = $raw:ident: $size:literal,)*) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum DataType {
            $($name = ncclDataType_t::$raw.0 as isize),*
        }

        const NAMES: [&str; ncclDataType_t::ncclNumTypes.0 as usize] = [$(stringify!($raw)),*];

        impl DataType {
            pub(crate) fn new(raw: ncclDataType_t) -> Result<Self> {
                match raw {
                    $(ncclDataType_t::$raw => Ok(Self::$name),)*
                    unknown => Err(Error::argument(format!("invalid ncclDataType_t {}", unknown.0))),
                }
            }

            pub(crate) fn raw(self) -> ncclDataType_t {
                ncclDataType_t(self as u32)
            }

            pub(crate) fn size(self) -> usize {
                match self {
                    $(Self::$name => $size),*
                }
            }
        }
    };
}

data_types! {
    Int8 = ncclInt8: 1,
    Uint8 = ncclUint8: 1,
    Int32 = ncclInt32: 4,
    Uint32 = ncclUint32: 4,
    Int64 = ncclInt64: 8,
    Uint64 = ncclUint64: 8,
    Float16 = ncclFloat16: 2,
    Float32 = ncclFloat32: 4,
    Float64 = ncclFloat64: 8,
    Bfloat16 = ncclBfloat16: 2,
    Float8e4m3 = ncclFloat8e4m3: 1,
    Float8e5m2 = ncclFloat8e5m2: 1,
}

impl DataType {
    /// Returns the size of `count` elements in bytes, or an error if no buffer can be that long.
    pub(crate) fn bytes(self, count: usize) -> Result<usize> {
        self.room(count).ok_or_else(|| {
            let name = self.name();
            Error::argument(format!("count {count} of {name} is more than any buffer holds"))
        })
    }

    /// Checks the count of a collective whose buffers may hold that many elements for each rank.
    pub(crate) fn check_count(self, count: usize, ranks: usize) -> Result {
        match count.checked_mul(ranks).and_then(|all| self.room(all)) {
            Some(_) => Ok(()),
            None => Err(Error::argument(format!(
                "count {count} of {} for each of {ranks} ranks is more than any buffer holds",
                self.name()
            ))),
        }
    }

    /// Returns the size of `count` elements in bytes, or `None` if no buffer can be that long.
    fn room(self, count: usize) -> Option<usize> {
        count.checked_mul(self.size()).filter(|bytes| isize::try_from(*bytes).is_ok())
    }

    fn name(self) -> &'static str {
        NAMES[self.raw().0 as usize]
    }
}

/// Returns NCCL's name of a data type, from the number that a rank published.
pub(crate) fn name(number: u64) -> String {
    let known = usize::try_from(number).ok().and_then(|index| NAMES.get(index));
    known.map_or_else(|| format!("data type {number}"), ToString::to_string)
}
