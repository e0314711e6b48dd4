//! Parses the specification of a projection.

use super::slice::Slice;
use super::tree::{Mode, ProjectionNode, Tree};
use crate::budget;
use crate::error::{Error, Kind, Result, bail, ensure, error};
use crate::query::environment::Environment;
use crate::query::expression::Expression;
use crate::query::filter::ElementCondition;
use crate::values::document::ext_json;
use crate::values::document::number::Number;
use crate::values::document::value::Value;
use crate::values::path;
use serde_json::{Map, Value as Json};

/// The dialect of a specification.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    /// of a find
    Find,
    /// of the stage `$project`
    Stage,
}

pub(super) struct Parser<'p> {
    environment: &'p Environment,
    dialect: Dialect,
    /// set by the first field other than `_id`
    mode: Option<Mode>,
    /// the mode of `_id`
    id: Option<Mode>,
    /// the mode that `$slice` or `$elemMatch` implies if no field decides
    fallback: Option<Mode>,
    positional: bool,
    /// true if there is an `$elemMatch`
    element: bool,
    pub(super) fields: Tree,
}

/// A parsed specification.
pub(super) struct Parsed {
    pub(super) mode: Mode,
    pub(super) fields: Tree,
    /// true if a path refers to the element by which a document matches
    pub(super) positional: bool,
}

const POSITION_AND_ELEMENT: &str = "Cannot specify positional operator and $elemMatch.";

impl<'p> Parser<'p> {
    pub(super) fn new(environment: &'p Environment, dialect: Dialect) -> Parser<'p> {
        Parser {
            environment,
            dialect,
            mode: None,
            id: None,
            fallback: None,
            positional: false,
            element: false,
            fields: Tree::new(),
        }
    }

    pub(super) fn field(&mut self, path: String, value: &Json) -> Result<()> {
        budget::bytes(path.len());
        if self.dialect == Dialect::Find {
            if let Some(array) = path.strip_suffix(".$") {
                return self.positional(array, value);
            }
            if path.contains(".$.") {
                return Err(misplaced_position());
            }
        }
        let in_stage = self.dialect != Dialect::Find;
        ensure!(
            !in_stage || !path.ends_with(".$"),
            31324,
            "Cannot use positional projection in aggregation projection"
        );
        path::check_field_path(&path)?;
        let mode = match value {
            Json::Object(fields) if is_document(fields) => {
                if fields.is_empty() {
                    bail!(51270, "An empty sub-projection is not a valid value. Found empty object at path {path}");
                }
                return fields.iter().try_for_each(|(name, value)| self.field(format!("{path}.{name}"), value));
            }
            Json::Object(fields) if self.dialect == Dialect::Find && is_find_operator(fields) => {
                return self.operator(&path, fields);
            }
            Json::Bool(included) => mode_of(*included),
            Json::Number(_) => mode_of(is_nonzero(value)?),
            Json::Object(fields) if fields.keys().next().is_some_and(|name| name.starts_with("$number")) => {
                mode_of(is_nonzero(value)?)
            }
            Json::Object(fields) => {
                ensure!(
                    fields.len() == 1 || !is_plain(fields),
                    16410,
                    "FieldPath field names may not start with '$', at {path}. An expression must contain exactly one field"
                );
                if let Some(name) = single_operator(fields).filter(|name| !Expression::is_known(name)) {
                    bail!(31325, "Unknown expression {name}");
                }
                return self.computed(&path, value);
            }
            value => return self.computed(&path, value),
        };
        if path == "_id" {
            self.id = Some(mode);
        } else {
            self.decide(mode, &path)?;
        }
        self.add(&path, ProjectionNode::Leaf)
    }

    /// Checks that all fields have the same mode.
    fn decide(&mut self, mode: Mode, path: &str) -> Result<()> {
        if *self.mode.get_or_insert(mode) == mode {
            return Ok(());
        }
        Err(match mode {
            Mode::Exclude => error!(31254, "Cannot do exclusion on field {path} in inclusion projection"),
            _ => error!(31253, "Cannot do inclusion on field {path} in exclusion projection"),
        })
    }

    fn computed(&mut self, path: &str, value: &Json) -> Result<()> {
        if value.as_object().is_some_and(|fields| fields.contains_key("$meta")) {
            bail!(Kind::NotImplemented, "the projection operator $meta in a projection is not supported yet");
        }
        let expression = Expression::parse(value, self.environment)?;
        if path == "_id" {
            self.id = Some(Mode::Include);
        } else if *self.mode.get_or_insert(Mode::Include) != Mode::Include {
            return Err(match value {
                Json::Object(fields) if single_operator(fields).is_some_and(Expression::is_known) => {
                    error!(31252, "Cannot use expression other than $meta in exclusion projection, at {path}")
                }
                _ => error!(31310, "Cannot use an expression {path}: {value} in an exclusion projection"),
            });
        }
        self.add(path, ProjectionNode::Computed(Box::new(expression)))
    }

    /// Adds a field of `$addFields`; documents that are not expressions are parsed field by field.
    pub(super) fn added(&mut self, path: String, value: &Json) -> Result<()> {
        budget::bytes(path.len());
        path::check_field_path(&path)?;
        match value {
            Json::Object(fields) if is_plain(fields) && !fields.is_empty() && single_operator(fields).is_none() => {
                fields.iter().try_for_each(|(name, value)| {
                    ensure!(
                        !name.starts_with('$'),
                        40181,
                        "an expression specification must contain exactly one field, the name of the expression. Found \
                         {} fields, at {path}",
                        fields.len()
                    );
                    ensure!(
                        !name.contains('.'),
                        40183,
                        "cannot use dotted field name '{name}' in a sub object, at {path}"
                    );
                    self.added(format!("{path}.{name}"), value)
                })
            }
            value => {
                let expression = Expression::parse(value, self.environment)?;
                self.add(&path, ProjectionNode::Computed(Box::new(expression))).map_err(|collision| {
                    let message = format!("specification contains two conflicting paths: {}", collision.message);
                    collision.with_kind(40176).with_message(message)
                })
            }
        }
    }

    /// Adds a positional field, `{"array.$": 1}`.
    fn positional(&mut self, array: &str, value: &Json) -> Result<()> {
        if array.is_empty() || array.ends_with(".$") || array.contains(".$.") {
            return Err(misplaced_position());
        }
        path::check_field_path(array)?;
        let included = match ext_json::from_json(value) {
            Ok(Value::Bool(included)) => included,
            Ok(number @ Value::Number(_)) => number != Value::Number(Number::int(0)),
            _ if ext_json::document(value).is_some() => {
                bail!(31271, "positional projection cannot be used with an expression or sub object, at {array}")
            }
            _ => bail!(31308, "positional projection cannot be used with a literal, at {array}"),
        };
        ensure!(included, 31395, "positional projection cannot be used with exclusion, at {array}");
        ensure!(!self.element, 31256, "{POSITION_AND_ELEMENT}");
        if std::mem::replace(&mut self.positional, true) {
            bail!(31276, "Cannot specify more than one positional projection per query.");
        }
        self.decide(Mode::Include, array)?;
        self.add(array, ProjectionNode::Positional)
    }

    /// Adds a field with `$slice` or `$elemMatch`.
    fn operator(&mut self, path: &str, operators: &Map<String, Json>) -> Result<()> {
        match (operators.len(), operators.get("$slice"), operators.get("$elemMatch")) {
            (1, Some(argument), _) => {
                self.fallback = Some(Mode::Exclude);
                self.add(path, ProjectionNode::Slice(Slice::parse(argument)?))
            }
            (1, _, Some(argument)) if ext_json::document(argument).is_some() => {
                ensure!(!path.contains('.'), 31275, "Cannot use $elemMatch projection on a nested field");
                ensure!(!self.positional, 31255, "{POSITION_AND_ELEMENT}");
                self.element = true;
                self.fallback.get_or_insert(Mode::Include);
                self.add(path, ProjectionNode::Element(ElementCondition::parse(argument, self.environment)?))
            }
            (1, ..) => bail!(31274, "elemMatch: Invalid argument, object required"),
            _ => bail!(
                16410,
                "an expression specification must contain exactly one field, found {} at {path}",
                operators.len()
            ),
        }
    }

    pub(super) fn add(&mut self, path: &str, leaf: ProjectionNode) -> Result<()> {
        let mut tree = &mut self.fields;
        let mut remaining = path;
        loop {
            let (name, rest) = path::split(remaining);
            let Some(rest) = rest else {
                return match tree.insert(name.to_owned(), leaf) {
                    None => Ok(()),
                    Some(_) => bail!(31250, "Path collision at {path}"),
                };
            };
            match tree.entry(name.to_owned()).or_insert_with(|| ProjectionNode::Branch(Tree::new())) {
                ProjectionNode::Branch(branch) => tree = branch,
                _ => bail!(31249, "Path collision at {path} remaining portion {rest}"),
            }
            remaining = rest;
        }
    }

    pub(super) fn finish(self) -> Result<Parsed> {
        let Parser { mode, id, fallback, positional, mut fields, .. } = self;
        // The first of these decides: fields other than `_id`; `$elemMatch` without `$slice`; `_id`; `$slice`.
        let including = fallback.filter(|mode| *mode == Mode::Include);
        let mode = mode.or(including).or(id).or(fallback).unwrap_or(Mode::Exclude);
        match (mode, id) {
            (Mode::Include, None) => {
                fields.entry("_id".to_owned()).or_insert(ProjectionNode::Leaf);
            }
            (mode, Some(id)) if id != mode => {
                if matches!(fields.get("_id"), Some(ProjectionNode::Computed(_))) {
                    bail!(31252, "Cannot use expression other than $meta in exclusion projection, at _id");
                }
                fields.shift_remove("_id");
            }
            _ => {}
        }
        Ok(Parsed { mode, fields, positional })
    }
}

fn misplaced_position() -> Error {
    error!(31394, "Positional projection may only be used at the end of a path, and once in it, for example: a.b.$")
}

/// The name of a single operator; None for several fields and for a value of an extended type.
fn single_operator(fields: &Map<String, Json>) -> Option<&str> {
    let name = fields.keys().next().filter(|name| fields.len() == 1 && name.starts_with('$'))?;
    is_plain(fields).then_some(name.as_str())
}

/// True for an object that is not a value of an extended type.
fn is_plain(fields: &Map<String, Json>) -> bool {
    matches!(ext_json::extended_value(fields), Ok(None))
}

/// True for a document that is neither an operator nor a value of an extended type. The first name decides.
fn is_document(fields: &Map<String, Json>) -> bool {
    !fields.keys().next().is_some_and(|name| name.starts_with('$'))
}

/// True for `$elemMatch` and `$slice`, except a `$slice` with two or three arguments that are not all numbers: it is an expression.
fn is_find_operator(fields: &Map<String, Json>) -> bool {
    let number = |json: &Json| matches!(ext_json::from_json(json), Ok(Value::Number(_)));
    match fields.get("$slice") {
        Some(Json::Array(items)) => fields.len() != 1 || !(2..=3).contains(&items.len()) || items.iter().all(number),
        Some(_) => true,
        None => fields.contains_key("$elemMatch"),
    }
}

fn mode_of(included: bool) -> Mode {
    if included { Mode::Include } else { Mode::Exclude }
}

fn is_nonzero(json: &Json) -> Result<bool> {
    Ok(ext_json::from_json(json)? != Value::Number(Number::int(0)))
}
