//! Changes a collection's layout, injects an accident at one of the steps, and waits for the end. Afterwards the collection has its shard
//! key again.

use super::moves::TargetMove;
use super::{MOVER, PATIENCE, Run, connect, describe};
use crate::history::nemesis::{Accident, Injection, Role, Step};
use crate::history::workload::{NAMESPACES, PATTERNS};
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The number of the last change of any collection.
const LAST: &str = "SELECT coalesce(max(id), 0) FROM docshard_catalog.resharding";

/// A change of layout, and what restores the shard key.
struct Change {
    statement: String,
    back: Option<String>,
}

impl Run {
    /// Changes a collection's layout, injects an accident at a step, and waits until the change has ended; returns whether the step was
    /// reached.
    ///
    /// # Panics
    /// If it does not end in time.
    pub fn inject_into_layout(&mut self, injection: Injection) -> bool {
        let collection = self.rng.u8(0..NAMESPACES.len() as u8);
        self.shuffler.reserved.store(collection, Ordering::SeqCst);
        let standby = match injection.accident {
            Accident::FailOver(Role::Router) => Some("local".to_owned()),
            Accident::FailOver(_) => Some(self.random_shard()),
            _ => None,
        };
        let mut standby = standby.map(|name| (name.clone(), self.node(&name).standby()));
        let change = self.random_change(collection);
        let began = self.begin_change(collection, &change.statement);
        let mut reached = false;
        if let Some((target, caller)) = began {
            if let Some(step) = self.await_step(&target, injection.step) {
                let injection = Injection { step, ..injection };
                self.note(&format!("{injection}: {}", change.statement));
                match (standby.take(), injection.accident) {
                    (Some((name, standby)), _) => self.node(&name).fail_over(standby),
                    (None, Accident::Abort) => self.abort_change(collection),
                    (None, accident) => self.apply(accident, &target),
                }
                *self.injected.entry(injection).or_default() += 1;
                reached = true;
            }
            self.restore_network();
            self.await_end(&target);
            let answer = caller.join().expect("the caller does not panic");
            self.note(&format!("change {} ended: {answer}", target.id));
        }
        if let Some((name, standby)) = standby {
            self.node(&name).remove_standby(standby);
        }
        if let Some(back) = &change.back {
            self.restore_key(collection, back);
        }
        self.shuffler.reserved.store(u8::MAX, Ordering::SeqCst);
        reached
    }

    fn random_shard(&mut self) -> String {
        let names: Vec<&String> = self.proxies.keys().filter(|name| *name != "local").collect();
        names[self.rng.usize(0..names.len())].clone()
    }

    fn random_change(&mut self, collection: u8) -> Change {
        let (ns, pattern) = (NAMESPACES[usize::from(collection)], PATTERNS[usize::from(collection)]);
        let chunks = self.rng.u32(4..9);
        let other = PATTERNS[usize::from(1 - collection)];
        let reshard = |key: &str| {
            format!(
                "SELECT docshard.reshard_collection('{ns}', '{key}', \
                 '{{\"forceRedistribution\": true, \"numInitialChunks\": {chunks}, \"commitTimeoutMS\": 20000}}')"
            )
        };
        match self.rng.u32(0..4) {
            0 => Change { statement: format!("SELECT docshard.compact('{ns}')"), back: None },
            1 => Change { statement: reshard(pattern), back: None },
            2 => Change { statement: reshard(other), back: Some(reshard(pattern)) },
            _ => {
                let to = self.random_shard();
                Change {
                    statement: format!("SELECT docshard.unshard_collection('{ns}', '{to}')"),
                    back: Some(format!("SELECT docshard.shard_collection('{ns}', '{pattern}')")),
                }
            }
        }
    }

    /// Starts a change, and waits until it is registered; None if it was refused.
    fn begin_change(&mut self, collection: u8, statement: &str) -> Option<(TargetMove, JoinHandle<String>)> {
        let mut client = self.await_session();
        let last: i64 = client.query_one(LAST, &[]).ok()?.get(0);
        let (donor, recipient) = (self.random_shard(), self.random_shard());
        let (port, statement) = (self.cluster.router.port, statement.to_owned());
        let caller = thread::spawn(move || {
            let answer = connect(port, MOVER).and_then(|mut client| client.batch_execute(&statement));
            answer.map_or_else(|error| describe(&error), |()| "done".to_owned())
        });
        let ns = NAMESPACES[usize::from(collection)];
        let sql = format!("SELECT id FROM docshard_catalog.resharding WHERE id > {last} AND namespace = '{ns}'");
        while !caller.is_finished() {
            if let Ok(Some(row)) = client.query_opt(&sql, &[]) {
                return Some((TargetMove { id: row.get(0), collection, donor, recipient, k: 0 }, caller));
            }
            thread::sleep(Duration::from_millis(1));
        }
        let answer = caller.join().expect("the caller does not panic");
        self.note(&format!("no change of layout: {answer}"));
        None
    }

    /// Waits until a change has reached a step or a later one, and returns it; None if it has ended.
    fn await_step(&mut self, target: &TargetMove, step: Step) -> Option<Step> {
        if step == Step::Recovery {
            thread::sleep(Duration::from_millis(self.rng.u64(1..500)));
            self.signal_session(target, Role::Router, "KILL");
            self.await_session();
            return Some(Step::Recovery);
        }
        let sql = format!("SELECT state, step FROM docshard_catalog.resharding WHERE id = {}", target.id);
        let began = Instant::now();
        let mut client = self.await_session();
        while began.elapsed() < PATIENCE {
            match client.query_one(&sql, &[]) {
                Ok(row) if row.get::<_, &str>(0) == "done" => return None,
                Ok(row) => {
                    if let Some(now) = Step::of_layout(row.get(0), row.get(1)).filter(|now| *now >= step) {
                        return Some(now);
                    }
                }
                Err(_) => client = self.await_session(),
            }
            thread::sleep(Duration::from_micros(700));
        }
        None
    }

    fn abort_change(&mut self, collection: u8) {
        let sql = format!("SELECT docshard.abort_reshard_collection('{}')", NAMESPACES[usize::from(collection)]);
        let answer = self.session().map(|mut client| client.batch_execute(&sql));
        if let Some(Err(error)) = answer {
            self.note(&format!("{sql}: {}", describe(&error)));
        }
    }

    /// Waits until a change has ended and is cleaned up.
    fn await_end(&mut self, target: &TargetMove) {
        let sql = format!(
            "SELECT state, step || ': ' || coalesce(error, '') FROM docshard_catalog.resharding WHERE id = {}",
            target.id
        );
        let (began, mut last) = (Instant::now(), String::new());
        loop {
            if let Some(row) = self.session().and_then(|mut client| client.query_one(&sql, &[]).ok()) {
                if row.get::<_, &str>(0) == "done" {
                    return;
                }
                last = row.get(1);
            }
            assert!(began.elapsed() < PATIENCE, "change {} does not end: {last}", target.id);
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Gives the collection the shard key again that the run knows.
    fn restore_key(&mut self, collection: u8, back: &str) {
        let (ns, pattern) = (NAMESPACES[usize::from(collection)], PATTERNS[usize::from(collection)]);
        let has = format!(
            "SELECT coalesce(key::jsonb = '{pattern}'::jsonb, false) FROM docshard.collections WHERE namespace = '{ns}'"
        );
        let began = Instant::now();
        loop {
            let mut client = self.await_session();
            let last = match client.query_one(&has, &[]) {
                Ok(row) if row.get::<_, bool>(0) => return,
                Ok(_) => client.batch_execute(back).map_or_else(|error| describe(&error), |()| String::new()),
                Err(error) => describe(&error),
            };
            assert!(began.elapsed() < PATIENCE, "{back}: {last}");
            thread::sleep(Duration::from_millis(50));
        }
    }
}
