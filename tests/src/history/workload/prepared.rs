//! Transactions that a client prepares and ends later, perhaps in another session.

use super::client::{Answer, KeyState, StatementError, Worker};
use crate::history::{Key, Outcome};
use postgres::Client;
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

/// A prepared transaction.
pub(super) struct Prepared {
    gid: String,
    /// Its write in the history.
    place: usize,
    /// It is to be committed, not rolled back.
    commits: bool,
    /// The server has acknowledged PREPARE.
    confirmed: bool,
    /// COMMIT or ROLLBACK PREPARED was sent, and its outcome is unknown.
    end_requested: bool,
    /// The own key that it inserts or deletes, with the key's state before and after.
    own_key_change: Option<(Key, KeyState, KeyState)>,
    /// The keys that it has locked.
    pub(super) keys: BTreeSet<Key>,
    /// How many steps the client takes before it ends the transaction.
    steps_left: u32,
}

impl Worker {
    /// Prepares the present transaction.
    pub(super) fn prepare(
        &mut self,
        client: &mut Client,
        id: u64,
        place: usize,
        commits: bool,
        keys: BTreeSet<Key>,
        own_key_change: Option<(Key, KeyState, KeyState)>,
    ) -> Answer<()> {
        let gid = format!("history-{}-{id}", self.number);
        let answer = self.query(client, &format!("PREPARE TRANSACTION '{gid}'"));
        self.workload.note("prepare");
        let steps_left = if self.rng.u32(0..10) == 0 { 30 } else { self.rng.u32(0..6) };
        let mut prepared =
            Prepared { gid, place, commits, confirmed: true, end_requested: false, own_key_change, keys, steps_left };
        match &answer {
            Ok(_) => {}
            Err(StatementError::Unknown) => prepared.confirmed = false,
            Err(StatementError::Failed(_)) => {
                self.prepared_ended(&prepared, Outcome::Failed);
                return answer.map(drop);
            }
        }
        self.prepared.push(prepared);
        answer.map(drop)
    }

    /// Ends a transaction that was prepared some steps ago, in the present session.
    pub(super) fn end_prepared(&mut self, client: &mut Client) {
        let Some(mut first) = self.prepared.pop() else { return };
        if first.steps_left > 0 {
            first.steps_left -= 1;
            self.prepared.push(first);
        } else if let Some(outcome) = self.try_end_prepared(client, &mut first) {
            self.prepared_ended(&first, outcome);
        } else {
            self.prepared.insert(0, first);
        }
    }

    /// Sends the end of a prepared transaction, and returns its outcome; None if it is to be tried again.
    fn try_end_prepared(&mut self, client: &mut Client, prepared: &mut Prepared) -> Option<Outcome> {
        self.warned.store(false, Ordering::SeqCst);
        let verb = if prepared.commits { "COMMIT" } else { "ROLLBACK" };
        let answer = client.simple_query(&format!("{verb} PREPARED '{}'", prepared.gid));
        self.workload.note("end of a prepared transaction");
        let Err(error) = answer else {
            return Some(if prepared.commits { self.acknowledged() } else { Outcome::Failed });
        };
        // 42704: no such prepared transaction. After every other error, also that it is busy, it may still be there.
        if error.code().is_none_or(|code| code.code() != "42704") {
            prepared.end_requested = true;
            self.workload.note("end of a prepared transaction unknown");
            return None;
        }
        match (prepared.confirmed, prepared.end_requested) {
            (true, false) => {
                self.workload.anomaly(format!("{} was prepared, and does not exist", prepared.gid));
                Some(Outcome::Maybe)
            }
            // An earlier request has ended it; some shards may not have committed yet.
            (true, true) if prepared.commits => Some(Outcome::Decided),
            (false, true) if prepared.commits => {
                self.maybe_prepared.push(prepared.gid.clone());
                Some(Outcome::Maybe)
            }
            (confirmed, _) => {
                if !confirmed {
                    self.maybe_prepared.push(prepared.gid.clone());
                }
                Some(Outcome::Failed)
            }
        }
    }

    fn prepared_ended(&mut self, prepared: &Prepared, outcome: Outcome) {
        self.record_outcome(prepared.place, outcome, None);
        if let Some((key, before, after)) = prepared.own_key_change {
            // A read since then may have seen the state before its end.
            self.set_state(
                key,
                match outcome {
                    Outcome::Done => after,
                    Outcome::Failed => before,
                    Outcome::Decided | Outcome::Maybe => KeyState::Unknown,
                },
            );
        }
    }

    /// Ends all prepared transactions, also those that may have been prepared late; false if some are left.
    pub(super) fn end_all_prepared(&mut self) -> bool {
        if self.prepared.is_empty() && self.maybe_prepared.is_empty() {
            return true;
        }
        let Some(mut client) = self.connect() else { return false };
        for mut prepared in std::mem::take(&mut self.prepared) {
            match self.try_end_prepared(&mut client, &mut prepared) {
                Some(outcome) => self.prepared_ended(&prepared, outcome),
                None => self.prepared.push(prepared),
            }
        }
        for gid in &self.maybe_prepared {
            // Most of them do not exist.
            let _ = client.simple_query(&format!("ROLLBACK PREPARED '{gid}'"));
        }
        self.prepared.is_empty()
    }
}
