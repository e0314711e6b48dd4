//! The storage of pipeline stages: PostgreSQL's tuplesort and tuplestore, limited by PostgreSQL's memory settings.

use super::bounded_sorter::BoundedSorter;
use super::rows::TupleRows;
use super::sorter::{MAX_BYTES, TupleSorter, disk_is_needed};
use docshard_core::error::Result;
use docshard_core::query::stage::{Memory, Rows, Sorter};
use pgrx::pg_sys;
use std::cell::Cell;
use std::rc::Rc;

/// The memory of stages: `work_mem` for a sort or a store, `work_mem × hash_mem_multiplier` for a hash table.
#[derive(Clone, Debug)]
pub struct StageMemory {
    /// true: sorts and stores may use temporary files; false: more than 100 MiB in one of them, or in a hash table, is an error
    may_use_disk: bool,
    /// set when a sort or a store writes files
    used_disk: Rc<Cell<bool>>,
}

impl StageMemory {
    /// `may_use_disk`: sorts and stores may use temporary files.
    pub fn new(may_use_disk: bool) -> Self {
        Self { may_use_disk, used_disk: Rc::default() }
    }
}

impl Memory for StageMemory {
    fn stage_bytes(&self) -> usize {
        // SAFETY: the function only reads two settings.
        unsafe { pg_sys::get_hash_memory_limit() }
    }

    fn must_spill(&self, bytes: usize) -> Result<bool> {
        match self.may_use_disk {
            true => Ok(bytes > self.stage_bytes()),
            false if bytes > MAX_BYTES => Err(disk_is_needed()),
            false => Ok(false),
        }
    }

    fn sorter(&self, most: Option<u64>, rereadable: bool) -> Result<Box<dyn Sorter>> {
        let used_disk = Rc::clone(&self.used_disk);
        if let Some(bound) = most.and_then(|most| i64::try_from(most).ok()) {
            return Ok(Box::new(BoundedSorter::new(bound, rereadable, self.may_use_disk, used_disk)));
        }
        let max_added_bytes = if self.may_use_disk { usize::MAX } else { MAX_BYTES };
        Ok(Box::new(TupleSorter::new(None, rereadable, max_added_bytes, used_disk)))
    }

    fn rows(&self) -> Result<Box<dyn Rows>> {
        Ok(Box::new(TupleRows::new(self.may_use_disk, Rc::clone(&self.used_disk))))
    }

    fn noting(&self, used_disk: Rc<Cell<bool>>) -> Rc<dyn Memory> {
        Rc::new(Self { used_disk, ..self.clone() })
    }
}
