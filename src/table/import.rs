//! `IMPORT FOREIGN SCHEMA`: a foreign table for each collection of a database.
//!
//! The columns are `_id`, the fields of the shard key and of indexes, the fields of a sample of documents, and at the end the whole
//! document. A column has the type of most of its values in the sample. Only collections that the caller may read are imported.

use super::options;
use crate::catalog::cache;
use crate::catalog::collections::{grants, views};
use crate::operation::arguments::{Arguments, Form};
use crate::operation::errors::is_of_one_operation;
use crate::operation::reading;
use crate::operation::request_parts::Specification;
use crate::operation::table::FIND;
use crate::pg::error::Result;
use crate::pg::fdw::{Import, Owner, Setting};
use crate::pg::security::user::as_extension_owner;
use crate::pg::spi;
use crate::pg::transaction::subtransaction::attempt;
use crate::router::reads::key_sample::{self, Share};
use crate::store::collections;
use docshard_core::error::{Kind, bail, error};
use docshard_core::sql::quote::{quote_ident, quote_literal};
use docshard_core::values::document::element::Element;
use docshard_core::values::document::number::Number;
use docshard_core::values::document::raw::{self, RawObject, RawValue};
use serde_json::json;
use std::collections::HashSet;
use std::fmt::Write;

/// The size of a sample: about this many documents of a collection, chosen from all shards, or the first ones of a view.
const SAMPLE: u64 = 1000;
/// A table that has this many columns gets no further ones from the sample.
const MAX_COLUMNS: usize = 400;
/// The length of the longest name, in bytes.
const MAX_NAME: usize = 63;

/// The type of a value in a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Type {
    Bool,
    Int,
    Double,
    Decimal,
    Text,
    Date,
    Uuid,
    Binary,
    ObjectId,
    Json,
}

impl Type {
    const ALL: [Self; 10] = [
        Self::Bool,
        Self::Int,
        Self::Double,
        Self::Decimal,
        Self::Text,
        Self::Date,
        Self::Uuid,
        Self::Binary,
        Self::ObjectId,
        Self::Json,
    ];

    fn of(value: RawValue<'_>) -> Option<Self> {
        Some(match Element::of(value) {
            Element::Null => return None,
            Element::Bool(_) => Self::Bool,
            Element::Number(Number::Int(..)) => Self::Int,
            Element::Number(Number::Double(_)) => Self::Double,
            Element::Number(Number::Decimal(_)) => Self::Decimal,
            Element::String(_) => Self::Text,
            Element::Date(_) => Self::Date,
            Element::Binary(4, bytes) if bytes.len() == 16 => Self::Uuid,
            Element::Binary(..) => Self::Binary,
            Element::ObjectId(_) => Self::ObjectId,
            _ => Self::Json,
        })
    }

    fn sql(self) -> &'static str {
        match self {
            Self::Bool => "boolean",
            Self::Int => "bigint",
            Self::Double => "double precision",
            Self::Decimal => "numeric",
            Self::Text | Self::ObjectId => "text",
            Self::Date => "timestamptz",
            Self::Uuid => "uuid",
            Self::Binary => "bytea",
            Self::Json => "jsonb",
        }
    }
}

/// The numbers of values of each type at one path.
#[derive(Clone, Debug, Default)]
struct Counts {
    /// values that are not arrays, by [`Type`]
    scalars: [usize; 10],
    /// elements of arrays, by [`Type`]
    elements: [usize; 10],
    arrays: usize,
    nulls: usize,
    /// all values
    seen: usize,
}

impl Counts {
    fn add(&mut self, value: RawValue<'_>) {
        self.seen += 1;
        if let RawValue::Array(items) = value {
            self.arrays += 1;
            for item in items.iter().take(100) {
                if let Some(kind) = Type::of(item) {
                    self.elements[kind as usize] += 1;
                }
            }
            return;
        }
        match Type::of(value) {
            Some(kind) => self.scalars[kind as usize] += 1,
            None => self.nulls += 1,
        }
    }

    /// The column's SQL type, and true if the column holds ObjectIds.
    fn sql(&self) -> (String, bool) {
        let scalars: usize = self.scalars.iter().sum();
        let is_array = self.arrays > scalars;
        match most_common(if is_array { &self.elements } else { &self.scalars }) {
            Some(Type::Json) | None => ("jsonb".to_owned(), false),
            Some(kind) => (format!("{}{}", kind.sql(), if is_array { "[]" } else { "" }), kind == Type::ObjectId),
        }
    }
}

/// The most common type; None without values. Numbers of all types are counted together, as the widest type that occurs.
fn most_common(counts: &[usize; 10]) -> Option<Type> {
    let mut counts = *counts;
    let numbers = [Type::Int, Type::Double, Type::Decimal];
    if let Some(widest) = numbers.into_iter().rev().find(|kind| counts[*kind as usize] > 0) {
        let sum = numbers.iter().map(|kind| std::mem::take(&mut counts[*kind as usize])).sum();
        counts[widest as usize] = sum;
    }
    let best = Type::ALL.into_iter().max_by_key(|kind| counts[*kind as usize])?;
    (counts[best as usize] > 0).then_some(best)
}

/// The names of columns or tables that are used already.
#[derive(Default)]
struct Names(HashSet<String>);

impl Names {
    /// Takes a free name of at most 63 bytes; also returns true if it differs from the wanted one.
    fn take(&mut self, wanted: &str) -> (String, bool) {
        let cut = |most: usize| {
            let mut end = wanted.len().min(most);
            while !wanted.is_char_boundary(end) {
                end -= 1;
            }
            wanted[..end].to_owned()
        };
        let mut name = cut(MAX_NAME);
        let mut number = 1;
        while !self.0.insert(name.clone()) {
            number += 1;
            let suffix = format!("_{number}");
            name = cut(MAX_NAME - suffix.len()) + &suffix;
        }
        let is_changed = name != wanted;
        (name, is_changed)
    }
}

/// The names of PostgreSQL's own columns.
const SYSTEM_COLUMNS: [&str; 6] = ["tableoid", "ctid", "xmin", "cmin", "xmax", "cmax"];

/// The statements that create the foreign tables of an import.
pub fn statements(import: &Import) -> Result<Vec<String>> {
    options::validate(Owner::Table, &[&[("namespace".to_owned(), "a.b".to_owned())][..], &import.options].concat())?;
    let database = &import.remote_schema;
    let (found, views) =
        as_extension_owner(|| Ok((collections::of_database(database)?, views::of_database(database)?)))?;
    if found.is_empty() && views.is_empty() {
        bail!(Kind::NamespaceNotFound, "there is no database \"{database}\"");
    }
    let mut names = Names::default();
    let mut made = Vec::new();
    for namespace in found {
        let Some(collection) = cache::find(&namespace)? else { continue };
        let readable = grants::may_read(&collection)?;
        let (table, is_changed) = names.take(namespace.split_once('.').map_or("", |(_, name)| name));
        let is_listed = import.tables.contains(&table);
        if import.limit_to && !is_listed || import.except && is_listed {
            continue;
        }
        if !readable {
            if import.limit_to {
                grants::require(&collection, grants::Level::Read)?;
            }
            continue;
        }
        if is_changed {
            pgrx::notice!("the collection {namespace} is imported as the table \"{table}\"");
        }
        let mut paths = vec!["_id".to_owned()];
        paths.extend(collection.key.fields.iter().map(|(path, _)| path.clone()));
        paths.extend(collection.indexes.iter().flat_map(|index| index.fields()).map(|(path, _)| path.clone()));
        let required = 1 + collection.key.fields.len();
        made.push(statement(import, &namespace, &table, paths, required)?);
    }
    for view in views {
        let (table, _) = names.take(view.name());
        let is_listed = import.tables.contains(&table);
        if import.limit_to && !is_listed || import.except && is_listed {
            continue;
        }
        // A view may read what the caller may not read, and its pipeline may fail. Unless the statement names the view, it is
        // omitted then.
        let namespace = &view.namespace;
        match attempt(|| statement(import, namespace, &table, vec!["_id".to_owned()], 0)) {
            Err(error) if !import.limit_to && error.sqlstate == Kind::Unauthorized.sqlstate() => {}
            Err(error) if !import.limit_to && is_of_one_operation(&error) => {
                pgrx::notice!("the view {namespace} is not imported: {}", error.message);
            }
            statement => made.push(statement?),
        }
    }
    Ok(made)
}

/// The columns of a table, and the values of a sample of documents.
struct Sample {
    /// the path of each column, and its values in the sample
    columns: Vec<(String, Counts)>,
    /// the paths that have columns
    seen: HashSet<String>,
    /// the number of columns that were given; they come before those that were found in the sample
    named: usize,
    /// the number of documents in the sample
    documents: usize,
}

impl Sample {
    fn of(namespace: &str, paths: Vec<String>) -> Result<Self> {
        let mut columns: Vec<(String, Counts)> = Vec::new();
        let mut seen = HashSet::new();
        for path in paths {
            if options::check_path(&path).is_ok() && !path.contains("$**") && seen.insert(path.clone()) {
                columns.push((path, Counts::default()));
            }
        }
        let mut sample = Self { named: columns.len(), columns, seen, documents: 0 };
        if cache::find(namespace)?.is_some() {
            let read = key_sample::read(namespace, Share::Documents(SAMPLE), None)?;
            read.sample.documents().for_each(|document| sample.add(document));
            return Ok(sample);
        }
        let json = json!({"limit": SAMPLE});
        let arguments = Arguments::parse(&json, Form::Options(FIND.function), FIND.options)?;
        let mut of_view = reading::find(namespace, Specification::EMPTY, &arguments)?;
        while let Some(document) = of_view.next_document()? {
            raw::document(document.bytes()).into_iter().for_each(|document| sample.add(document));
        }
        Ok(sample)
    }

    fn add(&mut self, document: RawObject<'_>) {
        self.documents += 1;
        for (name, _) in document.iter() {
            let is_field = !name.contains('.') && options::check_path(name).is_ok();
            if is_field && self.columns.len() < MAX_COLUMNS && self.seen.insert(name.to_owned()) {
                self.columns.push((name.to_owned(), Counts::default()));
            }
        }
        for (path, counts) in &mut self.columns {
            if let Some(value) = at(document, path) {
                counts.add(value);
            }
        }
    }
}

/// The statement that creates a table. The columns of the first `required` paths are NOT NULL if no document of the sample lacks a value
/// there.
fn statement(import: &Import, namespace: &str, table: &str, paths: Vec<String>, required: usize) -> Result<String> {
    let Sample { columns, named, documents, .. } = Sample::of(namespace, paths)?;
    let required = required.min(named);
    let mut names = Names(SYSTEM_COLUMNS.map(str::to_owned).into());
    let mut sql = format!("CREATE FOREIGN TABLE {} (", quote_ident(table));
    for (number, (path, counts)) in columns.iter().enumerate() {
        let (name, is_changed) = names.take(&path.replace('.', "_"));
        if is_changed {
            pgrx::notice!("the field {path} of {namespace} is the column \"{name}\"");
        }
        let (kind, is_object_id) = counts.sql();
        let _ = write!(sql, "{} {kind}", quote_ident(&name));
        let mut given: Vec<Setting> = Vec::new();
        if name != *path {
            given.push(("path".to_owned(), path.clone()));
        }
        if is_object_id {
            given.push(("type".to_owned(), "objectId".to_owned()));
        }
        if !given.is_empty() {
            let _ = write!(sql, " OPTIONS ({})", settings(&given));
        }
        let is_always_there = documents > 0 && counts.seen == documents && counts.nulls == 0;
        sql.push_str(if number < required && is_always_there { " NOT NULL, " } else { ", " });
    }
    let (name, is_changed) = names.take("doc");
    if is_changed {
        pgrx::notice!("the document of {namespace} is the column \"{name}\"");
    }
    let mut given = vec![("namespace".to_owned(), namespace.to_owned())];
    given.extend(import.options.iter().cloned());
    let _ = write!(
        sql,
        "{} jsonb OPTIONS (path '') NOT NULL) SERVER {} OPTIONS ({})",
        quote_ident(&name),
        quote_ident(&import.server),
        settings(&given)
    );
    Ok(sql)
}

fn settings(settings: &[Setting]) -> String {
    let one = |(name, value): &Setting| format!("{} {}", quote_ident(name), quote_literal(value));
    settings.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// The value at a dotted path; None if there is none, or if there is anything else than objects on the path.
fn at<'a>(object: RawObject<'a>, path: &str) -> Option<RawValue<'a>> {
    let mut steps = path.split('.');
    let mut value = object.get(steps.next()?)?;
    for step in steps {
        let RawValue::Object(inner) = value else { return None };
        value = inner.get(step)?;
    }
    Some(value)
}

/// Imports a database into a schema, with the rights of the caller.
pub fn database(database: &str, schema: &str) -> Result<()> {
    if database.is_empty() || schema.is_empty() {
        return Err(error!(Kind::BadValue, "the names of a database and of a schema must not be empty"));
    }
    spi::run_script(&format!(
        "IMPORT FOREIGN SCHEMA {} FROM SERVER docshard INTO {}",
        quote_ident(database),
        quote_ident(schema)
    ))
}
