//! Analyses a filter: the encoded values that it allows for one field, the tests that every matching document passes, and the paths that
//! its result depends on.
//!
//! Stored keys have a collation of their own, `stored`, or none. A condition on strings under another collation allows all strings.
//!
//! RULE: for documents without arrays on the field's path, the ranges hold at least all values of matching documents. A condition
//! that the analysis does not understand allows everything.

use super::node::{FilterNode, Range, Test};
use super::side::Side;
use crate::budget;
use crate::query::regex::Pattern;
use crate::query::sort::EMPTY_ARRAY;
use crate::values::collation::Collator;
use crate::values::document::number::Number;
use crate::values::document::value::Value;
use crate::values::key::encode::{encoded_under, prefix_successor};
use crate::values::key::{KeyRange, KeyRanges};
use crate::values::order::Class;

impl FilterNode {
    /// The encodings of the field's value in matching documents.
    pub fn ranges_of(&self, path: &str, stored: Stored<'_>) -> KeyRanges {
        self.narrowed(path, stored, Sources::OF_PATH).unwrap_or_else(KeyRanges::all)
    }

    /// Like [`ranges_of`](Self::ranges_of), but also uses equalities of whole documents that contain the field: `{"a": {"b": 1}}` implies
    /// that `a.b` is 1.
    pub fn ranges_within(&self, path: &str) -> KeyRanges {
        self.narrowed(path, None, Sources { wholes: true, ..Sources::OF_PATH }).unwrap_or_else(KeyRanges::all)
    }

    /// Like [`ranges_within`](Self::ranges_within), but ignores expressions: their values may depend on the time, the user's roles, or a
    /// random number.
    pub fn ranges_as_written(&self, path: &str) -> KeyRanges {
        self.narrowed(path, None, Sources { wholes: true, expressions: false }).unwrap_or_else(KeyRanges::all)
    }

    /// Like [`ranges_of`](Self::ranges_of); None for everything, the most frequent result.
    fn narrowed(&self, path: &str, stored: Stored<'_>, from: Sources) -> Option<KeyRanges> {
        budget::step();
        match self {
            FilterNode::And(nodes) => {
                nodes.iter().filter_map(|node| node.narrowed(path, stored, from)).reduce(|a, b| a.intersect(&b))
            }
            // An `$or` without branches may come from an `$expr` that is constant and false, so it is ignored like an expression.
            FilterNode::Or(nodes) if nodes.is_empty() && !from.expressions => None,
            FilterNode::Or(nodes) => union(nodes.iter().map(|node| node.narrowed(path, stored, from))),
            FilterNode::Not(node) => node.ranges_without(path, stored),
            FilterNode::Leaf(leaf, test) if leaf == path => Some(test.ranges(stored)),
            FilterNode::Leaf(leaf, test) if from.wholes => {
                test.ranges_below(path.strip_prefix(leaf)?.strip_prefix('.')?)
            }
            FilterNode::Expression(expression, collator) if from.expressions => expression
                .required_equalities()
                .into_iter()
                .inspect(|_| budget::step())
                .filter(|(field, value)| *field == path && (collator.as_deref() == stored || !value.has_strings()))
                .map(|(_, value)| point(value, stored))
                .reduce(|a, b| a.intersect(&b)),
            FilterNode::Expression(..) | FilterNode::Leaf(..) | FilterNode::Schema(_) | FilterNode::Sample(_) => None,
        }
    }

    /// Ranges that contain at least one value at the path in every matching document, where arrays may be on the path. Different
    /// elements may satisfy different conditions, so ranges are not intersected: the narrowest is used.
    pub fn ranges_of_one(&self, path: &str, stored: Stored<'_>) -> KeyRanges {
        self.narrowed_to_one(path, stored).unwrap_or_else(KeyRanges::all)
    }

    /// Like [`ranges_of_one`](Self::ranges_of_one); None for everything.
    fn narrowed_to_one(&self, path: &str, stored: Stored<'_>) -> Option<KeyRanges> {
        budget::step();
        match self {
            FilterNode::And(nodes) => {
                nodes.iter().filter_map(|node| node.narrowed_to_one(path, stored)).min_by_key(width)
            }
            FilterNode::Or(nodes) => union(nodes.iter().map(|node| node.narrowed_to_one(path, stored))),
            FilterNode::Not(node) => node.ranges_without(path, stored),
            FilterNode::Leaf(leaf, test) if leaf == path => Some(test.ranges_of_one(stored)),
            // `$expr` compares an array as a whole, so its equalities do not apply to elements.
            FilterNode::Expression(..) | FilterNode::Leaf(..) | FilterNode::Schema(_) | FilterNode::Sample(_) => None,
        }
    }

    /// Ranges that contain the field's encoding in every document that does not match; None for everything.
    fn ranges_without(&self, path: &str, stored: Stored<'_>) -> Option<KeyRanges> {
        match self {
            FilterNode::Leaf(leaf, Test::Exists) if leaf == path => Some(point(&Value::Null, stored)),
            _ => None,
        }
    }

    /// Visits the leaves that every matching document satisfies, in the filter's order.
    pub fn required<'a>(&'a self, visit: &mut impl FnMut(&'a str, &'a Test)) {
        budget::step();
        match self {
            FilterNode::And(nodes) => nodes.iter().for_each(|node| node.required(visit)),
            FilterNode::Or(nodes) => {
                if let [node] = nodes.as_slice() {
                    node.required(visit);
                }
            }
            FilterNode::Not(_) | FilterNode::Expression(..) | FilterNode::Schema(_) | FilterNode::Sample(_) => {}
            FilterNode::Leaf(path, test) => visit(path, test),
        }
    }

    /// True only if the node has no conditions on other paths, and matches every document without arrays on these paths whose values lie in
    /// the node's [`ranges_of`](Self::ranges_of) each path. If true, the ranges of a path are a single range, or points.
    pub fn is_ranges_of(&self, paths: &[&str]) -> bool {
        budget::step();
        match self {
            FilterNode::And(nodes) => nodes.iter().all(|node| node.is_ranges_of(paths)),
            FilterNode::Leaf(path, test) => paths.contains(&path.as_str()) && test.is_ranges(),
            FilterNode::Or(_)
            | FilterNode::Not(_)
            | FilterNode::Expression(..)
            | FilterNode::Schema(_)
            | FilterNode::Sample(_) => false,
        }
    }

    /// True if the result depends only on values at accepted paths.
    pub fn looks_only_at(&self, accepts: &impl Fn(&str) -> bool) -> bool {
        budget::step();
        match self {
            FilterNode::And(nodes) | FilterNode::Or(nodes) => nodes.iter().all(|node| node.looks_only_at(accepts)),
            FilterNode::Not(node) => node.looks_only_at(accepts),
            FilterNode::Leaf(path, _) => accepts(path),
            FilterNode::Sample(_) => true,
            FilterNode::Expression(..) | FilterNode::Schema(_) => false,
        }
    }

    /// Visits the path of every leaf, and of every equality that an expression requires.
    pub fn leaf_paths<'a>(&'a self, visit: &mut impl FnMut(&'a str)) {
        budget::step();
        match self {
            FilterNode::And(nodes) | FilterNode::Or(nodes) => nodes.iter().for_each(|node| node.leaf_paths(visit)),
            FilterNode::Not(node) => node.leaf_paths(visit),
            FilterNode::Leaf(path, _) => visit(path),
            FilterNode::Expression(expression, _) => {
                expression.required_equalities().into_iter().for_each(|(path, _)| visit(path));
            }
            FilterNode::Schema(_) | FilterNode::Sample(_) => {}
        }
    }
}

/// The union of ranges; None, as an operand and as the result, stands for everything.
fn union(parts: impl Iterator<Item = Option<KeyRanges>>) -> Option<KeyRanges> {
    parts.collect::<Option<Vec<_>>>().map(KeyRanges::union)
}

/// The collation of stored keys; None for the order of bytes.
type Stored<'c> = Option<&'c Collator>;

/// What ranges are taken from, besides conditions on the path itself.
#[derive(Clone, Copy)]
struct Sources {
    /// equalities of whole documents that contain the path
    wholes: bool,
    /// equalities in expressions
    expressions: bool,
}

impl Sources {
    const OF_PATH: Self = Self { wholes: false, expressions: true };
}

/// The values at a path that a range must contain.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Found {
    /// the only value at the path
    Value,
    /// at least one of the values at the path: elements of arrays, also of an array at its end
    Element,
}

impl Test {
    fn ranges(&self, stored: Stored<'_>) -> KeyRanges {
        match self {
            Test::Collated(test, collator) => test.ranges_under(Some(collator), stored, Found::Value),
            test => test.ranges_under(None, stored, Found::Value),
        }
    }

    /// The encodings of the values at a path inside documents that pass; None for everything.
    fn ranges_below(&self, path: &str) -> Option<KeyRanges> {
        let (test, collation) = match self {
            Test::Collated(test, collator) => (test.as_ref(), Some(&**collator)),
            test => (test, None),
        };
        let values = match test {
            Test::Equal(value) => std::slice::from_ref(value),
            Test::In(set) if set.patterns.is_empty() && !set.null => &set.values,
            _ => return None,
        };
        let of_part = |whole: &Value| {
            let part = path.split('.').try_fold(whole, |value, name| match value {
                Value::Object(fields) => {
                    let mut counted = fields.iter().inspect(|_| budget::step());
                    counted.find(|(field, _)| field == name).map(|(_, value)| value)
                }
                _ => None,
            })?;
            if matches!(part, Value::Undefined) {
                return None;
            }
            Some(Test::Equal(part.clone()).ranges_under(collation, None, Found::Value))
        };
        union(values.iter().map(of_part))
    }

    /// True if exactly the values in [`ranges`](Self::ranges) pass, apart from arrays.
    fn is_ranges(&self) -> bool {
        let scalar = |value: &Value| Class::of(value) != Class::Array;
        match self {
            Test::Null => true,
            Test::Equal(value) => scalar(value),
            Test::In(set) => set.patterns.is_empty() && set.values.iter().inspect(|_| budget::step()).all(scalar),
            Test::Range(range) => range.class.is_some_and(|class| class != Class::Array),
            _ => false,
        }
    }

    /// Ranges that contain at least one element of every array that passes, and every other value that passes.
    fn ranges_of_one(&self, stored: Stored<'_>) -> KeyRanges {
        match self {
            Test::Collated(test, collator) => test.ranges_under(Some(collator), stored, Found::Element),
            test => test.ranges_under(None, stored, Found::Element),
        }
    }

    /// The encodings of values that pass the test, which compares strings under `collation`.
    fn ranges_under(&self, collation: Stored<'_>, stored: Stored<'_>, found: Found) -> KeyRanges {
        let alike = collation == stored;
        let of_value = |value: &Value| match Class::of(value) {
            Class::Array if found == Found::Value || !alike && value.has_strings() => KeyRanges::all(),
            Class::Array => of_element_or_array(value, stored),
            class if !alike && value.has_strings() => whole(class),
            _ => point(value, stored),
        };
        let matched_by = |pattern: &Pattern| {
            let strings = if stored.is_none() { starting_with(pattern.prefix()) } else { whole(Class::String) };
            KeyRanges::union([strings, point(&pattern.value(), None)])
        };
        match self {
            Test::Exists => KeyRanges::all(),
            Test::Never => KeyRanges::none(),
            Test::Null => point(&Value::Null, None),
            Test::Equal(value) => of_value(value),
            Test::In(set) => {
                let null = set.null.then(|| point(&Value::Null, None));
                let parts = null.into_iter().chain(set.values.iter().map(of_value));
                let parts = parts.chain(set.patterns.iter().map(matched_by));
                KeyRanges::union(parts)
            }
            // The array itself may pass, as it lies between MinKey and MaxKey, so its elements can have any value.
            Test::Range(range) if found == Found::Element && range.class.is_none() => KeyRanges::all(),
            // All tests inside `$elemMatch` apply to the same element, so their ranges are intersected.
            Test::ElementValue(node) if found == Found::Element => node.ranges_of("", stored),
            Test::Range(range) if !alike && range.bound.has_strings() => {
                if range.class == Some(Class::Array) {
                    KeyRanges::all()
                } else {
                    whole(Class::of(&range.bound))
                }
            }
            Test::Range(range) => range.ranges(stored),
            Test::Regex(pattern) => matched_by(pattern),
            Test::Type(_)
            | Test::Modulo(_)
            | Test::Bits(_)
            | Test::Size(_)
            | Test::ElementDocument(_)
            | Test::ElementValue(_)
            | Test::Collated(..) => KeyRanges::all(),
        }
    }
}

impl Range {
    fn ranges(&self, stored: Stored<'_>) -> KeyRanges {
        let everything = match self.side {
            Side::GreaterOrEqual => matches!(self.bound, Value::MinKey),
            Side::LessOrEqual => matches!(self.bound, Value::MaxKey),
            _ => false,
        };
        if everything || self.class == Some(Class::Array) {
            return KeyRanges::all();
        }
        let bound = encoded_under(&self.bound, stored);
        let edge =
            if self.side.is_inclusive() == self.side.is_upper() { prefix_successor(&bound) } else { Some(bound) };
        let range = if self.side.is_upper() {
            let lo = match self.class {
                None => Some(Vec::new()),
                // NaN sorts below every number, and no range contains it.
                Some(Class::Number) => prefix_successor(&encoded_under(&Value::Number(Number::Double(f64::NAN)), None)),
                Some(class) => Some(vec![class as u8]),
            };
            lo.map(|lo| KeyRange { lo, hi: edge })
        } else {
            let hi = self.class.and_then(|class| prefix_successor(&[class as u8]));
            edge.map(|lo| KeyRange { lo, hi })
        };
        KeyRanges::new(range.into_iter().collect())
    }
}

/// The strings that start with a prefix.
fn starting_with(prefix: &str) -> KeyRanges {
    let mut lo = encoded_under(&Value::String(prefix.to_owned()), None);
    // Without its terminator, the encoding of the prefix is a prefix of the encoding of each string that starts with it.
    lo.pop();
    let hi = prefix_successor(&lo);
    KeyRanges::new(vec![KeyRange { lo, hi }])
}

/// Every value of a class.
fn whole(class: Class) -> KeyRanges {
    KeyRanges::new(vec![KeyRange { lo: vec![class as u8], hi: prefix_successor(&[class as u8]) }])
}

/// For an array that equals `value`, the encoding of its first element; for an array that has `value` as an element, that of `value`.
fn of_element_or_array(value: &Value, stored: Stored<'_>) -> KeyRanges {
    let first = match value {
        Value::Array(items) => items.first().map_or_else(|| vec![EMPTY_ARRAY], |first| encoded_under(first, stored)),
        _ => Vec::new(),
    };
    KeyRanges::union([point(value, stored), KeyRanges::point(first)])
}

/// Ranks ranges by width: none, points, ranges, everything; and equal ones by their number.
fn width(ranges: &KeyRanges) -> (u8, usize) {
    let slice = ranges.as_slice();
    match slice {
        [] => (0, 0),
        _ if ranges.is_all() => (3, 0),
        _ if ranges.are_points() => (1, slice.len()),
        _ => (2, slice.len()),
    }
}

fn point(value: &Value, stored: Stored<'_>) -> KeyRanges {
    KeyRanges::point(encoded_under(value, stored))
}
