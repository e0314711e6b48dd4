//! The operators of expressions: a table of name, arguments, properties and evaluation for each subject.

use super::node::{Call, Node};
use super::operand::Operand;
use super::parse::Parser;
use super::{
    accumulator, arithmetic, array, bits, boolean, convert, date, date_arithmetic, date_format, object, percentile,
    regex, set, string, trigonometry, variable,
};
use crate::error::{Error, Kind, Result};
use serde_json::Value as Json;

/// An operator: `{name: arguments}`.
pub(super) struct Operator {
    pub name: &'static str,
    pub arguments: Arguments,
    /// true if equal arguments give equal results
    pub pure: bool,
    pub evaluate: for<'s> fn(&Call<'s>) -> Result<Operand<'s>>,
}

/// How an operator takes its arguments.
pub(super) enum Arguments {
    /// at least and at most so many in an array; one may stand alone
    Positional(usize, usize),
    /// by name
    Named(&'static [Parameter], Refusal),
    /// its own way
    Special(fn(&mut Parser<'_>, &Json) -> Result<Vec<Node>>),
}

/// An argument that has a name.
pub(super) struct Parameter {
    pub name: &'static str,
    /// the error if it is not given
    pub required: Option<Kind>,
    /// true if it is not always evaluated
    pub lazy: bool,
}

impl Parameter {
    pub const fn required(name: &'static str, kind: Kind) -> Parameter {
        Parameter { name, required: Some(kind), lazy: false }
    }

    pub const fn optional(name: &'static str) -> Parameter {
        Parameter { name, required: None, lazy: false }
    }

    pub const fn lazy(name: &'static str) -> Parameter {
        Parameter { name, required: None, lazy: true }
    }
}

/// The errors of arguments that should have names.
pub(super) struct Refusal {
    /// they are no object
    pub object: Kind,
    /// a name is not known
    pub name: Kind,
}

impl Refusal {
    pub fn no_object(&self, operator: &str, found: &Json) -> Error {
        let found = crate::values::document::ext_json::from_json(found).map_or("object", |value| value.type_name());
        Error::new(self.object, format!("{operator} only supports an object as its argument, found: {found}"))
    }

    pub fn unknown(&self, operator: &str, name: &str) -> Error {
        Error::new(self.name, format!("Unrecognized argument to {operator}: {name}"))
    }
}

impl Operator {
    /// An operator whose result depends on its arguments alone.
    pub const fn new(
        name: &'static str,
        arguments: Arguments,
        evaluate: for<'s> fn(&Call<'s>) -> Result<Operand<'s>>,
    ) -> Operator {
        Operator { name, arguments, pure: true, evaluate }
    }

    /// One that takes so many arguments.
    pub const fn exactly(
        name: &'static str,
        count: usize,
        evaluate: for<'s> fn(&Call<'s>) -> Result<Operand<'s>>,
    ) -> Operator {
        Operator::new(name, Arguments::Positional(count, count), evaluate)
    }

    /// One that takes any number of arguments.
    pub const fn any(name: &'static str, evaluate: for<'s> fn(&Call<'s>) -> Result<Operand<'s>>) -> Operator {
        Operator::new(name, Arguments::Positional(0, usize::MAX), evaluate)
    }

    /// One that binds variables while it evaluates, or is not the same every time.
    pub const fn impure(
        name: &'static str,
        arguments: Arguments,
        evaluate: for<'s> fn(&Call<'s>) -> Result<Operand<'s>>,
    ) -> Operator {
        Operator { name, arguments, pure: false, evaluate }
    }
}

/// Every table.
const TABLES: &[&[Operator]] = &[
    boolean::OPERATORS,
    arithmetic::OPERATORS,
    trigonometry::OPERATORS,
    bits::OPERATORS,
    array::OPERATORS,
    set::OPERATORS,
    string::OPERATORS,
    regex::OPERATORS,
    convert::OPERATORS,
    date::OPERATORS,
    date_arithmetic::OPERATORS,
    date_format::OPERATORS,
    object::OPERATORS,
    accumulator::OPERATORS,
    percentile::OPERATORS,
    variable::OPERATORS,
];

/// MongoDB's operators that are not understood.
const NOT_SUPPORTED: &[&str] = &["$meta", "$encStrStartsWith"];

/// The operator of that name.
pub(super) fn find(name: &str) -> Option<&'static Operator> {
    TABLES.iter().flat_map(|table| table.iter()).find(|operator| operator.name == name)
}

/// True for an operator of MongoDB's, understood or not.
pub(super) fn is_known(name: &str) -> bool {
    NOT_SUPPORTED.contains(&name) || SCRIPTED.contains(&name) || find(name).is_some()
}

/// MongoDB's operators that run JavaScript at the server.
const SCRIPTED: &[&str] = &["$function", "$accumulator"];

/// The error for a name that is no operator's.
pub(super) fn unknown(name: &str) -> Error {
    if SCRIPTED.contains(&name) {
        let message = format!("{name} is not supported: there is no server-side JavaScript");
        return Error::new(Kind::NotImplemented, message).with_hint("Write it with other operators.");
    }
    if NOT_SUPPORTED.contains(&name) {
        return Error::new(Kind::NotImplemented, format!("the expression {name} is not supported"));
    }
    Error::new(Kind::InvalidPipelineOperator, format!("Unrecognized expression '{name}'"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operator_is_listed_once() {
        let names: Vec<&str> = TABLES
            .iter()
            .flat_map(|table| table.iter().map(|operator| operator.name))
            .chain(NOT_SUPPORTED.iter().chain(SCRIPTED).copied())
            .collect();
        for name in &names {
            assert!(name.starts_with('$'));
            assert_eq!(names.iter().filter(|other| *other == name).count(), 1, "{name}");
        }
    }
}
