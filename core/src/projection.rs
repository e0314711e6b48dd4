//! Projections: which fields of a document are returned.
//!
//! A projection either includes or excludes; `_id` alone may go against the rest, and is included unless it is
//! excluded. Paths go through arrays, at any depth of nesting: each embedded document in one is projected, and where
//! fields are included, what is no document is left out.
//!
//! INVARIANT: projecting only takes away, so what it makes of a document that can be stored can be stored.

use crate::document::ext_json;
use crate::document::number::Number;
use crate::document::raw::{RawObject, RawValue};
use crate::document::value::Value;
use crate::document::write::{self, Part};
use crate::error::{Error, Kind, Result};
use crate::path;
use serde_json::Value as Json;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// A parsed projection.
#[derive(Debug)]
pub struct Projection {
    mode: Mode,
    fields: Tree,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Include,
    Exclude,
}

/// The named fields, by the components of their paths.
type Tree = BTreeMap<String, Node>;

#[derive(Debug)]
enum Node {
    Leaf,
    Branch(Tree),
}

/// MongoDB's operators in a projection that are not understood yet; other `$` names are aggregation expressions.
const OPERATORS_TO_COME: &[&str] = &["$elemMatch", "$meta", "$slice"];

impl Projection {
    /// Parses `{"a": 1, "b.c": 1}` or `{"a": 0}`.
    ///
    /// # Errors
    /// `Location31253` and `Location31254` for a mixture, `Location31249` and `Location31250` for a path that collides
    /// with another, `Location51270` for `{"a": {}}`, those of field paths, and `NotImplemented` for operators,
    /// expressions and literals.
    pub fn parse(json: &Json) -> Result<Projection> {
        let Json::Object(specification) = json else {
            return Err(Error::new(Kind::TypeMismatch, "the projection must be an object"));
        };
        let mut parser = Parser { mode: None, id: None, fields: Tree::new() };
        for (name, value) in specification {
            parser.field(name.clone(), value)?;
        }
        Ok(parser.finish())
    }

    /// True if it returns documents whole.
    pub fn is_identity(&self) -> bool {
        self.mode == Mode::Exclude && self.fields.is_empty()
    }

    /// The projected document's jsonb.
    pub fn apply(&self, document: RawObject<'_>) -> Vec<u8> {
        let part = match self.mode {
            Mode::Include => include(document, &self.fields),
            Mode::Exclude => exclude(document, &self.fields),
        };
        write::document(&part).expect("a part of a document can be written")
    }
}

fn include<'a>(object: RawObject<'a>, fields: &'a Tree) -> Part<'a> {
    let included = fields.iter().filter_map(|(name, node)| {
        let value = object.get(name)?;
        let part = match node {
            Node::Leaf => Part::Raw(value),
            Node::Branch(fields) => include_in(value, fields)?,
        };
        Some((Cow::Borrowed(name.as_str()), part))
    });
    Part::Object(included.collect())
}

fn include_in<'a>(value: RawValue<'a>, fields: &'a Tree) -> Option<Part<'a>> {
    match value {
        RawValue::Array(array) => {
            Some(Part::Array(array.iter().filter_map(|element| include_in(element, fields)).collect()))
        }
        value => path::embedded(value).map(|object| include(object, fields)),
    }
}

fn exclude<'a>(object: RawObject<'a>, fields: &'a Tree) -> Part<'a> {
    let kept = object.iter().filter_map(|(name, value)| {
        let part = match fields.get(name) {
            None => Part::Raw(value),
            Some(Node::Leaf) => return None,
            Some(Node::Branch(fields)) => exclude_in(value, fields),
        };
        Some((Cow::Borrowed(name), part))
    });
    Part::Object(kept.collect())
}

fn exclude_in<'a>(value: RawValue<'a>, fields: &'a Tree) -> Part<'a> {
    match value {
        RawValue::Array(array) => Part::Array(array.iter().map(|element| exclude_in(element, fields)).collect()),
        value => path::embedded(value).map_or(Part::Raw(value), |object| exclude(object, fields)),
    }
}

struct Parser {
    /// set by the first field other than `_id`
    mode: Option<Mode>,
    /// what is said about `_id` itself
    id: Option<Mode>,
    fields: Tree,
}

impl Parser {
    fn field(&mut self, path: String, value: &Json) -> Result<()> {
        if path.ends_with(".$") {
            return Err(to_come("$"));
        }
        path::check_field_path(&path)?;
        let mode = match value {
            Json::Object(fields) if !fields.keys().any(|name| name.starts_with('$')) => {
                if fields.is_empty() {
                    let message =
                        format!("An empty sub-projection is not a valid value. Found empty object at path {path}");
                    return Err(Error::new(Kind::Location51270, message));
                }
                return fields.iter().try_for_each(|(name, value)| self.field(format!("{path}.{name}"), value));
            }
            value => mode_of(value)?,
        };
        if path == "_id" {
            self.id = Some(mode);
        } else if *self.mode.get_or_insert(mode) != mode {
            return Err(match mode {
                Mode::Include => Error::new(
                    Kind::Location31253,
                    format!("Cannot do inclusion on field {path} in exclusion projection"),
                ),
                Mode::Exclude => Error::new(
                    Kind::Location31254,
                    format!("Cannot do exclusion on field {path} in inclusion projection"),
                ),
            });
        }
        self.add(&path)
    }

    fn add(&mut self, path: &str) -> Result<()> {
        let mut tree = &mut self.fields;
        let mut remaining = path;
        loop {
            let (name, rest) = path::split(remaining);
            let Some(rest) = rest else {
                return match tree.insert(name.to_owned(), Node::Leaf) {
                    None => Ok(()),
                    Some(_) => Err(Error::new(Kind::Location31250, format!("Path collision at {path}"))),
                };
            };
            match tree.entry(name.to_owned()).or_insert_with(|| Node::Branch(Tree::new())) {
                Node::Branch(branch) => tree = branch,
                Node::Leaf => {
                    let message = format!("Path collision at {path} remaining portion {rest}");
                    return Err(Error::new(Kind::Location31249, message));
                }
            }
            remaining = rest;
        }
    }

    fn finish(self) -> Projection {
        let Parser { mode, id, mut fields } = self;
        // `_id` decides only if nothing else does.
        let mode = mode.or(id).unwrap_or(Mode::Exclude);
        match (mode, id) {
            (Mode::Include, None) => {
                fields.entry("_id".to_owned()).or_insert(Node::Leaf);
            }
            (mode, Some(id)) if id != mode => {
                fields.remove("_id");
            }
            _ => {}
        }
        Projection { mode, fields }
    }
}

fn mode_of(value: &Json) -> Result<Mode> {
    let included = match value {
        Json::Bool(included) => *included,
        Json::Number(_) => is_nonzero(value)?,
        Json::Object(fields) => match fields.keys().next() {
            Some(name) if name.starts_with("$number") => is_nonzero(value)?,
            _ => {
                let name = fields.keys().find(|name| name.starts_with('$')).map_or("$", String::as_str);
                return Err(to_come(name));
            }
        },
        _ => return Err(Error::new(Kind::NotImplemented, "literals in a projection are not supported yet")),
    };
    Ok(if included { Mode::Include } else { Mode::Exclude })
}

fn is_nonzero(json: &Json) -> Result<bool> {
    Ok(ext_json::from_json(json)? != Value::Number(Number::Int(0)))
}

fn to_come(name: &str) -> Error {
    let what = match name {
        "$" => "the positional operator $".to_owned(),
        name if OPERATORS_TO_COME.contains(&name) => format!("the projection operator {name}"),
        name => format!("the expression {name}"),
    };
    Error::new(Kind::NotImplemented, format!("{what} in a projection is not supported yet"))
}
