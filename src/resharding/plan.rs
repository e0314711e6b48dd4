//! Chooses the chunks of a new layout, by a sample of the documents.

use super::request::Target;
use crate::catalog::cache;
use crate::catalog::cluster::nodes::query_on;
use crate::catalog::cluster::settings;
use crate::catalog::collections::layout::{self, Layout, Wanted};
use crate::catalog::collections::zones;
use crate::pg::error::Result;
use docshard_core::cluster::chunk_map::Chunk;
use docshard_core::cluster::zone::ZoneRange;
use docshard_core::error::{Kind, error};
use docshard_core::query::specification;
use docshard_core::routing::model::Collection;
use docshard_core::routing::protocol::sql;
use docshard_core::sql::param::Param;
use docshard_core::values::key::KeyPattern;

/// About this number of pages of each collection is read for a sample.
const PAGES: i64 = 2_000;
/// About the largest number of documents in the sample.
const MAX_SAMPLE: f64 = 50_000.0;

/// A new layout; for [`Target::Key`] also the new shard keys of some documents.
pub(super) struct Planned {
    pub(super) layout: Layout,
    pub(super) sample: Vec<Vec<u8>>,
}

/// Returns the layout that a request describes, for a collection whose metadata are locked.
///
/// # Errors
/// `ShardKeyNotFound` for a document that cannot have the key; `ShardNotFound` for a shard that is being removed; `BadValue` if the zones'
/// ranges are needed and not given; `InvalidOptions` if an index is needed; those of [`layout::check`] and [`layout::divide`].
pub(super) fn layout(of: &Collection, target: &Target) -> Result<Planned> {
    let alone = |layout: Layout| Ok(Planned { layout, sample: Vec::new() });
    match target {
        Target::Same => {
            let chunks = of.map.chunks().collect();
            alone(Layout { key: of.key.clone(), unique: of.unique, chunks, zones: None })
        }
        Target::Refined(key) => alone(refined(of, &KeyPattern::parse(&specification::parse(key)?)?)?),
        Target::Shard(shard) => {
            cache::shard(*shard)?.require_takes_data()?;
            let key = KeyPattern::unsharded();
            let chunk = Chunk { min: key.min_bound(), max: key.max_bound(), shard: *shard };
            // The ranges of zones are those of the former key, so they are dropped.
            let zones = (!of.key.is_unsharded()).then(Vec::new);
            alone(Layout { key, unique: false, chunks: vec![chunk], zones })
        }
        Target::Key { key, unique, needs_index, chunks, zones } => {
            let key = KeyPattern::parse(&specification::parse(key)?)?;
            layout::check(of, &key, *unique)?;
            if zones.is_none() && of.key != key && !zones::of(&of.namespace)?.is_empty() {
                return Err(error!(Kind::BadValue, "Must specify value for zones field")
                    .with_hint("The collection's ranges of zones are of its present shard key."));
            }
            if *needs_index && layout::needs_index(&key) {
                layout::require_index(of, &key, *unique)?;
            }
            let (sample, bytes) = sample(of, &key)?;
            let zones = zones.as_deref().map(Target::zones);
            let zones = zones.as_deref();
            let wanted = Wanted { key: &key, unique: *unique, chunks: *chunks, zones, sample: sample.clone(), bytes };
            Ok(Planned { layout: layout::divide(of, wanted, settings::chunk_bytes()?)?, sample })
        }
    }
}

/// Returns the collection's layout with a shard key that begins with the present one. Bounds get MinKey for the new fields.
fn refined(of: &Collection, key: &KeyPattern) -> Result<Layout> {
    layout::check(of, key, of.unique)?;
    layout::require_index(of, key, of.unique)?;
    let highest = of.key.max_bound();
    let bound = |bound: &[u8]| match bound == highest {
        true => Ok(key.max_bound()),
        false => key.bound_from_json(&of.key.bound_to_json(bound)),
    };
    let chunk = |chunk: Chunk| Ok(Chunk { min: bound(&chunk.min)?, max: bound(&chunk.max)?, shard: chunk.shard });
    let chunks = of.map.chunks().map(chunk).collect::<Result<Vec<_>>>()?;
    let range = |range: &ZoneRange| {
        Ok(ZoneRange { min: bound(&range.min)?, max: bound(&range.max)?, zone: range.zone.clone() })
    };
    let zones = zones::of(&of.namespace)?.ranges().iter().map(range).collect::<Result<Vec<_>>>()?;
    Ok(Layout { key: key.clone(), unique: of.unique, chunks, zones: Some(zones) })
}

/// Returns the new keys of some documents, and the size of all documents in bytes.
fn sample(of: &Collection, key: &KeyPattern) -> Result<(Vec<Vec<u8>>, i64)> {
    let table = of.table();
    let mut sizes = Vec::new();
    for shard in of.map.shards() {
        let sql = format!(
            "SELECT pg_catalog.pg_table_size('{table}'), pg_catalog.pg_relation_size('{table}') \
                    / pg_catalog.current_setting('block_size')::pg_catalog.int8"
        );
        let size = query_on::<(i64, i64)>(&*cache::shard(shard)?, &sql, &[])?;
        sizes.extend(size.first().map(|(bytes, pages)| (shard, *bytes, *pages)));
    }
    let pages: i64 = sizes.iter().map(|(_, _, pages)| pages).sum();
    // The same share of each shard's pages is read, and of the documents in them, so that each document is equally
    // likely to be in the sample. A LIMIT would not do that: pages come in physical order, in which keys may ascend.
    let percent = (100.0 * PAGES as f64 / pages.max(1) as f64).min(100.0);
    let sampled = format!("FROM {table} AS t TABLESAMPLE SYSTEM ({percent})");
    let mut documents = 0;
    for (shard, ..) in &sizes {
        let sql = format!("SELECT pg_catalog.count(*) {sampled}");
        documents += query_on::<i64>(&*cache::shard(*shard)?, &sql, &[])?.iter().sum::<i64>();
    }
    let part = (MAX_SAMPLE / documents.max(1) as f64).min(1.0);
    let key = key.to_json().to_string();
    let mut keys = Vec::new();
    for (shard, ..) in &sizes {
        let sql = format!("SELECT {} {sampled} WHERE pg_catalog.random() < {part}", sql::shard_key("t.doc", "$1"));
        keys.extend(query_on::<Vec<u8>>(&*cache::shard(*shard)?, &sql, &[Param::Text(&key)])?);
    }
    Ok((keys, sizes.iter().map(|(_, bytes, _)| bytes).sum()))
}
