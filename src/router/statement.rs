//! Statements that are sent to shards: SQL text with parameter values, or a call of one function.

use crate::catalog::model::Collection;
use crate::pg::spi::param::Param;
use crate::protocol::checked::CheckedCall;
pub use crate::protocol::checked::Parameter;

/// A statement for all destinations; only the version differs from shard to shard.
#[derive(Clone, Debug)]
pub struct Statement {
    pub sql: String,
    /// the values of `$1`, `$2`, …
    pub params: Vec<Parameter>,
}

impl<C: CheckedCall> From<C> for Statement {
    fn from(call: C) -> Self {
        let (sql, params) = call.into_text().finish();
        Self { sql, params }
    }
}

/// The position of the version among the parameters.
const VERSION_PARAM: usize = 1;

impl Statement {
    pub fn params(&self) -> Vec<Param<'_>> {
        borrowed(&self.params)
    }

    /// The statement that explains it, in a form of EXPLAIN.
    pub fn explained(&self, form: &str) -> Self {
        Self { sql: format!("EXPLAIN ({form}) {}", self.sql), params: self.params.clone() }
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
