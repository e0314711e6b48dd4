//! Numbered writes at a shard: a write is executed once though its client sends it again. The number is *claimed* in the transaction that
//! writes: the session's row in `docshard_data.numbered_writes` gets it, and so a second transaction with the same number waits for
//! the first one's end. If that has committed, it finds the number, and what became of the write.
//!
//! INVARIANT: a number is claimed under the lock and the version check of a key, its *home*, and its row moves with the owner of that key.
//! So of two attempts with the same home the second one meets the row of the first, whatever routers sent them: they run at the same
//! shard; or the range has moved in between, in whose hand-over no attempt runs, with the row; or this shard is not the owner any
//! more, and refuses the second. `router::once` chooses the home.

use super::placement::Placement;
use super::{documents, table, writing};
use crate::pg::error::Result;
use crate::pg::security::permission;
use crate::pg::security::user::as_extension_owner;
use crate::pg::server::relation_oid;
use crate::storage::SCHEMA;
use crate::store::numbered_writes as store;
use docshard_core::error::{Kind, bail, ensure};
use docshard_core::routing::protocol::documents::{DeleteDocument, InsertDocuments, UpdateDocument, unpack};
use docshard_core::routing::protocol::migration::NumberedWrites;
use docshard_core::routing::protocol::once::{
    CLAIMED, ClaimWrite, DeleteOnce, InsertOnce, Number, Outcome, RememberReply, UpdateOnce,
};

/// Claims a number; returns what became of it if it was claimed before.
///
/// # Errors
/// Those of `lock_and_check`; `TransactionTooOld` for a number below that of the session's last write here;
/// `IncompleteTransactionHistory` for one that another command has.
pub fn claim(call: &ClaimWrite<'_>) -> Result<Option<Outcome>> {
    let &ClaimWrite { collection, token, version, ref number, ref skey } = call;
    let number = Number::decode(number)?;
    if claim_at(collection, Placement { token, version }, &number, skey, None)? {
        return Ok(None);
    }
    let Number { session, number, command } = number;
    let Some(last) = as_extension_owner(|| store::last(&session))? else {
        // It has expired just now, and so it is another write.
        bail!(Kind::WriteConflict, "write {number} of the session was forgotten while it was sent again");
    };
    ensure!(
        last.number == number,
        Kind::TransactionTooOld,
        "write {number} of the session is older than its last one, {}",
        last.number
    );
    ensure!(
        last.command == command,
        Kind::IncompleteTransactionHistory,
        "number {number} of the session belongs to another command ({})",
        last.command
    );
    match (last.answer, last.reply) {
        (_, Some(reply)) => Ok(Some(Outcome::Replied(reply))),
        (Some(answer), None) => Ok(Some(Outcome::Written(answer))),
        (None, None) => {
            bail!(Kind::IncompleteTransactionHistory, "the reply to write {number} of the session was not stored")
        }
    }
}

/// Claims a number with this answer in advance; false if it was claimed before, or a later one.
fn claim_at(collection: i32, assumed: Placement, number: &Number, skey: &[u8], answer: Option<i64>) -> Result<bool> {
    writing::lock_and_check(collection, assumed, Some(skey), Some(&[skey, &[0]].concat()))?;
    let Number { session, number, command } = number;
    as_extension_owner(|| store::replace(session, *number, command, collection, skey, answer))
}

/// Stores the reply to the number that this transaction has claimed.
pub fn remember(call: &RememberReply<'_>) -> Result<bool> {
    permission::require_any_write(table::oid(call.collection)?);
    let Number { session, number, .. } = Number::decode(&call.number)?;
    as_extension_owner(|| store::set_reply(&session, number, &call.reply))
}

/// Inserts one document.
pub fn insert(call: &InsertOnce<'_>) -> Result<i64> {
    let &InsertOnce { collection, token, version, ref number, ref documents } = call;
    let number = Number::decode(number)?;
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
    let (number, key) = (Number::decode(&number)?, skey.clone());
    let update = UpdateDocument { collection, token, version, skey, id, filter, update, fixed };
    once(collection, Placement { token, version }, &number, &key, 2, || {
        documents::update_one(&update).map(answer_of_update)
    })
}

/// What `update_document` answers.
pub fn answer_of_update(changed: Option<bool>) -> i64 {
    changed.map_or(0, |changed| 1 + i64::from(changed))
}

/// Deletes one document.
pub fn delete(call: &DeleteOnce<'_>) -> Result<i64> {
    let DeleteOnce { collection, token, version, number, skey, id, filter } = call.clone();
    let (number, key) = (Number::decode(&number)?, skey.clone());
    let delete = DeleteDocument { collection, token, version, skey, id, filter };
    once(collection, Placement { token, version }, &number, &key, 1, || documents::delete_one(&delete).map(i64::from))
}

/// Claims a number and writes, which most often answers as `expected`.
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

/// At the donor: the writes whose homes are in a range that moves. Those of a collection from before it was sharded have the empty key,
/// and move with each range.
pub fn of_range(call: &NumberedWrites<'_>) -> Result<Option<String>> {
    as_extension_owner(|| Ok(store::of_range(call.collection, call.lo, call.hi, call.after)?.flatten()))
}

/// At the recipient: stores these writes; returns the last one's session.
pub fn load(writes: &str) -> Result<Option<Vec<u8>>> {
    as_extension_owner(|| Ok(store::load(writes)?.flatten()))
}

/// Deletes writes that are older than clients send them again, at most this many; returns how many.
pub fn forget(most: i64) -> Result<i64> {
    as_extension_owner(|| store::forget(most).map(u64::cast_signed))
}

/// True if this shard has such writes.
pub fn exist() -> Result<bool> {
    // It has no table before the extension is updated.
    if relation_oid(SCHEMA, c"numbered_writes").is_none() {
        return Ok(false);
    }
    as_extension_owner(store::exist)
}
