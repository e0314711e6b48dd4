//! `docshard_catalog.grants`: who may do what with documents.

use super::row::{self, Column, row};
use crate::pg::error::Result;
use crate::pg::spi::{self, param::Param};
use pgrx::pg_sys::Oid;

/// What a role may do with documents. The higher one includes the lower.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// find, count, aggregate
    Read,
    /// insert, update, delete, and read
    Write,
}

impl Level {
    /// As the catalog has it.
    pub fn name(self) -> &'static str {
        match self {
            Level::Read => "read",
            Level::Write => "write",
        }
    }
}

impl Column for Level {
    const TYPE: &'static str = "level of access";
    fn decode(value: &[u8]) -> Option<Self> {
        [Level::Read, Level::Write].into_iter().find(|level| level.name().as_bytes() == value)
    }
}

row! {
    /// What one role may do with one resource.
    pub struct Grant from "grants g JOIN pg_catalog.pg_roles r ON r.oid = g.role" {
        /// the role
        pub role: Oid = "r.oid",
        /// its name
        pub name: String = "r.rolname",
        /// a collection, a database, or `*` for all
        pub resource: String = "g.resource",
        /// what it may do
        pub level: Level = "g.level",
    }
}

/// In SQL, the role whose quoted name is `$1`.
const ROLE: &str = "$1::pg_catalog.text::pg_catalog.regrole";

/// Keeps the grants as they are until the transaction ends; others may do so, too.
pub fn lock_shared() -> Result<()> {
    spi::run_script("LOCK TABLE docshard_catalog.grants IN ROW EXCLUSIVE MODE")
}

/// Lets nobody else change or keep grants until the transaction ends.
pub fn lock_exclusive() -> Result<()> {
    spi::run_script("LOCK TABLE docshard_catalog.grants IN SHARE ROW EXCLUSIVE MODE")
}

/// Every grant of a role that still exists by role and resource, in the active snapshot.
pub fn read_all() -> Result<Vec<Grant>> {
    row::read("ORDER BY r.rolname, g.resource", &[])
}

/// Inserts a grant, or raises its level. The role's name is quoted, here and in the following functions.
pub fn insert_or_raise(role: &str, resource: &str, level: Level) -> Result<()> {
    let sql = format!(
        "INSERT INTO docshard_catalog.grants AS g (role, resource, level) VALUES ({ROLE}, $2, $3) \
         ON CONFLICT (role, resource) DO UPDATE SET level = excluded.level WHERE g.level = 'read'"
    );
    row::execute(&sql, &[Param::Text(role), Param::Text(resource), Param::Text(level.name())])
}

/// Lowers a grant from writing to reading; false if there is none to write.
pub fn lower(role: &str, resource: &str) -> Result<bool> {
    let sql = format!(
        "UPDATE docshard_catalog.grants SET level = 'read' WHERE role = {ROLE} AND resource = $2 AND level = 'write'"
    );
    Ok(row::count_changed(&sql, &[Param::Text(role), Param::Text(resource)])? > 0)
}

/// Deletes a grant; false if there is none.
pub fn delete(role: &str, resource: &str) -> Result<bool> {
    let sql = format!("DELETE FROM docshard_catalog.grants WHERE role = {ROLE} AND resource = $2");
    Ok(row::count_changed(&sql, &[Param::Text(role), Param::Text(resource)])? > 0)
}

/// Deletes all grants of a role.
pub fn delete_of_role(role: &str) -> Result<()> {
    row::execute(&format!("DELETE FROM docshard_catalog.grants WHERE role = {ROLE}"), &[Param::Text(role)])
}

/// Deletes the grants of roles that do not exist any more.
pub fn delete_of_dropped_roles() -> Result<()> {
    row::execute(
        "DELETE FROM docshard_catalog.grants g WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.oid = g.role)",
        &[],
    )
}
