//! Checks privileges on tables and schemas. A table's owner may write it without a check of the privileges: the owner could grant them
//! again, and the check would take longer than the rest of many statements.

use crate::pg::version;
use pgrx::pg_sys;
use std::ffi::{CStr, c_int};

/// Raises PostgreSQL's error (42501) unless the user has all of these privileges (`ACL_…`).
///
/// # Safety
/// The relation is open.
pub(crate) unsafe fn require(rel: pg_sys::Relation, privileges: u32) {
    // SAFETY: promised by the caller.
    unsafe {
        let wanted = pg_sys::AclMode::from(privileges);
        let (user, form) = (pg_sys::GetUserId(), &*(*rel).rd_rel);
        if form.relowner != user
            && pg_sys::pg_class_aclmask((*rel).rd_id, user, wanted, pg_sys::AclMaskHow::ACLMASK_ALL) != wanted
        {
            let kind = pg_sys::get_relkind_objtype(form.relkind);
            pg_sys::aclcheck_error(pg_sys::AclResult::ACLCHECK_NO_PRIV, kind, form.relname.data.as_ptr());
        }
    }
}

/// True if row-level security applies to the user.
///
/// # Safety
/// The relation is open.
pub(crate) unsafe fn hides_rows(rel: pg_sys::Relation) -> bool {
    // SAFETY: promised by the caller.
    unsafe {
        let answer = pg_sys::check_enable_rls((*rel).rd_id, pg_sys::Oid::INVALID, false);
        answer == pg_sys::CheckEnableRlsResult::RLS_ENABLED as c_int
    }
}

pub fn may_read(table: pg_sys::Oid) -> bool {
    // SAFETY: looks into the system caches.
    unsafe {
        let user = pg_sys::GetUserId();
        pg_sys::pg_class_aclcheck_ext(table, user, pg_sys::AclMode::from(pg_sys::ACL_SELECT), &mut false)
            == pg_sys::AclResult::ACLCHECK_OK
    }
}

/// True if the current user may use the objects of a schema, or there is no such schema.
pub fn may_use_schema(schema: &CStr) -> bool {
    // SAFETY: look-ups in the system caches; the name outlives them.
    unsafe {
        let oid = pg_sys::get_namespace_oid(schema.as_ptr(), true);
        oid == pg_sys::InvalidOid || version::may_use_schema(oid, pg_sys::GetUserId())
    }
}

pub fn may_truncate(table: pg_sys::Oid) -> bool {
    // SAFETY: looks into the system caches.
    unsafe {
        let user = pg_sys::GetUserId();
        pg_sys::pg_class_aclcheck_ext(table, user, pg_sys::AclMode::from(pg_sys::ACL_TRUNCATE), &mut false)
            == pg_sys::AclResult::ACLCHECK_OK
    }
}

/// Raises PostgreSQL's error (42501) unless the user has the privilege to insert, to update or to delete. Does nothing if the table does
/// not exist.
pub fn require_any_write(table: pg_sys::Oid) {
    let any = pg_sys::ACL_INSERT | pg_sys::ACL_UPDATE | pg_sys::ACL_DELETE;
    // SAFETY: looks into the system caches; a name is palloc'd, or null if there is no such relation.
    unsafe {
        let user = pg_sys::GetUserId();
        if is_owner(table, user)
            || pg_sys::pg_class_aclcheck_ext(table, user, pg_sys::AclMode::from(any), &mut false)
                == pg_sys::AclResult::ACLCHECK_OK
        {
            return;
        }
        let name = pg_sys::get_rel_name(table);
        if !name.is_null() {
            pg_sys::aclcheck_error(pg_sys::AclResult::ACLCHECK_NO_PRIV, pg_sys::ObjectType::OBJECT_TABLE, name);
        }
    }
}

/// True if the table belongs to the user; false if it does not exist.
///
/// # Safety
/// In a transaction.
unsafe fn is_owner(table: pg_sys::Oid, user: pg_sys::Oid) -> bool {
    // SAFETY: a cached look-up; the row is a pg_class's, and is read before it is given back.
    unsafe {
        let tuple = pg_sys::SearchSysCache1(pg_sys::SysCacheIdentifier::RELOID as i32, table.into());
        if tuple.is_null() {
            return false;
        }
        let owner = (*pg_sys::GETSTRUCT(tuple).cast::<pg_sys::FormData_pg_class>()).relowner;
        pg_sys::ReleaseSysCache(tuple);
        owner == user
    }
}
