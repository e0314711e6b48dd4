//! SQL functions that write documents; docs/sql-reference.md describes them.

use super::run;
use crate::operation::calls::writes as calls;
use crate::pg::client::sole_call;
use crate::pg::datum::json::Json;
use crate::pg::datum::jsonb::RawJsonb;
use crate::pg::datum::nulls::NoNulls;
use pgrx::prelude::*;

#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn insert_one(
    _nulls: Option<NoNulls>,
    ns: &str,
    doc: RawJsonb,
    options: default!(Json, "'{}'"),
    fcinfo: pg_sys::FunctionCallInfo,
) -> RawJsonb {
    run(|| calls::insert_one(ns, &doc, &options, sole_call::may_commit_first(fcinfo)))
}

#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn insert_many(
    _nulls: Option<NoNulls>,
    ns: &str,
    docs: pgrx::Array<'_, RawJsonb>,
    options: default!(Json, "'{}'"),
) -> RawJsonb {
    run(|| calls::insert_many(ns, docs.iter(), &options))
}

/// `insert_one` for a document that is not jsonb. sql/privileges.sql declares it.
#[pg_extern(sql = false)]
fn insert_one_any(
    nulls: Option<NoNulls>,
    ns: &str,
    doc: Json,
    options: Json,
    fcinfo: pg_sys::FunctionCallInfo,
) -> RawJsonb {
    insert_one(nulls, ns, RawJsonb::of_text(doc.document_text()), options, fcinfo)
}

/// `insert_many` for documents that are not jsonb. sql/privileges.sql declares it.
#[pg_extern(sql = false)]
fn insert_many_any(_nulls: Option<NoNulls>, ns: &str, docs: pgrx::Array<'_, &str>, options: Json) -> RawJsonb {
    run(|| calls::insert_many(ns, docs.iter().map(|doc| doc.map(RawJsonb::of_text)), &options))
}

#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn insert_select(_nulls: Option<NoNulls>, ns: &str, query: &str) -> RawJsonb {
    run(|| calls::insert_select(ns, query))
}

#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn update_one(
    _nulls: Option<NoNulls>,
    ns: &str,
    filter: Json,
    update: Json,
    options: default!(Json, "'{}'"),
    fcinfo: pg_sys::FunctionCallInfo,
) -> RawJsonb {
    run(|| calls::update_one(ns, &filter, &update, &options, sole_call::may_commit_first(fcinfo)))
}

#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn update_many(
    _nulls: Option<NoNulls>,
    ns: &str,
    filter: Json,
    update: Json,
    options: default!(Json, "'{}'"),
) -> RawJsonb {
    run(|| calls::update_many(ns, &filter, &update, &options))
}

#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn replace_one(
    _nulls: Option<NoNulls>,
    ns: &str,
    filter: Json,
    replacement: Json,
    options: default!(Json, "'{}'"),
    fcinfo: pg_sys::FunctionCallInfo,
) -> RawJsonb {
    run(|| calls::replace_one(ns, &filter, &replacement, &options, sole_call::may_commit_first(fcinfo)))
}

#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn delete_one(
    _nulls: Option<NoNulls>,
    ns: &str,
    filter: Json,
    options: default!(Json, "'{}'"),
    fcinfo: pg_sys::FunctionCallInfo,
) -> RawJsonb {
    run(|| calls::delete_one(ns, &filter, &options, sole_call::may_commit_first(fcinfo)))
}

#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn delete_many(_nulls: Option<NoNulls>, ns: &str, filter: Json, options: default!(Json, "'{}'")) -> RawJsonb {
    run(|| calls::delete_many(ns, &filter, &options))
}

#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn bulk_write(_nulls: Option<NoNulls>, ns: &str, operations: Json, options: default!(Json, "'{}'")) -> RawJsonb {
    run(|| calls::bulk_write(ns, &operations, &options))
}

#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn find_one_and_update(
    _nulls: Option<NoNulls>,
    ns: &str,
    filter: Json,
    update: Json,
    options: default!(Json, "'{}'"),
) -> Option<RawJsonb> {
    run(|| calls::find_one_and_update(ns, &filter, &update, &options))
}

#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn find_one_and_replace(
    _nulls: Option<NoNulls>,
    ns: &str,
    filter: Json,
    replacement: Json,
    options: default!(Json, "'{}'"),
) -> Option<RawJsonb> {
    run(|| calls::find_one_and_replace(ns, &filter, &replacement, &options))
}

#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn find_one_and_delete(
    _nulls: Option<NoNulls>,
    ns: &str,
    filter: Json,
    options: default!(Json, "'{}'"),
) -> Option<RawJsonb> {
    run(|| calls::find_one_and_delete(ns, &filter, &options))
}

#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn find_and_modify(_nulls: Option<NoNulls>, ns: &str, spec: Json) -> Option<RawJsonb> {
    run(|| calls::find_and_modify(ns, &spec))
}
