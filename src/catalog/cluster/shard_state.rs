//! Compares the collections and indexes that a shard has with those in the catalog.
//!
//! A copy of the router that has changed metadata, or a shard that was restored from a backup, leaves *orphaned* relations: tables and
//! indexes that the catalog does not know. A move also leaves an orphaned table if its router is restored from a backup that is older than the
//! move: the catalog knows the collection, but not that the shard has its table. Orphaned relations are listed, and dropped one at a time,
//! as they may contain documents. A restored router may also find relations and versions at shards that are *newer* than its catalog.
//!
//! INVARIANT: a shard is read before the catalog. The router commits a new collection or index before its shards do. So a relation that the
//! shard has and the catalog does not is orphaned, or is just being dropped.

use super::survey;
use crate::catalog::cluster::identity::check_may_change;
use crate::catalog::cluster::nodes::call_on;
use crate::catalog::cluster::shard::Shard;
use crate::catalog::cluster::survey::ShardAnswer;
use crate::catalog::{cache, change};
use crate::pg::error::{Error, Result};
use crate::store;
use crate::store::collections::Identified;
use crate::store::indexes::NumberedIndex;
use crate::store::pending_drops::DroppedKind;
use docshard_core::cluster::chunk_map::ShardId;
use docshard_core::cluster::migration::State;
use docshard_core::error::{Kind, error};
use docshard_core::routing::names;
use docshard_core::routing::protocol::shard_tables::{FoundRelation, ReadRelations};
use docshard_core::routing::protocol::table::{DropIndex, DropTable};
use serde_json::json;
use std::collections::{HashMap, HashSet};
use std::time::Duration;

/// The name of a relation, in the schema `docshard_data`.
pub fn name(found: &FoundRelation) -> String {
    found.index.map_or_else(|| format!("c{}", found.collection), names::index)
}

/// What the catalog has, to be compared with what shards have.
pub struct Known {
    collections: HashMap<i32, Identified>,
    indexes: HashMap<i32, NumberedIndex>,
    /// drops that a shard has missed
    pending: HashSet<(ShardId, Option<i32>, Option<i32>)>,
    /// the collections of shards, and those that moves may bring there
    placed: HashSet<(i32, ShardId)>,
    /// the versions that decided moves give a collection at a shard, though the map does not have them yet
    decided: HashMap<(i32, ShardId), i64>,
    /// the last numbers that were assigned to a collection and to an index
    last: [i64; 2],
}

impl Known {
    pub fn read() -> Result<Self> {
        let of = |drop: &store::pending_drops::PendingDrop| match drop.kind {
            DroppedKind::Collection => (drop.shard, Some(drop.number), None),
            DroppedKind::Index => (drop.shard, None, Some(drop.number)),
        };
        let moves = store::migrations::unfinished()?;
        let mut decided = HashMap::new();
        // Of several moves, the last one overwrites the others: it has the highest version.
        for one in moves.iter().filter(|one| one.state == State::Committed) {
            decided.extend([one.donor, one.recipient].map(|shard| ((one.collection, shard), one.version)));
        }
        let mut placed: HashSet<_> = moves.iter().map(|one| (one.collection, one.recipient)).collect();
        placed.extend(store::placements::all()?.iter().map(|one| (one.collection, one.shard)));
        Ok(Self {
            decided,
            placed,
            collections: store::collections::identities()?.into_iter().map(|one| (one.id, one)).collect(),
            indexes: store::indexes::numbered()?.into_iter().map(|one| (one.id, one)).collect(),
            pending: store::pending_drops::all()?.iter().map(of).collect(),
            last: [store::last_number("collections")?, store::last_number("indexes")?],
        })
    }

    fn collection(&self, found: &FoundRelation) -> Option<&Identified> {
        let known = self.collections.get(&found.collection)?;
        found.token.is_none_or(|token| token == known.token).then_some(known)
    }

    fn is_orphan(&self, shard: ShardId, found: &FoundRelation) -> bool {
        self.is_unknown(shard, found)
            || found.present
                && found.index.is_none()
                && self.collection(found).is_some()
                && !self.placed.contains(&(found.collection, shard))
                && !self.pending.contains(&(shard, Some(found.collection), None))
    }

    /// True for the table of a collection that the catalog does not have, and for an index that it does not have of a known collection,
    /// unless the drop is pending.
    fn is_unknown(&self, shard: ShardId, found: &FoundRelation) -> bool {
        found.present
            && match found.index {
                None => {
                    self.collection(found).is_none() && !self.pending.contains(&(shard, Some(found.collection), None))
                }
                Some(index) => {
                    self.collections.contains_key(&found.collection)
                        && !self.indexes.contains_key(&index)
                        && !self.pending.contains(&(shard, None, Some(index)))
                }
            }
    }

    /// The relations of a shard that are orphaned.
    pub fn orphans<'f>(&self, shard: ShardId, found: &'f [FoundRelation]) -> impl Iterator<Item = &'f FoundRelation> {
        found.iter().filter(move |one| self.is_orphan(shard, one))
    }

    /// Describes what the shard has that is newer than this catalog. `is_ahead`: the shard's counter or its router's epoch is newer, so
    /// every difference is a change by another router.
    pub fn newer(&self, shard: ShardId, found: &[FoundRelation], is_ahead: bool) -> Result<Vec<String>> {
        let mut newer = Vec::new();
        let placed: HashMap<i32, _> =
            store::placements::of_shard(shard)?.into_iter().map(|one| (one.collection, one)).collect();
        for one in found {
            let [collections, indexes] = self.last;
            let is_unknown = match one.index {
                None => self.is_unknown(shard, one) && (is_ahead || i64::from(one.collection) > collections),
                Some(index) => self.is_unknown(shard, one) && (is_ahead || i64::from(index) > indexes),
            };
            match (self.collection(one), placed.get(&one.collection), one.version) {
                _ if is_unknown => newer.push(format!("{} is not in this catalog", names::relation_name(name(one)))),
                (Some(_), Some(_), Some(version)) if self.decided.get(&(one.collection, shard)) == Some(&version) => {}
                (Some(known), Some(here), Some(version)) if version > here.version => newer
                    .push(format!("{} is at version {version}, in this catalog at {}", known.namespace, here.version)),
                (Some(known), None, Some(version)) if is_ahead => {
                    newer.push(format!("{} is at version {version}, in this catalog not there", known.namespace));
                }
                _ => {}
            }
        }
        if is_ahead {
            let has =
                |collection: i32, index| found.iter().any(|one| one.collection == collection && one.index == index);
            for (&collection, here) in &placed {
                if !has(collection, None) {
                    newer.push(format!("{} is not there, in this catalog at version {}", here.namespace, here.version));
                    continue;
                }
                let missing = self.indexes.values().filter(|index| index.collection == collection && index.is_built);
                let missing = missing.filter(|index| !has(collection, Some(index.id)));
                newer.extend(missing.map(|index| format!("{} has no index {} there", here.namespace, index.name)));
            }
        }
        newer.sort();
        Ok(newer)
    }
}

/// A table or index of a shard that the catalog does not know.
#[derive(Debug)]
pub struct Orphan {
    pub shard: String,
    /// its name in the schema `docshard_data`
    pub relation: String,
    /// the number of documents of a table, by PostgreSQL's statistics; None if these do not know any, and for an index
    pub documents: Option<i64>,
}

/// Shards that do not answer, each with its error.
type Silent = Vec<(String, String)>;

/// Lists the orphaned relations of the shards that answer in time.
pub fn orphans(limit: Duration) -> Result<(Vec<Orphan>, Silent)> {
    let (mut found, mut silent) = (Vec::new(), Vec::new());
    for ShardAnswer { shard, answer, .. } in survey::call(&ReadRelations {}, limit)? {
        match answer {
            Ok(all) => found.push((shard, all)),
            Err(error) => silent.push((shard.name.clone(), error.into_message())),
        }
    }
    let known = Known::read()?;
    let mut orphans = Vec::new();
    for (shard, all) in &found {
        orphans.extend(known.orphans(shard.id, all).map(|one| Orphan {
            shard: shard.name.clone(),
            relation: name(one),
            documents: one.documents.filter(|_| one.index.is_none()),
        }));
    }
    orphans.sort_by(|a, b| (&a.shard, &a.relation).cmp(&(&b.shard, &b.relation)));
    Ok((orphans, silent))
}

/// How long a shard may take to answer before one of its relations is dropped.
const PATIENCE: Duration = Duration::from_secs(10);

/// Drops an orphaned relation of a shard, with its documents.
/// Errors: `ShardNotFound`; `NamespaceNotFound` if the shard has no such orphaned relation; `HostUnreachable`.
pub fn drop_orphan(shard: &str, relation: &str) -> Result<()> {
    check_may_change()?;
    let place = cache::shard_named(shard)?;
    let relation = relation.strip_prefix(&names::relation_name("")).unwrap_or(relation);
    if let Some(collection) = names::collection_of(relation) {
        // Blocks the registration of a move that would bring the collection to this shard.
        store::collections::lock_id(collection)?;
    }
    let (orphans, silent) = orphans(PATIENCE)?;
    if let Some((_, error)) = silent.into_iter().find(|(name, _)| name == shard) {
        return Err(Error::new(Kind::HostUnreachable, error));
    }
    if !orphans.iter().any(|orphan| orphan.shard == shard && orphan.relation == relation) {
        return Err(error!(Kind::NamespaceNotFound, "shard \"{shard}\" has no orphaned relation \"{relation}\"")
            .with_hint(
                "docshard.list_orphaned_relations() shows the tables and indexes that the catalog does not know.",
            ));
    }
    drop_relation(&place, relation)?;
    change::log("dropOrphan", None, &json!({"shard": shard, "relation": relation}))
}

fn drop_relation(shard: &Shard, relation: &str) -> Result<()> {
    match (names::collection_of(relation), names::index_of(relation)) {
        (Some(collection), _) => call_on(shard, &DropTable { collection }),
        (None, Some(index)) => call_on(shard, &DropIndex { index }),
        (None, None) => Ok(()),
    }
}
