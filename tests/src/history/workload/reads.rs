//! Reads of one key, counts, scans, and aggregations.

use super::client::{Answer, Worker};
use super::{NAMESPACES, as_u32, parse_document, range_filter};
use crate::history::{Document, DocumentState, Key, Observed, Range, Tick};
use postgres::Client;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

impl Worker {
    /// Reads the document of a key by one of several filters, and does not record it.
    pub(super) fn find(&mut self, client: &mut Client, key: Key) -> Answer<Option<DocumentState>> {
        let ns = NAMESPACES[usize::from(key.collection)];
        let k = key.k;
        let sql = match self.rng.u32(0..10) {
            // The first has the shard key, the second goes to every shard.
            0..7 => format!("SELECT docshard.find('{ns}', '{{\"k\": {k}}}')"),
            7..9 => format!("SELECT docshard.find_one('{ns}', '{{\"_id\": {k}}}')"),
            _ => format!("SELECT docshard.find('{ns}', '{{\"k\": {{\"$in\": [{k}]}}}}', '{{\"sort\": {{\"k\": 1}}}}')"),
        };
        let rows = self.query(client, &sql)?;
        if rows.len() > 1 {
            self.workload.anomaly(format!("{key:?} was found {} times: {sql}", rows.len()));
        }
        let text = rows.into_iter().next().filter(|text| !text.is_empty());
        Ok(text.and_then(|text| serde_json::from_str(&text).ok()).map(|document| parse_document(&document)))
    }

    pub(super) fn read(&mut self, client: &mut Client, key: Key) -> Answer<Option<DocumentState>> {
        let began = self.workload.recorder.tick();
        let found = self.find(client, key)?;
        self.observe(began, Observed::Read(key, found.clone()));
        Ok(found)
    }

    /// Counts a range, or a whole collection, and does not record it.
    fn count_documents(&mut self, client: &mut Client, range: Option<Range>) -> Answer<(Range, u64)> {
        let whole = range.is_none();
        let range = match range {
            Some(range) => range,
            None => {
                let collection = self.any_key().collection;
                self.workload.keys(collection)
            }
        };
        let ns = NAMESPACES[usize::from(range.collection)];
        let filter = if whole { "{}".to_owned() } else { range_filter(&range) };
        let text = self.first_value(client, &format!("SELECT docshard.count_documents('{ns}', '{filter}')"))?;
        let count: i64 = text.and_then(|text| text.parse().ok()).unwrap_or(-1);
        let count = if whole { self.workload.without_fillers(count) } else { u64::try_from(count).unwrap_or(u64::MAX) };
        Ok((range, count))
    }

    pub(super) fn count(&mut self, client: &mut Client, range: Option<Range>) -> Answer<()> {
        let began = self.workload.recorder.tick();
        let (range, count) = self.count_documents(client, range)?;
        self.observe(began, Observed::Count(range, count));
        Ok(())
    }

    pub(super) fn scan(&mut self, client: &mut Client, range: Range) -> Answer<()> {
        let ns = NAMESPACES[usize::from(range.collection)];
        let began = self.workload.recorder.tick();
        let sort = if self.rng.bool() { ", \"sort\": {\"k\": 1}" } else { "" };
        let options = format!("{{\"projection\": {{\"k\": 1, \"life\": 1}}{sort}}}");
        let rows =
            self.query(client, &format!("SELECT docshard.find('{ns}', '{}', '{options}')", range_filter(&range)))?;
        self.observe_scan(began, range, &rows);
        Ok(())
    }

    fn observe_scan(&mut self, began: Tick, range: Range, rows: &[String]) {
        let documents = rows.iter().map(|text| {
            let document: Value = serde_json::from_str(text).unwrap_or_default();
            let key = Key { collection: range.collection, k: as_u32(&document["k"]) };
            Document { key, life: as_u32(&document["life"]) }
        });
        let documents = documents.collect();
        self.observe(began, Observed::Scan(range, documents));
    }

    /// Aggregates a range by a `$group`: counts, which are merged from several shards, or the document and the sum of each key.
    pub(super) fn group(&mut self, client: &mut Client, range: Range) -> Answer<()> {
        let by_key = self.rng.bool();
        let group = match by_key {
            true => {
                json!({"_id": "$k", "documents": {"$sum": 1}, "n": {"$sum": "$n"}, "life": {"$max": "$life"}, "ops": {"$first": "$ops"}})
            }
            false => json!({"_id": {"$mod": ["$k", 5]}, "documents": {"$sum": 1}}),
        };
        let filter: Value = serde_json::from_str(&range_filter(&range)).unwrap_or_default();
        let pipeline = json!([{"$match": filter}, {"$group": group}]);
        let ns = NAMESPACES[usize::from(range.collection)];
        let began = self.workload.recorder.tick();
        let rows = self.query(client, &format!("SELECT docshard.aggregate('{ns}', '{pipeline}')"))?;
        let groups: Vec<Value> = rows.iter().map(|text| serde_json::from_str(text).unwrap_or_default()).collect();
        let count = groups.iter().filter_map(|group| group["documents"].as_u64()).sum();
        self.observe(began, Observed::Count(range, count));
        if !by_key {
            return Ok(());
        }
        let mut found: BTreeMap<u32, &Value> = BTreeMap::new();
        for group in &groups {
            let k = as_u32(&group["_id"]);
            if group["documents"] != 1 || found.insert(k, group).is_some() {
                self.workload.anomaly(format!("k {k} of {ns} was grouped as {groups:?}"));
            }
        }
        for k in range.from..range.to {
            let key = Key { collection: range.collection, k };
            self.observe(began, Observed::Read(key, found.get(&k).map(|group| parse_document(group))));
        }
        Ok(())
    }

    /// Scans a range by a cursor that stays open while chunks move.
    pub(super) fn scan_by_cursor(&mut self, client: &mut Client) -> Answer<()> {
        let range = self.any_range(120);
        let ns = NAMESPACES[usize::from(range.collection)];
        let began = self.workload.recorder.tick();
        let mut run = || -> Answer<Vec<String>> {
            let options = "{\"projection\": {\"k\": 1, \"life\": 1}}";
            let open = format!(
                "BEGIN; DECLARE c NO SCROLL CURSOR FOR SELECT docshard.find('{ns}', '{}', '{options}')",
                range_filter(&range)
            );
            self.query(client, &open)?;
            let mut all = Vec::new();
            loop {
                let some = self.query(client, "FETCH 20 FROM c")?;
                if some.is_empty() {
                    return Ok(all);
                }
                all.extend(some);
                thread::sleep(Duration::from_millis(self.rng.u64(1..60)));
            }
        };
        let rows = run();
        if let Ok(rows) = &rows {
            self.observe_scan(began, range, rows);
        }
        let end = self.query(client, "ROLLBACK").map(drop);
        rows.map(drop).and(end)
    }

    /// Reads a key twice in one snapshot: both reads must agree.
    pub(super) fn read_twice(&mut self, client: &mut Client) -> Answer<()> {
        let began = self.workload.recorder.tick();
        let key = self.any_key();
        let mut run = || -> Answer<()> {
            self.query(client, "BEGIN ISOLATION LEVEL REPEATABLE READ")?;
            let whole = self.count_documents(client, None)?;
            let first = self.find(client, key)?;
            thread::sleep(Duration::from_millis(self.rng.u64(1..80)));
            let second = self.find(client, key)?;
            if first != second {
                self.workload.anomaly(format!("{key:?} changed under REPEATABLE READ: {first:?}, {second:?}"));
            }
            self.observe(began, Observed::Read(key, second));
            self.observe(began, Observed::Count(whole.0, whole.1));
            Ok(())
        };
        let result = run();
        let end = self.query(client, "ROLLBACK").map(drop);
        result.and(end)
    }
}
