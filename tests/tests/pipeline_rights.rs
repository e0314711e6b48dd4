//! The rights of pipelines that write, and of those that ask for the caller's roles: what `$merge` and `$out` read and write needs the
//! caller's own rights, also through views and in stages that read other collections.

use docshard_tests::logins::create_role;
use docshard_tests::{Cluster, Node};
use postgres::Client;
use serde_json::{Value, json};

const TARGET: &str = "test.target";

fn aggregate(client: &mut Client, namespace: &str, pipeline: &Value) -> Result<Vec<Value>, postgres::Error> {
    let sql = "SELECT docshard.aggregate($1::text, $2::text::json)";
    let rows = client.query(sql, &[&namespace, &pipeline.to_string()])?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// `ok`, or the SQLSTATE and MongoDB's code of the error.
fn outcome(client: &mut Client, namespace: &str, pipeline: &Value) -> String {
    let Err(error) = aggregate(client, namespace, pipeline) else { return "ok".to_owned() };
    let error = error.as_db_error().unwrap_or_else(|| panic!("{error:?}"));
    let code = error.detail().and_then(|detail| detail.strip_prefix("MongoDB error ")).unwrap_or("-");
    format!("{} {}", error.code().code(), code.split(' ').next().unwrap_or_default())
}

fn insert(router: &Node, namespace: &str, ids: impl Iterator<Item = i64>, more: &Value) {
    let document = |id: i64| {
        let mut document = json!({"_id": id, "k": id});
        document.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        document.to_string()
    };
    let texts: Vec<String> = ids.map(document).collect();
    let sql = "SELECT docshard.insert_many($1::text, $2::text[]::jsonb[])";
    router.client().execute(sql, &[&namespace, &texts]).expect("documents are inserted");
}

fn all(router: &Node, namespace: &str) -> Vec<Value> {
    aggregate(&mut router.client(), namespace, &json!([{"$sort": {"_id": 1}}])).expect("all documents")
}

/// Collections on three nodes: `source`, which `writer` and `reader` may read, `secret`, which they may not, and the targets `target`
/// and `out`. Of the source's documents the target has those below 100, which are on `local`, and from 100, on `shard0`.
fn cluster() -> Cluster {
    let cluster = Cluster::spread("test.source");
    let router = &cluster.router;
    for namespace in [TARGET, "test.secret"] {
        router.psql(&format!("SELECT docshard.shard_collection('{namespace}', '{{\"k\": 1}}')"));
        router.psql(&format!("SELECT docshard.split_at('{namespace}', '{{\"k\": 100}}')"));
        router.psql(&format!("SELECT docshard.move_chunk('{namespace}', '{{\"k\": 100}}', 'shard0')"));
    }
    router.psql("SELECT docshard.create_collection('test.out')");
    for (view, on) in [("seen", "source"), ("unseen", "secret")] {
        router.psql(&format!("SELECT docshard.create_collection('test.{view}', '{{\"viewOn\": \"{on}\"}}')"));
    }
    insert(router, "test.source", (0..3).chain(100..103).chain(200..203), &json!({"new": 1}));
    insert(router, "test.secret", 0..3, &json!({}));
    insert(router, TARGET, (0..2).chain(100..102), &json!({"old": 1}));
    insert(router, "test.out", 0..2, &json!({"old": 1}));
    cluster
}

#[test]
fn pipelines_that_write_need_the_callers_rights() {
    let cluster = cluster();
    let router = &cluster.router;
    let targets = json!([TARGET, "test.out"]);
    let roles = [
        ("writer", json!({"read": "test.source", "write": targets})),
        ("reader", json!({"read": ["test.source", TARGET, "test.out"]})),
        ("blind", json!({"write": targets})),
    ];
    for (role, grants) in &roles {
        create_role(&cluster, role, grants);
    }
    let merge = |stages: &[Value]| Value::from([stages, &[json!({"$merge": "target"})]].concat());
    let lookup = json!({"$lookup": {"from": "secret", "pipeline": [], "as": "x"}});
    let refused = "42501 13";
    // The namespace and the pipeline, and what writer, reader and blind get.
    let cases = [
        ("test.source", merge(&[]), ["ok", refused, refused]),
        ("test.seen", merge(&[]), ["ok", refused, refused]),
        ("test.source", json!([{"$out": "out"}]), ["ok", refused, refused]),
        ("test.seen", json!([{"$out": "out"}]), ["ok", refused, refused]),
        ("test.secret", merge(&[]), [refused; 3]),
        ("test.unseen", merge(&[]), [refused; 3]),
        ("test.unseen", json!([{"$out": "out"}]), [refused; 3]),
        ("test.source", merge(std::slice::from_ref(&lookup)), [refused; 3]),
        ("test.source", merge(&[json!({"$unionWith": "unseen"})]), [refused; 3]),
        // What is refused is refused before anything is read: no document comes as far as this stage.
        ("test.source", merge(&[json!({"$match": {"k": -1}}), lookup]), [refused; 3]),
        ("test.source", json!([{"$match": {"k": -1}}, {"$merge": "secret"}]), [refused; 3]),
        ("test.source", json!([{"$match": {"k": -1}}, {"$out": "secret"}]), [refused; 3]),
        // Only administrators create collections.
        ("test.source", json!([{"$merge": "other"}]), [refused; 3]),
        ("test.source", json!([{"$out": "other"}]), [refused; 3]),
        ("test.source", json!([{"$out": "seen"}]), ["42809 166"; 3]),
        ("test.target", json!([{"$match": {"k": -1}}, {"$merge": "out"}]), ["ok", refused, "ok"]),
    ];
    let before = (all(router, TARGET), all(router, "test.out"));
    for (namespace, pipeline, expected) in &cases {
        for ((role, _), expected) in roles.iter().zip(expected) {
            let mut client = router.try_client_as(role, "postgres").expect("a session");
            client.batch_execute("BEGIN").unwrap();
            let found = outcome(&mut client, namespace, pipeline);
            assert_eq!(found, *expected, "{role}: {namespace} {pipeline}");
            client.batch_execute("ROLLBACK").unwrap();
        }
    }
    assert_eq!((all(router, TARGET), all(router, "test.out")), before);
    assert_eq!(router.value::<i64>("SELECT count(*) FROM docshard.collections WHERE namespace = 'test.other'"), 0);
}

/// An administrator can take single privileges on the tables away. Then a pipeline can do what the others allow, or nothing.
#[test]
fn single_privileges_of_the_target_are_enough_or_nothing_is_done() {
    let cluster = cluster();
    let router = &cluster.router;
    let grants = json!({"read": "test.source", "write": [TARGET, "test.out"]});
    create_role(&cluster, "inserter", &grants);
    create_role(&cluster, "updater", &grants);
    let tables: Vec<String> = [TARGET, "test.out"]
        .iter()
        .map(|ns| router.value(&format!("SELECT \"table\"::text FROM docshard.collections WHERE namespace = '{ns}'")))
        .collect();
    for node in std::iter::once(router).chain(&cluster.shards[..1]) {
        for table in &tables {
            let exists = format!("SELECT to_regclass('{table}') IS NOT NULL");
            if node.value(&exists) {
                node.psql(&format!("REVOKE UPDATE, DELETE ON {table} FROM inserter"));
                node.psql(&format!("REVOKE INSERT, DELETE ON {table} FROM updater"));
            }
        }
    }
    let merge = |filter: Value, matched: &str, otherwise: &str| json!([{"$match": filter}, {"$merge": {"into": "target", "whenMatched": matched, "whenNotMatched": otherwise}}]);
    let (old, new) = (json!({"_id": {"$in": [0, 1, 100, 101]}}), json!({"_id": {"$in": [2, 102, 201]}}));
    // What inserter and updater get, and how many documents have changed or are new.
    let cases = [
        (merge(new.clone(), "merge", "insert"), [("ok", 3), ("42501 -", 0)]),
        (merge(json!({}), "merge", "insert"), [("42501 -", 0), ("42501 -", 0)]),
        (merge(json!({}), "fail", "insert"), [("23505 11000", 0), ("42501 -", 0)]),
        (merge(new.clone(), "fail", "insert"), [("ok", 3), ("42501 -", 0)]),
        (merge(old.clone(), "merge", "discard"), [("42501 -", 0), ("ok", 4)]),
        (merge(old, "replace", "fail"), [("42501 -", 0), ("ok", 4)]),
        (merge(json!({}), "replace", "discard"), [("42501 -", 0), ("ok", 4)]),
        (json!([{"$out": "out"}]), [("42501 -", 0), ("42501 -", 0)]),
    ];
    for (pipeline, expected) in &cases {
        for (role, (expected, written)) in ["inserter", "updater"].iter().zip(expected) {
            let before = all(router, "test.out");
            let mut client = router.try_client_as(role, "postgres").expect("a session");
            client.batch_execute("BEGIN; SAVEPOINT s").unwrap();
            let found = outcome(&mut client, "test.source", pipeline);
            assert_eq!(found, *expected, "{role}: {pipeline}");
            if found != "ok" {
                client.batch_execute("ROLLBACK TO s").unwrap();
            }
            let changed = aggregate(&mut client, TARGET, &json!([{"$match": {"new": 1}}])).unwrap();
            assert_eq!(changed.len(), *written, "{role}: {pipeline}");
            client.batch_execute("ROLLBACK").unwrap();
            assert_eq!(all(router, "test.out"), before);
        }
    }
}

/// `$$USER_ROLES` has the caller's roles also where a shard evaluates it, which is not the caller's session.
#[test]
fn the_roles_are_those_of_the_caller_on_all_shards() {
    let cluster = cluster();
    let router = &cluster.router;
    router.psql("CREATE ROLE staff");
    create_role(&cluster, "clerk", &json!({"read": "test.source"}));
    router.psql("GRANT staff TO clerk");
    let mut client = router.try_client_as("clerk", "postgres").expect("a session");
    let roles = json!([{"_id": "admin.clerk", "role": "clerk", "db": "admin"}, {"_id": "admin.staff", "role": "staff", "db": "admin"}]);
    let project = json!([{"$project": {"_id": 0, "roles": "$$USER_ROLES"}}]);
    let found = aggregate(&mut client, "test.source", &project).unwrap();
    assert_eq!(found, vec![json!({"roles": roles}); 9]);
    // A group runs at the shards, and so does a filter.
    let grouped = json!([
        {"$match": {"$expr": {"$in": ["staff", "$$USER_ROLES.role"]}}},
        {"$group": {"_id": "$$USER_ROLES.role", "n": {"$sum": 1}}}
    ]);
    let found = aggregate(&mut client, "test.source", &grouped).unwrap();
    assert_eq!(found, [json!({"_id": ["clerk", "staff"], "n": 9})]);
    // The next statement has the roles of that time.
    router.psql("REVOKE staff FROM clerk");
    assert!(aggregate(&mut client, "test.source", &grouped).unwrap().is_empty());
}
