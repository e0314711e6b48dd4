//! The tests of MongoDB's CRUD specification, run unsharded, sharded by hash and sharded by range.
//!
//! `tests/conformance/crud_spec.txt` lists the tests that are expected to fail, with reasons. The tables are written to
//! `target/conformance-crud_spec.txt`. `CONFORMANCE=part-of-an-id` runs only some.

use docshard_tests::Cluster;
use docshard_tests::conformance::{Excuses, Failure, Outcome, Report, Stage, Way, cases_file, list_file, spec};
use std::thread;

/// The least share of applicable tests that must pass.
const AIM: f64 = 0.97;

#[test]
fn the_crud_specification_holds() {
    let Some(path) = cases_file("crud_spec.jsonl") else { return };
    let only = std::env::var("CONFORMANCE").ok();
    let mut tests = spec::load(&path);
    assert!(tests.len() > 250, "only {} tests", tests.len());
    // Estimates come from PostgreSQL's statistics, which are delayed.
    tests.retain(|test| !test.operations.iter().any(|name| name == "estimatedDocumentCount"));
    let excuses = Excuses::load(&list_file("crud_spec.txt"));
    for id in excuses.ids() {
        assert!(tests.iter().any(|test| test.id == id), "{id} is excused, but there is no such test");
    }
    if let Some(part) = &only {
        tests.retain(|test| test.id.contains(part.as_str()));
    }

    let cluster = Cluster::start(3);
    // Chunks that were spread must not be moved back.
    cluster.router.client().execute("SELECT docshard.stop_balancer()", &[]).expect("the balancer stops");
    let ways = [Way::Local, Way::Hashed, Way::Range];
    let runs: Vec<Vec<Outcome>> = thread::scope(|scope| {
        let runs: Vec<_> = ways
            .iter()
            .map(|way| {
                let (cluster, tests) = (&cluster, &tests);
                scope.spawn(move || {
                    let mut stage = Stage::new(cluster, *way);
                    tests.iter().map(|test| outcome(test.run(&mut stage))).collect()
                })
            })
            .collect();
        runs.into_iter().map(|run| run.join().expect("a run ends")).collect()
    });
    let mut report = Report::default();
    for (i, test) in tests.iter().enumerate() {
        let outcomes = ways.iter().copied().zip(runs.iter().map(|run| run[i].clone()));
        report.add_all((&test.id, test.kind(), &[]), &excuses, outcomes);
    }
    report.conclude("crud_spec", if only.is_some() { 0.0 } else { AIM });
}

fn outcome(result: Result<(), Failure>) -> Outcome {
    match result {
        Ok(()) => Outcome::Passed,
        Err(failure) => Outcome::Failed(format!("{:?} {}", failure.code, failure.message)),
    }
}
