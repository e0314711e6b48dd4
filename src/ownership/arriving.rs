//! Documents that a move has pulled into its staging table are put into the collection's, without executor, plan and
//! trigger, as inserts of many documents are: see [`super::documents`].

use super::{SCHEMA, parts, table};
use crate::pg::error::{Error, Result};
use crate::pg::lock;
use crate::pg::rows::{Purpose, Writer};
use crate::pg::scan::{Look, by_int4};
use crate::pg::server::relation_oid;
use docshard_core::error::Kind;
use std::ffi::CString;

/// The column of a staging table with packed documents: batch, seq, skey, id, doc, documents, packed.
const PACKED: usize = 6;

/// Loads a batch of a migration's staging table; returns how many documents that were.
///
/// Nothing is captured: the caller's transaction is the move's own, [`super::capture::bypass`].
///
/// # Errors
/// `InternalError` if there is no such table; a key that is taken is PostgreSQL's 23505.
pub fn load(migration: i64, collection: i32, batch: i32) -> Result<u64> {
    let relation = |suffix: &str| {
        let name = CString::new(format!("m{migration}_staging{suffix}")).expect("a name without a zero byte");
        relation_oid(SCHEMA, &name)
            .ok_or_else(|| Error::new(Kind::InternalError, format!("migration {migration} has no staging table here")))
    };
    let (staging, index) = (relation("")?, relation("_batch_idx")?);
    lock::keep_relation(staging);
    let mut packed = Vec::new();
    by_int4(staging, index, batch, Look::Active, |row| row.append(PACKED, &mut packed));
    let rows = parts::unpack(&packed)?;
    let mut writer = Writer::open(table::oid(collection)?, Purpose::Insert, table::TRIGGER)?;
    writer.insert_by(rows.len().max(1), &rows);
    writer.finish();
    Ok(rows.len() as u64)
}
