//! A request to a node, and what carries it there.

use super::answer::Answer;
use crate::error::{Error, Result};
use crate::sql::column::Column;
use crate::sql::param::Param;
use crate::sql::record::Row;

/// Something that runs a statement at a node.
pub trait Connection {
    /// a row of its answers
    type Row: Row;

    /// Runs a statement; returns all its rows, which have these columns.
    fn ask(&mut self, sql: &str, params: &[Param<'_>], columns: &'static [Column]) -> Result<Vec<Self::Row>>;

    /// Sends a statement whose answer, with these columns, is awaited later.
    fn start(&mut self, sql: &str, params: &[Param<'_>], columns: &'static [Column]) -> Result<()>;

    /// Names the node in an error about its answer.
    fn name_node(&self, error: Error) -> Error;
}

/// One request to a node: a call of a function, or a declared statement.
pub trait Call {
    /// what the node answers
    type Answer: Answer;
    /// its name in errors
    const NAME: &'static str;

    /// The statement that is nothing but this request.
    fn statement(&self) -> String;

    /// Its parameters.
    fn params(&self) -> Vec<Param<'_>>;

    /// Decodes the rows of the answer.
    /// Errors: 08P01, naming the call, for anything but the declared columns.
    fn decode<R: Row>(rows: &[R]) -> Result<Self::Answer> {
        Self::Answer::decode(Self::NAME, rows)
    }

    /// Sends the request and waits for its answer.
    fn call(&self, connection: &mut impl Connection) -> Result<Self::Answer> {
        let rows = connection.ask(&self.statement(), &self.params(), Self::Answer::COLUMNS)?;
        Self::decode(&rows).map_err(|error| connection.name_node(error))
    }

    /// Sends the request; [`decode`](Self::decode) reads the rows that come later.
    fn start(&self, connection: &mut impl Connection) -> Result<()> {
        connection.start(&self.statement(), &self.params(), Self::Answer::COLUMNS)
    }
}
