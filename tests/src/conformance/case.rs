//! A case: documents, commands, and the expected answers.

use serde_json::{Map, Value};
use std::fs;
use std::path::Path;

/// The kind of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum Kind {
    Find,
    FindProjection,
    Match,
    Count,
    Distinct,
    Update,
    UpdateDoc,
    FindAndModify,
    Insert,
    Delete,
    State,
    CreateIndex,
    ShardCollection,
    Aggregate,
    Expr,
}

impl Kind {
    const NAMES: &[(&str, Kind)] = &[
        ("find", Kind::Find),
        ("find_projection", Kind::FindProjection),
        ("match", Kind::Match),
        ("count", Kind::Count),
        ("distinct", Kind::Distinct),
        ("update", Kind::Update),
        ("update_doc", Kind::UpdateDoc),
        ("find_and_modify", Kind::FindAndModify),
        ("insert", Kind::Insert),
        ("delete", Kind::Delete),
        ("state", Kind::State),
        ("create_index", Kind::CreateIndex),
        ("shard_collection", Kind::ShardCollection),
        ("aggregate", Kind::Aggregate),
        ("expr", Kind::Expr),
    ];

    fn parse(name: &str) -> Kind {
        let found = Kind::NAMES.iter().find(|(other, _)| *other == name);
        found.unwrap_or_else(|| panic!("a case of an unknown kind, {name}")).1
    }

    /// Its name in the file of cases.
    pub fn name(self) -> &'static str {
        Kind::NAMES.iter().find(|(_, kind)| *kind == self).expect("every kind has a name").0
    }
}

/// The expected answer of a case.
#[derive(Clone, Debug)]
pub enum Expected {
    /// the documents, in this order or in any
    Documents {
        /// the documents
        documents: Vec<Value>,
        /// true if their order counts
        ordered: bool,
    },
    /// some fields of the command's answer
    Response(Value),
    /// an error with this code, or with any
    Error(Option<i64>),
}

/// A case.
#[derive(Clone, Debug)]
pub struct Case {
    /// its name in the file
    pub id: String,
    /// its kind
    pub kind: Kind,
    /// its collection, if that has a name of its own
    pub namespace: Option<String>,
    /// the documents of the collection
    pub documents: Vec<Value>,
    /// the documents of other collections
    pub others: Map<String, Value>,
    /// specifications of its indexes
    pub indexes: Vec<Value>,
    /// true if these include the indexes that its command needs
    pub indexed: bool,
    /// the shard key, if the case has its own
    pub shard_key: Option<Value>,
    /// commands that run before
    pub prelude: Vec<Map<String, Value>>,
    /// the command whose answer is compared
    pub command: Map<String, Value>,
    /// the expected answer
    pub expected: Expected,
    /// operators that it uses
    pub operators: Vec<String>,
}

/// Reads a file of cases, one a line.
///
/// # Panics
/// If the file cannot be read or is malformed.
pub fn load(path: &Path) -> Vec<Case> {
    let text = fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let case = |line: &str| {
        let json: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{}: {e}: {line}", path.display()));
        Case::parse(&json)
    };
    text.lines().filter(|line| !line.trim().is_empty()).map(case).collect()
}

/// The documents that the collection has. A case may list documents of an earlier collection of the same name first; so of documents with
/// one `_id` only the last is in the collection.
pub fn collected(documents: &[Value]) -> Vec<&Value> {
    let is_last = |(position, document): &(usize, &Value)| {
        let later = &documents[position + 1..];
        document.get("_id").is_none_or(|id| later.iter().all(|later| later.get("_id") != Some(id)))
    };
    documents.iter().enumerate().filter(is_last).map(|(_, document)| document).collect()
}

impl Case {
    fn parse(json: &Value) -> Case {
        let list = |name: &str| json[name].as_array().cloned().unwrap_or_default();
        let command = |command: &Value| command.as_object().expect("a command is an object").clone();
        let expected = if let Some(documents) = json.get("expected_docs") {
            let documents = documents.as_array().expect("documents are a list").clone();
            Expected::Documents { documents, ordered: json["ordered"] == true }
        } else if let Some(response) = json.get("expected_response") {
            Expected::Response(response.clone())
        } else {
            Expected::Error(json["expected_error"]["code"].as_i64())
        };
        Case {
            id: json["id"].as_str().expect("a case has an id").to_owned(),
            kind: Kind::parse(json["kind"].as_str().expect("a case has a kind")),
            namespace: json["ns"].as_str().map(str::to_owned),
            documents: list("setup_docs"),
            others: json["setup_other"].as_object().cloned().unwrap_or_default(),
            indexes: list("setup_indexes"),
            indexed: false,
            shard_key: json.get("shard_key").cloned(),
            prelude: list("prelude").iter().map(command).collect(),
            command: command(&json["command"]),
            expected,
            operators: list("ops").iter().filter_map(|name| Some(name.as_str()?.to_owned())).collect(),
        }
    }
}
