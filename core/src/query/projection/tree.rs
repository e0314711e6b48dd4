//! The fields that a projection names, as a tree.

use super::slice::Slice;
use crate::budget;
use crate::query::expression::Expression;
use crate::query::filter::ElementCondition;
use indexmap::IndexMap;
use std::collections::BTreeSet;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Include,
    Exclude,
    /// existing fields are kept, computed fields are added or replace them
    Add,
}

/// The named fields, by the components of their paths, in the order of the specification.
pub(super) type Tree = IndexMap<String, ProjectionNode>;

#[derive(Debug)]
pub(super) enum ProjectionNode {
    Leaf,
    Branch(Tree),
    /// `$slice`
    Slice(Slice),
    /// `$elemMatch`: the first element that matches
    Element(ElementCondition),
    /// the element by which the document matches
    Positional,
    /// the value of an expression
    Computed(Box<Expression>),
    /// the value at this position among those given to [`Assignments::apply`](super::Assignments::apply)
    Given(usize),
}

/// Visits the ends of a tree with their paths.
pub(super) fn ends(tree: &Tree, above: &str, visit: &mut impl FnMut(String, &ProjectionNode)) {
    for (name, node) in tree {
        budget::text(above.len() + name.len());
        match node {
            ProjectionNode::Branch(fields) => ends(fields, &format!("{above}{name}."), visit),
            end => visit(format!("{above}{name}"), end),
        }
    }
}

/// Collects the paths that computed fields read; false if they read the whole document.
pub(super) fn collect_read(tree: &Tree, paths: &mut BTreeSet<String>) -> bool {
    tree.values().inspect(|_| budget::step()).all(|node| match node {
        ProjectionNode::Branch(fields) => collect_read(fields, paths),
        ProjectionNode::Computed(expression) => expression.fields_read().is_some_and(|read| {
            paths.extend(read);
            true
        }),
        _ => true,
    })
}

/// Collects the paths of a tree; false if any of them does not end in a leaf.
pub(super) fn leaves(tree: &Tree, above: &str, paths: &mut Vec<String>) -> bool {
    tree.iter().inspect(|(name, _)| budget::text(above.len() + name.len())).all(|(name, node)| match node {
        ProjectionNode::Leaf => {
            paths.push(format!("{above}{name}"));
            true
        }
        ProjectionNode::Branch(tree) => leaves(tree, &format!("{above}{name}."), paths),
        ProjectionNode::Slice(_)
        | ProjectionNode::Element(_)
        | ProjectionNode::Positional
        | ProjectionNode::Computed(_)
        | ProjectionNode::Given(_) => false,
    })
}

/// True if a path in the tree is positional.
pub(super) fn is_positional(fields: &Tree) -> bool {
    fields.values().inspect(|_| budget::step()).any(|node| match node {
        ProjectionNode::Positional => true,
        ProjectionNode::Branch(fields) => is_positional(fields),
        _ => false,
    })
}

/// True if a field in the tree is computed.
pub(super) fn computes(fields: &Tree) -> bool {
    fields.values().inspect(|_| budget::step()).any(|node| match node {
        ProjectionNode::Computed(_) => true,
        ProjectionNode::Branch(fields) => computes(fields),
        _ => false,
    })
}
