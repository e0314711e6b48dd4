//! Merges sorted streams.
//!
//! The heap holds the next row of each stream. A caller that takes a row adds the stream's following one, so at most one row of
//! each stream is in memory.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

/// The next row of each stream that has one, in the order of `K`. Among equal rows that of the stream with the lowest number comes
/// first, so the merge is stable.
pub struct Heads<K, T> {
    waiting: BinaryHeap<Reverse<Head<K, T>>>,
    descending: bool,
}

struct Head<K, T> {
    key: K,
    row: T,
    stream: usize,
    descending: bool,
}

impl<K: Ord, T> Heads<K, T> {
    /// For streams that are all sorted ascending, or all `descending`.
    pub fn new(descending: bool) -> Self {
        Self { waiting: BinaryHeap::new(), descending }
    }

    /// Adds the next row of a stream that has none in the heap.
    pub fn push(&mut self, stream: usize, key: K, row: T) {
        self.waiting.push(Reverse(Head { key, row, stream, descending: self.descending }));
    }

    /// Removes the first of all rows, and returns it with its stream.
    pub fn pop(&mut self) -> Option<(usize, T)> {
        self.waiting.pop().map(|Reverse(head)| (head.stream, head.row))
    }
}

impl<K: Ord, T> Ord for Head<K, T> {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_key = if self.descending { other.key.cmp(&self.key) } else { self.key.cmp(&other.key) };
        by_key.then_with(|| self.stream.cmp(&other.stream))
    }
}

impl<K: Ord, T> PartialOrd for Head<K, T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<K: Ord, T> PartialEq for Head<K, T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<K: Ord, T> Eq for Head<K, T> {}

#[cfg(test)]
mod tests {
    use super::*;

    fn merged(descending: bool, streams: &[&[u32]]) -> Vec<(usize, u32)> {
        let mut rest: Vec<_> = streams.iter().map(|rows| rows.iter().copied()).collect();
        let mut heads = Heads::new(descending);
        for (stream, rows) in rest.iter_mut().enumerate() {
            if let Some(row) = rows.next() {
                heads.push(stream, row, row);
            }
        }
        let mut all = Vec::new();
        while let Some((stream, row)) = heads.pop() {
            all.push((stream, row));
            if let Some(row) = rest[stream].next() {
                heads.push(stream, row, row);
            }
        }
        all
    }

    #[test]
    fn rows_come_in_order_and_equal_ones_by_stream() {
        assert_eq!(merged(false, &[&[1, 4, 4], &[], &[0, 4, 9]]), [(2, 0), (0, 1), (0, 4), (0, 4), (2, 4), (2, 9)]);
        assert_eq!(merged(true, &[&[4, 4, 1], &[9, 4, 0]]), [(1, 9), (0, 4), (0, 4), (1, 4), (0, 1), (1, 0)]);
        assert_eq!(merged(true, &[&[], &[]]), []);
    }
}
