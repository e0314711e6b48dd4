//! The staging objects of a move on the recipient.

use docshard_tests::Fault;
use docshard_tests::moving::Moving;

/// The administrator has granted all privileges on future tables to every role.
#[test]
fn i23_nobody_reaches_the_staging_tables_of_a_move() {
    let moving = Moving::start(200);
    let router = &moving.cluster.router;
    for shard in &moving.cluster.shards {
        shard.psql("CREATE ROLE stranger");
        shard.psql("ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO PUBLIC");
        shard.psql("ALTER DEFAULT PRIVILEGES IN SCHEMA docshard_data GRANT ALL ON TABLES TO stranger");
    }
    let to = moving.other();
    router.arm("move.staged", Fault::Pause);
    let mover = moving.start_move(&to);
    router.await_fault("move.staged");
    let shard = moving.shard(&to);
    let made: i64 = shard.value("SELECT count(*) FROM pg_class WHERE relname ~ '^m[0-9]+_' AND relkind IN ('r', 'f')");
    assert_eq!(made, 4, "three foreign tables and the staging table");
    let open: String = shard.value(
        "SELECT coalesce(string_agg(relname || ': ' || relacl::text, ', '), '') FROM pg_class \
         WHERE relname ~ '^m[0-9]+_' AND relkind IN ('r', 'f') \
           AND has_table_privilege('stranger', oid, 'SELECT, INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER')",
    );
    assert_eq!(open, "");
    router.release("move.staged");
    mover.join().expect("the mover lives").expect("a move");
    moving.check();
}
