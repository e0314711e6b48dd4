//! Checks every drop and TRUNCATE before it happens, by PostgreSQL's `object_access_hook`. This includes drops by CASCADE, by DROP OWNED,
//! and by the drop of an object on which the protected one depends. Other changes of tables are checked by [`super::change_watch`].
//!
//! `DROP EXTENSION docshard` is also checked before PostgreSQL executes it. The hook would be too late: before it,
//! PostgreSQL locks all members, and would deadlock with a running move, which holds locks of some members and waits for others.
//!
//! Not checked are the extension's own statements (see [`unguarded`]), sessions of routers (see [`trust_session`]), the extension's
//! update scripts, and pg_upgrade.

use crate::pg::error::{Raise as _, Result};
pub use crate::pg::object::own_statement::{trust_session, unguarded};

use crate::pg::object::own_statement::{is_own_statement, is_unguarded};
use crate::pg::object::{change_watch, extension};
use crate::pg::security::permission::may_truncate;
use crate::pg::{server, utility};
use pgrx::{PgList, pg_guard, pg_sys};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

/// An object that is about to be dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Dropped {
    /// the extension, or a member of it
    Extension,
    /// a table that is not a member of the extension, or one of the columns with which docshard creates tables
    Table(Relation),
    /// all rows of a table
    Rows(Relation),
    /// all rows of a member of the extension
    MemberRows(Relation),
    /// a trigger of a table; PostgreSQL drops a table's triggers before the table
    Trigger(pg_sys::Oid),
    /// an index of a table, if dropped by DROP INDEX CONCURRENTLY, which commits before it ends
    Index {
        table: Relation,
        name: String,
    },
    Server(String),
    UserMapping {
        server: String,
        user: pg_sys::Oid,
    },
    Database(pg_sys::Oid),
}

/// A table that has triggers, as all tables of collections do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relation {
    pub oid: pg_sys::Oid,
    pub schema: String,
    pub name: String,
}

/// The number of columns with which docshard creates tables of collections.
const COLUMNS: c_int = 3;

const EXTENSION: &str = "extension docshard";

/// Decides whether a drop is allowed: an error refuses it. `name` is PostgreSQL's description of the object.
pub type Judge = fn(dropped: &Dropped, name: &str) -> Result<()>;

static JUDGE: OnceLock<(Judge, pg_sys::object_access_hook_type)> = OnceLock::new();

/// Decides whether the changes of a statement are allowed: an error refuses them. See [`change_watch`].
pub type ChangeJudge = fn() -> Result<()>;

static CHANGE_JUDGE: OnceLock<ChangeJudge> = OnceLock::new();

/// Checks TRUNCATE. Called by a trigger, because a session that has not loaded the library before has no hook.
///
/// # Errors
/// That of the judge.
pub fn judge_truncate(table: pg_sys::Oid) -> Result<()> {
    let Some((judge, _)) = JUDGE.get().filter(|_| !is_own_statement()) else { return Ok(()) };
    // SAFETY: inside a transaction; the table exists.
    unsafe { rows(table).map_or(Ok(()), |rows| judge(&rows, "")) }
}

/// Sets the functions that decide. Called from `_PG_init`.
pub fn watch(judge: Judge, changes: ChangeJudge) {
    let _ = CHANGE_JUDGE.set(changes);
    // SAFETY: a backend has one thread; the hook that was there before is called by ours.
    unsafe {
        if JUDGE.set((judge, pg_sys::object_access_hook)).is_ok() {
            pg_sys::object_access_hook = Some(on_access);
            utility::watch(before_utility);
        }
    }
}

/// # Safety
/// `statement` is about to be executed by PostgreSQL.
unsafe fn before_utility(statement: *mut pg_sys::PlannedStmt) -> Option<Box<dyn FnOnce()>> {
    // SAFETY: promised by the caller.
    let drops = unsafe { drops_extension(statement) };
    if let Some((judge, _)) = JUDGE.get().filter(|_| drops) {
        judge(&Dropped::Extension, EXTENSION).unwrap_or_else(|e| e.raise());
    }
    // SAFETY: promised by the caller. No event trigger is called for this statement.
    let reassigns = unsafe {
        let node = (*statement).utilityStmt;
        !node.is_null() && (*node).type_ == pg_sys::NodeTag::T_ReassignOwnedStmt
    };
    let judge = CHANGE_JUDGE.get().filter(|_| reassigns)?;
    change_watch::begin();
    Some(Box::new(|| judge().unwrap_or_else(|e| e.raise())))
}

/// True for `DROP EXTENSION docshard` by a user who may do that; others get PostgreSQL's own error.
///
/// # Safety
/// `statement` is about to be executed by PostgreSQL.
unsafe fn drops_extension(statement: *mut pg_sys::PlannedStmt) -> bool {
    // SAFETY: promised by the caller; PostgreSQL's nodes are as their tags say, and the objects of this one are strings.
    unsafe {
        let node = (*statement).utilityStmt;
        if node.is_null() || (*node).type_ != pg_sys::NodeTag::T_DropStmt {
            return false;
        }
        let drop = node.cast::<pg_sys::DropStmt>();
        if (*drop).removeType != pg_sys::ObjectType::OBJECT_EXTENSION || is_unguarded() || !pg_sys::IsTransactionState()
        {
            return false;
        }
        let names = PgList::<pg_sys::String>::from_pg((*drop).objects);
        names.iter_ptr().any(|name| CStr::from_ptr((*name).sval) == c"docshard")
            && extension::find().is_some_and(|found| pg_sys::has_privs_of_role(pg_sys::GetUserId(), found.owner))
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn on_access(
    access: pg_sys::ObjectAccessType::Type,
    class: pg_sys::Oid,
    object: pg_sys::Oid,
    column: c_int,
    argument: *mut c_void,
) {
    let Some((judge, next)) = JUDGE.get() else { return };
    // SAFETY: PostgreSQL's arguments, passed on as they are; called in a transaction, before the object is deleted, so that
    // PostgreSQL's caches still have it.
    unsafe {
        if let Some(next) = next {
            next(access, class, object, column, argument);
        }
        let found = match access {
            pg_sys::ObjectAccessType::OAT_DROP if !is_unguarded() && pg_sys::IsTransactionState() => {
                let flags = argument.cast::<pg_sys::ObjectAccessDrop>().as_ref().map_or(0, |drop| drop.dropflags);
                what(class, object, column, flags)
            }
            // PostgreSQL checks the privilege after this hook. A user without it is not checked here, and gets PostgreSQL's error.
            pg_sys::ObjectAccessType::OAT_TRUNCATE if may_truncate(object) && !is_own_statement() => rows(object),
            _ => None,
        };
        if let Some(dropped) = found {
            let name = if dropped == Dropped::Extension {
                EXTENSION.to_owned()
            } else {
                let address = pg_sys::ObjectAddress { classId: class, objectId: object, objectSubId: column };
                text(pg_sys::getObjectDescription(&address, true)).unwrap_or_default()
            };
            judge(&dropped, &name).unwrap_or_else(|e| e.raise());
        }
    }
}

/// Returns the object, if drops of its kind are checked.
///
/// # Safety
/// Like [`on_access`]: PostgreSQL is about to delete the object.
unsafe fn what(class: pg_sys::Oid, object: pg_sys::Oid, column: c_int, flags: c_int) -> Option<Dropped> {
    // SAFETY: cached look-ups inside a transaction; their results are palloc'd, or null.
    unsafe {
        if class == pg_sys::DatabaseRelationId {
            return Some(Dropped::Database(object));
        }
        let extension = extension::find()?;
        if column == 0 && extension.is_or_has(class, object) {
            let updated = pg_sys::creating_extension && extension.is(pg_sys::CurrentExtensionObject);
            return (!updated).then_some(Dropped::Extension);
        }
        match class {
            pg_sys::RelationRelationId if pg_sys::get_rel_relkind(object) as u8 == pg_sys::RELKIND_INDEX => {
                if flags & pg_sys::PERFORM_DELETION_CONCURRENTLY as c_int == 0 || is_own_statement() {
                    return None;
                }
                let table = relation(pg_sys::IndexGetRelation(object, true))?;
                Some(Dropped::Index { table, name: text(pg_sys::get_rel_name(object))? })
            }
            pg_sys::RelationRelationId if column <= COLUMNS => relation(object).map(Dropped::Table),
            pg_sys::TriggerRelationId if !is_own_statement() => Some(Dropped::Trigger(object)),
            pg_sys::ForeignServerRelationId => Some(Dropped::Server(server::foreign_server_name(object)?)),
            pg_sys::UserMappingRelationId => {
                let cache = pg_sys::SysCacheIdentifier::USERMAPPINGOID as i32;
                let tuple = pg_sys::SearchSysCache1(cache, object.into());
                if tuple.is_null() {
                    return None;
                }
                let row = &*pg_sys::GETSTRUCT(tuple).cast::<pg_sys::FormData_pg_user_mapping>();
                let (server, user) = (row.umserver, row.umuser);
                pg_sys::ReleaseSysCache(tuple);
                Some(Dropped::UserMapping { server: server::foreign_server_name(server)?, user })
            }
            _ => None,
        }
    }
}

/// The rows of a table; None if TRUNCATE of it is not checked.
///
/// # Safety
/// Inside a transaction.
unsafe fn rows(table: pg_sys::Oid) -> Option<Dropped> {
    // SAFETY: promised by the caller.
    let relation = unsafe { relation(table) }?;
    let is_member = extension::find().is_some_and(|extension| extension.has(table));
    Some(if is_member { Dropped::MemberRows(relation) } else { Dropped::Rows(relation) })
}

/// Returns the relation if it is a table with triggers that is not temporary; None for any other one.
///
/// # Safety
/// Inside a transaction.
unsafe fn relation(oid: pg_sys::Oid) -> Option<Relation> {
    // SAFETY: promised by the caller; the row is copied before it is released.
    unsafe {
        let tuple = pg_sys::SearchSysCache1(pg_sys::SysCacheIdentifier::RELOID as i32, oid.into());
        if tuple.is_null() {
            return None;
        }
        let row = &*pg_sys::GETSTRUCT(tuple).cast::<pg_sys::FormData_pg_class>();
        let (schema, has_triggers) = (row.relnamespace, row.relhastriggers);
        let is_table =
            row.relkind as u8 == pg_sys::RELKIND_RELATION && row.relpersistence as u8 != pg_sys::RELPERSISTENCE_TEMP;
        let name = CStr::from_ptr(row.relname.data.as_ptr()).to_string_lossy().into_owned();
        pg_sys::ReleaseSysCache(tuple);
        let schema = (is_table && has_triggers).then(|| text(pg_sys::get_namespace_name(schema))).flatten()?;
        Some(Relation { oid, schema, name })
    }
}

/// # Safety
/// Null, or a C string.
unsafe fn text(chars: *mut c_char) -> Option<String> {
    // SAFETY: promised by the caller.
    (!chars.is_null()).then(|| unsafe { CStr::from_ptr(chars) }.to_string_lossy().into_owned())
}
