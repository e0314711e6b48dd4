//! Renames a collection within its database.
//!
//! The collection keeps its number, and so its tables, chunks and indexes on the shards: no document moves. Only what depends on the name is
//! changed: the collection's row, the rows of its moves that have not ended, its zone ranges, the rights on its tables, and foreign tables over it.

use super::{foreign_tables, grants, namespace, views, zones};
use crate::catalog::cluster::access;
use crate::catalog::cluster::identity::check_may_change;
use crate::catalog::cluster::move_exclusion;
use crate::catalog::cluster::nodes::call_on_all;
use crate::catalog::collections::collection::drop_but_zones;
use crate::catalog::{cache, change};
use crate::pg::error::{Error, Result};
use crate::store::{self, collections, placements};
use docshard_core::cluster::chunk_map::ShardId;
use docshard_core::error::{Kind, bail};
use docshard_core::routing::protocol::access::SetAccess;
use serde_json::json;

/// Renames a collection. `drop_target`: a collection of the new name is dropped.
/// Errors: `IllegalOperation` for its own name, `CommandFailed` for another database, `NamespaceNotFound`, `NamespaceExists`,
/// `CommandNotSupportedOnView`; `ConflictingOperationInProgress`, `LockTimeout`; the shards' errors.
pub fn rename(from: &str, to: &str, drop_target: bool) -> Result<()> {
    check_may_change()?;
    let ((database, _), (other, _)) = (namespace::split(from)?, namespace::split(to)?);
    namespace::check_writable(from)?;
    if from == to {
        bail!(Kind::IllegalOperation, "Can't rename a collection to itself");
    }
    if database != other {
        bail!(Kind::CommandFailed, "Source and destination collections must be on the same database");
    }
    views::refuse(from)?;
    // The names are locked in sorted order, so that two renames cannot wait for each other.
    views::lock_name(from.min(to));
    views::lock_name(from.max(to));
    let locked = move_exclusion::lock(from)?;
    change::refuse_while_building(locked.id, from)?;
    if drop_target {
        if cache::view(to)?.is_some() {
            bail!(Kind::CommandNotSupportedOnView, "cannot rename to the view {to}");
        }
        drop_but_zones(to)?;
    } else {
        views::check_free(to).map_err(|error| match error.kind {
            Kind::NamespaceExists => Error::new(Kind::NamespaceExists, "target namespace exists"),
            _ => error,
        })?;
    }
    collections::rename(locked.id, to)?;
    store::migrations::rename_of(locked.id, to)?;
    zones::forget(to)?;
    store::zone_ranges::rename(from, to)?;
    move_rights(locked.id, &placements::shards(locked.id)?, to)?;
    foreign_tables::rename(from, to)?;
    change::log("renameCollection", Some(from), &json!({"to": to, "dropTarget": drop_target}))?;
    change::touch(locked.id)
}

/// Sets the rights of roles on a collection's tables at shards to those that they have been granted on its new name.
pub(super) fn move_rights(collection: i32, shards: &[ShardId], namespace: &str) -> Result<()> {
    store::grants::lock_shared()?;
    access::note_privileges_set();
    let granted = grants::all()?;
    let (readers, writers) = grants::of_collection(&granted, namespace);
    let mut others: Vec<&str> = granted.iter().map(|grant| grant.name.as_str()).collect();
    others.dedup();
    others.retain(|name| !readers.contains(name) && !writers.contains(name));
    let access = SetAccess { collection, readers: &readers, writers: &writers, others: &others };
    call_on_all(shards, &access)
}
