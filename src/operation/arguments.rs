use super::signal::{Signal, WaitSignal};
use super::window_offset::{Target, WindowOffset};
use crate::backend::Library;
use crate::{DataType, Element, Error, InvalidArgumentKind, ReduceOp, Result, sys};

/// The arguments of an operation beside its buffers and its stream. Each method is named for the argument that it sets.
#[derive(Clone, Copy)]
pub(super) struct Arguments<'a> {
    pub(super) operator: Operator,
    /// The root or the other rank; of an exchange, the destination and the source.
    pub(super) ranks: [Option<usize>; 2],
    /// For each rank, the counts of what is sent, and of what is received.
    pub(super) counts: [&'a [usize]; 2],
    pub(super) signal: Signal,
    pub(super) signals: &'a [WaitSignal],
    pub(super) target: Option<Target<'a>>,
}

#[derive(Clone, Copy)]
pub(super) enum Operator {
    BuiltIn(ReduceOp),
    /// Created for a communicator and an element type.
    Custom(sys::ncclRedOp_t, DataType),
}

impl Operator {
    #[inline(always)]
    pub(super) fn as_raw(self) -> sys::ncclRedOp_t {
        match self {
            Self::BuiltIn(op) => op.as_raw(),
            Self::Custom(raw, _) => raw,
        }
    }

    #[inline(always)]
    pub(super) fn require(self, library: &Library) -> Result<()> {
        match self {
            Self::BuiltIn(op) => op.require(library),
            Self::Custom(..) => Ok(()),
        }
    }

    /// Returns an error if it was created for another type than that of a buffer's elements.
    pub(super) fn check_data_type(self, call: &'static str, found: DataType) -> Result<()> {
        match self {
            Self::Custom(_, reduced) if reduced != found => {
                let problem =
                    format!("the elements of the buffer are {found}, and the reduction is of {reduced}");
                Err(Error::argument(call, InvalidArgumentKind::DataType, problem))
            }
            _ => Ok(()),
        }
    }
}

impl<'a> Arguments<'a> {
    pub(super) const NONE: Self = Self {
        // That of a barrier, of which no element overflows.
        operator: Operator::BuiltIn(ReduceOp::Max),
        ranks: [None; 2],
        counts: [&[]; 2],
        signal: Signal { index: 0, context: 0 },
        signals: &[],
        target: None,
    };

    #[inline(always)]
    pub(super) fn op(self, op: ReduceOp) -> Self {
        self.operator(Operator::BuiltIn(op))
    }

    #[inline(always)]
    pub(super) fn operator(self, operator: Operator) -> Self {
        Self { operator, ..self }
    }

    #[inline(always)]
    pub(super) fn root(self, root: usize) -> Self {
        Self { ranks: [Some(root), None], ..self }
    }

    #[inline(always)]
    pub(super) fn peer(self, peer: usize) -> Self {
        Self { ranks: [Some(peer), None], ..self }
    }

    #[inline(always)]
    pub(super) fn destination(self, destination: usize) -> Self {
        let [_, source] = self.ranks;
        Self { ranks: [Some(destination), source], ..self }
    }

    #[inline(always)]
    pub(super) fn source(self, source: usize) -> Self {
        let [destination, _] = self.ranks;
        Self { ranks: [destination, Some(source)], ..self }
    }

    #[inline(always)]
    pub(super) fn counts(self, counts: &'a [usize]) -> Self {
        Self { counts: [counts; 2], ..self }
    }

    #[inline(always)]
    pub(super) fn send_counts(self, counts: &'a [usize]) -> Self {
        let [_, received] = self.counts;
        Self { counts: [counts, received], ..self }
    }

    #[inline(always)]
    pub(super) fn recv_counts(self, counts: &'a [usize]) -> Self {
        let [sent, _] = self.counts;
        Self { counts: [sent, counts], ..self }
    }

    #[inline(always)]
    pub(super) fn signal(self, signal: Signal) -> Self {
        Self { signal, ..self }
    }

    #[inline(always)]
    pub(super) fn signals(self, signals: &'a [WaitSignal]) -> Self {
        Self { signals, ..self }
    }

    #[inline(always)]
    pub(super) fn target<T: Element>(self, target: WindowOffset<'a, T>) -> Self {
        Self { target: Some(target.target), ..self }
    }
}
