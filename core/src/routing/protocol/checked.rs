//! Calls at a collection's version, which clients' statements make: the function checks the version in the statement's own snapshot.
//!
//! Such a call becomes a statement whose text is the same for all documents, so that a shard prepares it once. The collection's
//! number, nulls and empty arrays are literals in it, so that the shard reads fewer parameters; all other arguments are parameters.

use super::answer::Answer;
use super::signature::{SCHEMA, Signature};
use crate::sql::param::Param;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::fmt::{Display, Write};

/// A call at a collection's version.
pub trait CheckedCall {
    /// what the shard answers
    type Answer: Answer;
    /// the function that serves it; its first arguments are the collection's number, its token, and the shard's version
    const SIGNATURE: Signature;

    /// The statement. The shard's version is its second parameter.
    fn into_text(self) -> CallText;
}

/// A parameter's value, owned.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
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

impl Parameter {
    /// The value as it is sent.
    pub fn as_param(&self) -> Param<'_> {
        match self {
            &Parameter::Int8(value) => Param::Int8(value),
            Parameter::Bytes(value) => Param::Bytea(value),
            Parameter::BytesArray(values) => Param::OwnedByteaArray(values),
            Parameter::Text(value) => Param::Text(value),
            Parameter::TextArray(values) => Param::OwnedTextArray(values),
        }
    }
}

/// A call as a statement.
#[derive(Debug)]
pub struct CallText {
    sql: String,
    params: Vec<Parameter>,
}

impl CallText {
    /// The call of a function without its further arguments.
    pub fn new(function: &str, collection: i32, token: i64, version: i64) -> Self {
        let mut sql = String::with_capacity(128);
        // Writing to a string does not fail.
        let _ = write!(sql, "SELECT {SCHEMA}.{function}({collection}, $1, $2");
        let mut params = Vec::with_capacity(6);
        params.extend([Parameter::Int8(token), Parameter::Int8(version)]);
        Self { sql, params }
    }

    fn literal(&mut self, value: impl Display) {
        let _ = write!(self.sql, ", {value}");
    }

    fn parameter(&mut self, value: Parameter) {
        self.params.push(value);
        let number = self.params.len();
        self.literal(format_args!("${number}"));
    }

    /// The statement's text, and its parameters.
    pub fn finish(self) -> (String, Vec<Parameter>) {
        (self.sql + ")", self.params)
    }
}

/// The type of an argument of such a call.
pub trait CheckedArgument {
    /// the SQL type, as PostgreSQL prints it
    const TYPE: &'static str;
    /// Adds the argument to the statement.
    fn add(self, call: &mut CallText);
}

impl CheckedArgument for i32 {
    const TYPE: &'static str = "integer";
    fn add(self, call: &mut CallText) {
        call.literal(self);
    }
}

impl CheckedArgument for Cow<'_, [u8]> {
    const TYPE: &'static str = "bytea";
    fn add(self, call: &mut CallText) {
        call.parameter(Parameter::Bytes(self.into_owned()));
    }
}

impl CheckedArgument for Cow<'_, str> {
    const TYPE: &'static str = "text";
    fn add(self, call: &mut CallText) {
        call.parameter(Parameter::Text(self.into_owned()));
    }
}

impl<T: CheckedArgument> CheckedArgument for Option<T> {
    const TYPE: &'static str = T::TYPE;
    fn add(self, call: &mut CallText) {
        match self {
            None => call.literal("NULL"),
            Some(value) => value.add(call),
        }
    }
}

impl CheckedArgument for Vec<Cow<'_, [u8]>> {
    const TYPE: &'static str = "bytea[]";
    fn add(self, call: &mut CallText) {
        call.parameter(Parameter::BytesArray(self.into_iter().map(Cow::into_owned).collect()));
    }
}

impl CheckedArgument for Vec<String> {
    const TYPE: &'static str = "text[]";
    fn add(self, call: &mut CallText) {
        if self.is_empty() { call.literal("'{}'") } else { call.parameter(Parameter::TextArray(self)) }
    }
}
