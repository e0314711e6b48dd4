//! Queries the properties of a node before it becomes a shard.

use crate::pg::error::Result;
use crate::remote::Session;
use docshard_core::cluster::standing::Identity;
use docshard_core::error::{Kind, error};
use docshard_core::sql::param::Param;
use docshard_core::sql::record::record;

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

struct Answer {
    system: i64,
    database: u32,
    default_version: Option<String>,
    version: Option<String>,
    encoding: String,
    prepared_transactions: bool,
    superuser: bool,
}

record! {
    Answer {
        system: i64, database: u32, default_version: Option<String>, version: Option<String>, encoding: String,
        prepared_transactions: bool, superuser: bool
    }
}

pub(super) fn probe(session: &mut Session) -> Result<Probe> {
    let answers: Vec<Answer> = session.query(
        "SELECT (SELECT system_identifier FROM pg_catalog.pg_control_system()), d.oid, \
           (SELECT default_version FROM pg_catalog.pg_available_extensions WHERE name = 'docshard'), \
           (SELECT extversion FROM pg_catalog.pg_extension WHERE extname = 'docshard'), \
           pg_encoding_to_char(d.encoding)::text, current_setting('max_prepared_transactions') <> '0', \
           current_setting('is_superuser') = 'on' \
         FROM pg_catalog.pg_database d WHERE datname = current_database()",
        &[],
    )?;
    let unknown = || error!(Kind::InternalError, "the node does not report its database");
    let Answer { system, database, default_version, version, encoding, prepared_transactions, superuser } =
        answers.into_iter().next().ok_or_else(unknown)?;
    // PostgreSQL shows the unsigned number as a signed one.
    let identity = Identity { system: system.cast_unsigned(), database };
    Ok(Probe { identity, default_version, version, encoding, prepared_transactions, superuser })
}

/// The database's name as a shard of this cluster, from its table `docshard_data.node`; None if it is not a shard.
pub(super) fn mark(session: &mut Session, probe: &Probe, cluster: i64) -> Result<Option<String>> {
    if probe.version.is_none() {
        return Ok(None);
    }
    let sql = "SELECT shard FROM docshard_data.node WHERE cluster_id = $1";
    Ok(session.query(sql, &[Param::Int8(cluster)])?.into_iter().next())
}
