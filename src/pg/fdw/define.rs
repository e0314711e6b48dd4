//! Reads the definition of a foreign table from PostgreSQL's catalog, and checks its owner's rights.

use super::clause::text;
use super::interface::{Access, ColumnDefinition, Definition, Setting, Table, raise, wrapper};
use super::value::Kind;
use crate::pg::error::Result;
use crate::pg::object::lookup_cache::LookupCache;
use crate::pg::security::user;
use crate::pg::version;
use pgrx::{PgList, pg_sys};
use std::cell::RefCell;
use std::rc::Rc;

/// # Safety
/// In a transaction.
pub(super) unsafe fn settings(options: *mut pg_sys::List) -> Vec<Setting> {
    // SAFETY: a list of options, whose values are strings.
    unsafe {
        let options = PgList::<pg_sys::DefElem>::from_pg(options);
        options.iter_ptr().map(|option| (text((*option).defname), text(pg_sys::defGetString(option)))).collect()
    }
}

thread_local! {
    static TABLES: RefCell<LookupCache<u32, Rc<dyn Table>>> = const { RefCell::new(LookupCache::NONE) };
}

/// Opens a table that the statement has locked.
///
/// # Safety
/// In a transaction.
pub(super) unsafe fn open(table: pg_sys::Oid) -> Rc<dyn Table> {
    // SAFETY: promised by the caller.
    let open = || Some(raise(wrapper().open(unsafe { definition(table) })));
    let opened = TABLES.with(|known| LookupCache::get(known, table.to_u32(), open));
    opened.unwrap_or_else(|| unreachable!("it is opened, or an ERROR"))
}

/// The definition of a table that the statement has locked.
///
/// # Safety
/// In a transaction.
unsafe fn definition(table: pg_sys::Oid) -> Definition {
    // SAFETY: promised by the caller; the relation is closed again, and its lock is the statement's.
    unsafe {
        let relation = pg_sys::table_open(table, pg_sys::NoLock as i32);
        let mut columns = Vec::new();
        for attribute in version::attributes((*relation).rd_att).iter().filter(|attribute| !attribute.attisdropped) {
            columns.push(ColumnDefinition {
                number: attribute.attnum,
                name: text(attribute.attname.data.as_ptr()),
                kind: Kind::of(attribute.atttypid, attribute.atttypmod),
                type_name: text(pg_sys::format_type_with_typemod(attribute.atttypid, attribute.atttypmod)),
                not_null: attribute.attnotnull,
                options: settings(pg_sys::GetForeignColumnOptions(table, attribute.attnum)),
            });
        }
        let name = name_of(relation);
        pg_sys::table_close(relation, pg_sys::NoLock as i32);
        Definition { name, options: settings((*pg_sys::GetForeignTable(table)).options), columns }
    }
}

/// # Safety
/// An open relation.
pub(super) unsafe fn name_of(relation: pg_sys::Relation) -> String {
    // SAFETY: promised by the caller.
    unsafe { text((*(*relation).rd_rel).relname.data.as_ptr()) }
}

/// Checks that the table's owner, too, may do what `user` does with it. The owner chooses the collection, by the table's options. Without
/// this check, the owner could read any collection that the owner of a view over the table may read.
///
/// # Safety
/// An open relation.
pub(super) unsafe fn check_owner(
    relation: pg_sys::Relation,
    user: pg_sys::Oid,
    table: &dyn Table,
    access: Access,
) -> Result<()> {
    // SAFETY: promised by the caller.
    let owner = unsafe { (*(*relation).rd_rel).relowner };
    if owner == user {
        return Ok(());
    }
    user::as_checked_user(owner, || table.check(access)).map_err(|error| {
        // SAFETY: as above.
        let name = unsafe { name_of(relation) };
        error.with_hint(format!("The owner of the foreign table \"{name}\" needs this right, too."))
    })
}
