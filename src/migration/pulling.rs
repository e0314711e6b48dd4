//! The tables by which a recipient pulls documents from a donor: foreign tables over the donor's views, and the staging
//! table in which the documents arrive. Used by moves, and by changes of a collection's layout, which have several
//! donors.

use super::shard::{ShardSession, repair_hint};
use crate::catalog::cluster::shard::LOCAL_SERVER;
use crate::pg::error::Result;
use crate::shard::leftovers::{self, CHANGES, IDENTITY, SOURCE, STAGING};
use docshard_core::error::sqlstate::{INSUFFICIENT_PRIVILEGE, REFUSED_CONNECTION};
use docshard_core::routing::names;
use docshard_core::routing::protocol::access::SetServerAddress;
use docshard_core::routing::protocol::{Call, sql};
use docshard_core::sql::param::Param;
use docshard_core::sql::quote::{only_owner, quote_ident};

/// The most changed documents that are fetched at once. The recipient has all of them in memory, and they may be larger than those of the
/// sample from which `rows` is computed.
pub const MAX_FETCHED: i64 = 500;

/// The sources of one donor, as a recipient names them.
#[derive(Clone, Debug)]
pub struct Sources {
    /// the foreign table over the donor's report of its identity; None: the donor is this shard
    identity: Option<String>,
    /// the packed parts of the range
    pub packed: String,
    /// the captured changes
    pub changes: String,
    /// changed documents come with the order of their fields
    keeps_order: bool,
}

impl Sources {
    /// The sources of a donor. `donor`: its shard number; None for a move, which has only one donor.
    pub fn of(migration: i64, donor: Option<i32>, keeps_order: bool) -> Self {
        let table = |name| leftovers::table_of(migration, name, donor);
        Self { identity: Some(table(IDENTITY)), packed: table(SOURCE), changes: table(CHANGES), keeps_order }
    }

    /// The sources if the donor is the recipient's own shard.
    pub fn here(keeps_order: bool) -> Self {
        let view = |name| names::relation_name(name);
        Self { identity: None, packed: view("capture_packed"), changes: view("capture_changes"), keeps_order }
    }

    /// The columns of a change that are pulled.
    pub fn change_columns(&self) -> &'static str {
        if self.keeps_order { "seq, skey, id, doc, field_order" } else { "seq, skey, id, doc" }
    }

    /// The statements that create the foreign tables; `rows` is the number of changed documents that are fetched at once.
    fn creation(&self, server: &str, rows: i64) -> String {
        let Some(identity) = &self.identity else { return String::new() };
        let Self { packed, changes, keeps_order, .. } = self;
        let order = order_column(*keeps_order);
        let (server, rows) = (quote_ident(server), rows.clamp(1, MAX_FETCHED));
        let options = format!("schema_name '{}', async_capable 'false'", names::SCHEMA);
        format!(
            "CREATE FOREIGN TABLE {identity} (said text) SERVER {server} OPTIONS ({options}, table_name 'identity'); \
             CREATE FOREIGN TABLE {packed} (migration_id bigint, part bigint, documents bigint, packed text) \
             SERVER {server} OPTIONS ({options}, fetch_size '1', table_name 'capture_packed'); \
             CREATE FOREIGN TABLE {changes} (migration_id bigint, seq bigint, skey bytea, id bytea, doc jsonb{order}) \
             SERVER {server} OPTIONS ({options}, fetch_size '{rows}', table_name 'capture_changes'); {}",
            [identity, packed, changes].map(|table| only_owner(table)).concat()
        )
    }

    /// The SQL condition that the donor reports the identity `$n`, over the connection by which a statement pulls.
    /// PostgreSQL evaluates it first, once, even if there is nothing to pull.
    pub fn check_donor(&self, n: u32) -> String {
        match &self.identity {
            Some(identity) => {
                sql::check_donor(format_args!("(SELECT said FROM {identity})"), format_args!("${n}::text"))
            }
            None => format!("${n}::text IS NOT NULL"),
        }
    }

    /// Pull session: creates the foreign tables over the donor's views. It also reads from the donor, so that a
    /// recipient that cannot reach it is detected before any writer waits.
    pub fn create(&self, donor: &mut ShardSession, loader: &mut ShardSession, pulling: Pulling<'_>) -> Result<()> {
        if self.identity.is_none() {
            return Ok(());
        }
        let Pulling { puller, migration, expected, rows } = pulling;
        let hint = if donor.server == LOCAL_SERVER {
            "docshard.set_local_address() gives the shards the address of the router's own database.".to_owned()
        } else {
            repair_hint(&loader.name)
        };
        // The only privilege that can be missing is that on the foreign server.
        puller.execute(&self.creation(&donor.server, rows)).map_err(|error| {
            if error.sqlstate == INSUFFICIENT_PRIVILEGE { error.with_hint(hint.as_str()) } else { error }
        })?;
        let sql = format!("SELECT 1 FROM {} WHERE migration_id = $1 AND {} LIMIT 1", self.changes, self.check_donor(2));
        let mut reached = puller.query::<i32>(&sql, &[Param::Int8(migration), Param::Text(expected)]);
        // postgres_fdw takes the first host that accepts it, which may be an old primary. This router has reached the right one.
        if reached.as_ref().is_err_and(|error| error.sqlstate == REFUSED_CONNECTION)
            && let Some(address) = donor.address_with_host_first()?
        {
            let (names, values): (Vec<&str>, Vec<&str>) =
                address.iter().map(|(name, value)| (&**name, &**value)).unzip();
            SetServerAddress { server: &donor.server, options: &names, settings: &values }.call(loader)?;
            reached = puller.query(&sql, &[Param::Int8(migration), Param::Text(expected)]);
        }
        reached.map(drop).map_err(|mut error| {
            error.message = format!("the recipient cannot read from the donor: {}", error.message);
            error.with_hint(format!(
                "The foreign server {} on the recipient must lead to the donor, and the donor must accept its login. {hint}",
                quote_ident(&donor.server)
            ))
        })
    }
}

/// The definition of the column with a change's order of fields.
fn order_column(keeps_order: bool) -> &'static str {
    if keeps_order { ", field_order bytea" } else { "" }
}

/// A pull session, and what it pulls.
pub struct Pulling<'a> {
    pub puller: &'a mut ShardSession,
    /// the number of the move or change
    pub migration: i64,
    /// the identity that the donor must report
    pub expected: &'a str,
    /// the number of changed documents that are fetched at once
    pub rows: i64,
}

/// Pull session: creates the staging table, and removes what an earlier attempt has left.
pub fn create_staging(puller: &mut ShardSession, migration: i64, keeps_order: bool) -> Result<()> {
    let order = order_column(keeps_order);
    let staging = leftovers::table(migration, STAGING);
    puller.execute(&format!(
        "{}; CREATE UNLOGGED TABLE {staging} \
         (batch int, seq bigint, skey bytea, id bytea, doc jsonb, documents bigint, packed bytea{order}); \
         ALTER TABLE {staging} ALTER packed SET STORAGE EXTERNAL; \
         CREATE INDEX ON {staging} (batch); {}",
        leftovers::drop_tables(migration),
        only_owner(&staging)
    ))
}
