//! Runs statements and calls on shards as the service role, in the caller's transaction. Writes through this module change metadata, so
//! they require that the keeper holds the shards' locks: see [`identity`].

use super::identity;
use crate::catalog::cache;
use crate::catalog::cluster::shard::Shard;
use crate::pg::error::{Result, catch_violation};
use crate::pg::spi::{self, SpiRow};
use crate::remote::{self, RequestScope, Role};
use docshard_core::cluster::chunk_map::ShardId;
use docshard_core::routing::protocol::{Answer, Call};
use docshard_core::sql::column::Column;
use docshard_core::sql::param::Param;
use docshard_core::sql::record::{Record, decode_all};
use std::borrow::Cow;

/// Runs a statement on a shard; it commits or rolls back with the caller's transaction.
pub fn run_on(shard: &Shard, sql: &str, params: &[Param<'_>]) -> Result<()> {
    only(run_at_once(&[(shard, params)], sql, &[], true)?).map(drop)
}

/// Calls a shard; the effects commit or roll back with the caller's transaction.
pub fn call_on<C: Call>(shard: &Shard, call: &C) -> Result<C::Answer> {
    C::decode(&only(run_at_once(&[(shard, &call.params())], &call.statement(), C::Answer::COLUMNS, true)?)?)
}

/// Like [`call_on`], for a call that only reads.
pub fn read_call_on<C: Call>(shard: &Shard, call: &C) -> Result<C::Answer> {
    C::decode(&only(run_at_once(&[(shard, &call.params())], &call.statement(), C::Answer::COLUMNS, false)?)?)
}

/// Like [`read_call_on`], for several shards at once. Each shard gets a call of its own, but the SQL text of all calls is the same.
pub fn read_calls_at_once<C: Call>(asked: &[(&Shard, C)]) -> Result<Vec<C::Answer>> {
    let Some((_, first)) = asked.first() else { return Ok(Vec::new()) };
    let params: Vec<_> = asked.iter().map(|(_, call)| call.params()).collect();
    let asked: Vec<_> = asked.iter().zip(&params).map(|((shard, _), params)| (*shard, &params[..])).collect();
    let answers = run_at_once(&asked, &first.statement(), C::Answer::COLUMNS, false)?;
    answers.iter().map(|rows| C::decode(rows)).collect()
}

/// Like [`call_on`], for several shards at once.
pub fn call_on_all<C: Call<Answer = ()>>(shards: &[ShardId], call: &C) -> Result<()> {
    let shards = shards.iter().map(|id| cache::shard(*id)).collect::<Result<Vec<_>>>()?;
    let params = call.params();
    let asked: Vec<_> = shards.iter().map(|shard| (&**shard, &params[..])).collect();
    run_at_once(&asked, &call.statement(), <() as Answer>::COLUMNS, true).map(drop)
}

/// The rows of a statement on a shard.
pub fn query_on<T: Record>(shard: &Shard, sql: &str, params: &[Param<'_>]) -> Result<Vec<T>> {
    decode_all("a statement", &only(run_at_once(&[(shard, params)], sql, T::WIRE, true)?)?)
}

fn only<T>(answers: Vec<Vec<T>>) -> Result<Vec<T>> {
    Ok(answers.into_iter().next().unwrap_or_default())
}

/// The rows of a statement on several shards at once. The local shard runs it while the others do.
fn run_at_once(
    asked: &[(&Shard, &[Param<'_>])],
    sql: &str,
    columns: &'static [Column],
    write: bool,
) -> Result<Vec<Vec<SpiRow>>> {
    let request = |&(shard, params): &(&Shard, _)| remote::Request {
        server: shard.oid(),
        role: Role::Service,
        preamble: None,
        statement: remote::Sql { sql, params: Cow::Borrowed(params), columns },
        write,
        scope: RequestScope::Metadata,
    };
    let mut streams = remote::start(&asked.iter().map(request).collect::<Vec<_>>())?;
    let mut local = Vec::new();
    for (_, params) in asked.iter().filter(|(shard, _)| shard.is_local()) {
        local = catch_violation(|| spi::query(sql, params))?;
    }
    remote::await_all(&mut streams)?;
    if write {
        // This comes after the answers, so that an unreachable shard is reported as unreachable.
        identity::require_kept(asked.iter().map(|(shard, _)| *shard))?;
    }
    let rows = |stream: Option<remote::Stream>| match stream {
        Some(mut stream) => rows_of(&mut stream, columns.len()),
        None => Ok(std::mem::take(&mut local)),
    };
    streams.into_iter().map(rows).collect()
}

fn rows_of(stream: &mut remote::Stream, columns: usize) -> Result<Vec<SpiRow>> {
    let cells = |row: &remote::RemoteRow| (0..columns).map(|column| row.get(column).map(<[u8]>::to_vec)).collect();
    Ok(stream.rows()?.iter().map(|row| SpiRow::new(cells(row))).collect())
}
