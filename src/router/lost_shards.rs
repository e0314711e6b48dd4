//! The shards that a find with `allowPartialResults` goes without.
//!
//! A shard that cannot be reached, at the beginning or later, counts as one without further documents. A WARNING names it, and
//! the result is marked as partial: in [`LostShards`], and at the portal that runs, for the commands `find` and `getMore`.

use crate::pg::error::{Error, Result};
use crate::pg::spi::cursor;
use std::cell::RefCell;

#[derive(Debug, Default)]
pub struct LostShards {
    names: RefCell<Vec<String>>,
    reported: RefCell<usize>,
}

impl LostShards {
    /// Notes the shard whose error this is; any other error than that of a shard out of reach is returned.
    pub fn note(&self, shard: &str, error: Error) -> Result<()> {
        if error.has_other_host() || !error.is_out_of_reach() {
            return Err(error);
        }
        let mut names = self.names.borrow_mut();
        if !names.iter().any(|name| name == shard) {
            names.push(shard.to_owned());
        }
        Ok(())
    }

    /// Reports the shards that were noted since the last call.
    pub fn report(&self) {
        let names = self.names.borrow();
        let new = &names[self.reported.replace(names.len())..];
        if !new.is_empty() {
            cursor::mark_partial();
            pgrx::warning!("partial results: shard \"{}\" cannot be reached", new.join("\", \""));
        }
    }

    pub fn is_empty(&self) -> bool {
        self.names.borrow().is_empty()
    }
}
