//! The extension in this database, read from PostgreSQL's catalogs without a statement, because a statement resolves names by
//! the `search_path`.

use crate::pg::object::catalog;
use pgrx::pg_sys;
use std::ffi::CStr;

#[derive(Debug, Clone, Copy)]
pub struct Extension {
    oid: pg_sys::Oid,
    pub owner: pg_sys::Oid,
}

/// Finds the extension; None if it was not created. Must be called inside a transaction.
pub fn find() -> Option<Extension> {
    let mut found = None;
    // SAFETY: in a transaction; the rows are FormData_pg_extension.
    unsafe {
        catalog::scan(pg_sys::ExtensionRelationId, |row: &pg_sys::FormData_pg_extension| {
            if CStr::from_ptr(row.extname.data.as_ptr()) == c"docshard" {
                found = Some(Extension { oid: row.oid, owner: row.extowner });
            }
        });
    }
    found
}

impl Extension {
    /// True if a relation is a member of the extension.
    pub fn has(&self, relation: pg_sys::Oid) -> bool {
        self.is_or_has(pg_sys::RelationRelationId, relation)
    }

    pub fn is(&self, extension: pg_sys::Oid) -> bool {
        self.oid == extension
    }

    /// True if an object is the extension or a member of it.
    pub fn is_or_has(&self, class: pg_sys::Oid, object: pg_sys::Oid) -> bool {
        let itself = class == pg_sys::ExtensionRelationId && object == self.oid;
        // SAFETY: looks into pg_depend, inside a transaction.
        itself || unsafe { pg_sys::getExtensionOfObject(class, object) == self.oid }
    }
}
