//! Projections: which fields of a document are returned.
//!
//! A projection either includes or excludes; `_id` alone may go against the rest, and is included unless it is
//! excluded. Paths go through arrays, at any depth of nesting: each embedded document in one is projected, and where
//! fields are included, what is no document is left out.
//!
//! `$slice` and `$elemMatch` choose elements of an array; other fields are kept beside a `$slice` alone, and left out
//! beside an `$elemMatch` alone.
//!
//! INVARIANT: projecting only takes away, so what it makes of a document that can be stored can be stored.

use crate::document::ext_json;
use crate::document::number::Number;
use crate::document::raw::{RawObject, RawValue};
use crate::document::value::Value;
use crate::document::write::{self, Part};
use crate::error::{Error, Kind, Result};
use crate::filter::ElementCondition;
use crate::path;
use crate::setting::Setting;
use serde_json::{Map, Value as Json};
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
    /// `$slice`
    Slice(Slice),
    /// `$elemMatch`: the first element that matches
    Element(ElementCondition),
}

/// A stretch of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slice {
    /// elements to skip, from the end if negative
    skip: i64,
    /// elements to keep at most
    limit: usize,
}

/// MongoDB's operators in a projection that are not understood yet; other `$` names are aggregation expressions.
const OPERATORS_TO_COME: &[&str] = &["$meta"];

impl Projection {
    /// Parses `{"a": 1, "b.c": 1}` or `{"a": 0}`.
    ///
    /// # Errors
    /// `Location31253` and `Location31254` for a mixture, `Location31249` and `Location31250` for a path that collides
    /// with another, `Location51270` for `{"a": {}}`, `Location28667` and `Location28724` for `$slice`,
    /// `Location31274` and `Location31275` for `$elemMatch`, those of field paths and of filters, and `NotImplemented`
    /// for other operators, expressions and literals.
    pub fn parse(json: &Json) -> Result<Projection> {
        let Json::Object(specification) = json else {
            return Err(Error::new(Kind::TypeMismatch, "the projection must be an object"));
        };
        let mut parser = Parser { mode: None, id: None, fallback: None, fields: Tree::new() };
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
            Mode::Include => include(document, &self.fields, Within::Documents),
            Mode::Exclude => exclude(document, &self.fields, Within::Documents),
        };
        write::document(&part).expect("a part of a document can be written")
    }
}

/// How a walk got where it is: `$slice` does not look into arrays in arrays.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Within {
    Documents,
    Array,
    NestedArray,
}

impl Within {
    fn deeper(self) -> Within {
        if self == Within::Documents { Within::Array } else { Within::NestedArray }
    }
}

fn include<'a>(object: RawObject<'a>, fields: &'a Tree, within: Within) -> Part<'a> {
    let included = fields.iter().filter_map(|(name, node)| {
        let value = object.get(name)?;
        let part = match node {
            Node::Branch(fields) => include_in(value, fields, within)?,
            node => node.part(value, within)?,
        };
        Some((Cow::Borrowed(name.as_str()), part))
    });
    Part::Object(included.collect())
}

fn include_in<'a>(value: RawValue<'a>, fields: &'a Tree, within: Within) -> Option<Part<'a>> {
    match value {
        RawValue::Array(array) => {
            let within = within.deeper();
            Some(Part::Array(array.iter().filter_map(|element| include_in(element, fields, within)).collect()))
        }
        value => path::embedded(value).map(|object| include(object, fields, within)),
    }
}

fn exclude<'a>(object: RawObject<'a>, fields: &'a Tree, within: Within) -> Part<'a> {
    let kept = object.iter().filter_map(|(name, value)| {
        let part = match fields.get(name) {
            None => Part::Raw(value),
            Some(Node::Leaf) => return None,
            Some(Node::Branch(fields)) => exclude_in(value, fields, within),
            Some(node) => node.part(value, within)?,
        };
        Some((Cow::Borrowed(name), part))
    });
    Part::Object(kept.collect())
}

fn exclude_in<'a>(value: RawValue<'a>, fields: &'a Tree, within: Within) -> Part<'a> {
    match value {
        RawValue::Array(array) => {
            let within = within.deeper();
            Part::Array(array.iter().map(|element| exclude_in(element, fields, within)).collect())
        }
        value => path::embedded(value).map_or(Part::Raw(value), |object| exclude(object, fields, within)),
    }
}

impl Node {
    /// What is kept of a value at a path's end; None leaves the field out.
    fn part<'a>(&self, value: RawValue<'a>, within: Within) -> Option<Part<'a>> {
        match (self, value) {
            (Node::Slice(slice), RawValue::Array(array)) if within != Within::NestedArray => {
                let (skip, limit) = slice.of(array.len());
                Some(Part::Array(array.iter().skip(skip).take(limit).map(Part::Raw).collect()))
            }
            (Node::Element(condition), RawValue::Array(array)) => {
                Some(Part::Array(vec![Part::Raw(condition.first_in(array)?)]))
            }
            (Node::Element(_), _) => None,
            (_, value) => Some(Part::Raw(value)),
        }
    }
}

impl Slice {
    /// Parses `count` (the last ones if negative) or `[skip, limit]`.
    fn parse(argument: &Json) -> Result<Slice> {
        let argument = ext_json::from_json(argument)?;
        let misfit = |count: usize| {
            Error::new(
                Kind::Location28667,
                format!(
                    "Invalid $slice syntax: $slice only supports numbers and [skip, limit] arrays, but {count} arguments \
                     were passed in"
                ),
            )
        };
        match &argument {
            Value::Number(count) => match clamped(count) {
                count if count < 0 => Ok(Slice { skip: count, limit: usize::MAX }),
                count => Ok(Slice { skip: 0, limit: usize::try_from(count).unwrap_or(usize::MAX) }),
            },
            Value::Array(arguments) => match arguments.as_slice() {
                [Value::Number(skip), Value::Number(limit)] => match usize::try_from(clamped(limit)) {
                    Ok(limit) if limit > 0 => Ok(Slice { skip: clamped(skip), limit }),
                    _ => Err(Error::new(
                        Kind::Location28724,
                        "The second argument to $slice must be a positive number: the limit in [skip, limit]",
                    )),
                },
                other => Err(misfit(other.len())),
            },
            _ => Err(misfit(1)),
        }
    }

    /// How many elements to skip of so many, and how many to keep then.
    fn of(self, length: usize) -> (usize, usize) {
        let distance = usize::try_from(self.skip.unsigned_abs()).unwrap_or(usize::MAX);
        (if self.skip < 0 { length.saturating_sub(distance) } else { distance }, self.limit)
    }
}

/// The integer towards zero; NaN is 0, and what is too large the largest.
fn clamped(number: &Number) -> i64 {
    number.as_i64().unwrap_or_else(|| number.to_f64() as i64)
}

struct Parser {
    /// set by the first field other than `_id`
    mode: Option<Mode>,
    /// what is said about `_id` itself
    id: Option<Mode>,
    /// what the operators ask for if nothing else decides
    fallback: Option<Mode>,
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
            Json::Object(fields) if fields.contains_key("$slice") || fields.contains_key("$elemMatch") => {
                return self.operator(&path, fields);
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
        self.add(&path, Node::Leaf)
    }

    /// `$slice` or `$elemMatch`.
    fn operator(&mut self, path: &str, operators: &Map<String, Json>) -> Result<()> {
        match (operators.len(), operators.get("$slice"), operators.get("$elemMatch")) {
            (1, Some(argument), _) => {
                self.fallback = Some(Mode::Exclude);
                self.add(path, Node::Slice(Slice::parse(argument)?))
            }
            (1, _, Some(argument @ Json::Object(_))) => {
                if path.contains('.') {
                    let message = "Cannot use $elemMatch projection on a nested field";
                    return Err(Error::new(Kind::Location31275, message));
                }
                self.fallback.get_or_insert(Mode::Include);
                self.add(path, Node::Element(ElementCondition::parse(argument, &Setting::default())?))
            }
            (1, ..) => Err(Error::new(Kind::Location31274, "elemMatch: Invalid argument, object required")),
            _ => Err(Error::new(
                Kind::BadValue,
                format!(
                    "an expression specification must contain exactly one field, found {} at {path}",
                    operators.len()
                ),
            )),
        }
    }

    fn add(&mut self, path: &str, leaf: Node) -> Result<()> {
        let mut tree = &mut self.fields;
        let mut remaining = path;
        loop {
            let (name, rest) = path::split(remaining);
            let Some(rest) = rest else {
                return match tree.insert(name.to_owned(), leaf) {
                    None => Ok(()),
                    Some(_) => Err(Error::new(Kind::Location31250, format!("Path collision at {path}"))),
                };
            };
            match tree.entry(name.to_owned()).or_insert_with(|| Node::Branch(Tree::new())) {
                Node::Branch(branch) => tree = branch,
                _ => {
                    let message = format!("Path collision at {path} remaining portion {rest}");
                    return Err(Error::new(Kind::Location31249, message));
                }
            }
            remaining = rest;
        }
    }

    fn finish(self) -> Projection {
        let Parser { mode, id, fallback, mut fields } = self;
        // `_id` decides only if nothing else does, and operators only if `_id` does not.
        let mode = mode.or(id).or(fallback).unwrap_or(Mode::Exclude);
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
