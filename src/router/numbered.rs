//! The numbered write that this process runs: a command to which its client has given a session and a number, so that the client can send
//! it again after a network error. The command is executed once. If it is sent again, its reply is that of the execution.
//!
//! The number is *claimed* at a shard in the transaction that writes: see `shard::once`. A client may send the same number to two routers
//! at the same time, and neither knows whether the other has it. So routers remember no numbers, and correctness rests on one rule.
//!
//! RULE: all attempts of a number have the same *home*, a key in the collection's key space. The home is computed from the
//! command's bytes and the shard key alone. It does not depend on what a statement takes from its session: the time, the user's
//! roles, random numbers, a generated `_id`. Only expressions and `let` take such values, so homes ignore them
//! (`targeting::least_key_as_written`). The claim is made at the home's owner, in the transaction that writes, and no statement
//! of the command writes before it. The protocol of ownership orders writes to one key over all routers and moves, so it also
//! orders the attempts. If several shards write, their writes and the claim are one distributed transaction.
//!
//! [`crate::router::writes::once`] chooses homes and claims. Everything else that writes calls [`require_claim`] first.

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
    /// the shard's function that writes also claims, and stores its answer
    Written,
    Claimed(Home),
    /// an earlier attempt was executed
    Executed(ClaimOutcome),
}

thread_local! {
    static CURRENT: RefCell<Option<Current>> = const { RefCell::new(None) };
}

/// A numbered write, until it is dropped.
#[derive(Debug)]
pub struct Numbered(());

impl Numbered {
    /// Begins a numbered write; `is_single`: it consists of one operation.
    pub fn begin(number: &Number, is_single: bool) -> Self {
        CURRENT.set(Some(Current { number: number.encode(), is_single, state: State::Unclaimed }));
        Self(())
    }

    /// The outcome of an earlier attempt, if one was executed.
    pub fn executed(&self) -> Option<ClaimOutcome> {
        CURRENT.with_borrow(|current| match current.as_ref().map(|current| &current.state) {
            Some(State::Executed(outcome)) => Some(outcome.clone()),
            _ => None,
        })
    }

    /// The number and its home, if its reply is to be stored there.
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
        // For example, another session has created the collection since the command began.
        bail!(Kind::WriteConflict, "a collection was created while the command ran");
    }
    Ok(())
}
