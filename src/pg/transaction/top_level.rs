//! Runs commands that PostgreSQL refuses inside a transaction, such as `CREATE INDEX CONCURRENTLY`.

use crate::pg::error::Result;
use crate::pg::memory::context::OwnContext;
use crate::pg::{transaction, version};
use docshard_core::error::{Kind, bail, error};
use pgrx::{PgList, pg_sys};
use std::ffi::CString;
use std::ptr::null_mut;

/// Runs a command as if a client had sent it. Must be called outside any transaction, in a background worker.
pub fn run(sql: &str) -> Result<()> {
    let text = CString::new(sql).map_err(|_| error!(Kind::InternalError, "a command with a zero byte"))?;
    // Memory that no end of a transaction frees.
    let memory = OwnContext::of_process(c"docshard command");
    // SAFETY: outside a transaction. The command commits and begins transactions by itself, as it does for a client; its parse
    // tree, and all data derived from it, is in memory that outlives these transactions.
    let result = transaction::guarded(|| unsafe {
        pg_sys::SetCurrentStatementStartTimestamp();
        pg_sys::StartTransactionCommand();
        pg_sys::MemoryContextSwitchTo(memory.as_ptr());
        let parsed = PgList::<pg_sys::RawStmt>::from_pg(pg_sys::pg_parse_query(text.as_ptr()));
        let Some(parsed) = parsed.get_ptr(0) else { bail!(Kind::InternalError, "an empty command") };
        let queries =
            pg_sys::pg_analyze_and_rewrite_fixedparams(parsed, text.as_ptr(), std::ptr::null(), 0, null_mut());
        let planned = pg_sys::pg_plan_queries(queries, text.as_ptr(), 0, null_mut());
        // Event triggers need a portal: a command that commits by itself leaves them no snapshot.
        let portal = pg_sys::CreateNewPortal();
        pg_sys::PortalDefineQuery(
            portal,
            std::ptr::null(),
            text.as_ptr(),
            pg_sys::CreateCommandTag((*parsed).stmt),
            planned,
            null_mut(),
        );
        pg_sys::PortalStart(portal, null_mut(), 0, null_mut());
        version::portal_run(portal, pg_sys::None_Receiver);
        pg_sys::PortalDrop(portal, false);
        pg_sys::CommitTransactionCommand();
        Ok(())
    });
    // SAFETY: outside a transaction again. Nothing refers to the memory any more.
    unsafe { pg_sys::MemoryContextSwitchTo(pg_sys::TopMemoryContext) };
    drop(memory);
    result
}
