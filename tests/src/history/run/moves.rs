//! Starts a move, injects an accident at one of its steps, and waits for its end.

use super::{MOVER, PATIENCE, Run, connect, describe};
use crate::cluster::Standby;
use crate::history::nemesis::{Accident, Injection, Role, Step};
use crate::history::workload::{NAMESPACES, PATTERNS};
use crate::proxy::Conditions;
use postgres::{Client, SimpleQueryMessage};
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The network delay of donor and recipient, each way, while the run waits for a step: it makes steps long enough to be seen.
const STEP_DELAY: Duration = Duration::from_millis(6);

/// The move at which an accident is injected.
pub(super) struct TargetMove {
    pub(super) id: i64,
    pub(super) collection: u8,
    pub(super) donor: String,
    pub(super) recipient: String,
    /// A key in the chunk.
    pub(super) k: u32,
}

/// A node that is to fail over, its role in the move, and its standby.
struct FailOverTarget {
    role: Role,
    node: String,
    standby: Standby,
}

impl Run {
    /// Moves a chunk, injects an accident at a step of the move, and waits until the move has ended.
    ///
    /// # Panics
    /// If it does not end in time.
    pub fn inject(&mut self, injection: Injection) {
        let collection = self.rng.u8(0..NAMESPACES.len() as u8);
        self.shuffler.reserved.store(collection, Ordering::SeqCst);
        let mut fail_over = self.fail_over_target(injection.accident);
        for attempt in 0..4 {
            let Some((target, caller)) = self.begin_move(collection, injection.step, fail_over.as_ref()) else {
                thread::sleep(Duration::from_millis(100));
                continue;
            };
            let reached = self.wait_for_step(&target, injection.step);
            let delay = if injection.step == Step::Recovery { Duration::ZERO } else { STEP_DELAY };
            self.delay(&target, delay);
            if let Some(step) = reached {
                let injection = Injection { step, ..injection };
                self.note(&format!(
                    "{injection}: migration {} of {} from {} to {}",
                    target.id,
                    NAMESPACES[usize::from(collection)],
                    target.donor,
                    target.recipient
                ));
                match fail_over.take() {
                    Some(FailOverTarget { node, standby, .. }) => self.node(&node).fail_over(standby),
                    None => self.apply(injection.accident, &target),
                }
                *self.injected.entry(injection).or_default() += 1;
            }
            self.restore_network();
            self.wait_for_end(&target);
            let answer = caller.join().expect("the caller does not panic");
            self.note(&format!("migration {} ended: {answer}", target.id));
            // There was one standby.
            let used = matches!(injection.accident, Accident::FailOver(_)) && fail_over.is_none();
            if reached == Some(injection.step) || used || attempt == 3 {
                break;
            }
        }
        if let Some(FailOverTarget { node, standby, .. }) = fail_over {
            self.note("no move reached the step at which the node was to fail over");
            self.node(&node).remove_standby(standby);
        }
        self.shuffler.reserved.store(u8::MAX, Ordering::SeqCst);
    }

    /// Makes a standby for the server that is to fail over. It must exist before the move begins.
    fn fail_over_target(&mut self, accident: Accident) -> Option<FailOverTarget> {
        let Accident::FailOver(role) = accident else { return None };
        let names: Vec<String> = self.proxies.keys().filter(|name| *name != "local").cloned().collect();
        let node =
            if role == Role::Router { "local".to_owned() } else { names[self.rng.usize(0..names.len())].clone() };
        let standby = self.node(&node).standby();
        Some(FailOverTarget { role, node, standby })
    }

    /// Delays the network of donor and recipient.
    fn delay(&self, target: &TargetMove, delay: Duration) {
        for side in [&target.donor, &target.recipient] {
            self.proxies[side].set(Conditions { delay, ..Conditions::default() });
        }
    }

    pub(super) fn restore_network(&self) {
        for proxy in self.proxies.values().chain([&self.client_proxy]) {
            proxy.set(Conditions::default());
        }
    }

    /// Starts a move of a random chunk, and waits until it is registered.
    fn begin_move(
        &mut self,
        collection: u8,
        step: Step,
        fail_over: Option<&FailOverTarget>,
    ) -> Option<(TargetMove, JoinHandle<String>)> {
        let ns = NAMESPACES[usize::from(collection)];
        let mut client = self.await_session();
        let mut k = self.rng.u32(0..self.workload.size().keys);
        // The node that is to fail over must have its role.
        let wanted =
            |role| fail_over.filter(|fail_over| fail_over.role == role).map(|fail_over| fail_over.node.clone());
        let (donor_wanted, recipient_wanted) = (wanted(Role::Donor), wanted(Role::Recipient));
        if let Some(donor) = &donor_wanted {
            k = self.key_on_shard(&mut client, collection, donor)?;
        }
        let key = format!("docshard_internal.shard_key('{{\"k\": {k}}}', '{}')", PATTERNS[usize::from(collection)]);
        let donor: String = client
            .query_opt(
                &format!("SELECT shard FROM docshard.chunks WHERE namespace = '{ns}' AND min_key <= {key} ORDER BY min_key DESC LIMIT 1"),
                &[],
            )
            .ok()??
            .get(0);
        let names: Vec<&String> = self.proxies.keys().filter(|name| **name != donor).collect();
        let recipient = recipient_wanted.clone().unwrap_or_else(|| names[self.rng.usize(0..names.len())].clone());
        if recipient == donor {
            return None;
        }
        let last: i64 =
            client.query_one("SELECT coalesce(max(id), 0) FROM docshard_catalog.migrations", &[]).ok()?.get(0);
        // A move that the shuffler or the balancer has started serves as well.
        let running = client.query_opt(
            &format!(
                "SELECT id, donor, recipient FROM docshard.migrations WHERE namespace = '{ns}' AND state = 'running' LIMIT 1"
            ),
            &[],
        );
        if let Some(row) = running.ok()? {
            let has = |column: usize, wanted: &Option<String>| {
                wanted.as_ref().is_none_or(|name| *name == row.get::<_, String>(column))
            };
            if !has(1, &donor_wanted) || !has(2, &recipient_wanted) {
                return None;
            }
            let target = TargetMove { id: row.get(0), collection, donor: row.get(1), recipient: row.get(2), k };
            self.delay(&target, STEP_DELAY);
            return Some((target, thread::spawn(|| "started by the shuffler or the balancer".to_owned())));
        }
        let target = TargetMove { id: 0, collection, donor, recipient, k };
        self.delay(&target, STEP_DELAY);
        let sql = format!("SELECT docshard.move_chunk('{ns}', '{{\"k\": {k}}}', '{}')", target.recipient);
        let port = self.cluster.router.port;
        let caller = thread::spawn(move || match connect(port, MOVER) {
            Ok(mut client) => match client.query_one(&sql, &[]) {
                Ok(row) => row.get::<_, serde_json::Value>(0).to_string(),
                Err(error) => describe(&error),
            },
            Err(error) => describe(&error),
        });
        let began = Instant::now();
        let sql = format!(
            "SELECT id FROM docshard_catalog.migrations WHERE id > {last} AND namespace = '{ns}' AND reason = 'manual'"
        );
        while began.elapsed() < Duration::from_secs(10) {
            if let Ok(Some(row)) = client.query_opt(&sql, &[]) {
                return Some((TargetMove { id: row.get(0), ..target }, caller));
            }
            if caller.is_finished() {
                break;
            }
            thread::sleep(Duration::from_millis(1));
        }
        self.restore_network();
        let answer = caller.join().expect("the caller does not panic");
        self.note(&format!("no move for an accident at {step:?}: {answer}"));
        None
    }

    /// A random key whose chunk is on that shard.
    fn key_on_shard(&mut self, client: &mut Client, collection: u8, shard: &str) -> Option<u32> {
        let (ns, pattern) = (NAMESPACES[usize::from(collection)], PATTERNS[usize::from(collection)]);
        let sql = format!(
            "SELECT k::int8 FROM generate_series(0, {}) k, docshard_internal.shard_key(jsonb_build_object('k', k), \
             '{pattern}') key JOIN docshard.chunks c ON c.namespace = '{ns}' AND c.shard = '{shard}' \
             AND key >= c.min_key AND key < c.max_key ORDER BY k",
            self.workload.size().keys - 1
        );
        let rows =
            client.query(&sql, &[]).inspect_err(|error| self.note(&format!("{sql}: {}", describe(error)))).ok()?;
        let keys: Vec<u32> = rows.iter().map(|row| row.get::<_, i64>(0) as u32).collect();
        self.rng.choice(&keys).copied()
    }

    /// Waits until a move has reached a step or a later one, and returns the step; None if the move has ended.
    fn wait_for_step(&mut self, target: &TargetMove, step: Step) -> Option<Step> {
        let mut client = self.await_session();
        if step == Step::Recovery {
            // The coordinator dies at a random moment.
            thread::sleep(Duration::from_millis(self.rng.u64(1..250)));
            let signal = ["KILL", "TERM"][self.rng.usize(0..2)];
            self.signal_session(target, Role::Router, signal);
            thread::sleep(Duration::from_millis(self.rng.u64(1..60)));
            client = self.await_session();
        }
        let sql = format!("SELECT state, step FROM docshard_catalog.migrations WHERE id = {}", target.id);
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            match client.simple_query(&sql) {
                Ok(rows) => {
                    let now = rows.iter().find_map(|message| match message {
                        SimpleQueryMessage::Row(row) => Some((row.get(0)?.to_owned(), row.get(1)?.to_owned())),
                        _ => None,
                    });
                    let (state, name) = now?;
                    if state == "done" {
                        return None;
                    }
                    if step == Step::Recovery {
                        return Some(Step::Recovery);
                    }
                    if let Some(now) = Step::of(&state, &name).filter(|now| *now >= step) {
                        return Some(now);
                    }
                }
                Err(_) => client = self.await_session(),
            }
            thread::sleep(Duration::from_micros(700));
        }
        None
    }

    /// Waits until the move has ended and is cleaned up.
    fn wait_for_end(&mut self, target: &TargetMove) {
        let sql = format!(
            "SELECT state, step, coalesce(error, '') FROM docshard_catalog.migrations WHERE id = {}",
            target.id
        );
        let began = Instant::now();
        let mut last = String::new();
        loop {
            let row = self.session().and_then(|mut client| client.query_opt(&sql, &[]).ok());
            match row {
                Some(Some(row)) if row.get::<_, String>(0) == "done" => return,
                // The collection was dropped.
                Some(None) => return,
                Some(Some(row)) => {
                    last = format!("{}, {}: {}", row.get::<_, &str>(0), row.get::<_, &str>(1), row.get::<_, &str>(2));
                }
                None => {}
            }
            assert!(began.elapsed() < PATIENCE, "migration {} does not end: {last}", target.id);
            thread::sleep(Duration::from_millis(20));
        }
    }
}
