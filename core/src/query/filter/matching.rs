//! Matches a filter against jsonb's bytes. Apart from `$expr`, `$jsonSchema` and regular expressions, nothing is allocated for documents
//! without extended values.

use super::node::{FilterNode, Range, Set, Test};
use crate::budget;
use crate::error::Result;
use crate::values::collation::Collator;
use crate::values::document::element::Element;
use crate::values::document::raw::{RawArray, RawValue};
use crate::values::document::value::Value;
use crate::values::order::{Class, compare_raw, compare_raw_with};
use crate::values::path::{self, AtEnd, Base};

impl FilterNode {
    /// True if the document matches.
    ///
    /// # Errors
    /// Those of expressions, which occur only at the top level.
    pub fn matches(&self, document: Base<'_>) -> Result<bool> {
        match self {
            FilterNode::And(nodes) => {
                budget::steps(nodes.len());
                for node in nodes {
                    if !node.matches(document)? {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
            FilterNode::Or(nodes) => {
                budget::steps(nodes.len());
                for node in nodes {
                    if node.matches(document)? {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
            FilterNode::Not(node) => Ok(!node.matches(document)?),
            FilterNode::Leaf(path, test) => Ok(path::any(document, path, test.at_end(), &|found| test.accepts(found))),
            FilterNode::Expression(expression, collator) => match document {
                Base::Object(object) => Ok(expression.operand(object, collator.as_deref())?.is_true()),
                _ => Ok(false),
            },
            FilterNode::Schema(schema) => {
                Ok(matches!(document, Base::Object(object) if schema.matches_document(object)))
            }
            FilterNode::Sample(rate) => Ok(fastrand::f64() < *rate),
        }
    }

    /// True if the value matches, whatever paths the leaves have. With `elements`, a leaf also accepts an array if one of its elements
    /// passes.
    pub fn matches_value(&self, value: RawValue<'_>, elements: bool) -> bool {
        budget::step();
        match self {
            FilterNode::And(nodes) => nodes.iter().all(|node| node.matches_value(value, elements)),
            FilterNode::Or(nodes) => nodes.iter().any(|node| node.matches_value(value, elements)),
            FilterNode::Not(node) => !node.matches_value(value, elements),
            FilterNode::Leaf(_, test) => {
                let at_end = if elements { test.at_end() } else { AtEnd::Whole };
                path::any_at_end(value, at_end, &|found| test.accepts(found))
            }
            FilterNode::Expression(..) | FilterNode::Schema(_) | FilterNode::Sample(_) => false,
        }
    }

    /// True if an array's element matches as a document. An array counts as a document, other values never match.
    fn matches_element(&self, element: RawValue<'_>) -> bool {
        match element {
            RawValue::Array(array) => self.matches(Base::Array(array)).unwrap_or(false),
            value => path::embedded(value).is_some_and(|object| self.matches(Base::Object(object)).unwrap_or(false)),
        }
    }
}

impl Test {
    /// True if the value, or a missing one, passes.
    pub(super) fn accepts(&self, found: Option<RawValue<'_>>) -> bool {
        match self {
            Test::Never => false,
            Test::Exists => found.is_some(),
            Test::Null => found.is_none_or(|raw| Class::of_raw(raw) == Class::Null),
            Test::Equal(value) => found.is_some_and(|raw| equals(raw, value)),
            Test::In(set) => set.contains(found),
            Test::Range(range) => range.contains(found),
            Test::Type(types) => found.is_some_and(|raw| types.contain(raw)),
            Test::Modulo(modulo) => found.is_some_and(|raw| modulo.accepts(raw)),
            Test::Bits(bits) => found.is_some_and(|raw| bits.accept(raw)),
            Test::Regex(pattern) => found.is_some_and(|raw| pattern.accepts(raw)),
            Test::Collated(test, collator) => test.accepts_under(found, collator),
            Test::Size(size) => array(found).is_some_and(|array| array.len() == *size),
            Test::ElementDocument(_) | Test::ElementValue(_) => {
                let matches = |element| {
                    budget::step();
                    self.matches_element(element)
                };
                array(found).is_some_and(|array| array.iter().any(matches))
            }
        }
    }
}

impl Test {
    /// Like [`accepts`](Self::accepts), but compares strings by the collation.
    fn accepts_under(&self, found: Option<RawValue<'_>>, collator: &Collator) -> bool {
        let compare = |raw: RawValue<'_>, value: &Value| compare_raw_with(raw, value, Some(collator));
        match self {
            Test::Equal(value) => found.is_some_and(|raw| compare(raw, value).is_eq()),
            Test::In(set) => {
                set.contains_beside_values(found)
                    || found.is_some_and(|raw| set.values.iter().any(|value| compare(raw, value).is_eq()))
            }
            Test::Range(range) => found.is_some_and(|raw| {
                range.class == Some(Class::of_raw(raw)) && range.side.accepts(compare(raw, &range.bound))
            }),
            test => test.accepts(found),
        }
    }

    /// True if an array's element matches the condition of `$elemMatch`.
    pub fn matches_element(&self, element: RawValue<'_>) -> bool {
        match self {
            Test::ElementDocument(node) => node.matches_element(element),
            Test::ElementValue(node) => node.matches_value(element, false),
            _ => false,
        }
    }
}

fn array(found: Option<RawValue<'_>>) -> Option<RawArray<'_>> {
    match found {
        Some(RawValue::Array(array)) => Some(array),
        _ => None,
    }
}

fn equals(raw: RawValue<'_>, value: &Value) -> bool {
    match (raw, value) {
        (RawValue::String(stored), Value::String(wanted)) => stored == wanted,
        (RawValue::String(_), Value::Number(_)) | (RawValue::Number(_), Value::String(_)) => false,
        _ => compare_raw(raw, value).is_eq(),
    }
}

impl Set {
    fn contains(&self, found: Option<RawValue<'_>>) -> bool {
        found.is_some_and(|raw| self.values.binary_search_by(|value| compare_raw(raw, value).reverse()).is_ok())
            || self.contains_beside_values(found)
    }

    /// True if the set contains null and the value is null or missing, or if the value matches a pattern.
    fn contains_beside_values(&self, found: Option<RawValue<'_>>) -> bool {
        let Some(raw) = found else { return self.null };
        budget::steps(self.patterns.len());
        self.null && Class::of_raw(raw) == Class::Null || self.patterns.iter().any(|pattern| pattern.accepts(raw))
    }
}

impl Range {
    fn contains(&self, found: Option<RawValue<'_>>) -> bool {
        match self.class {
            // A missing value compares as null with MinKey and MaxKey; it never passes with another bound.
            None => self.side.accepts(compare_raw(found.unwrap_or(RawValue::Null), &self.bound)),
            Some(class) => found.is_some_and(|raw| {
                Class::of_raw(raw) == class
                    && self.side.accepts(compare_raw(raw, &self.bound))
                    && !(self.side.is_upper() && class == Class::Number && is_stored_nan(raw))
            }),
        }
    }
}

/// NaN sorts below every number, but is not less than one. jsonb's own numbers are never NaN.
fn is_stored_nan(raw: RawValue<'_>) -> bool {
    matches!(raw, RawValue::Object(_)) && matches!(Element::of(raw), Element::Number(number) if number.is_nan())
}
