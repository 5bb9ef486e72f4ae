//! The collective functions. Their shapes come from the operation table, [`Operation::ALL`]. Only the division of the work among the ranks
//! is added here.

use std::fmt;

use libnccl::observer::{Extent, Operation};

/// A collective function of NCCL with a single count.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Function {
    number: u8,
}

/// The shape of a collective: which ranks send and receive, and how the buffers are divided.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    /// A copy, because every call reads it.
    pub(super) operation: Operation,
    /// Divisions of the send buffer and the receive buffer.
    pub(super) input: Division,
    pub(super) output: Division,
}

/// How a buffer is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Division {
    /// `count` elements, not divided.
    Whole,
    /// `count` elements divided among the ranks.
    Chunks,
    /// `count` elements for each rank.
    Blocks,
}

/// Number of functions that a rank can call.
const FUNCTIONS: usize = functions_before(Operation::ALL.len());

/// The shapes of the functions in the order of their operations, followed by [`Function::SCATTER_ALLGATHER`].
static SHAPES: [Shape; FUNCTIONS + 1] = {
    let mut shapes = [Shape::new(Operation::of("broadcast"), true); FUNCTIONS + 1];
    let mut number = 0;
    while number < Operation::ALL.len() {
        let operation = &Operation::ALL[number];
        if is_function(operation) {
            shapes[functions_before(number)] = Shape::new(operation, operation.reduces);
        }
        number += 1;
    }
    shapes
};

/// Returns the number of operations before `place` in the table that are functions.
const fn functions_before(place: usize) -> usize {
    let (mut number, mut functions) = (0, 0);
    while number < place {
        functions += is_function(&Operation::ALL[number]) as usize;
        number += 1;
    }
    functions
}

/// Returns whether the operation is a single call of a function that all ranks call with the same count.
const fn is_function(operation: &Operation) -> bool {
    let has_one_count = matches!(
        (operation.sends, operation.receives),
        (Extent::Count | Extent::CountPerRank, Extent::Count | Extent::CountPerRank)
    );
    has_one_count && !operation.is_in_place && !operation.is_point_to_point()
}

impl Function {
    pub(crate) const ALL_REDUCE: Self = Self::named("all_reduce");
    /// A broadcast whose work is split among all ranks. Ranks cannot call it.
    pub(super) const SCATTER_ALLGATHER: Self = Self { number: FUNCTIONS as u8 };

    /// Returns the function of the operation named `name`.
    pub(crate) const fn named(name: &str) -> Self {
        let operation = Operation::of(name);
        assert!(is_function(operation));
        Self { number: functions_before(operation.number()) as u8 }
    }

    /// Returns the function with this number, if any.
    pub(super) fn from_number(number: u8) -> Option<Self> {
        (usize::from(number) < SHAPES.len()).then_some(Self { number })
    }

    /// Returns the number, which identifies the same function on all ranks.
    pub(crate) fn number(self) -> u8 {
        self.number
    }

    #[inline]
    pub(super) fn shape(self) -> &'static Shape {
        &SHAPES[usize::from(self.number)]
    }

    /// Returns the name of the NCCL function.
    pub(crate) fn symbol(self) -> &'static str {
        self.shape().operation.function
    }
}

impl fmt::Debug for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.symbol())
    }
}

impl Shape {
    /// Returns the shape of an operation. If ranks share the work and neither buffer has blocks, the buffers are divided among the ranks.
    const fn new(operation: &Operation, shares_work: bool) -> Self {
        let whole = match (operation.sends, operation.receives) {
            (Extent::Count, Extent::Count) if shares_work => Division::Chunks,
            _ => Division::Whole,
        };
        Self {
            operation: *operation,
            input: Division::new(operation.sends, whole),
            output: Division::new(operation.receives, whole),
        }
    }
}

impl Division {
    /// Returns `Blocks` for [`Extent::CountPerRank`], and `whole` otherwise.
    const fn new(extent: Extent, whole: Self) -> Self {
        if matches!(extent, Extent::CountPerRank) { Self::Blocks } else { whole }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_on_whole_buffers_is_divided_where_ranks_reduce_or_share_it() {
        let divisions = |function: Function| (function.shape().input, function.shape().output);
        for function in [Function::ALL_REDUCE, Function::named("reduce"), Function::SCATTER_ALLGATHER] {
            assert_eq!(divisions(function), (Division::Chunks, Division::Chunks));
        }
        assert_eq!(divisions(Function::named("broadcast")), (Division::Whole, Division::Whole));
        assert_eq!(divisions(Function::named("reduce_scatter")), (Division::Blocks, Division::Whole));
    }

    #[test]
    fn functions_have_the_numbers_of_their_places() {
        let functions: Vec<_> = (0..).map_while(Function::from_number).collect();
        assert_eq!(functions.last(), Some(&Function::SCATTER_ALLGATHER));
        for function in &functions[..FUNCTIONS] {
            assert_eq!(Function::named(function.shape().operation.name), *function);
        }
        let names: Vec<_> = functions.iter().map(|function| function.symbol()).collect();
        // Ranks from other builds of this library use these numbers.
        let oldest = ["ncclAllReduce", "ncclBroadcast", "ncclReduce", "ncclAllGather", "ncclReduceScatter"];
        assert_eq!(names[..5], oldest);
    }
}
