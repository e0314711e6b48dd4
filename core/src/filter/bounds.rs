//! What a filter says about a field: the encoded values it allows, and the equalities it demands.
//!
//! RULE: ranges may hold more than what matches, never less, for documents without arrays on the field's path. What is
//! not understood allows everything.

use super::node::{Node, Range, Side, Test, has_strings};
use super::regex::Pattern;
use crate::document::number::Number;
use crate::document::order::Class;
use crate::document::value::Value;
use crate::key::encode::{encode_value, prefix_successor};
use crate::key::{KeyRange, KeyRanges};

impl Node {
    /// The encodings that the field can have in a matching document.
    pub fn ranges_of(&self, path: &str) -> KeyRanges {
        match self {
            Node::And(nodes) => {
                nodes.iter().fold(KeyRanges::all(), |ranges, node| ranges.intersect(&node.ranges_of(path)))
            }
            Node::Or(nodes) => nodes.iter().fold(KeyRanges::none(), |ranges, node| ranges.union(&node.ranges_of(path))),
            Node::Not(node) => match &**node {
                Node::Leaf(leaf, Test::Exists) if leaf == path => point(&Value::Null),
                _ => KeyRanges::all(),
            },
            Node::Leaf(leaf, test) if leaf == path => test.ranges(),
            Node::Expression(expression, collator) => expression
                .required_equalities()
                .into_iter()
                .filter(|(field, value)| *field == path && !(collator.is_some() && has_strings(value)))
                .fold(KeyRanges::all(), |ranges, (_, value)| ranges.intersect(&point(value))),
            Node::Leaf(..) | Node::Schema(_) | Node::Sample(_) => KeyRanges::all(),
        }
    }

    /// Visits the leaves that every matching document passes, in the order they were written.
    pub fn required<'a>(&'a self, visit: &mut impl FnMut(&'a str, &'a Test)) {
        match self {
            Node::And(nodes) => nodes.iter().for_each(|node| node.required(visit)),
            Node::Or(nodes) => {
                if let [node] = nodes.as_slice() {
                    node.required(visit);
                }
            }
            Node::Not(_) | Node::Expression(..) | Node::Schema(_) | Node::Sample(_) => {}
            Node::Leaf(path, test) => visit(path, test),
        }
    }

    /// Visits the path of every leaf.
    pub fn leaf_paths<'a>(&'a self, visit: &mut impl FnMut(&'a str)) {
        match self {
            Node::And(nodes) | Node::Or(nodes) => nodes.iter().for_each(|node| node.leaf_paths(visit)),
            Node::Not(node) => node.leaf_paths(visit),
            Node::Leaf(path, _) => visit(path),
            Node::Expression(expression, _) => {
                expression.required_equalities().into_iter().for_each(|(path, _)| visit(path));
            }
            Node::Schema(_) | Node::Sample(_) => {}
        }
    }
}

impl Test {
    fn ranges(&self) -> KeyRanges {
        match self {
            Test::Exists => KeyRanges::all(),
            Test::Never => KeyRanges::none(),
            Test::Null => point(&Value::Null),
            Test::Equal(Value::Array(_)) => KeyRanges::all(),
            Test::Equal(value) => point(value),
            Test::In(set) if set.values.iter().any(|value| matches!(value, Value::Array(_))) => KeyRanges::all(),
            Test::In(set) => {
                let null = set.null.then_some(&Value::Null);
                let points = null.into_iter().chain(&set.values).map(|value| KeyRange::point(&encoded(value)));
                let points = KeyRanges::new(points.collect());
                set.patterns.iter().fold(points, |ranges, pattern| ranges.union(&matched_by(pattern)))
            }
            Test::Range(range) => range.ranges(),
            Test::Regex(pattern) => matched_by(pattern),
            Test::Collated(test, _) => test.collated_ranges(),
            Test::Type(_)
            | Test::Modulo(_)
            | Test::Bits(_)
            | Test::Size(_)
            | Test::ElementDocument(_)
            | Test::ElementValue(_) => KeyRanges::all(),
        }
    }
}

impl Test {
    /// Equal strings may have any encodings: all of their class come into question.
    fn collated_ranges(&self) -> KeyRanges {
        let of_value = |value: &Value| match Class::of(value) {
            Class::Array => KeyRanges::all(),
            class if has_strings(value) => {
                KeyRanges::new(vec![KeyRange { lo: vec![class as u8], hi: prefix_successor(&[class as u8]) }])
            }
            _ => point(value),
        };
        match self {
            Test::Equal(value) => of_value(value),
            Test::Range(range) => of_value(&range.bound),
            Test::In(set) => {
                let rest = Test::one_of(if set.null { vec![Value::Null] } else { Vec::new() }, set.patterns.clone());
                set.values.iter().fold(rest.ranges(), |ranges, value| ranges.union(&of_value(value)))
            }
            _ => KeyRanges::all(),
        }
    }
}

impl Range {
    fn ranges(&self) -> KeyRanges {
        let everything = match self.side {
            Side::GreaterOrEqual => matches!(self.bound, Value::MinKey),
            Side::LessOrEqual => matches!(self.bound, Value::MaxKey),
            _ => false,
        };
        if everything || self.class == Some(Class::Array) {
            return KeyRanges::all();
        }
        let bound = encoded(&self.bound);
        let edge =
            if self.side.is_inclusive() == self.side.is_upper() { prefix_successor(&bound) } else { Some(bound) };
        let range = if self.side.is_upper() {
            let lo = match self.class {
                None => Some(Vec::new()),
                // NaN stands below every number, and no range holds it.
                Some(Class::Number) => prefix_successor(&encoded(&Value::Number(Number::Double(f64::NAN)))),
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

/// The strings that start with the pattern's literal prefix, and the pattern itself.
fn matched_by(pattern: &Pattern) -> KeyRanges {
    let mut lo = encoded(&Value::String(pattern.prefix().to_owned()));
    // Without its end mark, a string's encoding is a prefix of every longer string's.
    lo.pop();
    let hi = prefix_successor(&lo);
    KeyRanges::new(vec![KeyRange { lo, hi }, KeyRange::point(&encoded(&pattern.value()))])
}

fn encoded(value: &Value) -> Vec<u8> {
    let mut key = Vec::new();
    encode_value(value, &mut key);
    key
}

fn point(value: &Value) -> KeyRanges {
    KeyRanges::new(vec![KeyRange::point(&encoded(value))])
}
