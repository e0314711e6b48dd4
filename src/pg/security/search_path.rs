//! The `search_path` of docshard's own statements.
//!
//! A user who may create objects in a searched schema, such as the temporary one, could otherwise replace PostgreSQL's types,
//! functions and operators, which would run with the rights of the statement's user. So all statements of this backend (`spi`),
//! of workers and jobs, and of sessions at shards are parsed with [`PATH`] (see `pinned`). Relations must be qualified ([`check`]).

use crate::pg::error::Result;
use crate::pg::version::walk_raw_expressions;
use docshard_core::error::{Kind, error};
use pgrx::{PgList, pg_guard, pg_sys};
use std::ffi::{CStr, c_void};

/// `pg_temp` is last; if it were not named, it would be searched first for relations and types.
pub(in crate::pg) const PATH: &CStr = c"pg_catalog, pg_temp";

/// Unqualified names of a statement.
#[derive(Default)]
struct Unqualified {
    relations: Vec<String>,
    /// the names that the statement defines by WITH
    own: Vec<String>,
}

/// Visits a node of a parsed statement, and all below it.
#[pg_guard]
unsafe extern "C-unwind" fn visit(node: *mut pg_sys::Node, found: *mut c_void) -> bool {
    // SAFETY: PostgreSQL's nodes are as their tags say; `found` is what `check` gave.
    unsafe {
        let (Some(tag), Some(unqualified)) =
            (node.as_ref().map(|node| node.type_), found.cast::<Unqualified>().as_mut())
        else {
            return false;
        };
        let text = |name| CStr::from_ptr(name).to_string_lossy().into_owned();
        match tag {
            pg_sys::NodeTag::T_RangeVar => {
                let relation = &*node.cast::<pg_sys::RangeVar>();
                if relation.schemaname.is_null() {
                    unqualified.relations.push(text(relation.relname));
                }
                return false;
            }
            pg_sys::NodeTag::T_CommonTableExpr => {
                unqualified.own.push(text((*node.cast::<pg_sys::CommonTableExpr>()).ctename));
            }
            _ => {}
        }
        walk_raw_expressions(node, visit, found)
    }
}

/// Refuses a text in which a SELECT, INSERT, UPDATE or DELETE names a relation without its schema.
pub fn check(sql: &CStr) -> Result<()> {
    let mut found = Unqualified::default();
    // SAFETY: the parser returns a list of RawStmt in the current memory context. The walker only reads; an ERROR passes through frames
    // of C alone.
    unsafe {
        let list = pg_sys::raw_parser(sql.as_ptr(), pg_sys::RawParseMode::RAW_PARSE_DEFAULT);
        for statement in PgList::<pg_sys::RawStmt>::from_pg(list).iter_ptr() {
            let statement = (*statement).stmt;
            let has_walker = matches!(
                (*statement).type_,
                pg_sys::NodeTag::T_SelectStmt
                    | pg_sys::NodeTag::T_InsertStmt
                    | pg_sys::NodeTag::T_UpdateStmt
                    | pg_sys::NodeTag::T_DeleteStmt
            );
            if has_walker {
                let all = (&raw mut found).cast();
                pg_sys::ffi::pg_guard_ffi_boundary(|| walk_raw_expressions(statement, visit, all));
            }
        }
    }
    match found.relations.iter().find(|relation| !found.own.contains(relation)) {
        None => Ok(()),
        Some(relation) => Err(error!(Kind::BadValue, "the relation \"{relation}\" is named without its schema")
            .with_hint("docshard's statements search no schema but pg_catalog: name it, as in public.things.")),
    }
}
