//! A cache of a few values, for hot paths that often need the same ones.

/// At most `MAX` values, the last added first. Finding a value does not change the order.
pub struct SmallCache<K, V, const MAX: usize>(Vec<(K, V)>);

impl<K: PartialEq, V: Clone, const MAX: usize> SmallCache<K, V, MAX> {
    pub const NONE: Self = Self(Vec::new());

    pub fn find(&self, is_wanted: impl Fn(&K) -> bool) -> Option<V> {
        self.0.iter().find(|(key, _)| is_wanted(key)).map(|(_, value)| value.clone())
    }

    /// Replaces the key's value, or adds it; if the cache is full, the oldest value is dropped.
    pub fn insert(&mut self, key: K, value: V) {
        self.0.retain(|(known, _)| *known != key);
        self.0.truncate(MAX - 1);
        self.0.insert(0, (key, value));
    }
}
