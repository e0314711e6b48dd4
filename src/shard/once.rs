//! Numbered writes at a shard: a write is executed once, even if its client sends it again. The transaction that writes
//! *claims* the number: it stores the number in the session's row of `docshard_data.numbered_writes`. A second
//! transaction with the same number waits until the first one ends. If the first one has committed, the second one
//! finds the number and the write's result. The *home* of a write is the shard key under which its number is claimed;
//! `router::once` chooses it.
//!
//! INVARIANT: for each session and each key, the shard that owns the key has a number of the session that is at least
//! as high as that of every write of the session with that home. If the numbers are equal, the shard also has the
//! write's result.
//!
//! Claims keep the invariant: a number is claimed under the lock and the version check of its home, and only a higher
//! number replaces it. Moves keep it: before ownership changes, the recipient has all that the donor knows of any
//! session, not only rows whose home is in the range ([`after`], [`load`]). If the session has written with another
//! home since, there is no row for the earlier write, but the higher number refuses its repetition. Knowledge about a
//! session only grows: of two rows the one with the higher number counts; of two with the same number, the one with the
//! result. A row says what a committed transaction has written, and stays true when the key gets another owner. So rows
//! may be copied at any time, also by a move that is aborted. Splits and merges change no owner. A row is deleted half an hour after its
//! write, the session's last one, so no earlier write is forgotten sooner; a received row keeps the time of its write.
//! Only roles with more than [`MAX_ROWS`] rows lose the oldest ones earlier.
//!
//! So of two attempts with the same home, the second finds the first one's number. Either both run at the same shard, and the second waits
//! for the first one's row; or the range has moved in between, and no attempt runs during the hand-over; or this shard no longer owns the
//! home, and refuses the second attempt.
//!
//! A client can call these functions at the router's own shard, but only for sessions of its own role ([`own`]).

use super::numbered_writes as store;
use super::placement::Placement;
use super::{documents, node, table, writing};
use crate::pg::error::Result;
use crate::pg::security::permission;
use crate::pg::security::user::{self, as_extension_owner};
use crate::pg::server::{current_user, relation_oid};
use crate::storage::SCHEMA;
use docshard_core::error::{Kind, bail, ensure};
use docshard_core::routing::protocol::documents::{DeleteDocument, InsertDocuments, UpdateDocument, unpack};
use docshard_core::routing::protocol::migration::NumberedWrites;
use docshard_core::routing::protocol::once::{
    CLAIMED, ClaimOutcome, ClaimWrite, DeleteOnce, InsertOnce, MAX_REPLY, Number, RememberReply, UpdateOnce,
};
use docshard_core::values::key::MAX_KEY_BYTES;
use pgrx::pg_sys::Oid;
use std::cell::Cell;

/// The largest number of rows of one role; beyond it, the oldest are deleted.
const MAX_ROWS: i64 = 200_000;
/// The largest size of one role's replies, in bytes; beyond it, the oldest are deleted.
const MAX_REPLIES: i64 = 64_000_000;

thread_local! {
    /// The session's user, if it is known to be a router's.
    static ROUTER: Cell<Oid> = const { Cell::new(Oid::INVALID) };
}

/// Decodes a number. Its session must belong to the current user's role, unless a router has sent it: roles have other OIDs on the router.
///
/// # Errors
/// 42501 for the session of another role.
fn own(number: &[u8]) -> Result<Number> {
    let number = Number::decode(number)?;
    if number.role() == u32::from(current_user()) {
        return Ok(number);
    }
    if !(user::may_become_session_user() && ROUTER.get() == user::session_user()) {
        ensure!(
            node::is_routers_session()?,
            Kind::Unauthorized,
            "the session of a numbered write belongs to another role"
        );
        ROUTER.set(user::session_user());
    }
    Ok(number)
}

/// Claims a number. Returns None, or the result of the write if the number was claimed before.
///
/// # Errors
/// Those of `lock_and_check`; `TransactionTooOld` for a number below that of the session's last write here;
/// `IncompleteTransactionHistory` if the number belongs to another command, or the reply is not known here; `WriteConflict` if the number
/// was forgotten meanwhile.
pub fn claim(call: &ClaimWrite<'_>) -> Result<Option<ClaimOutcome>> {
    let &ClaimWrite { collection, token, version, ref number, ref skey } = call;
    let number = own(number)?;
    if claim_at(collection, Placement { token, version }, &number, skey, None)? {
        return Ok(None);
    }
    let Number { session, number, command } = number;
    let Some(last) = as_extension_owner(|| store::last(&session))? else {
        // The row has expired meanwhile. If the write is sent again, it counts as a new one.
        bail!(Kind::WriteConflict, "write {number} of the session was forgotten while it was sent again");
    };
    ensure!(
        last.number == number,
        Kind::TransactionTooOld,
        "write {number} of the session is older than its last one, {}",
        last.number
    );
    // A floor: the write's home was elsewhere, as the collection had another layout.
    ensure!(
        !last.command.is_empty(),
        Kind::IncompleteTransactionHistory,
        "write {number} of the session was executed before, but the reply to it is not known here: the collection has got another layout since"
    );
    ensure!(
        last.command == command,
        Kind::IncompleteTransactionHistory,
        "number {number} of the session belongs to another command ({})",
        last.command
    );
    match (last.answer, last.reply) {
        (_, Some(reply)) => Ok(Some(ClaimOutcome::Replied(reply))),
        (Some(answer), None) => Ok(Some(ClaimOutcome::Written(answer))),
        (None, None) => {
            let why = "it is longer than 1 MB, or the role has stored too many";
            bail!(
                Kind::IncompleteTransactionHistory,
                "write {number} of the session was executed before, but the reply to it was not stored: {why}"
            )
        }
    }
}

/// Claims a number, and stores the expected result. False if this number or a higher one was claimed before.
fn claim_at(collection: i32, assumed: Placement, number: &Number, skey: &[u8], answer: Option<i64>) -> Result<bool> {
    ensure!(
        skey.len() <= MAX_KEY_BYTES,
        Kind::KeyTooLong,
        "the home of a numbered write has at most {MAX_KEY_BYTES} bytes"
    );
    writing::lock_and_check(collection, assumed, Some(skey), Some(&[skey, &[0]].concat()))?;
    let Number { session, number, command } = number;
    as_extension_owner(|| store::replace(session, *number, command, collection, skey, answer))
}

/// Stores the reply to the write whose number this transaction has claimed. False if the number is not stored here.
pub fn remember(call: &RememberReply<'_>) -> Result<bool> {
    permission::require_any_write(table::oid(call.collection)?);
    let Number { session, number, .. } = own(&call.number)?;
    ensure!(call.reply.len() <= MAX_REPLY, Kind::BadValue, "the reply to a write has at most {MAX_REPLY} bytes");
    as_extension_owner(|| store::set_reply(&session, number, &call.reply))
}

/// Inserts one document.
pub fn insert(call: &InsertOnce<'_>) -> Result<i64> {
    let &InsertOnce { collection, token, version, ref number, ref documents } = call;
    let number = own(number)?;
    let [[skey, ..]] = unpack(documents)?[..] else {
        bail!(Kind::BadValue, "one document is expected");
    };
    let insert = InsertDocuments { collection, token, version, documents: documents.as_ref().into() };
    once(collection, Placement { token, version }, &number, skey, 1, || {
        documents::insert(&insert).map(u64::cast_signed)
    })
}

/// Updates one document.
pub fn update(call: &UpdateOnce<'_>) -> Result<i64> {
    let UpdateOnce { collection, token, version, number, skey, id, filter, update, fixed } = call.clone();
    let (number, key) = (own(&number)?, skey.clone());
    let update = UpdateDocument { collection, token, version, skey, id, filter, update, fixed };
    once(collection, Placement { token, version }, &number, &key, 2, || {
        documents::update_one(&update).map(answer_of_update)
    })
}

/// The answer of `update_document`: 0: no document matched, 1: it did not change, 2: it changed.
pub fn answer_of_update(changed: Option<bool>) -> i64 {
    changed.map_or(0, |changed| 1 + i64::from(changed))
}

/// Deletes one document.
pub fn delete(call: &DeleteOnce<'_>) -> Result<i64> {
    let DeleteOnce { collection, token, version, number, skey, id, filter } = call.clone();
    let (number, key) = (own(&number)?, skey.clone());
    let delete = DeleteDocument { collection, token, version, skey, id, filter };
    once(collection, Placement { token, version }, &number, &key, 1, || documents::delete_one(&delete).map(i64::from))
}

/// Claims a number and writes. The usual result, `expected`, is stored with the claim, so that it rarely needs a second update.
fn once(
    collection: i32,
    assumed: Placement,
    number: &Number,
    skey: &[u8],
    expected: i64,
    write: impl FnOnce() -> Result<i64>,
) -> Result<i64> {
    if !claim_at(collection, assumed, number, skey, Some(expected))? {
        return Ok(CLAIMED);
    }
    let answer = write()?;
    if answer != expected {
        as_extension_owner(|| store::set_answer(&number.session, number.number, answer))?;
    }
    Ok(answer)
}

/// At the donor: returns a part of what is known of sessions. Writes whose homes are in the moving range have their results. Writes of the
/// collection from before it was sharded have the empty key as home, and move with each range.
pub fn after(call: &NumberedWrites<'_>) -> Result<Option<String>> {
    let &NumberedWrites { collection, lo, hi, since, after } = call;
    as_extension_owner(|| Ok(store::after(collection, lo, hi, since, after)?.flatten()))
}

/// At the recipient: stores writes of [`after`]. Returns the last one's session.
pub fn load(writes: &str) -> Result<Option<Vec<u8>>> {
    as_extension_owner(|| Ok(store::load(writes)?.flatten()))
}

/// Deletes writes so old that no client sends them again, and the oldest writes of roles that have too many: at most `most` of each kind.
/// Returns the larger of both numbers.
pub fn forget(most: i64) -> Result<i64> {
    as_extension_owner(|| {
        let expired = store::forget(most)?;
        let excess = store::forget_excess(most, MAX_ROWS)?;
        store::forget_replies(MAX_REPLIES)?;
        Ok(expired.max(excess).cast_signed())
    })
}

/// True if this shard has numbered writes.
pub fn exist() -> Result<bool> {
    // A shard of an earlier release has no such table until its extension is updated.
    if relation_oid(SCHEMA, c"numbered_writes").is_none() {
        return Ok(false);
    }
    as_extension_owner(store::exist)
}
