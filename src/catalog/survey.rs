//! Queries all shards at once, with a time limit, for reports. Some of the shards may be unreachable.
//!
//! Each shard returns its cluster, name and position with the rows. The answer of another database, or of an old copy of the shard,
//! counts as an error.

use super::cluster::cluster_id;
use super::{cache, contacts};
use crate::catalog::shard::Shard;
use crate::pg::error::{Error, Result};
use crate::pg::spi::{self, Row};
use crate::remote;
use crate::store;
use crate::store::contacts::Contact;
use docshard_core::cluster::handshake::{Member, Position};
use docshard_core::error::Kind;
use docshard_core::routing::protocol::node::Identity;
use docshard_core::routing::protocol::{Answer, Call};
use docshard_core::sql::column::Column;
use docshard_core::sql::param::Param;
use docshard_core::sql::record::{Record, decode_all};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// The rows of a shard, or its error.
#[derive(Debug)]
pub struct ShardAnswer<T> {
    /// the shard
    pub shard: Rc<Shard>,
    pub rows: Result<Vec<T>>,
    /// how long it took; None without an answer
    pub latency: Option<Duration>,
}

/// The answer of a shard to a call, or its error.
pub struct Called<A> {
    /// the shard
    pub shard: Rc<Shard>,
    /// the answer, or the error
    pub answer: Result<A>,
}

/// Calls every shard, by number.
pub fn call<C: Call>(call: &C, limit: Duration) -> Result<Vec<Called<C::Answer>>> {
    let columns = (&C::SIGNATURE.columns()[..], C::Answer::COLUMNS);
    let answers = rows(&C::SIGNATURE.invocation(), columns, &call.params(), limit)?;
    let of = |ShardAnswer { shard, rows, .. }| Called { shard, answer: rows.and_then(|rows| C::decode(&rows)) };
    Ok(answers.into_iter().map(of).collect())
}

/// Asks every shard, by number, for the rows of `from`, a function call or a subquery; reads only.
pub fn ask<T: Record>(from: &str, params: &[Param<'_>], limit: Duration) -> Result<Vec<ShardAnswer<T>>> {
    let names: Vec<_> = T::COLUMNS.iter().map(|(name, _)| *name).collect();
    let of = |ShardAnswer { shard, rows, latency }| {
        let rows =
            rows.and_then(|rows: Vec<Row>| decode_all("a report", &rows).map_err(|error| error.at_shard(&shard.name)));
        ShardAnswer { shard, rows, latency }
    };
    Ok(rows(from, (&names, T::WIRE), params, limit)?.into_iter().map(of).collect())
}

/// Asks every shard, by number, for columns of these names and types.
fn rows(
    from: &str,
    (columns, types): (&[&str], &[Column]),
    params: &[Param<'_>],
    limit: Duration,
) -> Result<Vec<ShardAnswer<Row>>> {
    let mut shards: Vec<_> = cache::shards()?.values().cloned().collect();
    shards.sort_by_key(|shard| shard.id);
    let columns: Vec<_> = columns.iter().map(|column| format!("a.{column}")).collect();
    let (count, columns) = (columns.len(), columns.join(", "));
    // The left join returns a row of NULLs for a shard without rows.
    let joined = types.iter().map(|column| column.or_null());
    let types = [Column::INT8, Column::BYTES, Column::BYTES].into_iter().chain(joined).collect();
    let servers: Vec<_> = shards.iter().filter_map(|shard| shard.place.server()).collect();
    let sql = format!(
        "SELECT n.cluster_id, n.shard, {}, {columns} FROM docshard_data.node n LEFT JOIN LATERAL (SELECT * FROM {from}) AS a ON true",
        Identity::SIGNATURE.invocation()
    );
    // Read before the shards are asked, as their counters may advance meanwhile.
    let known: HashMap<_, _> = store::contacts::all()?
        .iter()
        .map(|Contact { shard, timeline, counter, .. }| (*shard, Position { timeline: *timeline, counter: *counter }))
        .collect();
    let cluster = cluster_id()?;
    let remotes: Vec<_> = shards.iter().filter(|shard| shard.place.server().is_some()).collect();
    let accept = |at: usize, rows: &[remote::Row]| check(remotes[at], cluster, known.get(&remotes[at].id), rows);
    let mut surveyed = remote::survey(&servers, &sql, params, types, limit, &accept)?.into_iter();
    let mut answers = Vec::with_capacity(shards.len());
    let cells = |row: &remote::Row| (3..count + 3).map(|column| row.get(column).map(<[u8]>::to_vec)).collect();
    for shard in shards.iter().cloned() {
        answers.push(match shard.place.server().and_then(|_| surveyed.next()) {
            Some(answer) => {
                let is_joined = |row: &&remote::Row| (3..count + 3).any(|column| row.get(column).is_some());
                let rows =
                    answer.rows.map(|rows| rows.iter().filter(is_joined).map(|row| Row::new(cells(row))).collect());
                ShardAnswer { latency: answer.latency, rows, shard }
            }
            None => {
                let began = Instant::now();
                let rows = spi::query(&format!("SELECT {columns} FROM (SELECT * FROM {from}) AS a"), params);
                ShardAnswer { latency: rows.is_ok().then(|| began.elapsed()), rows, shard }
            }
        });
    }
    Ok(answers)
}

/// Refuses rows that do not come from the expected shard, at the known position or a later one.
fn check(shard: &Shard, cluster: i64, known: Option<&Position>, rows: &[remote::Row]) -> Result<()> {
    for row in rows {
        check_mark(shard, cluster, row.i64(0).zip(row.text(1)))?;
        if let Some(known) = known {
            contacts::check(&shard.name, *known, row.text(2))?;
        }
    }
    if rows.is_empty() { check_mark(shard, cluster, None) } else { Ok(()) }
}

/// Refuses a database that is not this shard: `mark` is what its table `docshard_data.node` says.
fn check_mark(shard: &Shard, cluster: i64, mark: Option<(i64, &str)>) -> Result<()> {
    if let Some((theirs, name)) = mark {
        let wanted = Member { cluster, shard: shard.name.clone() };
        return wanted.require(&Member { cluster: theirs, shard: name.to_owned() });
    }
    let message = format!("the address of shard \"{}\" leads to a database that is not a shard", shard.name);
    Err(Error::new(Kind::HostUnreachable, message)
        .with_hint("docshard.set_shard_address() gives the shard another address."))
}
