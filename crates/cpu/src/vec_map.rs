//! A map of few entries. A type of the standard library's takes ten times as long to compile; adding and removing take longer
//! here, the more entries there are.

use std::mem;
use std::ops::Deref;

/// A map in a vector in the order of the keys.
#[derive(Debug, PartialEq)]
pub(crate) struct VecMap<K, V>(pub(crate) Vec<(K, V)>);

impl<K: Ord, V> VecMap<K, V> {
    pub(crate) const fn new() -> Self {
        Self(Vec::new())
    }

    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        self.find(key).ok().map(|at| &self.0[at].1)
    }

    pub(crate) fn get_or_insert_with(&mut self, key: K, value: impl FnOnce() -> V) -> &mut V {
        let at = self.find(&key).unwrap_or_else(|at| {
            self.0.insert(at, (key, value()));
            at
        });
        &mut self.0[at].1
    }

    /// Returns the value that the key had.
    pub(crate) fn insert(&mut self, key: K, value: V) -> Option<V> {
        match self.find(&key) {
            Ok(at) => Some(mem::replace(&mut self.0[at].1, value)),
            Err(at) => {
                self.0.insert(at, (key, value));
                None
            }
        }
    }

    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        self.find(key).ok().map(|at| self.0.remove(at).1)
    }

    fn find(&self, key: &K) -> Result<usize, usize> {
        self.0.binary_search_by(|(known, _)| known.cmp(key))
    }
}

impl<K: Ord, V> Default for VecMap<K, V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K, V> Deref for VecMap<K, V> {
    type Target = [(K, V)];

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::VecMap;

    #[test]
    fn entries_are_in_the_order_of_their_keys_and_replaced() {
        let mut map = VecMap::new();
        for (key, value) in [(3, "c"), (1, "a"), (2, "b"), (4, "d")] {
            assert_eq!(map.insert(key, value), None, "{key}");
        }
        assert_eq!(map.insert(2, "B"), Some("b"));
        assert_eq!((map.remove(&3), map.remove(&3)), (Some("c"), None));
        assert_eq!(*map.get_or_insert_with(4, || unreachable!("it is there")), "d");
        *map.get_or_insert_with(0, || "") = "z";
        assert_eq!((map.get(&1), map.get(&5)), (Some(&"a"), None));
        assert_eq!(map[..], [(0, "z"), (1, "a"), (2, "B"), (4, "d")]);
    }
}
