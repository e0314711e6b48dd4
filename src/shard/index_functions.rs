//! Computes the SQL functions in index expressions (`api::index`) for writers of rows, without a call through SQL.

use super::stored::document;
use crate::pg::error::{Raise as _, Result};
use crate::pg::memory::small_cache::SmallCache;
use crate::storage::rows::{DirectFunction, FunctionResult};
use docshard_core::query::filter::Filter;
use docshard_core::query::index::{IndexKeys, unique};
use docshard_core::query::specification;
use docshard_core::values::document::raw;
use std::cell::RefCell;
use std::rc::Rc;

/// The largest number of parsed indexes that a session caches. A statement that writes a row uses each of the table's indexes several
/// times.
const MAX_CACHED: usize = 64;

thread_local! {
    static CACHE: RefCell<SmallCache<String, Rc<IndexKeys>, MAX_CACHED>> = const { RefCell::new(SmallCache::NONE) };
}

/// Parses an index's keys, unless they are cached.
pub fn parsed(keys: &str) -> Result<Rc<IndexKeys>> {
    if let Some(index) = CACHE.with_borrow(|cache| cache.find(|text| text == keys)) {
        return Ok(index);
    }
    let index = Rc::new(IndexKeys::read(&specification::parse(keys)?)?);
    CACHE.with_borrow_mut(|cache| cache.insert(keys.to_owned(), Rc::clone(&index)));
    Ok(index)
}

/// A function whose text argument is an index's keys.
struct IndexFunction {
    index: Rc<IndexKeys>,
    output: Output,
}

enum Output {
    Key(usize),
    Check,
    Types,
    UniqueKeys,
    Entries,
    HasEntries,
}

/// Returns the function with that name, and with these arguments after the document. None if there is no such function, or if the arguments
/// are invalid.
pub(super) fn function(name: &str, text: &str, number: Option<i32>) -> Option<Box<dyn DirectFunction>> {
    let output = match (name, number) {
        ("matches", None) => return Some(Box::new(Filter::read(&specification::parse(text).ok()?).ok()?)),
        ("index_key", Some(column)) => Output::Key(usize::try_from(column).ok()?),
        ("check_index_key", None) => Output::Check,
        ("index_types", None) => Output::Types,
        ("unique_keys", None) => Output::UniqueKeys,
        ("index_entries", None) => Output::Entries,
        ("has_index_entries", None) => Output::HasEntries,
        _ => return None,
    };
    Some(Box::new(IndexFunction { index: parsed(text).ok()?, output }))
}

impl IndexFunction {
    fn evaluate(&self, document: raw::RawObject<'_>) -> Result<FunctionResult> {
        let index = &self.index;
        Ok(match self.output {
            Output::Key(column) => FunctionResult::Bytes(index.key(document, column)),
            Output::Check => {
                index.check(document)?;
                FunctionResult::Bytes(Vec::new())
            }
            Output::Types => FunctionResult::Bytes(index.types(document)),
            Output::UniqueKeys => FunctionResult::Bytes(unique::pack(&index.unique_keys(document)?)),
            Output::Entries => FunctionResult::BytesArray(index.entries(document)?),
            Output::HasEntries => FunctionResult::Bool(index.has_entries_of(document)),
        })
    }
}

impl DirectFunction for IndexFunction {
    fn answer(&self, doc: &[u8]) -> FunctionResult {
        document(doc).and_then(|document| self.evaluate(document)).unwrap_or_else(|e| e.raise())
    }

    fn sees_same(&self, one: &[u8], other: &[u8]) -> bool {
        both(one, other, |one, other| self.index.sees_same(one, other))
    }
}

impl DirectFunction for Filter {
    fn answer(&self, doc: &[u8]) -> FunctionResult {
        let matches = || -> Result<bool> { self.evaluate(document(doc)?) };
        FunctionResult::Bool(matches().unwrap_or_else(|e| e.raise()))
    }

    fn sees_same(&self, one: &[u8], other: &[u8]) -> bool {
        both(one, other, |one, other| self.sees_same(one, other))
    }
}

/// True if both values are documents for which `holds` is true.
fn both(one: &[u8], other: &[u8], holds: impl Fn(raw::RawObject<'_>, raw::RawObject<'_>) -> bool) -> bool {
    raw::document(one).zip(raw::document(other)).is_some_and(|(one, other)| holds(one, other))
}

#[cfg(any(test, feature = "pg_test"))]
#[pgrx::pg_schema]
mod tests {
    use super::*;
    use crate::pg::spi;
    use crate::shard::table::index_statements;
    use docshard_core::routing::protocol::qualified;
    use docshard_core::routing::protocol::table::CreateIndex;
    use docshard_core::sql::param::Param;
    use docshard_core::values::collation::Collator;
    use pgrx::pg_test;

    /// Returns the function calls in the expressions of an index: name, text and number.
    fn calls(statement: &str) -> Vec<(String, String, Option<i32>)> {
        let on = statement.split_once(" ON ").expect("an index is on a table").1;
        let schema = qualified("");
        let calls = on.split(&schema).skip(1).filter(|call| call.contains("(doc, '"));
        calls
            .map(|call| {
                let (name, rest) = call.split_once("(doc, '").expect("a call");
                let (text, rest) = rest.split_once("'::text").expect("a text");
                let number = rest.strip_prefix(", ").and_then(|rest| rest.split(')').next()?.parse().ok());
                (name.to_owned(), text.to_owned(), number)
            })
            .collect()
    }

    #[pg_test]
    fn they_answer_what_the_functions_answer() {
        let long = "x".repeat(3000);
        let documents = [
            r#"{"a": 1, "b": 2.50, "c": {"d": null}}"#.to_owned(),
            r#"{"a": [1, 2], "b": "ann", "c": {"d": {"$date": "2026-01-01T00:00:00Z"}}}"#.to_owned(),
            r#"{"b": {"d": [1, {"e": "E"}]}, "_id": 7}"#.to_owned(),
            format!(r#"{{"a": "{long}", "b": true, "c": [{{"d": 1}}, {{"d": 2}}]}}"#),
            "{}".to_owned(),
        ];
        let collation = Collator::parse(&serde_json::json!({"locale": "fr", "strength": 1})).unwrap();
        let mut definitions =
            [r#"{"a": 1}"#, r#"{"a": 1, "c.d": -1}"#, r#"{"$**": 1}"#, r#"{"b": 1, "c.$**": 1}"#, r#"{"b": "hashed"}"#]
                .map(str::to_owned)
                .to_vec();
        definitions.push(IndexKeys::definition(r#"{"b": 1}"#, None, collation.as_ref()));
        let mut names = std::collections::BTreeSet::new();
        for keys in definitions {
            let (is_unique, partial) = (!keys.contains("**"), Some(r#"{"b": {"$gt": 1}}"#));
            let create = CreateIndex { collection: 1, index: 1, keys: &keys, is_unique, partial };
            let statements = index_statements(&create, "");
            for (name, text, number) in statements.unwrap().iter().flat_map(|statement| calls(statement)) {
                let function = function(&name, &text, number).unwrap_or_else(|| panic!("{name} is not known"));
                for document in &documents {
                    let doc = spi::query("SELECT $1::jsonb", &[Param::Text(document)]).unwrap()[0].bytes(0);
                    let more = number.map_or(String::new(), |number| format!(", {number}"));
                    let call = qualified(&format!("{name}($1::jsonb, $2{more})"));
                    let sql = match name.as_str() {
                        "matches" | "has_index_entries" => format!("SELECT int4({call})"),
                        "index_entries" => {
                            format!("SELECT v FROM unnest({call}) WITH ORDINALITY AS e (v, n) ORDER BY n")
                        }
                        _ => format!("SELECT {call}"),
                    };
                    // For these documents the SQL function raises an error, which would end the test's only transaction.
                    if ["check_index_key", "unique_keys"].contains(&name.as_str()) && document.contains('[') {
                        continue;
                    }
                    let rows = spi::query(&sql, &[Param::Text(document), Param::Text(&text)]).unwrap();
                    match function.answer(&doc) {
                        FunctionResult::Bool(answer) => {
                            assert_eq!(i32::from(answer), rows[0].i32(0), "{sql} {document}")
                        }
                        FunctionResult::Bytes(answer) => assert_eq!(answer, rows[0].bytes(0), "{sql} {document}"),
                        FunctionResult::BytesArray(answer) => {
                            let rows: Vec<_> = rows.iter().map(|row| row.bytes(0)).collect();
                            assert_eq!(answer, rows, "{sql} {document}");
                        }
                    }
                    assert!(function.sees_same(&doc, &doc) || text.contains("\"$**\""), "{sql}");
                }
                names.insert(name);
            }
        }
        let all = [
            "check_index_key",
            "has_index_entries",
            "index_entries",
            "index_key",
            "index_types",
            "matches",
            "unique_keys",
        ];
        assert!(names.iter().map(String::as_str).eq(all), "{names:?}");
    }
}
