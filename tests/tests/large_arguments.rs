//! Arguments of 100,000 branches, fields or elements: `statement_timeout` and a cancel end their parsing, planning and execution, at the
//! router and at the shards. `core/tests/interruptible.rs` tests more kinds of arguments, without servers.

use docshard_tests::{Cluster, Node};
use postgres::Client;
use std::thread;
use std::time::{Duration, Instant};

const NS: &str = "test.large";
const COUNT: usize = 100_000;
/// A loaded machine ends a cancelled statement in this time. Planning in quadratic time takes minutes.
const PATIENCE: Duration = Duration::from_secs(20);

fn nodes(cluster: &Cluster) -> impl Iterator<Item = &Node> {
    cluster.shards.iter().chain([&cluster.router])
}

fn cluster() -> Cluster {
    let cluster = Cluster::spread(NS);
    let insert = format!(
        "SELECT docshard.insert_many('{NS}', array_agg(jsonb_build_object('_id', n, 'k', n * 3, 'i', n, 'a', jsonb_build_array(n)))) \
         FROM generate_series(1, 100) n"
    );
    cluster.router.psql(&insert);
    cluster.router.psql(&format!("SELECT docshard.create_index('{NS}', '{{\"i\": 1, \"a\": 1}}')"));
    cluster
}

/// A JSON array.
fn list(count: usize, element: impl Fn(usize) -> String) -> String {
    format!("[{}]", (0..count).map(element).collect::<Vec<_>>().join(","))
}

/// A JSON object of fields `f0`, `f1`, ….
fn fields(count: usize, value: impl Fn(usize) -> String) -> String {
    format!("{{{}}}", (0..count).map(|n| format!("\"f{n}\":{}", value(n))).collect::<Vec<_>>().join(","))
}

fn filters() -> Vec<(&'static str, String)> {
    vec![
        ("$or of the shard key", format!("{{\"$or\":{}}}", list(2 * COUNT, |n| format!("{{\"k\":{n}}}")))),
        ("$or of _id", format!("{{\"$or\":{}}}", list(2 * COUNT, |n| format!("{{\"_id\":{n}}}")))),
        (
            "$or of ranges",
            format!(
                "{{\"$or\":{}}}",
                list(COUNT, |n| format!("{{\"k\":{{\"$gt\":{},\"$lt\":{}}}}}", 2 * n, 2 * n + 1))
            ),
        ),
        (
            "$or of indexed fields",
            format!("{{\"$or\":{}}}", list(COUNT, |n| format!("{{\"{}\":{n}}}", ["i", "_id"][n % 2]))),
        ),
        ("$or of many fields", format!("{{\"$or\":{}}}", list(COUNT, |n| format!("{{\"f{n}\":{n}}}")))),
        ("$and", format!("{{\"$and\":{}}}", list(COUNT, |n| format!("{{\"_id\":{{\"$ne\":{n}}}}}")))),
        (
            "$and of $or",
            format!("{{\"$and\":{}}}", list(COUNT, |n| format!("{{\"$or\":[{{\"i\":{n}}},{{\"a\":{n}}}]}}"))),
        ),
        (
            "$and of $elemMatch",
            format!("{{\"$and\":{}}}", list(COUNT, |n| format!("{{\"a\":{{\"$elemMatch\":{{\"b\":{n}}}}}}}"))),
        ),
        ("$nor", format!("{{\"$nor\":{}}}", list(COUNT, |n| format!("{{\"_id\":{n}}}")))),
        ("$in of the shard key", format!("{{\"k\":{{\"$in\":{}}}}}", list(10 * COUNT, |n| n.to_string()))),
        ("$in of an indexed field", format!("{{\"i\":{{\"$in\":{}}}}}", list(10 * COUNT, |n| n.to_string()))),
        ("$nin", format!("{{\"k\":{{\"$nin\":{}}}}}", list(COUNT, |n| n.to_string()))),
        ("$all", format!("{{\"a\":{{\"$all\":{}}}}}", list(COUNT, |n| n.to_string()))),
        ("fields", fields(COUNT, |n| n.to_string())),
        (
            "$jsonSchema",
            format!("{{\"$jsonSchema\":{{\"properties\":{}}}}}", fields(COUNT, |_| "{\"bsonType\":\"int\"}".into())),
        ),
        (
            "$switch",
            format!(
                "{{\"$expr\":{{\"$switch\":{{\"branches\":{},\"default\":false}}}}}}",
                list(COUNT, |n| format!("{{\"case\":{{\"$eq\":[\"$k\",{}]}},\"then\":true}}", n + 1000))
            ),
        ),
        (
            "$cond",
            format!(
                "{{\"$expr\":{{\"$and\":{}}}}}",
                list(COUNT, |n| format!("{{\"$cond\":[{{\"$eq\":[\"$k\",{}]}},false,true]}}", n + 1000))
            ),
        ),
    ]
}

fn pipelines() -> Vec<(&'static str, String)> {
    let sums = || fields(COUNT, |_| "{\"$sum\":\"$k\"}".into());
    vec![
        ("$group", format!("[{{\"$group\":{}}}]", sums().replacen('{', "{\"_id\":\"$k\",", 1))),
        ("$facet", format!("[{{\"$facet\":{}}}]", fields(COUNT, |_| "[{\"$limit\":1}]".into()))),
        (
            "$bucket",
            format!("[{{\"$bucket\":{{\"groupBy\":\"$k\",\"boundaries\":{}}}}}]", list(COUNT, |n| n.to_string())),
        ),
        (
            "$documents",
            format!("[{{\"$documents\":{}}},{{\"$sort\":{{\"a\":1}}}}]", list(COUNT, |n| format!("{{\"a\":{n}}}"))),
        ),
        (
            "$unionWith",
            format!(
                "[{{\"$unionWith\":{{\"coll\":\"large\",\"pipeline\":[{{\"$match\":{{\"$or\":{}}}}}]}}}}]",
                list(COUNT, |n| format!("{{\"_id\":{n}}}"))
            ),
        ),
        (
            "$lookup",
            format!(
                "[{{\"$lookup\":{{\"from\":\"large\",\"as\":\"x\",\"let\":{},\"pipeline\":[{{\"$match\":{{\"$expr\":{{\"$and\":{}}}}}}}]}}}}]",
                fields(COUNT, |_| "\"$k\"".into()),
                list(COUNT, |n| format!("{{\"$eq\":[\"$k\",\"$$f{n}\"]}}"))
            ),
        ),
        (
            "$set and $match",
            format!(
                "[{{\"$set\":{}}},{{\"$match\":{}}}]",
                fields(COUNT, |_| "\"$k\"".into()),
                fields(COUNT, |n| n.to_string()).replace("\"f", "\"g")
            ),
        ),
        ("$project", format!("[{{\"$project\":{}}}]", fields(COUNT, |_| "\"$k\"".into()))),
        ("$setWindowFields", format!("[{{\"$setWindowFields\":{{\"partitionBy\":\"$k\",\"output\":{}}}}}]", sums())),
    ]
}

fn updates() -> Vec<(&'static str, String)> {
    let operator = |name: &str, fields: String| format!("{{\"{name}\":{fields}}}");
    vec![
        ("$set", operator("$set", fields(COUNT, |n| n.to_string()))),
        ("$unset", operator("$unset", fields(COUNT, |_| "1".into()))),
        ("$inc", operator("$inc", fields(COUNT, |_| "1".into()))),
        ("$push", operator("$push", format!("{{\"a\":{{\"$each\":{}}}}}", list(COUNT, |n| n.to_string())))),
        ("$addToSet", operator("$addToSet", format!("{{\"a\":{{\"$each\":{}}}}}", list(COUNT, |n| n.to_string())))),
        ("$pullAll", operator("$pullAll", format!("{{\"a\":{}}}", list(COUNT, |n| (n + 1000).to_string())))),
        ("$rename", operator("$rename", fields(COUNT, |n| format!("\"g{n}\"")))),
        ("a pipeline", format!("[{{\"$set\":{}}}]", fields(COUNT, |n| n.to_string()))),
    ]
}

/// Runs a statement whose `$1` is the argument. It may succeed, or end with an error for a user.
fn ends(client: &mut Client, name: &str, sql: &str, argument: &str) {
    let began = Instant::now();
    let error = client.query(sql, &[&argument]).err();
    ended(name, began, error);
}

fn ended(name: &str, began: Instant, error: Option<postgres::Error>) {
    let took = began.elapsed();
    if let Some(error) = error {
        let error = error.as_db_error().unwrap_or_else(|| panic!("{name}: {error:?}"));
        assert!(!error.code().code().starts_with("XX"), "{name}: {error:?}");
    }
    assert!(took < PATIENCE, "{name}: {took:?}");
}

/// Waits until no node runs a statement for a client.
fn quiet(cluster: &Cluster) {
    let running = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND state = 'active' AND pid <> pg_backend_pid()";
    let deadline = Instant::now() + PATIENCE;
    for node in nodes(cluster) {
        while node.value::<i64>(running) > 0 {
            assert!(Instant::now() < deadline, "a statement does not end");
            thread::sleep(Duration::from_millis(50));
        }
    }
}

#[test]
fn a_timeout_ends_statements_with_large_arguments() {
    let cluster = cluster();
    let mut client = cluster.router.client();
    client.batch_execute("SET statement_timeout = '200ms'").unwrap();
    for (name, filter) in filters() {
        for sql in [
            format!("SELECT docshard.count_documents('{NS}', $1::text::json)"),
            format!("SELECT docshard.find('{NS}', $1::text::json, '{{\"sort\": {{\"k\": 1}}, \"limit\": 3}}')"),
            format!("SELECT docshard.explain('{NS}', $1::text::json)"),
            format!("SELECT docshard.update_many('{NS}', $1::text::json, '{{\"$set\": {{\"x\": 1}}}}')"),
            format!(
                "SELECT docshard.update_one('{NS}', $1::text::json, '{{\"$set\": {{\"x\": 1}}}}', '{{\"upsert\": true}}')"
            ),
            format!("SELECT docshard.delete_one('{NS}', $1::text::json)"),
        ] {
            ends(&mut client, &format!("{name}: {sql}"), &sql, &filter);
        }
    }
    for (name, pipeline) in pipelines() {
        ends(&mut client, name, &format!("SELECT docshard.aggregate('{NS}', $1::text::json)"), &pipeline);
    }
    for (name, update) in updates() {
        ends(&mut client, name, &format!("SELECT docshard.update_many('{NS}', '{{}}', $1::text::json)"), &update);
    }
    let filters = format!("{{\"arrayFilters\":{}}}", list(COUNT, |n| format!("{{\"i{n}\":{}}}", n + 1000)));
    let by_filters = format!(
        "SELECT docshard.update_many('{NS}', '{{}}', json_build_object('$set', (SELECT json_object_agg('a.$[i' || n || ']', 1) \
         FROM generate_series(0, {COUNT} - 1) n)), $1::text::json)"
    );
    ends(&mut client, "arrayFilters", &by_filters, &filters);
    let writes = list(COUNT, |n| {
        format!("{{\"updateOne\":{{\"filter\":{{\"_id\":{n}}},\"update\":{{\"$set\":{{\"x\":1}}}}}}}}")
    });
    ends(&mut client, "bulk_write", &format!("SELECT docshard.bulk_write('{NS}', $1::text::json)"), &writes);
    let command = format!(
        "{{\"update\":\"large\",\"updates\":{}}}",
        list(COUNT, |n| format!("{{\"q\":{{\"_id\":{n}}},\"u\":{{\"$set\":{{\"x\":1}}}}}}"))
    );
    ends(&mut client, "the command update", "SELECT docshard.run_command('test', $1::text::json)", &command);
    for option in ["projection", "sort", "hint", "let", "collation", "min"] {
        let options = format!("{{\"{option}\":{}}}", fields(COUNT, |_| "1".into()));
        ends(&mut client, option, &format!("SELECT docshard.find('{NS}', '{{}}', $1::text::json)"), &options);
    }
    quiet(&cluster);
}

/// What a shard is sent may also come from a role that connects there.
#[test]
fn a_timeout_ends_functions_of_shards_with_large_arguments() {
    let cluster = cluster();
    let mut client = cluster.shards[0].client();
    client.batch_execute("SET statement_timeout = '200ms'").unwrap();
    let document = "'{\"_id\": 1, \"k\": 1, \"a\": [1, 2]}'::jsonb";
    for (name, filter) in filters() {
        ends(&mut client, name, &format!("SELECT docshard_internal.matches({document}, $1)"), &filter);
    }
    for (name, update) in updates() {
        let sql = format!("SELECT docshard_internal.apply_update({document}, '{{\"update\":' || $1 || '}}', '{{}}')");
        ends(&mut client, name, &sql, &update);
    }
    let projection = fields(COUNT, |_| "1".into());
    ends(&mut client, "a projection", &format!("SELECT docshard_internal.project({document}, $1)"), &projection);
}

#[test]
fn a_cancel_ends_a_statement_with_a_large_argument() {
    let cluster = cluster();
    for (name, filter) in filters() {
        let mut client = cluster.router.client();
        let pid: i32 = client.query_one("SELECT pg_backend_pid()", &[]).unwrap().get(0);
        let active = format!("SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = {pid} AND state = 'active')");
        // A simple query: PostgreSQL drops a cancel that comes between the messages of an extended one.
        let sql = format!("SELECT docshard.count_documents('{NS}', '{filter}')");
        thread::scope(|scope| {
            let statement = scope.spawn(|| {
                let began = Instant::now();
                ended(name, began, client.batch_execute(&sql).err());
            });
            while !statement.is_finished() && !cluster.router.value::<bool>(&active) {}
            thread::sleep(Duration::from_millis(100));
            cluster.router.value::<bool>(&format!("SELECT pg_cancel_backend({pid})"));
            statement.join().unwrap();
        });
    }
    quiet(&cluster);
}
