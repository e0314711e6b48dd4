//! Parts of SQL statements: their parameters, quoted names and texts, and the rows of their results. What runs a statement, and where,
//! is no concern of this folder.

pub mod column;
pub mod param;
pub mod quote;
pub mod record;
