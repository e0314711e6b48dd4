//! Sends statements to shards while later ones are still being prepared, so that the shards work in the meantime.

use super::request::{Located, locate, sql};
use super::retry::{can_retry, failed};
use crate::catalog::cluster::shard::Place;
use crate::catalog::collections::grants::{self, Level};
use crate::pg::error::Result;
use crate::pg::fault;
use crate::remote::{self, RequestScope, Role};
use crate::router::numbered::require_claim;
use docshard_core::cluster::chunk_map::ShardId;
use docshard_core::error::{Kind, error};
use docshard_core::routing::model::Collection;
use docshard_core::routing::plan::destination::destinations;
use docshard_core::routing::plan::statement::Statement;
use docshard_core::values::key::KeyRanges;

/// Sends checked statements while later ones are still being prepared, so that shards work in the meantime. Any number
/// may go to each shard; see [`write_checked`](super::writing::write_checked).
pub struct Feed<'a> {
    collection: &'a Collection,
    destinations: Vec<Located>,
    retryable: bool,
    role: Role,
    feed: remote::Feed,
}

impl<'a> Feed<'a> {
    /// Returns None if this database is one of the shards: it cannot work in the meantime.
    pub fn open(collection: &'a Collection) -> Result<Option<Self>> {
        require_claim()?;
        let destinations = locate(&destinations(collection, &KeyRanges::all())?)?;
        if destinations.iter().any(|d| d.shard.place == Place::Local) {
            return Ok(None);
        }
        let retryable = can_retry(&destinations);
        let role = grants::require(collection, Level::Write)?;
        Ok(Some(Self { collection, destinations, retryable, role, feed: remote::Feed::default() }))
    }

    /// Sends a statement to a shard. Nothing else may be sent to shards before [`Feed::finish`], unless an error ends
    /// the transaction.
    pub fn send(&mut self, shard: ShardId, statement: Statement) -> Result<()> {
        fault::point("dispatch.feeding")?;
        let destination = self.destinations.iter().find(|d| d.shard.id == shard);
        let (destination, server) = destination
            .and_then(|d| match d.shard.place {
                Place::Remote(server) => Some((d, server)),
                Place::Local => None,
            })
            .ok_or_else(|| error!(Kind::InternalError, "{} has no shard {shard}", self.collection.namespace))?;
        let params = statement.params_at(destination.version);
        let sent = self.feed.send(&remote::Request {
            server,
            role: self.role,
            preamble: None,
            statement: sql(&statement, &params),
            write: true,
            scope: if self.destinations.len() == 1 { RequestScope::WholeStatement } else { RequestScope::OneOfSeveral },
        });
        sent.map_err(|error| failed(&self.destinations, self.retryable, error))
    }

    /// Waits until all statements have been answered.
    pub fn finish(self) -> Result<()> {
        self.feed.finish().map_err(|error| failed(&self.destinations, self.retryable, error))
    }
}
