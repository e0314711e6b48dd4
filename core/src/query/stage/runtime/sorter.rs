//! The trait by which stages sort rows, and a sorter in memory. With a limit, the sorter in memory keeps only the first rows, and copies
//! no others. So a bounded sort of many documents costs little more than computing their keys.

use crate::budget;
use crate::error::Result;
use std::collections::BinaryHeap;

/// Sorts rows by the bytes of their keys; rows with equal keys come in any order. The implementation bounds its memory.
///
/// INVARIANT: no key is a proper prefix of another key of the same sorter.
pub trait Sorter {
    /// Adds a row; not after [`sort`](Self::sort).
    ///
    /// # Errors
    /// Those of the implementation.
    fn add(&mut self, key: &[u8], value: &[u8]) -> Result<()>;

    /// Sorts the rows, and moves before the first one. A [`rereadable`](super::stream::Memory::sorter) sorter can be sorted again, to
    /// read the rows from the beginning.
    ///
    /// # Errors
    /// Those of the implementation.
    fn sort(&mut self) -> Result<()>;

    /// Moves on to the next row; false if there is none.
    ///
    /// # Errors
    /// Those of the implementation.
    fn advance(&mut self) -> Result<bool>;

    /// The row's key.
    fn key(&self) -> &[u8];

    /// The row's value.
    fn value(&self) -> &[u8];
}

/// A row: ordered by its key, then by when it was added.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct SortRow {
    key: Vec<u8>,
    number: u64,
    value: Vec<u8>,
}

impl SortRow {
    /// The memory that it takes, about.
    fn bytes(&self) -> usize {
        size_of::<Self>() + self.key.capacity() + self.value.capacity()
    }
}

/// Keeps rows in memory. Rows of equal keys come in the order in which they were added.
#[derive(Debug, Default)]
pub struct MemorySorter {
    most: Option<usize>,
    /// the last row on top, while rows are added
    added: BinaryHeap<SortRow>,
    count: u64,
    bytes: usize,
    rows: Vec<SortRow>,
    /// the position after the current row
    next: usize,
}

impl MemorySorter {
    /// Makes a sorter that returns the first `most` rows; all if that is None.
    pub fn new(most: Option<u64>) -> Self {
        Self { most: most.and_then(|most| usize::try_from(most).ok()), ..Self::default() }
    }

    /// The memory that its rows take, about.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds its rows to another sorter, and keeps none.
    ///
    /// # Errors
    /// Those of the other sorter.
    pub fn move_to(&mut self, other: &mut dyn Sorter) -> Result<()> {
        self.bytes = 0;
        std::mem::take(&mut self.added).into_iter().try_for_each(|row| other.add(&row.key, &row.value))
    }

    fn row(&self) -> Option<&SortRow> {
        self.rows.get(self.next.checked_sub(1)?)
    }
}

impl Sorter for MemorySorter {
    fn add(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        budget::step();
        let new = |number| SortRow { key: key.to_vec(), number, value: value.to_vec() };
        self.count += 1;
        if self.most.is_none_or(|most| self.added.len() < most) {
            let row = new(self.count);
            self.bytes += row.bytes();
            self.added.push(row);
        } else if let Some(mut last) = self.added.peek_mut()
            && key < last.key.as_slice()
        {
            let row = new(self.count);
            self.bytes = self.bytes - last.bytes() + row.bytes();
            *last = row;
        }
        Ok(())
    }

    fn sort(&mut self) -> Result<()> {
        if !self.added.is_empty() {
            self.rows = std::mem::take(&mut self.added).into_sorted_vec();
        }
        self.next = 0;
        Ok(())
    }

    fn advance(&mut self) -> Result<bool> {
        self.next += 1;
        Ok(self.row().is_some())
    }

    fn key(&self) -> &[u8] {
        self.row().map_or(&[], |row| &row.key)
    }

    fn value(&self) -> &[u8] {
        self.row().map_or(&[], |row| &row.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(sorter: &mut dyn Sorter) -> Vec<(Vec<u8>, Vec<u8>)> {
        sorter.sort().unwrap();
        let mut rows = Vec::new();
        while sorter.advance().unwrap() {
            rows.push((sorter.key().to_vec(), sorter.value().to_vec()));
        }
        rows
    }

    #[test]
    fn the_first_rows_are_those_of_all_rows() {
        let added: Vec<(Vec<u8>, Vec<u8>)> =
            (0..500u32).map(|n| (vec![(n * 37 % 101) as u8], n.to_be_bytes().to_vec())).collect();
        let mut all = MemorySorter::new(None);
        added.iter().for_each(|(key, value)| all.add(key, value).unwrap());
        let all = rows(&mut all);
        assert_eq!(all.len(), added.len());
        assert!(all.windows(2).all(|pair| pair[0].0 < pair[1].0 || pair[0].0 == pair[1].0 && pair[0].1 < pair[1].1));
        for most in [0, 1, 7, 499, 500, 9_000] {
            let mut first = MemorySorter::new(Some(most as u64));
            added.iter().for_each(|(key, value)| first.add(key, value).unwrap());
            assert_eq!(rows(&mut first), all[..most.min(all.len())]);
            assert_eq!(rows(&mut first).len(), most.min(all.len()), "sorted again");
        }
    }

    #[test]
    fn memory_is_that_of_the_rows_which_are_kept() {
        let mut first = MemorySorter::new(Some(2));
        first.add(&[3], &[0; 10_000]).unwrap();
        first.add(&[2], &[0; 10_000]).unwrap();
        assert!((20_000..21_000).contains(&first.bytes()), "{}", first.bytes());
        first.add(&[9], &[0; 1_000_000]).unwrap();
        assert!((20_000..21_000).contains(&first.bytes()), "{}", first.bytes());
        first.add(&[1], &[0; 10]).unwrap();
        assert!((10_000..11_000).contains(&first.bytes()), "{}", first.bytes());
        let mut other = MemorySorter::new(None);
        first.move_to(&mut other).unwrap();
        assert_eq!((first.bytes(), rows(&mut first).len()), (0, 0));
        assert_eq!(rows(&mut other).iter().map(|(key, _)| key[0]).collect::<Vec<_>>(), [1, 2]);
    }
}
