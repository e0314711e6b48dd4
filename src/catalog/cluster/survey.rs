//! Queries all shards at once, with a time limit, for reports. Some of the shards may be unreachable.
//!
//! Each shard returns its cluster, name and position with the rows. The answer of another database, or of an old copy of the shard,
//! counts as an error.

use super::contacts;
use crate::catalog::cache;
use crate::catalog::cluster::identity::cluster_id;
use crate::catalog::cluster::shard::Shard;
use crate::pg::error::{Error, Result};
use crate::pg::spi::{self, SpiRow};
use crate::remote;
use crate::store;
use crate::store::contacts::Contact;
use docshard_core::cluster::handshake::{Member, Position};
use docshard_core::error::Kind;
use docshard_core::routing::protocol::shard_tables::with_mark;
use docshard_core::routing::protocol::{Answer, Call};
use docshard_core::sql::column::Column;
use docshard_core::sql::param::Param;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// The answer of a shard, or its error.
#[derive(Debug)]
pub struct ShardAnswer<A> {
    /// the shard
    pub shard: Rc<Shard>,
    pub answer: Result<A>,
    /// how long it took; None without an answer
    pub latency: Option<Duration>,
}

/// Calls every shard. The answers are in the order of the shards' numbers. The call must only read.
pub fn call<C: Call>(call: &C, limit: Duration) -> Result<Vec<ShardAnswer<C::Answer>>> {
    let answers = rows(&call.statement(), &call.params(), C::Answer::COLUMNS, limit)?;
    let of = |ShardAnswer { shard, answer, latency }| {
        let decode = |rows: Vec<SpiRow>| C::decode(&rows).map_err(|error| error.at_shard(&shard.name));
        ShardAnswer { answer: answer.and_then(decode), shard, latency }
    };
    Ok(answers.into_iter().map(of).collect())
}

/// Runs a statement with columns of these types on every shard. The answers are in the order of the shards' numbers.
fn rows(
    statement: &str,
    params: &[Param<'_>],
    columns: &[Column],
    limit: Duration,
) -> Result<Vec<ShardAnswer<Vec<SpiRow>>>> {
    let mut shards: Vec<_> = cache::shards()?.values().cloned().collect();
    shards.sort_by_key(|shard| shard.id);
    // A shard without rows returns a row of NULLs.
    let types = [Column::INT8, Column::BYTES, Column::BYTES];
    let types = types.into_iter().chain(columns.iter().map(|column| column.or_null())).collect();
    let own = 3..3 + columns.len();
    let servers: Vec<_> = shards.iter().filter_map(|shard| shard.oid()).collect();
    let sql = with_mark(statement);
    // Read before the shards are asked, as their counters may advance meanwhile.
    let known: HashMap<_, _> = store::contacts::all()?
        .iter()
        .map(|Contact { shard, timeline, counter, .. }| (*shard, Position { timeline: *timeline, counter: *counter }))
        .collect();
    let cluster = cluster_id()?;
    let remotes: Vec<_> = shards.iter().filter(|shard| !shard.is_local()).collect();
    let accept = |at: usize, rows: &[remote::RemoteRow]| check(remotes[at], cluster, known.get(&remotes[at].id), rows);
    let mut surveyed = remote::survey(&servers, &sql, params, types, limit, &accept)?.into_iter();
    let mut answers = Vec::with_capacity(shards.len());
    let cells = |row: &remote::RemoteRow| own.clone().map(|column| row.get(column).map(<[u8]>::to_vec)).collect();
    for shard in shards.iter().cloned() {
        answers.push(match shard.oid().and_then(|_| surveyed.next()) {
            Some(answer) => {
                let is_joined = |row: &&remote::RemoteRow| own.clone().any(|column| row.get(column).is_some());
                let rows =
                    answer.rows.map(|rows| rows.iter().filter(is_joined).map(|row| SpiRow::new(cells(row))).collect());
                ShardAnswer { latency: answer.latency, answer: rows, shard }
            }
            None => {
                let began = Instant::now();
                let answer = spi::query(statement, params);
                ShardAnswer { latency: answer.is_ok().then(|| began.elapsed()), answer, shard }
            }
        });
    }
    Ok(answers)
}

/// Refuses rows that do not come from the expected shard, at the known position or a later one.
fn check(shard: &Shard, cluster: i64, known: Option<&Position>, rows: &[remote::RemoteRow]) -> Result<()> {
    for row in rows {
        check_mark(shard, cluster, row.i64(0).zip(row.text(1)))?;
        if let Some(known) = known {
            contacts::check(&shard.name, *known, row.text(2))?;
        }
    }
    if rows.is_empty() { check_mark(shard, cluster, None) } else { Ok(()) }
}

/// Refuses a database that is not this shard: `mark` is what its table `node` says.
fn check_mark(shard: &Shard, cluster: i64, mark: Option<(i64, &str)>) -> Result<()> {
    if let Some((theirs, name)) = mark {
        let wanted = Member { cluster, shard: shard.name.clone() };
        return wanted.require(&Member { cluster: theirs, shard: name.to_owned() });
    }
    let message = format!("the address of shard \"{}\" leads to a database that is not a shard", shard.name);
    Err(Error::new(Kind::HostUnreachable, message)
        .with_hint("docshard.set_shard_address() gives the shard another address."))
}
