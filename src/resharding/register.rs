//! Begins a change of a collection's layout: checks whether it is possible, and creates the copy and the durable row.
//!
//! INVARIANT: copy and row are created in one transaction of all nodes. So there is never a copy without a row.

use super::plan::{self, Planned};
use super::request::Request;
use super::space;
use crate::catalog::cache;
use crate::catalog::change;
use crate::catalog::cluster::move_exclusion;
use crate::catalog::collections::layout::{self, Copy, Layout};
use crate::catalog::collections::{namespace, zones};
use crate::pg::error::Result;
use crate::pg::{spi, transaction};
use crate::storage::lock::{self, Mode, Tag};
use crate::store::{migrations, resharding};
use docshard_core::cluster::chunk_map::ShardId;
use docshard_core::error::{Kind, ensure, error};
use docshard_core::routing::model::Collection;
use docshard_core::values::key::KeyPattern;
use serde_json::json;
use std::rc::Rc;

/// A change that has begun. This process holds the coordinator's lock.
pub(super) struct Registered {
    pub(super) id: i64,
    /// the collection as it is
    pub(super) of: Rc<Collection>,
    pub(super) copy: Copy,
    pub(super) layout: Layout,
}

impl Registered {
    /// Returns the shards whose documents are copied: all that have the collection's table, which the decision drops. A
    /// shard without a chunk is included, because its table may have documents outside of its ranges.
    pub(super) fn donors(&self) -> Vec<ShardId> {
        self.of.placements.keys().copied().collect()
    }
}

/// Creates the copy and the row, and takes the coordinator's lock.
pub(super) fn register(request: &Request) -> Result<Registered> {
    let mut locked = None;
    let registered = transaction::run(|| enter(request, &mut locked));
    if let (Err(_), Some(id)) = (&registered, locked) {
        lock::release_for_session(Tag::Coordinator(id), Mode::Exclusive);
    }
    registered
}

fn enter(request: &Request, locked: &mut Option<i64>) -> Result<Registered> {
    // The session that has started this worker may hold a conflicting lock while it waits for the worker. The deadlock
    // detector does not see that, hence the timeout.
    spi::query("SELECT set_config('lock_timeout', '10s', true)", &[])?;
    let name = request.namespace.as_str();
    let (database, _) = namespace::split(name)?;
    zones::lock()?;
    let row = move_exclusion::lock(name)?;
    change::refuse_while_building(row.id, name)?;
    let of = cache::get(name)?;
    check_seen(request, &of)?;
    let Planned { layout, sample } = plan::layout(&of, &request.target)?;
    if request.check_space {
        space::check(&of, &request.target, &layout, &sample)?;
    }
    let id = migrations::next_id()?;
    let copy = layout::create_copy(&of, &format!("{database}.system.resharding.{id}"), &layout)?;
    ensure!(
        lock::try_acquire_for_session(Tag::Coordinator(id), Mode::Exclusive),
        Kind::InternalError,
        "resharding {id} has a coordinator already"
    );
    *locked = Some(id);
    let text = |key: &KeyPattern| (!key.is_unsharded()).then(|| key.to_json().to_string());
    resharding::insert(&resharding::Draft {
        id,
        collection: of.id,
        copy_id: copy.id,
        namespace: name,
        copy: &copy.name,
        command: &request.command,
        old_key: text(&of.key),
        key: text(&layout.key),
        request: request.target.number(),
    })?;
    // The new revision makes sessions on a standby of the router reload the collection, so that they treat it as
    // undecided once that standby is promoted.
    change::touch(of.id)?;
    let details = json!({"resharding": id, "key": layout.key.to_json(), "chunks": layout.chunks.len()});
    change::log(&format!("{}.start", request.command), Some(name), &details)?;
    Ok(Registered { id, of, copy, layout })
}

/// Refuses a request for a collection that was sharded, given another layout, or created anew since the caller looked at it.
fn check_seen(request: &Request, of: &Collection) -> Result<()> {
    let now = (of.id, of.key.to_json().to_string());
    if now == request.seen {
        return Ok(());
    }
    Err(error!(
        Kind::ConflictingOperationInProgress,
        "{} was sharded, given another layout or created anew meanwhile", request.namespace
    )
    .with_hint("Look at the collection, and call it again if the change is still wanted."))
}
