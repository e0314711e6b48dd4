//! Arrays.

use super::node::{Call, Node};
use super::parse::{Arguments, Operator, Parameter, Parser, Refusal};
use crate::budget;
use crate::error::{Error, Kind, Result, bail, ensure, error};
use crate::query::fields::Fields;
use crate::query::operand::Operand;
use crate::values::document::MAX_DOCUMENT_BYTES;
use crate::values::document::ext_json;
use crate::values::document::number::Number;
use crate::values::document::value::Value;
use crate::values::path;
use serde_json::Value as Json;
use std::cmp::Ordering;

/// What `$range` may take: as much as MongoDB lets one stage have, at eight bytes a number.
const MAX_RANGE: i64 = 100 * 1024 * 1024 / 16;

pub(super) const OPERATORS: &[Operator] = &[
    Operator::exactly("$size", 1, size),
    Operator::exactly("$arrayElemAt", 2, element_at),
    Operator::exactly("$first", 1, |call| end(call, false)),
    Operator::exactly("$last", 1, |call| end(call, true)),
    Operator::any("$concatArrays", concat),
    Operator::exactly("$in", 2, contains),
    Operator::new("$indexOfArray", Arguments::Positional(2, 4), index_of),
    Operator::exactly("$isArray", 1, |call| Ok(Operand::bool(call.argument(0)?.is_array()))),
    Operator::new("$range", Arguments::Positional(2, 3), range),
    Operator::exactly("$reverseArray", 1, reverse),
    Operator::new("$slice", Arguments::Positional(2, 3), slice),
    Operator::new("$zip", Arguments::Special(parse_zip), zip),
    Operator::exactly("$arrayToObject", 1, to_object),
    Operator::exactly("$objectToArray", 1, from_object),
    Operator::new("$sortArray", Arguments::Special(parse_sort), sort),
    Operator::new("$firstN", N_ARGUMENTS, |call| take(call, |items, count| items.truncate(count))),
    Operator::new("$lastN", N_ARGUMENTS, |call| {
        take(call, |items, count| {
            items.drain(..items.len().saturating_sub(count));
        })
    }),
    Operator::new("$maxN", N_ARGUMENTS, |call| extremes(call, Ordering::reverse)),
    Operator::new("$minN", N_ARGUMENTS, |call| extremes(call, |order| order)),
];

const N_ARGUMENTS: Arguments = Arguments::Named(
    &[Parameter::required("n", Kind::Location(5787906)), Parameter::required("input", Kind::Location(5787907))],
    Refusal { object: Kind::Location(5787801), name: Kind::Location(5787901) },
);

fn fail<T>(kind: Kind, message: impl Into<String>) -> Result<T> {
    Err(Error::new(kind, message))
}

fn size(call: &Call<'_>) -> Result<Operand<'static>> {
    let array = call.argument(0)?;
    match array.array_len() {
        Some(length) => Ok(Operand::int(length as i64)),
        None => bail!(17124, "The argument to $size must be an array, but was of type: {}", array.type_name()),
    }
}

/// An integer of 32 bits, in any type of number.
pub(super) fn int32(operand: &Operand<'_>) -> Option<i64> {
    operand.number()?.as_i64().filter(|value| i32::try_from(*value).is_ok())
}

fn element_at<'s>(call: &Call<'s>) -> Result<Operand<'s>> {
    let (array, index) = (call.argument(0)?, call.argument(1)?);
    if array.is_nullish() || index.is_nullish() {
        return Ok(Operand::NULL);
    }
    let Some(length) = array.array_len() else {
        bail!(28689, "$arrayElemAt's first argument must be an array, but is {}", array.type_name())
    };
    if index.number().is_none() {
        bail!(28690, "$arrayElemAt's second argument must be a numeric value, but is {}", index.type_name());
    }
    let Some(index) = int32(&index) else {
        bail!(28691, "$arrayElemAt's second argument must be representable as a 32-bit integer: {}", index.shown())
    };
    let index = if index < 0 { index + length as i64 } else { index };
    Ok(usize::try_from(index).map_or(Operand::Missing, |index| array.into_item(index)))
}

fn end<'s>(call: &Call<'s>, last: bool) -> Result<Operand<'s>> {
    let array = call.argument(0)?;
    if array.is_nullish() {
        return Ok(Operand::NULL);
    }
    match array.array_len() {
        Some(length) => Ok(array.into_item(if last { length.wrapping_sub(1) } else { 0 })),
        None => bail!(28689, "{}'s argument must be an array, but is {}", call.name, array.type_name()),
    }
}

fn concat(call: &Call<'_>) -> Result<Operand<'static>> {
    let mut all = Vec::new();
    for array in call.arguments() {
        let array = array?;
        if array.is_nullish() {
            return Ok(Operand::NULL);
        }
        let type_name = array.type_name();
        let Some(items) = array.into_items() else {
            bail!(28664, "$concatArrays only supports arrays, not {type_name}")
        };
        budget::room_for(items.len() * size_of::<Value>());
        all.extend(items.into_iter().map(Operand::into_value));
    }
    Ok(Operand::array(all))
}

fn contains(call: &Call<'_>) -> Result<Operand<'static>> {
    let (value, array) = (call.argument(0)?, call.argument(1)?);
    let type_name = array.type_name();
    match array.into_items() {
        Some(items) => Ok(Operand::bool(items.iter().any(|item| call.compare(item, &value).is_eq()))),
        None => bail!(40081, "$in requires an array as a second argument, found: {type_name}"),
    }
}

/// The bounds of a search: arguments 2 and 3, not negative; the whole length where they are not given.
pub(super) fn search_bounds(call: &Call<'_>) -> Result<(usize, usize)> {
    let bound = |index: usize, which: &str| -> Result<Option<usize>> {
        if !call.given(index) {
            return Ok(None);
        }
        let operand = call.argument(index)?;
        let Some(value) = int32(&operand) else {
            let message = format!(
                "{} requires an integral {which} index, found a value of type: {}, with value: \"{}\"",
                call.name,
                operand.type_name(),
                operand.shown()
            );
            // Beyond 32 bits MongoDB takes what is left of the number, which is negative.
            let beyond = operand.number().and_then(|number| number.as_i64()).is_some();
            return fail(if beyond { Kind::Location(40097) } else { Kind::Location(40096) }, message);
        };
        match usize::try_from(value) {
            Ok(value) => Ok(Some(value)),
            Err(_) => bail!(40097, "{} requires a nonnegative {which} index, found: {value}", call.name),
        }
    };
    Ok((bound(2, "starting")?.unwrap_or(0), bound(3, "ending")?.unwrap_or(usize::MAX)))
}

fn index_of(call: &Call<'_>) -> Result<Operand<'static>> {
    let array = call.argument(0)?;
    if array.is_nullish() {
        return Ok(Operand::NULL);
    }
    let type_name = array.type_name();
    let Some(items) = array.into_items() else {
        bail!(40090, "$indexOfArray requires an array as a first argument, found: {type_name}")
    };
    let wanted = call.argument(1)?;
    let (from, to) = search_bounds(call)?;
    let to = to.min(items.len());
    let found = (from..to).find(|index| call.compare(&items[*index], &wanted).is_eq());
    Ok(Operand::int(found.map_or(-1, |index| index as i64)))
}

fn range(call: &Call<'_>) -> Result<Operand<'static>> {
    let bound = |index: usize, what: &str, no_number: Kind, no_integer: Kind| -> Result<i64> {
        let operand = call.argument(index)?;
        if operand.number().is_none() {
            bail!(no_number, "$range requires a numeric {what} value, found value of type: {}", operand.type_name());
        }
        match int32(&operand) {
            Some(value) => Ok(value),
            None => bail!(
                no_integer,
                "$range requires a {what} value that can be represented as a 32-bit integer, found value: {}",
                operand.shown()
            ),
        }
    };
    let start = bound(0, "starting", Kind::Location(34443), Kind::Location(34444))?;
    let stop = bound(1, "ending", Kind::Location(34445), Kind::Location(34446))?;
    let step = if call.given(2) { bound(2, "step", Kind::Location(34447), Kind::Location(34448))? } else { 1 };
    ensure!(step != 0, 34449, "$range requires a non-zero step value");
    let count = (stop - start + step - step.signum()).div_euclid(step).max(0);
    ensure!(count <= MAX_RANGE, Kind::ExceededMemoryLimit, "$range would use too much memory ({count} numbers)");
    budget::room_for(usize::try_from(count).unwrap_or(0) * size_of::<Value>());
    budget::steps(1 + usize::try_from(count).unwrap_or(0) / 16);
    Ok(Operand::array((0..count).map(|index| Value::Number(Number::Int(start + index * step))).collect()))
}

fn reverse(call: &Call<'_>) -> Result<Operand<'static>> {
    let array = call.argument(0)?;
    if array.is_nullish() {
        return Ok(Operand::NULL);
    }
    let type_name = array.type_name();
    match array.into_items() {
        Some(items) => Ok(Operand::array(items.into_iter().rev().map(Operand::into_value).collect())),
        None => bail!(34435, "The argument to $reverseArray must be an array, but was of type: {type_name}"),
    }
}

fn slice(call: &Call<'_>) -> Result<Operand<'static>> {
    let (array, first) = (call.argument(0)?, call.argument(1)?);
    if array.is_nullish() || first.is_nullish() {
        return Ok(Operand::NULL);
    }
    let type_name = array.type_name();
    let Some(length) = array.array_len() else {
        bail!(28724, "First argument to $slice must be an array, but is of type: {type_name}")
    };
    let integer = |operand: &Operand<'_>, which: &str, no_number: Kind, no_integer: Kind| -> Result<i64> {
        if operand.number().is_none() {
            bail!(no_number, "{which} argument to $slice must be numeric, but is of type: {}", operand.type_name());
        }
        int32(operand).map_or_else(
            || {
                bail!(
                    no_integer,
                    "{which} argument to $slice can't be represented as a 32-bit integer: {}",
                    operand.shown()
                )
            },
            Ok,
        )
    };
    let first = integer(&first, "Second", Kind::Location(28725), Kind::Location(28726))?;
    let length = length as i64;
    let (from, to) = if call.given(2) {
        let count = call.argument(2)?;
        if count.is_nullish() {
            return Ok(Operand::NULL);
        }
        let count = integer(&count, "Third", Kind::Location(28727), Kind::Location(28728))?;
        ensure!(count > 0, 28729, "Third argument to $slice must be positive: {count}");
        let from = if first < 0 { (length + first).max(0) } else { first.min(length) };
        (from, (from + count).min(length))
    } else if first >= 0 {
        (0, first.min(length))
    } else {
        ((length + first).max(0), length)
    };
    let items = array.into_items().unwrap_or_default().into_iter();
    Ok(Operand::array(items.skip(from as usize).take((to - from) as usize).map(Operand::into_value).collect()))
}

/// `useLongestLength` as a constant, then the inputs and the defaults, each an array.
fn parse_zip(parser: &mut Parser<'_>, argument: &Json) -> Result<Vec<Node>> {
    let Json::Object(fields) = argument else { bail!(34460, "$zip only supports an object as an argument") };
    let names = ["inputs", "defaults", "useLongestLength"];
    if let Some(unknown) = fields.keys().find(|name| !names.contains(&name.as_str())) {
        bail!(34464, "$zip found an unknown argument: {unknown}");
    }
    let list = |name: &str| match fields.get(name) {
        None => &[][..],
        Some(Json::Array(items)) => items,
        Some(single) => std::slice::from_ref(single),
    };
    if let Some(Json::Null | Json::Bool(_) | Json::Number(_)) = fields.get("inputs") {
        bail!(34461, "inputs must be an array of expressions");
    }
    if fields.get("defaults").is_some_and(|defaults| !defaults.is_array()) {
        bail!(34462, "defaults must be an array of expressions");
    }
    let longest = match fields.get("useLongestLength") {
        None => false,
        Some(Json::Bool(longest)) => *longest,
        Some(_) => bail!(34463, "useLongestLength must be a bool"),
    };
    let defaults = list("defaults");
    let single = match fields.get("inputs") {
        Some(inputs @ (Json::String(_) | Json::Object(_))) => Some(inputs),
        _ => None,
    };
    let inputs = if single.is_some() { &[][..] } else { list("inputs") };
    if inputs.is_empty() && single.is_none() {
        bail!(34465, "$zip requires at least one input array");
    }
    if !longest && fields.contains_key("defaults") {
        bail!(34466, "cannot specify defaults unless useLongestLength is true");
    }
    if !defaults.is_empty() && defaults.len() != inputs.len() {
        bail!(34467, "defaults and inputs must have the same length");
    }
    let mut items = inputs.iter().map(|json| parser.node(json)).collect::<Result<Vec<_>>>()?;
    let inputs = match single {
        Some(json) => parser.node(json)?,
        None => Node::Array(std::mem::take(&mut items)),
    };
    let defaults = defaults.iter().map(|json| parser.node(json)).collect::<Result<Vec<_>>>()?;
    Ok(vec![Node::Constant(Value::Bool(longest)), inputs, Node::Array(defaults)])
}

fn zip(call: &Call<'_>) -> Result<Operand<'static>> {
    let longest = call.argument(0)?.is_true();
    let all = call.argument(1)?;
    if all.is_nullish() {
        return Ok(Operand::NULL);
    }
    let no_array =
        |found: &Operand<'_>| error!(34468, "$zip found a non-array expression in input: {}", found.type_name());
    let mut inputs = Vec::new();
    for input in all.clone().into_items().ok_or_else(|| no_array(&all))? {
        if input.is_nullish() {
            return Ok(Operand::NULL);
        }
        inputs.push(input.clone().into_items().ok_or_else(|| no_array(&input))?);
    }
    let defaults = call.argument(2)?.into_items().unwrap_or_default();
    let lengths = inputs.iter().map(Vec::len);
    let length = if longest { lengths.max() } else { lengths.min() }.unwrap_or(0);
    let row = |row: usize| {
        budget::steps(1 + inputs.len());
        budget::room_for(inputs.len() * size_of::<Value>());
        let item = |(index, input): (usize, &Vec<Operand<'_>>)| match input.get(row) {
            Some(item) => budget::copying(|| item.clone().into_value()),
            None => defaults.get(index).cloned().unwrap_or(Operand::NULL).into_value(),
        };
        Value::Array(inputs.iter().enumerate().map(item).collect())
    };
    Ok(Operand::array((0..length).map(row).collect()))
}

fn to_object(call: &Call<'_>) -> Result<Operand<'static>> {
    let array = call.argument(0)?;
    if array.is_nullish() {
        return Ok(Operand::NULL);
    }
    let type_name = array.type_name();
    let Some(items) = array.into_items() else {
        bail!(40386, "$arrayToObject requires an array input, found: {type_name}")
    };
    budget::room_for(items.len() * size_of::<(String, Value)>());
    let mut fields = Fields::default();
    let pairs = items.first().is_some_and(Operand::is_array);
    for item in items {
        let (key, value) = if pairs {
            let type_name = item.type_name();
            let Some(mut pair) = item.into_items() else {
                bail!(
                    40396,
                    "$arrayToObject requires a consistent input format. Elements must all be arrays or all be objects. Array was detected, now found: {type_name}"
                )
            };
            let (Some(value), Some(key), 0) = (pair.pop(), pair.pop(), pair.len()) else {
                bail!(40397, "$arrayToObject requires an array of size 2 arrays")
            };
            let Some(name) = key.text() else {
                bail!(
                    40395,
                    "$arrayToObject requires an array of key-value pairs, where the key must be of type string. Found key type: {}",
                    key.type_name()
                )
            };
            (name.to_owned(), value)
        } else {
            if !item.is_object() {
                let kind = if fields.is_empty() { Kind::Location(40398) } else { Kind::Location(40391) };
                bail!(
                    kind,
                    "$arrayToObject requires a consistent input format. Elements must all be arrays or all be objects. Found: {}",
                    item.type_name()
                );
            }
            let count = item.clone().into_fields().map_or(0, |fields| fields.len());
            if count != 2 {
                bail!(
                    40392,
                    "$arrayToObject requires an object keys of 'k' and 'v'. Found incorrect number of keys:{count}"
                );
            }
            let (key, value) = (item.clone().into_field("k"), item.into_field("v"));
            if key.is_missing() || value.is_missing() {
                bail!(40393, "$arrayToObject requires an object with keys 'k' and 'v'.");
            }
            let Some(name) = key.text() else {
                bail!(
                    40394,
                    "$arrayToObject requires an object with keys 'k' and 'v', where the value of 'k' must be of type string. Found type: {}",
                    key.type_name()
                )
            };
            (name.to_owned(), value)
        };
        ensure!(!key.contains('\0'), 4940400, "Key field cannot contain an embedded null byte");
        fields.put(key, value.into_value());
    }
    Ok(Operand::Made(fields.into_value()))
}

fn from_object(call: &Call<'_>) -> Result<Operand<'static>> {
    let object = call.argument(0)?;
    if object.is_nullish() {
        return Ok(Operand::NULL);
    }
    let type_name = object.type_name();
    let Some(fields) = object.into_fields() else {
        bail!(40390, "$objectToArray requires a document input, found: {type_name}")
    };
    let pair = |(name, value): (String, Operand<'_>)| {
        budget::step();
        Value::Object(vec![("k".to_owned(), Value::String(name)), ("v".to_owned(), value.into_value())])
    };
    Ok(Operand::array(fields.into_iter().map(pair).collect()))
}

/// The input, then the order: for each field its path and direction; an empty path for whole elements.
fn parse_sort(parser: &mut Parser<'_>, argument: &Json) -> Result<Vec<Node>> {
    let Json::Object(fields) = argument else {
        let found = ext_json::from_json(argument).map_or("object", |value| value.type_name());
        bail!(2942500, "$sortArray requires an object as an argument, found: {found}");
    };
    if let Some(unknown) = fields.keys().find(|name| !["input", "sortBy"].contains(&name.as_str())) {
        bail!(2942501, "$sortArray found an unknown argument: {unknown}");
    }
    let Some(input) = fields.get("input") else { bail!(2942502, "$sortArray requires 'input' to be specified") };
    let Some(order) = fields.get("sortBy") else { bail!(2942503, "$sortArray requires 'sortBy' to be specified") };
    let mut nodes = vec![parser.node(input)?];
    match order {
        Json::Object(fields) if !fields.keys().any(|name| name.starts_with("$number")) => {
            ensure!(!fields.is_empty(), 15976, "$sort stage must have at least one sort key");
            for (name, direction) in fields {
                path::check_field_path(name)?;
                nodes.push(Node::Constant(Value::String(name.clone())));
                nodes.push(Node::Constant(Value::Bool(is_descending(direction)?)));
            }
        }
        direction => {
            nodes.push(Node::Constant(Value::String(String::new())));
            nodes.push(Node::Constant(Value::Bool(is_descending(direction)?)));
        }
    }
    Ok(nodes)
}

fn is_descending(json: &Json) -> Result<bool> {
    match ext_json::from_json(json)? {
        Value::Number(number) if number.as_i64() == Some(1) => Ok(false),
        Value::Number(number) if number.as_i64() == Some(-1) => Ok(true),
        Value::Number(_) => bail!(15975, "$sort key ordering must be 1 (for ascending) or -1 (for descending)"),
        _ => bail!(15974, "Illegal key in $sort specification: {json}"),
    }
}

fn sort(call: &Call<'_>) -> Result<Operand<'static>> {
    let input = call.argument(0)?;
    if input.is_nullish() {
        return Ok(Operand::NULL);
    }
    let type_name = input.type_name();
    let Some(items) = input.into_items() else {
        bail!(2942504, "The input argument to $sortArray must be an array, but was of type: {type_name}")
    };
    let mut order = Vec::new();
    for index in (1..call.len()).step_by(2) {
        order.push((call.argument(index)?.text().unwrap_or_default().to_owned(), call.argument(index + 1)?.is_true()));
    }
    let mut keyed: Vec<(Vec<Operand<'_>>, Operand<'_>)> = items
        .into_iter()
        .map(|item| {
            budget::step();
            let key = |path: &String| {
                budget::copying(|| if path.is_empty() { item.clone() } else { null_for_missing(item.clone().at(path)) })
            };
            (order.iter().map(|(path, _)| key(path)).collect(), item)
        })
        .collect();
    keyed.sort_by(|(a, _), (b, _)| {
        let fields = a.iter().zip(b).zip(&order);
        let orders = fields.map(|((a, b), (_, descending))| {
            let order = call.compare(a, b);
            if *descending { order.reverse() } else { order }
        });
        orders.fold(Ordering::Equal, Ordering::then)
    });
    Ok(Operand::array(keyed.into_iter().map(|(_, item)| item.into_value()).collect()))
}

fn null_for_missing(operand: Operand<'_>) -> Operand<'_> {
    if operand.is_missing() { Operand::NULL } else { operand }
}

/// Checks `n` and `input`.
fn n_arguments<'s>(call: &Call<'s>) -> Result<(usize, Vec<Operand<'s>>)> {
    let n = call.argument(0)?;
    ensure!(n.number().is_some(), 5787902, "Value for 'n' must be of integral type, but found {}", n.shown());
    let Some(count) = n.number().and_then(|number| number.as_i64()) else {
        bail!(5787903, "Value for 'n' must be of integral type, but found {}", n.shown())
    };
    ensure!(count > 0, 5787908, "'n' must be greater than 0, found {count}");
    let input = call.argument(1)?;
    match input.into_items() {
        Some(items) => Ok((usize::try_from(count).unwrap_or(MAX_DOCUMENT_BYTES), items)),
        None => bail!(5788200, "Input must be an array"),
    }
}

fn take(call: &Call<'_>, cut: fn(&mut Vec<Operand<'_>>, usize)) -> Result<Operand<'static>> {
    let (count, mut items) = n_arguments(call)?;
    cut(&mut items, count);
    Ok(Operand::array(items.into_iter().map(Operand::into_value).collect()))
}

/// The first elements in the order; null and missing don't count.
fn extremes(call: &Call<'_>, order: fn(Ordering) -> Ordering) -> Result<Operand<'static>> {
    let (count, mut items) = n_arguments(call)?;
    items.retain(|item| !item.is_nullish());
    items.sort_by(|a, b| order(call.compare(a, b)));
    items.truncate(count);
    Ok(Operand::array(items.into_iter().map(Operand::into_value).collect()))
}
