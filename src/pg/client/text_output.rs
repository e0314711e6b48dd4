//! Sends documents as text to a client whose statement is a single call that returns jsonb, or reads a foreign table and returns one column
//! of jsonb. This is several times as fast as `jsonb_out`, which takes a large part of the router's time in a find of many documents.
//!
//! This module replaces a function in the receiver that gets the statement's rows from PostgreSQL's executor. PostgreSQL still writes the
//! column descriptions, and all rows that are not handled here, and defines the message format and its encoding.

use crate::pg::client::sole_call;
use crate::pg::datum::jsonb;
use crate::pg::version::attributes;
use docshard_core::values::document::print;
use pgrx::{PgList, pg_guard, pg_sys};
use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int};

type Receive = unsafe extern "C-unwind" fn(*mut pg_sys::TupleTableSlot, *mut pg_sys::DestReceiver) -> bool;

/// The bytes of a row's message before the text: the number of columns (2 bytes) and the length of the first one (4 bytes).
const HEADING: usize = 6;

/// PostgreSQL's limit of a text, in bytes (`MaxAllocSize`). Its own receiver reports the error for a longer one.
const MAX_TEXT: usize = 0x3fff_ffff;

/// The capacity of the largest buffer that is kept for the next row, in bytes.
const MAX_KEPT: usize = 1 << 20;

thread_local! {
    /// The receiver's function that [`take_over`] has replaced.
    static RECEIVE: Cell<Option<Receive>> = const { Cell::new(None) };
    static BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Called by a function that returns jsonb. Replaces the receiver's function if the client gets nothing but the function's
/// results.
#[allow(clippy::not_unsafe_ptr_arg_deref, reason = "PostgreSQL passes this pointer to the function")]
pub fn take_over(call: pg_sys::FunctionCallInfo) {
    // SAFETY: PostgreSQL made the call, and its caller's portal, plan and receiver outlive it.
    unsafe {
        let Some(query) = query() else { return };
        let plan = (*query.plannedstmt).planTree;
        let called = (*(*call).flinfo).fn_expr;
        let is_all = match (*plan).type_ {
            pg_sys::NodeTag::T_Result | pg_sys::NodeTag::T_ProjectSet => sole_call::is_only_target(plan, called),
            pg_sys::NodeTag::T_FunctionScan => is_only_function(plan.cast(), called),
            _ => false,
        };
        if is_all {
            replace(query.dest);
        }
    }
}

/// Called by a scan that begins to read rows. Replaces the receiver's function if the scan is a part of the client's statement, and the
/// statement returns one column of jsonb. That column need not come from the scan: the receiver gets the statement's rows.
///
/// # Safety
/// While this state's statement is executed.
pub unsafe fn take_over_rows(state: *const pg_sys::EState) {
    // SAFETY: promised by the caller.
    unsafe {
        if let Some(query) = query().filter(|query| std::ptr::eq(query.estate, state)) {
            replace(query.dest);
        }
    }
}

/// The client's statement, if its rows are one column of jsonb, sent as text.
///
/// # Safety
/// While a statement is executed.
unsafe fn query<'a>() -> Option<&'a pg_sys::QueryDesc> {
    // SAFETY: promised by the caller; PostgreSQL's nodes are as their tags say.
    unsafe {
        let portal = pg_sys::ActivePortal.as_ref()?;
        if pg_sys::whereToSendOutput != pg_sys::CommandDest::DestRemote
            || portal.strategy != pg_sys::PortalStrategy::PORTAL_ONE_SELECT
            || !portal.formats.is_null() && *portal.formats != 0
            || !is_one_jsonb(portal.tupDesc)
        {
            return None;
        }
        let query = portal.queryDesc.as_ref()?;
        let receiver = query.dest.as_ref()?;
        let (remote, execute) = (pg_sys::CommandDest::DestRemote, pg_sys::CommandDest::DestRemoteExecute);
        [remote, execute].contains(&receiver.mydest).then_some(query)
    }
}

/// # Safety
/// The receiver of a running statement.
unsafe fn replace(receiver: *mut pg_sys::DestReceiver) {
    // SAFETY: promised by the caller.
    unsafe {
        match (*receiver).receiveSlot {
            Some(own) if !std::ptr::fn_addr_eq(own, receive as Receive) => {
                RECEIVE.set(Some(own));
                (*receiver).receiveSlot = Some(receive);
            }
            _ => {}
        }
    }
}

/// True for rows that have one column, a jsonb.
///
/// # Safety
/// The pointer is a description of rows, or null.
unsafe fn is_one_jsonb(rows: pg_sys::TupleDesc) -> bool {
    // SAFETY: promised by the caller.
    !rows.is_null() && matches!(unsafe { attributes(rows) }, [column] if column.atttypid == pg_sys::JSONBOID)
}

/// True if a scan's rows are the unchanged results of the function.
///
/// # Safety
/// The plan and the call that is running.
unsafe fn is_only_function(scan: *mut pg_sys::FunctionScan, called: *mut pg_sys::Node) -> bool {
    // SAFETY: promised by the caller.
    unsafe {
        let targets = PgList::<pg_sys::TargetEntry>::from_pg((*scan).scan.plan.targetlist);
        let Some(target) = targets.get_ptr(0) else { return false };
        let column: *mut pg_sys::Var = (*target).expr.cast();
        targets.len() == 1
            && sole_call::is_scan_of(scan, called)
            && (*column).xpr.type_ == pg_sys::NodeTag::T_Var
            && (*column).varattno == 1
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn receive(slot: *mut pg_sys::TupleTableSlot, receiver: *mut pg_sys::DestReceiver) -> bool {
    // SAFETY: PostgreSQL calls this with a row of the statement whose receiver's function was replaced, and the receiver.
    unsafe { send(slot) || RECEIVE.get().is_some_and(|own| own(slot, receiver)) }
}

/// Sends a row of one jsonb. Returns false and sends nothing if the value is null, compressed or external, if it cannot be printed here, or
/// if the text is too long for a message.
///
/// # Safety
/// The same as for [`receive`].
unsafe fn send(slot: *mut pg_sys::TupleTableSlot) -> bool {
    // SAFETY: promised by the caller. The message borrows the buffer until it is sent.
    unsafe {
        if (*slot).tts_nvalid < 1 {
            pg_sys::slot_getsomeattrs_int(slot, 1);
        }
        let value: *const pg_sys::varlena = (*(*slot).tts_values).cast_mut_ptr();
        if *(*slot).tts_isnull || !jsonb::is_plain(value) {
            return false;
        }
        let mut row = BUFFER.take();
        row.clear();
        row.extend_from_slice(&1u16.to_be_bytes());
        row.extend_from_slice(&[0; HEADING - 2]);
        let is_sent = print::print(jsonb::plain_bytes(value), &mut row).is_some() && {
            encode(&mut row);
            finish(&mut row)
        };
        if row.capacity() <= MAX_KEPT {
            BUFFER.set(row);
        }
        is_sent
    }
}

/// Converts the text to the client's encoding.
fn encode(row: &mut Vec<u8>) {
    let text = &row[HEADING..];
    let Ok(length) = c_int::try_from(text.len()) else { return };
    // SAFETY: the text has this length; the result is the text itself, or another one that ends with a zero byte.
    unsafe {
        let start: *const c_char = text.as_ptr().cast();
        let encoded = pg_sys::pg_server_to_client(start, length);
        if !std::ptr::eq(encoded, start) {
            row.truncate(HEADING);
            row.extend_from_slice(CStr::from_ptr(encoded).to_bytes());
            pg_sys::pfree(encoded.cast());
        }
    }
}

/// Completes the heading and sends the message; false if its text is too long for a text of PostgreSQL.
fn finish(row: &mut [u8]) -> bool {
    let (Ok(text), Ok(all)) = (i32::try_from(row.len() - HEADING), c_int::try_from(row.len())) else { return false };
    if row.len() > MAX_TEXT {
        return false;
    }
    row[2..HEADING].copy_from_slice(&text.to_be_bytes());
    let mut message = pg_sys::StringInfoData {
        data: row.as_mut_ptr().cast(),
        len: all,
        maxlen: all,
        // The message type is in this field.
        cursor: c_int::from(b'D'),
    };
    // SAFETY: the message has this length, and is only read.
    unsafe { pg_sys::pq_endmessage_reuse(&mut message) };
    true
}
