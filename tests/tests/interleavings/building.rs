//! The builder of an index crashes or fails at every step.

use docshard_tests::moving::{Moving, NS};
use docshard_tests::{Fault, wait_until};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

fn relations(moving: &Moving) -> i64 {
    let sql =
        "SELECT count(*) FROM pg_class WHERE relnamespace = 'docshard_data'::regnamespace AND relname ~ '^i[0-9]'";
    moving.cluster.shards.iter().map(|shard| shard.value::<i64>(sql)).sum()
}

#[test]
fn i15_a_builder_that_fails_or_dies_at_any_step_leaves_an_index_everywhere_or_nowhere() {
    let moving = Moving::start(200);
    let router = &moving.cluster.router;
    let create = format!("SELECT docshard.create_index('{NS}', '{{\"n\": 1}}')");
    for point in ["index.registered", "index.building", "index.built", "index.failed"] {
        for fault in [Fault::Error, Fault::Kill] {
            router.arm(point, fault);
            if point == "index.failed" {
                router.arm("index.building", Fault::Error);
            }
            moving.spawn(create.clone()).join().unwrap().expect_err(point);
            wait_until("the router is back", PATIENCE, || router.try_client().is_ok());
            let builds = "SELECT count(*) FROM docshard_catalog.index_builds";
            wait_until(&format!("nothing is left: {fault:?} at {point}"), PATIENCE, || {
                router.value::<i64>(builds) == 0 && relations(&moving) == 0
            });
            router.clear_faults();
            // Chunks can still be moved, and the index can be created.
            moving.move_to(&moving.other()).expect("a move");
            moving.run(&create);
            assert_eq!(relations(&moving), 4, "{fault:?} at {point}");
            moving.run(&format!("SELECT docshard.drop_index('{NS}', 'n_1')"));
        }
    }
    moving.check();
}

#[test]
fn i15_a_build_and_a_move_exclude_each_other() {
    let moving = Moving::start(200);
    let router = &moving.cluster.router;
    for point in ["index.registered", "index.building", "index.built"] {
        router.arm(point, Fault::Pause);
        let builder = moving.spawn(format!("SELECT docshard.create_index('{NS}', '{{\"n\": -1}}')"));
        router.await_fault(point);
        let error = moving.move_to(&moving.other()).expect_err("a build is under way");
        let detail = error.as_db_error().and_then(|e| e.detail()).unwrap_or_default().to_owned();
        assert!(detail.contains("117"), "{point}: {error:?}");
        router.release(point);
        builder.join().unwrap().expect("an index");
        moving.move_to(&moving.other()).expect("a move");
        moving.run(&format!("SELECT docshard.drop_index('{NS}', 'n_-1')"));
    }
    moving.check();
}
