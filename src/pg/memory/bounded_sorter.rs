//! A sort for the stages of pipelines that returns only the first rows. It keeps them in this process's memory, and drops a row that
//! sorts after all of them without a copy; PostgreSQL's tuplesort copies each row before it compares it. If the first rows take more
//! than `work_mem`, tuplesort takes over, which uses temporary files.
//!
//! If such files are not allowed, the first rows may take at most 100 MiB together; other rows do not count. Tuplesort does not tell
//! the size of the rows that it keeps, so the keys and sizes of the first rows are also kept here.

use super::sorter::{MAX_BYTES, TupleSorter, disk_is_needed};
use docshard_core::error::Result;
use docshard_core::query::stage::{MemorySorter, Sorter};
use pgrx::pg_sys;
use std::cell::Cell;
use std::collections::BinaryHeap;
use std::rc::Rc;

/// The keys and sizes of the first rows.
struct FirstRows {
    /// the largest number of rows
    bound: usize,
    rows: BinaryHeap<(Vec<u8>, usize)>,
    /// the size of these rows, in bytes
    bytes: usize,
}

impl FirstRows {
    fn new(bound: i64) -> Self {
        Self { bound: usize::try_from(bound).unwrap_or(0), rows: BinaryHeap::new(), bytes: 0 }
    }

    fn add(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let is_first = self.rows.len() < self.bound || self.rows.peek().is_some_and(|(last, _)| key < last.as_slice());
        if is_first {
            if self.rows.len() == self.bound
                && let Some((_, bytes)) = self.rows.pop()
            {
                self.bytes -= bytes;
            }
            self.bytes += key.len() + value.len();
            self.rows.push((key.to_vec(), key.len() + value.len()));
        }
        if self.bytes > MAX_BYTES { Err(disk_is_needed()) } else { Ok(()) }
    }
}

/// Tuplesort, and the sizes of the first rows if these are limited.
struct Spilled {
    sorter: TupleSorter,
    first: Option<FirstRows>,
}

impl Sorter for Spilled {
    fn add(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.first.as_mut().map_or(Ok(()), |first| first.add(key, value))?;
        self.sorter.add(key, value)
    }

    fn sort(&mut self) -> Result<()> {
        self.sorter.sort()
    }

    fn advance(&mut self) -> Result<bool> {
        self.sorter.advance()
    }

    fn key(&self) -> &[u8] {
        self.sorter.key()
    }

    fn value(&self) -> &[u8] {
        self.sorter.value()
    }
}

pub(super) struct BoundedSorter {
    bound: i64,
    rereadable: bool,
    /// false: more than 100 MiB is an error
    may_use_disk: bool,
    used_disk: Rc<Cell<bool>>,
    /// the most bytes of rows in memory
    max_memory_bytes: usize,
    in_memory: MemorySorter,
    /// all rows, once they do not fit into memory
    spilled: Option<Spilled>,
}

impl BoundedSorter {
    pub fn new(bound: i64, rereadable: bool, may_use_disk: bool, used_disk: Rc<Cell<bool>>) -> Self {
        // SAFETY: a setting.
        let work_mem = usize::try_from(unsafe { pg_sys::work_mem }).unwrap_or(0) << 10;
        Self {
            bound,
            rereadable,
            may_use_disk,
            used_disk,
            max_memory_bytes: if may_use_disk { work_mem } else { work_mem.min(MAX_BYTES) },
            in_memory: MemorySorter::new(u64::try_from(bound).ok()),
            spilled: None,
        }
    }

    fn sorter(&self) -> &dyn Sorter {
        match &self.spilled {
            Some(spilled) => spilled,
            None => &self.in_memory,
        }
    }

    fn sorter_mut(&mut self) -> &mut dyn Sorter {
        match &mut self.spilled {
            Some(spilled) => spilled,
            None => &mut self.in_memory,
        }
    }
}

impl Sorter for BoundedSorter {
    fn add(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.sorter_mut().add(key, value)?;
        if self.in_memory.bytes() > self.max_memory_bytes {
            let sorter = TupleSorter::new(Some(self.bound), self.rereadable, usize::MAX, Rc::clone(&self.used_disk));
            let first = (!self.may_use_disk).then(|| FirstRows::new(self.bound));
            let mut spilled = Spilled { sorter, first };
            self.in_memory.move_to(&mut spilled)?;
            self.spilled = Some(spilled);
        }
        Ok(())
    }

    fn sort(&mut self) -> Result<()> {
        self.sorter_mut().sort()
    }

    fn advance(&mut self) -> Result<bool> {
        self.sorter_mut().advance()
    }

    fn key(&self) -> &[u8] {
        self.sorter().key()
    }

    fn value(&self) -> &[u8] {
        self.sorter().value()
    }
}

#[cfg(any(test, feature = "pg_test"))]
#[pgrx::pg_schema]
mod tests {
    use super::*;
    use crate::pg::spi;
    use pgrx::pg_test;

    /// Sorts 3,000 rows of a thousand different keys, each with a value of that many bytes. Returns the keys of the first rows, and whether
    /// files were used.
    fn first(bound: i64, bytes: usize) -> (Vec<u8>, bool) {
        let used_disk = Rc::new(Cell::new(false));
        let mut sorter = BoundedSorter::new(bound, true, true, Rc::clone(&used_disk));
        for n in 0..3_000u32 {
            let key = (n * 7 % 1_000).to_be_bytes();
            sorter.add(&key, &[key.as_slice(), &vec![1; bytes]].concat()).unwrap();
        }
        let mut read = || {
            sorter.sort().unwrap();
            let mut keys = Vec::new();
            while sorter.advance().unwrap() {
                assert_eq!(sorter.value().split_at(4), (sorter.key(), vec![1; bytes].as_slice()));
                keys.extend_from_slice(sorter.key());
            }
            keys
        };
        let keys = read();
        assert_eq!(read(), keys, "sorted again");
        (keys, used_disk.get())
    }

    #[pg_test]
    fn the_first_rows_are_the_same_in_memory_and_on_disk() {
        spi::query("SELECT pg_catalog.set_config('work_mem', '64kB', true)", &[]).unwrap();
        for bound in [1, 10, 2_000, 5_000] {
            let expected: Vec<u8> =
                (0..3_000u32).flat_map(|n| (n / 3).to_be_bytes()).take(4 * bound as usize).collect();
            assert_eq!(first(bound, 0).0, expected);
            assert_eq!(first(bound, 20_000).0, expected);
        }
        assert!(!first(10, 100).1, "ten short rows are in memory");
        assert!(first(2_000, 20_000).1, "40 MB of rows are not");
    }

    /// Adds 3,000 rows of 40,000 bytes, the last ones first; files are not allowed.
    fn without_files(bound: i64, work_mem: &str) -> Result<()> {
        spi::query(&format!("SELECT pg_catalog.set_config('work_mem', '{work_mem}', true)"), &[]).unwrap();
        let mut sorter = BoundedSorter::new(bound, false, false, Rc::default());
        (0..3_000u32).rev().try_for_each(|n| sorter.add(&n.to_be_bytes(), &[1; 40_000]))?;
        sorter.sort()
    }

    #[pg_test]
    fn without_files_the_first_rows_have_100_mib() {
        use docshard_core::error::Kind;
        for (bound, fits) in [(1, true), (100, true), (2_600, true), (2_700, false), (3_000, false), (5_000, false)] {
            for work_mem in ["1MB", "400MB"] {
                let kind = without_files(bound, work_mem).err().map(|error| error.kind);
                let expected = (!fits).then_some(Kind::QueryExceededMemoryLimitNoDiskUseAllowed);
                assert_eq!(kind, expected, "{bound} {work_mem}");
            }
        }
    }
}
