//! The numbered write that this process runs: a command to which its client has given a session and a number, so that it can send it again
//! after a network error. It is executed once; sent again, it gets the reply of that one time.
//!
//! The number is *claimed* at a shard in the transaction that writes: see `shard::once`. A client may send the same number to two routers
//! at the same time, and neither knows whether the other has it. So no router remembers anything. Correctness rests on one rule.
//!
//! RULE: all attempts of a number have the same *home*, a key in the collection's key space, which is computed from the command's bytes and
//! the shard key alone, not from what a statement takes from its session: the time, the user's roles, random numbers, an `_id` that is made.
//! Only expressions and `let` take such values, so homes ignore them (`targeting::least_key_as_written`). And no statement of the command writes before the claim, in the same transaction, at the home's owner. The
//! protocol of ownership, which orders writes to one key over all routers and moves, so orders the attempts. What several shards write is one
//! transaction with the claim.
//!
//! [`crate::router::writes::once`] chooses homes and claims. [`require_claim`] stands before everything else that writes.

use crate::pg::error::Result;
use docshard_core::error::{Kind, bail};
use docshard_core::routing::plan::destination::Destination;
use docshard_core::routing::protocol::once::{ClaimOutcome, Number};
use std::cell::RefCell;

struct Current {
    number: Vec<u8>,
    /// the command consists of one operation, which may claim by itself
    is_single: bool,
    state: State,
}

/// Where the reply of a claimed number is to be stored.
#[derive(Clone, Debug)]
pub(super) struct Home {
    pub(super) namespace: String,
    pub(super) collection: i32,
    pub(super) token: i64,
    pub(super) destination: Destination,
}

pub(super) enum State {
    Unclaimed,
    /// by the shard's function that writes, which also stores its answer
    Written,
    Claimed(Home),
    /// it was executed before
    Executed(ClaimOutcome),
}

thread_local! {
    static CURRENT: RefCell<Option<Current>> = const { RefCell::new(None) };
}

/// A numbered write, until it is dropped.
#[derive(Debug)]
pub struct Numbered(());

impl Numbered {
    /// Begins one; `is_single`: it consists of one operation.
    pub fn begin(number: &Number, is_single: bool) -> Self {
        CURRENT.set(Some(Current { number: number.encode(), is_single, state: State::Unclaimed }));
        Self(())
    }

    /// What became of the number, if the command was executed before.
    pub fn executed(&self) -> Option<ClaimOutcome> {
        CURRENT.with_borrow(|current| match current.as_ref().map(|current| &current.state) {
            Some(State::Executed(outcome)) => Some(outcome.clone()),
            _ => None,
        })
    }

    /// The number, and where it waits for a reply.
    pub(super) fn home(&self) -> Option<(Vec<u8>, Home)> {
        CURRENT.with_borrow(|current| match current {
            Some(Current { number, state: State::Claimed(home), .. }) => Some((number.clone(), home.clone())),
            _ => None,
        })
    }
}

impl Drop for Numbered {
    fn drop(&mut self) {
        CURRENT.set(None);
    }
}

/// The number, if there is one that has not been claimed, and whether one operation is the whole command.
pub(super) fn unclaimed() -> Option<(Vec<u8>, bool)> {
    CURRENT.with_borrow(|current| match current {
        Some(Current { number, is_single, state: State::Unclaimed }) => Some((number.clone(), *is_single)),
        _ => None,
    })
}

pub(super) fn set(state: State) {
    CURRENT.with_borrow_mut(|current| {
        if let Some(current) = current {
            current.state = state;
        }
    });
}

/// Refuses a statement of a numbered command that would write before the claim.
pub(super) fn require_claim() -> Result<()> {
    let is_unclaimed = |current: &Option<Current>| matches!(current, Some(Current { state: State::Unclaimed, .. }));
    if CURRENT.with_borrow(is_unclaimed) {
        // Such as into a collection that another session has created since the command began.
        bail!(Kind::WriteConflict, "a collection was created while the command ran");
    }
    Ok(())
}
