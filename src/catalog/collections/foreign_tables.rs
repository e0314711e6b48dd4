//! Foreign tables of this database that name a collection.

use crate::pg::error::Result;
use crate::pg::object::drop_guard;
use crate::pg::security::user;
use crate::pg::spi;
use docshard_core::sql::param::Param;
use docshard_core::sql::quote::quote_literal;

/// Changes the option `namespace` of the foreign tables of a collection that was renamed. The caller need not own them: a foreign table gives no right to its
/// collection. One whose owner's privileges the extension's owner does not have keeps the old name, with a NOTICE.
pub fn rename(from: &str, to: &str) -> Result<()> {
    user::as_extension_owner(|| {
        let sql = "SELECT c.oid::pg_catalog.regclass::text, pg_catalog.pg_has_role(c.relowner, 'USAGE') \
                     FROM pg_catalog.pg_foreign_table t JOIN pg_catalog.pg_class c ON c.oid = t.ftrelid \
                     JOIN pg_catalog.pg_foreign_server s ON s.oid = t.ftserver \
                     JOIN pg_catalog.pg_foreign_data_wrapper w ON w.oid = s.srvfdw \
                    WHERE w.fdwname = 'docshard' AND 'namespace=' || $1 = ANY (t.ftoptions) ORDER BY c.oid";
        for table in spi::query(sql, &[Param::Text(from)])? {
            let name = table.text(0);
            if !table.bool(1) {
                pgrx::notice!("the foreign table {name} still names the collection {from}");
                continue;
            }
            let sql = format!("ALTER FOREIGN TABLE {name} OPTIONS (SET namespace {})", quote_literal(to));
            drop_guard::unguarded(|| spi::run_script(&sql))?;
        }
        Ok(())
    })
}
