//! What a shard is sent: SQL text with the values of its parameters, and statements that are one call of a function there.

use crate::catalog::model::Collection;
use crate::pg::spi::param::Param;
use std::fmt::{Display, Write};

/// A statement for every target of an operation; only the version differs from shard to shard.
#[derive(Clone, Debug)]
pub struct Statement {
    /// the text
    pub sql: String,
    /// the values of `$1`, `$2`, …
    pub params: Vec<Parameter>,
}

/// The position of the version among the parameters: the one that differs from shard to shard.
const VERSION_PARAM: usize = 1;

impl Statement {
    /// The parameters as they are sent.
    pub fn params(&self) -> Vec<Param<'_>> {
        borrowed(&self.params)
    }

    /// The parameters of a statement that is sent to a shard at this version.
    pub fn params_at(&self, version: i64) -> Vec<Param<'_>> {
        let mut params = self.params();
        params[VERSION_PARAM] = Param::Int8(version);
        params
    }
}

/// The parameters that every checked statement begins with: the collection's token, and a place for the shard's version.
pub fn first_params(collection: &Collection) -> Vec<Parameter> {
    vec![Parameter::Int8(collection.token), Parameter::Int8(0)]
}

/// A parameter's value, owned.
#[derive(Clone, Debug)]
pub enum Parameter {
    /// bytea
    Bytes(Vec<u8>),
    /// bytea[]
    BytesArray(Vec<Vec<u8>>),
    /// text
    Text(String),
    /// text[]
    TextArray(Vec<String>),
    /// int8
    Int8(i64),
}

/// Parameters as they are sent.
pub fn borrowed(params: &[Parameter]) -> Vec<Param<'_>> {
    let borrow = |param| match param {
        &Parameter::Int8(value) => Param::Int8(value),
        Parameter::Bytes(value) => Param::Bytea(value),
        Parameter::BytesArray(values) => Param::OwnedByteaArray(values),
        Parameter::Text(value) => Param::Text(value),
        Parameter::TextArray(values) => Param::OwnedTextArray(values),
    };
    params.iter().map(borrow).collect()
}

/// A call whose first arguments are the collection, its token and the shard's version.
pub struct Call {
    sql: String,
    params: Vec<Parameter>,
}

impl Call {
    /// A call of a function of the schema `docshard_internal`.
    pub fn of(function: &str, collection: &Collection) -> Self {
        let mut sql = String::with_capacity(128);
        // A string takes all there is to write.
        let _ = write!(sql, "SELECT docshard_internal.{function}({}, $1, $2", collection.id);
        let mut params = first_params(collection);
        params.reserve(4);
        Self { sql, params }
    }

    /// One more argument that has few values: it is part of the statement's text, which a shard prepares once.
    pub fn literal(mut self, value: impl Display) -> Self {
        let _ = write!(self.sql, ", {value}");
        self
    }

    /// One more argument, which may be null.
    pub fn optional(self, value: Option<Parameter>) -> Self {
        match value {
            None => self.literal("NULL"),
            Some(value) => self.argument(value),
        }
    }

    /// One more argument. An empty text or array is part of the statement, as a null is: a shard has fewer parameters to read.
    pub fn argument(mut self, value: Parameter) -> Self {
        match value {
            Parameter::Text(text) if text.is_empty() => self.literal("''"),
            Parameter::TextArray(items) if items.is_empty() => self.literal("'{}'"),
            value => {
                self.params.push(value);
                let number = self.params.len();
                self.literal(format_args!("${number}"))
            }
        }
    }

    /// The statement.
    pub fn statement(self) -> Statement {
        Statement { sql: self.sql + ")", params: self.params }
    }
}
