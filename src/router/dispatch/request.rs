//! The parts that all requests to a shard have in common.

use crate::catalog::cache;
use crate::catalog::cluster::shard::Shard;
use crate::pg::error::Result;
use crate::pg::fault;
use crate::remote;
use crate::shard::placement::Placement;
use docshard_core::routing::model::Collection;
use docshard_core::routing::plan::destination::Destination;
use docshard_core::routing::plan::statement::Statement;
use docshard_core::sql::param::Param;
use std::rc::Rc;

/// A destination, and where it is.
pub(super) struct Located {
    pub(super) shard: Rc<Shard>,
    pub(super) version: i64,
}

/// Looks up where destinations are.
pub(super) fn locate(destinations: &[Destination]) -> Result<Vec<Located>> {
    let located = |to: &Destination| Ok(Located { shard: cache::shard(to.shard)?, version: to.version });
    destinations.iter().map(located).collect()
}

/// The statement as it is sent, with these parameters.
pub(super) fn sql<'a>(statement: &'a Statement, params: &'a [Param<'a>]) -> remote::Sql<'a> {
    remote::Sql { sql: &statement.sql, params, columns: statement.columns }
}

pub(super) fn assumed(collection: &Collection, destination: &Located) -> Placement {
    Placement { token: collection.token, version: destination.version }
}

pub(super) fn start(requests: &[remote::Request<'_>]) -> Result<Vec<remote::Stream>> {
    if requests.is_empty() {
        return Ok(Vec::new());
    }
    fault::point("dispatch.sending")?;
    remote::start(requests)
}
