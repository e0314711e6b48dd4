//! A tree of modifiers by path, and its walk over a document.
//!
//! Several components of paths may name one element: `$[i]` and `$[j]`, `$` and a position, `1` and `01`. Whether they do depends on the
//! document, so the branches below such components are walked together: the nodes at a value are a list.
//!
//! INVARIANT: no modifier has a path at or below that of another one: adding such a modifier is a conflict. It is also a conflict if the
//! path of a modifier and another path lead to one value of a document. So at most one modifier changes a value, and their order does not
//! matter.

use super::context::{Context, UpdateOutcome, filter_of};
use super::message::shown;
use super::modifier::Modifier;
use super::storable::dollar_prefixed;
use crate::budget;
use crate::error::{Error, Kind, Result, bail, ensure, error};
use crate::values::document::MAX_DOCUMENT_BYTES;
use crate::values::document::raw::{RawArray, RawObject, RawValue};
use crate::values::document::write::Part;
use crate::values::path;
use std::borrow::Cow;
use std::collections::{BTreeMap, btree_map};
use std::ops::Bound;

/// Modifiers by the components of their paths.
#[derive(Debug, Default)]
pub(super) struct Tree {
    children: BTreeMap<String, UpdateNode>,
    /// source and destination of every rename; at the root only
    renames: Vec<(String, String)>,
}

/// The kind of values that a path leads through in a document.
enum Route<'p, 'a> {
    Documents,
    /// at least one array, with the name of the first
    Array(&'p str),
    /// a value that cannot have fields, with its name
    Blocked(&'p str, RawValue<'a>),
}

/// How a path leads through a document; and true if there is a value at its end.
fn route<'p, 'a>(document: RawObject<'a>, path: &'p str) -> (Route<'p, 'a>, bool) {
    let (mut value, mut name, mut array) = (RawValue::Object(document), "", None);
    let mut is_found = true;
    for component in path.split('.') {
        let next = match value {
            RawValue::Array(elements) => match index_of(component) {
                None => return (Route::Blocked(name, value), false),
                Some(index) => {
                    array.get_or_insert(name);
                    elements.get(index)
                }
            },
            value => match path::embedded(value) {
                None => return (Route::Blocked(name, value), false),
                Some(object) => object.get(component),
            },
        };
        let Some(next) = next else {
            is_found = false;
            break;
        };
        (value, name) = (next, component);
    }
    (array.map_or(Route::Documents, Route::Array), is_found)
}

/// The array position that a component of an update's path names; None if it is no number. Unlike in a query, leading zeros are allowed.
fn index_of(component: &str) -> Option<usize> {
    let is_number = !component.is_empty() && component.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| component.parse().ok()).flatten()
}

#[derive(Debug)]
enum UpdateNode {
    Branch(Tree),
    Leaf(Modifier),
}

impl UpdateNode {
    /// The path of the first modifier at or below this node, whose own path is `path`.
    fn first_path(&self, path: &str) -> String {
        let (mut node, mut path) = (self, path.to_owned());
        while let UpdateNode::Branch(Tree { children, .. }) = node
            && let Some((name, child)) = children.first_key_value()
        {
            path = format!("{path}.{name}");
            node = child;
        }
        path
    }
}

/// Largest number of nulls that fill an array up to a position: MongoDB's limit.
const MAX_PADDING: usize = 1_500_000;

/// Largest number of elements of an array that fits into a document: each takes an entry of four bytes.
const MAX_ELEMENTS: usize = MAX_DOCUMENT_BYTES / 4;

impl Tree {
    /// Adds a modifier.
    ///
    /// # Errors
    /// `ConflictingUpdateOperators` if the tree has a modifier at, above or below the path, or if one of both paths has `$[…]` where the
    /// other has a position or a field.
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
            // Either all existing children are `$[…]`, or none is, so the first one decides.
            if tree.children.keys().next().is_some_and(|other| is_positional(other) != is_positional(name)) {
                return conflict(&path[..walked.saturating_sub(1)]);
            }
            if end == path.len() {
                if tree.children.contains_key(name) {
                    return conflict(path);
                }
                tree.children.insert(name.to_owned(), UpdateNode::Leaf(modifier));
                return Ok(());
            }
            let node = tree.children.entry(name.to_owned()).or_insert_with(|| UpdateNode::Branch(Tree::default()));
            match node {
                UpdateNode::Branch(branch) => tree = branch,
                UpdateNode::Leaf(_) => return conflict(&path[..end]),
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
        apply_to_object(&[self], object, context)
    }

    /// Checks that a renamed value neither lies in an array nor moves into one.
    ///
    /// # Errors
    /// `BadValue` for an array on either path, `PathNotViable` for a value on the source's path that cannot have the next field,
    /// `ImmutableField` for the destination `_id`.
    pub fn check_renames(&self, document: RawObject<'_>, context: &Context<'_>) -> Result<()> {
        for (from, to) in &self.renames {
            budget::step();
            let (within, is_found) = route(document, from);
            if let Route::Blocked(name, value) = within {
                bail!(
                    Kind::PathNotViable,
                    "cannot use a part of '{from}' to traverse the element {{{name}: {}}}",
                    shown(value)
                );
            }
            if !is_found {
                continue;
            }
            let changes_id = to == "_id" && document.get("_id").is_some();
            ensure!(!changes_id, Kind::ImmutableField, "the immutable field '_id' cannot be the target of $rename");
            for (what, path, route) in [("source", from, within), ("destination", to, route(document, to).0)] {
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

    /// Checks that no field at the root whose name starts with `$` was added or set. Elements may be removed from it, and fields inside
    /// it may be set.
    ///
    /// # Errors
    /// `DollarPrefixedFieldName`.
    pub fn check_root(&self, before: RawObject<'_>, after: RawObject<'_>) -> Result<()> {
        let dollars = self.children.range("$".to_owned()..).take_while(|(name, _)| name.starts_with('$'));
        for (name, node) in dollars {
            budget::step();
            let sets = match node {
                _ if after.get(name).is_none() || after.has_same(before, name) => false,
                _ if before.get(name).is_none() => true,
                UpdateNode::Branch(_) => false,
                UpdateNode::Leaf(modifier) => !matches!(modifier, Modifier::Pull(_) | Modifier::Pop(_)),
            };
            if sets {
                return Err(dollar_prefixed(name, &node.first_path(name)));
            }
        }
        Ok(())
    }

    /// True if a modifier writes the time.
    pub fn needs_clock(&self) -> bool {
        self.children.values().any(|node| match node {
            UpdateNode::Branch(tree) => tree.needs_clock(),
            UpdateNode::Leaf(modifier) => matches!(modifier, Modifier::CurrentDate { .. }),
        })
    }

    /// True if a path has `$`.
    pub fn is_positional(&self) -> bool {
        self.children
            .iter()
            .any(|(name, node)| name == POSITIONAL || matches!(node, UpdateNode::Branch(tree) if tree.is_positional()))
    }

    /// True if a modifier stands at, above or below the path.
    pub fn touches(&self, path: &str) -> bool {
        let (head, rest) = path::split(path);
        match (self.children.get(head), rest) {
            (None, _) => false,
            (Some(UpdateNode::Branch(tree)), Some(rest)) => tree.touches(rest),
            (Some(_), _) => true,
        }
    }
}

/// The nodes at one value.
enum Nodes<'a> {
    One(&'a UpdateNode),
    Several(Vec<&'a UpdateNode>),
}

impl<'a> Nodes<'a> {
    fn as_slice(&self) -> &[&'a UpdateNode] {
        match self {
            Nodes::One(node) => std::slice::from_ref(node),
            Nodes::Several(nodes) => nodes,
        }
    }
}

/// The children of the trees at one value. Those of a single tree are not copied.
enum Children<'a> {
    One(btree_map::Iter<'a, String, UpdateNode>),
    Joined(btree_map::IntoIter<Cow<'a, str>, Vec<&'a UpdateNode>>),
}

impl<'a> Iterator for Children<'a> {
    type Item = (Cow<'a, str>, Nodes<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        budget::step();
        match self {
            Children::One(children) => {
                children.next().map(|(name, node)| (Cow::Borrowed(name.as_str()), Nodes::One(node)))
            }
            Children::Joined(children) => children.next().map(|(name, nodes)| (name, Nodes::Several(nodes))),
        }
    }
}

/// Joins the children of trees by their names. `$` counts as the position of the element to which it refers; in an array, leading zeros of
/// a position are ignored.
///
/// # Errors
/// `BadValue` if `$` refers to no element, `ConflictingUpdateOperators` if only some of the trees name elements by `$[…]`.
fn children<'a>(trees: &[&'a Tree], in_array: bool, context: &Context<'a>) -> Result<Children<'a>> {
    let zero_leads = (Bound::Included("00"), Bound::Excluded("0:"));
    let has_alias = |tree: &Tree| {
        tree.children.contains_key(POSITIONAL) || in_array && tree.children.range::<str, _>(zero_leads).next().is_some()
    };
    if let [tree] = trees
        && !has_alias(tree)
    {
        return Ok(Children::One(tree.children.iter()));
    }
    let mut joined: BTreeMap<Cow<'a, str>, Vec<&'a UpdateNode>> = BTreeMap::new();
    for (name, node) in trees.iter().flat_map(|tree| &tree.children) {
        budget::step();
        let name = match (name.as_str(), context.position) {
            (POSITIONAL, None) => return Err(no_position()),
            (POSITIONAL, Some(position)) => Cow::Owned(position.to_string()),
            (name, _) if in_array && name.starts_with('0') => match index_of(name) {
                Some(index) => Cow::Owned(index.to_string()),
                None => Cow::Borrowed(name),
            },
            (name, _) => Cow::Borrowed(name),
        };
        joined.entry(name).or_default().push(node);
    }
    check_kinds(joined.keys().map(AsRef::as_ref))?;
    Ok(Children::Joined(joined.into_iter()))
}

fn no_position() -> Error {
    error!(Kind::BadValue, "The positional operator did not find the match needed from the query.")
}

/// The trees of several nodes at one value.
///
/// # Errors
/// `ConflictingUpdateOperators` if a node is a modifier.
fn branches<'a>(nodes: &[&'a UpdateNode], name: &str) -> Result<Vec<&'a Tree>> {
    let branch = |node: &&'a UpdateNode| match node {
        UpdateNode::Branch(tree) => Ok(tree),
        UpdateNode::Leaf(_) => {
            bail!(Kind::ConflictingUpdateOperators, "Updating '{name}' twice would create a conflict at '{name}'")
        }
    };
    nodes.iter().map(branch).collect()
}

/// Checks that the nodes at one value, the field or element `name`, do not change one path twice, whatever the value is.
///
/// # Errors
/// `ConflictingUpdateOperators`.
fn check_conflicts(nodes: &[&UpdateNode], name: &str) -> Result<()> {
    if nodes.len() < 2 {
        return Ok(());
    }
    let mut joined: BTreeMap<&str, Vec<&UpdateNode>> = BTreeMap::new();
    for (name, node) in branches(nodes, name)?.into_iter().flat_map(|tree| &tree.children) {
        budget::step();
        joined.entry(name).or_default().push(node);
    }
    check_kinds(joined.keys().copied())?;
    joined.into_iter().try_for_each(|(name, nodes)| check_conflicts(&nodes, name))
}

/// Checks that either all names are `$[…]`, or none is.
fn check_kinds<'n>(names: impl Iterator<Item = &'n str>) -> Result<()> {
    let mut kinds = names.map(is_positional);
    let first = kinds.next();
    if kinds.any(|kind| Some(kind) != first) {
        bail!(Kind::ConflictingUpdateOperators, "Updating an array by '$[…]' and by position would create a conflict");
    }
    Ok(())
}

/// Applies the nodes at one value, the field or element `name`.
///
/// # Errors
/// `ConflictingUpdateOperators` if several nodes change one value.
fn apply<'a>(
    nodes: &[&'a UpdateNode],
    name: &str,
    existing: Option<RawValue<'a>>,
    context: &Context<'a>,
) -> Result<UpdateOutcome<'a>> {
    let (single, joined);
    let trees = match nodes {
        [UpdateNode::Leaf(modifier)] => return modifier.apply(name, existing, context),
        [UpdateNode::Branch(tree)] => {
            single = [tree];
            &single[..]
        }
        nodes => {
            check_conflicts(nodes, name)?;
            joined = branches(nodes, name)?;
            &joined
        }
    };
    let part = match existing {
        None => apply_to_object(trees, None, context)?,
        Some(RawValue::Array(array)) => apply_to_array(trees, name, array, context)?,
        Some(value) => match path::embedded(value) {
            Some(object) => apply_to_object(trees, Some(object), context)?,
            None => {
                for (component, nodes) in children(trees, false, context)? {
                    if is_positional(&component) {
                        let shown = shown(value);
                        bail!(Kind::BadValue, "Cannot apply array updates to non-array element {name}: {shown}");
                    }
                    refuse_to_create(nodes.as_slice(), &component, name, value, context)?;
                }
                None
            }
        },
    };
    Ok(part.map_or(UpdateOutcome::Keep, UpdateOutcome::Write))
}

/// The changed document; None without a change. Without a document, a new one is created.
fn apply_to_object<'a>(
    trees: &[&'a Tree],
    object: Option<RawObject<'a>>,
    context: &Context<'a>,
) -> Result<Option<Part<'a>>> {
    // Either all children of a tree are `$[…]`, or none is, so the first one decides.
    let positional = trees.iter().filter_map(|tree| tree.children.keys().next()).find(|name| is_positional(name));
    if let Some(positional) = positional {
        match object {
            None => return Err(no_array(positional)),
            Some(object) => bail!(
                Kind::BadValue,
                "Cannot apply array updates to non-array element {}",
                shown(RawValue::Object(object))
            ),
        }
    }
    // `edits`: the changed fields by their positions, with None for a removed one.
    let mut edits = Vec::new();
    let mut added = Vec::new();
    for (name, nodes) in children(trees, false, context)? {
        let existing = object.and_then(|object| object.find(&name));
        let outcome = apply(nodes.as_slice(), &name, existing.map(|(_, value)| value), context)?;
        match (outcome, existing) {
            (UpdateOutcome::Keep, _) | (UpdateOutcome::Remove, None) => {}
            (UpdateOutcome::Remove, Some((position, _))) => edits.push((position, None)),
            (UpdateOutcome::Write(part), Some((position, _))) => edits.push((position, Some(part))),
            (UpdateOutcome::Write(part), None) => added.push((name, part)),
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
    let mut kept = Vec::with_capacity(object.len() + added.len());
    for (index, (name, value)) in object.iter().enumerate() {
        kept.push(match edits.next_if(|(position, _)| *position == index) {
            None => Some((Cow::Borrowed(name), Part::Raw(value))),
            Some((_, part)) => part.map(|part| (Cow::Borrowed(name), part)),
        });
    }
    Ok(Some(match object.order() {
        None => Part::Object(kept.into_iter().flatten().chain(added).collect()),
        Some(order) => {
            let kept = order.filter_map(|position| kept.get_mut(position)?.take());
            Part::InOrder(kept.chain(added).collect())
        }
    }))
}

/// The changed array; None if nothing changes. `name` is the name of its field.
fn apply_to_array<'a>(
    trees: &[&'a Tree],
    name: &str,
    array: RawArray<'a>,
    context: &Context<'a>,
) -> Result<Option<Part<'a>>> {
    let mut changed = false;
    let mut parts: Vec<Part<'a>> = array.iter().map(Part::Raw).collect();
    let mut positional: Vec<(Cow<'a, str>, Nodes<'a>)> = Vec::new();
    for (component, nodes) in children(trees, true, context)? {
        if is_positional(&component) {
            positional.push((component, nodes));
            continue;
        }
        let Some(index) = index_of(&component) else {
            refuse_to_create(nodes.as_slice(), &component, name, RawValue::Array(array), context)?;
            continue;
        };
        match apply(nodes.as_slice(), &component, array.get(index), context)? {
            UpdateOutcome::Keep => continue,
            UpdateOutcome::Remove => parts[index] = Part::Raw(RawValue::Null),
            UpdateOutcome::Write(part) => {
                pad(&mut parts, index, array.len())?;
                parts[index] = part;
            }
        }
        changed = true;
    }
    if !positional.is_empty() {
        changed |= apply_to_elements(array, &positional, &mut parts, context)?;
    }
    Ok(changed.then_some(Part::Array(parts)))
}

/// Changes the elements that `$[]` and `$[identifier]` name; true if there was a change.
fn apply_to_elements<'a>(
    array: RawArray<'a>,
    positional: &[(Cow<'a, str>, Nodes<'a>)],
    parts: &mut [Part<'a>],
    context: &Context<'a>,
) -> Result<bool> {
    let mut changed = false;
    let mut chosen: Vec<&'a UpdateNode> = Vec::new();
    for (index, (element, part)) in array.iter().zip(parts).enumerate() {
        budget::steps(1 + positional.len());
        chosen.clear();
        for (component, nodes) in positional {
            if names(component, element, context)? {
                chosen.extend(nodes.as_slice());
            }
        }
        if chosen.is_empty() {
            continue;
        }
        match apply(&chosen, &index.to_string(), Some(element), context)? {
            UpdateOutcome::Keep => continue,
            UpdateOutcome::Remove => *part = Part::Raw(RawValue::Null),
            UpdateOutcome::Write(written) => *part = written,
        }
        changed = true;
    }
    Ok(changed)
}

/// Refuses to create a field in a value that cannot have fields.
fn refuse_to_create(
    nodes: &[&UpdateNode],
    field: &str,
    name: &str,
    value: RawValue<'_>,
    context: &Context<'_>,
) -> Result<()> {
    for node in nodes {
        if node.creates(context)? {
            bail!(Kind::PathNotViable, "Cannot create field '{field}' in element {{{name}: {}}}", shown(value))
        }
    }
    Ok(())
}

/// The error for `$[]` or `$[identifier]` below a path that does not exist.
fn no_array(positional: &str) -> Error {
    error!(Kind::BadValue, "The path of '{positional}' must exist in the document in order to apply array updates.")
}

/// The component of a path that refers to the element by which the document matched.
const POSITIONAL: &str = "$";

/// True for `$[]` and `$[identifier]`.
fn is_positional(component: &str) -> bool {
    component.starts_with("$[") && component.ends_with(']')
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

impl UpdateNode {
    /// True if a modifier at or below the node creates the documents that its path lacks.
    ///
    /// # Errors
    /// `BadValue` for `$[]` or `$[identifier]` that comes before such a modifier.
    fn creates(&self, context: &Context<'_>) -> Result<bool> {
        let tree = match self {
            UpdateNode::Branch(tree) => tree,
            UpdateNode::Leaf(modifier) => return Ok(modifier.needs_place(context)),
        };
        for (name, node) in &tree.children {
            budget::step();
            if is_positional(name) {
                return Err(no_array(name));
            }
            if node.creates(context)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
