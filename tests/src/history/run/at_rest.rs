//! Stops everything, and checks the cluster: nothing is left of moves and transactions, every document is on its owner, and
//! the history is sound.

use super::{MOVER, PATIENCE, Run, describe};
use crate::history::Key;
use crate::history::check::{Violation, check};
use crate::history::workload::{APPLICATION, NAMESPACES, Size};
use postgres::Client;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

impl Run {
    /// Pauses clients and moves, and checks leftovers, tables and history. If all is well, a new history begins.
    ///
    /// # Panics
    /// If something does not stop, or is left over, or a document is not where it belongs.
    pub fn check_at_rest(&mut self) -> Vec<Violation> {
        self.note("pauses");
        self.restore_network();
        self.workload.pause(true);
        self.shuffler.pause.store(true, Ordering::SeqCst);
        let began = Instant::now();
        while !self.workload.is_idle() || self.shuffler.busy.load(Ordering::SeqCst) {
            assert!(began.elapsed() < PATIENCE, "the clients do not pause");
            thread::sleep(Duration::from_millis(20));
        }
        let mut client = self.await_session();
        self.readd_shards();
        client.batch_execute("SELECT docshard.stop_balancer()").expect("the balancer stops");
        let began = Instant::now();
        loop {
            let left = self.leftovers();
            if left.is_empty() {
                break;
            }
            assert!(began.elapsed() < PATIENCE, "left behind:\n{left}");
            thread::sleep(Duration::from_millis(100));
        }
        self.workload.recorder.settle();
        let documents = self.workload.read_all(&mut client);
        let mut violations = check(&self.workload.recorder.history());
        if violations.is_empty() {
            self.check_tables(&mut client, &documents.iter().map(|(key, found)| (*key, found.life)).collect());
            self.check_moves(&mut client);
            let again = self.workload.read_all(&mut client);
            violations = check(&self.workload.recorder.history());
            assert_eq!(documents.len(), again.len());
            self.workload.recorder.restart(again);
        }
        client.batch_execute("SELECT docshard.start_balancer()").expect("the balancer starts");
        self.shuffler.pause.store(false, Ordering::SeqCst);
        self.workload.pause(false);
        self.note("continues");
        violations
    }

    /// What accidents and moves have left on the nodes, one line each.
    fn leftovers(&mut self) -> String {
        let mut left = String::new();
        let names: Vec<String> = self.proxies.keys().cloned().collect();
        for name in names {
            let node = self.node(&name);
            let Ok(mut client) = node.try_client() else {
                let _ = writeln!(left, "{name} is down");
                continue;
            };
            let mut checks = vec![
                ("prepared transactions", "SELECT gid FROM pg_prepared_xacts".to_owned()),
                ("captures", "SELECT migration_id::text FROM docshard_data.capture".to_owned()),
                ("captured changes", "SELECT DISTINCT migration_id::text FROM docshard_data.capture_log".to_owned()),
                ("parts", "SELECT DISTINCT migration_id::text FROM docshard_data.capture_parts".to_owned()),
                (
                    "staging tables",
                    "SELECT relname::text FROM pg_class WHERE relnamespace = 'docshard_data'::regnamespace \
                     AND relname ~ '^m[0-9]'"
                        .to_owned(),
                ),
                (
                    "sessions",
                    format!(
                        "SELECT application_name || ': ' || query FROM pg_stat_activity \
                         WHERE application_name IN ('{APPLICATION}', '{MOVER}') \
                         OR backend_type = 'client backend' AND xact_start IS NOT NULL AND pid <> pg_backend_pid()"
                    ),
                ),
            ];
            if name == "local" {
                checks.push((
                    "migrations",
                    "SELECT format('%s %s %s %s', id, state, step, error) FROM docshard_catalog.migrations \
                     WHERE state <> 'done'"
                        .to_owned(),
                ));
                checks.push((
                    "changes of layout",
                    "SELECT format('%s %s %s %s', id, state, step, error) FROM docshard_catalog.resharding \
                     WHERE state <> 'done'"
                        .to_owned(),
                ));
                checks.push((
                    "copies",
                    "SELECT namespace FROM docshard_catalog.collections WHERE namespace LIKE '%.system.resharding.%'"
                        .to_owned(),
                ));
                checks.push(("decisions", "SELECT gid FROM docshard_catalog.transactions".to_owned()));
            }
            for (what, sql) in checks {
                match client.query(&sql, &[]) {
                    Ok(rows) => {
                        for row in rows {
                            let _ = writeln!(left, "{name}: {what}: {}", row.get::<_, &str>(0));
                        }
                    }
                    Err(error) => {
                        let _ = writeln!(left, "{name}: {what}: {}", describe(&error));
                    }
                }
            }
        }
        left
    }

    /// Checks that the tables of the shards hold each document once, on the shard that owns its chunk.
    fn check_tables(&mut self, client: &mut Client, documents: &BTreeMap<Key, u32>) {
        let Size { keys, fillers, .. } = self.workload.size();
        for (collection, namespace) in (0..).zip(NAMESPACES) {
            let chunks: Vec<(Vec<u8>, Vec<u8>, String)> = client
                .query(
                    "SELECT c.min, c.max, s.name FROM docshard_catalog.chunks c \
                     JOIN docshard_catalog.shards s ON s.id = c.shard_id \
                     JOIN docshard_catalog.collections o ON o.id = c.collection_id WHERE o.namespace = $1 ORDER BY 1",
                    &[&namespace],
                )
                .expect("chunks")
                .iter()
                .map(|row| (row.get(0), row.get(1), row.get(2)))
                .collect();
            for pair in chunks.windows(2) {
                assert_eq!(pair[0].1, pair[1].0, "{namespace}: chunks without gap or overlap");
            }
            let owner = |key: &[u8]| {
                let place = chunks.partition_point(|(min, ..)| min.as_slice() <= key);
                chunks[place - 1].2.clone()
            };
            let id: i32 = client
                .query_one("SELECT id FROM docshard_catalog.collections WHERE namespace = $1", &[&namespace])
                .expect("a collection")
                .get(0);
            let placements: BTreeMap<String, i64> = client
                .query(
                    "SELECT s.name, p.version FROM docshard_catalog.placements p \
                     JOIN docshard_catalog.shards s ON s.id = p.shard_id WHERE p.collection_id = $1",
                    &[&id],
                )
                .expect("placements")
                .iter()
                .map(|row| (row.get(0), row.get(1)))
                .collect();
            let mut stored: BTreeMap<Key, u32> = BTreeMap::new();
            let mut fillers_stored = 0;
            let names: Vec<String> = self.proxies.keys().cloned().collect();
            for name in names {
                let mut shard = self.node(&name).client();
                let table: bool = shard
                    .query_one(&format!("SELECT to_regclass('docshard_data.c{id}') IS NOT NULL"), &[])
                    .expect("a query")
                    .get(0);
                let version: Option<i64> = shard
                    .query_opt("SELECT version FROM docshard_data.placement WHERE collection_id = $1", &[&id])
                    .expect("a query")
                    .map(|row| row.get(0));
                assert_eq!(version, placements.get(&name).copied(), "{namespace}: the version of {name}");
                assert_eq!(table, placements.contains_key(&name), "{namespace}: a table on {name}");
                if !table {
                    continue;
                }
                let sql = format!("SELECT skey, (doc->>'k')::int8, (doc->>'life')::int8 FROM docshard_data.c{id}");
                for row in shard.query(&sql, &[]).expect("documents") {
                    let (skey, k, life): (Vec<u8>, i64, Option<i64>) = (row.get(0), row.get(1), row.get(2));
                    assert_eq!(owner(&skey), name, "{namespace}: the document {k} is an orphan on {name}");
                    let Some(life) = life else {
                        fillers_stored += 1;
                        continue;
                    };
                    let key = Key { collection, k: k as u32 };
                    assert!(k < i64::from(keys), "{namespace}: a document {k}");
                    assert!(stored.insert(key, life as u32).is_none(), "{namespace}: {k} is stored twice");
                }
            }
            assert_eq!(fillers_stored, fillers, "{namespace}: fillers");
            let expected: BTreeMap<Key, u32> =
                documents.iter().filter(|(key, _)| key.collection == collection).map(|(k, l)| (*k, *l)).collect();
            assert_eq!(stored, expected, "{namespace}: the tables have what clients find");
        }
    }

    /// Checks that moves succeed.
    fn check_moves(&mut self, client: &mut Client) {
        for namespace in NAMESPACES {
            for _ in 0..2 {
                let k = self.rng.u32(0..self.workload.size().keys);
                let names: Vec<&String> = self.proxies.keys().collect();
                let to = names[self.rng.usize(0..names.len())];
                let sql = format!("SELECT docshard.move_chunk('{namespace}', '{{\"k\": {k}}}', '{to}')");
                client.batch_execute(&sql).unwrap_or_else(|e| panic!("{sql}: {e:?}"));
            }
        }
    }
}
