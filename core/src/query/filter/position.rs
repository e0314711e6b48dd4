//! Finds the array element by which a document matches, to which `$` in an update or a projection refers.
//!
//! The element belongs to the outermost array on the path. Of several conditions, the first that finds an element decides (MongoDB
//! leaves that undefined); of alternatives the first that matches; a negation finds none.

use super::Filter;
use super::node::{Node, Test};
use crate::budget;
use crate::values::document::raw::{RawObject, RawValue};
use crate::values::path::{self, AtEnd, Base};

impl Filter {
    /// The position of the array element by which the document matches; None if it does not match, or not by an element.
    pub fn position(&self, document: RawObject<'_>) -> Option<usize> {
        self.root.position(Base::Object(document)).flatten()
    }
}

impl Node {
    /// None: no match. Some(None): a match, but not by an element of an array.
    fn position(&self, document: Base<'_>) -> Option<Option<usize>> {
        budget::step();
        match self {
            Node::And(nodes) => {
                nodes.iter().try_fold(None, |found, node| node.position(document).map(|next| found.or(next)))
            }
            Node::Or(nodes) if values_of_one_field(nodes).is_some() => {
                let (path, at_end) = values_of_one_field(nodes)?;
                let accepts = |found| {
                    budget::steps(nodes.len());
                    nodes.iter().filter_map(equality).any(|(_, test)| test.accepts(found))
                };
                path::position(document, path, at_end, &accepts)
            }
            Node::Or(nodes) => nodes.iter().find_map(|node| node.position(document)),
            Node::Leaf(path, test) => path::position(document, path, test.at_end(), &|found| test.accepts(found))
                .map(|outer| outer.or_else(|| test.position_within(document, path))),
            other => other.matches(document).unwrap_or(false).then_some(None),
        }
    }
}

/// The field, if all alternatives are equalities of one field. They then count as `$in`, as in MongoDB.
fn values_of_one_field(nodes: &[Node]) -> Option<(&str, AtEnd)> {
    let (path, test) = nodes.first().and_then(equality)?;
    let same = |node: &Node| equality(node).is_some_and(|(other, _)| other == path);
    nodes.iter().all(same).then(|| (path, test.at_end()))
}

fn equality(node: &Node) -> Option<(&str, &Test)> {
    match node {
        Node::Leaf(path, test @ Test::Equal(_)) => Some((path, test)),
        Node::Leaf(path, test @ Test::Collated(inner, _)) if matches!(**inner, Test::Equal(_)) => Some((path, test)),
        Node::And(nodes) => match nodes.as_slice() {
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
