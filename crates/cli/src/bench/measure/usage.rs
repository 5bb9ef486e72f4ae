use std::fmt;

use serde::{Deserialize, Serialize};

/// The memory of a GPU that a run used, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Usage {
    pub(crate) initialization: i64,
    pub(crate) buffers: i64,
    pub(crate) operations: i64,
}

impl Usage {
    /// Returns the larger of both for each purpose.
    pub(crate) fn max(self, other: Self) -> Self {
        Self {
            initialization: self.initialization.max(other.initialization),
            buffers: self.buffers.max(other.buffers),
            operations: self.operations.max(other.operations),
        }
    }
}

/// Has the format of nccl-tests.
impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { initialization, buffers, operations } = *self;
        let total = Size(initialization + buffers + operations);
        let [initialization, buffers, operations] = [initialization, buffers, operations].map(Size);
        write!(
            f,
            "Initialization {initialization} | User-Allocated {buffers} | Collective {operations} | Total  {total}"
        )
    }
}

/// A number of bytes, with three digits and a unit of 1024.
struct Size(i64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mut amount, mut unit) = (self.0 as f64, "B");
        for larger in ["KB", "MB", "GB"] {
            if amount.abs() >= 1024.0 {
                (amount, unit) = (amount / 1024.0, larger);
            }
        }
        let decimals = match amount.abs() {
            ..10.0 => 2,
            ..100.0 => 1,
            _ => 0,
        };
        write!(f, "{amount:.decimals$} {unit}")
    }
}

#[cfg(test)]
mod tests {
    use super::Usage;

    #[test]
    fn usage_has_the_format_of_nccl_tests() {
        let usage = Usage { initialization: 300 << 20, buffers: 2 << 30, operations: 1536 };
        let expected = "Initialization 300 MB | User-Allocated 2.00 GB | Collective 1.50 KB | Total  2.29 GB";
        assert_eq!(usage.to_string(), expected);
        let usage = Usage { initialization: 0, buffers: 50 << 10, operations: -(20 << 10) };
        let expected =
            "Initialization 0.00 B | User-Allocated 50.0 KB | Collective -20.0 KB | Total  30.0 KB";
        assert_eq!(usage.to_string(), expected);
    }
}
