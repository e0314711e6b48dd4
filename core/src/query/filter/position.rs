//! Finds the array element by which a document matches, to which `$` in an update or a projection refers.
//!
//! The element belongs to the outermost array on the path. As in MongoDB, the last of several conditions that finds an element decides, in
//! the order of [`rank`]. A negation finds none. An `$or` of several branches finds one only if all branches are equalities or patterns of
//! one field.

use super::Filter;
use super::node::{FilterNode, Test};
use crate::budget;
use crate::values::document::raw::{RawObject, RawValue};
use crate::values::path::{self, AtEnd, Base};

impl Filter {
    /// The position of the array element by which the document matches; None if it does not match, or not by an element.
    pub fn position(&self, document: RawObject<'_>) -> Option<usize> {
        self.root.position(Base::Object(document)).flatten()
    }
}

impl FilterNode {
    /// None: no match. Some(None): a match, but not by an element of an array.
    fn position(&self, document: Base<'_>) -> Option<Option<usize>> {
        budget::step();
        match self {
            FilterNode::And(nodes) => {
                let mut last = None;
                for node in nodes {
                    let found = node.position(document)?.map(|position| (rank(node), position));
                    last = last.filter(|(before, _)| found.is_none_or(|(after, _)| *before > after)).or(found);
                }
                Some(last.map(|(_, position)| position))
            }
            FilterNode::Or(nodes) if values_of_one_field(nodes).is_some() => {
                let (path, at_end) = values_of_one_field(nodes)?;
                let accepts = |found| {
                    budget::steps(nodes.len());
                    nodes.iter().filter_map(equality).any(|(_, test)| test.accepts(found))
                };
                path::position(document, path, at_end, &accepts)
            }
            FilterNode::Or(nodes) if nodes.len() == 1 => nodes[0].position(document),
            FilterNode::Leaf(path, test) => path::position(document, path, test.at_end(), &|found| test.accepts(found))
                .map(|outer| outer.or_else(|| test.position_within(document, path))),
            other => other.matches(document).unwrap_or(false).then_some(None),
        }
    }
}

/// The order in which MongoDB evaluates conditions that must all match: by their operators, then by their paths.
fn rank(node: &FilterNode) -> (u8, &str) {
    match node {
        FilterNode::And(nodes) if nodes.len() == 1 => rank(&nodes[0]),
        FilterNode::And(_) => (0, ""),
        FilterNode::Or(nodes) => match (nodes.as_slice(), values_of_one_field(nodes)) {
            ([node], _) => rank(node),
            (_, Some((path, _))) => (IN, path),
            (_, None) => (1, ""),
        },
        FilterNode::Leaf(path, test) => (rank_of_test(test), path),
        FilterNode::Not(_) => (16, ""),
        FilterNode::Expression(..) | FilterNode::Schema(_) | FilterNode::Sample(_) => (18, ""),
    }
}

/// The rank of `$in`.
const IN: u8 = 12;

fn rank_of_test(test: &Test) -> u8 {
    match test {
        Test::ElementDocument(_) => 2,
        Test::ElementValue(_) => 3,
        Test::Size(_) => 4,
        Test::Equal(_) | Test::Null => 5,
        Test::Range(range) => match (range.side.is_upper(), range.side.is_inclusive()) {
            (true, true) => 6,
            (true, false) => 7,
            (false, false) => 8,
            (false, true) => 9,
        },
        Test::Regex(_) => 10,
        Test::Modulo(_) => 11,
        Test::Exists => 11,
        Test::In(_) => IN,
        Test::Bits(_) => 13,
        Test::Type(_) => 17,
        Test::Never => 19,
        Test::Collated(test, _) => rank_of_test(test),
    }
}

/// The field, if all branches of an `$or` are equalities or patterns of one field; else None. Such an `$or` counts as `$in`, as in MongoDB.
fn values_of_one_field(nodes: &[FilterNode]) -> Option<(&str, AtEnd)> {
    let (path, test) = nodes.first().and_then(equality)?;
    let same = |node: &FilterNode| equality(node).is_some_and(|(other, _)| other == path);
    nodes.iter().all(same).then(|| (path, test.at_end()))
}

fn equality(node: &FilterNode) -> Option<(&str, &Test)> {
    match node {
        FilterNode::Leaf(path, test @ (Test::Equal(_) | Test::Null | Test::Regex(_))) => Some((path, test)),
        FilterNode::Leaf(path, test @ Test::Collated(inner, _)) if matches!(**inner, Test::Equal(_)) => {
            Some((path, test))
        }
        FilterNode::And(nodes) => match nodes.as_slice() {
            [node] => equality(node),
            _ => None,
        },
        _ => None,
    }
}

impl Test {
    /// The first element of the array at the path that `$elemMatch` accepts.
    fn position_within(&self, document: Base<'_>, path: &str) -> Option<usize> {
        if !matches!(self, Test::ElementDocument(_) | Test::ElementValue(_)) {
            return None;
        }
        match path::end(document, path)? {
            RawValue::Array(array) => array.iter().position(|element| self.matches_element(element)),
            _ => None,
        }
    }
}
