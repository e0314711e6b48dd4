//! The order of all types: MinKey < null < numbers < strings < object < array < binary < ObjectId < boolean < date < timestamp <
//! regex < dbPointer < code < code with scope < MaxKey.
//!
//! Fields of objects are compared in jsonb's order, each by class, then name, then value; an object that is a prefix of another is
//! less. Undefined, null and missing are equal; so are a symbol and its string.

use super::collation::Collator;
use super::document::element::Element;
use super::document::raw::RawValue;
use super::document::value::Value;
use super::document::{MAX_RECURSION, number};
pub use super::view::Class;
use super::view::{Child, Fields, Items, View};
use crate::budget;
use std::cmp::Ordering;

/// How strings compare: None for bytewise.
pub(crate) type Strings<'c> = Option<&'c Collator>;

/// Compares two elements in the order of all types.
pub fn compare_elements(a: &Element<'_>, b: &Element<'_>) -> Ordering {
    compare_elements_with(a, b, None)
}

/// Like [`compare_elements`], but compares strings by the collation, if one is given.
pub(crate) fn compare_elements_with(a: &Element<'_>, b: &Element<'_>, strings: Strings<'_>) -> Ordering {
    compare(&View::of_element(a), &View::of_element(b), MAX_RECURSION, strings)
}

/// Compares a stored value with an owned one, without allocations for strings and numbers.
#[inline]
pub fn compare_raw(a: RawValue<'_>, b: &Value) -> Ordering {
    match (a, b) {
        (RawValue::String(a), Value::String(b)) => a.cmp(b),
        (RawValue::Number(a), Value::Number(b)) => number::compare(&a.to_number(), b),
        _ => compare(&View::of_element(&Element::of(a)), &View::of_value(b), MAX_RECURSION, None),
    }
}

/// Compares two owned values.
pub fn compare_values(a: &Value, b: &Value) -> Ordering {
    compare(&View::of_value(a), &View::of_value(b), MAX_RECURSION, None)
}

/// Compares two views, and strings by the collation, if one is given.
pub(crate) fn compare_views(a: &View<'_>, b: &View<'_>, strings: Strings<'_>) -> Ordering {
    compare(a, b, MAX_RECURSION, strings)
}

/// Like [`compare_raw`], but compares strings by the collation, if one is given.
pub(crate) fn compare_raw_with(a: RawValue<'_>, b: &Value, strings: Strings<'_>) -> Ordering {
    if strings.is_none() {
        return compare_raw(a, b);
    }
    compare_views(&View::of_element(&Element::of(a)), &View::of_value(b), strings)
}

/// Values nested deeper than `levels`, which is more than in any document, count as equal.
fn compare(a: &View<'_>, b: &View<'_>, levels: usize, strings: Strings<'_>) -> Ordering {
    budget::step();
    match (a, b) {
        (View::Number(a), View::Number(b)) => number::compare(a, b),
        (View::String(a), View::String(b)) => {
            budget::bytes(a.len().min(b.len()));
            strings.map_or_else(|| a.cmp(b), |collator| collator.compare(a, b))
        }
        (View::Object(a), View::Object(b)) => compare_fields(*a, *b, levels, strings),
        (View::Array(a), View::Array(b)) => compare_items(*a, *b, levels, strings),
        (View::Binary(subtype_a, a), View::Binary(subtype_b, b)) => {
            (a.len(), subtype_a, a).cmp(&(b.len(), subtype_b, b))
        }
        (View::ObjectId(a), View::ObjectId(b)) => a.cmp(b),
        (View::Bool(a), View::Bool(b)) => a.cmp(b),
        (View::Date(a), View::Date(b)) => a.cmp(b),
        (View::Timestamp(t_a, i_a), View::Timestamp(t_b, i_b)) => (t_a, i_a).cmp(&(t_b, i_b)),
        (View::Regex(a, options_a), View::Regex(b, options_b)) => (a, options_a).cmp(&(b, options_b)),
        (View::DbPointer(a, id_a), View::DbPointer(b, id_b)) => (a, id_a).cmp(&(b, id_b)),
        (View::Code(a), View::Code(b)) => a.cmp(b),
        (View::CodeWithScope(a, scope_a), View::CodeWithScope(b, scope_b)) => {
            a.cmp(b).then_with(|| compare_fields(*scope_a, *scope_b, levels, strings))
        }
        (a, b) => a.class().cmp(&b.class()),
    }
}

fn compare_fields(a: Fields<'_>, b: Fields<'_>, levels: usize, strings: Strings<'_>) -> Ordering {
    if levels == 0 {
        return Ordering::Equal;
    }
    a.with_sorted(|a| {
        b.with_sorted(|b| {
            compare_sequences(a, b, |(name_a, a), (name_b, b)| {
                with_views(a, b, |a, b| {
                    let by_class_and_name = (a.class(), name_a).cmp(&(b.class(), name_b));
                    by_class_and_name.then_with(|| compare(a, b, levels - 1, strings))
                })
            })
        })
    })
}

fn compare_items(a: Items<'_>, b: Items<'_>, levels: usize, strings: Strings<'_>) -> Ordering {
    if levels == 0 {
        return Ordering::Equal;
    }
    compare_sequences(&mut a.iter(), &mut b.iter(), |a, b| with_views(a, b, |a, b| compare(a, b, levels - 1, strings)))
}

/// Compares sequences lexicographically.
fn compare_sequences<A, B>(
    a: &mut dyn Iterator<Item = A>,
    b: &mut dyn Iterator<Item = B>,
    compare: impl Fn(&A, &B) -> Ordering,
) -> Ordering {
    loop {
        budget::step();
        let (a, b) = match (a.next(), b.next()) {
            (Some(a), Some(b)) => (a, b),
            (a, b) => return a.is_some().cmp(&b.is_some()),
        };
        let order = compare(&a, &b);
        if order.is_ne() {
            return order;
        }
    }
}

fn with_views<R>(a: &Child<'_>, b: &Child<'_>, use_views: impl FnOnce(&View<'_>, &View<'_>) -> R) -> R {
    a.with_view(|a| b.with_view(|b| use_views(&a, &b)))
}

/// Values are equal when they compare equal in MongoDB's order (so `2 == 2.0`, and field order does not matter).
impl PartialEq for Value {
    fn eq(&self, other: &Self) -> bool {
        compare_values(self, other) == Ordering::Equal
    }
}
