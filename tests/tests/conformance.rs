//! MongoDB's semantics by example: every case of the public regression suite, run unsharded, and sharded by hash, sharded by
//! range or with indexes, of which `make test` takes one for each case; with `CONFORMANCE_COMMANDS=1` also unsharded through `run_command`
//! alone.
//!
//! `tests/conformance/documents.txt` lists the cases that are expected to fail, with reasons. The tables are written to
//! `target/conformance-documents.txt`. `CONFORMANCE=part-of-an-id` runs only some cases, and prints their answers.

use docshard_tests::conformance::{
    Answer, Case, Class, Expected, Kind, Outcome, Report, Selection, Stage, Way, compare, is_run, verdict,
};
use docshard_tests::{Cluster, is_thorough};
use serde_json::{Map, Value, json};
use std::thread;

const DUPLICATE_KEY: i64 = 11000;
const INVALID_NAMESPACE: i64 = 73;

#[test]
fn the_document_language_conforms() {
    let Some(selection) = Selection::of_documents() else { return };
    let cases = &selection.cases;

    let cluster = Cluster::start(3);
    // Chunks that were spread must not be moved back.
    cluster.router.client().execute("SELECT docshard.stop_balancer()", &[]).expect("the balancer stops");
    let ways: Vec<Way> = {
        let commands = std::env::var_os("CONFORMANCE_COMMANDS").is_some()
            && Stage::new(&cluster, Way::Command).shell.has("run_command");
        let ways = [Way::Local, Way::Hashed, Way::Range, Way::Indexed];
        ways.into_iter().chain(commands.then_some(Way::Command)).collect()
    };
    let outcomes: Vec<Vec<Option<Outcome>>> = thread::scope(|scope| {
        let runs: Vec<_> = ways
            .iter()
            .enumerate()
            .map(|(number, way)| {
                let cluster = &cluster;
                scope.spawn(move || {
                    let mut stage = Stage::new(cluster, *way);
                    let run = |(at, case)| is_run(number, at).then(|| run(&mut stage, case));
                    cases.iter().enumerate().map(run).collect()
                })
            })
            .collect();
        runs.into_iter().map(|run| run.join().expect("a run ends")).collect()
    });

    let mut report = Report::default();
    report.is_sample = !is_thorough();
    for (at, case) in cases.iter().enumerate() {
        let outcomes = ways.iter().zip(&outcomes).filter_map(|(way, outcomes)| Some((*way, outcomes[at].clone()?)));
        report.add_all((&case.id, case.kind.name(), &case.operators), &selection.excuses, outcomes);
    }
    selection.conclude(&report, "documents");
}

/// Runs one case.
fn run(stage: &mut Stage, case: &Case) -> Outcome {
    match case.kind {
        Kind::ShardCollection | Kind::CreateIndex => return run_definition(stage, case),
        _ => {}
    }
    // The case is about the name itself.
    let system = case.namespace.as_ref().is_some_and(|namespace| namespace.contains(".system."));
    if let Some(namespace) = &case.namespace
        && (system || matches!(case.expected, Expected::Error(Some(INVALID_NAMESPACE))))
    {
        let answer = stage.shell.run(namespace, &case.command);
        return verdict(case, &answer);
    }
    let namespace = match stage.prepare(case) {
        Ok(namespace) => namespace,
        // Two documents with the same `_id` need a collection that is sharded by another field.
        Err(failure) if failure.code == Some(DUPLICATE_KEY) && has_duplicate_ids(case) => {
            return Outcome::Excused(Class::Shape);
        }
        Err(failure) => return Outcome::Failed(format!("preparing: {}", failure.message)),
    };
    for command in &case.prelude {
        // The answers of preceding commands do not matter, only their effects.
        let _ = stage.shell.run(&namespace, command);
    }
    let answer = stage.shell.run(&namespace, &case.command);
    let answer = match (case.kind, answer) {
        (Kind::UpdateDoc, Ok(Answer::Response(response))) if response.get("writeErrors").is_none() => {
            stage.shell.find(&namespace, &json!({}), &json!({})).map(Answer::Documents)
        }
        (_, answer) => answer,
    };
    verdict(case, &answer)
}

/// True if several documents have the same `_id`.
fn has_duplicate_ids(case: &Case) -> bool {
    let mut ids: Vec<String> = case.documents.iter().filter_map(|d| d.get("_id")).map(compare::canonical).collect();
    let all = ids.len();
    ids.sort_unstable();
    ids.dedup();
    ids.len() < all
}

/// Cases that create a collection or an index need a new collection.
fn run_definition(stage: &mut Stage, case: &Case) -> Outcome {
    if case.kind == Kind::ShardCollection && stage.way().is_sharded() {
        return Outcome::Excused(Class::Shape);
    }
    let key = match (stage.way(), &case.shard_key) {
        (Way::Range, _) => json!({"_id": 1}),
        (Way::Hashed, _) => json!({"_id": "hashed"}),
        (_, Some(key)) if case.kind == Kind::ShardCollection => key.clone(),
        _ => Value::Null,
    };
    let namespace = match stage.create(&key, &[]) {
        Ok(namespace) => namespace,
        Err(failure) => return Outcome::Failed(format!("preparing: {}", failure.message)),
    };
    let mut prelude = case.prelude.clone();
    if !case.indexes.is_empty() {
        // Each index is created alone, so that one that docshard does not support does not prevent the others.
        for index in &case.indexes {
            prelude.push(object(&json!({"createIndexes": "c", "indexes": [index]})));
        }
    }
    for command in &prelude {
        let _ = stage.shell.run(&namespace, command);
    }
    let answer = stage.shell.run(&namespace, &case.command);
    verdict(case, &answer)
}

fn object(json: &Value) -> Map<String, Value> {
    json.as_object().expect("an object").clone()
}
