//! Modifiers of whole arrays: `$push`, `$addToSet`, `$pull` and `$pullAll`.

use super::context::{Context, UpdateOutcome};
use super::message::show;
use super::storable::{stored, value};
use crate::budget;
use crate::error::{Error, Kind, Result, bail, error};
use crate::json::pairs_as_object;
use crate::query::environment::Environment;
use crate::query::filter::{Condition, Filter, is_of_documents};
use crate::values::document::element::Element;
use crate::values::document::number::Number;
use crate::values::document::raw::{self, RawValue};
use crate::values::document::value::Value;
use crate::values::document::write::Part;
use crate::values::order::{Strings, compare_elements_with, compare_raw_with, compare_views};
use crate::values::path;
use crate::values::view::View;
use serde_json::{Map, Value as Json};
use std::cmp::Ordering;

/// `$push`: inserts elements at a position, then sorts the array, then truncates it.
#[derive(Debug, Default)]
pub(super) struct Push {
    /// As jsonb.
    elements: Vec<Vec<u8>>,
    /// Counted from the start, or from the end if negative; None: at the end.
    position: Option<i64>,
    /// Each a dotted path, which is empty for whole elements, and true for descending; None: elements are not sorted.
    sort: Option<Vec<(String, bool)>>,
    /// The number of first elements to keep, or of last ones if negative; None: all are kept.
    slice: Option<i64>,
}

/// `$addToSet`.
#[derive(Debug)]
pub(super) struct AddToSet {
    /// as jsonb, each once
    elements: Vec<Vec<u8>>,
    /// positions in `elements`, sorted by the elements' values
    order: Vec<usize>,
}

/// The elements that `$pull` or `$pullAll` removes.
#[derive(Debug)]
pub(super) enum Pull {
    /// those equal to one of the values, which are sorted
    Equal(Vec<Value>),
    /// documents that match the filter
    Documents(Filter),
    /// values that match the condition
    Values(Condition),
}

impl Push {
    /// Parses an element, or `{"$each": […], "$position": …, "$slice": …, "$sort": …}`.
    pub fn parse(argument: &Json) -> Result<Push> {
        let (elements, clauses) = elements_of(argument, "$push", Kind::BadValue)?;
        let mut push = Push { elements, ..Push::default() };
        for (name, argument) in clauses.into_iter().flatten() {
            match name.as_str() {
                "$each" => {}
                "$position" => push.position = Some(integer(name, argument)?),
                "$slice" => push.slice = Some(integer(name, argument)?),
                "$sort" => push.sort = Some(element_order(argument)?),
                other => bail!(Kind::BadValue, "Unrecognized clause in $push: {other}"),
            }
        }
        Ok(push)
    }

    /// The array with the new elements.
    pub fn apply<'a>(
        &'a self,
        name: &str,
        existing: Option<RawValue<'a>>,
        context: &Context<'_>,
    ) -> Result<UpdateOutcome<'a>> {
        let mut elements = existing_elements(existing, |found| {
            let id = context.shown_id();
            error!(Kind::BadValue, "The field '{name}' must be an array but is of type {found} in document {{{id}}}")
        })?;
        let at = match self.position {
            None => elements.len(),
            Some(position) => from_either_end(position, elements.len()),
        };
        budget::steps(1 + elements.len() / 16);
        elements.splice(at..at, self.elements.iter().map(|bytes| raw::root(bytes)));
        if let Some(order) = &self.sort {
            elements.sort_by(|a, b| compare_by(order, *a, *b, context.strings));
        }
        match self.slice {
            Some(slice) if slice < 0 => {
                elements.drain(..from_either_end(slice, elements.len()));
            }
            Some(slice) => elements.truncate(from_either_end(slice, elements.len())),
            None => {}
        }
        Ok(UpdateOutcome::Write(Part::Array(elements.into_iter().map(Part::Raw).collect())))
    }
}

/// A position within an array; negative ones count from the end.
fn from_either_end(position: i64, length: usize) -> usize {
    let distance = usize::try_from(position.unsigned_abs()).unwrap_or(usize::MAX);
    if position < 0 { length.saturating_sub(distance) } else { distance.min(length) }
}

/// Elements as jsonb; and the argument's clauses if it has `$each`, else None.
type Given<'j> = (Vec<Vec<u8>>, Option<&'j Map<String, Json>>);

/// The elements that an operator's argument gives: the argument itself, or those of `$each`.
fn elements_of<'j>(argument: &'j Json, operator: &str, no_array: Kind) -> Result<Given<'j>> {
    let clauses = argument.as_object().filter(|clauses| clauses.contains_key("$each"));
    match clauses.map(|clauses| &clauses["$each"]) {
        None => Ok((vec![stored(argument)?], None)),
        Some(Json::Array(elements)) => Ok((elements.iter().map(stored).collect::<Result<_>>()?, clauses)),
        Some(each) => {
            let found = value(each)?.type_name();
            bail!(no_array, "The argument to $each in {operator} must be an array but it was of type: {found}")
        }
    }
}

/// The elements of the existing array; empty if the field is missing. For a value of another type, returns the error that `refuse` makes of
/// the type's name.
fn existing_elements<'a>(
    existing: Option<RawValue<'a>>,
    refuse: impl FnOnce(&'static str) -> Error,
) -> Result<Vec<RawValue<'a>>> {
    match existing {
        None => Ok(Vec::new()),
        Some(RawValue::Array(array)) => Ok(array.iter().collect()),
        Some(other) => Err(refuse(Element::of(other).type_name())),
    }
}

/// Parses `$sort`: 1 or -1, or `{path: 1 or -1, …}`.
fn element_order(argument: &Json) -> Result<Vec<(String, bool)>> {
    match &*pairs_as_object(argument) {
        Json::Object(fields) if !fields.keys().next().is_some_and(|name| name.starts_with('$')) => {
            if fields.is_empty() {
                bail!(Kind::BadValue, "The $sort pattern is empty when it should be a set of fields.");
            }
            let fields = fields.iter().map(|(path, direction)| {
                if path.split('.').any(str::is_empty) {
                    bail!(Kind::BadValue, "The $sort field has an empty part: {path}");
                }
                Ok((path.clone(), is_descending(direction)?))
            });
            fields.collect()
        }
        Json::Number(_) | Json::Object(_) => Ok(vec![(String::new(), is_descending(argument)?)]),
        _ => bail!(
            Kind::BadValue,
            "The $sort is invalid: use 1/-1 to sort the whole element, or {{field:1/-1}} to sort embedded fields"
        ),
    }
}

fn compare_by(order: &[(String, bool)], a: RawValue<'_>, b: RawValue<'_>, strings: Strings<'_>) -> Ordering {
    let mut orders = order.iter().map(|(path, descending)| {
        let field = |value| match path.as_str() {
            "" => value,
            path => path::embedded(value).and_then(|document| path::at(document, path)).unwrap_or(RawValue::Null),
        };
        let order = compare(field(a), field(b), strings);
        if *descending { order.reverse() } else { order }
    });
    orders.find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
}

fn is_descending(direction: &Json) -> Result<bool> {
    match value(direction)? {
        Value::Number(number) if number.as_i64() == Some(1) => Ok(false),
        Value::Number(number) if number.as_i64() == Some(-1) => Ok(true),
        _ => bail!(Kind::BadValue, "The $sort element value must be either 1 or -1"),
    }
}

fn integer(name: &str, argument: &Json) -> Result<i64> {
    let found = value(argument)?;
    match &found {
        Value::Number(number @ (Number::Int(..) | Number::Double(_))) => number.as_i64(),
        _ => None,
    }
    .ok_or_else(|| {
        error!(
            Kind::BadValue,
            "The value for {name} must be an integer value but was given type: {}",
            found.type_name()
        )
    })
}

impl AddToSet {
    /// Parses an element, or `{"$each": […]}`, in a statement's environment.
    pub fn parse(argument: &Json, environment: &Environment) -> Result<AddToSet> {
        let strings = environment.collator().map(|collator| &**collator);
        // `$each` counts only as the first field. Elsewhere the argument is an element that has a field of this name.
        let is_list =
            argument.as_object().and_then(|argument| argument.keys().next()).is_some_and(|name| name == "$each");
        let (mut given, clauses) = match is_list {
            true => elements_of(argument, "$addToSet", Kind::TypeMismatch)?,
            false => (vec![stored(argument)?], None),
        };
        if clauses.is_some_and(|clauses| clauses.len() > 1) {
            bail!(Kind::BadValue, "Found unexpected fields after $each in $addToSet: {}", show(argument));
        }
        let mut order: Vec<usize> = (0..given.len()).collect();
        // The sort is stable, so the first of equal elements stays.
        order.sort_by(|a, b| compare(raw::root(&given[*a]), raw::root(&given[*b]), strings));
        order.dedup_by(|b, a| compare(raw::root(&given[*a]), raw::root(&given[*b]), strings).is_eq());
        let mut kept = order.clone();
        kept.sort_unstable();
        let order = order.iter().map(|at| kept.partition_point(|other| other < at)).collect();
        let elements = kept.iter().map(|at| std::mem::take(&mut given[*at])).collect();
        Ok(AddToSet { elements, order })
    }

    /// The array with the elements that it lacks.
    pub fn apply<'a>(
        &'a self,
        name: &str,
        existing: Option<RawValue<'a>>,
        context: &Context<'_>,
    ) -> Result<UpdateOutcome<'a>> {
        let mut elements = existing_elements(existing, |found| {
            error!(
                Kind::BadValue,
                "Cannot apply $addToSet to non-array field. Field named '{name}' has non-array type {found}"
            )
        })?;
        let new = |at: &usize| raw::root(&self.elements[*at]);
        let mut is_there = vec![false; self.elements.len()];
        let mut lacking = self.elements.len();
        for known in &elements {
            budget::step();
            if lacking == 0 {
                break;
            }
            if let Ok(found) = self.order.binary_search_by(|at| compare(new(at), *known, context.strings)) {
                lacking -= usize::from(!std::mem::replace(&mut is_there[self.order[found]], true));
            }
        }
        if existing.is_some() && lacking == 0 {
            return Ok(UpdateOutcome::Keep);
        }
        elements.extend((0..self.elements.len()).filter(|at| !is_there[*at]).map(|at| new(&at)));
        Ok(UpdateOutcome::Write(Part::Array(elements.into_iter().map(Part::Raw).collect())))
    }
}

fn compare(a: RawValue<'_>, b: RawValue<'_>, strings: Strings<'_>) -> Ordering {
    compare_elements_with(&Element::of(a), &Element::of(b), strings)
}

impl Pull {
    /// Parses a value, operators on values, or a filter of documents, in a statement's environment.
    pub fn parse(argument: &Json, environment: &Environment) -> Result<Pull> {
        if argument.as_object().is_some_and(|fields| fields.keys().any(|name| is_of_documents(name))) {
            return Ok(Pull::Documents(Filter::of_elements(argument, environment)?));
        }
        if Condition::is_one(argument)? {
            return Ok(Pull::Values(Condition::parse(argument, environment)?));
        }
        Ok(match value(argument)? {
            Value::Object(_) => Pull::Documents(Filter::of_elements(argument, environment)?),
            single => Pull::Equal(vec![single]),
        })
    }

    /// Parses the values of `$pullAll`.
    pub fn parse_all(argument: &Json, environment: &Environment) -> Result<Pull> {
        match value(argument)? {
            Value::Array(values) => {
                let mut values = values.into_vec();
                let strings = environment.collator().map(|collator| &**collator);
                values.sort_by(|a, b| compare_views(&View::of_value(a), &View::of_value(b), strings));
                Ok(Pull::Equal(values))
            }
            other => bail!(Kind::BadValue, "$pullAll requires an array argument but was given a {}", other.type_name()),
        }
    }

    /// The array without the elements.
    pub fn apply<'a>(&self, existing: Option<RawValue<'a>>, context: &Context<'_>) -> Result<UpdateOutcome<'a>> {
        let array = match existing {
            None => return Ok(UpdateOutcome::Keep),
            Some(RawValue::Array(array)) => array,
            Some(_) => bail!(Kind::BadValue, "Cannot apply $pull to a non-array value"),
        };
        let mut kept: Vec<Part<'a>> = Vec::with_capacity(array.len());
        for element in array.iter() {
            budget::step();
            if !self.removes(element, context.strings)? {
                kept.push(Part::Raw(element));
            }
        }
        Ok(if kept.len() == array.len() { UpdateOutcome::Keep } else { UpdateOutcome::Write(Part::Array(kept)) })
    }

    fn removes(&self, element: RawValue<'_>, strings: Strings<'_>) -> Result<bool> {
        Ok(match self {
            Pull::Equal(values) => {
                values.binary_search_by(|value| compare_raw_with(element, value, strings).reverse()).is_ok()
            }
            Pull::Documents(filter) => match path::embedded(element) {
                Some(document) => filter.evaluate(document)?,
                None => false,
            },
            Pull::Values(condition) => condition.accepts(element)?,
        })
    }
}
