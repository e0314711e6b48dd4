//! Writes of one statement.

use super::client::{Answer, KeyState, StatementError, Worker};
use super::{NAMESPACES, range_filter};
use crate::history::{Action, Document, Key, Observed, Outcome, Tick};
use postgres::Client;
use serde_json::{Value, json};
use std::sync::atomic::Ordering;

impl Worker {
    /// An update that appends the write's number to a document, by one of several filters.
    pub(super) fn append_sql(&mut self, document: Document, id: u64, delta: i64) -> String {
        let Document { key, life } = document;
        let (ns, k) = (NAMESPACES[usize::from(key.collection)], key.k);
        let filter = match self.rng.u32(0..10) {
            0..5 => format!("{{\"k\": {k}, \"_id\": {k}, \"life\": {life}}}"),
            5..7 => format!("{{\"k\": {k}, \"life\": {life}}}"),
            7 => format!("{{\"_id\": {k}, \"life\": {life}}}"),
            // A range, which goes to one shard or, where the shard key is hashed, to all.
            8 => {
                let before = i64::from(k) - 1;
                format!("{{\"k\": {{\"$gt\": {before}, \"$lt\": {k}.5}}, \"life\": {life}}}")
            }
            _ => format!("{{\"$expr\": {{\"$eq\": [{{\"$add\": [\"$k\", 0]}}, {k}]}}, \"life\": {life}}}"),
        };
        let update = format!("{{\"$push\": {{\"ops\": {id}}}, \"$inc\": {{\"n\": {delta}}}}}");
        let options = if self.rng.u32(0..4) == 0 { ", '{\"sort\": {\"n\": 1}}'" } else { "" };
        format!("SELECT docshard.update_one('{ns}', '{filter}', '{update}'{options})")
    }

    /// Records that a write found its document, or did not.
    pub(super) fn observe_presence(&self, began: Tick, document: Document, found: bool) {
        self.observe(began, if found { Observed::Present(document) } else { Observed::Absent(document) });
    }

    /// Runs and records a write of one statement. `matched` says whether its answer names a document.
    fn write(
        &mut self,
        client: &mut Client,
        id: u64,
        action: Action,
        sql: &str,
        matched: impl Fn(&Value) -> bool,
    ) -> Answer<Value> {
        let place = self.workload.recorder.begin(id, self.number, vec![action]);
        let answer = self.query_json(client, sql);
        match &answer {
            Ok(value) => {
                let actions = if matched(value) { None } else { Some(Vec::new()) };
                self.record_outcome(place, self.acknowledged(), actions);
            }
            Err(StatementError::Failed(_)) => self.record_outcome(place, Outcome::Failed, None),
            Err(StatementError::Unknown) => self.record_outcome(place, Outcome::Maybe, None),
        }
        answer
    }

    pub(super) fn append(&mut self, client: &mut Client) -> Answer<()> {
        let Some(document) = self.any_document() else { return Ok(()) };
        let (id, delta) = (self.workload.recorder.number(), self.rng.i64(-9..10));
        let sql = self.append_sql(document, id, delta);
        let began = self.workload.recorder.tick();
        let matched = |answer: &Value| answer["matchedCount"] == 1;
        let answer = self.write(client, id, Action::Append(document, delta), &sql, matched)?;
        self.observe_presence(began, document, matched(&answer));
        Ok(())
    }

    pub(super) fn append_many(&mut self, client: &mut Client) -> Answer<()> {
        let range = self.any_range(24);
        if self.prepared.iter().any(|prepared| prepared.keys.iter().any(|key| range.contains(*key))) {
            return Ok(());
        }
        let (id, delta) = (self.workload.recorder.number(), self.rng.i64(-9..10));
        let update = format!("{{\"$push\": {{\"ops\": {id}}}, \"$inc\": {{\"n\": {delta}}}}}");
        let ns = NAMESPACES[usize::from(range.collection)];
        let sql = format!("SELECT docshard.update_many('{ns}', '{}', '{update}')", range_filter(&range));
        let began = self.workload.recorder.tick();
        let answer = self.write(client, id, Action::AppendMany(range, delta), &sql, |_| true)?;
        self.observe(began, Observed::Count(range, answer["matchedCount"].as_u64().unwrap_or(u64::MAX)));
        Ok(())
    }

    pub(super) fn set_state(&mut self, key: Key, state: KeyState) {
        let life = if let KeyState::Present(life) = state { life } else { 0 };
        self.workload.life(key).store(life, Ordering::SeqCst);
        self.key_states.insert(key, state);
    }

    pub(super) fn insert_sql(document: Document) -> String {
        let Document { key, life } = document;
        let k = key.k;
        let pad = "p".repeat(40 + (k as usize * 7 + life as usize) % 200);
        let text = json!({"_id": k, "k": k, "life": life, "ops": [], "n": 0, "pad": pad});
        format!("SELECT docshard.insert_one('{}', '{text}')", NAMESPACES[usize::from(key.collection)])
    }

    pub(super) fn delete_sql(document: Document) -> String {
        let Document { key, life } = document;
        let (ns, k) = (NAMESPACES[usize::from(key.collection)], key.k);
        let filter = match life % 3 {
            0 => format!("{{\"_id\": {k}, \"life\": {life}}}"),
            _ => format!("{{\"k\": {k}, \"_id\": {k}, \"life\": {life}}}"),
        };
        format!("SELECT docshard.delete_one('{ns}', '{filter}')")
    }

    /// The next document of a key that has none.
    pub(super) fn new_life(&mut self, key: Key) -> Document {
        let next = self.next_life.entry(key).or_default();
        *next += 1;
        Document { key, life: *next }
    }

    /// Inserts or deletes the document of an own key, or reads it if its state is unknown.
    pub(super) fn change_own_key(&mut self, client: &mut Client, key: Key) -> Answer<()> {
        if self.has_prepared(key) {
            return Ok(());
        }
        let id = self.workload.recorder.number();
        match *self.key_states.entry(key).or_insert(KeyState::Absent) {
            KeyState::Unknown => {
                let found = self.read(client, key)?;
                self.set_state(key, found.map_or(KeyState::Absent, |found| KeyState::Present(found.life)));
                Ok(())
            }
            KeyState::Absent => {
                let document = self.new_life(key);
                self.set_state(key, KeyState::Unknown);
                let answer = self.write(client, id, Action::Insert(document), &Self::insert_sql(document), |_| true);
                match answer {
                    Ok(_) => self.set_state(key, KeyState::Present(document.life)),
                    // A duplicate key: an earlier insert of unknown outcome may have taken effect.
                    Err(StatementError::Failed(code)) if code != "23505" => self.set_state(key, KeyState::Absent),
                    Err(_) => {}
                }
                Ok(())
            }
            // Most documents stay for a while.
            KeyState::Present(_) if self.rng.u32(0..10) < 6 => Ok(()),
            KeyState::Present(life) => {
                let document = Document { key, life };
                self.set_state(key, KeyState::Unknown);
                let began = self.workload.recorder.tick();
                let matched = |answer: &Value| answer["deletedCount"] == 1;
                let answer = self.write(client, id, Action::Delete(document), &Self::delete_sql(document), matched);
                match answer {
                    Ok(answer) => {
                        self.observe_presence(began, document, matched(&answer));
                        if matched(&answer) {
                            self.set_state(key, KeyState::Absent);
                        }
                    }
                    Err(StatementError::Failed(_)) => self.set_state(key, KeyState::Present(life)),
                    Err(StatementError::Unknown) => {}
                }
                Ok(())
            }
        }
    }
}
