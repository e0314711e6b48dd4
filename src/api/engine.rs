//! The document engine as SQL functions. Routers use them in the statements that they send to shards. `protocol::sql` declares
//! and describes them.

use super::run;
use crate::pg::datum::jsonb::RawJsonb;
use crate::pg::error::Raise as _;
use crate::pg::memory::call_state::compiled;
use docshard_core::error::{Kind, error};
use docshard_core::query::distinct::Distinct;
use docshard_core::query::environment::Environment;
use docshard_core::query::filter::Filter;
use docshard_core::query::projection::Projection;
use docshard_core::query::sort::Sort;
use docshard_core::query::specification::parse as json;
use docshard_core::query::update::{self, Update};
use docshard_core::values::document::{detached, normalise, raw};
use docshard_core::values::key::KeyPattern;
use pgrx::pg_sys;
use pgrx::prelude::*;
use std::cell::RefCell;

type Result<T> = crate::pg::error::Result<T>;

/// A jsonb argument as a document.
pub(super) fn document(doc: &RawJsonb) -> Result<raw::RawObject<'_>> {
    raw::document(doc.bytes()).ok_or_else(|| error!(Kind::TypeMismatch, "a document must be a JSON object"))
}

#[pg_extern(schema = "docshard_internal", immutable, parallel_safe, strict, cost = 10, requires = ["schemas"])]
fn matches(doc: RawJsonb, filter: &str, fcinfo: pg_sys::FunctionCallInfo) -> bool {
    run(|| {
        let filter = compiled(fcinfo, filter, |text| -> Result<Filter> { Filter::read(&json(text)?) })?;
        filter.evaluate(document(&doc)?)
    })
}

#[pg_extern(schema = "docshard_internal", immutable, parallel_safe, strict, cost = 50, requires = ["schemas"])]
fn project(doc: RawJsonb, projection: &str, fcinfo: pg_sys::FunctionCallInfo) -> RawJsonb {
    run(|| {
        let projection = compiled(fcinfo, projection, |text| -> Result<Projection> { Projection::read(&json(text)?) })?;
        Ok(RawJsonb::from_bytes(&projection.apply(document(&doc)?)?))
    })
}

#[pg_extern(schema = "docshard_internal", immutable, parallel_safe, strict, requires = ["schemas"])]
fn sort_key(doc: RawJsonb, sort: &str, fcinfo: pg_sys::FunctionCallInfo) -> Vec<u8> {
    run(|| {
        let sort = compiled(fcinfo, sort, |text| -> Result<Sort> { Sort::read(&json(text)?) })?;
        sort.key_of(document(&doc)?)
    })
}

#[pg_extern(schema = "docshard_internal", immutable, parallel_safe, strict, requires = ["schemas"])]
fn sort_field_key(doc: RawJsonb, sort: &str, field: i32, fcinfo: pg_sys::FunctionCallInfo) -> Vec<u8> {
    run(|| {
        let sort = compiled(fcinfo, sort, |text| -> Result<Sort> { Sort::read(&json(text)?) })?;
        sort.field_key_of(document(&doc)?, usize::try_from(field).unwrap_or(usize::MAX))
    })
}

#[pg_extern(schema = "docshard_internal", immutable, parallel_safe, strict, requires = ["schemas"])]
fn shard_key(doc: RawJsonb, pattern: &str, fcinfo: pg_sys::FunctionCallInfo) -> Vec<u8> {
    run(|| {
        let pattern = compiled(fcinfo, pattern, |text| -> Result<KeyPattern> { KeyPattern::parse(&json(text)?) })?;
        pattern.key_of(document(&doc)?)
    })
}

#[pg_extern(schema = "docshard_internal", immutable, parallel_safe, strict, requires = ["schemas"])]
fn apply_update(
    doc: RawJsonb,
    update: &str,
    fixed: Array<'_, &str>,
    fcinfo: pg_sys::FunctionCallInfo,
) -> Option<RawJsonb> {
    run(|| {
        let update = compiled(fcinfo, update, |text| -> Result<Update> { update::read(&json(text)?) })?;
        let fixed: Vec<String> = fixed.iter().flatten().map(str::to_owned).collect();
        Ok(update.apply(document(&doc)?, &fixed)?.map(|bytes| RawJsonb::from_bytes(&bytes)))
    })
}

#[pg_extern(schema = "docshard_internal", immutable, parallel_safe, strict, requires = ["schemas"])]
fn changes_key(before: RawJsonb, after: RawJsonb, paths: Array<'_, &str>) -> bool {
    let paths: Vec<String> = paths.iter().flatten().map(str::to_owned).collect();
    run(|| Ok(update::changes_any(document(&before)?, document(&after)?, &paths)))
}

thread_local! {
    /// The last environment of `distinct_values`, with its text. All documents of a statement have the same one.
    static LAST_ENVIRONMENT: RefCell<(String, Environment)> = RefCell::new((String::new(), Environment::default()));
}

#[pg_extern(schema = "docshard_internal", immutable, parallel_safe, strict, cost = 10, requires = ["schemas"])]
fn distinct_values(
    doc: RawJsonb,
    field: &str,
    setting: &str,
) -> TableIterator<'static, (name!(key, Vec<u8>), name!(value, Vec<u8>))> {
    TableIterator::new(run(|| {
        LAST_ENVIRONMENT.with_borrow_mut(|(text, last)| {
            if text != setting {
                *last = if setting.is_empty() { Environment::default() } else { Environment::parse(&json(setting)?)? };
                setting.clone_into(text);
            }
            Distinct::parse(field, last)?.values(document(&doc)?)
        })
    }))
}

#[pg_extern(schema = "docshard_internal", immutable, parallel_safe, strict, cost = 20, requires = ["schemas"])]
fn pack(doc: RawJsonb) -> Vec<u8> {
    doc.bytes().to_vec()
}

#[pg_extern(schema = "docshard_internal", immutable, parallel_safe, strict, requires = ["schemas"])]
fn unpack(bytes: &[u8]) -> RawJsonb {
    raw::validate(bytes).unwrap_or_else(|e| e.raise());
    RawJsonb::from_bytes(bytes)
}

/// Returns what the document's text does not show: the order of its fields, and the marks of its integers. Null if the document
/// has neither.
#[pg_extern(schema = "docshard_internal", immutable, parallel_safe, strict, cost = 20, requires = ["schemas"])]
fn detach_order(doc: RawJsonb) -> Option<Vec<u8>> {
    raw::document(doc.bytes()).map(detached::detach).filter(|detached| !detached.is_empty())
}

/// Returns the document with the order and marks that `detach_order` returned.
#[pg_extern(schema = "docshard_internal", immutable, parallel_safe, strict, requires = ["schemas"])]
fn attach_order(doc: RawJsonb, detached: &[u8]) -> RawJsonb {
    let attached = raw::document(doc.bytes()).map(|document| detached::attach(document, detached));
    attached.map_or(doc, |bytes| RawJsonb::from_bytes(&bytes.unwrap_or_else(|e| e.raise())))
}

/// The check of the domain `docshard.document`.
#[pg_extern(schema = "docshard_internal", immutable, parallel_safe, strict, requires = ["schemas"])]
fn is_document(doc: RawJsonb) -> bool {
    normalise::check_stored(doc.bytes()).unwrap_or_else(|e| e.raise());
    true
}

extension_sql_file!("../../sql/documents.sql", name = "document_domain", requires = [is_document]);
