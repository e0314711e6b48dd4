//! Changes of layout that an administrator decides, because the shards do not show enough, or a shard of them is lost.

use crate::changing::{
    assert_completed, await_completion, await_error, begin_change, crash_in_a_decision, crash_in_a_decision_of,
    crash_in_change, restored_after_a_change, restored_in_a_change, restored_in_a_decision,
};
use crate::{NS, PATIENCE, adopt, cluster, count, end_prepared, insert, orphans, prepared, recover, take_over};
use docshard_tests::moving::move_chunk;
use docshard_tests::{Cluster, Node, wait_until};
use serde_json::Value;

/// The lost shard had a part of the new layout, and the former one. The surviving part shows the decision, and is kept.
#[test]
fn a_lost_shard_does_not_take_the_other_parts_of_a_decided_change_with_it() {
    let cluster = cluster(2);
    cluster
        .router
        .psql("SELECT docshard.add_shard_to_zone('shard0', 'low'), docshard.add_shard_to_zone('shard1', 'high')");
    cluster.router.psql(&format!("SELECT docshard.move_chunk('{NS}', '{{\"k\": {{\"$minKey\": 1}}}}', 'shard1')"));
    cluster.router.psql(&format!("SELECT docshard.move_chunk('{NS}', '{{\"k\": 100}}', 'shard1')"));
    let reshard = format!(
        "SELECT docshard.reshard_collection('{NS}', '{{\"_id\": 1}}', '{{\"zones\": [\
         {{\"zone\": \"low\", \"min\": {{\"_id\": {{\"$minKey\": 1}}}}, \"max\": {{\"_id\": 100}}}}, \
         {{\"zone\": \"high\", \"min\": {{\"_id\": 100}}, \"max\": {{\"_id\": {{\"$maxKey\": 1}}}}}}]}}')"
    );
    let cluster =
        restored_after_a_change(cluster, reshard, "reshard.verified", &[], |cluster| cluster.shards[1].stop());
    cluster.router.psql("SELECT docshard.take_over_cluster('{\"force\": true}')");
    await_error(&cluster, "shards shard1 do not answer");
    // It was the only shard of a zone that gets ranges by the change.
    let announced: Value = cluster.router.value("SELECT docshard.remove_shard('shard1', '{\"lost\": true}')::jsonb");
    let token = announced["token"].as_str().expect("a token");
    cluster
        .router
        .psql(&format!("SELECT docshard.remove_shard('shard1', '{{\"lost\": true, \"token\": \"{token}\"}}')"));
    await_completion(&cluster);
    assert_eq!(count(&cluster), 3);
    cluster.router.psql("SELECT docshard.add_shard_to_zone('shard0', 'high')");
    cluster.router.psql(&format!("SELECT docshard.insert_one('{NS}', '{{\"_id\": 500, \"k\": 500}}')"));
    let found = "SELECT coalesce(string_agg(f::text, '; '), '') FROM docshard.check_metadata_consistency() f";
    assert_eq!(cluster.router.value::<String>(found), "");
}

/// Two shards are lost with an unfinished move or change of layout between them. The removal of one does not wait for the other.
#[test]
fn two_lost_shards_with_parts_of_one_change_are_removed() {
    for (statement, point) in [
        (format!("SELECT docshard.unshard_collection('{NS}', 'shard1')"), "reshard.caught_up"),
        (format!("SELECT docshard.move_chunk('{NS}', '{{\"k\": 100}}', 'shard1')"), "move.cloned"),
        (format!("SELECT docshard.move_chunk('{NS}', '{{\"k\": 100}}', 'shard1')"), "move.decided"),
    ] {
        let mut cluster = cluster(2);
        crash_in_change(&mut cluster, statement, point);
        cluster.shards.iter_mut().for_each(Node::stop);
        cluster.router.start();
        let tokens = ["shard0", "shard1"].map(|shard| {
            let announced: Value =
                cluster.router.value(&format!("SELECT docshard.remove_shard('{shard}', '{{\"lost\": true}}')::jsonb"));
            (shard, announced["token"].as_str().expect("a token").to_owned())
        });
        // Asking about a shard is not saying that it is lost.
        let [(first, token), (second, other)] = tokens;
        let remove = |shard: &str, token: &str, also: Value| {
            let options = serde_json::json!({"lost": true, "token": token, "alsoLost": also});
            cluster.router.client().execute(&format!("SELECT docshard.remove_shard('{shard}', '{options}')"), &[])
        };
        remove(first, &token, serde_json::json!({})).expect_err("the other does not answer");
        remove(first, &token, serde_json::json!({second: token})).expect_err("another shard's token");
        wait_until("one is removed", PATIENCE, || remove(first, &token, serde_json::json!({second: other})).is_ok());
        wait_until("both are removed", PATIENCE, || remove(second, &other, serde_json::json!({})).is_ok());
        await_completion(&cluster);
        assert_eq!(count(&cluster), 0, "{point}: all documents were there");
        cluster.router.psql(&insert(103));
        assert_eq!(count(&cluster), 1, "{point}");
    }
}

/// The router's own part of the copy is older than the decision. The prepared part at a donor stays, with its table, until an administrator confirms.
#[test]
fn what_is_prepared_is_not_committed_before_the_question_is_answered() {
    let mut cluster = cluster(2);
    let reshard = format!("SELECT docshard.reshard_collection('{NS}', '{{\"_id\": \"hashed\"}}')");
    let standby = crash_in_a_decision_of(&mut cluster, reshard, |cluster| {
        let standby = cluster.router.asynchronous_standby();
        standby.cut_off();
        standby
    });
    end_prepared("COMMIT", &cluster.shards[1]);
    cluster.router.fail_over(standby);
    await_error(&cluster, "own part may be missing");
    (0..3).for_each(|_| recover(&cluster));
    assert_eq!(prepared(&cluster.shards[0]), 1);
    cluster.router.psql(&format!("SELECT docshard.commit_reshard_collection('{NS}')"));
    assert_completed(&cluster);
}

/// Between a router's crash and its restart, a shard is lost with its part of a prepared decision. If it is the new layout's only shard, the
/// former table has all documents. If it is the donor, the copy may have the only ones.
#[test]
fn the_removal_of_a_lost_shard_ends_what_is_prepared_at_others() {
    for (lost, completes, left) in [(1, None, 6), (0, Some(true), 6), (0, Some(false), 0)] {
        let mut cluster = cluster(2);
        crash_in_a_decision(&mut cluster, |_| ());
        cluster.shards[lost].stop();
        cluster.router.start();
        await_error(&cluster, "do not answer");
        let name = format!("shard{lost}");
        let announced: Value =
            cluster.router.value(&format!("SELECT docshard.remove_shard('{name}', '{{\"lost\": true}}')::jsonb"));
        let remove = |completes: Option<bool>| {
            let mut options = serde_json::json!({"lost": true, "token": announced["token"]});
            if let Some(completes) = completes {
                options["completeChanges"] = completes.into();
            }
            cluster.router.client().execute(&format!("SELECT docshard.remove_shard('{name}', '{options}')"), &[])
        };
        if completes.is_some() {
            // The worker may be looking at the change at any moment.
            wait_until("it asks", PATIENCE, || {
                let asked = remove(None).expect_err("it may be decided");
                let hint = asked.as_db_error().and_then(|error| error.hint()).unwrap_or_default();
                hint.contains("completeChanges")
            });
        }
        wait_until("it is removed", PATIENCE, || remove(completes).is_ok());
        await_completion(&cluster);
        assert_eq!((prepared(&cluster.shards[1 - lost]), count(&cluster)), (0, left), "{lost} {completes:?}");
        // What may be the only copy is not dropped by either answer.
        let copied = "SELECT coalesce(sum(documents), 0)::int8 FROM docshard.list_orphaned_relations() WHERE relation LIKE '%docshard_data.c2'";
        let orphaned = if completes == Some(false) { 6 } else { 0 };
        assert_eq!(cluster.router.value::<i64>(copied), orphaned, "{lost} {completes:?}");
    }
}

/// One answer is not given to two questions.
#[test]
fn the_removal_of_a_lost_shard_asks_for_each_change() {
    for (moved, other) in [(true, false), (false, true)] {
        let mut cluster = cluster(2);
        cluster.router.psql("SELECT docshard.insert_one('test.other', '{\"_id\": 1}')");
        let unshard = format!("SELECT docshard.unshard_collection('{NS}', 'shard1')");
        let first = begin_change(&cluster, unshard, "reshard.last_round");
        let move_other = "SELECT docshard.move_collection('test.other', 'shard1')".to_owned();
        let second = begin_change(&cluster, move_other, "reshard.verified");
        cluster.router.crash();
        for changing in [first, second] {
            drop(changing.join());
        }
        cluster.router.clear_faults();
        cluster.shards[0].stop();
        cluster.router.start();
        let announced: Value =
            cluster.router.value("SELECT docshard.remove_shard('shard0', '{\"lost\": true}')::jsonb");
        let remove = |answers: Value| {
            let mut options = serde_json::json!({"lost": true, "token": announced["token"]});
            if !answers.is_null() {
                options["completeChanges"] = answers;
            }
            let refused =
                cluster.router.client().execute(&format!("SELECT docshard.remove_shard('shard0', '{options}')"), &[]);
            refused
                .map(drop)
                .map_err(|error| error.as_db_error().map(|error| error.message().to_owned()).unwrap_or_default())
        };
        let refused = |answers: Value, texts: &[&str]| {
            wait_until("it asks", PATIENCE, || {
                let message = remove(answers.clone()).expect_err("two changes may be decided");
                texts.iter().all(|text| message.contains(text))
            });
        };
        refused(Value::Null, &["test.moved may be decided", "test.other may be decided"]);
        refused(true.into(), &["for each of test.moved, test.other"]);
        refused(serde_json::json!({"test.other": other}), &["test.moved may be decided"]);
        refused(serde_json::json!({"test.other": 1}), &["completeChanges"]);
        let answers = serde_json::json!({"test.moved": moved, "test.other": other});
        wait_until("it is removed", PATIENCE, || remove(answers.clone()).is_ok());
        await_completion(&cluster);
        let of_other = "SELECT docshard.count_documents('test.other')";
        let left = (count(&cluster), cluster.router.value::<i64>(of_other));
        assert_eq!(left, (if moved { 6 } else { 0 }, i64::from(other)));
        // What is not completed is kept.
        let kept = if moved { "docshard_data.c4" } else { "docshard_data.c3" };
        assert!(orphans(&cluster).contains(&format!("shard1|{kept}")), "{}", orphans(&cluster));
    }
}

/// A donor is lost whose documents the copy has, and nothing shows a decision: the copy is kept, also if nobody is asked.
#[test]
fn the_removal_of_a_lost_donor_keeps_the_copy() {
    let mut cluster = cluster(2);
    cluster.router.psql(&format!("SELECT docshard.move_chunk('{NS}', '{{\"k\": 100}}', 'shard1')"));
    let reshard = format!("SELECT docshard.reshard_collection('{NS}', '{{\"_id\": \"hashed\"}}')");
    crash_in_change(&mut cluster, reshard, "reshard.verified");
    cluster.shards[0].stop();
    cluster.router.start();
    let announced: Value = cluster.router.value("SELECT docshard.remove_shard('shard0', '{\"lost\": true}')::jsonb");
    let options = serde_json::json!({"lost": true, "token": announced["token"]}).to_string();
    wait_until("it is removed", PATIENCE, || {
        cluster.router.client().execute(&format!("SELECT docshard.remove_shard('shard0', '{options}')"), &[]).is_ok()
    });
    await_completion(&cluster);
    assert!(orphans(&cluster).contains("docshard_data.c2"), "{}", orphans(&cluster));
}

/// One donor shows the decision, and the recipient, which has a former table, too, was restored from before the copy. Without a part of the copy
/// the change cannot be completed; an administrator says that it is not.
#[test]
fn a_decided_change_whose_recipient_was_restored_is_a_question() {
    let cluster = cluster(2);
    cluster.router.psql("SELECT docshard.set_setting('shard_count_interval_ms', '60000')");
    cluster.router.psql(&format!("SELECT docshard.move_chunk('{NS}', '{{\"k\": 100}}', 'shard1')"));
    let stored = cluster.shards[1].value::<i64>("SELECT count(*) FROM docshard_data.c1");
    let backup = cluster.shards[1].backup();
    let unshard = format!("SELECT docshard.unshard_collection('{NS}', 'shard1')");
    let cluster = restored_after_a_change(cluster, unshard, "reshard.verified", &[], |cluster| {
        cluster.shards[1].restore(backup);
    });
    take_over(&cluster);
    await_error(&cluster, "lack documents of the copy");
    let commit = format!("SELECT docshard.commit_reshard_collection('{NS}')");
    let refused = cluster.router.client().execute(&commit, &[]).expect_err("there is no copy");
    assert!(refused.as_db_error().is_some_and(|error| error.message().contains("may be decided")), "{refused:?}");
    let abort = format!("SELECT docshard.abort_reshard_collection('{NS}')");
    wait_until("it is aborted", PATIENCE, || cluster.router.client().execute(&abort, &[]).is_ok());
    await_completion(&cluster);
    wait_until("the shard is adopted", PATIENCE, || adopt(&cluster, "shard0").is_ok());
    assert_eq!(count(&cluster), stored);
}

/// The donor has committed the decision, and the recipient has not: only the missing table shows it, so an administrator confirms it.
#[test]
fn a_change_of_layout_that_only_a_donor_shows_is_completed_when_it_is_confirmed() {
    let cluster = restored_in_a_decision(|cluster| {
        end_prepared("COMMIT", &cluster.shards[0]);
        end_prepared("ROLLBACK", &cluster.shards[1]);
    });
    await_error(&cluster, "may lack documents");
    cluster.router.psql(&format!("SELECT docshard.commit_reshard_collection('{NS}')"));
    assert_completed(&cluster);
}

/// A donor was restored from a backup that is older than the collection, and the router only restarted: the missing table shows no decision
/// while the other donor has its documents.
#[test]
fn a_restored_donor_does_not_complete_a_change_of_layout() {
    let mut cluster = cluster(2);
    let backup = cluster.shards[0].backup();
    cluster.router.psql("SELECT docshard.enable_sharding('other', 'shard0')");
    cluster.router.psql("SELECT docshard.shard_collection('other.things', '{\"k\": 1}')");
    cluster.router.psql(
        "SELECT docshard.insert_many('other.things', array_agg(jsonb_build_object('_id', k, 'k', k))) FROM generate_series(1, 6) k",
    );
    cluster.router.psql("SELECT docshard.split_at('other.things', '{\"k\": 4}')");
    cluster.router.psql("SELECT docshard.move_chunk('other.things', '{\"k\": 4}', 'shard1')");
    let unshard = "SELECT docshard.unshard_collection('other.things', 'shard1')".to_owned();
    crash_in_change(&mut cluster, unshard, "reshard.prepared");
    cluster.shards[0].restore(backup);
    cluster.router.start();
    await_error(&cluster, "may be decided");
    assert_eq!(cluster.shards[1].value::<i64>("SELECT count(*) FROM docshard_data.c2"), 3);
}

/// A shard that was a donor and a recipient was restored from before the collection, and the router only restarted: the other shard's copy may have
/// the only documents of that donor, and its former table the only ones of its own. `is_split`: the other shard is a donor, too.
fn restored_shard_of_both_layouts(is_split: bool) -> Cluster {
    let mut cluster = cluster(2);
    cluster.router.psql("SELECT docshard.set_setting('shard_count_interval_ms', '60000')");
    cluster.router.psql("SELECT docshard.remove_shard('local')");
    let backup = cluster.shards[0].backup();
    cluster.router.psql(
        "SELECT docshard.enable_sharding('other', 'shard0'), docshard.shard_collection('other.things', '{\"k\": 1}')",
    );
    cluster.router.psql(
        "SELECT docshard.insert_many('other.things', array_agg(jsonb_build_object('_id', k, 'k', k))) FROM generate_series(1, 6) k",
    );
    if is_split {
        cluster.router.psql("SELECT docshard.split_at('other.things', '{\"k\": 4}')");
        cluster.router.psql("SELECT docshard.move_chunk('other.things', '{\"k\": 4}', 'shard1')");
    }
    let reshard = "SELECT docshard.reshard_collection('other.things', '{\"_id\": \"hashed\"}')".to_owned();
    crash_in_a_decision_of(&mut cluster, reshard, |_| ());
    cluster.shards[0].restore(backup);
    cluster.router.start();
    await_error(&cluster, "lack documents of the copy");
    cluster
}

/// Nothing is ended without an answer.
#[test]
fn a_restored_shard_of_both_layouts_is_a_question() {
    for (is_split, completes) in [(true, false), (false, true)] {
        let mut cluster = restored_shard_of_both_layouts(is_split);
        (0..3).for_each(|_| recover(&cluster));
        assert_eq!(prepared(&cluster.shards[1]), 1);
        // The restored shard is given up.
        cluster.shards[0].stop();
        let announced: Value =
            cluster.router.value("SELECT docshard.remove_shard('shard0', '{\"lost\": true}')::jsonb");
        let options =
            serde_json::json!({"lost": true, "token": announced["token"], "completeChanges": completes}).to_string();
        wait_until("it is removed", PATIENCE, || {
            cluster
                .router
                .client()
                .execute(&format!("SELECT docshard.remove_shard('shard0', '{options}')"), &[])
                .is_ok()
        });
        await_completion(&cluster);
        let left: i64 = cluster.router.value("SELECT docshard.count_documents('other.things')");
        assert!(if is_split { left == 3 } else { (1..6).contains(&left) }, "{left}");
    }
}

/// As before, but the administrator says that the change was not decided. Nothing is dropped, and the restored shard gets its table again.
#[test]
fn the_answer_that_a_change_was_not_decided_keeps_the_former_tables_and_the_copy() {
    let cluster = restored_shard_of_both_layouts(true);
    wait_until("it is aborted", PATIENCE, || {
        let abort = "SELECT docshard.abort_reshard_collection('other.things')";
        let Err(refused) = cluster.router.client().execute(abort, &[]) else { return true };
        assert!(refused.as_db_error().is_some_and(|error| error.message().contains("may be decided")), "{refused:?}");
        false
    });
    await_completion(&cluster);
    assert_eq!(cluster.router.value::<String>("SELECT outcome FROM docshard_catalog.resharding"), "aborted");
    let why: String = cluster.router.value("SELECT error FROM docshard.resharding");
    assert!(why.contains("orphaned relations"), "{why}");
    assert_eq!(prepared(&cluster.shards[1]), 0);
    let copy = orphans(&cluster);
    let copy = copy.trim().strip_prefix("shard1|").expect("the copy's table is kept").to_owned();
    cluster.router.psql(&format!("SELECT docshard.drop_orphaned_relation('shard1', '{copy}')"));
    adopt(&cluster, "shard0").expect("the shard gets an empty table");
    assert_eq!(cluster.router.value::<i64>("SELECT docshard.count_documents('other.things')"), 3);
    let found = "SELECT coalesce(string_agg(f::text, '; '), '') FROM docshard.check_metadata_consistency() f";
    assert_eq!(cluster.router.value::<String>(found), "");
}

/// As before, with one donor: the missing table alone does not show a decision. What an administrator confirms is what recovery has asked.
#[test]
fn a_restored_donor_of_a_collection_on_one_shard_does_not_complete_a_change_of_layout() {
    let mut cluster = cluster(2);
    cluster.router.psql("SELECT docshard.set_setting('shard_count_interval_ms', '60000')");
    let backup = cluster.shards[0].backup();
    cluster.router.psql("SELECT docshard.enable_sharding('other', 'shard0')");
    cluster.router.psql("SELECT docshard.insert_one('other.things', '{\"_id\": 1}')");
    let moved = "SELECT docshard.move_collection('other.things', 'shard1')".to_owned();
    crash_in_change(&mut cluster, moved, "reshard.prepared");
    cluster.shards[0].stop();
    cluster.router.start();
    await_error(&cluster, "do not answer");
    let commit = "SELECT docshard.commit_reshard_collection('other.things')";
    let refused = cluster.router.client().execute(commit, &[]).expect_err("it is not known what is missing");
    assert!(refused.as_db_error().is_some_and(|error| error.message().contains("do not answer")), "{refused:?}");
    cluster.shards[0].restore(backup);
    await_error(&cluster, "may lack documents");
    assert_eq!(cluster.shards[1].value::<i64>("SELECT count(*) FROM docshard_data.c3"), 0);
    cluster.router.psql(commit);
    await_completion(&cluster);
    assert_eq!(cluster.router.value::<i64>("SELECT docshard.count_documents('other.things')"), 0);
}

/// The router and a shard of the new layout were restored. The administrator takes what the other shards have.
#[test]
fn a_change_of_layout_of_which_a_shard_has_lost_its_part_is_completed_without_it() {
    let cluster = cluster(2);
    cluster.router.psql("SELECT docshard.set_setting('shard_count_interval_ms', '60000')");
    let backup = cluster.shards[1].backup();
    let reshard = format!("SELECT docshard.reshard_collection('{NS}', '{{\"_id\": \"hashed\"}}')");
    let cluster =
        restored_after_a_change(cluster, reshard, "reshard.deciding", &[], |cluster| cluster.shards[1].restore(backup));
    take_over(&cluster);
    await_error(&cluster, "shards shard1 lack documents of the copy");
    cluster.router.psql(&format!("SELECT docshard.commit_reshard_collection('{NS}')"));
    await_completion(&cluster);
    cluster.router.psql("SELECT docshard.accept_shard('shard1', '{\"adopt\": true}')");
    cluster.router.psql("SELECT docshard.accept_shard('shard0', '{\"adopt\": true}')");
    let left = count(&cluster);
    assert!((1..6).contains(&left), "{left}");
    cluster.router.psql(&insert(103));
    assert_eq!(count(&cluster), left + 1);
}

/// A shard of both layouts was restored to the moment before the decision: it has the old version of the copy, without its documents, and the
/// former table with them.
#[test]
fn a_change_of_layout_is_not_completed_if_a_shard_has_lost_its_part() {
    let mut cluster = cluster(2);
    cluster.router.psql("SELECT docshard.set_setting('shard_count_interval_ms', '60000')");
    move_chunk(&mut cluster.router.client(), 100, "shard1").expect("a move");
    let reshard = format!("SELECT docshard.reshard_collection('{NS}', '{{\"_id\": \"hashed\"}}')");
    cluster.router.psql("SELECT docshard.remove_shard('local')");
    let changing = begin_change(&cluster, reshard, "reshard.prepared");
    let (router, shard) = (cluster.router.backup(), cluster.shards[1].backup());
    cluster.router.release("reshard.prepared");
    changing.join().expect("it ends").expect("it is decided");
    cluster.shards[1].restore(shard);
    cluster.router.restore(router);
    take_over(&cluster);
    await_error(
        &cluster,
        "shards shard1 have an older version of it, and may lack documents, and shards shard1 have the former table",
    );
    assert_eq!(cluster.shards[1].value::<i64>("SELECT count(*) FROM docshard_data.c1"), 3);
    // When it is confirmed, the shard is behind the catalog, and adopting it says what it lacks.
    cluster.router.psql(&format!("SELECT docshard.commit_reshard_collection('{NS}')"));
    await_completion(&cluster);
    let query = format!("SELECT docshard.count_documents('{NS}')");
    cluster.router.client().query(&query, &[]).expect_err("the shard lacks documents");
    let adopted = adopt(&cluster, "shard1").expect("it is adopted");
    assert!(adopted.to_string().contains("lost"), "{adopted}");
    let _ = adopt(&cluster, "shard0");
    assert!(count(&cluster) < 6);
}

/// The router has the whole copy, as old as the backup, and a donor is lost. Its removal asks, and completes the change when that is confirmed.
#[test]
fn the_removal_of_a_lost_shard_completes_a_change_of_layout_when_that_is_confirmed() {
    let unshard = format!("SELECT docshard.unshard_collection('{NS}', 'local')");
    let cluster = cluster(2);
    move_chunk(&mut cluster.router.client(), 100, "shard1").expect("a move");
    let cluster =
        restored_after_a_change(cluster, unshard, "reshard.verified", &[], |cluster| cluster.shards[0].stop());
    cluster.router.psql("SELECT docshard.take_over_cluster('{\"force\": true}')");
    await_error(&cluster, "do not answer");
    let announced: Value = cluster.router.value("SELECT docshard.remove_shard('shard0', '{\"lost\": true}')::jsonb");
    let token = announced["token"].as_str().expect("a token");
    let remove = |completes: &str| {
        let options = format!("{{\"lost\": true, \"token\": \"{token}\"{completes}}}");
        cluster.router.client().execute(&format!("SELECT docshard.remove_shard('shard0', '{options}')"), &[])
    };
    let asked = remove("").expect_err("the router's part may be older");
    let hint = asked.as_db_error().and_then(|error| error.hint()).unwrap_or_default();
    assert!(hint.contains("completeChanges"), "{asked:?}");
    remove(", \"completeChanges\": true").expect("it is removed");
    await_completion(&cluster);
    assert_eq!(count(&cluster), 6);
}

/// The only donor has committed the decision and is lost, with the router, which has rolled the recipient's part back since: the copy has the only
/// documents, and nothing shows it. In the second case, a part of the copy is on the router itself.
#[test]
fn the_removal_of_a_lost_shard_does_not_drop_what_may_be_the_only_copy() {
    for (statement, lost, left) in [
        (format!("SELECT docshard.unshard_collection('{NS}', 'shard1')"), 0, 6),
        (format!("SELECT docshard.reshard_collection('{NS}', '{{\"_id\": \"hashed\"}}')"), 1, 0),
    ] {
        let cluster = cluster(2);
        if lost == 1 {
            cluster.router.psql("SELECT docshard.remove_shard('shard0')");
        }
        let changing = begin_change(&cluster, statement, "reshard.verified");
        let mut cluster = cluster;
        let backup = cluster.router.backup();
        cluster.router.release("reshard.verified");
        changing.join().expect("it ends").expect("it is decided");
        if lost == 0 {
            // As after a rollback of the part that shard1 has prepared.
            cluster.shards[1].psql("UPDATE docshard_data.placement SET version = 1");
        }
        cluster.shards[lost].stop();
        cluster.router.restore(backup);
        cluster.router.psql("SELECT docshard.take_over_cluster('{\"force\": true}')");
        await_error(&cluster, "do not answer");
        let name = format!("shard{lost}");
        let announced: Value =
            cluster.router.value(&format!("SELECT docshard.remove_shard('{name}', '{{\"lost\": true}}')::jsonb"));
        let remove = |completes: Value| {
            let mut options = serde_json::json!({"lost": true, "token": announced["token"]});
            if completes.is_boolean() {
                options["completeChanges"] = completes;
            }
            cluster.router.client().execute(&format!("SELECT docshard.remove_shard('{name}', '{options}')"), &[])
        };
        let asked = remove(Value::Null).expect_err("it may be decided");
        let message = asked.as_db_error().map(|error| error.message()).unwrap_or_default();
        assert!(message.contains("may be decided"), "{asked:?}");
        remove(true.into()).expect("it is removed");
        await_completion(&cluster);
        let found = count(&cluster);
        assert!(if left == 6 { found == 6 } else { (1..6).contains(&found) }, "{found}");
    }
}

/// A request before the failover to let writers wait is not a consent to take the router's own part.
#[test]
fn a_copy_on_the_router_needs_a_consent_of_its_own() {
    let unshard = format!("SELECT docshard.unshard_collection('{NS}', 'local')");
    let mut cluster = cluster(2);
    let changing = begin_change(&cluster, unshard, "reshard.verified");
    cluster.router.psql(&format!("SELECT docshard.commit_reshard_collection('{NS}')"));
    let backup = cluster.router.backup();
    cluster.router.release("reshard.verified");
    changing.join().expect("it ends").expect("it is decided");
    cluster.router.restore(backup);
    take_over(&cluster);
    await_error(&cluster, "own part may be missing");
}

/// The router has the whole copy, which is as old as the backup, and the former table is gone.
#[test]
fn a_copy_on_the_router_is_not_dropped_when_the_former_table_is_gone() {
    let unshard = format!("SELECT docshard.unshard_collection('{NS}', 'local')");
    let cluster = restored_in_a_change(unshard, "reshard.verified");
    await_error(&cluster, "have dropped the former table");
    let abort = format!("SELECT docshard.abort_reshard_collection('{NS}')");
    let refused = cluster.router.client().execute(&abort, &[]).expect_err("it is decided");
    assert!(refused.as_db_error().is_some_and(|error| error.message().contains("may be decided")), "{refused:?}");
    recover(&cluster);
    assert_eq!(cluster.router.value::<i64>("SELECT count(*) FROM docshard_data.c2"), 6);
    // What statements say does not lead to an empty table.
    let query = format!("SELECT docshard.count_documents('{NS}')");
    let refused = cluster.router.client().query(&query, &[]).expect_err("the table is gone");
    let hint = refused.as_db_error().and_then(|error| error.hint()).unwrap_or_default();
    assert!(hint.contains("docshard.resharding"), "{refused:?}");
    assert_eq!(
        cluster.router.psql("SELECT type FROM docshard.check_metadata_consistency() WHERE repair LIKE '%adopt%'"),
        ""
    );
    // An administrator takes it as it is.
    cluster.router.psql(&format!("SELECT docshard.commit_reshard_collection('{NS}')"));
    assert_completed(&cluster);
}
