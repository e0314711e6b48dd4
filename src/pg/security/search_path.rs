//! What names in docshard's own statements mean.
//!
//! Whoever may create objects in a schema that is searched, be it only a temporary one, could otherwise have types,
//! functions and operators found in place of PostgreSQL's, and have them run with the rights of whoever runs the statement.
//! So every statement of this backend (see `spi`) is parsed with [`PATH`], and so are all that workers and jobs run.
//! Relations are named with their schemas, which [`check`] makes sure of. The sessions at shards have the same setting.

use crate::pg::error::{Error, Result};
use docshard_core::error::Kind;
use pgrx::{PgList, pg_guard, pg_sys};
use std::ffi::{CStr, c_int, c_void};

/// PostgreSQL's own names first: where the last schema is not given, it is searched before all others for relations and types.
const PATH: &CStr = c"pg_catalog, pg_temp";

/// [`PATH`] for as long as it lives.
pub struct Pinned(Option<c_int>);

impl Pinned {
    /// Sets it, if it is not what the session has.
    pub fn new() -> Self {
        // SAFETY: a setting's value, which PostgreSQL keeps; a setting of this level is undone by `drop`, or by the abort of
        // the transaction after an ERROR.
        unsafe {
            if CStr::from_ptr(pg_sys::namespace_search_path) == PATH {
                return Self(None);
            }
            let level = pg_sys::NewGUCNestLevel();
            pg_sys::set_config_option(
                c"search_path".as_ptr(),
                PATH.as_ptr(),
                pg_sys::GucContext::PGC_USERSET,
                pg_sys::GucSource::PGC_S_SESSION,
                pg_sys::GucAction::GUC_ACTION_SAVE,
                true,
                0,
                false,
            );
            Self(Some(level))
        }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if let Some(level) = self.0
            && !std::thread::panicking()
        {
            // SAFETY: pairs with NewGUCNestLevel; levels above it have ended.
            unsafe { pg_sys::AtEOXact_GUC(true, level) };
        }
    }
}

// SAFETY: PostgreSQL's own signature (nodeFuncs.h).
unsafe extern "C-unwind" {
    fn raw_expression_tree_walker(
        node: *mut pg_sys::Node,
        visit: unsafe extern "C-unwind" fn(*mut pg_sys::Node, *mut c_void) -> bool,
        found: *mut c_void,
    ) -> bool;
}

/// What a statement names without a schema.
#[derive(Default)]
struct Unqualified {
    relations: Vec<String>,
    /// names that it gives itself, by WITH
    own: Vec<String>,
}

/// Looks at a node of a parsed statement, and at all below it.
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
        raw_expression_tree_walker(node, visit, found)
    }
}

/// Refuses a text of which a statement that reads or writes names a relation without its schema: it could be another one.
///
/// # Errors
/// `InternalError`: docshard's own mistake.
pub fn check(sql: &CStr) -> Result<()> {
    let mut found = Unqualified::default();
    // SAFETY: the parser's answer is a list of RawStmt, in the present memory context. What has a walker is walked, which only
    // reads; an ERROR passes through frames of C alone.
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
                pg_sys::ffi::pg_guard_ffi_boundary(|| raw_expression_tree_walker(statement, visit, all));
            }
        }
    }
    match found.relations.iter().find(|relation| !found.own.contains(relation)) {
        None => Ok(()),
        Some(relation) => Err(Error::new(
            Kind::InternalError,
            format!("a statement names the relation \"{relation}\" without its schema: {}", sql.to_string_lossy()),
        )),
    }
}

/// Sets it for all that this process does, which serves no client, whatever ALTER DATABASE … SET says.
pub fn pin_for_process() {
    // SAFETY: a setting that any user may change, by a value that PostgreSQL accepts.
    unsafe {
        pg_sys::SetConfigOption(
            c"search_path".as_ptr(),
            PATH.as_ptr(),
            pg_sys::GucContext::PGC_USERSET,
            pg_sys::GucSource::PGC_S_SESSION,
        );
    }
}
