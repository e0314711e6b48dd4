//! Administration of chunks: splitting, merging, moving; and what moves call at shards.

use super::{answer, required, run, with_options};
use crate::catalog::cluster::check_may_change;
use crate::migration::{self, jobs};
use crate::operation::chunks::{self, MoveRange, Which};
use crate::operation::source::Source;
use crate::operation::table;
use crate::pg::datum::json::Json;
use crate::storage::lock::{self, Tag};
use pgrx::prelude::*;

/// Splits the chunk that holds the key `middle`, there. A hashed field takes the hash itself, a 64-bit integer.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn split_at(ns: &str, middle: Json) -> Json {
    answer(|| chunks::split_at(ns, Source::Text(&middle.0)))
}

/// Splits the chunk that holds the document `find` in halves, at the median of its keys.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn split_find(ns: &str, find: Json) -> Json {
    answer(|| chunks::split(ns, Which::Find(Source::Text(&find.0))))
}

/// Takes the mark "jumbo" from the chunk that holds the document `find`: the balancer tries again to split it.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn clear_jumbo_flag(ns: &str, find: Json) -> Json {
    answer(|| chunks::clear_jumbo_flag(ns, Source::Text(&find.0)))
}

/// Merges the chunks between two bounds, `[{"field": min}, {"field": max}]`, which must be on one shard.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn merge_chunks(ns: &str, bounds: Json) -> Json {
    answer(|| chunks::merge(ns, Source::Text(&bounds.0)))
}

/// Moves the chunk that holds the document `find` to a shard. Options: forceJumbo.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn move_chunk(ns: &str, find: Json, to: &str, options: default!(Json, "'{}'")) -> Json {
    answer(|| {
        with_options(&options, &table::MOVE_CHUNK, |options| {
            chunks::move_chunk(ns, Source::Text(&find.0), to, options.flag("forceJumbo"))
        })
    })
}

/// Moves the range of keys from `min` up to but not including `max` to a shard; chunks are split at its ends. Where one end
/// is null, the range has about the chunk size, and stays within a chunk. Options: forceJumbo.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn move_range(
    ns: Option<&str>,
    min: Option<Json>,
    max: Option<Json>,
    to: Option<&str>,
    options: default!(Option<Json>, "'{}'"),
) -> Json {
    answer(|| {
        let (ns, to, options) = (required(ns, "ns")?, required(to, "to")?, required(options, "options")?);
        let (min, max) = (min.map(|min| min.parse()).transpose()?, max.map(|max| max.parse()).transpose()?);
        with_options(&options, &table::MOVE_RANGE, |options| {
            let force_jumbo = options.flag("forceJumbo");
            MoveRange { min: min.as_ref(), max: max.as_ref(), to, force_jumbo }.run(ns)
        })
    })
}

/// Ends a move that is under way, by its number in `docshard.migrations`: the chunk stays where it is. If the move is
/// decided already it is completed, and the answer says so.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn abort_migration(migration: i64) -> Json {
    answer(|| chunks::abort_migration(migration))
}

/// Ends all moves of chunks of a collection.
#[pg_extern(name = "abort_migration", volatile, parallel_unsafe, requires = ["catalog"])]
fn abort_migration_of(ns: &str) -> Json {
    answer(|| chunks::abort_migrations_of(ns))
}

/// Completes or takes back moves whose process is gone, and removes what they left on shards; the balancer does it by
/// itself. Answers how many moves could not be ended, as a shard cannot be reached.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn recover_moves() -> i64 {
    run(|| check_may_change().and_then(|()| jobs::recover_and_wait()))
}

fn holders(tag: Tag) -> TableIterator<'static, (name!(holder, String), name!(pid, Option<i32>))> {
    TableIterator::new(run(|| lock::holding_processes(tag)))
}

/// Who holds a collection's lock on this shard: the transaction, and its process unless it is prepared.
#[pg_extern(schema = "docshard_internal", volatile, parallel_unsafe, requires = ["catalog"])]
fn collection_writers(collection: i32) -> TableIterator<'static, (name!(holder, String), name!(pid, Option<i32>))> {
    holders(Tag::Collection(collection))
}

/// Who holds a migration's lock on this shard: those who write to its range.
#[pg_extern(schema = "docshard_internal", volatile, parallel_unsafe, requires = ["catalog"])]
fn range_writers(migration: i64) -> TableIterator<'static, (name!(holder, String), name!(pid, Option<i32>))> {
    holders(Tag::Migration(migration))
}

/// Excludes all writers to the range of a migration on this shard until the transaction ends.
#[pg_extern(schema = "docshard_internal", volatile, parallel_unsafe, requires = ["catalog"])]
fn exclude_range_writers(migration: i64) {
    migration::exclude_range_writers(migration);
}

/// Lets the writers go on that this session has excluded.
#[pg_extern(schema = "docshard_internal", volatile, parallel_unsafe, requires = ["catalog"])]
fn release_range_writers(migration: i64) {
    migration::release_range_writers(migration);
}
