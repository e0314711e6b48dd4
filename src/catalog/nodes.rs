//! Running administrators' statements on shards, inside the caller's transaction, as the service role.

use super::cache;
use super::model::{Place, Shard};
use crate::pg::error::{Result, catch_unique_violation};
use crate::pg::spi::param::Param;
use crate::pg::spi::{self, Row};
use crate::protocol::Call;
use crate::remote::{self, Role, Share};
use docshard_core::cluster::chunk_map::ShardId;

/// Runs a statement on a shard; it commits or rolls back with the caller's transaction.
pub fn run_on(shard: &Shard, sql: &str, params: &[Param<'_>]) -> Result<()> {
    query_on(shard, sql, params, 0).map(|_| ())
}

/// Calls a shard; what it does commits or rolls back with the caller's transaction.
///
/// # Errors
/// The shard's; those of [`Call::decode`].
pub fn call_on<C: Call>(shard: &Shard, call: &C) -> Result<C::Answer> {
    C::decode(&query_on(shard, &C::statement(), &call.params(), C::SIGNATURE.columns().len())?)
}

/// As [`call_on`], for a call that only reads.
///
/// # Errors
/// As [`call_on`].
pub fn read_call_on<C: Call>(shard: &Shard, call: &C) -> Result<C::Answer> {
    C::decode(&read_on(shard, &C::statement(), &call.params(), C::SIGNATURE.columns().len())?)
}

/// As [`read_call_on`], several shards at once, each with a call of its own.
///
/// # Errors
/// As [`call_on`], of any shard.
pub fn read_calls_at_once<C: Call>(asked: &[(&Shard, C)]) -> Result<Vec<C::Answer>> {
    let params: Vec<_> = asked.iter().map(|(_, call)| call.params()).collect();
    let asked: Vec<_> = asked.iter().zip(&params).map(|((shard, _), params)| (*shard, &params[..])).collect();
    let answers = read_at_once(&asked, &C::statement(), C::SIGNATURE.columns().len())?;
    answers.iter().map(|rows| C::decode(rows)).collect()
}

/// Calls several shards, all at once, as [`call_on`] does one.
///
/// # Errors
/// As [`call_on`], of any shard.
pub fn call_on_all<C: Call<Answer = ()>>(shards: &[ShardId], call: &C) -> Result<()> {
    run_on_all(shards, &C::statement(), &call.params())
}

/// The rows of a statement on a shard, `columns` of each.
pub fn query_on(shard: &Shard, sql: &str, params: &[Param<'_>], columns: usize) -> Result<Vec<Row>> {
    ask(shard, sql, params, columns, true)
}

/// The rows of a statement that only reads, on a shard, `columns` of each; it opens no transaction there.
pub fn read_on(shard: &Shard, sql: &str, params: &[Param<'_>], columns: usize) -> Result<Vec<Row>> {
    ask(shard, sql, params, columns, false)
}

fn ask(shard: &Shard, sql: &str, params: &[Param<'_>], columns: usize, write: bool) -> Result<Vec<Row>> {
    let Place::Remote(server) = shard.place else { return spi::query(sql, params) };
    let statement = remote::Sql { sql, params };
    let mut streams = remote::start(&[remote::Request {
        server,
        role: Role::Service,
        preamble: None,
        statement,
        write,
        share: Share::Part,
        few_rows: false,
    }])?;
    remote::await_all(&mut streams)?;
    let mut rows = Vec::new();
    for stream in &mut streams {
        rows.extend(rows_of(stream, columns)?);
    }
    Ok(rows)
}

fn rows_of(stream: &mut remote::Stream, columns: usize) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    while let Some(row) = stream.next()? {
        rows.push(Row::new((0..columns).map(|c| row.get(c).map(<[u8]>::to_vec)).collect()));
    }
    Ok(rows)
}

/// The rows of a statement that only reads, on several shards at once, each with parameters of its own.
pub fn read_at_once(asked: &[(&Shard, &[Param<'_>])], sql: &str, columns: usize) -> Result<Vec<Vec<Row>>> {
    let requests: Vec<_> = asked
        .iter()
        .filter_map(|&(shard, params)| match shard.place {
            Place::Local => None,
            Place::Remote(server) => {
                let statement = remote::Sql { sql, params };
                Some(remote::Request {
                    server,
                    role: Role::Service,
                    preamble: None,
                    statement,
                    write: false,
                    share: Share::Part,
                    few_rows: false,
                })
            }
        })
        .collect();
    let mut streams = if requests.is_empty() { Vec::new() } else { remote::start(&requests)? };
    remote::await_all(&mut streams)?;
    let mut streams = streams.into_iter();
    let mut answers = Vec::with_capacity(asked.len());
    for (shard, params) in asked {
        let stream = if shard.place == Place::Local { None } else { streams.next() };
        answers.push(match stream {
            None => spi::query(sql, params)?,
            Some(mut stream) => rows_of(&mut stream, columns)?,
        });
    }
    Ok(answers)
}

/// Runs the same statement on several shards, all at once.
fn run_on_all(shards: &[ShardId], sql: &str, params: &[Param<'_>]) -> Result<()> {
    let shards = shards.iter().map(|id| cache::shard(*id)).collect::<Result<Vec<_>>>()?;
    let requests: Vec<_> = shards
        .iter()
        .filter_map(|shard| match shard.place {
            Place::Local => None,
            Place::Remote(server) => {
                let statement = remote::Sql { sql, params };
                Some(remote::Request {
                    server,
                    role: Role::Service,
                    preamble: None,
                    statement,
                    write: true,
                    share: Share::Part,
                    few_rows: false,
                })
            }
        })
        .collect();
    let mut streams = if requests.is_empty() { Vec::new() } else { remote::start(&requests)? };
    if shards.iter().any(|shard| shard.place == Place::Local) {
        catch_unique_violation(|| spi::query(sql, params))?;
    }
    remote::await_all(&mut streams)?;
    for stream in &mut streams {
        while stream.next()?.is_some() {}
    }
    Ok(())
}
