//! Whether documents keep the order of their fields. They do as soon as all shards have a release that can read the order: a shard of an
//! earlier release refuses such documents.
//!
//! INVARIANT: no document has an order before the catalog says so, and from then on no shard of an earlier release is added.

use super::nodes;
use crate::catalog::cache;
use crate::pg::error::Result;
use crate::pg::security::user;
use crate::pg::transaction;
use crate::pg::transaction::snapshot::ActiveSnapshot;
use crate::store::cluster as store;
use docshard_core::cluster::handshake;
use docshard_core::routing::protocol::node::ReadRelease;
use std::cell::Cell;

thread_local! {
    /// What the catalog says, with its generation when it was read.
    static KNOWN: Cell<Option<(u64, bool)>> = const { Cell::new(None) };
}

/// True if documents keep the order of their fields.
pub fn is_kept() -> Result<bool> {
    let generation = cache::generation()?;
    if let Some((read_in, kept)) = KNOWN.get()
        && read_in == generation
    {
        return Ok(kept);
    }
    let kept = user::as_extension_owner(|| {
        let _snapshot = ActiveSnapshot::latest();
        // Before the extension is updated, the catalog has no such column.
        Ok(store::knows_order()? && store::keeps_order()?)
    })?;
    KNOWN.set(Some((generation, kept)));
    Ok(kept)
}

/// Called by the worker. If this cluster's documents keep no order yet and all shards have been updated, they keep it from now on.
pub fn begin() -> Result<()> {
    transaction::run(|| {
        if !store::knows_order()? || store::keeps_order()? {
            return Ok(());
        }
        for shard in cache::shards()?.values() {
            let release = nodes::read_call_on(shard, &ReadRelease {})?;
            if !release.is_some_and(|release| handshake::reads_order(&release)) {
                return Ok(());
            }
        }
        store::keep_order()?;
        cache::announce();
        Ok(())
    })
}
