//! Joins the tables of expression operators.

use super::parse::Operator;
use super::{
    accumulator, arithmetic, array, bits, boolean, convert, date, date_arithmetic, date_format, hash, object,
    percentile, regex, set, string, trigonometry, variable,
};
use crate::error::{Error, Kind, Result, error};

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
    hash::OPERATORS,
    date::OPERATORS,
    date_arithmetic::OPERATORS,
    date_format::OPERATORS,
    object::OPERATORS,
    accumulator::OPERATORS,
    percentile::OPERATORS,
    variable::OPERATORS,
];

/// The names of all operators.
pub(crate) fn operator_names() -> impl Iterator<Item = &'static str> {
    TABLES.iter().flat_map(|table| table.iter()).map(|operator| operator.function.name)
}

/// MongoDB's operators that are not supported.
const NOT_SUPPORTED: &[&str] = &["$meta", "$encStrStartsWith", "$serializeEJSON", "$deserializeEJSON"];

/// Finds an operator by its name.
///
/// # Errors
/// `InvalidPipelineOperator` for an unknown name, `NotImplemented` for one of MongoDB's operators that is not supported.
pub(super) fn find(name: &str) -> Result<&'static Operator> {
    known(name).ok_or_else(|| unknown(name))
}

fn known(name: &str) -> Option<&'static Operator> {
    TABLES.iter().flat_map(|table| table.iter()).find(|operator| operator.function.name == name)
}

/// True for one of MongoDB's operators, supported or not.
pub(super) fn is_known(name: &str) -> bool {
    NOT_SUPPORTED.contains(&name) || SCRIPTED.contains(&name) || known(name).is_some()
}

/// MongoDB's operators that run JavaScript on the server.
const SCRIPTED: &[&str] = &["$function", "$accumulator"];

/// The error for a name that [`known`] does not find.
fn unknown(name: &str) -> Error {
    if SCRIPTED.contains(&name) {
        return error!(Kind::NotImplemented, "{name} is not supported: there is no server-side JavaScript")
            .with_hint("Write it with other operators.");
    }
    if NOT_SUPPORTED.contains(&name) {
        return error!(Kind::NotImplemented, "the expression {name} is not supported");
    }
    error!(Kind::InvalidPipelineOperator, "Unrecognized expression '{name}'")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operator_is_listed_once() {
        let names: Vec<&str> = TABLES
            .iter()
            .flat_map(|table| table.iter().map(|operator| operator.function.name))
            .chain(NOT_SUPPORTED.iter().chain(SCRIPTED).copied())
            .collect();
        for name in &names {
            assert!(name.starts_with('$'));
            assert_eq!(names.iter().filter(|other| *other == name).count(), 1, "{name}");
        }
    }
}
