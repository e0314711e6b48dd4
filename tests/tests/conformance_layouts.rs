//! Pipelines by example, over a cluster: the cases of aggregations and expressions, run over collections of four layouts: unsharded
//! on the router's own node, and unsharded on another shard, sharded by range with bounds among the documents or sharded by hash, of which
//! `make test` takes one for each case.
//!
//! `tests/conformance/pipelines.txt` lists the cases that are expected to fail, with reasons. The tables are written to
//! `target/conformance-layouts.txt`. `CONFORMANCE=part-of-an-id` runs only some cases.

use docshard_tests::conformance::{Case, Outcome, Report, Selection, Stage, Way, collected, is_run, verdict};
use docshard_tests::{Cluster, is_thorough};
use serde_json::Value;
use std::thread;

const LAYOUTS: [Way; 4] = [Way::Local, Way::Remote, Way::Range, Way::Hashed];

#[test]
fn pipelines_conform_in_every_layout() {
    let Some(mut selection) = Selection::of_pipelines() else { return };
    let cases = &mut selection.cases;
    for case in cases.iter_mut() {
        case.documents = collected(&case.documents).into_iter().cloned().collect();
    }
    // Cases with the same documents follow each other, so that a collection is rarely filled anew.
    cases.sort_by_cached_key(|case| Value::from(case.documents.clone()).to_string());

    let cluster = Cluster::start(3);
    // Chunks that were spread must not be moved back.
    cluster.router.client().execute("SELECT docshard.stop_balancer()", &[]).expect("the balancer stops");
    let outcomes: Vec<Vec<Option<Outcome>>> = thread::scope(|scope| {
        let runs: Vec<_> = LAYOUTS
            .into_iter()
            .enumerate()
            .map(|(number, way)| {
                let (cluster, cases) = (&cluster, &selection.cases);
                scope.spawn(move || {
                    let mut stage = Stage::new(cluster, way);
                    let run = |(at, case)| is_run(number, at).then(|| run(&mut stage, case));
                    cases.iter().enumerate().map(run).collect()
                })
            })
            .collect();
        runs.into_iter().map(|run| run.join().expect("a run ends")).collect()
    });
    let mut report = Report::default();
    report.is_sample = !is_thorough();
    for (at, case) in selection.cases.iter().enumerate() {
        let outcomes =
            LAYOUTS.into_iter().zip(&outcomes).filter_map(|(way, outcomes)| Some((way, outcomes[at].clone()?)));
        report.add_all((&case.id, case.kind.name(), &case.operators), &selection.excuses, outcomes);
    }
    selection.conclude(&report, "layouts");
}

fn run(stage: &mut Stage, case: &Case) -> Outcome {
    let prepared = stage.prepare(case).and_then(|namespace| {
        for (name, documents) in beside(case) {
            stage.beside(name, documents)?;
        }
        Ok(namespace)
    });
    match prepared {
        Ok(namespace) => verdict(case, &stage.shell.run(&namespace, &case.command)),
        Err(failure) => Outcome::Failed(format!("preparing: {}", failure.message)),
    }
}

/// The other collections that a case reads or writes. It reads its own under its name, too, if a stage names it: the stage's
/// collection has another name.
fn beside(case: &Case) -> Vec<(&str, &[Value])> {
    let others = case
        .others
        .iter()
        .map(|(name, documents)| (name.as_str(), documents.as_array().expect("documents are a list").as_slice()));
    let own = case.command["aggregate"].as_str();
    let own = own.filter(|name| case.command["pipeline"].to_string().contains(&format!("\"{name}\"")));
    others.chain(own.map(|name| (name, case.documents.as_slice()))).collect()
}
