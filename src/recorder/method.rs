/// An operation that is recorded, by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Method(u8);

/// The elements that a rank sends and receives, from the lengths of its buffers.
#[derive(Debug, Clone, Copy)]
enum Counts {
    /// The length of the first buffer, or of the second.
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

struct Row(&'static str, Counts);

/// The operations; the number of one is its place. Fewer than 64. Those of all ranks, in the same order, come first.
const ROWS: &[Row] = {
    use Counts::*;
    &[
        Row("all_reduce", First),
        Row("all_reduce_in_place", First),
        Row("broadcast", Second),
        Row("broadcast_in_place", First),
        Row("reduce", First),
        Row("reduce_in_place", First),
        Row("all_gather", Gather),
        Row("all_gather_in_place", GatherInPlace),
        Row("reduce_scatter", Scatter),
        Row("reduce_scatter_in_place", ScatterInPlace),
        Row("all_to_all", First),
        Row("gather", Gather),
        Row("gather_in_place", GatherAtRootInPlace),
        Row("scatter", Scatter),
        Row("scatter_in_place", ScatterFromRootInPlace),
        Row("all_gather_v", Both),
        Row("reduce_scatter_v", Both),
        Row("all_to_all_v", Both),
        Row("gather_v", Both),
        Row("scatter_v", Both),
        Row("all_gather_v_in_place", First),
        Row("reduce_scatter_v_in_place", First),
        Row("gather_v_in_place", First),
        Row("scatter_v_in_place", First),
        Row("barrier", One),
        Row("register_window", None),
        Row("send", Send),
        Row("recv", Receive),
        Row("sendrecv", Both),
        Row("put_signal", Send),
        Row("signal", None),
        Row("wait_signal", None),
    ]
};

const FIRST_MESSAGE: Method = Method::of("send");

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

    /// Returns whether the method in these bits is one of messages.
    #[inline(always)]
    pub(super) const fn is_message_in(bits: u64) -> bool {
        Self((bits & Self::BITS) as u8).is_message()
    }

    pub(crate) const fn from_number(number: u8) -> Self {
        Self(number)
    }

    pub(super) fn from_bits(bits: u64) -> Option<Self> {
        let number = (bits & Self::BITS) as u8;
        (usize::from(number) < ROWS.len()).then_some(Self(number))
    }

    #[inline(always)]
    pub(super) const fn bits(self) -> u64 {
        self.0 as u64
    }

    /// Returns `true` for those of the ranks that exchange a message.
    #[inline(always)]
    pub(crate) const fn is_message(self) -> bool {
        self.0 >= FIRST_MESSAGE.0
    }

    pub(crate) const fn name(self) -> &'static str {
        ROWS[self.0 as usize].0
    }

    /// Returns the numbers of elements that the rank sends and receives.
    pub(super) fn counts(self, [first, second]: [u64; 2], size: usize, is_root: bool) -> [u64; 2] {
        let size = size.max(1) as u64;
        let gather = |count: u64| [count, count.saturating_mul(size)];
        let scatter = |count: u64| [count.saturating_mul(size), count];
        match ROWS[usize::from(self.0)].1 {
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
