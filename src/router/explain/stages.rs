//! Translates PostgreSQL's plans into MongoDB's stages.
//!
//! The input is what `EXPLAIN (FORMAT JSON)` prints, with or without `ANALYZE`; the output are MongoDB's stages, each with
//! its `inputStage` or `inputStages`. Nodes that only pass rows on have no stage of their own.

use serde_json::{Map, Value as Json};
use std::ops::Add;

/// The numbers of index entries and documents that the execution of a plan has read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Examined {
    /// index entries
    pub keys: u64,
    pub documents: u64,
}

impl Add for Examined {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { keys: sum([self.keys, other.keys]), documents: sum([self.documents, other.documents]) }
    }
}

/// Translates a plan to MongoDB's stages. `index` returns `indexName`, `keyPattern` and so on for the name of a PostgreSQL index.
pub fn stages(plan: &Json, index: &dyn Fn(&str) -> Map<String, Json>) -> Json {
    let inputs: Vec<Json> = inputs(plan).map(|input| stages(input, index)).collect();
    let kind = plan["Node Type"].as_str().unwrap_or_default();
    let mut stage = Map::new();
    let other;
    let name = match kind {
        "Seq Scan" => "COLLSCAN",
        "Index Scan" | "Bitmap Heap Scan" => "FETCH",
        "Index Only Scan" => "PROJECTION_COVERED",
        "Bitmap Index Scan" => return scan(plan, index),
        "BitmapOr" | "Append" => "OR",
        "BitmapAnd" => "AND_HASH",
        "Sort" | "Incremental Sort" => "SORT",
        "Merge Append" => "SORT_MERGE",
        "Limit" if !is_unlimited(plan) => "LIMIT",
        "Aggregate" => "COUNT",
        // A node that only passes rows on has no stage. Usually it is the check of the shard's version.
        _ if inputs.len() == 1 => return inputs.into_iter().next().unwrap_or_default(),
        "Result" => "EOF",
        _ => {
            other = kind.to_uppercase().replace(' ', "_");
            other.as_str()
        }
    };
    stage.insert("stage".into(), name.into());
    if was_run(plan) {
        let rows = if name == "COUNT" { ("nCounted", counted_by(plan)) } else { ("nReturned", returned(plan)) };
        stage.insert(rows.0.into(), rows.1.into());
        if matches!(name, "COLLSCAN" | "FETCH" | "PROJECTION_COVERED") {
            stage.insert("docsExamined".into(), own(plan).documents.into());
        }
    }
    for field in ["Sort Key", "Presorted Key"] {
        if let (Some(keys), "SORT") = (plan.get(field), name) {
            stage.insert(if field == "Sort Key" { "sortKey" } else { "presortedKey" }.into(), keys.clone());
        }
    }
    if matches!(kind, "Index Scan" | "Index Only Scan") {
        stage.insert("inputStage".into(), scan(plan, index));
    }
    let mut inputs = inputs.into_iter();
    match (inputs.next(), inputs.next()) {
        (Some(only), None) => drop(stage.insert("inputStage".into(), only)),
        (Some(first), Some(second)) => {
            let all: Vec<Json> = [first, second].into_iter().chain(inputs).collect();
            stage.insert("inputStages".into(), all.into());
        }
        _ => {}
    }
    Json::Object(stage)
}

/// Adds up what an executed plan has read. PostgreSQL does not count index entries that are marked as dead.
pub fn examined(plan: &Json) -> Examined {
    inputs(plan).map(examined).fold(own(plan), Add::add)
}

pub fn returned(plan: &Json) -> u64 {
    counted(plan, "Actual Rows")
}

/// True for a LIMIT that is computed at run time and is null (see `UNKNOWN_LIMIT` in `plan::select`).
fn is_unlimited(plan: &Json) -> bool {
    let inputs = plan["Plans"].as_array().map_or(&[][..], Vec::as_slice);
    inputs.iter().any(|input| input["Parent Relationship"] == "InitPlan")
}

/// The number of rows that an aggregate node has counted. For a sum of several counts, this is the total.
fn counted_by(plan: &Json) -> u64 {
    let of = |input: &Json| match input["Node Type"].as_str() {
        Some("Append" | "Aggregate" | "Subquery Scan" | "Result") => counted_by(input),
        _ => returned(input),
    };
    sum(inputs(plan).map(of))
}

/// Adds up numbers that shards have sent. They are not validated, so the sum saturates.
fn sum(numbers: impl IntoIterator<Item = u64>) -> u64 {
    numbers.into_iter().fold(0, u64::saturating_add)
}

fn was_run(plan: &Json) -> bool {
    plan.get("Actual Rows").is_some()
}

/// The stage of an index scan.
fn scan(plan: &Json, index: &dyn Fn(&str) -> Map<String, Json>) -> Json {
    let mut stage = Map::new();
    stage.insert("stage".into(), "IXSCAN".into());
    stage.extend(index(plan["Index Name"].as_str().unwrap_or_default()));
    let direction = plan["Scan Direction"].as_str().unwrap_or("Forward").to_lowercase();
    stage.insert("direction".into(), direction.into());
    if was_run(plan) {
        let keys = own(plan).keys;
        stage.insert("nReturned".into(), keys.into());
        stage.insert("keysExamined".into(), keys.into());
    }
    Json::Object(stage)
}

/// What a node has read itself, without its inputs.
fn own(plan: &Json) -> Examined {
    let fields = ["Actual Rows", "Rows Removed by Filter", "Rows Removed by Index Recheck"];
    let read = sum(fields.map(|field| counted(plan, field)));
    match plan["Node Type"].as_str().unwrap_or_default() {
        "Index Scan" => Examined { keys: read, documents: read },
        "Index Only Scan" => Examined { keys: read, documents: plan["Heap Fetches"].as_u64().unwrap_or(0) },
        "Bitmap Index Scan" => Examined { keys: read, documents: 0 },
        "Seq Scan" | "Bitmap Heap Scan" => Examined { keys: 0, documents: read },
        _ => Examined::default(),
    }
}

/// Returns a number that PostgreSQL reports as the average over all loops.
fn counted(plan: &Json, field: &str) -> u64 {
    let average = plan[field].as_f64().unwrap_or(0.0);
    let runs = plan["Actual Loops"].as_f64().unwrap_or(0.0);
    // The conversion saturates: a shard's numbers are not validated.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    {
        (average * runs).round() as u64
    }
}

fn inputs(plan: &Json) -> impl Iterator<Item = &Json> {
    let all = plan["Plans"].as_array().map_or(&[][..], Vec::as_slice);
    all.iter().filter(|input| !matches!(input["Parent Relationship"].as_str(), Some("InitPlan" | "SubPlan")))
}

/// The first fields of MongoDB's `executionStats`.
pub fn statistics(returned: u64, milliseconds: u64, examined: Examined) -> Map<String, Json> {
    Map::from_iter([
        ("executionSuccess".to_owned(), true.into()),
        ("nReturned".to_owned(), returned.into()),
        ("executionTimeMillis".to_owned(), milliseconds.into()),
        ("totalKeysExamined".to_owned(), examined.keys.into()),
        ("totalDocsExamined".to_owned(), examined.documents.into()),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn known(name: &str) -> Map<String, Json> {
        let Json::Object(fields) = json!({"indexName": format!("<{name}>")}) else { unreachable!() };
        fields
    }

    #[test]
    fn an_index_scan_fetches() {
        let plan = json!({"Node Type": "Limit", "Actual Rows": 2, "Actual Loops": 1, "Plans": [{
            "Node Type": "Result", "One-Time Filter": "at_version(1, $1, $2)", "Actual Rows": 2, "Actual Loops": 1, "Plans": [{
                "Node Type": "Index Scan", "Scan Direction": "Backward", "Index Name": "i7", "Actual Rows": 2,
                "Actual Loops": 1, "Rows Removed by Filter": 3}]}]});
        assert_eq!(
            stages(&plan, &known),
            json!({"stage": "LIMIT", "nReturned": 2, "inputStage": {"stage": "FETCH", "nReturned": 2, "docsExamined": 5,
                "inputStage": {"stage": "IXSCAN", "indexName": "<i7>", "direction": "backward", "nReturned": 5,
                    "keysExamined": 5}}})
        );
        assert_eq!(examined(&plan), Examined { keys: 5, documents: 5 });
        assert_eq!(returned(&plan), 2);
    }

    #[test]
    fn a_limit_that_is_computed_is_none() {
        let all = json!({"Node Type": "Result", "Parent Relationship": "InitPlan"});
        let plan =
            json!({"Node Type": "Limit", "Plans": [all, {"Node Type": "Seq Scan", "Parent Relationship": "Outer"}]});
        assert_eq!(stages(&plan, &known), json!({"stage": "COLLSCAN"}));
    }

    #[test]
    fn a_plan_that_was_not_run_has_no_numbers() {
        let plan = json!({"Node Type": "Sort", "Sort Key": ["k"], "Plans": [{"Node Type": "Seq Scan"}]});
        let stage = json!({"stage": "SORT", "sortKey": ["k"], "inputStage": {"stage": "COLLSCAN"}});
        assert_eq!(stages(&plan, &known), stage);
        assert_eq!(stages(&json!({"Node Type": "Result"}), &known), json!({"stage": "EOF"}));
    }

    #[test]
    fn a_bitmap_is_the_scans_that_made_it() {
        let scan = |name: &str| json!({"Node Type": "Bitmap Index Scan", "Index Name": name, "Actual Rows": 4, "Actual Loops": 1});
        let plan = json!({"Node Type": "Bitmap Heap Scan", "Actual Rows": 6, "Actual Loops": 1,
            "Rows Removed by Index Recheck": 1, "Plans": [
                {"Node Type": "BitmapOr", "Actual Rows": 0, "Actual Loops": 1, "Plans": [scan("i1"), scan("i2")]}]});
        let stage = stages(&plan, &known);
        assert_eq!(stage["stage"], "FETCH");
        assert_eq!(stage["inputStage"]["stage"], "OR");
        assert_eq!(stage["inputStage"]["inputStages"][1]["indexName"], "<i2>");
        assert_eq!(examined(&plan), Examined { keys: 8, documents: 7 });
    }

    #[test]
    fn repeated_steps_count_each_time_and_covered_ones_fetch_little() {
        let plan = json!({"Node Type": "Index Only Scan", "Index Name": "i1", "Actual Rows": 3, "Actual Loops": 5,
            "Heap Fetches": 2});
        assert_eq!(examined(&plan), Examined { keys: 15, documents: 2 });
        assert_eq!(stages(&plan, &known)["stage"], "PROJECTION_COVERED");
    }

    #[test]
    fn what_decides_a_parameter_is_no_stage() {
        let plan = json!({"Node Type": "Seq Scan", "Actual Rows": 1, "Actual Loops": 1, "Plans": [
            {"Node Type": "Result", "Parent Relationship": "InitPlan", "Actual Rows": 1, "Actual Loops": 1}]});
        let stage = json!({"stage": "COLLSCAN", "nReturned": 1, "docsExamined": 1});
        assert_eq!(stages(&plan, &known), stage);
        assert_eq!(Json::Object(statistics(1, 1, examined(&plan)))["executionTimeMillis"], 1);
    }
}
