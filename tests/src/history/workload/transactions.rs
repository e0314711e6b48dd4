//! Transactions over several documents, which may be on several shards.

use super::client::{Answer, KeyState, StatementError, Worker};
use crate::history::{Action, Document, Observed, Outcome, Tick};
use postgres::Client;
use std::collections::BTreeSet;

/// One write of a transaction.
struct Part {
    action: Action,
    sql: String,
    /// It is rolled back to a savepoint.
    rolled_back: bool,
}

impl Worker {
    /// Appends to several documents in one transaction, so that the sum of what is added is 0, and sometimes inserts or deletes
    /// an own key.
    pub(super) fn transact(&mut self, client: &mut Client) -> Answer<()> {
        let mut documents = BTreeSet::new();
        for _ in 0..self.rng.u32(2..5) {
            documents.extend(self.any_document());
        }
        let mut parts = Vec::new();
        let id = self.workload.recorder.number();
        let rolled_back_id = self.workload.recorder.number();
        let mut sum = 0;
        for (place, &document) in documents.iter().enumerate() {
            let rolled_back = documents.len() > 2 && place == 1 && self.rng.u32(0..3) == 0;
            let delta = if place + 1 == documents.len() { -sum } else { self.rng.i64(-9..10) };
            if !rolled_back {
                sum += delta;
            }
            let sql = self.append_sql(document, if rolled_back { rolled_back_id } else { id }, delta);
            parts.push(Part { action: Action::Append(document, delta), sql, rolled_back });
        }
        let key = self.own_key();
        let state = *self.key_states.entry(key).or_insert(KeyState::Absent);
        if !self.has_prepared(key) && !documents.iter().any(|document| document.key == key) && self.rng.u32(0..3) == 0 {
            match state {
                KeyState::Absent => {
                    let document = self.new_life(key);
                    let (action, sql) = (Action::Insert(document), Self::insert_sql(document));
                    parts.push(Part { action, sql, rolled_back: false });
                }
                KeyState::Present(life) => {
                    let document = Document { key, life };
                    let (action, sql) = (Action::Delete(document), Self::delete_sql(document));
                    parts.push(Part { action, sql, rolled_back: false });
                }
                KeyState::Unknown => {}
            }
        }
        let own_key_change = parts.iter().any(|part| matches!(part.action, Action::Insert(_) | Action::Delete(_)));
        if own_key_change {
            self.set_state(key, KeyState::Unknown);
        }
        let repeatable = self.rng.u32(0..8) == 0;
        let mut actions = Vec::new();
        let mut undone = Vec::new();
        let run = self.statements(client, &parts, id, repeatable, &mut actions, &mut undone);
        if !undone.is_empty() {
            let place = self.workload.recorder.begin(rolled_back_id, self.number, undone);
            self.workload.recorder.end(place, Outcome::Failed, None);
        }
        let commits = run.is_ok() && self.rng.u32(0..8) > 0;
        let place = self.workload.recorder.begin(id, self.number, actions.clone());
        if run.is_ok() && self.prepared.len() < 2 && self.rng.u32(0..8) == 0 {
            let after = match actions.last() {
                Some(Action::Insert(document)) => KeyState::Present(document.life),
                Some(Action::Delete(_)) => KeyState::Absent,
                _ => state,
            };
            let keys = actions.iter().filter_map(Action::key).collect();
            return self.prepare(client, id, place, commits, keys, own_key_change.then_some((key, state, after)));
        }
        let outcome = if commits {
            match self.query(client, "COMMIT") {
                Ok(_) => self.acknowledged(),
                Err(StatementError::Failed(_)) => Outcome::Failed,
                Err(StatementError::Unknown) => Outcome::Maybe,
            }
        } else {
            drop(self.query(client, "ROLLBACK"));
            Outcome::Failed
        };
        self.record_outcome(place, outcome, None);
        if own_key_change && outcome == Outcome::Failed {
            self.set_state(key, state);
        } else if own_key_change && matches!(outcome, Outcome::Done | Outcome::Decided) {
            match actions.last() {
                Some(Action::Insert(document)) if outcome == Outcome::Done => {
                    self.set_state(key, KeyState::Present(document.life));
                }
                Some(Action::Delete(_)) if outcome == Outcome::Done => self.set_state(key, KeyState::Absent),
                _ => {}
            }
        }
        run
    }

    /// Runs the statements of a transaction. `actions` gets those that stay, `undone` those that are rolled back.
    fn statements(
        &mut self,
        client: &mut Client,
        parts: &[Part],
        id: u64,
        repeatable: bool,
        actions: &mut Vec<Action>,
        undone: &mut Vec<Action>,
    ) -> Answer<()> {
        let start = self.workload.recorder.tick();
        self.query(client, if repeatable { "BEGIN ISOLATION LEVEL REPEATABLE READ" } else { "BEGIN" })?;
        for Part { action, sql, rolled_back } in parts {
            if *rolled_back {
                self.query(client, "SAVEPOINT s")?;
                undone.push(*action);
            } else {
                actions.push(*action);
            }
            let began = if repeatable { start } else { self.workload.recorder.tick() };
            let answer = self.query_json(client, sql)?;
            let matched = match action {
                Action::Append(document, _) => Some((document, answer["matchedCount"] == 1)),
                Action::Delete(document) => Some((document, answer["deletedCount"] == 1)),
                Action::Insert(_) | Action::AppendMany(..) => None,
            };
            if let Some((document, matched)) = matched {
                self.observe_presence(began, *document, matched);
                if !matched && !rolled_back {
                    actions.pop();
                }
                if matched && !rolled_back && self.rng.u32(0..3) == 0 {
                    self.read_own_write(client, began, *document, *action, id)?;
                }
            }
            if *rolled_back {
                self.query(client, "ROLLBACK TO s")?;
            }
        }
        Ok(())
    }

    /// Reads a document that the transaction has just written, and records it without that write: the history has committed
    /// states only.
    fn read_own_write(
        &mut self,
        client: &mut Client,
        began: Tick,
        document: Document,
        action: Action,
        id: u64,
    ) -> Answer<()> {
        let found = self.find(client, document.key)?;
        match (action, found) {
            (Action::Append(_, delta), Some(mut found)) if found.ops.last() == Some(&id) => {
                found.ops.pop();
                found.n -= delta;
                self.observe(began, Observed::Read(document.key, Some(found)));
            }
            (Action::Delete(_), None) => {}
            (_, found) => self.workload.anomaly(format!("after {action:?} as {id} its transaction read {found:?}")),
        }
        Ok(())
    }
}
