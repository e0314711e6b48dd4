//! Accidents while `$merge` or `$out` writes: an error, a cancelled or ended session, a process that dies, a server that crashes. The
//! target keeps its documents as if nothing had been written, nothing is left behind, and the same pipeline can run again.

use docshard_tests::{Cluster, Fault, wait_until};
use postgres::Client;
use serde_json::{Value, json};
use std::thread;
use std::time::Duration;

const SOURCE: &str = "test.source";
const TARGET: &str = "test.target";
const PATIENCE: Duration = Duration::from_secs(60);
/// More than two batches.
const DOCUMENTS: i64 = 4500;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Accident {
    /// an ERROR
    Error,
    /// `pg_cancel_backend`
    Cancel,
    /// `pg_terminate_backend`
    Terminate,
    /// the session's process is killed, and so all sessions of the router end
    Kill,
    CrashRouter,
    /// a shard that has documents of the target crashes
    CrashShard,
}

use Accident::{Cancel, CrashRouter, CrashShard, Error, Kill, Terminate};

const ACCIDENTS: [Accident; 6] = [Error, Cancel, Terminate, Kill, CrashRouter, CrashShard];

/// The number of documents, and of those that the pipeline has written.
fn state(client: &mut Client) -> (i64, i64) {
    let sql = "SELECT docshard.count_documents($1::text), docshard.count_documents($1::text, '{\"new\": true}')";
    let row = client.query_one(sql, &[&TARGET]).expect("counts");
    (row.get(0), row.get(1))
}

fn insert(client: &mut Client, namespace: &str, documents: impl Iterator<Item = Value>) {
    let texts: Vec<String> = documents.map(|document| document.to_string()).collect();
    let sql = "SELECT docshard.insert_many($1::text, $2::text[]::jsonb[])";
    client.execute(sql, &[&namespace, &texts]).expect("documents are inserted");
}

/// Makes the target with documents of odd keys; sharded, it has chunks on all shards.
fn lay_out(cluster: &Cluster, sharded: bool) {
    let mut client = cluster.router.client();
    let mut run = |sql: String| client.batch_execute(&sql).unwrap_or_else(|e| panic!("{sql}: {e:?}"));
    run(format!("SELECT docshard.drop_collection('{TARGET}')"));
    if sharded {
        run(format!("SELECT docshard.shard_collection('{TARGET}', '{{\"k\": 1}}')"));
        for (k, shard) in [(100, "shard0"), (200, "shard1")] {
            run(format!("SELECT docshard.split_at('{TARGET}', '{{\"k\": {k}}}')"));
            run(format!("SELECT docshard.move_chunk('{TARGET}', '{{\"k\": {k}}}', '{shard}')"));
        }
    } else {
        run(format!("SELECT docshard.create_collection('{TARGET}')"));
    }
    insert(&mut client, TARGET, (1..DOCUMENTS).step_by(2).map(|n| json!({"_id": n, "k": n % 300})));
}

/// Lets an accident happen at a point of a pipeline that writes.
fn strike(cluster: &mut Cluster, stage: &Value, point: &str, accident: Accident) {
    let what = format!("{accident:?} at {point} of {stage}");
    let pipeline = json!([{"$set": {"new": true}}, stage]).to_string();
    let before = state(&mut cluster.router.client());
    let fault = match accident {
        Error => Fault::Error,
        Kill => Fault::Kill,
        _ => Fault::Pause,
    };
    let mut witness = cluster.router.client();
    cluster.router.arm(point, fault);
    let mut session = cluster.router.client();
    let sql = format!("SELECT docshard.aggregate('{SOURCE}', $1::text::json)");
    let writing = thread::spawn(move || session.execute(&sql, &[&pipeline]));
    let pid = cluster.router.await_fault(point);
    if fault == Fault::Pause {
        assert_eq!(state(&mut cluster.router.client()), before, "{what}: others see nothing of it");
    }
    match accident {
        Error => {}
        // The server ends all sessions when it notices.
        Kill => wait_until("the router restarts", PATIENCE, || witness.batch_execute("SELECT 1").is_err()),
        Cancel => assert!(cluster.router.value::<bool>(&format!("SELECT pg_cancel_backend({pid})"))),
        Terminate => assert!(cluster.router.value::<bool>(&format!("SELECT pg_terminate_backend({pid})"))),
        CrashRouter => {
            cluster.router.crash();
            cluster.router.start();
        }
        CrashShard => {
            cluster.shards[0].crash();
            cluster.shards[0].start();
        }
    }
    cluster.router.release(point);
    writing.join().unwrap().expect_err(&what);
    wait_until("the router is back", PATIENCE, || cluster.router.try_client().is_ok());
    for node in std::iter::once(&cluster.router).chain(&cluster.shards) {
        let left = "SELECT count(*) FROM pg_prepared_xacts";
        wait_until(&format!("{what}: no transaction is left"), PATIENCE, || node.value::<i64>(left) == 0);
    }
    assert_eq!(state(&mut cluster.router.client()), before, "{what}: nothing is written");
}

fn run_undisturbed(cluster: &Cluster, stage: &Value) {
    let pipeline = json!([{"$set": {"new": true}}, stage]).to_string();
    let sql = format!("SELECT docshard.aggregate('{SOURCE}', $1::text::json)");
    cluster.router.client().execute(&sql, &[&pipeline]).unwrap_or_else(|e| panic!("{stage}: {e:?}"));
    assert_eq!(state(&mut cluster.router.client()), (DOCUMENTS, DOCUMENTS), "{stage}");
}

fn cluster() -> Cluster {
    let cluster = Cluster::spread(SOURCE);
    let mut client = cluster.router.client();
    insert(&mut client, SOURCE, (0..DOCUMENTS).map(|n| json!({"_id": n, "k": n % 300})));
    cluster
}

/// A batch inserts some documents and changes others.
#[test]
fn merge_writes_all_or_nothing() {
    let mut cluster = cluster();
    lay_out(&cluster, true);
    let stage = json!({"$merge": {"into": "target", "on": ["_id", "k"], "whenMatched": "merge"}});
    for point in ["merge.written", "dispatch.checked", "dispatch.answered"] {
        for accident in ACCIDENTS {
            strike(&mut cluster, &stage, point, accident);
        }
    }
    run_undisturbed(&cluster, &stage);
}

#[test]
fn out_replaces_all_or_nothing() {
    let mut cluster = cluster();
    for primary in ["local", "shard0"] {
        lay_out(&cluster, false);
        cluster.router.psql(&format!("SELECT docshard.move_primary('test', '{primary}')"));
        for point in ["out.cleared", "out.written"] {
            for accident in ACCIDENTS {
                // The crash of another shard does not concern the documents that have been read.
                if (primary, accident) != ("local", CrashShard) {
                    strike(&mut cluster, &json!({"$out": "target"}), point, accident);
                }
            }
        }
        run_undisturbed(&cluster, &json!({"$out": "target"}));
    }
}
