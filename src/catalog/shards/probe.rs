//! Queries the properties of a node before it becomes a shard.

use crate::pg::error::{Error, Result};
use crate::pg::spi::param::Param;
use crate::remote::{Row, Session};
use docshard_core::cluster::standing::Identity;
use docshard_core::error::Kind;

/// The properties of a node.
pub(super) struct Probe {
    pub(super) identity: Identity,
    /// the extension's version that is installed there; None if its files are missing
    pub(super) default_version: Option<String>,
    /// the extension's version in the database; None without the extension
    pub(super) version: Option<String>,
    pub(super) encoding: String,
    pub(super) prepared_transactions: bool,
    /// the login role is a superuser there
    pub(super) superuser: bool,
}

pub(super) fn probe(session: &mut Session) -> Result<Probe> {
    let rows = session.query(
        "SELECT (SELECT system_identifier FROM pg_catalog.pg_control_system()), d.oid::pg_catalog.int8, \
           (SELECT default_version FROM pg_catalog.pg_available_extensions WHERE name = 'docshard'), \
           (SELECT extversion FROM pg_catalog.pg_extension WHERE extname = 'docshard'), \
           pg_encoding_to_char(d.encoding)::text, current_setting('max_prepared_transactions') <> '0', \
           current_setting('is_superuser') = 'on' \
         FROM pg_catalog.pg_database d WHERE datname = current_database()",
        &[],
    )?;
    let decode = |row: &Row| {
        Some(Probe {
            // PostgreSQL shows the unsigned number as a signed one.
            identity: Identity { system: row.i64(0)?.cast_unsigned(), database: u32::try_from(row.i64(1)?).ok()? },
            default_version: row.text(2).map(str::to_owned),
            version: row.text(3).map(str::to_owned),
            encoding: row.text(4)?.to_owned(),
            prepared_transactions: row.bool(5)?,
            superuser: row.bool(6)?,
        })
    };
    let unknown = || Error::new(Kind::InternalError, "the node does not report its database");
    rows.first().and_then(decode).ok_or_else(unknown)
}

/// The database's name as a shard of this cluster, from its table `docshard_data.node`; None if it is not a shard.
pub(super) fn mark(session: &mut Session, probe: &Probe, cluster: i64) -> Result<Option<String>> {
    if probe.version.is_none() {
        return Ok(None);
    }
    let rows = session.query("SELECT shard FROM docshard_data.node WHERE cluster_id = $1", &[Param::Int8(cluster)])?;
    Ok(rows.first().and_then(|row| row.text(0)).map(str::to_owned))
}
