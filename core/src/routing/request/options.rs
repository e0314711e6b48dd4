//! Options of reads: sort, projection, skip, limit, hint.

use crate::query::environment::Environment;
use crate::query::index::Bounds;
use crate::query::sort::Sort;
use serde_json::Value as Json;

#[derive(Clone, Debug, Default)]
pub struct FindOptions {
    /// the sort, and its text, which is sent to shards
    pub sort: Option<(Sort, String)>,
    /// None: whole documents
    pub projection: Option<String>,
    /// true if the projection depends on which array element the filter matched
    pub positional: bool,
    /// the paths of a projection that only includes fields; None for any other
    pub included: Option<Vec<String>>,
    pub environment: Environment,
    pub skip: u64,
    pub limit: Option<u64>,
    pub hint: Option<Json>,
    /// `min` and `max`
    pub bounds: Option<Bounds>,
    /// true if shards that cannot be reached are left out
    pub allow_partial: bool,
}

#[derive(Debug, Default)]
pub struct CountOptions {
    pub skip: u64,
    pub limit: Option<u64>,
}
