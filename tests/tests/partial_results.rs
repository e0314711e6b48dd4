//! `allowPartialResults`: when shards are down, a find returns the documents of the other shards, and reports that.

use docshard_tests::Cluster;
use postgres::Client;
use serde_json::Value;

const NS: &str = "test.c";
const PARTIAL: &str = "partial results: shard \"shard0\", \"shard1\" cannot be reached";

/// A cluster with documents of the given size and `k` from 0 to 299; each of `local`, `shard0` and `shard1` has 100.
fn filled(bytes: usize) -> Cluster {
    let cluster = Cluster::spread(NS);
    cluster.router.psql(&format!(
        "SELECT docshard.insert_many('{NS}', array_agg(jsonb_build_object('_id', n, 'k', n, 'v', n % 7, 'pad', repeat('x', {bytes})))) \
         FROM generate_series(0, 299) n"
    ));
    cluster.router.psql(&format!("SELECT docshard.create_index('{NS}', '{{\"v\": 1}}')"));
    cluster
}

fn command(client: &mut Client, command: &str) -> Value {
    client
        .query_one("SELECT docshard.run_command('test', $1::text::json)::text", &[&command])
        .expect(command)
        .get::<_, String>(0)
        .parse()
        .expect("JSON")
}

/// The number of documents in an answer's batch, and its field `partialResultsReturned`.
fn batch(answer: &Value) -> (usize, Option<bool>) {
    let cursor = &answer["cursor"];
    let documents = cursor["firstBatch"].as_array().or(cursor["nextBatch"].as_array());
    (documents.unwrap_or_else(|| panic!("{answer}")).len(), cursor["partialResultsReturned"].as_bool())
}

#[test]
fn a_find_goes_without_the_shards_that_are_down() {
    let mut cluster = filled(100);
    let find = |options: &str| format!("SELECT count(*) FROM (SELECT docshard.find('{NS}', '{{}}', '{options}')) AS f");
    let script = |cluster: &Cluster, sql: &str| cluster.router.psql_script("postgres", &["-A", "-t"], sql);
    let all = r#"{"allowPartialResults": true}"#;
    assert_eq!(script(&cluster, &find(all)).trim(), "300");
    // A session with connections to all shards, and a new one.
    let mut old = cluster.router.client();
    let whole = r#"{"find": "c", "batchSize": 1000, "allowPartialResults": true}"#;
    assert_eq!(batch(&command(&mut old, whole)), (300, None));
    for shard in &mut cluster.shards {
        shard.stop();
    }
    for answer in [command(&mut old, whole), command(&mut cluster.router.client(), whole)] {
        assert_eq!(batch(&answer), (100, Some(true)));
    }
    // Each access path: a sort, a limit, an index range, one key.
    for (options, found) in [
        (all.to_owned(), 100),
        (r#"{"allowPartialResults": true, "sort": {"k": -1}}"#.to_owned(), 100),
        (r#"{"allowPartialResults": true, "sort": {"pad": 1}, "skip": 90}"#.to_owned(), 10),
        (r#"{"allowPartialResults": true, "hint": "v_1", "limit": 20}"#.to_owned(), 20),
    ] {
        let printed = script(&cluster, &find(&options));
        assert!(printed.contains("DETAIL") && printed.contains("connection"), "{printed}");
        assert!(printed.contains(PARTIAL) && printed.trim().ends_with(&found.to_string()), "{options}: {printed}");
        assert_eq!(printed.matches("WARNING").count(), 1, "{options}: {printed}");
    }
    let one = script(&cluster, &format!("SELECT docshard.find_one('{NS}', '{{\"k\": 150, \"_id\": 150}}', '{all}')"));
    assert!(one.contains("shard \"shard0\" cannot be reached"), "{one}");
    let range = script(
        &cluster,
        &format!(
            "SELECT docshard.find('{NS}', '{{\"v\": 3}}', '{{\"allowPartialResults\": true, \"limit\": 100}}') -> 'k'"
        ),
    );
    assert!(
        range.contains(PARTIAL) && range.lines().filter(|line| line.parse::<i64>().is_ok()).count() == 14,
        "{range}"
    );
    // A find that needs no shard that is down is complete.
    let here = r#"{"find": "c", "filter": {"k": 5}, "allowPartialResults": true}"#;
    assert_eq!(batch(&command(&mut old, here)), (1, None));
    // The transaction continues, and may write on shards that are up.
    let insert = format!("SELECT docshard.insert_one('{NS}', '{{\"_id\": -1, \"k\": -1}}') -> 'insertedId'");
    let printed = script(&cluster, &format!("BEGIN; {}; {insert}; {}; COMMIT; {}", find(all), find(all), find(all)));
    let numbers: Vec<&str> = printed.lines().filter(|line| line.parse::<i64>().is_ok()).collect();
    assert_eq!(numbers, ["100", "-1", "101", "101"], "{printed}");
    // Without the option, and for commands that do not have it, the shard's failure is an error.
    for sql in [
        find("{}"),
        find(r#"{"allowPartialResults": false}"#),
        format!("SELECT docshard.count_documents('{NS}', '{{\"v\": 3}}')"),
    ] {
        let error = cluster.router.client().batch_execute(&sql).expect_err(&sql);
        assert!(error.code().is_some_and(|code| code.code().starts_with("08")), "{sql}: {error:?}");
    }
    let refused = command(&mut old, r#"{"count": "c", "allowPartialResults": true}"#);
    assert_eq!(refused["code"], 40415, "{refused}");
    // The shards start again.
    for shard in &mut cluster.shards {
        shard.start();
    }
    assert_eq!(batch(&command(&mut old, whole)), (301, None));
}

#[test]
fn a_cursor_says_that_a_shard_was_lost_under_way() {
    // More than socket buffers hold.
    let mut cluster = filled(200_000);
    let mut client = cluster.router.client();
    client.batch_execute("BEGIN").expect("a transaction");
    let find = r#"{"find": "c", "sort": {"k": 1}, "batchSize": 2, "allowPartialResults": true}"#;
    let first = command(&mut client, find);
    assert_eq!(batch(&first), (2, None));
    let id = first["cursor"]["id"].as_i64().expect("a cursor");
    cluster.shards[1].stop();
    let more = format!(r#"{{"getMore": {id}, "collection": "c", "batchSize": 50}}"#);
    // The documents that shard1 had sent are returned; the batch in which they end is partial.
    let (mut documents, mut last) = (2, None);
    loop {
        let answer = command(&mut client, &more);
        let (found, partial) = batch(&answer);
        documents += found;
        assert!(partial.is_some() || documents <= 300 && last.is_none(), "{documents}: {partial:?} after {last:?}");
        last = partial;
        if answer["cursor"]["id"] == 0 {
            break;
        }
    }
    assert!((200..300).contains(&documents) && last == Some(true), "{documents} {last:?}");
    client.batch_execute("COMMIT").expect("a commit");

    // Outside a transaction the commit reads the remaining documents.
    let first = command(&mut client, find);
    assert_eq!(batch(&first), (2, Some(true)));
    let id = first["cursor"]["id"].as_i64().expect("a cursor");
    let rest = command(&mut client, &format!(r#"{{"getMore": {id}, "collection": "c", "batchSize": 5}}"#));
    assert_eq!(batch(&rest), (5, Some(true)));
    // Another find that is complete does not report partial results.
    let whole = command(
        &mut client,
        r#"{"find": "c", "filter": {"k": {"$lt": 100}}, "batchSize": 2, "allowPartialResults": true}"#,
    );
    assert_eq!(batch(&whole), (2, None));
}
