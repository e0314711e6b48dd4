//! `IMPORT FOREIGN SCHEMA`.

use super::clause::text;
use super::define::settings;
use super::interface::{Import, raise, wrapper};
use pgrx::{PgList, pg_guard, pg_sys};
use std::ffi::CString;

#[pg_guard]
pub(super) unsafe extern "C-unwind" fn import(
    statement: *mut pg_sys::ImportForeignSchemaStmt,
    server: pg_sys::Oid,
) -> *mut pg_sys::List {
    // SAFETY: PostgreSQL's statement and server. The texts live as long as the current memory context.
    unsafe {
        let statement = &*statement;
        let tables = PgList::<pg_sys::RangeVar>::from_pg(statement.table_list);
        let import = Import {
            server: text((*pg_sys::GetForeignServer(server)).servername),
            remote_schema: text(statement.remote_schema),
            tables: tables.iter_ptr().map(|table| text((*table).relname)).collect(),
            limit_to: statement.list_type == pg_sys::ImportForeignSchemaType::FDW_IMPORT_SCHEMA_LIMIT_TO,
            except: statement.list_type == pg_sys::ImportForeignSchemaType::FDW_IMPORT_SCHEMA_EXCEPT,
            options: settings(statement.options),
        };
        let mut list = PgList::<std::ffi::c_char>::new();
        for sql in raise(wrapper().import(&import)) {
            let sql = CString::new(sql).unwrap_or_default();
            list.push(pg_sys::pstrdup(sql.as_ptr()));
        }
        list.into_pg()
    }
}
