//! The collective functions, and the shape of each: who sends, who receives, and how the buffers are divided.

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

/// The shape of a collective.
pub(super) struct Shape {
    pub(super) name: &'static str,
    pub(super) root: Root,
    /// The division of the send buffer, and of the receive buffer.
    pub(super) input: Division,
    pub(super) output: Division,
    pub(super) reduces: bool,
}

/// The role of the root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Root {
    None,
    /// Only the root sends.
    Sends,
    /// Only the root receives.
    Receives,
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

const SHAPES: [Shape; 9] = {
    use Division::{Blocks, Chunks, Whole};
    const fn shape(
        name: &'static str,
        root: Root,
        input: Division,
        output: Division,
        reduces: bool,
    ) -> Shape {
        Shape { name, root, input, output, reduces }
    }
    [
        shape("ncclAllReduce", Root::None, Chunks, Chunks, true),
        shape("ncclBroadcast", Root::Sends, Whole, Whole, false),
        shape("ncclReduce", Root::Receives, Chunks, Chunks, true),
        shape("ncclAllGather", Root::None, Whole, Blocks, false),
        shape("ncclReduceScatter", Root::None, Blocks, Whole, true),
        shape("ncclAlltoAll", Root::None, Blocks, Blocks, false),
        shape("ncclGather", Root::Receives, Whole, Blocks, false),
        shape("ncclScatter", Root::Sends, Blocks, Whole, false),
        shape("ncclBroadcast", Root::Sends, Chunks, Chunks, false),
    ]
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

    /// Returns NCCL's name.
    pub(crate) fn name(self) -> &'static str {
        self.shape().name
    }
}
