//! The call that runs stages of a pipeline at a shard.

use super::checked::Parameter;
use crate::error::Result;
use crate::error::{Kind, error};
use crate::query::specification;
use crate::query::stage::{Measured, Measurements};
use crate::routing::protocol::checked::CheckedCall;
use crate::sql::record::{malformed, parse_json};
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use std::borrow::Cow;
use std::time::Duration;

checked_calls! {
    /// Runs stages of a pipeline over documents of the collection; answers their results, several of which are packed together.
    run_pipeline => RunPipeline<'a> {
        /// the text of a [`PipelineRequest`]
        work: Cow<'a, str>,
    } -> Vec<Vec<u8>>;
}

/// A shard's part of a pipeline, as JSON with named fields.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PipelineRequest {
    /// the stages, as `Pipeline::parse_divided` reads them
    pub stages: Vec<Json>,
    /// collation, variables and time, as `Environment::to_json` writes them
    #[serde(skip_serializing_if = "Option::is_none")]
    pub environment: Option<Json>,
    /// true if the results are in the order of a stage, and each comes with its key, by which the router merges the shards' results
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keyed: bool,
    /// the text of a find's projection of the results
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub projection: Option<String>,
    /// true if the stages may use temporary files
    pub on_disk: bool,
    /// true if the shard runs the stages, but answers one [`PipelineMeasurements`] instead of their results, as routers of release 0.2.0
    /// request
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub measured: bool,
    /// true if an empty row and a [`PipelineMeasurements`] follow the results
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub explained: bool,
    /// true if results keep the order of fields
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ordered: bool,
    /// what the stages read
    pub source: PipelineSource,
}

/// What stages have done at a shard, for an explanation: as JSON.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PipelineMeasurements {
    /// how many documents the stages have read
    pub read: u64,
    /// milliseconds that the whole took
    pub took_ms: u64,
    pub stages: Vec<StageMeasurements>,
    /// how many documents a scan has examined; None without a scan
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub examined: Option<u64>,
    /// the executed plan of the statement that has found the documents, as EXPLAIN prints it
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<Json>,
}

/// What a stage has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StageMeasurements {
    /// how many documents it has made
    pub returned: u64,
    /// milliseconds that it and the stages before it took
    pub took_ms: u64,
    /// true if it has written temporary files
    pub used_disk: bool,
}

impl PipelineMeasurements {
    /// How many documents the shard has returned.
    pub fn returned(&self) -> u64 {
        self.stages.last().map_or(self.read, |stage| stage.returned)
    }

    /// Reads what a shard has answered.
    /// Errors: 08P01.
    pub fn parse(text: &[u8]) -> Result<Self> {
        let name = RunPipeline::SIGNATURE.name();
        serde_json::from_value(parse_json(&name, text)?).map_err(|error| malformed(&name, &error.to_string()))
    }
}

impl StageMeasurements {
    pub fn of(measurements: &Measurements) -> Vec<Self> {
        let of = |stage: &Measured| Self {
            returned: stage.returned,
            took_ms: milliseconds(stage.took),
            used_disk: stage.used_disk,
        };
        measurements.stages().iter().map(of).collect()
    }
}

/// A time as explanations show it.
pub fn milliseconds(took: Duration) -> u64 {
    u64::try_from(took.as_millis()).unwrap_or(u64::MAX)
}

/// The documents that stages read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", deny_unknown_fields)]
pub enum PipelineSource {
    /// all documents of the table, or those that match a filter, in any order
    Scan {
        #[serde(skip_serializing_if = "Option::is_none")]
        filter: Option<String>,
    },
    /// those that a statement returns in its first column, as bytes. Its parameters $1 and $2 are the collection's token and the
    /// shard's version; `params` are those from $3 on
    Select { sql: String, params: Vec<Parameter> },
}

impl PipelineRequest {
    /// The record as it is sent.
    pub fn to_text(&self) -> String {
        serde_json::to_string(self).expect("a record with text keys is valid JSON")
    }

    /// Reads such a record. A missing, unknown or malformed field is an error: a shard must not ignore what a later router asks for.
    /// Errors: `BadValue`, naming the field.
    pub fn parse(text: &str) -> Result<Self> {
        serde_json::from_value(specification::parse(text)?)
            .map_err(|error| error!(Kind::BadValue, "run_pipeline: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn work_arrives_as_it_was_sent() {
        let scan = PipelineRequest {
            stages: vec![json!({"$group": {"_id": "$a\"", "n": {"$sum": 1.5}}})],
            environment: None,
            keyed: false,
            projection: None,
            on_disk: true,
            measured: false,
            explained: false,
            ordered: false,
            source: PipelineSource::Scan { filter: None },
        };
        let params = vec![
            Parameter::Bytes(vec![0, 255]),
            Parameter::BytesArray(vec![vec![], vec![1]]),
            Parameter::Text("$1 '\"".into()),
            Parameter::TextArray(vec![String::new()]),
            Parameter::Int8(i64::MIN),
        ];
        let select = PipelineRequest {
            environment: Some(json!({"now": 5})),
            keyed: true,
            projection: Some("{\"a\": 1}".into()),
            measured: true,
            explained: true,
            ordered: true,
            source: PipelineSource::Select { sql: "SELECT $3".into(), params },
            ..scan.clone()
        };
        for work in [&scan, &select] {
            assert_eq!(PipelineRequest::parse(&work.to_text()).unwrap(), *work);
        }
        let text = scan.to_text();
        for wrong in [
            text.replace("true", "1"),
            text.replace("\"onDisk\":true,", ""),
            text.replacen('{', "{\"later\":1,", 1),
            text.replace("\"scan\":{}", "\"scan\":{\"later\":1}"),
            text.replace("\"scan\"", "\"other\""),
            "[]".into(),
        ] {
            assert!(PipelineRequest::parse(&wrong).is_err(), "{wrong}");
        }
    }
}
