//! Arrays as sets: order and repetition do not count.

use super::node::Call;
use super::parse::Operator;
use crate::error::{Kind, Result, bail, ensure};
use crate::query::operand::Operand;
use crate::values::document::value::Value;

pub(super) const OPERATORS: &[Operator] = &[
    Operator::any("$setEquals", equals),
    Operator::any("$setIntersection", intersection),
    Operator::any("$setUnion", union),
    Operator::exactly("$setDifference", 2, difference),
    Operator::exactly("$setIsSubset", 2, is_subset),
    Operator::exactly("$anyElementTrue", 1, |call| elements(call, Kind::Location(17041), false)),
    Operator::exactly("$allElementsTrue", 1, |call| elements(call, Kind::Location(17040), true)),
];

fn no_array<T>(kind: Kind, name: &str, which: &str, found: &Operand<'_>) -> Result<T> {
    bail!(kind, "{which} of {name} must be arrays. One argument is of type: {}", found.type_name())
}

/// The elements, sorted, each once.
fn set_of(call: &Call<'_>, items: Vec<Operand<'_>>) -> Vec<Value> {
    let mut values: Vec<Value> = items.into_iter().map(Operand::into_value).collect();
    values.sort_by(|a, b| call.compare_values(a, b));
    values.dedup_by(|a, b| call.compare_values(a, b).is_eq());
    values
}

fn contains(call: &Call<'_>, set: &[Value], value: &Value) -> bool {
    set.binary_search_by(|known| call.compare_values(known, value)).is_ok()
}

fn equals(call: &Call<'_>) -> Result<Operand<'static>> {
    ensure!(call.len() >= 2, 17045, "$setEquals needs at least two arguments had: {}", call.len());
    let mut first: Option<Vec<Value>> = None;
    let mut equal = true;
    for argument in call.arguments() {
        let argument = argument?;
        let Some(items) = argument.clone().into_items() else {
            return no_array(Kind::Location(17044), call.name, "All operands", &argument);
        };
        let set = set_of(call, items);
        match &first {
            None => first = Some(set),
            Some(known) => {
                let same = |(a, b): (&Value, &Value)| call.compare_values(a, b).is_eq();
                equal &= known.len() == set.len() && known.iter().zip(&set).all(same);
            }
        }
    }
    Ok(Operand::bool(equal))
}

fn intersection(call: &Call<'_>) -> Result<Operand<'static>> {
    let mut common: Option<Vec<Value>> = None;
    for argument in call.arguments() {
        let argument = argument?;
        if argument.is_nullish() {
            return Ok(Operand::NULL);
        }
        let Some(items) = argument.clone().into_items() else {
            return no_array(Kind::Location(17047), call.name, "All operands", &argument);
        };
        let set = set_of(call, items);
        match &mut common {
            None => common = Some(set),
            Some(common) => common.retain(|value| contains(call, &set, value)),
        }
    }
    Ok(Operand::array(common.unwrap_or_default()))
}

fn union(call: &Call<'_>) -> Result<Operand<'static>> {
    let mut all = Vec::new();
    for argument in call.arguments() {
        let argument = argument?;
        if argument.is_nullish() {
            return Ok(Operand::NULL);
        }
        let Some(items) = argument.clone().into_items() else {
            return no_array(Kind::Location(17043), call.name, "All operands", &argument);
        };
        all.extend(items);
    }
    Ok(Operand::array(set_of(call, all)))
}

/// Keeps the order of the first array.
fn difference(call: &Call<'_>) -> Result<Operand<'static>> {
    let (left, right) = (call.argument(0)?, call.argument(1)?);
    if left.is_nullish() || right.is_nullish() {
        return Ok(Operand::NULL);
    }
    let Some(items) = left.clone().into_items() else {
        return no_array(Kind::Location(17048), call.name, "Both operands", &left);
    };
    let Some(others) = right.clone().into_items() else {
        return no_array(Kind::Location(17049), call.name, "Both operands", &right);
    };
    let excluded = set_of(call, others);
    let mut kept: Vec<(usize, Value)> = items.into_iter().map(Operand::into_value).enumerate().collect();
    kept.retain(|(_, value)| !contains(call, &excluded, value));
    // Of equal ones the first stays.
    kept.sort_by(|(_, a), (_, b)| call.compare_values(a, b));
    kept.dedup_by(|(_, b), (_, a)| call.compare_values(a, b).is_eq());
    kept.sort_unstable_by_key(|(position, _)| *position);
    Ok(Operand::array(kept.into_iter().map(|(_, value)| value).collect()))
}

fn is_subset(call: &Call<'_>) -> Result<Operand<'static>> {
    let (left, right) = (call.argument(0)?, call.argument(1)?);
    let Some(items) = left.clone().into_items() else {
        return no_array(Kind::Location(17046), call.name, "Both operands", &left);
    };
    let Some(others) = right.clone().into_items() else {
        return no_array(Kind::Location(17042), call.name, "Both operands", &right);
    };
    let others = set_of(call, others);
    Ok(Operand::bool(items.into_iter().all(|item| contains(call, &others, &item.into_value()))))
}

fn elements(call: &Call<'_>, no_array: Kind, all: bool) -> Result<Operand<'static>> {
    let array = call.argument(0)?;
    let type_name = array.type_name();
    let Some(items) = array.into_items() else {
        bail!(no_array, "{}'s argument must be an array, but is {type_name}", call.name)
    };
    let mut truths = items.iter().map(Operand::is_true);
    Ok(Operand::bool(if all { truths.all(|truth| truth) } else { truths.any(|truth| truth) }))
}
