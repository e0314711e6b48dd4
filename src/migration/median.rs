//! Where to split a chunk: at the median of the keys that are really there.

use super::donor::range;
use crate::catalog::cache;
use crate::catalog::model::Place;
use crate::ownership::table;
use crate::pg::error::{Error, Result};
use crate::pg::spi;
use crate::pg::spi::param::Param;
use crate::remote::{self, Share};
use docshard_core::cluster::chunk_map::Chunk;
use docshard_core::error::Kind;
use docshard_core::values::key::KeyPattern;

/// The key that halves a chunk's documents; if the smallest key is already that, the next one.
///
/// # Errors
/// `OperationFailed` if the chunk has fewer than two different keys.
pub fn median(collection: i32, pattern: &KeyPattern, chunk: &Chunk) -> Result<Vec<u8>> {
    let end = (chunk.max != pattern.max_bound()).then_some(chunk.max.as_slice());
    let mut params = vec![Param::Bytea(&chunk.min)];
    params.extend(end.map(Param::Bytea));
    let (table, range) = (table::name(collection), range(end));
    let key = first_bytes(
        chunk,
        &format!(
            "WITH least AS (SELECT skey AS key FROM {table} WHERE {range} ORDER BY skey LIMIT 1), \
                  middle AS (SELECT skey AS key FROM {table} WHERE {range} ORDER BY skey \
                             OFFSET (SELECT count(*) / 2 FROM {table} WHERE {range}) LIMIT 1) \
             SELECT CASE WHEN middle.key > least.key THEN middle.key \
                         ELSE (SELECT skey FROM {table} WHERE {range} AND skey > least.key ORDER BY skey LIMIT 1) END \
             FROM least, middle"
        ),
        &params,
    )?;
    key.ok_or_else(|| {
        Error::new(
            Kind::OperationFailed,
            "Unable to find median in chunk: it holds fewer than two different values of the shard key",
        )
        .with_hint("A shard key with more values can be split; this chunk cannot.")
    })
}

/// The first column of the only row of a reading statement on the chunk's shard.
fn first_bytes(chunk: &Chunk, sql: &str, params: &[Param<'_>]) -> Result<Option<Vec<u8>>> {
    match cache::shard(chunk.shard)?.place {
        Place::Local => Ok(spi::query(sql, params)?.first().and_then(|row| row.get(0).map(<[u8]>::to_vec))),
        Place::Remote(server) => {
            let statement = remote::Sql { sql, params };
            let mut streams = remote::start(&[remote::Request {
                server,
                role: remote::Role::Service,
                preamble: None,
                statement,
                write: false,
                share: Share::Part,
                few_rows: true,
            }])?;
            remote::await_all(&mut streams)?;
            let mut found = None;
            for stream in &mut streams {
                while let Some(row) = stream.next()? {
                    found = row.get(0).map(<[u8]>::to_vec);
                }
            }
            Ok(found)
        }
    }
}
