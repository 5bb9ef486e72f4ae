/// An operation that is recorded, by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Method(u8);

/// The ranks that call an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// All ranks, in the same order.
    Collective,
    /// The ranks that exchange the message.
    Message,
}

/// The elements that a rank sends and receives, from the lengths of its buffers.
#[derive(Debug, Clone, Copy)]
enum Counts {
    /// As many as the first buffer has, or the second.
    First,
    Second,
    /// So many of each rank are received.
    Gather,
    GatherInPlace,
    GatherAtRootInPlace,
    /// So many for each rank are sent.
    Scatter,
    ScatterInPlace,
    ScatterFromRootInPlace,
    Send,
    Receive,
    /// The lengths of the two buffers.
    Both,
    One,
    None,
}

struct Row(&'static str, Kind, Counts);

/// The operations; the number of one is its place. Fewer than 64.
const ROWS: &[Row] = {
    use Counts::*;
    use Kind::*;
    &[
        Row("all_reduce", Collective, First),
        Row("all_reduce_in_place", Collective, First),
        Row("broadcast", Collective, Second),
        Row("broadcast_in_place", Collective, First),
        Row("reduce", Collective, First),
        Row("reduce_in_place", Collective, First),
        Row("all_gather", Collective, Gather),
        Row("all_gather_in_place", Collective, GatherInPlace),
        Row("reduce_scatter", Collective, Scatter),
        Row("reduce_scatter_in_place", Collective, ScatterInPlace),
        Row("all_to_all", Collective, First),
        Row("gather", Collective, Gather),
        Row("gather_in_place", Collective, GatherAtRootInPlace),
        Row("scatter", Collective, Scatter),
        Row("scatter_in_place", Collective, ScatterFromRootInPlace),
        Row("all_gather_v", Collective, Both),
        Row("reduce_scatter_v", Collective, Both),
        Row("all_to_all_v", Collective, Both),
        Row("gather_v", Collective, Both),
        Row("scatter_v", Collective, Both),
        Row("barrier", Collective, One),
        Row("register_window", Collective, None),
        Row("send", Message, Send),
        Row("recv", Message, Receive),
        Row("sendrecv", Message, Both),
        Row("put_signal", Message, Send),
        Row("signal", Message, None),
        Row("wait_signal", Message, None),
    ]
};

impl Method {
    /// The bits that a method takes.
    pub(super) const BITS: u64 = 63;

    /// Returns the method of this name; evaluated by the compiler, which fails if there is none.
    pub(crate) const fn of(name: &str) -> Self {
        let mut number = 0;
        while number < ROWS.len() {
            if is_equal(ROWS[number].0, name) {
                return Self(number as u8);
            }
            number += 1;
        }
        panic!("the operation is not in the table of those that are recorded");
    }

    pub(super) fn from_bits(bits: u64) -> Option<Self> {
        let number = (bits & Self::BITS) as u8;
        (usize::from(number) < ROWS.len()).then_some(Self(number))
    }

    #[inline(always)]
    pub(super) const fn bits(self) -> u64 {
        self.0 as u64
    }

    #[inline(always)]
    pub(crate) const fn is_message(self) -> bool {
        matches!(ROWS[self.0 as usize].1, Kind::Message)
    }

    pub(crate) const fn name(self) -> &'static str {
        ROWS[self.0 as usize].0
    }

    /// Returns the numbers of elements that the rank sends and receives.
    pub(super) fn counts(self, [first, second]: [u64; 2], size: usize, is_root: bool) -> [u64; 2] {
        let size = size.max(1) as u64;
        let gather = |count: u64| [count, count.saturating_mul(size)];
        let scatter = |count: u64| [count.saturating_mul(size), count];
        match ROWS[usize::from(self.0)].2 {
            Counts::First => [first; 2],
            Counts::Second => [second; 2],
            Counts::Gather => gather(first),
            Counts::GatherInPlace => [first / size, first],
            Counts::GatherAtRootInPlace if is_root => [first / size, first],
            Counts::GatherAtRootInPlace => gather(first),
            Counts::Scatter => scatter(second),
            Counts::ScatterInPlace => [first, first / size],
            Counts::ScatterFromRootInPlace if is_root => [first, first / size],
            Counts::ScatterFromRootInPlace => scatter(first),
            Counts::Send => [first, 0],
            Counts::Receive => [0, first],
            Counts::Both => [first, second],
            Counts::One => [1; 2],
            Counts::None => [0; 2],
        }
    }
}

const fn is_equal(one: &str, other: &str) -> bool {
    let (one, other) = (one.as_bytes(), other.as_bytes());
    let mut at = 0;
    while at < one.len() && at < other.len() && one[at] == other[at] {
        at += 1;
    }
    at == one.len() && at == other.len()
}

#[cfg(test)]
mod tests {
    use super::{Method, ROWS};

    #[test]
    fn names_differ_and_fit_their_bits() {
        assert!(ROWS.len() <= Method::BITS as usize);
        for row in ROWS {
            assert_eq!(Method::of(row.0).name(), row.0);
        }
    }

    #[test]
    fn counts_are_those_of_the_operation_and_not_of_longer_buffers() {
        let counts = |name, lengths, is_root| Method::of(name).counts(lengths, 4, is_root);
        assert_eq!(counts("all_reduce", [3, 9], false), [3, 3]);
        assert_eq!(counts("broadcast", [0, 3], false), [3, 3]);
        assert_eq!(counts("all_gather", [3, 99], false), [3, 12]);
        assert_eq!(counts("all_gather_in_place", [12, 0], false), [3, 12]);
        assert_eq!(counts("reduce_scatter", [99, 3], false), [12, 3]);
        assert_eq!(counts("gather_in_place", [12, 0], true), counts("gather_in_place", [3, 0], false));
        assert_eq!(counts("scatter_in_place", [12, 0], true), counts("scatter_in_place", [3, 0], false));
        assert_eq!(counts("send", [3, 0], false), [3, 0]);
        assert_eq!(counts("recv", [3, 0], false), [0, 3]);
        assert_eq!(counts("barrier", [30, 0], false), [1, 1]);
    }
}
