//! Changes of layout during which the router is lost, and what recovery makes of them.

use crate::{NS, PATIENCE, cluster, count, insert, orphans, recover, take_over, take_over_with_faults};
use docshard_tests::{Cluster, Fault, wait_until};
use serde_json::Value;
use std::thread::JoinHandle;

/// Begins a change of layout, and waits until it pauses at the fault point.
pub fn begin_change(cluster: &Cluster, statement: String, point: &str) -> JoinHandle<Result<u64, postgres::Error>> {
    cluster.router.arm(point, Fault::Pause);
    let mut client = cluster.router.client();
    let changing = std::thread::spawn(move || client.execute(&statement, &[]));
    cluster.router.await_fault(point);
    changing
}

/// The router's server crashes while a change of layout is at the fault point.
pub fn crash_in_change(cluster: &mut Cluster, statement: String, point: &str) {
    let changing = begin_change(cluster, statement, point);
    cluster.router.crash();
    drop(changing.join());
    cluster.router.clear_faults();
}

/// The backup is from the moment at which a change of layout reached the fault point, and the lost router has decided it since: the copy has
/// the only documents. Then the lost router executes `later`, and `before` happens before the restored one takes over.
pub fn restored_after_a_change(
    mut cluster: Cluster,
    statement: String,
    point: &str,
    later: &[String],
    before: impl FnOnce(&mut Cluster),
) -> Cluster {
    let changing = begin_change(&cluster, statement, point);
    let backup = cluster.router.backup();
    cluster.router.release(point);
    changing.join().expect("it ends").expect("it is decided");
    later.iter().for_each(|sql| drop(cluster.router.psql(sql)));
    before(&mut cluster);
    cluster.router.restore(backup);
    cluster
}

pub fn restored_in_a_change(statement: String, point: &str) -> Cluster {
    let cluster = restored_after_a_change(cluster(2), statement, point, &[], |_| ());
    take_over(&cluster);
    cluster
}

/// Waits until recovery has stored an error of a change that contains this text.
pub fn await_error(cluster: &Cluster, text: &str) {
    let error = "SELECT coalesce(error, '') FROM docshard.resharding WHERE state = 'running'";
    wait_until("it is looked at", PATIENCE, || {
        recover(cluster);
        cluster.router.value::<String>(error).contains(text)
    });
}

pub fn await_completion(cluster: &Cluster) {
    wait_until("the change is completed", PATIENCE, || {
        recover(cluster);
        cluster.router.value::<i64>("SELECT count(*) FROM docshard.resharding WHERE state <> 'done'") == 0
    });
}

pub fn assert_completed(cluster: &Cluster) {
    await_completion(cluster);
    assert_eq!(count(cluster), 6);
    cluster.router.psql(&insert(103));
    let checked: Value = cluster.router.value(&format!("SELECT docshard.check_collection('{NS}')"));
    assert!(checked["violations"].as_array().is_none_or(Vec::is_empty), "{checked}");
    assert_eq!(orphans(cluster).trim(), "");
}

/// Crashes the router while its decision of a change from `shard0` to `shard1` is prepared at both; `copy` copies it at `reshard.verified`.
pub fn crash_in_a_decision<T>(cluster: &mut Cluster, copy: impl FnOnce(&Cluster) -> T) -> T {
    crash_in_a_decision_of(cluster, format!("SELECT docshard.unshard_collection('{NS}', 'shard1')"), copy)
}

pub fn crash_in_a_decision_of<T>(cluster: &mut Cluster, statement: String, copy: impl FnOnce(&Cluster) -> T) -> T {
    let changing = begin_change(cluster, statement, "reshard.verified");
    let copied = copy(cluster);
    cluster.router.arm("decide.prepared", Fault::Pause);
    cluster.router.release("reshard.verified");
    cluster.router.await_fault("decide.prepared");
    cluster.router.crash();
    drop(changing.join());
    cluster.router.clear_faults();
    copied
}

/// A router that was restored from a backup at `reshard.verified`, while the decision of the lost router is prepared at both shards.
pub fn restored_in_a_decision(before: impl FnOnce(&Cluster)) -> Cluster {
    let mut cluster = cluster(2);
    let backup = crash_in_a_decision(&mut cluster, |cluster| cluster.router.backup());
    before(&cluster);
    // Until the restored router has taken over, it would end what it takes for its own.
    backup.switch_off("layout_recovery");
    cluster.router.restore(backup);
    take_over_with_faults(&cluster);
    cluster.router.clear_faults();
    cluster
}
