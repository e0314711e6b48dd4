//! Runs calls and declared statements of the protocol in this database, as other nodes run them at a shard.

use crate::pg::error::Result;
use crate::pg::spi;
use docshard_core::routing::protocol::Call;
use docshard_core::routing::protocol::shard_tables::{NodeRow, ReadNode};

/// Makes a call here, in a new snapshot.
pub fn call<C: Call>(call: &C) -> Result<C::Answer> {
    C::decode(&spi::query(&call.statement(), &call.params())?)
}

/// Like [`call`], for a call that only reads: it runs in the active snapshot.
pub fn read<C: Call>(call: &C) -> Result<C::Answer> {
    C::decode(&spi::read(&call.statement(), &call.params())?)
}

/// This database's row of `docshard_data.node`; None if it is not a shard of another database's cluster.
pub fn node() -> Result<Option<NodeRow>> {
    Ok(call(&ReadNode {})?.pop())
}
