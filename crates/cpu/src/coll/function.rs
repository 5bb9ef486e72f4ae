//! The collective functions. The shape of each is in [`Operation::ALL`], the table of operations; only the way in which
//! ranks divide the work is added here.

use libnccl::{Extent, Operation};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Function {
    AllReduce,
    Broadcast,
    Reduce,
    AllGather,
    ReduceScatter,
    AlltoAll,
    Gather,
    Scatter,
    /// A broadcast in which all ranks share the work. Not a function that a rank can call.
    ScatterAllgather,
}

/// The shape of a collective: who sends and who receives, and how the buffers are divided.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    /// A copy, as every call looks at it.
    pub(super) operation: Operation,
    /// The division of the send buffer, and of the receive buffer.
    pub(super) input: Division,
    pub(super) output: Division,
}

/// The division of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Division {
    /// `count` elements in one part.
    Whole,
    /// `count` elements divided among the ranks.
    Chunks,
    /// `count` elements for each rank.
    Blocks,
}

static SHAPES: [Shape; Function::ALL.len()] = {
    let mut shapes = [Shape::new(Function::AllReduce); Function::ALL.len()];
    let mut number = 0;
    while number < shapes.len() {
        shapes[number] = Shape::new(Function::ALL[number]);
        number += 1;
    }
    shapes
};

impl Function {
    const ALL: [Self; 9] = [
        Self::AllReduce,
        Self::Broadcast,
        Self::Reduce,
        Self::AllGather,
        Self::ReduceScatter,
        Self::AlltoAll,
        Self::Gather,
        Self::Scatter,
        Self::ScatterAllgather,
    ];

    /// Returns the function of a number, if there is one.
    pub(super) fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    pub(super) fn shape(self) -> &'static Shape {
        &SHAPES[self as usize]
    }

    /// Returns the name of NCCL's function.
    pub(crate) fn symbol(self) -> &'static str {
        self.shape().operation.function
    }

    const fn operation(self) -> &'static Operation {
        Operation::of(match self {
            Self::AllReduce => "all_reduce",
            Self::Broadcast | Self::ScatterAllgather => "broadcast",
            Self::Reduce => "reduce",
            Self::AllGather => "all_gather",
            Self::ReduceScatter => "reduce_scatter",
            Self::AlltoAll => "all_to_all",
            Self::Gather => "gather",
            Self::Scatter => "scatter",
        })
    }
}

impl Shape {
    const fn new(function: Function) -> Self {
        let operation = *function.operation();
        // What all ranks reduce, or share the work of, is divided among them where it has no blocks by itself.
        let shares_work = operation.reduces || matches!(function, Function::ScatterAllgather);
        let whole = match (operation.sends, operation.receives) {
            (Extent::Count, Extent::Count) if shares_work => Division::Chunks,
            _ => Division::Whole,
        };
        Self {
            operation,
            input: Division::new(operation.sends, whole),
            output: Division::new(operation.receives, whole),
        }
    }
}

impl Division {
    /// Returns the division of a buffer of `extent`: into blocks, or as `whole` says.
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
        for function in [Function::AllReduce, Function::Reduce, Function::ScatterAllgather] {
            assert_eq!(divisions(function), (Division::Chunks, Division::Chunks));
        }
        assert_eq!(divisions(Function::Broadcast), (Division::Whole, Division::Whole));
        assert_eq!(divisions(Function::ReduceScatter), (Division::Blocks, Division::Whole));
    }

    #[test]
    fn function_has_the_number_of_its_place() {
        for (number, function) in (0..).zip(Function::ALL) {
            assert_eq!((function as u8, Function::from_number(number)), (number, Some(function)));
        }
    }
}
