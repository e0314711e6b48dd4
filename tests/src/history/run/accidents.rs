//! What each [`Accident`] does to the cluster.

use super::moves::TargetMove;
use super::shuffler::split_or_merge_sql;
use super::{MOVER, Run, describe};
use crate::history::nemesis::{Accident, Role};
use crate::history::workload::{APPLICATION, NAMESPACES};
use crate::process;
use crate::proxy::{Conditions, Proxy};
use std::thread;
use std::time::Duration;

impl Run {
    /// The shard that has a role in a move.
    fn shard_of(target: &TargetMove, role: Role) -> &str {
        match role {
            Role::Donor => &target.donor,
            Role::Recipient => &target.recipient,
            Role::Router => "local",
        }
    }

    fn proxy(&self, target: &TargetMove, role: Role) -> &Proxy {
        match role {
            Role::Router => &self.client_proxy,
            _ => &self.proxies[Self::shard_of(target, role)],
        }
    }

    pub(super) fn apply(&mut self, accident: Accident, target: &TargetMove) {
        let name = |role| Self::shard_of(target, role).to_owned();
        match accident {
            Accident::KillSession(role) => self.signal_session(target, role, "KILL"),
            Accident::EndSession(role) => self.signal_session(target, role, "TERM"),
            Accident::CancelSession(role) => self.signal_session(target, role, "INT"),
            Accident::Pause(role) => self.signal_session(target, role, "STOP"),
            Accident::KillPostmaster(role) => {
                self.node(&name(role)).kill9();
                self.node(&name(role)).start();
            }
            Accident::Crash(role) => {
                self.node(&name(role)).crash();
                self.node(&name(role)).start();
            }
            // `Run::inject` does it: it has the standby.
            Accident::FailOver(_) => {}
            Accident::Restart(role) => {
                self.node(&name(role)).stop();
                self.node(&name(role)).start();
            }
            Accident::RestartAtOnce(role) => {
                self.node(&name(role)).stop_immediately();
                self.node(&name(role)).start();
            }
            Accident::Cut(role) => self.proxy(target, role).cut(),
            Accident::CutOff(role) => {
                self.proxy(target, role).set(Conditions { refuse: true, ..Conditions::default() });
                self.proxy(target, role).cut();
                self.pause();
            }
            Accident::Delay(role) => {
                let delay = Duration::from_millis(self.rng.u64(20..120));
                self.proxy(target, role).set(Conditions { delay, ..Conditions::default() });
                self.pause();
                self.pause();
            }
            Accident::HoldRequests(role) => {
                self.proxy(target, role).set(Conditions { hold_requests: true, ..Conditions::default() });
                self.pause();
            }
            Accident::LoseAnswers(role) => {
                self.proxy(target, role).set(Conditions { hold_answers: true, ..Conditions::default() });
                self.pause();
                self.proxy(target, role).cut();
            }
            Accident::CancelStatements(role) | Accident::EndSessions(role) => {
                let function = if matches!(accident, Accident::EndSessions(_)) {
                    "pg_terminate_backend"
                } else {
                    "pg_cancel_backend"
                };
                let application = if role == Role::Router { APPLICATION } else { "docshard" };
                for _ in 0..3 {
                    let sql = format!(
                        "SELECT {function}(pid) FROM pg_stat_activity WHERE application_name = '{application}'"
                    );
                    self.run_on(&name(role), &sql);
                    thread::sleep(Duration::from_millis(self.rng.u64(5..100)));
                }
            }
            Accident::CancelCaller | Accident::EndCaller => {
                let function =
                    if accident == Accident::EndCaller { "pg_terminate_backend" } else { "pg_cancel_backend" };
                let sql = format!("SELECT {function}(pid) FROM pg_stat_activity WHERE application_name = '{MOVER}'");
                self.run_on("local", &sql);
            }
            Accident::Abort => {
                self.run_on_router(&format!("SELECT docshard.abort_migration({})", target.id));
            }
            Accident::SecondMove => {
                let ns = NAMESPACES[usize::from(target.collection)];
                let names: Vec<&String> = self.proxies.keys().collect();
                let to = names[self.rng.usize(0..names.len())].clone();
                self.run_on_router(&format!("SELECT docshard.move_chunk('{ns}', '{{\"k\": {}}}', '{to}')", target.k));
            }
            Accident::SplitAndMerge => {
                for _ in 0..6 {
                    let sql = split_or_merge_sql(&mut self.rng, self.workload.size().keys, target.collection);
                    self.run_on_router(&sql);
                }
            }
            Accident::Index => {
                let ns = NAMESPACES[usize::from(target.collection)];
                self.run_on_router(&format!(
                    "SET statement_timeout = '10s'; SELECT docshard.create_index('{ns}', '{{\"k\": 1, \"life\": -1}}', \
                     '{{\"name\": \"kl\"}}')"
                ));
                self.pause();
                self.run_on_router(&format!("SET statement_timeout = '10s'; SELECT docshard.drop_index('{ns}', 'kl')"));
            }
            Accident::OtherCollection => {
                for sql in [
                    "SELECT docshard.shard_collection('history.other', '{\"o\": \"hashed\"}')",
                    "SELECT docshard.insert_many('history.other', array_agg(jsonb_build_object('o', n))) \
                     FROM generate_series(1, 200) n",
                    "SELECT docshard.drop_collection('history.other')",
                ] {
                    self.run_on_router(&format!("SET statement_timeout = '20s'; {sql}"));
                }
            }
            Accident::Balancer => {
                self.run_on_router("SELECT docshard.stop_balancer(500)");
                self.pause();
                self.run_on_router("SELECT docshard.start_balancer()");
            }
            Accident::Drain => {
                let shard = if target.recipient == "local" { &target.donor } else { &target.recipient };
                self.run_on_router(&format!("SELECT docshard.remove_shard('{shard}')"));
                self.pause();
                self.readd_shards();
            }
            Accident::LongWriter => self.long_writer(target),
            Accident::LongReader => self.long_reader(target),
            Accident::Maintenance => {
                for shard in [&target.donor, &target.recipient] {
                    for sql in ["CHECKPOINT", "VACUUM", "ANALYZE"] {
                        self.run_on(shard, sql);
                    }
                }
            }
        }
    }

    /// The processes that work for a move on the node of that role.
    fn sessions(&mut self, target: &TargetMove, role: Role) -> Vec<i32> {
        let sql = match role {
            Role::Router => "SELECT pid FROM pg_stat_activity WHERE backend_type = 'docshard job'".to_owned(),
            _ => format!(
                "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'docshard m %{}' \
                 OR application_name = 'docshard recovery'",
                target.id
            ),
        };
        let rows = self.node(Self::shard_of(target, role)).try_client().and_then(|mut client| client.query(&sql, &[]));
        rows.map(|rows| rows.iter().map(|row| row.get(0)).collect()).unwrap_or_default()
    }

    /// Sends a signal to one of the move's processes on the node of that role. A process that is stopped continues after a while.
    pub(super) fn signal_session(&mut self, target: &TargetMove, role: Role, signal: &str) {
        let pids = self.sessions(target, role);
        let Some(&pid) = self.rng.choice(&pids) else {
            self.note("the move has no process there");
            return;
        };
        process::signal(pid as u32, signal);
        if signal == "STOP" {
            thread::sleep(Duration::from_millis(self.rng.u64(200..1500)));
            process::signal(pid as u32, "CONT");
        }
    }

    fn run_on(&mut self, shard: &str, sql: &str) {
        let done = self.node(shard).try_client().and_then(|mut client| client.batch_execute(sql));
        if let Err(error) = done {
            self.note(&format!("{sql}: {}", describe(&error)));
        }
    }

    /// Runs SQL on the router. Errors that a concurrent change or a dead server explains are expected.
    fn run_on_router(&mut self, sql: &str) {
        if let Some(mut client) = self.session()
            && let Err(error) = client.batch_execute(sql)
        {
            let text = describe(&error);
            let expected = ["08", "40", "55", "57", "42P07", "42710", "42704"];
            let code = error.code().map_or("", |code| code.code());
            if !code.is_empty() && !expected.iter().any(|prefix| code.starts_with(prefix)) && !is_refusal(code) {
                self.workload.anomaly(format!("{sql}: {error:?}"));
            }
            self.note(&format!("{sql}: {text}"));
        }
    }

    fn pause(&mut self) {
        thread::sleep(Duration::from_millis(self.rng.u64(50..900)));
    }

    /// A transaction that counts the fillers twice in one snapshot.
    fn long_reader(&mut self, target: &TargetMove) {
        let ns = NAMESPACES[usize::from(target.collection)];
        let Some(mut client) = self.session() else { return };
        let fillers = self.workload.size().keys;
        let sql = format!("SELECT docshard.count_documents('{ns}', '{{\"k\": {{\"$gte\": {fillers}}}}}')");
        let counts: Result<Vec<i64>, _> =
            client.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ").and_then(|()| {
                (0..2)
                    .map(|_| {
                        let count = client.query_one(&sql, &[])?.get(0);
                        thread::sleep(Duration::from_millis(600));
                        Ok(count)
                    })
                    .collect()
            });
        match counts {
            Ok(counts) if counts.iter().any(|&n| n != i64::from(self.workload.size().fillers)) => {
                self.workload.anomaly(format!("a long reader counted {counts:?} fillers"));
            }
            Ok(_) => {}
            Err(error) => self.note(&format!("a long reader: {}", describe(&error))),
        }
    }

    /// A transaction that changes fillers and stays open for a while.
    fn long_writer(&mut self, target: &TargetMove) {
        let ns = NAMESPACES[usize::from(target.collection)];
        let Some(mut client) = self.session() else { return };
        let filler = self.workload.size().keys + self.rng.u32(0..self.workload.size().fillers);
        let run = client
            .batch_execute(&format!(
                "SET statement_timeout = '8s'; BEGIN; SELECT docshard.update_one('{ns}', \
                 '{{\"k\": {filler}, \"_id\": {filler}}}', '{{\"$inc\": {{\"touched\": 1}}}}'); \
                 SELECT docshard.update_many('{ns}', '{{\"k\": {{\"$gte\": {filler}, \"$lt\": {}}}}}', \
                 '{{\"$set\": {{\"by\": 1}}}}')",
                filler + 200
            ))
            .and_then(|()| {
                thread::sleep(Duration::from_millis(800));
                client.batch_execute("COMMIT")
            });
        if let Err(error) = run {
            self.note(&format!("a long writer: {}", describe(&error)));
        }
    }

    /// Adds every shard again, which ends its removal.
    pub(super) fn readd_shards(&mut self) {
        let shards: Vec<(String, u16)> =
            self.cluster.shards.iter().map(|shard| (shard.name.clone(), self.proxies[&shard.name].port)).collect();
        for (name, port) in shards {
            self.run_on_router(&format!(
                "SELECT docshard.add_shard('postgresql://postgres@127.0.0.1:{port}/postgres', '{{\"name\": \"{name}\"}}')"
            ));
        }
    }
}

/// SQLSTATEs of requests that the state of the chunks does not allow, such as a split where there is a boundary already.
fn is_refusal(code: &str) -> bool {
    matches!(code, "22023" | "55000" | "55006" | "54000")
}
