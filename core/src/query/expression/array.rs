//! Operators on arrays.

use super::node::{Call, ExpressionNode};
use super::parse::{Arguments, Operator, Parser, field, list, named, required};
use crate::budget;
use crate::error::{Kind, Result, bail, ensure, error};
use crate::json::pairs_as_object;
use crate::query::document_builder::DocumentBuilder;
use crate::query::operand::Operand;
use crate::values::document::MAX_DOCUMENT_BYTES;
use crate::values::document::ext_json;
use crate::values::document::number::Number;
use crate::values::document::value::Value;
use crate::values::path;
use serde_json::Value as Json;
use std::cmp::Ordering;

/// The most numbers that `$range` returns: MongoDB's memory limit of a stage, 100 MB, in values of 16 bytes.
const MAX_RANGE: i64 = 100 * 1024 * 1024 / 16;

pub(super) const OPERATORS: &[Operator] = &[
    Operator::exactly("$size", 1, |call| {
        let array = call.argument(0)?;
        let length = array.array_len().ok_or_else(|| call.wrong_type(&array, "its argument", "an array", 17124))?;
        Ok(Operand::int(length as i64))
    }),
    Operator::binary("$arrayElemAt", element_at),
    Operator::unary("$first", |call, array| end(call, array, false)),
    Operator::unary("$last", |call, array| end(call, array, true)),
    Operator::any("$concatArrays", concat),
    Operator::exactly("$in", 2, |call| {
        let (value, array) = (call.argument(0)?, call.argument(1)?);
        let items = call.items(array, "its second argument", 40081)?;
        Ok(Operand::bool(items.iter().any(|item| call.compare(item, &value).is_eq())))
    }),
    Operator::new("$indexOfArray", Arguments::Positional(2, 4), index_of),
    Operator::exactly("$isArray", 1, |call| Ok(Operand::bool(call.argument(0)?.is_array()))),
    Operator::new("$range", Arguments::Positional(2, 3), range),
    Operator::unary("$reverseArray", |call, array| {
        of_items(call.items(array, "its argument", 34435)?.into_iter().rev())
    }),
    Operator::new("$slice", Arguments::Positional(2, 3), slice),
    Operator::new("$zip", Arguments::Special(parse_zip), zip),
    Operator::unary("$arrayToObject", to_object),
    Operator::unary("$objectToArray", from_object),
    Operator::new("$sortArray", Arguments::Special(parse_sort), sort),
    Operator::new("$firstN", N_ARGUMENTS, |call| {
        let (count, items) = n_arguments(call)?;
        of_items(items.into_iter().take(count))
    }),
    Operator::new("$lastN", N_ARGUMENTS, |call| {
        let (count, items) = n_arguments(call)?;
        let skipped = items.len().saturating_sub(count);
        of_items(items.into_iter().skip(skipped))
    }),
    Operator::new("$maxN", N_ARGUMENTS, |call| extremes(call, Ordering::reverse)),
    Operator::new("$minN", N_ARGUMENTS, |call| extremes(call, |order| order)),
];

const N_ARGUMENTS: Arguments =
    Arguments::Named(&[required("n", 5787906), required("input", 5787907)], [5787801, 5787901]);

fn of_items<'s>(items: impl Iterator<Item = Operand<'s>>) -> Result<Operand<'static>> {
    Operand::array(items.map(Operand::into_value).collect())
}

fn element_at<'s>(call: &Call<'s>, array: Operand<'s>, index: Operand<'s>) -> Result<Operand<'s>> {
    let length = array.array_len();
    let length = length.ok_or_else(|| call.wrong_type(&array, "its first argument", "an array", 28689))?;
    let index = call.int32(&index, "its second argument", [28690, 28691])?;
    let index = if index < 0 { index + length as i64 } else { index };
    Ok(usize::try_from(index).map_or(Operand::Missing, |index| array.into_item(index)))
}

fn end<'s>(call: &Call<'s>, array: Operand<'s>, last: bool) -> Result<Operand<'s>> {
    let length = array.array_len();
    let length = length.ok_or_else(|| call.wrong_type(&array, "its argument", "an array", 28689))?;
    Ok(array.into_item(if last { length.wrapping_sub(1) } else { 0 }))
}

fn concat(call: &Call<'_>) -> Result<Operand<'static>> {
    let mut all = Vec::new();
    for array in call.arguments() {
        let Some(array) = array?.non_null() else { return Ok(Operand::NULL) };
        let items = call.items(array, "its arguments", 28664)?;
        budget::room_for(items.len() * size_of::<Value>());
        all.extend(items.into_iter().map(Operand::into_value));
    }
    Operand::array(all)
}

/// The bounds of a search: arguments 2 and 3, by default the whole length. The codes are those for a value that is not a 32-bit integer,
/// and for a negative one.
pub(super) fn search_bounds(call: &Call<'_>, codes: [i32; 2]) -> Result<(usize, usize)> {
    let bound = |index: usize, which: &str| -> Result<Option<usize>> {
        if !call.is_given(index) {
            return Ok(None);
        }
        let operand = call.argument(index)?;
        let code = codes[usize::from(operand.int32().is_some())];
        let bound = operand.int32().and_then(|value| usize::try_from(value).ok());
        let shown = || format!("{} ({})", operand.shown(), operand.type_name());
        let message = || error!(code, "{} requires a nonnegative {which} index, found: {}", call.name, shown());
        bound.map(Some).ok_or_else(message)
    };
    Ok((bound(2, "starting")?.unwrap_or(0), bound(3, "ending")?.unwrap_or(usize::MAX)))
}

fn index_of(call: &Call<'_>) -> Result<Operand<'static>> {
    let Some(array) = call.argument(0)?.non_null() else { return Ok(Operand::NULL) };
    let items = call.items(array, "its first argument", 40090)?;
    let wanted = call.argument(1)?;
    let (from, to) = search_bounds(call, [9711600, 9711601])?;
    let to = to.min(items.len());
    let found = (from..to).find(|index| call.compare(&items[*index], &wanted).is_eq());
    Ok(Operand::int(found.map_or(-1, |index| index as i64)))
}

fn range(call: &Call<'_>) -> Result<Operand<'static>> {
    let start = call.int32(&call.argument(0)?, "its start", [34443, 34444])?;
    let stop = call.int32(&call.argument(1)?, "its end", [34445, 34446])?;
    let step = if call.is_given(2) { call.int32(&call.argument(2)?, "its step", [34447, 34448])? } else { 1 };
    ensure!(step != 0, 34449, "$range requires a non-zero step value");
    // The number of steps, rounded up, since `stop` is excluded.
    let count = ((stop - start) * step.signum() + step.abs() - 1).div_euclid(step.abs()).max(0);
    ensure!(count <= MAX_RANGE, Kind::ExceededMemoryLimit, "$range would use too much memory ({count} numbers)");
    budget::room_for(usize::try_from(count).unwrap_or(0) * size_of::<Value>());
    budget::steps(1 + usize::try_from(count).unwrap_or(0) / 16);
    Operand::array((0..count).map(|index| Value::Number(Number::int(start + index * step))).collect())
}

fn slice(call: &Call<'_>) -> Result<Operand<'static>> {
    let (array, first) = (call.argument(0)?, call.argument(1)?);
    if array.is_nullish() || first.is_nullish() {
        return Ok(Operand::NULL);
    }
    let length = array.array_len();
    let length = length.ok_or_else(|| call.wrong_type(&array, "its first argument", "an array", 28724))? as i64;
    let first = call.int32(&first, "its second argument", [28725, 28726])?;
    let (from, to) = if call.is_given(2) {
        let Some(count) = call.argument(2)?.non_null() else { return Ok(Operand::NULL) };
        let count = call.int32(&count, "its third argument", [28727, 28728])?;
        ensure!(count > 0, 28729, "Third argument to $slice must be positive: {count}");
        let from = if first < 0 { (length + first).max(0) } else { first.min(length) };
        (from, (from + count).min(length))
    } else if first >= 0 {
        (0, first.min(length))
    } else {
        ((length + first).max(0), length)
    };
    let items = array.into_items().unwrap_or_default().into_iter();
    of_items(items.skip(from as usize).take((to - from) as usize))
}

/// Parses `useLongestLength` into a constant, and the inputs and the defaults into arrays.
fn parse_zip(parser: &mut Parser<'_>, operator: &str, argument: &Json) -> Result<Vec<ExpressionNode>> {
    let is_known = |name: &str| ["inputs", "defaults", "useLongestLength"].contains(&name);
    let fields = named(operator, argument, is_known, [34460, 34464])?;
    let inputs = match fields.get("inputs") {
        None => bail!(34465, "$zip requires at least one input array"),
        Some(Json::Array(inputs)) if inputs.is_empty() => bail!(34465, "$zip requires at least one input array"),
        Some(inputs @ Json::Array(_)) => inputs,
        Some(_) => bail!(34461, "inputs must be an array of expressions"),
    };
    let defaults = match fields.get("defaults") {
        None => &[][..],
        Some(Json::Array(defaults)) => defaults,
        Some(_) => bail!(34462, "defaults must be an array of expressions"),
    };
    let longest = match fields.get("useLongestLength") {
        None => false,
        Some(Json::Bool(longest)) => *longest,
        Some(_) => bail!(34463, "useLongestLength must be a bool"),
    };
    if !longest && fields.contains_key("defaults") {
        bail!(34466, "cannot specify defaults unless useLongestLength is true");
    }
    let count = list(inputs).len();
    if !defaults.is_empty() && defaults.len() != count {
        bail!(34467, "defaults and inputs must have the same length");
    }
    let defaults = defaults.iter().map(|json| parser.node(json)).collect::<Result<_>>();
    Ok(vec![ExpressionNode::Constant(Value::Bool(longest)), parser.node(inputs)?, ExpressionNode::Array(defaults?)])
}

fn zip(call: &Call<'_>) -> Result<Operand<'static>> {
    let longest = call.argument(0)?.is_true();
    let Some(all) = call.argument(1)?.non_null() else { return Ok(Operand::NULL) };
    let mut inputs = Vec::new();
    for input in call.items(all, "'inputs'", 34468)? {
        if input.is_nullish() {
            return Ok(Operand::NULL);
        }
        inputs.push(call.items(input, "each of its inputs", 34468)?);
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
        Value::fixed_array(inputs.iter().enumerate().map(item).collect())
    };
    Operand::array((0..length).map(row).collect())
}

fn to_object(call: &Call<'_>, array: Operand<'_>) -> Result<Operand<'static>> {
    let items = call.items(array, "its argument", 40386)?;
    budget::room_for(items.len() * size_of::<(String, Value)>());
    let mut fields = DocumentBuilder::default();
    let pairs = items.first().is_some_and(Operand::is_array);
    for item in items {
        let (key, value) = if pairs {
            let mut pair = call.items(item, "all elements, as the first,", 40396)?;
            let (Some(value), Some(key), 0) = (pair.pop(), pair.pop(), pair.len()) else {
                bail!(40397, "$arrayToObject requires an array of size 2 arrays")
            };
            (call.text(&key, "the key of a pair", 40395)?.to_owned(), value)
        } else {
            if !item.is_object() {
                let code = if fields.is_empty() { 40398 } else { 40391 };
                return Err(call.wrong_type(&item, "all elements", "arrays, or all documents", code));
            }
            let count = item.clone().into_fields().map_or(0, |fields| fields.len());
            ensure!(
                count == 2,
                40392,
                "$arrayToObject requires objects of the fields 'k' and 'v', found {count} fields"
            );
            let (key, value) = (item.clone().into_field("k"), item.into_field("v"));
            if key.is_missing() || value.is_missing() {
                bail!(40393, "$arrayToObject requires an object with keys 'k' and 'v'.");
            }
            (call.text(&key, "'k'", 40394)?.to_owned(), value)
        };
        ensure!(!key.contains('\0'), 4940400, "Key field cannot contain an embedded null byte");
        ext_json::check_name(&key)?;
        fields.put(key, value.into_value());
    }
    Ok(Operand::Made(fields.into_value()))
}

fn from_object(call: &Call<'_>, object: Operand<'_>) -> Result<Operand<'static>> {
    if !object.is_object() {
        return Err(call.wrong_type(&object, "its argument", "a document", 40390));
    }
    let pair = |(name, value): (String, Operand<'_>)| {
        budget::step();
        Value::fixed_object(vec![("k".to_owned(), Value::String(name)), ("v".to_owned(), value.into_value())])
    };
    Operand::array(object.into_fields().unwrap_or_default().into_iter().map(pair).collect())
}

/// Parses the input and the order: for each field a path and a direction. An empty path stands for the whole element.
fn parse_sort(parser: &mut Parser<'_>, operator: &str, argument: &Json) -> Result<Vec<ExpressionNode>> {
    let fields = named(operator, argument, |name| ["input", "sortBy"].contains(&name), [2942500, 2942501])?;
    let input = field(operator, fields, "input", 2942502)?;
    let order = pairs_as_object(field(operator, fields, "sortBy", 2942503)?);
    let mut nodes = vec![parser.node(input)?];
    match &*order {
        Json::Object(fields) if !fields.keys().any(|name| name.starts_with("$number")) => {
            ensure!(!fields.is_empty(), 2942505, "The sort pattern is empty when it should be a set of fields.");
            for (name, direction) in fields {
                path::check_field_path(name).map_err(|error| error!(2942505, "{}", error.message))?;
                nodes.push(ExpressionNode::Constant(Value::String(name.clone())));
                nodes.push(ExpressionNode::Constant(Value::Bool(is_descending(direction, 2942505)?)));
            }
        }
        direction @ (Json::Number(_) | Json::Object(_)) => {
            nodes.push(ExpressionNode::Constant(Value::String(String::new())));
            nodes.push(ExpressionNode::Constant(Value::Bool(is_descending(direction, 2942506)?)));
        }
        _ => bail!(2942507, "The $sort is invalid: use 1/-1 to sort the whole element, or {{field:1/-1}}"),
    }
    Ok(nodes)
}

/// Parses a direction, 1 or -1; true for descending.
fn is_descending(direction: &Json, code: i32) -> Result<bool> {
    match ext_json::from_json(direction)? {
        Value::Number(number) if number.as_i64() == Some(1) => Ok(false),
        Value::Number(number) if number.as_i64() == Some(-1) => Ok(true),
        _ => bail!(code, "The $sort element value must be either 1 or -1"),
    }
}

fn sort(call: &Call<'_>) -> Result<Operand<'static>> {
    let Some(input) = call.argument(0)?.non_null() else { return Ok(Operand::NULL) };
    let items = call.items(input, "'input'", 2942504)?;
    let mut order = Vec::new();
    for index in (1..call.len()).step_by(2) {
        order.push((call.argument(index)?.text().unwrap_or_default().to_owned(), call.argument(index + 1)?.is_true()));
    }
    let mut keyed: Vec<(Vec<Operand<'_>>, Operand<'_>)> = items
        .into_iter()
        .map(|item| {
            budget::step();
            let key = |path: &String| {
                budget::copying(|| if path.is_empty() { item.clone() } else { sort_key(item.clone(), path) })
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
    of_items(keyed.into_iter().map(|(_, item)| item))
}

/// The value at a path, whose components name fields or positions of arrays; null if the element has no such value.
fn sort_key<'o>(element: Operand<'o>, path: &str) -> Operand<'o> {
    let root = if element.is_object() { element } else { Operand::Missing };
    let found = path.split('.').fold(root, |value, name| match value.is_array() {
        true => path::array_index(name).map_or(Operand::Missing, |index| value.into_item(index)),
        false => value.into_field(name),
    });
    if found.is_missing() { Operand::NULL } else { found }
}

/// `n` and the elements of `input`.
fn n_arguments<'s>(call: &Call<'s>) -> Result<(usize, Vec<Operand<'s>>)> {
    let n = call.argument(0)?;
    call.number(&n, "'n'", 5787902)?;
    let count = n.int64().ok_or_else(|| call.wrong_type(&n, "'n'", "an integer", 5787903))?;
    ensure!(count > 0, 5787908, "'n' must be greater than 0, found {count}");
    let items = call.items(call.argument(1)?, "'input'", 5788200)?;
    Ok((usize::try_from(count).unwrap_or(MAX_DOCUMENT_BYTES), items))
}

/// Returns the `n` least elements, or the `n` greatest if `order` reverses. Null and missing elements are left out.
fn extremes(call: &Call<'_>, order: fn(Ordering) -> Ordering) -> Result<Operand<'static>> {
    let (count, mut items) = n_arguments(call)?;
    items.retain(|item| !item.is_nullish());
    items.sort_by(|a, b| order(call.compare(a, b)));
    of_items(items.into_iter().take(count))
}
