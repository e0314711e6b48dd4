//! Filters: parsed once, matched against jsonb's bytes, and analysed for the keys that they allow.
//!
//! * [`parse`] parses JSON into a tree; its tables list the supported operators.
//! * [`node`] is the tree.
//! * [`matching`] evaluates the tree on a document.
//! * [`position`] finds the array element by which a document matches.
//! * [`bounds`] finds the values of a field that can match.
//! * [`implication`] decides whether one filter implies another, and checks the filters of partial indexes.
//! * [`side`], [`types`], [`modulo`] and [`bits`] are single operators: argument and test.
//! * [`schema`] is `$jsonSchema`.
//! * [`violation`] and [`schema_violation`] describe why a document does not match a filter.
//! * [`strings`] finds fields that a filter compares with strings although they contain dates.

mod bits;
mod modulo;
mod side;
mod types;

mod schema;

mod node;

mod bounds;
mod matching;
mod parse;
mod position;

mod implication;
pub mod strings;

mod violation;

mod schema_violation;

use crate::budget::Evaluation;
use crate::error::{Kind, Result, bail, ensure};
use crate::query::envelope;
use crate::query::environment::Environment;
use crate::query::regex;
use crate::values::collation::Collator;
use crate::values::document::raw::{RawArray, RawObject, RawValue};
use crate::values::document::value::Value;
use crate::values::key::KeyRanges;
use crate::values::path::{self, Base};
use node::{FilterNode, Test};
use std::cell::RefCell;
use std::collections::{BTreeSet, HashSet};

pub(crate) use parse::{is_of_documents, is_shallow, operator_names};
pub(crate) use violation::Report;

/// A parsed filter.
#[derive(Debug)]
pub struct Filter {
    root: FilterNode,
    has_expression: bool,
}

impl Filter {
    /// Parses a filter such as `{"from": "ann", "likes": {"$gt": 5}}`.
    ///
    /// # Errors
    /// `BadValue` for an unknown operator or a wrong argument, with MongoDB's codes; `NotImplemented` for one of MongoDB's
    /// operators that is not supported yet.
    pub fn parse(json: &serde_json::Value) -> Result<Filter> {
        Filter::parse_in(json, &Environment::default())
    }

    /// Like [`Filter::parse`], under a statement's collation and with its variables.
    ///
    /// # Errors
    /// Those of [`Filter::parse`], and of expressions.
    pub fn parse_in(json: &serde_json::Value, environment: &Environment) -> Result<Filter> {
        let _evaluation = Evaluation::begin();
        let (root, has_expression) = (parse::filter(json, environment)?, parse::has_expression(json));
        Ok(Filter { root, has_expression })
    }

    /// Reads a filter that a router has sent, with its environment.
    ///
    /// # Errors
    /// Those of [`Filter::parse_in`] and [`Environment::parse`].
    pub fn read(json: &serde_json::Value) -> Result<Filter> {
        let (environment, inner) = envelope::unwrap(json)?;
        Filter::parse_in(inner, &environment)
    }

    /// Parses a condition on an array's elements, which are documents. Operators such as `$expr` are not allowed.
    pub(crate) fn of_elements(json: &serde_json::Value, environment: &Environment) -> Result<Filter> {
        Ok(Filter { root: parse::element_filter(json, environment)?, has_expression: false })
    }

    /// True if the filter is `{}`.
    pub fn is_empty(&self) -> bool {
        matches!(&self.root, FilterNode::And(nodes) if nodes.is_empty())
    }

    /// True if the document matches; false if the evaluation fails, for which [`evaluate`](Self::evaluate) returns the error.
    pub fn matches(&self, document: RawObject<'_>) -> bool {
        self.evaluate(document).unwrap_or(false)
    }

    /// True if the document matches.
    ///
    /// # Errors
    /// Those of the expressions in `$expr`; `Location51156` for a regular expression that backtracks too often.
    #[inline]
    pub fn evaluate(&self, document: RawObject<'_>) -> Result<bool> {
        regex::watched(|| self.root.matches(Base::Object(document)))?
    }

    /// The encodings of a field's value in matching documents, for a field without an array anywhere on its path. A condition that
    /// the analysis does not understand allows everything. A missing field has the encoding of null.
    pub fn ranges_of(&self, path: &str) -> KeyRanges {
        self.root.ranges_of(path, None)
    }

    /// Like [`ranges_of`](Self::ranges_of), but also uses equalities of whole documents that contain the field.
    pub fn ranges_within(&self, path: &str) -> KeyRanges {
        self.root.ranges_within(path)
    }

    /// Like [`ranges_within`](Self::ranges_within), but ignores expressions, so the result is the same each time the filter's text is
    /// parsed.
    pub fn ranges_as_written(&self, path: &str) -> KeyRanges {
        self.root.ranges_as_written(path)
    }

    /// Like [`ranges_of`](Self::ranges_of), for stored keys under a collation.
    pub fn ranges_under(&self, path: &str, stored: Option<&Collator>) -> KeyRanges {
        self.root.ranges_of(path, stored)
    }

    /// True if the result depends only on values at accepted paths.
    pub fn looks_only_at(&self, accepts: impl Fn(&str) -> bool) -> bool {
        self.root.looks_only_at(&accepts)
    }

    /// The paths that the result depends on; None if the filter evaluates an expression or a schema.
    pub(crate) fn fields_read(&self) -> Option<BTreeSet<String>> {
        let paths = RefCell::new(BTreeSet::new());
        let collect = |path: &str| {
            paths.borrow_mut().insert(path.to_owned());
            true
        };
        self.looks_only_at(collect).then(|| paths.into_inner())
    }

    /// True if both documents have the same bytes in all fields that the result depends on, so the result is the same.
    pub fn sees_same(&self, one: RawObject<'_>, other: RawObject<'_>) -> bool {
        self.looks_only_at(|path| one.has_same(other, path::split(path).0))
    }

    /// True only if the filter has no conditions on other paths, and matches every document without arrays on these paths whose values lie
    /// in [`ranges_of`](Self::ranges_of) each path.
    pub fn is_ranges_of(&self, paths: &[&str]) -> bool {
        self.root.is_ranges_of(paths)
    }

    /// The whole filter as a part.
    pub fn part(&self) -> Part<'_> {
        Part { root: &self.root }
    }

    /// The paths of the fields that the filter constrains: those whose [`ranges_of`](Self::ranges_of) is not everything,
    /// each once, in the order they appear.
    pub fn paths(&self) -> Vec<String> {
        let mut known = HashSet::new();
        let mut paths: Vec<&str> = Vec::new();
        self.root.leaf_paths(&mut |path| {
            if known.insert(path) {
                paths.push(path);
            }
        });
        paths.into_iter().filter(|path| !self.ranges_of(path).is_all()).map(str::to_owned).collect()
    }

    /// True if every leaf of the filter, and every equality that an expression requires, is at one of these paths.
    pub fn is_about(&self, paths: &[&str]) -> bool {
        let mut about = true;
        self.root.leaf_paths(&mut |path| about &= paths.contains(&path));
        about
    }

    /// The value that a field must equal, by a condition at the top level or inside `$and`; None without such a condition, or with
    /// several that differ. A string under a collation does not count, since it equals several values.
    pub fn equality_of(&self, path: &str) -> Option<Value> {
        let mut values = Vec::new();
        self.root.required(&mut |field, test| {
            if field == path && !test.is_collated() {
                values.extend(test.single_value());
            }
        });
        let mut values = values.into_iter();
        let first = values.next()?;
        values.all(|value| value == first).then_some(first)
    }

    /// Refuses a filter that an upsert cannot have: `$expr` does not determine the fields of a new document.
    ///
    /// # Errors
    /// `QueryFeatureNotAllowed`.
    pub fn check_upsert(&self) -> Result<()> {
        if self.has_expression { Err(parse::not_allowed("$expr")) } else { Ok(()) }
    }

    /// The fields and values that an upsert takes from the filter's equalities, in order.
    ///
    /// # Errors
    /// `NotSingleValueField` if a path has two equalities, or lies below another's.
    pub fn upsert_fields(&self) -> Result<Vec<(String, Value)>> {
        let equalities = self.equalities();
        let mut paths: Vec<&str> = equalities.iter().map(|(path, _)| *path).collect();
        paths.sort_unstable_by(|a, b| a.split('.').cmp(b.split('.')));
        for pair in paths.windows(2) {
            let what = "cannot infer query fields to set";
            ensure!(pair[0] != pair[1], Kind::NotSingleValueField, "{what}, path '{}' is matched twice", pair[0]);
            if path::is_below(pair[1], pair[0]) {
                bail!(Kind::NotSingleValueField, "{what}, both paths '{}' and '{}' are matched", pair[0], pair[1]);
            }
        }
        Ok(self.equalities().into_iter().map(|(path, value)| (path.to_owned(), value)).collect())
    }

    /// All equalities that every matching document satisfies.
    pub(crate) fn equalities(&self) -> Vec<(&str, Value)> {
        let mut equalities = Vec::new();
        self.root.required(&mut |path, test| {
            if let Some(value) = test.single_value() {
                equalities.push((path, value));
            }
        });
        equalities
    }
}

/// A whole filter, a branch of an `$or`, or the condition of `$elemMatch` on an element as a document.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    root: &'a FilterNode,
}

impl<'a> Part<'a> {
    /// Like [`Filter::ranges_under`].
    pub(crate) fn ranges_under(self, path: &str, stored: Option<&Collator>) -> KeyRanges {
        self.root.ranges_of(path, stored)
    }

    /// Like [`ranges_under`](Self::ranges_under), for documents with arrays on the path: at least one of the values at the path lies
    /// in the ranges. These values are the elements of an array at its end, `EMPTY_ARRAY` for an empty one, and null if there is
    /// no value.
    pub(crate) fn ranges_of_one(self, path: &str, stored: Option<&Collator>) -> KeyRanges {
        self.root.ranges_of_one(path, stored)
    }

    /// True only if every matching document has an array at the path.
    pub(crate) fn demands_array(self, path: &str) -> bool {
        let mut demanded = false;
        self.root.required(&mut |leaf, test| demanded |= leaf == path && test.accepts_only_arrays());
        demanded
    }

    /// True only if every matching document has a value at the path.
    pub(crate) fn demands_existence(self, path: &str) -> bool {
        let mut demanded = false;
        self.root.required(&mut |leaf, test| demanded |= leaf == path && matches!(test, Test::Exists));
        demanded
    }

    /// The paths of all tests, each once.
    pub(crate) fn paths(self) -> Vec<&'a str> {
        let mut paths = Vec::new();
        self.root.leaf_paths(&mut |path| paths.push(path));
        paths.sort_unstable();
        paths.dedup();
        paths
    }

    /// The conditions on array elements that every matching document satisfies, with the paths of the arrays.
    pub(crate) fn element_parts(self) -> Vec<(&'a str, Part<'a>)> {
        let mut parts = Vec::new();
        self.root.required(&mut |path, test| {
            if let Test::ElementDocument(root) = test {
                parts.push((path, Part { root }));
            }
        });
        parts
    }

    /// The branches of each `$or` that every matching document satisfies.
    pub fn alternatives(self) -> Vec<Vec<Part<'a>>> {
        match self.root {
            FilterNode::And(nodes) => nodes.iter().flat_map(|root| Part { root }.alternatives()).collect(),
            FilterNode::Or(nodes) => vec![nodes.iter().map(|root| Part { root }).collect()],
            _ => Vec::new(),
        }
    }
}

/// A condition on single values instead of a document's fields: operators such as `{"$gt": 5}`, or a regular expression.
#[derive(Debug)]
pub(crate) struct Condition {
    root: FilterNode,
}

impl Condition {
    /// True for operators and regular expressions; anything else is a value or a document.
    pub(crate) fn is_one(json: &serde_json::Value) -> Result<bool> {
        parse::is_condition(json)
    }

    /// Parses a condition, for which [`is_one`](Self::is_one) is true.
    pub(crate) fn parse(json: &serde_json::Value, environment: &Environment) -> Result<Condition> {
        Ok(Condition { root: parse::condition(json, environment)? })
    }

    /// True if the value matches, or one of its elements if it is an array.
    ///
    /// # Errors
    /// `Location51156` for a regular expression that backtracks too often.
    pub(crate) fn accepts(&self, value: RawValue<'_>) -> Result<bool> {
        regex::watched(|| self.root.matches_value(value, true))
    }
}

/// The condition of `$elemMatch` on an array's elements.
#[derive(Debug)]
pub(crate) struct ElementCondition {
    test: Test,
}

impl ElementCondition {
    /// Parses `$elemMatch`'s argument.
    ///
    /// # Errors
    /// Those of [`Filter::parse`].
    pub(crate) fn parse(json: &serde_json::Value, environment: &Environment) -> Result<ElementCondition> {
        Ok(ElementCondition { test: parse::element_condition(json, environment)? })
    }

    /// The first element that matches.
    ///
    /// # Errors
    /// `Location51156` for a regular expression that backtracks too often.
    pub(crate) fn first_in<'a>(&self, array: RawArray<'a>) -> Result<Option<RawValue<'a>>> {
        regex::watched(|| array.iter().find(|element| self.test.matches_element(*element)))
    }
}

/// A condition on an array's elements, with an identifier for the element: `{"x.grade": {"$gt": 5}}`.
#[derive(Debug)]
pub(crate) struct ArrayFilter {
    identifier: String,
    root: FilterNode,
}

impl ArrayFilter {
    /// Parses an array filter.
    ///
    /// # Errors
    /// `FailedToParse` without an identifier or with several, `BadValue` for an invalid one; those of [`Filter::parse`].
    pub(crate) fn parse(json: &serde_json::Value, environment: &Environment) -> Result<ArrayFilter> {
        let root = parse::element_filter(json, environment)?;
        let mut identifiers: Vec<&str> = Vec::new();
        root.leaf_paths(&mut |path| identifiers.push(path::split(path).0));
        let Some(&identifier) = identifiers.first() else {
            bail!(Kind::FailedToParse, "Cannot use an expression without a top-level field name in arrayFilters")
        };
        if let Some(other) = identifiers.iter().find(|other| **other != identifier) {
            bail!(Kind::FailedToParse, "Expected a single top-level field name, found '{identifier}' and '{other}'");
        }
        let is_valid = identifier.starts_with(|first: char| first.is_ascii_lowercase())
            && identifier.chars().all(|character| character.is_ascii_alphanumeric());
        let message = "The top-level field name must be an alphanumeric string beginning with a lowercase letter";
        ensure!(is_valid, Kind::BadValue, "{message}, found '{identifier}'");
        Ok(ArrayFilter { identifier: identifier.to_owned(), root })
    }

    /// The identifier, which `$[identifier]` in a path refers to.
    pub(crate) fn identifier(&self) -> &str {
        &self.identifier
    }

    /// True if the element matches.
    ///
    /// # Errors
    /// `Location51156` for a regular expression that backtracks too often.
    pub(crate) fn matches(&self, element: RawValue<'_>) -> Result<bool> {
        regex::watched(|| self.root.matches(Base::Field(&self.identifier, element)))?
    }
}
