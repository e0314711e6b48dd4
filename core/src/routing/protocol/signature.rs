//! The signature of a protocol function: name, parameters and result, and the statement that calls it.

/// The schema of all these functions, as statements name them.
pub const SCHEMA: &str = "docshard_internal";

/// A function's or another object's qualified name.
pub fn qualified(name: &str) -> String {
    format!("{SCHEMA}.{name}")
}

use crate::sql::record::Column;

/// What a function returns.
#[derive(Clone, Copy, Debug)]
pub enum Shape {
    /// nothing
    Void,
    /// one value of this type
    Value(&'static str),
    /// rows of one column of this type
    Set(&'static str),
    /// rows of these columns
    Table(&'static [Column]),
}

/// A function as the extension declares it.
#[derive(Clone, Copy, Debug)]
pub struct Signature {
    pub function: &'static str,
    pub arguments: &'static [Column],
    /// what it returns
    pub returns: Shape,
}

impl Signature {
    /// The function's qualified name.
    pub fn name(&self) -> String {
        qualified(self.function)
    }

    /// The call with `$1`, `$2`, … as arguments.
    pub fn invocation(&self) -> String {
        let arguments: Vec<String> = (1..=self.arguments.len()).map(|n| format!("${n}")).collect();
        format!("{}({})", self.name(), arguments.join(", "))
    }

    /// The statement that calls it, without further clauses.
    pub fn statement(&self) -> String {
        match self.returns {
            Shape::Void | Shape::Value(_) => format!("SELECT {}", self.invocation()),
            Shape::Set(_) => format!("SELECT * FROM {}", self.invocation()),
            Shape::Table(columns) => {
                let names: Vec<_> = columns.iter().map(|(name, _)| *name).collect();
                format!("SELECT {} FROM {}", names.join(", "), self.invocation())
            }
        }
    }
}
