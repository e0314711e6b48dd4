//! A cache of a few values, for hot paths that often need the same ones.

/// At most `MOST` values, the last added first. Finding a value does not change the order.
pub struct SmallCache<K, V, const MOST: usize>(Vec<(K, V)>);

impl<K: PartialEq, V: Clone, const MOST: usize> SmallCache<K, V, MOST> {
    pub const NONE: Self = Self(Vec::new());

    pub fn find(&self, is_wanted: impl Fn(&K) -> bool) -> Option<V> {
        self.0.iter().find(|(key, _)| is_wanted(key)).map(|(_, value)| value.clone())
    }

    /// Replaces the key's value, or the oldest one if there is no room.
    pub fn insert(&mut self, key: K, value: V) {
        self.0.retain(|(known, _)| *known != key);
        self.0.truncate(MOST - 1);
        self.0.insert(0, (key, value));
    }
}
