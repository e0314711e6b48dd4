//! The unreachable shards whose documents a find with `allowPartialResults` omits.
//!
//! A shard that cannot be reached, at the beginning or later, counts as one without further documents. A WARNING names it, and
//! the result is marked as partial: in [`LostShards`], and at the portal that runs, for the commands `find` and `getMore`.

use crate::pg::error::{self, Error, Result};
use crate::pg::spi::cursor;
use docshard_core::error::Retry;
use std::cell::RefCell;

#[derive(Debug, Default)]
pub struct LostShards {
    /// names, and why each cannot be reached
    shards: RefCell<Vec<(String, String)>>,
    reported: RefCell<usize>,
}

impl LostShards {
    /// Notes a shard that cannot be reached, with its error. Errors: any error with another cause is returned.
    pub fn note(&self, shard: &str, error: Error) -> Result<()> {
        if error.retry == Retry::OtherHost || !error.is_out_of_reach() {
            return Err(error);
        }
        let mut shards = self.shards.borrow_mut();
        if !shards.iter().any(|(name, _)| name == shard) {
            shards.push((shard.to_owned(), error.into_message()));
        }
        Ok(())
    }

    /// Reports the shards that were noted since the last call.
    pub fn report(&self) {
        let shards = self.shards.borrow();
        let new = &shards[self.reported.replace(shards.len())..];
        if new.is_empty() {
            return;
        }
        cursor::mark_partial();
        let (names, reasons): (Vec<&str>, Vec<&str>) =
            new.iter().map(|(name, why)| (name.as_str(), why.as_str())).unzip();
        let message = format!("partial results: shard \"{}\" cannot be reached", names.join("\", \""));
        error::warn(message, reasons.join("\n"), None);
    }

    pub fn is_empty(&self) -> bool {
        self.shards.borrow().is_empty()
    }
}
