//! Changes of layouts that are cancelled or aborted, and servers that crash, at every fault point, beside a client that inserts. Afterwards
//! every document that was acknowledged is there once, nothing is left, the collection can be written, and the metadata are consistent.
//!
//! In `make test` each point has one accident: the one test has the points with even numbers, the other one the rest, and each takes its two
//! kinds of accidents in turn. `make test-all` has all at every point.

use crate::{LONG, NS, check_clean, cluster, code, json, nodes, reshard, run, start};
use docshard_tests::faults::{Fault, names};
use docshard_tests::{Cluster, is_thorough, wait_until};
use postgres::NoTls;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// The first `_id` of the documents that are inserted meanwhile.
const FIRST: i64 = 1_000_000;

/// A client that inserts documents, whatever happens.
struct Inserter {
    stop: Arc<AtomicBool>,
    /// returns the `_id`s of which the insert was acknowledged, and the number of attempts
    thread: JoinHandle<(Vec<i64>, i64)>,
}

impl Inserter {
    fn start(cluster: &Cluster) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, url) = (stop.clone(), cluster.router.url());
        let thread = thread::spawn(move || {
            let (mut acknowledged, mut next, mut client) = (Vec::new(), FIRST, None);
            while !stopped.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(5));
                if client.is_none() {
                    client = postgres::Client::connect(&url, NoTls).ok();
                }
                let Some(session) = client.as_mut() else { continue };
                let id = next;
                next += 1;
                let sql = format!(
                    "SELECT docshard.insert_one('{NS}', '{{\"_id\": {id}, \"k\": {}, \"u\": {id}, \"n\": 0}}')",
                    id % 300
                );
                match session.execute(&sql, &[]) {
                    Ok(_) => acknowledged.push(id),
                    Err(_) if session.is_closed() => client = None,
                    Err(_) => {}
                }
            }
            (acknowledged, next - FIRST)
        });
        Self { stop, thread }
    }

    /// Stops it, and checks that what was acknowledged is there once, and that nothing is there that was not inserted.
    fn check(self, cluster: &Cluster, documents: i64) {
        self.stop.store(true, Ordering::Relaxed);
        let (acknowledged, attempts) = self.thread.join().expect("a client");
        let sql = format!("SELECT (d ->> '_id')::int8, count(*) FROM docshard.find('{NS}', '{{}}') d GROUP BY 1");
        let rows = cluster.router.client().query(&sql, &[]).expect("the documents");
        let found: BTreeMap<i64, i64> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
        let expected = acknowledged.iter().copied().chain(0..documents);
        let missing: Vec<i64> = expected.filter(|id| found.get(id) != Some(&1)).take(10).collect();
        assert!(missing.is_empty(), "not there once: {missing:?}");
        let invented = |id: &i64| !(0..documents).contains(id) && !(FIRST..FIRST + attempts).contains(id);
        assert!(!found.keys().any(invented), "documents that nobody inserted");
        println!("{} of {attempts} inserts were acknowledged", acknowledged.len());
        assert!(!acknowledged.is_empty());
    }
}

/// The points in order.
fn points() -> Vec<&'static str> {
    let points: Vec<_> = names("point", "router").into_iter().filter(|name| name.starts_with("reshard.")).collect();
    assert!(points.len() > 10, "{points:?}");
    points
}

/// The points of one of the two tests, each with those of two accidents that a run has there.
fn strikes<T: Copy>(test: usize, both: [T; 2]) -> Vec<(&'static str, Vec<T>)> {
    if is_thorough() {
        return points().into_iter().map(|point| (point, both.to_vec())).collect();
    }
    let own = points().into_iter().skip(test).step_by(2).enumerate();
    own.map(|(number, point)| (point, vec![both[number % 2]])).collect()
}

/// Arms a point, and the one that leads to it.
fn arm(cluster: &Cluster, point: &'static str) {
    if point == "reshard.aborted" {
        cluster.router.arm("reshard.cloned", Fault::Error);
    }
    cluster.router.arm(point, Fault::Pause);
}

/// Waits until the change gets to the point; makes changes that it has to copy.
fn await_point(cluster: &Cluster, point: &'static str) {
    wait_until(&format!("the change gets to {point}"), LONG, || {
        cluster.router.reached(point).is_some() || {
            if ["reshard.pulled", "reshard.applied"].contains(&point) {
                let update = format!(
                    "SELECT docshard.update_many('{NS}', '{{\"k\": {{\"$lt\": 30}}}}', '{{\"$inc\": {{\"n\": 1}}}}')"
                );
                let _ = cluster.router.client().batch_execute(&update);
            }
            false
        }
    });
}

/// Checks that nothing of the change is left, and that the collection can be written.
fn check_after(cluster: &Cluster, accident: &str) {
    cluster.router.clear_faults();
    check_clean(cluster);
    let sql = "SELECT json_agg(c)::text FROM docshard.check_metadata_consistency() c";
    let found: Option<String> = cluster.router.value(sql);
    assert_eq!(found, None, "{accident}");
    let changed: Value = cluster
        .router
        .value(&format!("SELECT docshard.update_one('{NS}', '{{\"_id\": 1}}', '{{\"$inc\": {{\"n\": 1}}}}')"));
    assert_eq!(changed["matchedCount"], 1, "{accident}");
}

#[derive(Clone, Copy, Debug)]
enum Ending {
    Cancel,
    Abort,
}

#[test]
fn a_change_can_be_cancelled_and_aborted_at_every_point() {
    let documents = 600;
    let cluster = cluster(documents);
    let inserter = Inserter::start(&cluster);
    for (point, endings) in strikes(0, [Ending::Cancel, Ending::Abort]) {
        for ending in endings {
            let accident = format!("{ending:?} at {point}");
            let before = crate::key(&cluster);
            let is_by_u = before.as_deref().is_some_and(|key| key.contains('u'));
            let key = if is_by_u { r#"{"k": 1}"# } else { r#"{"u": 1}"# };
            arm(&cluster, point);
            let mut caller = cluster.router.client();
            let token = caller.cancel_token();
            let pending = thread::spawn(move || json(&mut caller, &reshard(key, "{}")));
            await_point(&cluster, point);
            match ending {
                Ending::Cancel => token.cancel_query(NoTls).expect("a cancel"),
                Ending::Abort => {
                    // It may wait for the transaction that decides.
                    let mut client = cluster.router.client();
                    let abort = thread::spawn(move || {
                        json(&mut client, &format!("SELECT docshard.abort_reshard_collection('{NS}')"))
                    });
                    thread::sleep(Duration::from_millis(100));
                    cluster.router.release(point);
                    if let Err(error) = abort.join().expect("a thread") {
                        let code = code(&error);
                        assert!(["339", "340"].iter().any(|known| code.contains(known)), "{accident}: {error:?}");
                    }
                }
            }
            cluster.router.release(point);
            let ended = pending.join().expect("a thread");
            check_after(&cluster, &accident);
            let has_changed = crate::key(&cluster) != before;
            println!("{accident}: {}", if has_changed { "changed" } else { "as before" });
            assert!(has_changed || ended.is_err(), "{accident}: {ended:?}");
        }
    }
    inserter.check(&cluster, documents);
}

#[derive(Clone, Copy, Debug)]
enum Role {
    Donor,
    Recipient,
}

#[test]
fn donor_and_recipient_may_crash_at_every_point() {
    let documents = 600;
    let mut cluster = cluster(documents);
    run(&cluster, &format!("SELECT docshard.unshard_collection('{NS}', 'shard0')"));
    let inserter = Inserter::start(&cluster);
    let owner = |cluster: &Cluster| -> String {
        cluster.router.value(&format!("SELECT shard FROM docshard.chunks WHERE namespace = '{NS}'"))
    };
    for (point, roles) in strikes(1, [Role::Donor, Role::Recipient]) {
        for role in roles {
            let accident = format!("the {role:?} crashes at {point}");
            let (from, to) = match owner(&cluster).as_str() {
                "shard0" => (0, 1),
                _ => (1, 0),
            };
            arm(&cluster, point);
            let mut caller = cluster.router.client();
            let sql = format!("SELECT docshard.move_collection('{NS}', 'shard{to}')");
            let pending = thread::spawn(move || json(&mut caller, &sql));
            await_point(&cluster, point);
            let crashing = match role {
                Role::Donor => from,
                Role::Recipient => to,
            };
            cluster.shards[crashing].crash();
            cluster.shards[crashing].start();
            cluster.router.release(point);
            let ended = pending.join().expect("a thread");
            check_after(&cluster, &accident);
            let has_moved = owner(&cluster) == format!("shard{to}");
            println!("{accident}: {}", if has_moved { "moved" } else { "as before" });
            assert!(has_moved || ended.is_err(), "{accident}: {ended:?}");
        }
    }
    inserter.check(&cluster, documents);
}

/// A hand-over for which there is not enough time is put off, again and again; it does not end the change with an internal error.
#[test]
fn a_hand_over_that_is_late_is_put_off() {
    let documents = 300;
    let cluster = cluster(documents);
    cluster.router.psql("ALTER SYSTEM SET docshard.max_write_stall = '5ms'");
    cluster.router.psql("SELECT pg_reload_conf()");
    let mut key = r#"{"_id": "hashed"}"#;
    for _ in 0..3 {
        match json(&mut cluster.router.client(), &reshard(key, r#"{"commitTimeoutMS": 5000}"#)) {
            Ok(_) => key = if key.contains("_id") { r#"{"k": 1}"# } else { r#"{"_id": "hashed"}"# },
            Err(error) => assert!(code(&error).contains("342"), "{error:?}"),
        }
        check_after(&cluster, "a change that was put off");
    }
    crate::check(&cluster, documents);
}

/// While documents are copied, a table that is written anew has them at other places, so that some could be missed. The change ends.
#[test]
fn a_table_that_is_written_anew_ends_the_change() {
    let documents = 300;
    let cluster = cluster(documents);
    let number: i32 =
        cluster.router.value(&format!("SELECT id FROM docshard_catalog.collections WHERE namespace = '{NS}'"));
    cluster.router.arm("reshard.cloning", Fault::Pause);
    let change = start(&cluster, reshard(r#"{"_id": "hashed"}"#, "{}"));
    await_point(&cluster, "reshard.cloning");
    for node in nodes(&cluster) {
        node.psql(&format!("VACUUM FULL docshard_data.c{number}"));
    }
    cluster.router.clear_faults();
    let error = change.join().expect("a session").expect_err("the places have changed");
    assert_eq!(code(&error), "MongoDB error 117 (ConflictingOperationInProgress)", "{error:?}");
    check_after(&cluster, "VACUUM FULL");
    crate::check(&cluster, documents);
}

/// Documents that are inserted while a table is copied are logged, so no part has them: a part is in memory as a whole.
#[test]
fn documents_that_are_inserted_meanwhile_are_in_no_part() {
    let documents = 600;
    let cluster = cluster(documents);
    cluster.router.arm("reshard.cloning", Fault::Pause);
    let change = start(&cluster, reshard(r#"{"u": "hashed"}"#, "{}"));
    await_point(&cluster, "reshard.cloning");
    let insert = format!(
        "SELECT docshard.insert_select('{NS}', $$SELECT jsonb_build_object('_id', i, 'k', i, 'u', 2000000 + i, 'n', 0, \
         'text', repeat('x', 200)) FROM generate_series({documents}, 4999) i$$)"
    );
    run(&cluster, &insert);
    let packed = "SELECT coalesce(sum(documents), 0)::int8 FROM docshard_data.capture_packed \
                  JOIN docshard_data.capture_parts USING (migration_id, part) WHERE target_key IS NOT NULL";
    let packed: i64 = nodes(&cluster).map(|node| node.value::<i64>(packed)).sum();
    // The last page of each table had some space.
    assert!((documents..documents + 120).contains(&packed), "{packed}");
    cluster.router.clear_faults();
    change.join().expect("a session").expect("the change");
    check_after(&cluster, "insertions");
    crate::check(&cluster, 5000);
}

/// Later documents may fill pages that are empty when the table is divided.
#[test]
fn parts_of_a_table_with_empty_pages_have_few_pages() {
    let cluster = cluster(200);
    let insert = format!(
        "SELECT docshard.insert_select('{NS}', $$SELECT jsonb_build_object('_id', i, 'k', i, 'u', i, 'n', 0, \
         'text', repeat('x', 200)) FROM generate_series(200, 35199) i$$)"
    );
    run(&cluster, &insert);
    run(&cluster, &format!("SELECT docshard.delete_many('{NS}', '{{\"k\": {{\"$gte\": 200, \"$lt\": 35000}}}}')"));
    cluster.router.arm("reshard.cloning", Fault::Pause);
    let change = start(&cluster, reshard(r#"{"u": "hashed"}"#, "{}"));
    await_point(&cluster, "reshard.cloning");
    let parts = "SELECT coalesce(max(next_place - place) >> 16, 0), count(*) FILTER (WHERE next_place IS NULL) \
                 FROM docshard_data.capture_parts";
    for node in nodes(&cluster) {
        let row = node.client().query_one(parts, &[]).expect(parts);
        assert!(row.get::<_, i64>(0) <= 1024, "{}: {row:?}", node.name);
        assert_eq!(row.get::<_, i64>(1), 0, "{}: parts without an end", node.name);
    }
    cluster.router.clear_faults();
    let done = change.join().expect("a session").expect("the change");
    assert_eq!(done["documents"], 400, "{done}");
    check_after(&cluster, "empty pages");
}

/// One recipient cannot apply the last changes in time, but the others have committed theirs: the attempt is repeated, and all are counted.
#[test]
fn an_attempt_that_one_recipient_delays_is_repeated() {
    let documents = 300;
    let cluster = cluster(documents);
    cluster.router.arm("reshard.caught_up", Fault::Pause);
    let change = start(&cluster, reshard(r#"{"u": "hashed"}"#, "{}"));
    await_point(&cluster, "reshard.caught_up");
    for id in documents..documents + 60 {
        run(
            &cluster,
            &format!(
                "SELECT docshard.insert_one('{NS}', '{{\"_id\": {id}, \"k\": {id}, \"u\": {}, \"n\": 0}}')",
                2_000_000 + id
            ),
        );
    }
    cluster.router.arm("reshard.frozen", Fault::Pause);
    cluster.router.release("reshard.caught_up");
    cluster.router.await_fault("reshard.frozen");
    let copy: i32 =
        cluster.router.value(&format!("SELECT id FROM docshard_catalog.collections WHERE namespace <> '{NS}'"));
    let mut holder = cluster.shards[0].client();
    holder.batch_execute(&format!("BEGIN; LOCK TABLE docshard_data.c{copy} IN ACCESS EXCLUSIVE MODE")).expect("a lock");
    cluster.router.release("reshard.frozen");
    // Longer than the statement waits for a lock.
    thread::sleep(Duration::from_millis(11_500));
    holder.batch_execute("ROLLBACK").expect("it is released");
    let done = change.join().expect("a session").expect("it is repeated");
    assert_eq!(done["documents"], documents + 60, "{done}");
    assert!(cluster.router.value::<i32>("SELECT attempts FROM docshard.resharding") > 0);
    check_after(&cluster, "a recipient that is late");
}
