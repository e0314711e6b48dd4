//! The chunk map as it will be after the decided moves. The catalog's map changes in a commit of its own, after the shards' commits, and
//! waits for a disk. With the foreseen map, statements need not wait for that commit.
//!
//! INVARIANT: correctness does not depend on this map. A shard that is not at the assumed version refuses the statement, as with
//! any map; and the recipient has a move's version only when both parts of the move are committed.

use super::record;
use crate::pg::error::{Error, Result};
use crate::storage::lock::{self, Tag};
use crate::store::migrations::Decided;
use docshard_core::error::Kind;
use docshard_core::error::sqlstate;
use docshard_core::routing::model::Collection;
use std::rc::Rc;

/// A chunk map that the catalog does not have yet.
pub struct Foreseen {
    /// The collection with that map; its revision is that of the catalog's map.
    pub collection: Rc<Collection>,
    /// One of the moves was decided so long ago that its coordinator may have ended.
    pub is_late: bool,
    moves: Vec<i64>,
    /// Why one of the moves cannot be completed; None if all can.
    lost: Option<String>,
}

impl Foreseen {
    /// Returns the collection as it will be after its decided moves; None if there are none, or if they belong to another
    /// revision of it. Runs in the caller's transaction.
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
            lost: decided.iter().find_map(|migration| migration.lost.clone()),
            moves: decided.iter().map(|migration| migration.id).collect(),
        }))
    }

    /// Returns the error of a statement that waits for a move, if a shard has lost its part of the move; else None.
    pub fn lost_part(&self) -> Option<Error> {
        let lost = self.lost.as_deref()?;
        Some(Error::new(Kind::StaleShardVersion, lost).with_sqlstate(sqlstate::OBJECT_NOT_IN_PREREQUISITE_STATE))
    }

    /// True if a process is committing the shards' prepared transactions: until that is done shards refuse this map.
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
