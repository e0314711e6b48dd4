//! Claims the number of a numbered write at its home: see [`crate::router::numbered`].
//!
//! * A write to one document whose key is known has that key as its home. The shard's function claims and writes in one call, so that no
//!   round trip is added.
//! * Every other write of one operation claims before it reads. Its home is computed from its text alone: the least key that a document it
//!   writes can have, cut to the length of the longest key. If the text names the key, that is the same home as in the first case. A write
//!   whose key depends on more than its text, such as the time, also claims this way.
//! * A command of several operations claims before the first one: at the first document's key if this is an insert in which
//!   nothing is generated, else at the collection's least key.
//!
//! In the last two cases the reply is stored beside the number, in the same transaction.
//!
//! A shard of an earlier release has no function for claims (42883). Then the command runs without a claim, as in that release.

use crate::catalog::collections::collection;
use crate::pg::error::{Error, Result};
use crate::pg::server::current_user;
use crate::router::dispatch::writing::{self, LockRange};
use crate::router::fresh_map::with_fresh_map;
use crate::router::numbered::{Home, Numbered, State, set, unclaimed};
use docshard_core::cluster::targeting;
use docshard_core::error::Kind;
use docshard_core::routing::model::Collection;
use docshard_core::routing::plan::destination::{self, Destination};
use docshard_core::routing::plan::document_key::DocumentKey;
use docshard_core::routing::plan::statement::Statement;
use docshard_core::routing::protocol::documents::{DeleteDocument, InsertDocuments, UpdateDocument};
use docshard_core::routing::protocol::once::{
    CLAIMED, ClaimOutcome, ClaimWrite, DeleteOnce, InsertOnce, MAX_REPLY, RememberReply, Session, UpdateOnce,
};
use docshard_core::routing::request::query::Query;
use docshard_core::values::key::MAX_KEY_BYTES;

/// The session of a client of the present role. The same UUID under another role is another session.
pub fn session_of(id: [u8; 16]) -> Session {
    let mut session = Session::default();
    let (role, uuid) = session.split_at_mut(4);
    role.copy_from_slice(&current_user().to_u32().to_be_bytes());
    uuid.copy_from_slice(&id);
    session
}

/// Stores the reply of a claimed number, unless it is larger than [`MAX_REPLY`].
pub fn remember(numbered: &Numbered, reply: &[u8]) -> Result<()> {
    let Some((number, Home { namespace, collection, token, destination })) = numbered.home() else { return Ok(()) };
    if reply.len() > MAX_REPLY {
        return Ok(());
    }
    let call = RememberReply { collection, token, version: 0, number: number.into(), reply: reply.into() };
    let statement = Statement::from(call);
    with_fresh_map(&namespace, |collection| match collection {
        // The claim's locks keep the home where it is.
        Some(collection) => writing::write_locked(&collection, &destination, &statement).map(drop),
        None => Ok(()),
    })
}

/// The error that ends an attempt of a command which was executed before. [`Numbered::executed`] has the outcome.
fn executed(outcome: ClaimOutcome) -> Error {
    set(State::Executed(outcome));
    Error::new(Kind::InternalError, "the numbered write was executed before")
}

/// Claims the number at a home, unless that has been done.
fn claim(collection: &Collection, home: &[u8]) -> Result<()> {
    let Some((number, _)) = unclaimed() else { return Ok(()) };
    let home = home.max(collection.map.lowest());
    let destination = destination::destination_of(collection, home)?;
    let &Collection { id, token, .. } = collection;
    let call = ClaimWrite { collection: id, token, version: 0, number: number.into(), skey: home.into() };
    let statement = Statement::from(call);
    let claimed = writing::write_claim(collection, &destination, &LockRange::of_key(home), &statement)?;
    match claimed.rows.first().and_then(|row| row.get(0)) {
        Some(outcome) => Err(executed(ClaimOutcome::decode(outcome)?)),
        None => {
            let namespace = collection.namespace.clone();
            set(State::Claimed(Home { namespace, collection: id, token, destination }));
            Ok(())
        }
    }
}

/// Claims before an operation reads or writes, at the least key that the operation can concern according to its text. Does nothing if the
/// operation is the whole command and writes by that very key: then the write itself claims.
pub(super) fn claim_for(
    collection: &Collection,
    query: &Query,
    written_key: impl FnOnce() -> Result<Option<DocumentKey>>,
) -> Result<()> {
    let Some((_, is_single)) = unclaimed() else { return Ok(()) };
    let mut home = targeting::least_key_as_written(&collection.key, &query.filter);
    home.truncate(MAX_KEY_BYTES);
    if is_single && written_key()?.is_some_and(|key| key.skey == home) {
        return Ok(());
    }
    claim(collection, &home)
}

/// True if the command is one operation that may claim by itself.
pub fn may_claim_by_itself() -> bool {
    unclaimed().is_some_and(|(_, is_single)| is_single)
}

/// Claims at the collection's least key, before the operations of a command. `creates`: the collection is created if there is none.
pub fn claim_for_all(namespace: &str, creates: bool) -> Result<()> {
    claim_at(namespace, creates, |_| Ok(Vec::new()))
}

/// Like [`claim_for_all`], at the key that `home` returns.
pub fn claim_at(namespace: &str, creates: bool, home: impl Fn(&Collection) -> Result<Vec<u8>>) -> Result<()> {
    if unclaimed().is_none() {
        return Ok(());
    }
    with_fresh_map(namespace, |collection| {
        let collection = match collection {
            Some(collection) => collection,
            None if creates => collection::create_implicitly(namespace)?,
            None => return Ok(()),
        };
        claim(&collection, &home(&collection)?)
    })
}

/// A call that writes one document, and its form that claims a number first.
pub(super) trait Once: Into<Statement> {
    fn with_number(self, number: Vec<u8>) -> Statement;
}

impl Once for InsertDocuments<'_> {
    fn with_number(self, number: Vec<u8>) -> Statement {
        let Self { collection, token, version, documents } = self;
        InsertOnce { collection, token, version, number: number.into(), documents }.into()
    }
}

impl Once for UpdateDocument<'_> {
    fn with_number(self, number: Vec<u8>) -> Statement {
        let Self { collection, token, version, skey, id, filter, update, fixed } = self;
        UpdateOnce { collection, token, version, number: number.into(), skey, id, filter, update, fixed }.into()
    }
}

impl Once for DeleteDocument<'_> {
    fn with_number(self, number: Vec<u8>) -> Statement {
        let Self { collection, token, version, skey, id, filter } = self;
        DeleteOnce { collection, token, version, number: number.into(), skey, id, filter }.into()
    }
}

/// Sends a call that writes the document of a key; returns its answer. If the command is a numbered one with a single operation, the call
/// also claims its number.
pub(super) fn write(
    collection: &Collection,
    destinations: &[Destination],
    skey: &[u8],
    is_last: bool,
    call: impl Once,
) -> Result<i64> {
    let range = LockRange::of_key(skey);
    let number = unclaimed().filter(|(_, is_single)| *is_single).map(|(number, _)| number);
    let is_numbered = number.is_some();
    let statement = match number {
        Some(number) => call.with_number(number),
        None => call.into(),
    };
    if is_numbered {
        set(State::Written);
    }
    let written = writing::write_checked(collection, destinations, &range, is_last, |_| &statement);
    if is_numbered && written.is_err() {
        // Nothing was claimed: the operation runs again, or has failed.
        set(State::Unclaimed);
    }
    let answer = written?.iter().flat_map(|written| &written.rows).map(|row| row.i64(0)).fold(0, i64::saturating_add);
    if is_numbered && answer == CLAIMED {
        // An earlier attempt was executed: the claim reads its outcome and returns it as an error.
        set(State::Unclaimed);
        claim(collection, skey)?;
        return Err(Error::protocol_violation("a shard has both refused and accepted the number of a write"));
    }
    Ok(answer)
}
