//! A request to a node, and what carries it there.

use super::answer::Answer;
use super::signature::Signature;
use crate::error::Result;
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
}

/// One request to a node.
pub trait Call {
    /// what the node answers
    type Answer: Answer;
    /// the function that serves it
    const SIGNATURE: Signature;

    /// The function's arguments.
    fn params(&self) -> Vec<Param<'_>>;

    /// The statement that is nothing but this call, the same for all arguments.
    fn statement() -> String {
        Self::SIGNATURE.statement()
    }

    /// Decodes the rows of the answer.
    /// Errors: 08P01, naming the call, for anything but the declared columns.
    fn decode<R: Row>(rows: &[R]) -> Result<Self::Answer> {
        Self::Answer::decode(&Self::SIGNATURE, rows)
    }

    /// Sends the request and waits for its answer.
    fn call(&self, connection: &mut impl Connection) -> Result<Self::Answer> {
        Self::decode(&connection.ask(&Self::statement(), &self.params(), Self::Answer::COLUMNS)?)
    }

    /// Sends the request; [`decode`](Self::decode) reads the rows that come later.
    fn start(&self, connection: &mut impl Connection) -> Result<()> {
        connection.start(&Self::statement(), &self.params(), Self::Answer::COLUMNS)
    }
}
