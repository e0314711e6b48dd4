//! `bulk_write`: many writes in one call, each of which succeeds or fails by itself.
//!
//! Each operation runs in a subtransaction, so that one that fails leaves nothing behind and those before it stay.
//! Inserts that follow one another go together, and one by one where that fails.

use super::documents::write_error;
use crate::catalog;
use crate::command::failure::is_of_one_operation;
use crate::pg::datum::json::Json;
use crate::pg::datum::jsonb::RawJsonb;
use crate::pg::error::{Error, Result};
use crate::pg::transaction::subtransaction::attempt;
use crate::router::change::{self, Change};
use crate::router::insert::{self, Storable};
use crate::router::modification::Modification;
use crate::router::options::{self, Options};
use crate::router::query::Query;
use docshard_core::error::Kind;
use docshard_core::query::update::Style;
use docshard_core::values::document::number::Number;
use docshard_core::values::document::value::Value;
use docshard_core::values::document::{ext_json, write};
use pgrx::prelude::*;
use serde_json::Value as Document;

/// The most operations of a call: MongoDB's number.
const MAX_OPERATIONS: usize = 100_000;

/// One of a call's operations: its name, as the drivers have it, and its arguments.
struct Operation<'a> {
    name: &'static str,
    arguments: Options<'a>,
    /// the call's variables, for an operation without its own
    variables: Option<&'a Document>,
}

/// Names of operations, and of their arguments; the first are required.
const OPERATIONS: &[(&str, usize, &[&str])] = &[
    ("insertOne", 1, &["document"]),
    ("updateOne", 2, &["filter", "update", "upsert", "arrayFilters", "sort", "hint", "collation", "let"]),
    ("updateMany", 2, &["filter", "update", "upsert", "arrayFilters", "hint", "collation", "let"]),
    ("replaceOne", 2, &["filter", "replacement", "upsert", "sort", "hint", "collation", "let"]),
    ("deleteOne", 1, &["filter", "hint", "collation", "let"]),
    ("deleteMany", 1, &["filter", "hint", "collation", "let"]),
];

impl<'a> Operation<'a> {
    /// Checks an operation's form; what its arguments mean is a matter of running it.
    fn parse(index: usize, json: &'a Document, variables: Option<&'a Document>) -> Result<Self> {
        let malformed = |message: String| Error::new(Kind::FailedToParse, format!("operation {index}: {message}"));
        let names = || OPERATIONS.iter().map(|(name, ..)| *name).collect::<Vec<_>>().join(", ");
        let Some((given, arguments)) =
            json.as_object().filter(|fields| fields.len() == 1).and_then(|fields| fields.iter().next())
        else {
            return Err(malformed(format!("it must be an object with one field, named one of {}", names())));
        };
        let Some((name, required, known)) = OPERATIONS.iter().find(|(name, ..)| name == given) else {
            return Err(
                malformed(format!("unknown operation \"{given}\"")).with_hint(format!("Known are: {}.", names()))
            );
        };
        let arguments = Options::of(arguments, name, known)?;
        match known[..*required].iter().find(|argument| arguments.get(argument).is_none()) {
            Some(missing) => Err(malformed(format!("{name} has no \"{missing}\""))),
            None => Ok(Self { name, arguments, variables }),
        }
    }

    fn query(&self, ns: &str) -> Result<Query> {
        let filter = self.arguments.get("filter").map_or_else(String::new, ToString::to_string);
        let variables = self.arguments.get("let").or(self.variables);
        let setting = options::setting(ns, self.arguments.get("collation"), variables, &[&filter])?;
        Query::parse_in(&filter, setting.as_ref())?.hinted(self.arguments.get("hint"))
    }

    fn document(&self) -> Result<Storable> {
        let json = self.arguments.get("document").unwrap_or(&Document::Null);
        Storable::new(&write::value(&ext_json::from_json(json)?)?)
    }

    fn update(&self, ns: &str) -> Result<change::Updated> {
        let query = self.query(ns)?;
        let (field, style) = match self.name {
            "replaceOne" => ("replacement", Style::Replacement),
            _ => ("update", Style::Operators),
        };
        let text = self.arguments.get(field).map_or_else(String::new, ToString::to_string);
        let array_filters = self.arguments.get("arrayFilters").map(ToString::to_string);
        let modification = Modification::parse(&text, style, array_filters.as_deref(), &query)?;
        let change = Change {
            query: &query,
            modification: &modification,
            many: self.name == "updateMany",
            upsert: self.arguments.boolean("upsert")?.unwrap_or(false),
            sort: self.arguments.sort("sort", query.setting.as_ref())?,
        };
        change::update(ns, &change)
    }
}

/// What the operations did, all together.
#[derive(Default)]
struct Totals {
    inserted: Vec<(String, Value)>,
    matched: i64,
    modified: i64,
    deleted: i64,
    upserted: Vec<(String, Value)>,
    errors: Vec<Value>,
}

fn number(n: usize) -> Value {
    Value::Number(Number::Int(i64::try_from(n).unwrap_or(i64::MAX)))
}

impl Totals {
    /// Runs one operation.
    fn run(&mut self, ns: &str, index: usize, operation: &Operation<'_>) -> Result<()> {
        match operation.name {
            "insertOne" => {
                let inserted = insert::insert_all(ns, vec![operation.document()?])?;
                self.inserted.extend(inserted.into_iter().map(|document| (index.to_string(), document.id)));
            }
            "deleteOne" | "deleteMany" => {
                self.deleted += change::delete(ns, &operation.query(ns)?, operation.name == "deleteMany")?;
            }
            _ => {
                let done = operation.update(ns)?;
                self.matched += done.matched;
                self.modified += done.modified;
                self.upserted.extend(done.upserted.map(|id| (index.to_string(), id)));
            }
        }
        Ok(())
    }

    /// Runs operations, the first of which has this index: many inserts as one if that is possible; false if they have
    /// to be run one by one.
    fn insert_together(&mut self, ns: &str, first: usize, operations: &[Operation<'_>]) -> Result<bool> {
        let inserted = attempt(|| {
            let documents = operations.iter().map(Operation::document).collect::<Result<Vec<_>>>()?;
            let inserted = insert::insert_all(ns, documents)?;
            Ok(inserted.into_iter().map(|document| document.id).collect::<Vec<_>>())
        });
        match inserted {
            Ok(ids) => {
                self.inserted.extend(ids.into_iter().enumerate().map(|(at, id)| ((first + at).to_string(), id)));
                Ok(true)
            }
            Err(error) if is_of_one_operation(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn note(&mut self, index: usize, error: &Error) {
        self.errors.push(write_error(index, error));
    }

    fn answer(self) -> Result<RawJsonb> {
        let count = |n: i64| Value::Number(Number::Int(n));
        let mut fields = vec![
            ("acknowledged".to_owned(), Value::Bool(true)),
            ("insertedCount".to_owned(), number(self.inserted.len())),
            ("insertedIds".to_owned(), Value::Object(self.inserted)),
            ("matchedCount".to_owned(), count(self.matched)),
            ("modifiedCount".to_owned(), count(self.modified)),
            ("deletedCount".to_owned(), count(self.deleted)),
            ("upsertedCount".to_owned(), number(self.upserted.len())),
            ("upsertedIds".to_owned(), Value::Object(self.upserted)),
        ];
        if !self.errors.is_empty() {
            fields.push(("writeErrors".to_owned(), Value::Array(self.errors)));
        }
        Ok(RawJsonb::from_bytes(&write::value(&Value::Object(fields))?))
    }
}

/// Runs writes such as `{"insertOne": {"document": …}}`, `updateOne`, `updateMany`, `replaceOne`, `deleteOne`, `deleteMany`, one
/// after the other. Those that fail are reported in `writeErrors`, and the others stay. Options: ordered (default true),
/// which ends the work at the first that fails; let.
#[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
fn bulk_write(ns: &str, operations: Json, options: default!(Json, "'{}'")) -> RawJsonb {
    let run = || -> Result<RawJsonb> {
        catalog::namespace::split(ns)?;
        let options = options.parse()?;
        let options = Options::of(&options, "bulk_write", &["ordered", "let", "comment"])?;
        let variables = options.get("let");
        let ordered = options.boolean("ordered")?.unwrap_or(true);
        let json = operations.parse()?;
        let Document::Array(operations) = &json else {
            return Err(Error::new(Kind::TypeMismatch, "operations of bulk_write must be an array"));
        };
        if operations.is_empty() || operations.len() > MAX_OPERATIONS {
            let count = operations.len();
            let message = format!("Write batch sizes must be between 1 and {MAX_OPERATIONS}. Got {count} operations.");
            return Err(Error::new(Kind::InvalidLength, message));
        }
        let operations = operations
            .iter()
            .enumerate()
            .map(|(index, operation)| Operation::parse(index, operation, variables))
            .collect::<Result<Vec<_>>>()?;
        let mut totals = Totals::default();
        let mut next = 0;
        // Up to here inserts are run one by one, as they have failed together.
        let mut apart = 0;
        while next < operations.len() {
            let inserts = operations[next..].iter().take_while(|operation| operation.name == "insertOne").count();
            if inserts > 1 && next >= apart {
                if totals.insert_together(ns, next, &operations[next..next + inserts])? {
                    next += inserts;
                } else {
                    apart = next + inserts;
                }
                continue;
            }
            match attempt(|| totals.run(ns, next, &operations[next])) {
                Ok(()) => {}
                Err(error) if !is_of_one_operation(&error) => return Err(error),
                Err(error) => {
                    totals.note(next, &error);
                    if ordered {
                        break;
                    }
                }
            }
            next += 1;
        }
        totals.answer()
    };
    run().unwrap_or_else(|e| e.raise())
}
