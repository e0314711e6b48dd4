//! The tree of a filter.
//!
//! INVARIANT: a leaf matches if *one* value at its path passes its test. Conditions on all values at a path (`$ne`, `$nin`, `$not`,
//! `{$exists: false}`) are a [`FilterNode::Not`] around a leaf.

use super::bits::Bits;
use super::modulo::Modulo;
use super::schema::Schema;
use super::side::Side;
use super::types::Types;
use crate::query::expression::Expression;
use crate::query::regex::Pattern;
use crate::values::collation::Collator;
use crate::values::document::value::Value;
use crate::values::order::{Class, compare_values};
use crate::values::path::AtEnd;
use std::sync::Arc;

/// A part of a filter.
#[derive(Debug)]
pub(super) enum FilterNode {
    /// all must match; an empty one matches every document
    And(Vec<FilterNode>),
    /// one must match
    Or(Vec<FilterNode>),
    /// must not match
    Not(Box<FilterNode>),
    /// a test of the values at a path
    Leaf(String, Test),
    /// `$expr`: true for the document
    Expression(Expression, Option<Arc<Collator>>),
    /// `$jsonSchema`
    Schema(Schema),
    /// `$sampleRate`: matches at random, with this probability
    Sample(f64),
}

/// A test of one value.
#[derive(Debug)]
pub(super) enum Test {
    /// present
    Exists,
    /// nothing passes
    Never,
    /// null, undefined or missing
    Null,
    /// equal to the value, which is not null
    Equal(Value),
    /// one of the values
    In(Set),
    /// on one side of the bound
    Range(Range),
    /// of one of the types
    Type(Types),
    /// leaves a remainder
    Modulo(Modulo),
    /// has bits set or clear
    Bits(Bits),
    /// a string that the pattern is found in, or a regular expression equal to it
    Regex(Pattern),
    /// an array of this length
    Size(usize),
    /// an array with an element that matches as a document; an array counts as a document
    ElementDocument(Box<FilterNode>),
    /// an array with an element that matches the node as a value; the paths of the node's leaves are not used
    ElementValue(Box<FilterNode>),
    /// an equality, a membership or a range with strings in it, under a collation
    Collated(Box<Test>, Arc<Collator>),
}

/// The argument of `$in`.
#[derive(Debug)]
pub(super) struct Set {
    /// sorted in comparison order, each once, without null
    pub values: Vec<Value>,
    /// true if null is among them
    pub null: bool,
    /// a string in which one of these is found also passes
    pub patterns: Vec<Pattern>,
}

/// The argument of an ordering operator.
#[derive(Debug)]
pub(super) struct Range {
    /// which values pass
    pub side: Side,
    /// no null, no NaN
    pub bound: Value,
    /// the class of the values that can pass; None for MinKey and MaxKey, which are compared with values of every class
    pub class: Option<Class>,
}

impl Test {
    /// Returns which values the test sees if there is an array at the end of the path.
    pub fn at_end(&self) -> AtEnd {
        match self {
            Test::Size(_) | Test::ElementDocument(_) | Test::ElementValue(_) => AtEnd::Whole,
            _ => AtEnd::Elements,
        }
    }

    /// Equality to a value. Null, undefined and a missing value are equal.
    pub fn equal(value: Value) -> Test {
        if Class::of(&value) == Class::Null { Test::Null } else { Test::Equal(value) }
    }

    /// An ordering operator. Null and NaN have no order: only the inclusive operators match them, as equality does.
    pub fn range(side: Side, bound: Value) -> Test {
        let class = Class::of(&bound);
        let unordered = class == Class::Null || matches!(&bound, Value::Number(number) if number.is_nan());
        match class {
            _ if unordered && side.is_inclusive() => Test::equal(bound),
            _ if unordered => Test::Never,
            Class::MinKey | Class::MaxKey => Test::Range(Range { side, bound, class: None }),
            _ => Test::Range(Range { side, bound, class: Some(class) }),
        }
    }

    /// Membership.
    pub fn one_of(mut values: Vec<Value>, patterns: Vec<Pattern>) -> Test {
        let given = values.len();
        values.retain(|value| Class::of(value) != Class::Null);
        let null = values.len() < given;
        values.sort_by(compare_values);
        values.dedup_by(|a, b| compare_values(a, b).is_eq());
        Test::In(Set { values, null, patterns })
    }

    /// The test under a collation, where that makes a difference.
    pub fn under(self, collator: Option<&Arc<Collator>>) -> Test {
        let Some(collator) = collator else { return self };
        let sensitive = match &self {
            Test::Equal(value) => value.has_strings(),
            Test::In(set) => set.values.iter().any(Value::has_strings),
            Test::Range(range) => range.bound.has_strings(),
            _ => false,
        };
        if sensitive { Test::Collated(Box::new(self), Arc::clone(collator)) } else { self }
    }

    /// True if nothing but arrays can pass.
    pub fn accepts_only_arrays(&self) -> bool {
        matches!(self, Test::Equal(Value::Array(_)) | Test::Size(_) | Test::ElementDocument(_) | Test::ElementValue(_))
    }

    /// True if equal values may have different encodings.
    pub fn is_collated(&self) -> bool {
        matches!(self, Test::Collated(..))
    }

    /// The value of an equality, or of an `$in` with one value and no pattern; None for other tests.
    pub fn single_value(&self) -> Option<Value> {
        match self {
            Test::Collated(test, _) => test.single_value(),
            Test::Null => Some(Value::Null),
            Test::Equal(value) => Some(value.clone()),
            Test::In(Set { patterns, .. }) if !patterns.is_empty() => None,
            Test::In(Set { values, null: true, .. }) if values.is_empty() => Some(Value::Null),
            Test::In(Set { values, null: false, .. }) if values.len() == 1 => Some(values[0].clone()),
            _ => None,
        }
    }
}
