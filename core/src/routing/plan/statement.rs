//! Statements that are sent to shards: SQL text with parameter values, or a call of one function.

use crate::routing::model::Collection;
use crate::routing::protocol::Answer;
use crate::routing::protocol::checked::{CheckedCall, Parameter};
use crate::sql::column::Column;
use crate::sql::param::Param;

/// A statement for all destinations; only the version differs from shard to shard.
#[derive(Clone, Debug)]
pub struct Statement {
    pub sql: String,
    /// the values of `$1`, `$2`, …
    pub params: Vec<Parameter>,
    /// the columns that its rows have at every shard
    pub columns: &'static [Column],
}

impl<C: CheckedCall> From<C> for Statement {
    fn from(call: C) -> Self {
        let (sql, params) = call.into_text().finish();
        Self { sql, params, columns: C::Answer::COLUMNS }
    }
}

/// A row with a document.
pub const DOCUMENT: &[Column] = &[Column::BYTES];
/// A row with a document and the key by which it is merged, or with two keys.
pub const DOCUMENT_AND_KEY: &[Column] = &[Column::BYTES; 2];
/// A row with a number.
pub const NUMBER: &[Column] = &[Column::INT8];
pub const TWO_NUMBERS: &[Column] = &[Column::INT8; 2];

/// The position of the version among the parameters.
const VERSION_PARAM: usize = 1;

impl Statement {
    /// A statement that is sent to no shard.
    pub fn none() -> Self {
        Self { sql: String::new(), params: Vec::new(), columns: &[] }
    }

    pub fn params(&self) -> Vec<Param<'_>> {
        borrowed(&self.params)
    }

    /// The statement that explains this one. `form`: the options of EXPLAIN.
    pub fn explained(&self, form: &str) -> Self {
        Self { sql: format!("EXPLAIN ({form}) {}", self.sql), params: self.params.clone(), columns: &[Column::BYTES] }
    }

    /// The parameters for a shard at this version.
    pub fn params_at(&self, version: i64) -> Vec<Param<'_>> {
        let mut params = self.params();
        params[VERSION_PARAM] = Param::Int8(version);
        params
    }
}

/// The first parameters of every checked statement: the collection's token, and a place for the shard's version.
pub fn first_params(collection: &Collection) -> Vec<Parameter> {
    vec![Parameter::Int8(collection.token), Parameter::Int8(0)]
}

pub fn borrowed(params: &[Parameter]) -> Vec<Param<'_>> {
    params.iter().map(Parameter::as_param).collect()
}
