//! Statements that are one call of a function at a shard, which does it all at once: without plan and executor.

use super::condition::{Bound, first_params};
use super::statement::Statement;
use crate::catalog::model::Collection;
use std::fmt::{Display, Write};

/// A call whose first arguments are the collection, its token and the shard's version.
pub struct Call {
    sql: String,
    params: Vec<Bound>,
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

    /// One more argument, of few values: it is part of the statement's text, of which the shard is told once.
    pub fn literal(mut self, value: impl Display) -> Self {
        let _ = write!(self.sql, ", {value}");
        self
    }

    /// One more argument. A null, or an empty text or array, is part of the statement: a shard has fewer parameters to read.
    pub fn argument(mut self, value: Bound) -> Self {
        match value {
            Bound::OptBytes(None) | Bound::OptText(None) => self.literal("NULL"),
            Bound::Text(text) if text.is_empty() => self.literal("''"),
            Bound::TextArray(items) if items.is_empty() => self.literal("'{}'"),
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
