//! The counters of a rank: for each collective, the number that it has launched.

use std::collections::BTreeMap;

/// The numbers by the collectives' names. Of one that is not there, the number is unknown.
pub(super) type Counters = BTreeMap<String, u64>;

/// Returns, for two ranks that made the same calls in the same order, which collectives one of them has more of and which
/// less, with the differences. If both are not empty, they made other calls: one of two beginnings of a sequence has
/// nothing more than the other.
pub(super) fn compare(one: &Counters, other: &Counters) -> [BTreeMap<String, u64>; 2] {
    let mut differences = [BTreeMap::new(), BTreeMap::new()];
    for (name, a) in one {
        if let Some(b) = other.get(name).filter(|b| *b != a) {
            differences[usize::from(a < b)].insert(name.clone(), a.abs_diff(*b));
        }
    }
    differences
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compare_returns_more_and_less_of_what_both_have() {
        let counters =
            |all: &[(&str, u64)]| all.iter().map(|(name, number)| ((*name).to_owned(), *number)).collect();
        let (one, other) =
            (counters(&[("A", 3), ("B", 1), ("C", 1)]), counters(&[("A", 4), ("B", 0), ("D", 1)]));
        assert_eq!(compare(&one, &other), [counters(&[("B", 1)]), counters(&[("A", 1)])]);
        assert_eq!(compare(&one, &one), [BTreeMap::new(), BTreeMap::new()]);
    }
}
