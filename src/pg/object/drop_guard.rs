//! Checks every drop before it happens, by PostgreSQL's `object_access_hook`: this includes drops by CASCADE, by DROP OWNED, and
//! of an object that the protected one depends on.
//!
//! `DROP EXTENSION docshard` is checked before it runs, too: PostgreSQL first locks all members, and a running move holds locks there
//! and waits for others, so the two would deadlock.
//!
//! Drops by the extension's own statements (see [`unguarded`]) and by its update scripts are not checked.

use crate::pg::error::Result;
use crate::pg::object::extension;
use crate::pg::{server, utility};
use pgrx::{PgList, pg_guard, pg_sys};
use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

/// An object that is about to be dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Dropped {
    /// or a member of it
    Extension,
    /// a table that is no member of the extension, or a column of it
    Table {
        schema: String,
        name: String,
    },
    Server(String),
    UserMapping {
        server: String,
        user: pg_sys::Oid,
    },
    Database(pg_sys::Oid),
}

const EXTENSION: &str = "extension docshard";

/// Returns an error to refuse a drop; `name` is PostgreSQL's description of the object.
pub type Judge = fn(dropped: &Dropped, name: &str) -> Result<()>;

static JUDGE: OnceLock<(Judge, pg_sys::object_access_hook_type)> = OnceLock::new();

thread_local! {
    /// The number of active calls of [`unguarded`].
    static UNGUARDED: Cell<u32> = const { Cell::new(0) };
}

/// Called from `_PG_init`.
pub fn watch(judge: Judge) {
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
    None
}

struct Unguarded;

impl Drop for Unguarded {
    fn drop(&mut self) {
        UNGUARDED.set(UNGUARDED.get() - 1);
    }
}

/// Runs statements of the extension that may drop guarded objects. `work` must not run anything that a user wrote.
pub fn unguarded<T>(work: impl FnOnce() -> T) -> T {
    UNGUARDED.set(UNGUARDED.get() + 1);
    let _counted = Unguarded;
    work()
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
        if (*drop).removeType != pg_sys::ObjectType::OBJECT_EXTENSION
            || UNGUARDED.get() > 0
            || !pg_sys::IsTransactionState()
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
        if access != pg_sys::ObjectAccessType::OAT_DROP || UNGUARDED.get() > 0 || !pg_sys::IsTransactionState() {
            return;
        }
        if let Some(dropped) = what(class, object, column) {
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
unsafe fn what(class: pg_sys::Oid, object: pg_sys::Oid, column: c_int) -> Option<Dropped> {
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
            pg_sys::RelationRelationId => {
                let is_table = pg_sys::get_rel_relkind(object) as u8 == pg_sys::RELKIND_RELATION;
                let schema = is_table.then(|| text(pg_sys::get_namespace_name(pg_sys::get_rel_namespace(object))))?;
                Some(Dropped::Table { schema: schema?, name: text(pg_sys::get_rel_name(object))? })
            }
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

/// # Safety
/// Null, or a C string.
unsafe fn text(chars: *mut c_char) -> Option<String> {
    // SAFETY: promised by the caller.
    (!chars.is_null()).then(|| unsafe { CStr::from_ptr(chars) }.to_string_lossy().into_owned())
}
