//! Checks that the catalog's metadata of collections do not contradict one another ([`chunks`], [`zones`]), and compares them with what a
//! shard reports ([`shards`]).
//!
//! Pure: the caller reads the catalog and asks the shards. Both may change in between, so the caller does it several times and reports only
//! what it finds again. An inconsistency has MongoDB's name if MongoDB knows the same one.

pub mod chunks;
pub mod shards;
pub mod zones;

use crate::sql::quote::quote_literal;
use serde_json::{Map, Value as Json};
use std::fmt;

/// A statement that repairs an inconsistency: a call of one of docshard's functions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repair {
    function: &'static str,
    /// texts; None: NULL
    arguments: Vec<Option<String>>,
}

/// The schema of functions for users.
const SCHEMA: &str = "docshard";

impl Repair {
    /// A call with these arguments.
    pub fn new<'a>(function: &'static str, arguments: impl IntoIterator<Item = &'a str>) -> Self {
        Self { function, arguments: arguments.into_iter().map(|text| Some(text.to_owned())).collect() }
    }

    /// The same call with NULL as its last argument.
    #[must_use]
    pub fn with_null(mut self) -> Self {
        self.arguments.push(None);
        self
    }

    /// The call by which the router adopts a shard, so that the shard and the catalog agree.
    pub fn adopt(shard: &str) -> Self {
        Self::new("accept_shard", [shard, r#"{"adopt": true}"#])
    }
}

impl fmt::Display for Repair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let argument = |text: &Option<String>| text.as_deref().map_or("NULL".to_owned(), quote_literal);
        let arguments: Vec<String> = self.arguments.iter().map(argument).collect();
        write!(f, "SELECT {SCHEMA}.{}({})", self.function, arguments.join(", "))
    }
}

/// An inconsistency.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// its type
    pub kind: &'static str,
    /// the collection
    pub namespace: Option<String>,
    /// the shard's name
    pub shard: Option<String>,
    /// what is wrong, for people
    pub description: String,
    /// values that describe the inconsistency, by name, for programs
    pub details: Map<String, Json>,
    /// the statement that repairs it; None: `noRepair` in `details` says why there is none, if that is known
    pub repair: Option<Repair>,
}

impl Finding {
    /// An inconsistency; [`repaired_by`](Self::repaired_by) or [`without_repair`](Self::without_repair) completes it.
    pub fn new(kind: &'static str, namespace: Option<&str>, shard: Option<&str>, description: String) -> Self {
        let (namespace, shard) = (namespace.map(str::to_owned), shard.map(str::to_owned));
        Self { kind, namespace, shard, description, details: Map::new(), repair: None }
    }

    /// The same with more details.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Json>) -> Self {
        self.details.insert(name.to_owned(), value.into());
        self
    }

    /// The same with a statement that repairs it.
    #[must_use]
    pub fn repaired_by(mut self, repair: Repair) -> Self {
        self.repair = Some(repair);
        self
    }

    /// The same with the reason why no statement repairs it.
    #[must_use]
    pub fn without_repair(self, why: impl Into<String>) -> Self {
        self.with("noRepair", why.into())
    }
}

/// The most inconsistencies of one kind that are reported for a collection's chunks, or for its zones.
const MAX_OF_KIND: usize = 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repair_is_a_statement_with_quoted_arguments() {
        let repair = Repair::new("drop_orphaned_relation", ["it's", r"a\b"]);
        assert_eq!(repair.to_string(), r"SELECT docshard.drop_orphaned_relation('it''s', E'a\\b')");
        let repair = Repair::new("update_zone_key_range", ["a.b"]).with_null();
        assert_eq!(repair.to_string(), "SELECT docshard.update_zone_key_range('a.b', NULL)");
    }
}
