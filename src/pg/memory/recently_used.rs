//! The last few things that a session has made or found, for hot paths that ask for the same again and again.

/// At most so many values, each with what it was made of, the newest first.
pub struct RecentlyUsed<K, V, const MOST: usize>(Vec<(K, V)>);

impl<K: PartialEq, V: Clone, const MOST: usize> RecentlyUsed<K, V, MOST> {
    /// None yet.
    pub const NONE: Self = Self(Vec::new());

    /// The value of the key of which this holds.
    pub fn find(&self, is_it: impl Fn(&K) -> bool) -> Option<V> {
        self.0.iter().find(|(key, _)| is_it(key)).map(|(_, value)| value.clone())
    }

    /// Keeps a value instead of the key's last one, or of the oldest where there is no room.
    pub fn keep(&mut self, key: K, value: V) {
        self.0.retain(|(known, _)| *known != key);
        self.0.truncate(MOST - 1);
        self.0.insert(0, (key, value));
    }
}
