//! Projections: the fields of a document that are returned.
//!
//! A projection either includes or excludes fields. Only `_id` may differ from the rest; it is included unless it is excluded. Paths
//! lead through arrays at any depth: each embedded document is projected, and an inclusion drops other elements.
//!
//! `$slice`, `$elemMatch` and a positional path choose elements of an array. A projection of `$slice` alone keeps the other fields;
//! `$elemMatch` or a positional path alone drops them. Expressions and literals add fields to the included ones.
//!
//! The stages `$project`, `$unset` and `$addFields` of a pipeline are projections, too.

mod slice;
mod tree;

mod parse;

use self::parse::{Dialect, Parser};
use self::tree::{Mode, ProjectionNode, Tree, collect_read, computes, ends, is_positional, leaves};
use crate::budget::{self, Evaluation};
use crate::error::{Error, Kind, Result, bail, error};
use crate::query::envelope;
use crate::query::environment::Environment;
use crate::query::expression::Expression;
use crate::query::filter::Filter;
use crate::values::collation::Collator;
use crate::values::document::ext_json;
use crate::values::document::field_order::{Keeping, keeps_order};
use crate::values::document::raw::{RawArray, RawObject, RawValue, compare_keys};
use crate::values::document::value::Value;
use crate::values::document::write::{self, Part};
use crate::values::path;
use serde_json::{Map, Value as Json};
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

/// A parsed projection.
#[derive(Debug)]
pub struct Projection {
    mode: Mode,
    fields: Tree,
    /// the included fields in the order of jsonb, if the projection only includes top-level fields; else None
    chosen: Option<Vec<String>>,
    collator: Option<Arc<Collator>>,
    /// the filter of the documents, if a path refers to the element by which they match
    filter: Option<Filter>,
    positional: bool,
    /// true if results keep an order of fields, even of documents that keep none
    ordered: bool,
}

impl Projection {
    /// Parses `{"a": 1, "b.c": 1}` or `{"a": 0}`.
    ///
    /// # Errors
    /// `Location31253` and `Location31254` for a mixture of inclusions and exclusions, `Location31252` for an expression beside
    /// exclusions, `Location31249` and `Location31250` for a path that collides with another, `Location51270` for `{"a": {}}`,
    /// `Location28667` and `Location28724` for `$slice`, `Location31274` and `Location31275` for `$elemMatch`. For a positional path:
    /// `Location31276` for a second one, `Location31255` and `Location31256` beside `$elemMatch`, `Location31394` in a wrong place,
    /// `Location31271`, `Location31308` and `Location31395` with a wrong argument. `Location31310` for a literal beside exclusions,
    /// `Location31325` for an unknown operator, those of field paths, of filters and of expressions, `NotImplemented` for `$meta`.
    pub fn parse(json: &Json) -> Result<Projection> {
        Projection::parse_in(json, &Environment::default())
    }

    /// Like [`Projection::parse`], under a statement's collation and with its variables.
    ///
    /// # Errors
    /// Those of [`Projection::parse`].
    pub fn parse_in(json: &Json, environment: &Environment) -> Result<Projection> {
        Projection::parse_as(json, environment, Dialect::Find)
    }

    /// Reads a projection that a router has sent, with its environment.
    ///
    /// # Errors
    /// Those of [`Projection::parse`] and [`Environment::parse`].
    pub fn read(json: &Json) -> Result<Projection> {
        if let Some(inner) = envelope::unwrap_ordered(json) {
            let _keeping = Keeping::order();
            return Projection::read(inner);
        }
        let (environment, inner) = envelope::unwrap(json)?;
        let mut projection = Projection::parse_in(inner, &environment)?;
        if let Some(filter) = json.get(envelope::FILTER) {
            projection.filter = Some(Filter::read(filter)?);
        }
        Ok(projection)
    }

    /// Parses the argument of the stage `$project`.
    pub(crate) fn parse_stage(json: &Json, environment: &Environment) -> Result<Projection> {
        if json.as_object().is_some_and(Map::is_empty) {
            bail!(51272, "projection specification must have at least one field");
        }
        Projection::parse_as(json, environment, Dialect::Stage)
    }

    fn parse_as(json: &Json, environment: &Environment, dialect: Dialect) -> Result<Projection> {
        let _evaluation = Evaluation::begin();
        let Some(specification) = ext_json::document(json) else {
            bail!(Kind::TypeMismatch, "the projection must be an object")
        };
        let mut parser = Parser::new(environment, dialect);
        for (name, value) in specification {
            parser.field(name.clone(), value)?;
        }
        let parsed = parser.finish()?;
        let projection = Projection::new(parsed.mode, parsed.fields, environment);
        Ok(Projection { positional: parsed.positional, ..projection })
    }

    fn new(mode: Mode, fields: Tree, environment: &Environment) -> Projection {
        let chosen =
            (mode == Mode::Include && fields.values().all(|node| matches!(node, ProjectionNode::Leaf))).then(|| {
                let mut names: Vec<String> = fields.keys().cloned().collect();
                budget::steps(names.len());
                names.sort_by(|a, b| compare_keys(a.as_bytes(), b.as_bytes()));
                names
            });
        let collator = environment.collator().cloned();
        Projection { mode, fields, chosen, collator, filter: None, positional: false, ordered: keeps_order() }
    }

    /// Parses the argument of the stages `$addFields` and `$set`.
    pub(crate) fn parse_add(json: &Json, stage: &str, environment: &Environment) -> Result<Projection> {
        let Some(specification) = ext_json::document(json) else {
            bail!(40272, "{stage} specification stage must be an object")
        };
        let mut parser = Parser::new(environment, Dialect::Stage);
        for (name, value) in specification {
            parser.added(name.clone(), value)?;
        }
        Ok(Projection::new(Mode::Add, parser.fields, environment))
    }

    /// Parses the argument of the stage `$unset`: one or more paths.
    pub(crate) fn parse_unset(json: &Json) -> Result<Projection> {
        let paths = match json {
            Json::String(_) => std::slice::from_ref(json),
            Json::Array(paths) if !paths.is_empty() => paths,
            Json::Array(_) => bail!(31119, "$unset specification must be a string or an array with at least one field"),
            _ => bail!(31002, "$unset specification must be a string or an array"),
        };
        let environment = Environment::default();
        let mut parser = Parser::new(&environment, Dialect::Stage);
        for path in paths {
            let Json::String(path) = path else {
                bail!(31120, "$unset specification must be a string or an array containing only string values")
            };
            path::check_field_path(path)?;
            parser.add(path, ProjectionNode::Leaf)?;
        }
        Ok(Projection::new(Mode::Exclude, parser.fields, &environment))
    }

    /// True if it returns documents unchanged.
    pub fn is_identity(&self) -> bool {
        self.mode == Mode::Exclude && self.fields.is_empty()
    }

    /// True if it needs the filter of the documents: a path ends with `$`.
    pub fn is_positional(&self) -> bool {
        self.positional
    }

    /// The included paths, sorted; None if the projection does anything but include fields.
    pub fn included(&self) -> Option<Vec<String>> {
        let _evaluation = Evaluation::begin();
        let mut paths = Vec::new();
        let included = self.mode == Mode::Include && leaves(&self.fields, "", &mut paths);
        paths.sort_unstable();
        included.then_some(paths)
    }

    /// The paths that computed fields read; None for the whole document. In a projection that includes fields, a computed field below
    /// another field is added to each element of the arrays on its path, so the top-level field is read, too.
    pub(crate) fn fields_read(&self) -> Option<BTreeSet<String>> {
        let mut paths = BTreeSet::new();
        if self.mode == Mode::Include {
            let above = self
                .fields
                .iter()
                .filter(|(_, node)| matches!(node, ProjectionNode::Branch(fields) if computes(fields)));
            paths.extend(above.map(|(name, _)| name.clone()));
        }
        collect_read(&self.fields, &mut paths).then_some(paths)
    }

    /// Returns paths and a flag. True: all values except those at these paths may change. False: only the values at these paths may change.
    pub(crate) fn fields_written(&self) -> (BTreeSet<String>, bool) {
        let includes = self.mode == Mode::Include;
        let mut paths = BTreeSet::new();
        ends(&self.fields, "", &mut |path, node| {
            if !includes || matches!(node, ProjectionNode::Leaf) {
                paths.insert(path);
            }
        });
        (paths, includes)
    }

    /// The projected document's jsonb.
    ///
    /// # Errors
    /// Those of expressions; `Location51246` if a positional path finds no element; `BSONObjectTooLarge` and `DocumentTooDeep` for
    /// the values of expressions.
    pub fn apply(&self, document: RawObject<'_>) -> Result<Vec<u8>> {
        if let Some(names) = &self.chosen {
            return write::chosen(document, names.iter().map(String::as_str));
        }
        let position = self.filter.as_ref().and_then(|filter| filter.position(document));
        let context = Context { root: document, collator: self.collator.as_deref(), position, given: &[] };
        let _keeping = Keeping::order_if(self.ordered || document.order().is_some());
        write::document(&match self.mode {
            Mode::Include => context.include(Some(document), &self.fields, Within::Documents)?,
            Mode::Exclude => context.exclude(document, &self.fields, Within::Documents)?,
            Mode::Add => context.put(Some(document), &self.fields)?,
        })
    }
}

/// Paths to which values are assigned, as `$addFields` does.
#[derive(Debug)]
pub(crate) struct Assignments {
    fields: Tree,
    paths: Vec<String>,
}

impl Assignments {
    /// Parses paths.
    ///
    /// # Errors
    /// Those of field paths; a [collision](Self::is_collision) if a path occurs twice, or is a prefix of another one.
    pub(crate) fn parse(paths: &[&str]) -> Result<Assignments> {
        let environment = Environment::default();
        let mut parser = Parser::new(&environment, Dialect::Stage);
        for (position, path) in paths.iter().enumerate() {
            path::check_field_path(path)?;
            parser.add(path, ProjectionNode::Given(position))?;
        }
        Ok(Assignments { fields: parser.fields, paths: paths.iter().map(|path| (*path).to_owned()).collect() })
    }

    /// True for the error of a path that occurs twice, or is a prefix of another one.
    pub(crate) fn is_collision(error: &Error) -> bool {
        matches!(error.kind, Kind::Location(31249 | 31250))
    }

    /// The paths.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &str> {
        self.paths.iter().map(String::as_str)
    }

    /// The document's jsonb with a value for each path, in their order; a field whose value is missing is removed.
    ///
    /// # Errors
    /// `BSONObjectTooLarge` and `DocumentTooDeep`.
    pub(crate) fn apply(&self, document: RawObject<'_>, values: &[Option<Value>]) -> Result<Vec<u8>> {
        let context = Context { root: document, collator: None, position: None, given: values };
        write::document(&context.put(Some(document), &self.fields)?)
    }
}

/// The surroundings of a value in a walk: `$slice` does not apply to arrays in arrays.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Within {
    Documents,
    Array,
    NestedArray,
}

impl Within {
    /// The surroundings of an array's element. An array that is an element is nested; one in an embedded document is not.
    fn inside(self, element: RawValue<'_>) -> Within {
        match (self, element) {
            (Within::NestedArray, _) | (_, RawValue::Array(_)) => Within::NestedArray,
            _ => Within::Array,
        }
    }
}

/// Sorts fields, with their positions in an object, by the object's order.
fn sort_as_in<T>(object: Option<RawObject<'_>>, fields: &mut [(usize, T)]) {
    match object.and_then(|object| object.order()) {
        None => fields.sort_unstable_by_key(|(position, _)| *position),
        Some(order) => {
            let mut ranks = vec![0; object.map_or(0, |object| object.len())];
            for (rank, position) in order.enumerate() {
                if let Some(at) = ranks.get_mut(position) {
                    *at = rank;
                }
            }
            fields.sort_unstable_by_key(|(position, _)| ranks.get(*position).copied());
        }
    }
}

/// The context of a walk.
struct Context<'a> {
    root: RawObject<'a>,
    collator: Option<&'a Collator>,
    /// the array element by which the document matched
    position: Option<usize>,
    /// the values of [`ProjectionNode::Given`]
    given: &'a [Option<Value>],
}

impl<'a> Context<'a> {
    fn computed(&self, expression: &'a Expression) -> Result<Option<Part<'a>>> {
        Ok(expression.operand(self.root, self.collator)?.into_part())
    }

    /// Included fields in the order of the document, then computed ones and those of `$elemMatch` in the order of the specification.
    fn include(&self, object: Option<RawObject<'a>>, fields: &'a Tree, within: Within) -> Result<Part<'a>> {
        let mut included = Vec::with_capacity(fields.len());
        let mut computed = Vec::new();
        for (name, node) in fields {
            budget::step();
            let found = object.and_then(|object| object.find(name));
            let part = match (node, found) {
                (ProjectionNode::Computed(expression), _) => self.computed(expression)?,
                (ProjectionNode::Branch(fields), Some((_, value))) => self.include_in(value, fields, within)?,
                (ProjectionNode::Branch(fields), None) if computes(fields) => Some(self.include(None, fields, within)?),
                (_, None) => None,
                (node, Some((_, value))) => self.chosen(node, value, within)?,
            };
            let Some(part) = part.map(|part| (Cow::Borrowed(name.as_str()), part)) else { continue };
            match (node, found) {
                (ProjectionNode::Computed(_) | ProjectionNode::Element(_), _) | (_, None) => computed.push(part),
                (_, Some((position, _))) => included.push((position, part)),
            }
        }
        sort_as_in(object, &mut included);
        Ok(Part::Object(included.into_iter().map(|(_, part)| part).chain(computed).collect()))
    }

    fn include_in(&self, value: RawValue<'a>, fields: &'a Tree, within: Within) -> Result<Option<Part<'a>>> {
        if let RawValue::Array(array) = value {
            if within == Within::Documents && is_positional(fields) {
                let element = self.matched(array)?;
                let part = self.include_in(element, fields, within.inside(element))?;
                return Ok(Some(Part::Array(part.into_iter().collect())));
            }
            let mut items = Vec::with_capacity(array.len());
            for element in array.iter() {
                items.extend(self.include_in(element, fields, within.inside(element))?);
            }
            return Ok(Some(Part::Array(items)));
        }
        match path::embedded(value) {
            None if !computes(fields) => Ok(None),
            object => self.include(object, fields, within).map(Some),
        }
    }

    fn exclude(&self, object: RawObject<'a>, fields: &'a Tree, within: Within) -> Result<Part<'a>> {
        let mut kept = Vec::with_capacity(object.len());
        for (name, value) in object.in_order() {
            let part = match fields.get(name) {
                None => Some(Part::Raw(value)),
                Some(ProjectionNode::Leaf) => None,
                Some(ProjectionNode::Branch(fields)) => Some(self.exclude_in(value, fields, within)?),
                Some(node) => self.chosen(node, value, within)?,
            };
            kept.extend(part.map(|part| (Cow::Borrowed(name), part)));
        }
        Ok(Part::Object(kept))
    }

    fn exclude_in(&self, value: RawValue<'a>, fields: &'a Tree, within: Within) -> Result<Part<'a>> {
        match value {
            RawValue::Array(array) => {
                let items = array.iter().map(|element| self.exclude_in(element, fields, within.inside(element)));
                Ok(Part::Array(items.collect::<Result<_>>()?))
            }
            value => path::embedded(value).map_or(Ok(Part::Raw(value)), |object| self.exclude(object, fields, within)),
        }
    }

    /// The document with computed or given fields, which replace its own; a field whose new value is missing is removed.
    fn put(&self, object: Option<RawObject<'a>>, fields: &'a Tree) -> Result<Part<'a>> {
        let mut all = Vec::new();
        for (name, value) in object.into_iter().flat_map(|object| object.in_order()) {
            let part = match fields.get(name) {
                None => Some(Part::Raw(value)),
                Some(ProjectionNode::Branch(fields)) => Some(self.put_in(value, fields)?),
                Some(node) => self.value_of(node)?,
            };
            all.extend(part.map(|part| (Cow::Borrowed(name), part)));
        }
        for (name, node) in fields {
            budget::step();
            if object.is_some_and(|object| object.get(name).is_some()) {
                continue;
            }
            let part = match node {
                ProjectionNode::Branch(fields) => Some(self.put(None, fields)?),
                node => self.value_of(node)?,
            };
            all.extend(part.map(|part| (Cow::Borrowed(name.as_str()), part)));
        }
        Ok(Part::Object(all))
    }

    /// The value that a node gives to a field.
    fn value_of(&self, node: &'a ProjectionNode) -> Result<Option<Part<'a>>> {
        match node {
            ProjectionNode::Computed(expression) => self.computed(expression),
            ProjectionNode::Given(position) => {
                let given = self.given.get(*position).and_then(Option::as_ref);
                Ok(given.map(|value| Part::Owned(budget::copying(|| value.clone()))))
            }
            _ => Ok(None),
        }
    }

    fn put_in(&self, value: RawValue<'a>, fields: &'a Tree) -> Result<Part<'a>> {
        match value {
            RawValue::Array(array) => {
                let items = array.iter().map(|element| self.put_in(element, fields));
                Ok(Part::Array(items.collect::<Result<_>>()?))
            }
            value => self.put(path::embedded(value), fields),
        }
    }

    /// The part of a value at the end of a path that is kept; None drops the field.
    fn chosen(&self, node: &ProjectionNode, value: RawValue<'a>, within: Within) -> Result<Option<Part<'a>>> {
        Ok(match (node, value) {
            (ProjectionNode::Slice(slice), RawValue::Array(array)) if within != Within::NestedArray => {
                let (skip, limit) = slice.of(array.len());
                Some(Part::Array(array.iter().skip(skip).take(limit).map(Part::Raw).collect()))
            }
            (ProjectionNode::Element(condition), RawValue::Array(array)) => {
                condition.first_in(array)?.map(|element| Part::Array(vec![Part::Raw(element)]))
            }
            (ProjectionNode::Element(_), _) => None,
            // Only the outermost of nested arrays is positional.
            (ProjectionNode::Positional, RawValue::Array(array)) if within == Within::Documents => {
                Some(Part::Array(vec![Part::Raw(self.matched(array)?)]))
            }
            (_, value) => Some(Part::Raw(value)),
        })
    }

    /// The element at the position by which the document matched.
    fn matched(&self, array: RawArray<'a>) -> Result<RawValue<'a>> {
        self.position
            .and_then(|position| array.get(position))
            .ok_or_else(|| error!(51246, "positional operator '.$' couldn't find a matching element in the array"))
    }
}
