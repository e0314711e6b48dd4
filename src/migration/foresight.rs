//! The chunk map as decided moves will change it. The catalog's map changes by a commit of its own, after those of both shards,
//! which waits for a disk; a router with a stale map need not wait for that.
//!
//! INVARIANT: nothing relies on such a map. As with any other, a shard that is not at the assumed version refuses the statement;
//! and the recipient is at the version of a move only once both of its parts are committed.

use super::record;
use crate::catalog::model::Collection;
use crate::pg::error::Result;
use crate::storage::lock::{self, Tag};
use crate::store::migrations::Decided;
use std::rc::Rc;

/// A chunk map that the catalog does not have yet.
pub struct Foreseen {
    /// The collection with that map, and with the revision of the map in the catalog.
    pub collection: Rc<Collection>,
    /// One of the moves was decided so long ago that its coordinator is perhaps gone.
    pub is_late: bool,
    moves: Vec<i64>,
}

impl Foreseen {
    /// The collection after its decided moves; None if there are none, or they are of another state of it. Runs in the caller's
    /// transaction.
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

    /// True if a process is committing what the shards have prepared: until then they refuse this map.
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
