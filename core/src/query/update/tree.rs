//! A tree of modifiers by path, and its walk over a document.
//!
//! INVARIANT: no modifier has a path at or below that of another one: adding such a modifier is a conflict. So at most one modifier
//! changes a value, and their order does not matter.

use super::context::{Context, Outcome, filter_of};
use super::message::shown;
use super::modifier::Modifier;
use crate::budget;
use crate::error::{Kind, Result, bail, ensure};
use crate::values::document::MAX_DOCUMENT_BYTES;
use crate::values::document::raw::{self, RawArray, RawObject, RawValue};
use crate::values::document::value::Value;
use crate::values::document::write::{self, Part};
use crate::values::path;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Modifiers by the components of their paths.
#[derive(Debug, Default)]
pub(super) struct Tree {
    children: BTreeMap<String, Node>,
    /// source and destination of every rename; at the root only
    renames: Vec<(String, String)>,
}

/// The values that a path leads through in a document.
enum Route<'p, 'a> {
    Documents,
    /// an array; the name of the first one
    Array(&'p str),
    /// a value that cannot have fields, with its name
    Blocked(&'p str, RawValue<'a>),
}

fn route<'p, 'a>(document: RawObject<'a>, path: &'p str) -> Route<'p, 'a> {
    let (mut value, mut name, mut array) = (RawValue::Object(document), "", None);
    for component in path.split('.') {
        let next = match value {
            RawValue::Array(elements) => match path::array_index(component) {
                None => return Route::Blocked(name, value),
                Some(index) => {
                    array.get_or_insert(name);
                    elements.get(index)
                }
            },
            value => match path::embedded(value) {
                None => return Route::Blocked(name, value),
                Some(object) => object.get(component),
            },
        };
        let Some(next) = next else { break };
        (value, name) = (next, component);
    }
    array.map_or(Route::Documents, Route::Array)
}

#[derive(Debug)]
enum Node {
    Branch(Tree),
    Leaf(Modifier),
}

/// Largest number of nulls that fill an array up to a position: MongoDB's limit.
const MAX_PADDING: usize = 1_500_000;

/// Largest number of elements of an array that fits into a document: each takes an entry of four bytes.
const MAX_ELEMENTS: usize = MAX_DOCUMENT_BYTES / 4;

impl Tree {
    /// Adds a modifier.
    ///
    /// # Errors
    /// `ConflictingUpdateOperators` if the tree has one at, above or below the path, or if the path names elements by `$[…]` and
    /// another path names them by position or field.
    pub fn add(&mut self, path: &str, modifier: Modifier) -> Result<()> {
        if let Modifier::RenameTo(to) = &modifier {
            self.renames.push((path.to_owned(), to.clone()));
        }
        let mut tree = self;
        let mut walked = 0;
        for name in path.split('.') {
            let end = walked + name.len();
            let conflict = |at: &str| {
                bail!(Kind::ConflictingUpdateOperators, "Updating the path '{path}' would create a conflict at '{at}'")
            };
            // All existing children are of the same kind.
            if tree.children.keys().next().is_some_and(|other| is_positional(other) != is_positional(name)) {
                return conflict(&path[..walked.saturating_sub(1)]);
            }
            if end == path.len() {
                if tree.children.contains_key(name) {
                    return conflict(path);
                }
                tree.children.insert(name.to_owned(), Node::Leaf(modifier));
                return Ok(());
            }
            let node = tree.children.entry(name.to_owned()).or_insert_with(|| Node::Branch(Tree::default()));
            match node {
                Node::Branch(branch) => tree = branch,
                Node::Leaf(_) => return conflict(&path[..end]),
            }
            walked = end + 1;
        }
        Ok(())
    }

    /// The changed document; None without a change. Without a document, a new one is created.
    ///
    /// # Errors
    /// Those of [`Update::apply`](super::Update::apply) but `ImmutableField`.
    pub fn apply<'a>(&'a self, object: Option<RawObject<'a>>, context: &Context<'a>) -> Result<Option<Part<'a>>> {
        if let Some(positional) = self.children.keys().find(|name| is_positional(name)) {
            match object {
                None => bail!(
                    Kind::BadValue,
                    "The path of '{positional}' must exist in the document in order to apply array updates."
                ),
                Some(object) => bail!(
                    Kind::BadValue,
                    "Cannot apply array updates to non-array element {}",
                    shown(RawValue::Object(object))
                ),
            }
        }
        let matched = self.matched(context)?;
        let named = self.children.iter().filter(|(name, _)| *name != POSITIONAL);
        let named = named.map(|(name, node)| (Cow::Borrowed(name.as_str()), node));
        // The changed fields by their positions, with None for removed ones; and the new fields.
        let mut edits = Vec::new();
        let mut added = Vec::new();
        for (name, node) in named.chain(matched.map(|(name, node)| (Cow::Owned(name), node))) {
            budget::step();
            let existing = object.and_then(|object| object.find(&name));
            let outcome = node.apply(&name, existing.map(|(_, value)| value), context)?;
            match (outcome, existing) {
                (Outcome::Keep, _) | (Outcome::Remove, None) => {}
                (Outcome::Remove, Some((position, _))) => edits.push((position, None)),
                (Outcome::Write(part), Some((position, _))) => edits.push((position, Some(part))),
                (Outcome::Write(part), None) => added.push((name, part)),
            }
        }
        if edits.is_empty() && added.is_empty() {
            return Ok(None);
        }
        let Some(object) = object else { return Ok(Some(Part::Object(added))) };
        edits.sort_by_key(|(position, _)| *position);
        if added.is_empty() && edits.iter().all(|(_, part)| part.is_some()) {
            let edits = edits.into_iter().filter_map(|(position, part)| Some((position, part?))).collect();
            return Ok(Some(Part::Edited(object, edits)));
        }
        let mut edits = edits.into_iter().peekable();
        let mut parts = Vec::with_capacity(object.len() + added.len());
        for (index, (name, value)) in object.iter().enumerate() {
            match edits.next_if(|(position, _)| *position == index) {
                None => parts.push((Cow::Borrowed(name), Part::Raw(value))),
                Some((_, Some(part))) => parts.push((Cow::Borrowed(name), part)),
                Some((_, None)) => {}
            }
        }
        parts.extend(added);
        Ok(Some(Part::Object(parts)))
    }

    /// The node at `$`, with the position to which `$` refers.
    ///
    /// # Errors
    /// `BadValue` if the document did not match by an element of an array, `ConflictingUpdateOperators` if another path names the same
    /// element by its position.
    fn matched(&self, context: &Context<'_>) -> Result<Option<(String, &Node)>> {
        let Some(node) = self.children.get(POSITIONAL) else { return Ok(None) };
        let Some(position) = context.position else {
            bail!(Kind::BadValue, "The positional operator did not find the match needed from the query.")
        };
        let name = position.to_string();
        if self.children.contains_key(&name) {
            bail!(Kind::ConflictingUpdateOperators, "Updating the path '{name}' would create a conflict at '{name}'");
        }
        Ok(Some((name, node)))
    }

    /// The changed array of that name; None without a change.
    fn apply_to_array<'a>(
        &'a self,
        name: &str,
        array: RawArray<'a>,
        context: &Context<'a>,
    ) -> Result<Option<Part<'a>>> {
        let mut changed = false;
        let mut parts: Vec<Part<'a>> = array.iter().map(Part::Raw).collect();
        let mut positional: Vec<(&str, &'a Node)> = Vec::new();
        let matched = self.matched(context)?;
        let children = self.children.iter().filter(|(name, _)| *name != POSITIONAL);
        let children = children.map(|(name, node)| (name.as_str(), node));
        for (component, node) in children.chain(matched.as_ref().map(|(name, node)| (name.as_str(), *node))) {
            budget::step();
            if is_positional(component) {
                positional.push((component, node));
                continue;
            }
            let Some(index) = path::array_index(component) else {
                node.refuse_to_create(component, name, RawValue::Array(array), context)?;
                continue;
            };
            match node.apply(component, array.get(index), context)? {
                Outcome::Keep => continue,
                Outcome::Remove => parts[index] = Part::Raw(RawValue::Null),
                Outcome::Write(part) => {
                    pad(&mut parts, index, array.len())?;
                    parts[index] = part;
                }
            }
            changed = true;
        }
        if !positional.is_empty() {
            changed |= self.apply_to_elements(name, array, &positional, &mut parts, context)?;
        }
        Ok(changed.then_some(Part::Array(parts)))
    }

    /// Changes the elements that `$[]` and `$[identifier]` name; true if there was a change.
    fn apply_to_elements<'a>(
        &'a self,
        name: &str,
        array: RawArray<'a>,
        positional: &[(&str, &'a Node)],
        parts: &mut [Part<'a>],
        context: &Context<'a>,
    ) -> Result<bool> {
        let mut changed = false;
        for (index, (element, part)) in array.iter().zip(parts).enumerate() {
            budget::steps(1 + positional.len());
            let position = index.to_string();
            let mut chosen: Vec<&'a Node> = Vec::new();
            for (component, node) in positional {
                if names(component, element, context)? {
                    chosen.push(node);
                }
            }
            let outcome = match chosen.as_slice() {
                [] => continue,
                [node] => node.apply(&position, Some(element), context)?,
                nodes if are_disjoint(nodes) => apply_all(nodes, &position, element, context)?,
                _ => bail!(
                    Kind::ConflictingUpdateOperators,
                    "Updating the path '{name}.{position}' would create a conflict at '{position}'"
                ),
            };
            match outcome {
                Outcome::Keep => continue,
                Outcome::Remove => *part = Part::Raw(RawValue::Null),
                Outcome::Write(written) => *part = written,
            }
            changed = true;
        }
        Ok(changed)
    }

    /// Checks that a renamed value neither lies in an array nor moves into one.
    ///
    /// # Errors
    /// `BadValue`, and `PathNotViable` for a scalar on a path.
    pub fn check_renames(&self, document: RawObject<'_>, context: &Context<'_>) -> Result<()> {
        for (from, to) in &self.renames {
            budget::step();
            let within = route(document, from);
            if let Route::Blocked(name, value) = within {
                bail!(
                    Kind::PathNotViable,
                    "cannot use a part of '{from}' to traverse the element {{{name}: {}}}",
                    shown(value)
                );
            }
            if path::at(document, from).is_none() {
                continue;
            }
            let changes_id = to == "_id" && document.get("_id").is_some();
            ensure!(!changes_id, Kind::ImmutableField, "the immutable field '_id' cannot be the target of $rename");
            for (what, path, route) in [("source", from, within), ("destination", to, route(document, to))] {
                if let Route::Array(name) = route {
                    bail!(
                        Kind::BadValue,
                        "The {what} field cannot be an array element, '{path}' in doc with {} has an array field \
                         called '{name}'",
                        context.shown_id()
                    );
                }
            }
        }
        Ok(())
    }

    /// True if no path of one tree is at or below a path of the other.
    fn is_disjoint(&self, other: &Tree) -> bool {
        let names = |tree: &Tree| tree.children.keys().any(|name| is_positional(name) || name == POSITIONAL);
        if names(self) || names(other) {
            return false;
        }
        self.children.iter().inspect(|_| budget::step()).all(|(name, node)| match (node, other.children.get(name)) {
            (_, None) => true,
            (Node::Branch(tree), Some(Node::Branch(other))) => tree.is_disjoint(other),
            _ => false,
        })
    }

    /// True if a modifier writes the time.
    pub fn needs_clock(&self) -> bool {
        self.children.values().any(|node| match node {
            Node::Branch(tree) => tree.needs_clock(),
            Node::Leaf(modifier) => matches!(modifier, Modifier::CurrentDate { .. }),
        })
    }

    /// True if a path has `$`.
    pub fn is_positional(&self) -> bool {
        self.children
            .iter()
            .any(|(name, node)| name == POSITIONAL || matches!(node, Node::Branch(tree) if tree.is_positional()))
    }

    /// True if a modifier stands at, above or below the path.
    pub fn touches(&self, path: &str) -> bool {
        let (head, rest) = path::split(path);
        match (self.children.get(head), rest) {
            (None, _) => false,
            (Some(Node::Branch(tree)), Some(rest)) => tree.touches(rest),
            (Some(_), _) => true,
        }
    }

    /// True if the walk may create missing documents.
    fn creates(&self, context: &Context<'_>) -> bool {
        self.children.values().inspect(|_| budget::step()).any(|node| node.creates(context))
    }
}

/// True if no two of the nodes change the same value. The decision is based on paths alone: elements that are named in different ways
/// count as the same.
fn are_disjoint(nodes: &[&Node]) -> bool {
    let disjoint = |a: &Node, b: &Node| {
        budget::step();
        match (a, b) {
            (Node::Branch(a), Node::Branch(b)) => a.is_disjoint(b),
            _ => false,
        }
    };
    nodes.iter().enumerate().all(|(index, a)| nodes[index + 1..].iter().all(|b| disjoint(a, b)))
}

/// Applies several disjoint nodes to one value, one after the other.
fn apply_all<'a>(nodes: &[&'a Node], name: &str, existing: RawValue<'a>, context: &Context<'a>) -> Result<Outcome<'a>> {
    let mut written: Option<Vec<u8>> = None;
    for node in nodes {
        let next = match node.apply(name, Some(written.as_deref().map_or(existing, raw::root)), context)? {
            Outcome::Write(part) => Some(write::document(&part)?).inspect(|bytes| budget::bytes(bytes.len())),
            Outcome::Keep | Outcome::Remove => None,
        };
        written = next.or(written);
    }
    Ok(written.map_or(Outcome::Keep, |bytes| Outcome::Write(Part::Owned(Value::from_raw(raw::root(&bytes))))))
}

/// The component of a path that refers to the element by which the document matched.
const POSITIONAL: &str = "$";

/// True for `$[]` and `$[identifier]`.
fn is_positional(component: &str) -> bool {
    component.starts_with("$[")
}

/// True if `$[]` or `$[identifier]` refers to the element.
///
/// # Errors
/// Those of [`ArrayFilter::matches`](crate::query::filter::ArrayFilter::matches).
fn names(component: &str, element: RawValue<'_>, context: &Context<'_>) -> Result<bool> {
    let identifier = component.strip_prefix("$[").and_then(|rest| rest.strip_suffix(']'));
    match identifier.and_then(|identifier| filter_of(context.array_filters, identifier)) {
        Some(filter) => filter.matches(element),
        None => Ok(component == "$[]"),
    }
}

/// Fills an array with nulls up to and including a position.
fn pad(parts: &mut Vec<Part<'_>>, index: usize, elements: usize) -> Result<()> {
    if index.saturating_sub(elements) > MAX_PADDING {
        bail!(Kind::CannotBackfillArray, "can't backfill more than {MAX_PADDING} elements");
    }
    ensure!(index < MAX_ELEMENTS, Kind::BSONObjectTooLarge, "Resulting document after update is larger than 16777216");
    if index >= parts.len() {
        parts.resize(index + 1, Part::Raw(RawValue::Null));
    }
    Ok(())
}

impl Node {
    fn apply<'a>(&'a self, name: &str, existing: Option<RawValue<'a>>, context: &Context<'a>) -> Result<Outcome<'a>> {
        let tree = match self {
            Node::Leaf(modifier) => return modifier.apply(name, existing, context),
            Node::Branch(tree) => tree,
        };
        let part = match existing {
            None => tree.apply(None, context)?,
            Some(RawValue::Array(array)) => tree.apply_to_array(name, array, context)?,
            Some(value) => match path::embedded(value) {
                Some(object) => tree.apply(Some(object), context)?,
                None => {
                    tree.matched(context)?;
                    for (component, node) in &tree.children {
                        if is_positional(component) {
                            bail!(
                                Kind::BadValue,
                                "Cannot apply array updates to non-array element {name}: {}",
                                shown(value)
                            );
                        }
                        node.refuse_to_create(component, name, value, context)?;
                    }
                    None
                }
            },
        };
        Ok(part.map_or(Outcome::Keep, Outcome::Write))
    }

    /// Refuses to create a field in a value that cannot have fields.
    fn refuse_to_create(&self, field: &str, name: &str, value: RawValue<'_>, context: &Context<'_>) -> Result<()> {
        if !self.creates(context) {
            return Ok(());
        }
        bail!(Kind::PathNotViable, "Cannot create field '{field}' in element {{{name}: {}}}", shown(value))
    }

    fn creates(&self, context: &Context<'_>) -> bool {
        match self {
            Node::Branch(tree) => tree.creates(context),
            Node::Leaf(modifier) => modifier.needs_place(context),
        }
    }
}
