//! Compares what the catalog says of collections with itself ([`chunks`], [`zones`]), and with what a shard reports ([`shards`]).
//!
//! Pure: the caller reads the catalog and asks the shards, and looks twice, as both change between. The names of inconsistencies are
//! MongoDB's where MongoDB has the same one.

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
    /// texts, or NULL
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

    /// Brings a shard and the catalog together.
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
    /// what is known of it
    pub details: Map<String, Json>,
    /// what repairs it; None: `details` says why nothing does
    pub repair: Option<Repair>,
}

impl Finding {
    /// An inconsistency for which there is no repair yet.
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

/// The most inconsistencies of one kind that are reported of a collection's chunks or zones.
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
