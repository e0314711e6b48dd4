//! `$graphLookup`: adds to each document the documents of another collection that can be reached from it. The first step finds
//! the documents whose `connectToField` has a value of `startWith`. Each further step finds those whose `connectToField` has a value that
//! a document of the step before has in `connectFromField`.
//!
//! The search is breadth-first. A step sends one query for each [`MAX_QUERY_VALUES`] values. A [`QueryCache`] keeps the results for later
//! documents, as far as memory allows. Several documents are read ahead, and common queries for all their searches fill the cache,
//! so that the searches need no further queries unless the memory is exceeded. A search returns its documents in the order of `_id`.

use super::attached::{Attached, LocalDocuments, ResultField};
use super::equality::{EncodedValue, Values, values_at};
use super::query_cache::QueryCache;
use super::unwind::with;
use crate::budget;
use crate::error::{Kind, Result, bail, ensure, error};
use crate::query::environment::Environment;
use crate::query::expression::Expression;
use crate::query::filter::Filter;
use crate::query::stage::fields::{Fields, Written};
use crate::query::stage::operation::{Context, Operation, Parsed, Parser};
use crate::query::stage::runtime::stream::{Input, IterStream, document, object};
use crate::values::collation::Collator;
use crate::values::document::ext_json;
use crate::values::document::number::Number;
use crate::values::document::raw::RawObject;
use crate::values::document::value::Value;
use crate::values::document::write::{self, Part};
use crate::values::key::encode::encoded_under;
use crate::values::path;
use serde_json::{Map, Value as Json, json};
use std::collections::{BTreeSet, HashSet, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

/// The largest number of values of one query.
const MAX_QUERY_VALUES: usize = 1000;
/// The most documents whose searches share queries.
const MAX_READ_AHEAD: usize = 512;
/// The stage's memory divided by this is the limit for documents that wait for their searches.
const WAITING_SHARE: usize = 8;
/// The largest size of the documents and values of one search, and of the results of one of its queries, in bytes: MongoDB's limit.
const MAX_BYTES: usize = 100 << 20;

/// `$graphLookup`
#[derive(Debug)]
struct GraphLookup {
    from: String,
    target: String,
    start: Expression,
    /// `connectFromField`
    connect_from: String,
    /// `connectToField`
    connect_to: String,
    max_depth: Option<i64>,
    depth_field: Option<String>,
    /// `restrictSearchWithMatch`
    filter: Option<Json>,
    environment: Environment,
}

impl GraphLookup {
    /// The values with which a document's search begins.
    fn starts(&self, local: RawObject<'_>) -> Result<Vec<Value>> {
        Ok(match self.start.evaluate(local, self.collator())? {
            None => Vec::new(),
            Some(Value::Array(values)) => values.into_vec(),
            Some(value) => vec![value],
        })
    }

    fn collator(&self) -> Option<&Collator> {
        self.environment.collator().map(|collator| &**collator)
    }
}

impl Operation for GraphLookup {
    fn fields(&self) -> Fields {
        Fields { read: self.start.fields_read(), written: Written::Only(BTreeSet::from([self.target.clone()])) }
    }

    fn needs_router(&self) -> bool {
        true
    }

    fn collections(&self, found: &mut BTreeSet<String>) {
        found.insert(self.from.clone());
    }

    fn unwinds(&self) -> Option<&str> {
        Some(&self.target)
    }

    fn begin<'s>(self: Arc<Self>, input: Input<'s>, context: &Context) -> Result<Input<'s>> {
        let target = ResultField { path: self.target.clone(), unwound: context.unwound.clone() };
        let searching = Searching {
            stage: self,
            context: context.clone(),
            input: Some(input),
            waiting: VecDeque::new(),
            ahead: 1,
            cache: QueryCache::default(),
        };
        Ok(Box::new(Attached::new(searching, target)))
    }
}

struct Searching<'s> {
    stage: Arc<GraphLookup>,
    context: Context,
    /// None at its end
    input: Option<Input<'s>>,
    /// documents that wait for their searches
    waiting: VecDeque<Vec<u8>>,
    /// the number of documents to read next: few at first, because the reader may stop early
    ahead: usize,
    /// the documents with each value in `connectToField`
    cache: QueryCache<Vec<Rc<Vec<u8>>>>,
}

/// One document's search.
struct Search {
    /// the encodings of the values of all steps so far, and of the next
    seen_values: HashSet<Vec<u8>>,
    /// the encodings of the `_id` of all documents found
    visited: HashSet<Vec<u8>>,
    /// the documents found, each after the encoding of its `_id`
    found: Vec<(Vec<u8>, Vec<u8>)>,
    bytes: usize,
}

impl Search {
    fn grow(&mut self, bytes: usize) -> Result<()> {
        budget::step();
        self.bytes += bytes;
        ensure!(self.bytes <= MAX_BYTES, 40099, "$graphLookup reached maximum memory consumption");
        Ok(())
    }

    /// Adds a value to the next step, unless the value is undefined or was added before.
    fn enqueue(&mut self, value: Value, collator: Option<&Collator>, next: &mut Vec<EncodedValue>) -> Result<()> {
        if matches!(value, Value::Undefined) {
            return Ok(());
        }
        let encoding = encoded_under(&value, collator);
        if self.seen_values.insert(encoding.clone()) {
            self.grow(2 * encoding.len())?;
            next.push((encoding, value));
        }
        Ok(())
    }
}

impl Searching<'_> {
    /// Returns the documents that can be reached from a local document.
    fn search(&mut self, local: RawObject<'_>) -> Result<Vec<Vec<u8>>> {
        let stage = Arc::clone(&self.stage);
        let collator = stage.collator();
        let mut search = Search { seen_values: HashSet::new(), visited: HashSet::new(), found: Vec::new(), bytes: 0 };
        let mut step = Vec::new();
        for value in stage.starts(local)? {
            search.enqueue(value, collator, &mut step)?;
        }
        let mut depth = 0;
        while !step.is_empty() {
            let mut next = Vec::new();
            for part in step.chunks(MAX_QUERY_VALUES) {
                let Some(others) = self.others(part, MAX_BYTES)? else {
                    bail!(40099, "$graphLookup reached maximum memory consumption")
                };
                for other in others {
                    let object = object(&other)?;
                    let id = object.get("_id").map_or(Value::Null, Value::from_raw);
                    // Values of `_id` are compared without the collation.
                    let id = encoded_under(&id, None);
                    if search.visited.contains(&id) {
                        continue;
                    }
                    search.grow(2 * id.len() + other.len())?;
                    search.visited.insert(id.clone());
                    let mut values = Vec::new();
                    values_at(object, &stage.connect_from, &mut |value| values.push(value));
                    for value in values {
                        search.enqueue(Value::from_raw(value), collator, &mut next)?;
                    }
                    let made = match &stage.depth_field {
                        None => other.to_vec(),
                        Some(path) => {
                            let depth = Part::Owned(Value::Number(Number::long(depth)));
                            write::document(&with(object, path, Some(depth)))?
                        }
                    };
                    search.found.push((id, made));
                }
            }
            if stage.max_depth.is_some_and(|max| depth >= max) {
                break;
            }
            depth += 1;
            step = next;
        }
        search.found.sort_unstable();
        Ok(search.found.into_iter().map(|(_, made)| made).collect())
    }

    /// Reads the next documents ahead, and sends the queries that they share; false at the end of the input.
    fn fill(&mut self) -> Result<bool> {
        let max_bytes = self.context.resources.memory.stage_bytes() / WAITING_SHARE;
        let mut bytes = 0;
        while self.waiting.len() < self.ahead
            && (bytes < max_bytes || self.waiting.is_empty())
            && let Some(input) = &mut self.input
        {
            if input.advance()? {
                bytes += input.bytes().len();
                self.waiting.push_back(input.bytes().to_vec());
            } else {
                self.input = None;
            }
        }
        if self.waiting.len() > 1 && !self.query_together()? {
            self.ahead = 1;
        }
        self.ahead = (2 * self.ahead).min(MAX_READ_AHEAD);
        Ok(!self.waiting.is_empty())
    }

    /// Sends the queries that the searches of all waiting documents need, which adds the results to the cache. False if the results exceed
    /// the memory: each search then sends its own queries.
    fn query_together(&mut self) -> Result<bool> {
        let stage = Arc::clone(&self.stage);
        let collator = stage.collator();
        let max_bytes = self.context.resources.memory.stage_bytes();
        let mut seen_values = HashSet::new();
        let mut add = |value: Value, step: &mut Vec<EncodedValue>| {
            budget::step();
            let encoding = encoded_under(&value, collator);
            if !matches!(value, Value::Undefined) && seen_values.insert(encoding.clone()) {
                step.push((encoding, value));
            }
        };
        let mut step = Vec::new();
        for bytes in &self.waiting {
            stage.starts(object(bytes)?)?.into_iter().for_each(|value| add(value, &mut step));
        }
        let mut depth = 0;
        while !step.is_empty() {
            let mut next = Vec::new();
            for part in step.chunks(MAX_QUERY_VALUES) {
                if self.cache.bytes() > max_bytes {
                    return Ok(false);
                }
                let Some(others) = self.others(part, max_bytes - self.cache.bytes())? else { return Ok(false) };
                for other in others {
                    values_at(object(&other)?, &stage.connect_from, &mut |value| {
                        add(Value::from_raw(value), &mut next)
                    });
                }
            }
            if stage.max_depth.is_some_and(|max| depth >= max) {
                break;
            }
            depth += 1;
            step = next;
        }
        Ok(true)
    }

    /// Returns the documents that have one of these values in `connectToField`; a document may come several times. None if the documents
    /// that were not in the cache have more than `max_bytes` bytes.
    fn others(&mut self, wanted: &[EncodedValue], max_bytes: usize) -> Result<Option<Vec<Rc<Vec<u8>>>>> {
        let (stage, cache) = (&self.stage, &mut self.cache);
        let collator = stage.collator();
        if cache.bytes() > self.context.resources.memory.stage_bytes() {
            cache.clear();
        }
        let before = cache.bytes();
        let (mut values, mut numbers) = (Values::default(), Vec::new());
        let mut found = Vec::new();
        for (encoding, value) in wanted {
            match cache.get(encoding) {
                Some(documents) => found.extend(documents.iter().cloned()),
                None => {
                    values.add((encoding.clone(), value.clone()));
                    numbers.push(encoding);
                }
            }
        }
        let Some(filter) = values.filter(&stage.connect_to) else { return Ok(Some(found)) };
        // Unlike in `$lookup`, null does not match a missing field.
        let mut filters = vec![filter, json!({&stage.connect_to: {"$exists": true}})];
        filters.extend(stage.filter.clone());
        let stages = [json!({"$match": {"$and": filters}})];
        let mut results = self.context.resources.collections.read(Some(&stage.from), &stages, &stage.environment)?;
        for encoding in &numbers {
            cache.insert((*encoding).clone(), Vec::new());
        }
        while results.advance()? {
            let other = Rc::new(results.bytes().to_vec());
            let mut size = other.len();
            values.for_each_match(document(&results)?, &stage.connect_to, collator, |number| {
                if let Some(documents) = cache.get_mut(numbers[number])
                    && documents.last().is_none_or(|last| !Rc::ptr_eq(last, &other))
                {
                    size += size_of::<Rc<Vec<u8>>>();
                    documents.push(Rc::clone(&other));
                }
            });
            cache.grow(size);
            if cache.bytes() - before > max_bytes {
                cache.clear();
                return Ok(None);
            }
            found.push(other);
        }
        Ok(Some(found))
    }
}

impl<'s> LocalDocuments<'s> for Searching<'s> {
    fn next(&mut self) -> Result<Option<(Vec<u8>, Input<'s>)>> {
        if self.waiting.is_empty() && !self.fill()? {
            return Ok(None);
        }
        let Some(bytes) = self.waiting.pop_front() else { return Ok(None) };
        let found = self.search(object(&bytes)?)?;
        Ok(Some((bytes, Box::new(IterStream::new(found)))))
    }
}

/// The arguments that are names of fields.
const PATHS: &[&str] = &["as", "connectFromField", "connectToField", "depthField"];
const OTHERS: &[&str] = &["from", "startWith", "maxDepth", "restrictSearchWithMatch"];

fn path_of(arguments: &Map<String, Json>, name: &str) -> Result<Option<String>> {
    match arguments.get(name) {
        None => Ok(None),
        Some(Json::String(text)) => {
            path::check_field_path(text)?;
            Ok(Some(text.clone()))
        }
        Some(other) => bail!(40103, "expected string as argument for {name}, found: {other}"),
    }
}

fn depth_of(json: &Json) -> Result<i64> {
    let Value::Number(number) = ext_json::from_json(json)? else {
        bail!(40100, "maxDepth requires numeric argument, found: {json}")
    };
    let negative = number.to_f64() < 0.0;
    ensure!(!negative, 40101, "maxDepth requires a nonnegative argument, found: {json}");
    number.as_i64().ok_or_else(|| error!(40102, "maxDepth could not be represented as a long long: {json}"))
}

pub(in crate::query::stage) fn graph_lookup(parser: &Parser<'_>, json: &Json) -> Result<Parsed> {
    let Some(arguments) = ext_json::document(json) else {
        bail!(Kind::FailedToParse, "the $graphLookup stage specification must be an object, but found: {json}")
    };
    let environment = parser.environment;
    let is_known = |name: &&String| PATHS.iter().chain(OTHERS).any(|known| known == *name);
    if let Some(unknown) = arguments.keys().find(|name| !is_known(name)) {
        bail!(40104, "Unknown argument to $graphLookup: {unknown}");
    }
    let start = arguments.get("startWith").map(|json| Expression::parse(json, environment)).transpose()?;
    let max_depth = arguments.get("maxDepth").map(depth_of).transpose()?;
    let filter = arguments.get("restrictSearchWithMatch");
    if let Some(filter) = filter {
        ensure!(
            ext_json::document(filter).is_some(),
            40185,
            "restrictSearchWithMatch must be an object, found: {filter}"
        );
        Filter::parse_in(filter, environment)?;
    }
    let from = parser.other_collection(arguments.get("from"))?;
    let from = from.ok_or_else(|| error!(Kind::FailedToParse, "missing 'from' option to $graphLookup: {json}"))?;
    parser.check_other(from, false)?;
    let [target, connect_from, connect_to, depth_field] = [
        path_of(arguments, "as")?,
        path_of(arguments, "connectFromField")?,
        path_of(arguments, "connectToField")?,
        path_of(arguments, "depthField")?,
    ];
    let (Some(target), Some(connect_from), Some(connect_to), Some(start)) = (target, connect_from, connect_to, start)
    else {
        bail!(
            40105,
            "$graphLookup requires 'from', 'as', 'startWith', 'connectFromField', and 'connectToField' to be specified."
        )
    };
    Parser::one(GraphLookup {
        from: from.to_owned(),
        target,
        start,
        connect_from,
        connect_to,
        max_depth,
        depth_field,
        filter: filter.cloned(),
        environment: environment.clone(),
    })
}
