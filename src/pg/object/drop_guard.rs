//! Watches what is dropped, by PostgreSQL's `object_access_hook`: however a drop is reached, by CASCADE, by DROP OWNED, or by
//! the drop of something that it depends on, each object passes here before it goes.
//!
//! `DROP EXTENSION docshard` is judged before that, too: PostgreSQL first locks all that goes with it, and a move that is under way
//! has locks there and waits for some, so the two would wait for each other.
//!
//! What is dropped by the extension's own statements passes unseen (see [`unguarded`]), and so does what an update script of
//! the extension replaces.

use crate::pg::error::Result;
use crate::pg::object::extension;
use pgrx::{PgList, pg_guard, pg_sys};
use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

/// What is about to be dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Dropped {
    /// the extension docshard, or something that came with it
    Extension,
    /// a table that did not come with the extension, or a column of it
    Table {
        /// its schema
        schema: String,
        /// its name
        name: String,
    },
    /// a foreign server, by its name
    Server(String),
    /// how a user logs in at a foreign server
    UserMapping {
        /// the server's name
        server: String,
        /// the user
        user: pg_sys::Oid,
    },
    /// a database
    Database(pg_sys::Oid),
}

/// The extension in messages.
const EXTENSION: &str = "extension docshard";

/// Refuses a drop; `name` is how PostgreSQL calls the object in its messages.
pub type Judge = fn(dropped: &Dropped, name: &str) -> Result<()>;

static JUDGE: OnceLock<(Judge, pg_sys::object_access_hook_type)> = OnceLock::new();
static NEXT_UTILITY: OnceLock<pg_sys::ProcessUtility_hook_type> = OnceLock::new();

thread_local! {
    /// How many of the extension's own statements are under way that may drop what is guarded.
    static UNGUARDED: Cell<u32> = const { Cell::new(0) };
}

/// Begins to watch; called from `_PG_init`.
pub fn watch(judge: Judge) {
    // SAFETY: a backend has one thread; the hook that was there before is called by ours.
    unsafe {
        if JUDGE.set((judge, pg_sys::object_access_hook)).is_ok() {
            pg_sys::object_access_hook = Some(on_access);
        }
        if NEXT_UTILITY.set(pg_sys::ProcessUtility_hook).is_ok() {
            pg_sys::ProcessUtility_hook = Some(on_utility);
        }
    }
}

/// Counts down when dropped, also when an ERROR unwinds.
struct Unguarded;

impl Drop for Unguarded {
    fn drop(&mut self) {
        UNGUARDED.set(UNGUARDED.get() - 1);
    }
}

/// Runs statements of the extension's own, which may drop what is guarded. `work` must not run anything that a user wrote.
pub fn unguarded<T>(work: impl FnOnce() -> T) -> T {
    UNGUARDED.set(UNGUARDED.get() + 1);
    let _counted = Unguarded;
    work()
}

#[pg_guard]
#[allow(clippy::too_many_arguments, reason = "PostgreSQL's own signature")]
unsafe extern "C-unwind" fn on_utility(
    statement: *mut pg_sys::PlannedStmt,
    text: *const c_char,
    keep_tree: bool,
    context: pg_sys::ProcessUtilityContext::Type,
    params: pg_sys::ParamListInfo,
    environment: *mut pg_sys::QueryEnvironment,
    destination: *mut pg_sys::DestReceiver,
    completion: *mut pg_sys::QueryCompletion,
) {
    // SAFETY: the arguments are PostgreSQL's, and passed on as they are.
    unsafe {
        if drops_extension(statement)
            && let Some((judge, _)) = JUDGE.get()
        {
            judge(&Dropped::Extension, EXTENSION).unwrap_or_else(|e| e.raise());
        }
        match NEXT_UTILITY.get().copied().flatten() {
            Some(next) => next(statement, text, keep_tree, context, params, environment, destination, completion),
            None => pg_sys::standard_ProcessUtility(
                statement,
                text,
                keep_tree,
                context,
                params,
                environment,
                destination,
                completion,
            ),
        }
    }
}

/// True for `DROP EXTENSION docshard` by who may do that: others are told no more than PostgreSQL tells them.
///
/// # Safety
/// `statement` is what PostgreSQL is about to run.
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
            // A member of the extension goes because the extension does.
            let name = match &dropped {
                Dropped::Extension => EXTENSION.to_owned(),
                _ => describe(class, object, column),
            };
            judge(&dropped, &name).unwrap_or_else(|e| e.raise());
        }
    }
}

/// The object as it may be of interest.
///
/// # Safety
/// As of [`on_access`]: PostgreSQL is about to delete the object.
unsafe fn what(class: pg_sys::Oid, object: pg_sys::Oid, column: c_int) -> Option<Dropped> {
    // SAFETY: cached look-ups inside a transaction; what they answer is palloc'd, or null.
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
            pg_sys::ForeignServerRelationId => Some(Dropped::Server(server_name(object)?)),
            pg_sys::UserMappingRelationId => {
                let cache = pg_sys::SysCacheIdentifier::USERMAPPINGOID as i32;
                let tuple = pg_sys::SearchSysCache1(cache, object.into());
                if tuple.is_null() {
                    return None;
                }
                let row = &*pg_sys::GETSTRUCT(tuple).cast::<pg_sys::FormData_pg_user_mapping>();
                let (server, user) = (row.umserver, row.umuser);
                pg_sys::ReleaseSysCache(tuple);
                Some(Dropped::UserMapping { server: server_name(server)?, user })
            }
            _ => None,
        }
    }
}

fn server_name(server: pg_sys::Oid) -> Option<String> {
    crate::pg::server::foreign_server_name(server)
}

/// # Safety
/// Null, or a C string.
unsafe fn text(chars: *mut c_char) -> Option<String> {
    // SAFETY: promised by the caller.
    (!chars.is_null()).then(|| unsafe { CStr::from_ptr(chars) }.to_string_lossy().into_owned())
}

/// # Safety
/// As of [`what`].
unsafe fn describe(class: pg_sys::Oid, object: pg_sys::Oid, column: c_int) -> String {
    let address = pg_sys::ObjectAddress { classId: class, objectId: object, objectSubId: column };
    // SAFETY: looks the object up, which is still there; null if it is not.
    unsafe { text(pg_sys::getObjectDescription(&address, true)) }.unwrap_or_default()
}
