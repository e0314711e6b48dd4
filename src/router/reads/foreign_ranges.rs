//! Finds shards that have documents outside of the ranges that they own. For each range that a shard does not own, one probe of the primary
//! key is enough. The statement checks the shard's version, so moves cause no false findings.

use crate::catalog::cache;
use crate::pg::error::Result;
use crate::pg::transaction::subtransaction;
use crate::router::dispatch::reading;
use crate::router::fresh_map::with_fresh_map;
use docshard_core::cluster::chunk_map::ShardId;
use docshard_core::error::{Kind, error};
use docshard_core::routing::model::Collection;
use docshard_core::routing::plan::conditions::Conditions;
use docshard_core::routing::plan::destination::{self, Destination};
use docshard_core::routing::plan::statement::{DOCUMENT_AND_KEY, Statement};
use docshard_core::routing::protocol::checked::Parameter;
use serde_json::Value as Json;
use std::collections::HashSet;

/// The most ranges of a shard that are reported.
const MAX_RANGES: usize = 20;

/// A shard with documents that it does not own.
pub struct Foreign {
    pub shard: String,
    /// the first shard key of each such range that has documents
    pub keys: Vec<Json>,
}

/// Asks the shards that have the collection, except those in `except`. Returns nothing for a collection that was dropped.
pub fn find(namespace: &str, except: &HashSet<ShardId>) -> Result<Vec<Foreign>> {
    with_fresh_map(namespace, |collection| match collection {
        Some(collection) => read(&collection, except),
        None => Ok(Vec::new()),
    })
}

fn read(collection: &Collection, except: &HashSet<ShardId>) -> Result<Vec<Foreign>> {
    let mut destinations = destination::placed(collection)?;
    destinations.retain(|one| !except.contains(&one.shard));
    let mut found = Vec::new();
    for destination in destinations {
        let Some(statement) = statement(collection, destination.shard) else { continue };
        let keys = probe(collection, destination, &statement)?;
        if !keys.is_empty() {
            found.push(Foreign { shard: cache::shard(destination.shard)?.name.clone(), keys });
        }
    }
    Ok(found)
}

/// Reads the keys in a subtransaction that is rolled back, which releases the table's lock. So no lock is held while another one
/// is waited for, which could deadlock with a drop or a change of layout.
fn probe(collection: &Collection, destination: Destination, statement: &Statement) -> Result<Vec<Json>> {
    let mut found = None;
    let ended = subtransaction::attempt(|| {
        let mut keys = Vec::new();
        for mut stream in reading::read_each(collection, &[destination], std::slice::from_ref(statement))? {
            while let Some(row) = stream.next_row()? {
                keys.push(collection.key.bound_to_json(row.bytes(0)));
            }
        }
        found = Some(keys);
        Err::<(), _>(error!(Kind::InternalError, "the subtransaction is rolled back"))
    });
    match found {
        Some(keys) => Ok(keys),
        None => ended.map(|()| Vec::new()),
    }
}

/// The statement that reads the first key of each range that a shard does not own; None if it owns all.
fn statement(collection: &Collection, shard: ShardId) -> Option<Statement> {
    let (mut lower, mut upper): (Vec<Vec<u8>>, Vec<Vec<u8>>) = (Vec::new(), Vec::new());
    for chunk in collection.map.chunks().filter(|chunk| chunk.shard != shard) {
        match upper.last_mut() {
            Some(last) if *last == chunk.min => *last = chunk.max,
            _ => {
                lower.push(chunk.min);
                upper.push(chunk.max);
            }
        }
    }
    if let Some(last) = upper.last_mut().filter(|last| **last == collection.key.max_bound()) {
        // An empty upper bound means none: the last range includes the greatest key.
        last.clear();
    }
    if lower.is_empty() {
        return None;
    }
    let mut conditions = Conditions::new(collection);
    let (lower, upper) =
        (conditions.param(Parameter::BytesArray(lower)), conditions.param(Parameter::BytesArray(upper)));
    let sql = format!(
        "SELECT d.skey, d.id FROM ROWS FROM (pg_catalog.unnest({lower}::bytea[]), pg_catalog.unnest({upper}::bytea[])) AS r (lo, hi) \
         CROSS JOIN LATERAL (SELECT t.skey, t.id FROM {} t WHERE {} AND t.skey >= r.lo ORDER BY t.skey LIMIT 1) AS d \
         WHERE r.hi = ''::bytea OR d.skey < r.hi LIMIT {MAX_RANGES}",
        collection.table(),
        conditions.sql()
    );
    Some(conditions.into_statement(sql, DOCUMENT_AND_KEY))
}
