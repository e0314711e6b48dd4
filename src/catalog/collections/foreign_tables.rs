//! Foreign tables of this database that name a collection.

use crate::pg::error::Result;
use crate::pg::object::drop_guard;
use crate::pg::security::user;
use crate::pg::spi;
use crate::pg::transaction::subtransaction;
use docshard_core::error::Kind;
use docshard_core::sql::param::Param;
use docshard_core::sql::quote::quote_literal;
use std::time::{Duration, Instant};

/// The longest time that a rename waits, in total, for transactions that use the foreign tables. Until the rename ends, nobody can use the
/// tables that it has changed.
const MAX_WAIT: Duration = Duration::from_secs(1);

/// Changes the option `namespace` of the foreign tables of a collection that was renamed. The caller need not own them: a foreign table
/// gives no right to its collection. A foreign table keeps the old name, with a NOTICE, if the extension's owner lacks the privileges of
/// the table's owner, or if another transaction uses the table for too long.
pub fn rename(from: &str, to: &str) -> Result<()> {
    user::as_extension_owner(|| {
        let sql = "SELECT c.oid::pg_catalog.regclass::text, pg_catalog.pg_has_role(c.relowner, 'USAGE') \
                     FROM pg_catalog.pg_foreign_table t JOIN pg_catalog.pg_class c ON c.oid = t.ftrelid \
                     JOIN pg_catalog.pg_foreign_server s ON s.oid = t.ftserver \
                     JOIN pg_catalog.pg_foreign_data_wrapper w ON w.oid = s.srvfdw \
                    WHERE w.fdwname = 'docshard' AND 'namespace=' || $1 = ANY (t.ftoptions) ORDER BY c.oid";
        let began = Instant::now();
        for table in spi::query(sql, &[Param::Text(from)])? {
            let name = table.text(0);
            if !table.bool(1) {
                pgrx::notice!("the foreign table {name} still names the collection {from}");
                continue;
            }
            let sql = format!("ALTER FOREIGN TABLE {name} OPTIONS (SET namespace {})", quote_literal(to));
            let wait = MAX_WAIT.saturating_sub(began.elapsed()).as_millis().max(1).to_string();
            let changed = subtransaction::attempt(|| {
                let before = spi::query("SELECT pg_catalog.current_setting('lock_timeout')", &[])?;
                set_lock_timeout(&wait)?;
                drop_guard::unguarded(|| spi::run_script(&sql))?;
                before.first().map_or(Ok(()), |row| set_lock_timeout(row.text(0)))
            });
            match changed {
                Err(error) if error.kind == Kind::LockTimeout => {
                    pgrx::notice!(
                        "the foreign table {name} still names the collection {from}, as another transaction uses it"
                    );
                }
                changed => changed?,
            }
        }
        Ok(())
    })
}

/// Limits the wait for locks. The rollback of a subtransaction undoes it; after a success the caller must restore the former value.
fn set_lock_timeout(value: &str) -> Result<()> {
    spi::query("SELECT pg_catalog.set_config('lock_timeout', $1, true)", &[Param::Text(value)]).map(drop)
}
