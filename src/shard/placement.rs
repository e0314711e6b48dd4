//! Reads and checks the version of each collection on this shard, without SPI.

use crate::pg::error::Result;
use crate::pg::fault;
use crate::pg::memory::small_cache::SmallCache;
use crate::remote::serializable::{self, UsedNode};
use crate::storage::own_table;
use crate::storage::rows::validation;
use crate::storage::scan::{Columns, Look, Spot, at_spot, by_int4};
use docshard_core::error::sqlstate::STALE;
use docshard_core::error::{Kind, error};
use std::cell::RefCell;

/// A collection's row in `docshard_data.placement`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// distinguishes this collection from another one that had the same number
    pub token: i64,
    /// the version of the last change of this shard's ownership
    pub version: i64,
}

impl Placement {
    fn read(row: &Columns<'_>) -> Self {
        Self { token: row.i64(1), version: row.i64(2) }
    }
}

/// A placement, and the number of the collection's validator; None if it has no validator.
type Found = (Placement, Option<i64>);

fn read(row: &Columns<'_>) -> Found {
    (Placement::read(row), validation::number_in(row))
}

/// The largest number of rows whose places this process remembers.
const MAX_SPOTS: usize = 16;

thread_local! {
    static SPOTS: RefCell<SmallCache<i32, Spot, MAX_SPOTS>> = const { RefCell::new(SmallCache::NONE) };
}

fn placement(collection: i32, look: Look) -> Result<Option<Found>> {
    let mut found = None;
    if let Some(spot) = SPOTS.with_borrow(|spots| spots.find(|of| *of == collection)) {
        // A collection has at most one row in any snapshot.
        at_spot(spot, look, |row| found = (row.i32(0) == collection).then(|| read(&row)));
        if found.is_some() {
            return Ok(found);
        }
    }
    let (table, index) = own_table(c"placement", c"placement_pkey")?;
    by_int4(table, index, collection, look, |row| {
        found = Some(read(&row));
        SPOTS.with_borrow_mut(|spots| spots.insert(collection, Spot::of(table, &row)));
    });
    Ok(found)
}

/// Checks the version for a statement that reads, by the statement's own snapshot.
pub fn check_read(collection: i32, assumed: Placement) -> Result<()> {
    fault::point("read.checking")?;
    check(collection, assumed, Look::Active).map(drop)
}

/// Checks that this shard is at the version that the router assumed. Returns the number of the collection's validator; None if it has no
/// validator.
///
/// # Errors
/// [`STALE`] on any difference; `NotImplemented` if the transaction is serializable and has used another node.
pub fn check(collection: i32, assumed: Placement, look: Look) -> Result<Option<i64>> {
    serializable::touch(UsedNode::Here)?;
    let here = placement(collection, look)?;
    let (here, validator) = here.unzip();
    if here == Some(assumed) || fault::is_off("version_check") {
        return Ok(validator.flatten());
    }
    let here = here.map_or_else(|| "not placed".to_owned(), |p| format!("at version {}", p.version));
    Err(error!(
        Kind::StaleShardVersion,
        "stale version: collection {collection} is {here} on this shard, not at {}", assumed.version
    )
    .with_sqlstate(STALE))
}
