//! Modifiers arranged by path, and their walk over a document.
//!
//! INVARIANT: no modifier stands at or below another's path: adding one that would is a conflict. So every place in a
//! document is changed by one modifier at most, and their order does not matter.

use super::message::shown;
use crate::document::MAX_DOCUMENT_BYTES;
use crate::document::element::Element;
use crate::document::number::Number;
use crate::document::raw::{self, RawArray, RawObject, RawValue};
use crate::document::value::Value;
use crate::document::write::Part;
use crate::error::{Error, Kind, Result};
use crate::path;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// What happens at one path.
#[derive(Debug)]
pub(super) enum Modifier {
    /// the value, as jsonb
    Set(Vec<u8>),
    /// the value, as jsonb, if the document is being inserted
    SetOnInsert(Vec<u8>),
    /// removed
    Unset,
    /// increased
    Inc(Number),
}

/// Modifiers by the components of their paths.
#[derive(Debug, Default)]
pub(super) struct Tree {
    children: BTreeMap<String, Node>,
}

#[derive(Debug)]
enum Node {
    Branch(Tree),
    Leaf(Modifier),
}

/// What a walk has to know about the whole document.
pub(super) struct Context<'a> {
    /// its `_id`, for messages
    pub id: Option<RawValue<'a>>,
    /// true if an upsert makes it
    pub inserting: bool,
}

/// What becomes of one place of a document.
enum Outcome<'a> {
    Keep,
    Remove,
    Write(Part<'a>),
}

/// How far beyond its end an array may be written to: MongoDB's limit.
const MAX_PADDING: usize = 1_500_000;

/// No array with more elements fits a document: each takes an entry of four bytes.
const MAX_ELEMENTS: usize = MAX_DOCUMENT_BYTES / 4;

impl Tree {
    /// Adds a modifier.
    ///
    /// # Errors
    /// `ConflictingUpdateOperators` if there is one already at, above or below the path.
    pub fn add(&mut self, path: &str, modifier: Modifier) -> Result<()> {
        let mut tree = self;
        let mut walked = 0;
        for name in path.split('.') {
            let end = walked + name.len();
            let conflict = |at: &str| {
                let message = format!("Updating the path '{path}' would create a conflict at '{at}'");
                Err(Error::new(Kind::ConflictingUpdateOperators, message))
            };
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

    /// The changed document; None if no modifier has anything to do. Without a document, a new one is made.
    ///
    /// # Errors
    /// Those of [`Update::apply`](super::Update::apply), but `ImmutableField`.
    pub fn apply<'a>(&'a self, object: Option<RawObject<'a>>, context: &Context<'_>) -> Result<Option<Part<'a>>> {
        let mut changed = false;
        let mut parts = Vec::with_capacity(object.map_or(0, |object| object.len()) + self.children.len());
        for (name, value) in object.iter().flat_map(RawObject::iter) {
            let outcome = match self.children.get(name) {
                Some(node) => node.apply(name, Some(value), context)?,
                None => Outcome::Keep,
            };
            changed |= !matches!(outcome, Outcome::Keep);
            match outcome {
                Outcome::Keep => parts.push((Cow::Borrowed(name), Part::Raw(value))),
                Outcome::Write(part) => parts.push((Cow::Borrowed(name), part)),
                Outcome::Remove => {}
            }
        }
        for (name, node) in &self.children {
            if object.is_some_and(|object| object.get(name).is_some()) {
                continue;
            }
            if let Outcome::Write(part) = node.apply(name, None, context)? {
                changed = true;
                parts.push((Cow::Borrowed(name.as_str()), part));
            }
        }
        Ok(changed.then_some(Part::Object(parts)))
    }

    /// The changed array, which `name` is the name of.
    fn apply_to_array<'a>(
        &'a self,
        name: &str,
        array: RawArray<'a>,
        context: &Context<'_>,
    ) -> Result<Option<Part<'a>>> {
        let mut changed = false;
        let mut parts: Vec<Part<'a>> = array.iter().map(Part::Raw).collect();
        for (component, node) in &self.children {
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
        Ok(changed.then_some(Part::Array(parts)))
    }

    /// True if the walk could put a value somewhere.
    fn creates(&self, context: &Context<'_>) -> bool {
        self.children.values().any(|node| node.creates(context))
    }
}

/// Fills with null up to and including a position.
fn pad(parts: &mut Vec<Part<'_>>, index: usize, elements: usize) -> Result<()> {
    if index.saturating_sub(elements) > MAX_PADDING {
        let message = format!("can't backfill more than {MAX_PADDING} elements");
        return Err(Error::new(Kind::CannotBackfillArray, message));
    }
    if index >= MAX_ELEMENTS {
        return Err(Error::new(Kind::BSONObjectTooLarge, "Resulting document after update is larger than 16777216"));
    }
    if index >= parts.len() {
        parts.resize(index + 1, Part::Raw(RawValue::Null));
    }
    Ok(())
}

impl Node {
    fn apply<'a>(&'a self, name: &str, existing: Option<RawValue<'a>>, context: &Context<'_>) -> Result<Outcome<'a>> {
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
                    for (component, node) in &tree.children {
                        node.refuse_to_create(component, name, value, context)?;
                    }
                    None
                }
            },
        };
        Ok(part.map_or(Outcome::Keep, Outcome::Write))
    }

    /// An error if the walk would put a value into a place that cannot hold it.
    fn refuse_to_create(&self, field: &str, name: &str, value: RawValue<'_>, context: &Context<'_>) -> Result<()> {
        if !self.creates(context) {
            return Ok(());
        }
        let message = format!("Cannot create field '{field}' in element {{{name}: {}}}", shown(value));
        Err(Error::new(Kind::PathNotViable, message))
    }

    fn creates(&self, context: &Context<'_>) -> bool {
        match self {
            Node::Branch(tree) => tree.creates(context),
            Node::Leaf(Modifier::Unset) => false,
            Node::Leaf(Modifier::SetOnInsert(_)) => context.inserting,
            Node::Leaf(Modifier::Set(_) | Modifier::Inc(_)) => true,
        }
    }
}

impl Modifier {
    fn apply<'a>(&'a self, name: &str, existing: Option<RawValue<'a>>, context: &Context<'_>) -> Result<Outcome<'a>> {
        Ok(match self {
            Modifier::SetOnInsert(_) if !context.inserting => Outcome::Keep,
            Modifier::Set(bytes) | Modifier::SetOnInsert(bytes) => Outcome::Write(Part::Raw(raw::root(bytes))),
            Modifier::Unset if existing.is_none() => Outcome::Keep,
            Modifier::Unset => Outcome::Remove,
            Modifier::Inc(amount) => {
                let sum = match existing {
                    None => amount.clone(),
                    Some(value) => increase(name, value, amount, context)?,
                };
                Outcome::Write(Part::Owned(Value::Number(sum)))
            }
        })
    }
}

fn increase(name: &str, value: RawValue<'_>, amount: &Number, context: &Context<'_>) -> Result<Number> {
    let id = || context.id.map_or_else(|| "no _id".to_owned(), |id| format!("_id: {}", shown(id)));
    let element = Element::of(value);
    let Element::Number(number) = element else {
        let message = format!(
            "Cannot apply $inc to a value of non-numeric type. {{{}}} has the field '{name}' of non-numeric type {}",
            id(),
            element.type_name()
        );
        return Err(Error::new(Kind::TypeMismatch, message));
    };
    number.add(amount).map_err(|_| {
        let message =
            format!("Failed to apply $inc operations to current value ({}) for document {{{}}}", shown(value), id());
        Error::new(Kind::BadValue, message)
    })
}
