//! The CPU backend's performance targets.

use super::configuration::Setup;
use super::measurement::Cell;
use super::operation::Operation;

const MIB: u64 = 1 << 20;

/// The target for creating a communicator of 8 ranks, in seconds.
pub(crate) const CREATE: f64 = 0.005;
/// The target for splitting that communicator, in seconds.
pub(crate) const SPLIT: f64 = 0.001;
/// The target for the memory that a rank of it uses beyond its buffers, in bytes.
pub(crate) const MEMORY: f64 = 4.0 * MIB as f64;

/// The target for the fastest library's time divided by ours, where OpenMPI's peers were measured too.
pub(crate) const WITH_PEERS: f64 = 1.0;

/// Returns the target for OpenMPI's time divided by ours.
pub(crate) fn ratio(setup: Setup, cell: Cell) -> f64 {
    match (cell.operation, cell.ranks, setup) {
        (Operation::AllReduce, 2, Setup::NcclMemAlloc) if cell.bytes >= MIB => 2.0,
        (Operation::AllReduce, 2, Setup::Threads) if cell.bytes >= MIB => 4.0,
        (Operation::AllReduce, 4, Setup::NcclMemAlloc) if cell.bytes >= MIB => 3.0,
        _ => 1.0,
    }
}

/// Returns the least number of bytes to move: each input is read once, and each output written once.
pub(crate) fn min_bytes_moved(cell: Cell) -> u64 {
    let Cell { operation, ranks, bytes } = cell;
    let ranks = u64::from(ranks);
    match operation {
        // All ranks have an input and an output of this size.
        Operation::AllReduce | Operation::AllToAll => 2 * ranks * bytes,
        // One buffer has this size, the other is a rank's share of it.
        Operation::AllGather | Operation::ReduceScatter => ranks * bytes + bytes,
        // The root's buffer is read, the others' are written.
        Operation::Broadcast => ranks * bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratio_depends_on_operation_ranks_setup_and_size() {
        let cell = |operation, ranks, bytes| Cell { operation, ranks, bytes };
        assert_eq!(ratio(Setup::NcclMemAlloc, cell(Operation::AllReduce, 2, MIB)), 2.0);
        assert_eq!(ratio(Setup::NcclMemAlloc, cell(Operation::AllReduce, 2, MIB - 1)), 1.0);
        assert_eq!(ratio(Setup::Malloc, cell(Operation::AllReduce, 4, MIB)), 1.0);
        assert_eq!(ratio(Setup::Threads, cell(Operation::Broadcast, 2, MIB)), 1.0);
    }
}
