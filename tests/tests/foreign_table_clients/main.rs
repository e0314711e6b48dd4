//! Foreign tables by clients as users have them: drivers that prepare statements at the server, ORMs that read the catalog, psql and
//! pg_dump. Each program of this folder checks the answers itself.

use docshard_tests::{Cluster, Node, python};

/// A foreign table `shop.inbox`, whose collection is empty and on two shards.
fn cluster() -> Cluster {
    let cluster = Cluster::start(2);
    let router = &cluster.router;
    for sql in [
        "SELECT docshard.stop_balancer()",
        "SELECT docshard.shard_collection('shop.inbox', '{\"recipient\": 1, \"sent\": 1}')",
        "SELECT docshard.split_at('shop.inbox', '{\"recipient\": \"user2\", \"sent\": {\"$minKey\": 1}}')",
        "SELECT docshard.move_chunk('shop.inbox', '{\"recipient\": \"user2\", \"sent\": {\"$minKey\": 1}}', 'shard1')",
        "SELECT docshard.move_chunk('shop.inbox', '{\"recipient\": \"user1\", \"sent\": {\"$minKey\": 1}}', 'shard0')",
        "CREATE SCHEMA shop",
        "CREATE FOREIGN TABLE shop.inbox (_id bigint NOT NULL, recipient text NOT NULL, sent timestamptz NOT NULL, likes bigint, price numeric,
           tags text[], token uuid, doc jsonb OPTIONS (path '') NOT NULL) SERVER docshard OPTIONS (namespace 'shop.inbox')",
        "COMMENT ON FOREIGN TABLE shop.inbox IS 'messages'",
    ] {
        router.psql(sql);
    }
    cluster
}

/// Runs a program of this folder.
fn run(program: &str, router: &Node) {
    let url = format!("postgresql://postgres@127.0.0.1:{}/postgres", router.port);
    let printed = python(&format!("foreign_table_clients/{program}"), &[&url]);
    assert!(printed.contains("done"), "{printed}");
}

/// The programs use the rows that the first one leaves.
#[test]
fn drivers_and_orms_use_a_foreign_table() {
    let cluster = cluster();
    for program in ["drivers.py", "sqlalchemy_reflects.py", "django_inspects.py"] {
        run(program, &cluster.router);
    }
}

#[test]
fn psql_and_pg_dump_use_a_foreign_table() {
    let cluster = cluster();
    let router = &cluster.router;
    let file = router.scratch_file("rows");
    let file = file.to_str().unwrap();
    let script = |script: &str| router.psql_script("postgres", &[], script);
    router.psql(
        "INSERT INTO shop.inbox (_id, recipient, sent, likes, tags) SELECT n, 'user' || n % 4, timestamptz '2026-01-01 00:00Z' + n * interval '1 hour',
           nullif(n % 5, 4), ARRAY['a, \"b\"', NULL, n::text] FROM generate_series(0, 99) n",
    );

    let described = script("\\d+ shop.inbox\n\\det+ shop.*\n\\dE shop.*\n\\dp shop.*\n");
    for part in [
        "Foreign table \"shop.inbox\"",
        "not null |",
        "(path '')",
        "(namespace 'shop.inbox')",
        "foreign table",
        "messages",
    ] {
        assert!(described.contains(part), "{part}: {described}");
    }

    // What \copy writes it reads again, in every format.
    let digest = "SELECT md5(string_agg(t::text, E'\\n' ORDER BY _id)) FROM shop.inbox t";
    let before: String = router.value(digest);
    for format in ["text", "csv", "binary"] {
        let copied = script(&format!(
            "\\copy (SELECT _id, recipient, sent, likes, tags FROM shop.inbox) TO '{file}' (FORMAT {format})\nTRUNCATE shop.inbox;\n\
             \\copy shop.inbox (_id, recipient, sent, likes, tags) FROM '{file}' (FORMAT {format})\n"
        ));
        assert_eq!(copied, "", "{format}");
        assert_eq!(router.value::<String>(digest), before, "{format}");
    }
    // An error in the middle leaves nothing, and names the line.
    let refused = script(&format!(
        "\\copy (SELECT _id + 1000, recipient, sent FROM shop.inbox ORDER BY 1) TO '{file}'\n\\! echo '1000000\tx\tno date' >>{file}\n\
         \\copy shop.inbox (_id, recipient, sent) FROM '{file}'\n"
    ));
    assert!(
        refused.contains("invalid input syntax") && refused.contains("COPY inbox, line 101, column sent"),
        "{refused}"
    );
    assert_eq!(router.value::<String>(digest), before);
    // psql reads in parts through a cursor.
    let fetched = script(
        "\\set FETCH_COUNT 7\n\\t on\n\\a\nSELECT _id FROM shop.inbox WHERE recipient = 'user1' ORDER BY sent LIMIT 20;\n",
    );
    assert_eq!(fetched.lines().count(), 20, "{fetched}");

    // The definitions survive pg_dump: of the table, and of what is made over it.
    router.psql("CREATE ROLE reader; GRANT USAGE ON SCHEMA shop TO reader; GRANT SELECT ON shop.inbox TO reader");
    router.psql("SELECT docshard.grant_access('reader', '{\"read\": \"shop.inbox\"}')");
    router.psql(
        "CREATE VIEW shop.liked WITH (security_barrier) AS SELECT * FROM shop.inbox WHERE likes > 2; \
         CREATE MATERIALIZED VIEW shop.counted AS SELECT recipient, count(*) FROM shop.inbox GROUP BY 1; \
         CREATE FUNCTION shop.note() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.likes := coalesce(NEW.likes, 0); RETURN NEW; END'; \
         CREATE TRIGGER note BEFORE INSERT ON shop.inbox FOR EACH ROW EXECUTE FUNCTION shop.note(); \
         ALTER FOREIGN TABLE shop.inbox ALTER price SET DEFAULT 1.5; \
         CREATE TABLE shop.parts (_id int NOT NULL, recipient text) PARTITION BY LIST (recipient); \
         CREATE FOREIGN TABLE shop.part PARTITION OF shop.parts FOR VALUES IN ('x') SERVER docshard OPTIONS (namespace 'shop.part', on_mismatch 'null')",
    );
    let dump = |what: &str| router.program("pg_dump", &[what, "--schema=shop"]);
    let first = dump("--schema-only");
    router.psql("DROP SCHEMA shop CASCADE");
    let restored = script(&first);
    assert!(!restored.contains("ERROR"), "{restored}");
    router.psql("REFRESH MATERIALIZED VIEW shop.counted");
    assert_eq!(router.value::<String>(digest), before);
    assert_eq!(router.value::<i64>("SELECT count(*) FROM shop.liked"), 20);
    router.psql("INSERT INTO shop.inbox (_id, recipient, sent) VALUES (5000, 'user9', now())");
    assert_eq!(router.psql("SET ROLE reader; SELECT likes, price FROM shop.inbox WHERE _id = 5000"), "0|1.5\n");
    // Nothing of what a dump says depends on the first one.
    let without_comments = |dump: &str| {
        let lines = dump.lines().filter(|line| !line.starts_with("--") && !line.starts_with('\\'));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(without_comments(&dump("--schema-only")), without_comments(&first));
    // The rows are no part of a dump unless it is asked for them.
    assert!(!dump("--data-only").contains("user1"));
    assert!(
        router.program("pg_dump", &["--include-foreign-data=docshard", "--table=shop.inbox"]).contains("\tuser1\t")
    );
}
