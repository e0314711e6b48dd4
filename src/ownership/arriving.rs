//! Documents that a move has pulled into its staging table are put into the collection's, without executor, plan and
//! trigger, as inserts of many documents are: see [`super::documents`].

use super::{SCHEMA, parts, table};
use crate::pg::error::{Error, Result, UNIQUE_VIOLATION};
use crate::pg::lock;
use crate::pg::memory;
use crate::pg::rows::{Purpose, Row, Writer};
use crate::pg::scan::{Look, by_int4};
use crate::pg::server::relation_oid;
use crate::pg::subtransaction::attempt;
use docshard_core::error::Kind;
use pgrx::pg_sys::Oid;
use std::ffi::CString;

/// The column of a staging table with packed documents: batch, seq, skey, id, doc, documents, packed.
const PACKED: usize = 6;

/// Loads a batch of a migration's staging table; returns how many documents that were. With `unique`, one that a
/// unique index keeps out is left out.
///
/// Nothing is captured: the caller's transaction is the move's own, [`super::capture::bypass`].
///
/// # Errors
/// `InternalError` if there is no such table; a key that is taken is PostgreSQL's 23505.
pub fn load(migration: i64, collection: i32, batch: i32, unique: bool) -> Result<u64> {
    let relation = |suffix: &str| {
        let name = CString::new(format!("m{migration}_staging{suffix}")).expect("a name without a zero byte");
        relation_oid(SCHEMA, &name)
            .ok_or_else(|| Error::new(Kind::InternalError, format!("migration {migration} has no staging table here")))
    };
    let (staging, index) = (relation("")?, relation("_batch_idx")?);
    lock::keep_relation(staging);
    memory::keep_large_blocks();
    let mut packed = Vec::new();
    by_int4(staging, index, batch, Look::Active, |row| row.append(PACKED, &mut packed));
    let rows = parts::unpack(&packed)?;
    let target = table::oid(collection)?;
    let all_at_once = || {
        let mut writer = Writer::open(target, Purpose::Insert, &table::OWNER)?;
        writer.insert_by(rows.len().max(1), &rows);
        writer.finish();
        Ok(rows.len() as u64)
    };
    if !unique {
        return all_at_once();
    }
    match attempt(all_at_once) {
        Err(error) if &error.sqlstate == UNIQUE_VIOLATION => one_by_one(target, &rows),
        loaded => loaded,
    }
}

fn one_by_one(target: Oid, rows: &[Row<'_>]) -> Result<u64> {
    let mut writer = Writer::open(target, Purpose::Insert, &table::OWNER)?;
    let mut loaded = 0;
    for row in rows {
        if writer.taken(row).is_none() {
            writer.insert(std::slice::from_ref(row));
            loaded += 1;
        }
    }
    writer.finish();
    Ok(loaded)
}
