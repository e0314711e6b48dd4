//! Temporary files that cannot be written, as `temp_file_limit` is reached. The statement fails, and nothing else: no session ends, no
//! rows are missing, no file is left.

use docshard_tests::Cluster;
use postgres::Client;

const NS: &str = "test.large";
const DOCUMENTS: i64 = 6_000;

/// A collection of 6 MB on three nodes.
fn cluster() -> Cluster {
    let cluster = Cluster::spread(NS);
    let sql = format!(
        "SELECT docshard.insert_many('{NS}', array_agg(jsonb_build_object('_id', n, 'k', n % 300, 'text', repeat(md5(n::text), 30)))) \
         FROM generate_series(0, {DOCUMENTS} - 1) n"
    );
    cluster.router.client().batch_execute(&sql).unwrap_or_else(|e| panic!("{e:?}"));
    cluster
}

fn rows(client: &mut Client, sql: &str) -> Result<usize, String> {
    client.query(sql, &[]).map(|rows| rows.len()).map_err(|error| match error.as_db_error() {
        Some(error) => error.code().code().to_owned(),
        None => format!("{error:?}"),
    })
}

/// Nothing is left, and the session can use temporary files and shards.
fn check(cluster: &Cluster, client: &mut Client, what: &str) {
    let files: i64 = cluster.router.value("SELECT count(*) FROM pg_ls_tmpdir()");
    assert_eq!(files, 0, "{what}: files are left");
    let sorted = "SELECT n, repeat('x', 100) FROM generate_series(1, 4000) n ORDER BY n DESC";
    assert_eq!(rows(client, sorted), Ok(4_000), "{what}");
    assert_eq!(rows(client, &format!("SELECT docshard.find('{NS}')")), Ok(DOCUMENTS as usize), "{what}");
}

/// Another statement needs the connections of a cursor, so the rest of its rows must be kept.
#[test]
fn the_rows_of_a_cursor() {
    let cluster = cluster();
    let mut client = cluster.router.client();
    client.batch_execute("SET work_mem = '64kB'; SET temp_file_limit = '1MB'").unwrap();
    let find_another = format!("SELECT docshard.find_one('{NS}', '{{\"_id\": 7}}')");
    for (what, savepoint, after) in
        [("in the transaction", "", "ROLLBACK"), ("in a subtransaction", "SAVEPOINT s", "ROLLBACK TO s")]
    {
        client.batch_execute(&format!("BEGIN; DECLARE c CURSOR FOR SELECT docshard.find('{NS}')")).unwrap();
        assert_eq!(rows(&mut client, "FETCH 10 FROM c"), Ok(10), "{what}");
        client.batch_execute(savepoint).unwrap();
        assert_eq!(rows(&mut client, &find_another), Err("53400".to_owned()), "{what}");
        client.batch_execute(after).unwrap();
        if !savepoint.is_empty() {
            // The rows that could not be kept are lost.
            let mut found = Ok(50);
            while found == Ok(50) {
                found = rows(&mut client, "FETCH 50 FROM c");
            }
            assert_eq!(found, Err("57014".to_owned()), "{what}");
            client.batch_execute("ROLLBACK").unwrap();
        }
        check(&cluster, &mut client, what);
    }
}

/// Stages that keep documents at the router.
#[test]
fn the_documents_of_stages() {
    let cluster = cluster();
    let mut client = cluster.router.client();
    client.batch_execute("SET work_mem = '64kB'; SET temp_file_limit = '1MB'").unwrap();
    let other = r#"{"$lookup": {"from": "large", "pipeline": [{"$skip": 1}], "as": "all"}}, {"$unwind": "$all"}"#;
    for stages in [
        r#"{"$sort": {"text": 1}}"#,
        r#"{"$sort": {"text": 1}}, {"$limit": 5000}"#,
        r#"{"$sample": {"size": 5000}}"#,
        r#"{"$group": {"_id": "$text", "text": {"$max": "$text"}}}"#,
        r#"{"$bucketAuto": {"groupBy": "$text", "buckets": 3}}"#,
        r#"{"$facet": {"n": [{"$count": "n"}]}}"#,
        r#"{"$setWindowFields": {"partitionBy": "$text", "output": {"n": {"$sum": 1}}}}"#,
        r#"{"$setWindowFields": {"output": {"n": {"$sum": 1}}}}"#,
        other,
        r#"{"$out": "out"}"#,
    ] {
        let sql = format!(r#"SELECT docshard.aggregate('{NS}', '[{{"$skip": 1}}, {stages}]')"#);
        assert_eq!(rows(&mut client, &sql), Err("53400".to_owned()), "{stages}");
        client.batch_execute("BEGIN; SAVEPOINT s").unwrap();
        assert_eq!(rows(&mut client, &sql), Err("53400".to_owned()), "{stages} in a transaction");
        client.batch_execute("ROLLBACK TO s").unwrap();
        check(&cluster, &mut client, stages);
        client.batch_execute("COMMIT").unwrap();
    }
}
