//! Explains finds, counts, distincts and writes of collections: which shards they go to, and how these find the documents.
//! [`reading`] explains pipelines, and reads of views, which run as pipelines.

use super::arguments::Arguments;
use super::reading::{self, Count};
use super::request_parts::{Shared, Specification};
use crate::pg::error::Result;
use crate::router::explain::statement::{Explained, explain};
pub use crate::router::explain::statement::{Verbosity, pretty};
use docshard_core::routing::plan::Read;
use serde_json::Value as Json;

pub fn find(
    namespace: &str,
    filter: Specification<'_>,
    arguments: &Arguments<'_>,
    verbosity: Verbosity,
) -> Result<Json> {
    let options = reading::find_options(namespace, arguments)?;
    let query = reading::find_query(filter, &options)?;
    explain(namespace, &query, Explained::Read(Read::Find(&options)), verbosity)
}

pub fn count(namespace: &str, count: &Count<'_>, verbosity: Verbosity) -> Result<Json> {
    let (query, options) = count.parts(namespace)?;
    explain(namespace, &query, Explained::Read(Read::Count(&options)), verbosity)
}

pub fn distinct(
    namespace: &str,
    field: &str,
    (filter, shared): (Specification<'_>, &Shared<'_>),
    verbosity: Verbosity,
) -> Result<Json> {
    let query = shared.query(namespace, filter)?;
    explain(namespace, &query, Explained::Read(Read::Distinct(field)), verbosity)
}

/// A write that is explained, and never executed.
#[derive(Clone, Copy, Debug)]
pub struct ExplainedWrite<'a> {
    pub filter: Specification<'a>,
    pub shared: Shared<'a>,
    pub deletes: bool,
    /// the write is one of a batch
    pub batch: bool,
}

pub fn write(namespace: &str, write: &ExplainedWrite<'_>, verbosity: Verbosity) -> Result<Json> {
    let stage = if write.deletes { "DELETE" } else { "UPDATE" };
    let query = write.shared.query(namespace, write.filter)?;
    explain(namespace, &query, Explained::Write { stage, batch: write.batch }, verbosity)
}
