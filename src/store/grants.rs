//! `docshard_catalog.grants`: the rights of roles to documents.

use crate::pg::error::Result;
use crate::pg::spi;

/// What a role may do with documents. The higher level includes the lower one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// find, count, aggregate
    Read,
    /// insert, update, delete, and read
    Write,
    /// create, change and drop collections and their indexes, and write
    Own,
}

impl Level {
    /// All levels, the lowest first.
    pub const ALL: [Level; 3] = [Level::Read, Level::Write, Level::Own];

    /// The name in the catalog.
    pub fn name(self) -> &'static str {
        match self {
            Level::Read => "read",
            Level::Write => "write",
            Level::Own => "own",
        }
    }

    fn parse(name: &str) -> Option<Self> {
        Level::ALL.into_iter().find(|level| level.name() == name)
    }
}

docshard_core::sql::record::text_columns! { Level: "level of access" }

rows! {
    /// The rights of one role to one resource.
    Grant from "grants g JOIN pg_catalog.pg_roles r ON r.oid = g.role" {
        role: u32 = "r.oid",
        /// the role's name
        name: String = "r.rolname",
        /// a collection, a database, or `*` for all
        resource: String = "g.resource",
        level: Level = "g.level",
    }
}

/// The SQL expression for the role whose quoted name is `$1`.
const ROLE: &str = "$1::pg_catalog.text::pg_catalog.regrole";

/// Prevents changes of the grants until the transaction ends. Several transactions may do so at a time.
pub fn lock_shared() -> Result<()> {
    spi::run_script("LOCK TABLE docshard_catalog.grants IN ROW EXCLUSIVE MODE")
}

/// Blocks other transactions that call this or [`lock_shared`], until the transaction ends.
pub fn lock_exclusive() -> Result<()> {
    spi::run_script("LOCK TABLE docshard_catalog.grants IN SHARE ROW EXCLUSIVE MODE")
}

statements! {
    /// True while a transaction changes grants: see [`lock_exclusive`].
    pub fn are_changing() -> bool {
        run "SELECT FROM pg_catalog.pg_locks WHERE locktype = 'relation' AND granted AND mode = 'ShareRowExclusiveLock' \
             AND relation = 'docshard_catalog.grants'::pg_catalog.regclass \
             AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())"
    }

    /// All grants of roles that still exist, by role and resource, in the active snapshot.
    pub fn read_all() -> Vec<Grant> { select_active "ORDER BY r.rolname, g.resource" }

    /// Inserts a grant, or raises its level; false if there is one that includes it. The role's name is quoted, here and in the following
    /// functions.
    pub fn insert_or_raise(role: &str, resource: &str, level: Level) -> bool {
        run format!(
            "INSERT INTO docshard_catalog.grants AS g (role, resource, level) VALUES ({ROLE}, $2, $3) \
             ON CONFLICT (role, resource) DO UPDATE SET level = excluded.level \
             WHERE g.level <> excluded.level AND (g.level = 'read' OR excluded.level = 'own')"
        ), [role, resource, level.name()]
    }

    /// Lowers a grant to reading; false if there is no grant to write.
    pub fn lower_to_read(role: &str, resource: &str) -> bool {
        run format!(
            "UPDATE docshard_catalog.grants SET level = 'read' WHERE role = {ROLE} AND resource = $2 AND level <> 'read'"
        )
    }

    /// Lowers a grant from owning to writing; false if there is no grant to own.
    pub fn lower_to_write(role: &str, resource: &str) -> bool {
        run format!(
            "UPDATE docshard_catalog.grants SET level = 'write' WHERE role = {ROLE} AND resource = $2 AND level = 'own'"
        )
    }

    /// Deletes a grant; false if there is none.
    pub fn delete(role: &str, resource: &str) -> bool {
        run format!("DELETE FROM docshard_catalog.grants WHERE role = {ROLE} AND resource = $2")
    }

    /// Deletes all grants of a role; false if there is none.
    pub fn delete_of_role(role: &str) -> bool { run format!("DELETE FROM docshard_catalog.grants WHERE role = {ROLE}") }

    /// Deletes the grants of roles that do not exist any more.
    pub fn delete_of_dropped_roles() {
        run "DELETE FROM docshard_catalog.grants g WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.oid = g.role)"
    }
}
