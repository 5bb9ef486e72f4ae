//! What the CPU implementation wants to reach.

use super::measurement::Cell;
use super::{Operation, Way};

const MIB: u64 = 1 << 20;

/// The most seconds to create a communicator of 8 ranks.
pub(crate) const CREATE: f64 = 0.005;
/// The most seconds to split it.
pub(crate) const SPLIT: f64 = 0.001;
/// The most bytes that a rank of it uses beside its buffers.
pub(crate) const MEMORY: f64 = 4.0 * MIB as f64;

/// How many times as fast as OpenMPI.
pub(crate) fn ratio(way: Way, cell: Cell) -> f64 {
    match (cell.operation, cell.ranks, way) {
        (Operation::AllReduce, 2, Way::NcclMemAlloc) if cell.bytes >= MIB => 2.0,
        (Operation::AllReduce, 2, Way::Threads) if cell.bytes >= MIB => 4.0,
        (Operation::AllReduce, 4, Way::NcclMemAlloc) if cell.bytes >= MIB => 3.0,
        _ => 1.0,
    }
}

/// Bytes that have to be moved at least: each input is read once, and each output written once.
pub(crate) fn moved(cell: Cell) -> u64 {
    let Cell { operation, ranks, bytes } = cell;
    let ranks = u64::from(ranks);
    match operation {
        // All ranks have an input and an output of this size.
        Operation::AllReduce | Operation::AllToAll => 2 * ranks * bytes,
        // One buffer is this large, the other a rank's share of it.
        Operation::AllGather | Operation::ReduceScatter => ranks * bytes + bytes,
        // The root's is read and the others' are written.
        Operation::Broadcast => ranks * bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets() {
        let cell = |operation, ranks, bytes| Cell { operation, ranks, bytes };
        assert_eq!(ratio(Way::NcclMemAlloc, cell(Operation::AllReduce, 2, MIB)), 2.0);
        assert_eq!(ratio(Way::NcclMemAlloc, cell(Operation::AllReduce, 2, MIB - 1)), 1.0);
        assert_eq!(ratio(Way::Malloc, cell(Operation::AllReduce, 4, MIB)), 1.0);
        assert_eq!(ratio(Way::Threads, cell(Operation::Broadcast, 2, MIB)), 1.0);
    }
}
