//! NCCL's data types.

use libnccl::sys::ncclDataType_t;

use crate::failure::{Failure, Result};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DataType {
    Int8,
    Uint8,
    Int32,
    Uint32,
    Int64,
    Uint64,
    Float16,
    Float32,
    Float64,
    Bfloat16,
    Float8e4m3,
    Float8e5m2,
}

/// NCCL's names, by number.
const NAMES: [&str; ncclDataType_t::ncclNumTypes.0 as usize] = [
    "ncclInt8",
    "ncclUint8",
    "ncclInt32",
    "ncclUint32",
    "ncclInt64",
    "ncclUint64",
    "ncclFloat16",
    "ncclFloat32",
    "ncclFloat64",
    "ncclBfloat16",
    "ncclFloat8e4m3",
    "ncclFloat8e5m2",
];

impl DataType {
    pub(crate) fn new(raw: ncclDataType_t) -> Result<Self> {
        Ok(match raw {
            ncclDataType_t::ncclInt8 => Self::Int8,
            ncclDataType_t::ncclUint8 => Self::Uint8,
            ncclDataType_t::ncclInt32 => Self::Int32,
            ncclDataType_t::ncclUint32 => Self::Uint32,
            ncclDataType_t::ncclInt64 => Self::Int64,
            ncclDataType_t::ncclUint64 => Self::Uint64,
            ncclDataType_t::ncclFloat16 => Self::Float16,
            ncclDataType_t::ncclFloat32 => Self::Float32,
            ncclDataType_t::ncclFloat64 => Self::Float64,
            ncclDataType_t::ncclBfloat16 => Self::Bfloat16,
            ncclDataType_t::ncclFloat8e4m3 => Self::Float8e4m3,
            ncclDataType_t::ncclFloat8e5m2 => Self::Float8e5m2,
            unknown => return Err(Failure::argument(format!("invalid data type {}", unknown.0))),
        })
    }

    pub(crate) fn raw(self) -> ncclDataType_t {
        match self {
            Self::Int8 => ncclDataType_t::ncclInt8,
            Self::Uint8 => ncclDataType_t::ncclUint8,
            Self::Int32 => ncclDataType_t::ncclInt32,
            Self::Uint32 => ncclDataType_t::ncclUint32,
            Self::Int64 => ncclDataType_t::ncclInt64,
            Self::Uint64 => ncclDataType_t::ncclUint64,
            Self::Float16 => ncclDataType_t::ncclFloat16,
            Self::Float32 => ncclDataType_t::ncclFloat32,
            Self::Float64 => ncclDataType_t::ncclFloat64,
            Self::Bfloat16 => ncclDataType_t::ncclBfloat16,
            Self::Float8e4m3 => ncclDataType_t::ncclFloat8e4m3,
            Self::Float8e5m2 => ncclDataType_t::ncclFloat8e5m2,
        }
    }

    pub(crate) fn size(self) -> usize {
        match self {
            Self::Int8 | Self::Uint8 | Self::Float8e4m3 | Self::Float8e5m2 => 1,
            Self::Float16 | Self::Bfloat16 => 2,
            Self::Int32 | Self::Uint32 | Self::Float32 => 4,
            Self::Int64 | Self::Uint64 | Self::Float64 => 8,
        }
    }

    /// How many bytes `count` elements take, if any buffer can be that long.
    pub(crate) fn bytes(self, count: usize) -> Result<usize> {
        count
            .checked_mul(self.size())
            .filter(|bytes| isize::try_from(*bytes).is_ok())
            .ok_or_else(|| Failure::argument(format!("count {count} is more than any buffer holds")))
    }
}

/// NCCL's name of a data type that another rank named by number.
pub(crate) fn name(number: u64) -> String {
    let known = usize::try_from(number).ok().and_then(|index| NAMES.get(index));
    known.map_or_else(|| format!("data type {number}"), ToString::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;
    use libnccl::sys::ncclResult_t;

    #[test]
    fn every_number_is_a_type_or_the_right_error() {
        for number in 0..20 {
            match DataType::new(ncclDataType_t(number)) {
                Ok(data_type) => assert_eq!((data_type.raw().0, number < 12), (number, true)),
                Err(failure) => {
                    assert_eq!((failure.code, number < 12), (ncclResult_t::ncclInvalidArgument, false));
                }
            }
        }
    }

    #[test]
    fn every_type_has_nccls_size() {
        let sizes = (0..12).map(|number| DataType::new(ncclDataType_t(number)).unwrap().size());
        assert_eq!(sizes.collect::<Vec<_>>(), [1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1]);
    }

    #[test]
    fn impossible_counts_are_refused() {
        assert_eq!(DataType::Int32.bytes(3).unwrap(), 12);
        assert!(DataType::Int8.bytes(usize::MAX).is_err());
        assert!(DataType::Int64.bytes(usize::MAX / 8).is_err());
    }
}
