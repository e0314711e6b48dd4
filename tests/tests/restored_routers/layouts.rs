//! Changes of layout that the lost router had begun or decided, and that recovery ends as the shards show.

use crate::changing::{
    assert_completed, await_completion, await_error, begin_change, crash_in_a_decision, restored_after_a_change,
    restored_in_a_change, restored_in_a_decision,
};
use crate::{NS, PATIENCE, adopt, cluster, count, end_prepared, insert, orphans, prepared, recover, take_over};
use docshard_tests::{Cluster, Installation, Node, wait_until};

#[test]
fn a_change_of_layout_that_a_lost_router_has_decided_is_completed() {
    let unshard = format!("SELECT docshard.unshard_collection('{NS}', 'shard1')");
    let cluster = restored_in_a_change(unshard, "reshard.verified");
    assert_completed(&cluster);
    assert_eq!(cluster.router.value::<i64>("SELECT count(*) FROM docshard.collections WHERE key IS NULL"), 1);
}

/// The router itself has a part of the copy, with all of its documents.
#[test]
fn a_change_of_layout_of_which_the_backup_has_its_own_part_is_completed() {
    let reshard = format!("SELECT docshard.reshard_collection('{NS}', '{{\"_id\": \"hashed\"}}')");
    let cluster = restored_in_a_change(reshard, "reshard.deciding");
    assert_completed(&cluster);
    let own = cluster.router.value::<i64>("SELECT count(*) FROM docshard_data.c2");
    assert!(own > 0, "the router has documents of the new layout");
}

/// The lost router has moved a chunk of the new layout since: the versions of both shards are those of the move.
#[test]
fn a_change_of_layout_whose_chunks_have_moved_since_is_completed_with_the_moves() {
    let cluster = cluster(2);
    cluster
        .router
        .psql("SELECT docshard.add_shard_to_zone('shard0', 'low'), docshard.add_shard_to_zone('shard1', 'high')");
    let reshard = format!(
        "SELECT docshard.reshard_collection('{NS}', '{{\"_id\": 1}}', '{{\"zones\": [\
         {{\"zone\": \"low\", \"min\": {{\"_id\": {{\"$minKey\": 1}}}}, \"max\": {{\"_id\": 2}}}}, \
         {{\"zone\": \"high\", \"min\": {{\"_id\": 2}}, \"max\": {{\"_id\": {{\"$maxKey\": 1}}}}}}]}}')"
    );
    let moved = format!("SELECT docshard.move_chunk('{NS}', '{{\"_id\": 1}}', 'shard1')");
    let cluster = restored_after_a_change(cluster, reshard, "reshard.verified", &[moved], |_| ());
    take_over(&cluster);
    assert_completed(&cluster);
}

/// What is written to the former layout would be lost. The router's own database has a part of it.
#[test]
fn writes_wait_until_it_is_known_what_a_lost_router_has_decided() {
    let cluster = cluster(2);
    cluster.router.psql(&format!("SELECT docshard.move_chunk('{NS}', '{{\"k\": 100}}', 'local')"));
    let unshard = format!("SELECT docshard.unshard_collection('{NS}', 'shard1')");
    let mut cluster =
        restored_after_a_change(cluster, unshard, "reshard.verified", &[], |cluster| cluster.shards[1].stop());
    cluster.router.psql("SELECT docshard.take_over_cluster('{\"force\": true}')");
    let refused = cluster.router.client().execute(&insert(103), &[]).expect_err("the shard may have the documents");
    let hint = refused.as_db_error().and_then(|error| error.hint()).unwrap_or_default();
    assert!(hint.contains("docshard.resharding"), "{refused:?}");
    let mut writer = cluster.router.client();
    let writing = std::thread::spawn(move || writer.execute(&insert(104), &[]));
    cluster.shards[1].start();
    await_completion(&cluster);
    let waited = writing.join().expect("it ends");
    assert_eq!(count(&cluster), 6 + i64::from(waited.is_ok()), "{waited:?}");
}

/// While the shard with the only documents does not answer, nothing is aborted or dropped.
#[test]
fn a_change_of_layout_waits_for_a_shard_that_may_have_the_only_documents() {
    let unshard = format!("SELECT docshard.unshard_collection('{NS}', 'shard1')");
    let mut cluster =
        restored_after_a_change(cluster(2), unshard, "reshard.verified", &[], |cluster| cluster.shards[1].stop());
    cluster.router.psql("SELECT docshard.take_over_cluster('{\"force\": true}')");
    await_error(&cluster, "shards shard1 do not answer");
    let abort = format!("SELECT docshard.abort_reshard_collection('{NS}')");
    let refused = cluster.router.client().execute(&abort, &[]).expect_err("the shard may have the documents");
    assert!(refused.as_db_error().is_some_and(|error| error.message().contains("do not answer")), "{refused:?}");
    cluster.shards[1].start();
    assert_completed(&cluster);
}

/// The former router has committed one shard's part of the decision. The new one commits the other.
#[test]
fn a_decision_that_one_shard_has_committed_is_committed_at_the_others() {
    for first in [0, 1] {
        let cluster = restored_in_a_decision(|cluster| end_prepared("COMMIT", &cluster.shards[first]));
        assert_completed(&cluster);
    }
}

/// The same after a failover to a standby that lacks the decision: it is no other router, so that it could roll back the other part itself.
#[test]
fn a_promoted_router_ends_a_lost_decision_as_the_shards_show_it() {
    for (committed, state) in [(Some(0), "committed"), (Some(1), "committed"), (None, "aborted")] {
        let mut cluster = cluster(2);
        let standby = crash_in_a_decision(&mut cluster, |cluster| {
            let standby = cluster.router.asynchronous_standby();
            standby.cut_off();
            standby
        });
        if let Some(shard) = committed {
            end_prepared("COMMIT", &cluster.shards[shard]);
        }
        // The other shard's part stays while it is not known whether this one shows the decision.
        let silent = committed.unwrap_or_default();
        cluster.shards[silent].stop();
        cluster.router.fail_over(standby);
        await_error(&cluster, "do not answer");
        assert_eq!(prepared(&cluster.shards[1 - silent]), 1);
        cluster.shards[silent].start();
        assert_completed(&cluster);
        let outcome = "SELECT outcome FROM docshard_catalog.resharding";
        assert_eq!(cluster.router.value::<String>(outcome), state);
        assert!(cluster.shards.iter().all(|shard| prepared(shard) == 0));
    }
}

/// Anybody who may log in at a shard may prepare a transaction with a router's name.
#[test]
fn names_of_prepared_transactions_that_others_take_do_not_stop_recovery() {
    let mut cluster = cluster(2);
    crash_in_a_decision(&mut cluster, |_| ());
    let name: String = cluster.shards[1].value("SELECT gid FROM pg_prepared_xacts");
    cluster.shards[1].psql("CREATE ROLE evil LOGIN");
    for forged in [format!("{name}9"), name.replace("_e1_", "_e99_")] {
        cluster.shards[1].psql_script(
            "postgres",
            &[],
            &format!("SET SESSION AUTHORIZATION evil; BEGIN; PREPARE TRANSACTION '{forged}'"),
        );
    }
    assert_eq!(prepared(&cluster.shards[1]), 3);
    cluster.router.start();
    await_completion(&cluster);
    assert_eq!((prepared(&cluster.shards[0]), prepared(&cluster.shards[1]), count(&cluster)), (0, 2, 6));
}

/// The former server's session is still committing its part at one shard, because a standby is away. The other part is not rolled back meanwhile,
/// also if the shard does not show what its sessions do.
#[test]
fn a_part_that_a_session_of_the_former_server_commits_is_committed_at_all_shards() {
    for tracks in ["on", "off"] {
        let mut cluster = cluster(2);
        crash_in_a_decision(&mut cluster, |_| ());
        let shard = &cluster.shards[1];
        let (role, gid): (String, String) = {
            let row = shard.client().query_one("SELECT owner::text, gid FROM pg_prepared_xacts", &[]).expect("a part");
            (row.get(0), row.get(1))
        };
        shard.psql(&format!("ALTER ROLE {role} SET track_activities = {tracks}"));
        let mut client = shard.try_client_as(&role, "postgres").expect("the role may log in");
        shard.hold_commits();
        let committing = std::thread::spawn(move || client.batch_execute(&format!("COMMIT PREPARED '{gid}'")));
        let waiting =
            format!("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND usename = '{role}'");
        wait_until("it waits for the standby", PATIENCE, || shard.value::<i64>(&waiting) == 1);
        cluster.router.start();
        wait_until("the session is ended", PATIENCE, || committing.is_finished());
        cluster.shards[1].forget_standbys();
        drop(committing.join());
        assert_completed(&cluster);
        assert_eq!(cluster.router.value::<String>("SELECT outcome FROM docshard_catalog.resharding"), "committed");
    }
}

/// Nothing is aborted or dropped while the administrator may still commit what the lost router has prepared.
#[test]
fn a_change_of_layout_waits_for_the_end_of_prepared_transactions() {
    let cluster = restored_in_a_decision(|_| ());
    await_error(&cluster, "has not ended may decide");
    cluster.shards.iter().for_each(|shard| end_prepared("COMMIT", shard));
    assert_completed(&cluster);
}

/// The lost router has dropped the collection since. Its change is over, and the router's own part is left for the administrator.
#[test]
fn a_change_of_layout_of_a_collection_that_was_dropped_since_is_ended() {
    let reshard = format!("SELECT docshard.reshard_collection('{NS}', '{{\"_id\": \"hashed\"}}')");
    let dropped = format!("SELECT docshard.drop_collection('{NS}')");
    let cluster = restored_after_a_change(cluster(2), reshard, "reshard.deciding", &[dropped], |_| ());
    take_over(&cluster);
    await_completion(&cluster);
    assert!(orphans(&cluster).contains("local|docshard_data.c2"), "{}", orphans(&cluster));
    cluster.router.psql(&format!("SELECT docshard.drop_collection('{NS}')"));
    cluster.router.psql(&insert(1));
    assert_eq!(count(&cluster), 1);
}

/// The lost router has aborted its change, whose copy stayed at a shard that was down, and has decided another one since. The missing table does
/// not show the first one's decision.
#[test]
fn an_aborted_change_is_not_completed_instead_of_a_later_one() {
    let mut cluster = cluster(2);
    let unshard = format!("SELECT docshard.unshard_collection('{NS}', 'shard1')");
    let changing = begin_change(&cluster, unshard, "reshard.caught_up");
    let backup = cluster.router.backup();
    cluster.shards[1].stop();
    cluster.router.release("reshard.caught_up");
    changing.join().expect("it ends").expect_err("the recipient is down");
    cluster.router.psql(&format!("SELECT docshard.unshard_collection('{NS}', 'shard0')"));
    cluster.router.psql(&insert(103));
    cluster.router.restore(backup);
    cluster.shards[1].start();
    take_over(&cluster);
    await_error(&cluster, "which the catalog does not know");
    assert_eq!(cluster.shards[0].value::<i64>("SELECT count(*) FROM docshard_data.c3"), 7);
}

/// The router itself has a part of the copy, which is as old as the backup: it cannot be completed, and nothing may be dropped.
#[test]
fn a_change_of_layout_that_the_backup_has_only_a_part_of_is_left_to_the_administrator() {
    let cluster = restored_in_a_change(
        format!("SELECT docshard.reshard_collection('{NS}', '{{\"_id\": 1}}')"),
        "reshard.verified",
    );
    let stored = |node: &Node| {
        let table: String = node.value("SELECT 'docshard_data.c' || collection_id FROM docshard_data.placement");
        node.value::<i64>(&format!("SELECT count(*) FROM {table}"))
    };
    let documents = || cluster.shards.iter().map(stored).sum::<i64>();
    let before = documents();
    assert!(before > 0, "the shards have documents of the new layout");
    await_error(&cluster, "may be decided");
    let abort = format!("SELECT docshard.abort_reshard_collection('{NS}')");
    let refused = cluster.router.client().execute(&abort, &[]).expect_err("it is decided");
    assert!(refused.as_db_error().is_some_and(|error| error.message().contains("may be decided")), "{refused:?}");
    recover(&cluster);
    assert_eq!(documents(), before);
}

/// The lost router has added a shard and moved the collection there: no statement or repair makes it empty.
#[test]
fn a_router_that_lacks_a_shard_makes_no_collection_empty() {
    let mut cluster = Cluster::start(1);
    cluster.router.psql("SELECT docshard.stop_balancer(), docshard.enable_sharding('test', 'shard0')");
    cluster.router.psql(&insert(1));
    let backup = cluster.router.backup();
    cluster.add_server(Installation::private());
    cluster.router.add_shard(&cluster.shards[1]);
    cluster.router.psql(&format!("SELECT docshard.move_collection('{NS}', 'shard1')"));
    cluster.router.restore(backup);
    cluster.router.psql("SELECT docshard.take_over_cluster('{\"force\": true}')");
    wait_until("the router has the shard's lock", PATIENCE, || cluster.lock_holders()[0] == Some(true));
    let query = format!("SELECT docshard.count_documents('{NS}')");
    let error = cluster.router.client().query(&query, &[]).expect_err("the table is gone");
    let hint = error.as_db_error().and_then(|error| error.hint()).unwrap_or_default();
    assert!(hint.contains("add_shard") && !hint.contains("adopt"), "{error:?}");
    let adopt = "SELECT docshard.accept_shard('shard0', '{\"adopt\": true}')";
    let refused = cluster.router.psql_script("postgres", &[], adopt);
    assert!(refused.contains("its documents may be in shard") || refused.contains("\"failed\""), "{refused}");
    assert_eq!(cluster.shards[1].value::<i64>("SELECT count(*) FROM docshard_data.c2"), 1);
    assert_eq!(cluster.shards[0].psql("SELECT to_regclass('docshard_data.c1')"), "\n");
}

/// The backup is from before a change of layout: the shards have only a table that it does not know.
#[test]
fn a_router_that_lacks_a_change_of_layout_says_so() {
    let mut cluster = cluster(2);
    // The counters would show that the catalog is older.
    cluster.router.psql("SELECT docshard.set_setting('shard_count_interval_ms', '60000')");
    let backup = cluster.router.backup();
    cluster.router.psql(&format!("SELECT docshard.unshard_collection('{NS}', 'shard1')"));
    cluster.router.restore(backup);
    let query = format!("SELECT docshard.count_documents('{NS}')");
    let error = cluster.router.client().query(&query, &[]).expect_err("the table is gone");
    let error = error.as_db_error().expect("an error of the server");
    let (message, hint) = (error.message(), error.hint().unwrap_or_default());
    assert!(message.contains("the catalog has lost its last commits"), "{error:?}");
    assert!(
        message.contains("docshard_data.c2 on shard \"shard1\"") && !message.contains("shard0\" has lost"),
        "{error:?}"
    );
    assert!(hint.contains("list_orphaned_relations") && !hint.contains("adopt"), "{error:?}");
    let of_health = "SELECT coalesce(error, '') FROM docshard.health WHERE shard = 'shard0'";
    let shown: String = cluster.router.value(of_health);
    assert!(shown.contains("the catalog has lost its last commits"), "{shown}");
    let repairs = "SELECT count(*), count(repair) FROM docshard.check_metadata_consistency()";
    let row = cluster.router.client().query_one(repairs, &[]).expect("findings");
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (2, 0));
    recover(&cluster);
    assert_eq!(cluster.shards[1].value::<i64>("SELECT count(*) FROM docshard_data.c2"), 6);
    assert!(orphans(&cluster).contains("c2"));
    // No repair makes the collection empty, also while the shard that has the documents is down.
    let refused = adopt(&cluster, "shard0").expect_err("the documents are elsewhere");
    assert!(refused.message().contains("docshard_data.c2 on shard \"shard1\""), "{refused:?}");
    cluster.shards[1].stop();
    let refused = adopt(&cluster, "shard0").expect_err("the documents may be elsewhere");
    assert!(refused.message().contains("\"shard1\", which does not answer"), "{refused:?}");
    let error = cluster.router.client().query(&query, &[]).expect_err("the table is gone");
    let hint = error.as_db_error().and_then(|error| error.hint().map(str::to_owned)).unwrap_or_default();
    assert!(!hint.contains("adopt"), "{error:?}");
}
