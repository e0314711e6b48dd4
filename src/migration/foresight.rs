//! The map as decided moves are about to make it. The catalog's own follows both shards' commits by one of its own, which
//! waits for a disk; who was told meanwhile that its map is stale need not wait for that.
//!
//! INVARIANT: nothing relies on such a map. As with any other, a shard that is not at the version that it assumes refuses
//! the statement; and the recipient is at the version of a move only since both of its parts have been committed.

use super::record;
use crate::catalog::model::Collection;
use crate::pg::error::Result;
use crate::storage::lock::{self, Tag};
use crate::store::migrations::Decided;
use std::rc::Rc;

/// A map that the catalog does not have yet.
pub struct Foreseen {
    /// the collection with that map; its revision is that of the map in the catalog
    pub collection: Rc<Collection>,
    /// a move that it foresees was decided so long ago that its process is perhaps gone
    pub is_late: bool,
    moves: Vec<i64>,
}

impl Foreseen {
    /// What a collection will be when the moves are over that are decided; None if there are none, or it is not what they
    /// were decided for. Runs in the caller's transaction.
    pub fn of(collection: &Collection) -> Result<Option<Self>> {
        let decided = record::decided(collection.id)?;
        let mut foreseen: Option<Collection> = None;
        for migration in &decided {
            let Some(next) = after(foreseen.as_ref().unwrap_or(collection), migration) else { return Ok(None) };
            foreseen = Some(next);
        }
        Ok(foreseen.map(|collection| Self {
            collection: Rc::new(collection),
            is_late: decided.iter().any(|migration| migration.is_late),
            moves: decided.iter().map(|migration| migration.id).collect(),
        }))
    }

    /// True if somebody is about to commit what is prepared at the shards: until then they will refuse this map.
    pub fn is_being_settled(&self) -> bool {
        self.moves.iter().any(|id| lock::is_excluded(Tag::Settling(*id)))
    }
}

fn after(collection: &Collection, migration: &Decided) -> Option<Collection> {
    let Decided { token, min, max, donor, recipient, version, .. } = migration;
    if collection.token != *token || collection.map.owner(min) != *donor {
        return None;
    }
    let map = Rc::new(collection.map.with_owner(min, max, *recipient)?);
    let mut placements = collection.placements.clone();
    placements.extend([donor, recipient].map(|shard| (*shard, *version)));
    Some(Collection { map, placements, ..collection.clone() })
}
