//! Sends the statements of one write to the shards one by one, instead of all at once.

use super::fan_out::FanOut;
use crate::catalog::collections::grants::Level;
use crate::pg::error::Result;
use crate::pg::fault;
use crate::remote::{self, RequestScope};
use crate::router::numbered::require_claim;
use docshard_core::cluster::chunk_map::ShardId;
use docshard_core::error::{Kind, error};
use docshard_core::routing::model::Collection;
use docshard_core::routing::plan::destination::destinations;
use docshard_core::routing::plan::statement::Statement;
use docshard_core::values::key::KeyRanges;

/// Sends statements while later ones are still being prepared, so that the shards work in the meantime. Any number may go to each shard.
/// The statements lock and check by themselves, as those of [`write_checked`](super::writing::write_checked).
pub struct Feed<'a> {
    to: FanOut<'a>,
    feed: remote::Feed,
}

impl<'a> Feed<'a> {
    /// Returns None if this database is one of the shards: it cannot execute statements while it prepares others.
    pub fn open(collection: &'a Collection) -> Result<Option<Self>> {
        require_claim()?;
        let to = FanOut::open(collection, &destinations(collection, &KeyRanges::all())?, Level::Write)?;
        Ok(to.local().is_none().then(|| Self { to, feed: remote::Feed::default() }))
    }

    /// Sends a statement to a shard. Nothing else may be sent to shards before [`Feed::finish`], unless an error ends
    /// the transaction.
    pub fn send(&mut self, shard: ShardId, statement: &Statement) -> Result<()> {
        fault::point("dispatch.feeding")?;
        let missing = || error!(Kind::InternalError, "{} has no shard {shard}", self.to.collection.namespace);
        let at = self.to.shards.iter().position(|to| to.shard.id == shard).ok_or_else(missing)?;
        let sent = self.feed.send(&self.to.request(at, RequestScope::WholeStatement, statement));
        sent.map_err(|error| self.to.failed(error))
    }

    /// Waits until all statements have been answered.
    pub fn finish(self) -> Result<()> {
        self.feed.finish().map_err(|error| self.to.failed(error))
    }
}
