//! `$lookup`: adds to each document the documents of another collection that equal it in a field, or a pipeline's results.
//!
//! Results are found in one of three ways, [`Strategy`]:
//!
//! * A pipeline that does not depend on the document runs once, and its results are kept.
//! * With an equality (`localField` and `foreignField`, or `{"$expr": {"$eq": ["$field", "$$variable"]}}` at the beginning of the
//!   pipeline) local documents are processed in batches: one query reads the other documents for up to [`MAX_BATCH`] local documents,
//!   by their values, so that the query targets shards and uses indexes. The results are assigned to the local documents in memory,
//!   where the rest of the pipeline runs. A cache keeps the results for later local documents, as far as memory allows. If the results of
//!   a batch exceed the memory, the batch is halved; if it is a single local document, this document has a query of its own.
//! * Otherwise each local document has a query of its own.

use super::attached::{Attached, LocalDocuments, ResultField};
use super::equality::{EncodedValue, Values, encoded_value, field_values};
use super::facet::SorterReader;
use super::query_cache::QueryCache;
use crate::budget;
use crate::error::{Kind, Result, bail, ensure};
use crate::query::environment::{Binding, Environment};
use crate::query::expression::{Expression, check_variable_name};
use crate::query::random::is_random;
use crate::query::stage::fields::{Fields, Written};
use crate::query::stage::operation::{Context, Nested, Operation, Parsed, Parser, Shape, Stage, given, run};
use crate::query::stage::runtime::sorter::Sorter;
use crate::query::stage::runtime::stream::{Input, Stream, document, object};
use crate::values::document::ext_json;
use crate::values::document::raw::RawObject;
use crate::values::document::value::Value;
use crate::values::path;
use serde_json::{Map, Value as Json, json};
use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

/// The largest number of local documents that share a query.
const MAX_BATCH: usize = 512;
/// The number of local documents that share the first query. It is small, because the reader may stop early.
const FIRST_BATCH: usize = 32;
/// The stage's memory divided by this is the limit for documents that wait for a query.
const WAITING_SHARE: usize = 8;

/// `$lookup`
#[derive(Debug)]
struct Lookup {
    /// None if the pipeline begins with `$documents`
    from: Option<String>,
    /// the path of the field for the results
    target: String,
    /// `localField` and `foreignField`
    fields: JoinFields,
    /// the variables of `let` that the pipeline uses and that depend on the document
    variables: Vec<(String, Expression)>,
    pipeline: Vec<Json>,
    /// the parsed pipeline; it runs only if `variables` is empty, because variables have no values in it
    stages: Vec<Stage>,
    /// 1 if the pipeline begins with a stage that must come first, such as `$documents` or `$collStats`; otherwise 0
    leading: usize,
    /// the number of first stages that every query has: the leading one, and filters that use no variables
    common: usize,
    /// other collections that the pipeline reads
    inner_collections: BTreeSet<String>,
    strategy: Strategy,
    environment: Environment,
    nested: Nested,
    depth: usize,
}

/// How a document's results are found.
#[derive(Clone, Debug)]
enum Strategy {
    /// by one query, whose results all documents share
    Once,
    /// in batches, by the equality of `key` and this field of the other documents
    Batches { field: String, key: Key },
    /// by a query for each document
    Each,
}

/// The local side of an equality.
#[derive(Clone, Debug)]
enum Key {
    /// the values at `localField`
    Field(String),
    /// the value of a variable, by its position in `variables`
    Variable(usize),
}

impl Lookup {
    /// Returns the environment with the values of the variables for a document.
    fn bindings(&self, local: RawObject<'_>) -> Result<Environment> {
        let mut bindings = Vec::with_capacity(self.variables.len());
        for (name, expression) in &self.variables {
            let value = expression.evaluate(local, self.collator())?;
            bindings.push((name.clone(), value.map_or(Binding::Missing, Binding::Value)));
        }
        Ok(self.environment.with_bindings(bindings))
    }

    fn collator(&self) -> Option<&crate::values::collation::Collator> {
        self.environment.collator().map(|collator| &**collator)
    }

    /// Returns the stages of a query: the leading one, the filter, the other common stages, then `rest`.
    fn stages_with(&self, filter: Option<Json>, rest: &[Json]) -> Vec<Json> {
        let (leading, others) = self.pipeline.split_at(self.leading.min(self.pipeline.len()));
        let filter = filter.map(|filter| json!({"$match": filter}));
        let common = others.iter().take(self.common.saturating_sub(self.leading));
        leading.iter().cloned().chain(filter).chain(common.cloned()).chain(rest.iter().cloned()).collect()
    }

    /// The stages after those that every query has.
    fn remaining_stages(&self) -> &[Json] {
        self.pipeline.get(self.common..).unwrap_or_default()
    }

    /// Sends a query for one document, and returns its results.
    fn query_one(&self, local: &[u8], context: &Context) -> Result<Input<'static>> {
        let local = object(local)?;
        let filter = self.fields.as_ref().and_then(|(local_field, field)| {
            let mut values = Values::default();
            for value in field_values(local, local_field, self.collator()) {
                values.add(value);
            }
            values.filter(field)
        });
        let stages = self.stages_with(filter, self.remaining_stages());
        context.resources.collections.read(self.from.as_deref(), &stages, &self.bindings(local)?)
    }

    /// The values that lead to a document's results; None if it needs a query of its own.
    fn key_values(&self, key: &Key, bytes: &[u8]) -> Result<Option<Vec<EncodedValue>>> {
        let local = object(bytes)?;
        Ok(match key {
            Key::Field(path) => Some(field_values(local, path, self.collator())),
            Key::Variable(position) => match self.variables[*position].1.evaluate(local, self.collator())? {
                // In an expression, unlike in the filter of a batch, null does not equal a missing field, and an array does not match
                // by its elements. So these values need a query of their own.
                None | Some(Value::Null | Value::Undefined | Value::Array(_)) => None,
                Some(value) => Some(vec![encoded_value(value, self.collator())]),
            },
        })
    }

    /// Runs the remaining stages over the documents that a batch has assigned to a local document.
    fn finished<'s>(&self, local: &[u8], chosen: Chosen, context: &Context) -> Result<Input<'s>> {
        if self.variables.is_empty() {
            return run(self.stages.get(self.common..).unwrap_or_default(), Box::new(chosen), context);
        }
        let environment = self.bindings(object(local)?)?;
        run(&(self.nested)(self.remaining_stages(), &environment, self.depth)?, Box::new(chosen), context)
    }
}

impl Operation for Lookup {
    fn fields(&self) -> Fields {
        let of_field = self.fields.iter().map(|(local, _)| Some(BTreeSet::from([local.clone()])));
        let of_variables = self.variables.iter().map(|(_, expression)| expression.fields_read());
        let read = of_field.chain(of_variables).try_fold(BTreeSet::new(), |mut read, paths| {
            read.extend(paths?);
            Some(read)
        });
        Fields { read, written: Written::Only(BTreeSet::from([self.target.clone()])) }
    }

    fn needs_router(&self) -> bool {
        true
    }

    fn collections(&self, found: &mut BTreeSet<String>) {
        found.extend(self.from.iter().chain(&self.inner_collections).cloned());
    }

    fn in_facets(&self) -> bool {
        self.stages.iter().all(Stage::in_facets)
    }

    fn unwinds(&self) -> Option<&str> {
        Some(&self.target)
    }

    fn shape(&self) -> Shape<'_> {
        Shape::Lookup(&self.target)
    }

    fn begin<'s>(self: Arc<Self>, input: Input<'s>, context: &Context) -> Result<Input<'s>> {
        let target = ResultField { path: self.target.clone(), unwound: context.unwound.clone() };
        Ok(Box::new(Attached::new(Joining::new(self, input, context), target)))
    }
}

/// Other documents, in the order in which a query returned them.
type Others = Rc<Vec<Rc<Vec<u8>>>>;

/// A stream of other documents.
struct Chosen {
    others: Others,
    /// the position of the next document
    next: usize,
}

impl Stream for Chosen {
    fn advance(&mut self) -> Result<bool> {
        self.next += 1;
        Ok(self.next <= self.others.len())
    }

    fn bytes(&self) -> &[u8] {
        let current = self.next.checked_sub(1).and_then(|at| self.others.get(at));
        current.map(|other| other.as_slice()).unwrap_or_default()
    }
}

/// The local documents with their results.
struct Joining<'s> {
    lookup: Arc<Lookup>,
    context: Context,
    /// None after its last document
    input: Option<Input<'s>>,
    /// local documents whose query has not been sent
    waiting: VecDeque<Vec<u8>>,
    waiting_bytes: usize,
    /// the number of local documents that share the next query
    size: usize,
    /// local documents whose query has been sent, with its results
    ready: VecDeque<(Vec<u8>, Found)>,
    cache: QueryCache<Others>,
    /// the results that all documents share
    once: Option<Rc<RefCell<Box<dyn Sorter>>>>,
}

/// The results of a batch for one local document.
enum Found {
    Others(Others),
    /// unknown: the document needs a query of its own
    NeedsOwnQuery,
}

/// What a batch's query must find for a local document.
enum Wanted {
    /// the documents that have one of the values with these numbers
    Values(Vec<usize>),
    /// nothing: the cache has the documents
    Cached(Others),
    /// nothing: the local document needs a query of its own
    Query,
}

/// What a query returns.
struct QueryResult {
    others: Vec<Rc<Vec<u8>>>,
    /// for each value, the positions in `others` of the documents that have it
    positions: Vec<Vec<usize>>,
    bytes: usize,
}

impl<'s> Joining<'s> {
    fn new(lookup: Arc<Lookup>, input: Input<'s>, context: &Context) -> Self {
        Self {
            lookup,
            context: context.clone(),
            input: Some(input),
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            size: FIRST_BATCH,
            ready: VecDeque::new(),
            cache: QueryCache::default(),
            once: None,
        }
    }

    fn read(&mut self) -> Result<Option<Vec<u8>>> {
        let Some(input) = &mut self.input else { return Ok(None) };
        if input.advance()? {
            return Ok(Some(input.bytes().to_vec()));
        }
        self.input = None;
        Ok(None)
    }

    /// Returns the results that all documents share. The first call runs the pipeline.
    fn all(&mut self) -> Result<Input<'s>> {
        if self.once.is_none() {
            let mut sorter = self.context.resources.memory.sorter(None, true)?;
            let Lookup { from, pipeline, environment, .. } = &*self.lookup;
            let mut results = self.context.resources.collections.read(from.as_deref(), pipeline, environment)?;
            let mut position: u64 = 0;
            while results.advance()? {
                budget::step();
                sorter.add(&position.to_be_bytes(), results.bytes())?;
                position += 1;
            }
            self.once = Some(Rc::new(RefCell::new(sorter)));
        }
        match &self.once {
            Some(sorter) => Ok(Box::new(SorterReader::begin(sorter)?)),
            None => bail!(Kind::InternalError, "the results of a pipeline were not kept"),
        }
    }

    /// Reads local documents and finds the results of the next batch; false at the end of the input.
    fn fill(&mut self, field: &str, key: &Key) -> Result<bool> {
        let stage_bytes = self.context.resources.memory.stage_bytes();
        let has_room = |waiting: usize, bytes: usize| bytes < stage_bytes / WAITING_SHARE || waiting == 0;
        while self.waiting.len() < self.size && has_room(self.waiting.len(), self.waiting_bytes) {
            let Some(bytes) = self.read()? else { break };
            self.waiting_bytes += bytes.len();
            self.waiting.push_back(bytes);
        }
        let mut count = self.waiting.len().min(self.size);
        while count > 0 && self.ready.is_empty() {
            match self.find(field, key, count, stage_bytes)? {
                Some(found) => {
                    let documents = self.waiting.drain(..count);
                    self.ready = documents.zip(found).collect();
                    self.waiting_bytes -= self.ready.iter().map(|(bytes, _)| bytes.len()).sum::<usize>();
                    self.size = if count == self.size { (count * 2).min(MAX_BATCH) } else { self.size };
                }
                None => {
                    count = count.div_ceil(2);
                    self.size = count;
                }
            }
        }
        Ok(!self.ready.is_empty())
    }

    /// Sends a query for the first `count` waiting documents. If the results exceed `max_bytes` bytes, returns None, or, for a single
    /// document, [`Found::NeedsOwnQuery`].
    fn find(&mut self, field: &str, key: &Key, count: usize, max_bytes: usize) -> Result<Option<Vec<Found>>> {
        if self.cache.bytes() > max_bytes / 2 {
            self.cache.clear();
        }
        let mut values = Values::default();
        let mut wanted = Vec::with_capacity(count);
        for bytes in self.waiting.iter().take(count) {
            let Some(values_of_key) = self.lookup.key_values(key, bytes)? else {
                wanted.push(Wanted::Query);
                continue;
            };
            // Only a single value is looked up in the cache. Another document may match several values but must be returned once, and
            // only the results of one query can be deduplicated, by their positions.
            let cached = if let [(encoding, _)] = values_of_key.as_slice() { self.cache.get(encoding) } else { None };
            wanted.push(match cached {
                Some(others) => Wanted::Cached(Rc::clone(others)),
                None => Wanted::Values(values_of_key.into_iter().map(|value| values.add(value)).collect()),
            });
        }
        let Some(QueryResult { others, positions, bytes }) = self.query(field, &values, max_bytes)? else {
            self.cache.clear();
            return Ok((count == 1).then(|| vec![Found::NeedsOwnQuery]));
        };
        let chosen = |at: &[usize]| -> Others { Rc::new(at.iter().map(|at| Rc::clone(&others[*at])).collect()) };
        let of_values: Vec<Others> = positions.iter().map(|positions| chosen(positions)).collect();
        let found = |wanted| match wanted {
            Wanted::Query => Found::NeedsOwnQuery,
            Wanted::Cached(others) => Found::Others(others),
            Wanted::Values(numbers) => Found::Others(match numbers.as_slice() {
                [number] => Rc::clone(&of_values[*number]),
                several => {
                    let mut all: Vec<usize> = several.iter().flat_map(|number| &positions[*number]).copied().collect();
                    all.sort_unstable();
                    all.dedup();
                    chosen(&all)
                }
            }),
        };
        let found = wanted.into_iter().map(found).collect();
        self.cache.grow(bytes);
        for (encoding, number) in values.into_encodings() {
            self.cache.insert(encoding, Rc::clone(&of_values[number]));
        }
        Ok(Some(found))
    }

    /// Reads the other documents whose field equals one of the values. Returns None if these and the cached ones exceed `max_bytes` bytes.
    fn query(&self, field: &str, values: &Values, max_bytes: usize) -> Result<Option<QueryResult>> {
        let lookup = &self.lookup;
        let mut answer = QueryResult { others: Vec::new(), positions: vec![Vec::new(); values.len()], bytes: 0 };
        let Some(filter) = values.filter(field) else { return Ok(Some(answer)) };
        let stages = lookup.stages_with(Some(filter), &[]);
        let mut results =
            self.context.resources.collections.read(lookup.from.as_deref(), &stages, &lookup.environment)?;
        while results.advance()? {
            budget::step();
            let this = answer.others.len();
            let mut matches = 0;
            values.for_each_match(document(&results)?, field, lookup.collator(), |number| {
                let of_value = &mut answer.positions[number];
                if of_value.last() != Some(&this) {
                    of_value.push(this);
                    matches += 1;
                }
            });
            if matches > 0 {
                answer.bytes += results.bytes().len() + size_of::<Vec<u8>>() + 2 * matches * size_of::<usize>();
                answer.others.push(Rc::new(results.bytes().to_vec()));
            }
            if self.cache.bytes() + answer.bytes > max_bytes {
                return Ok(None);
            }
        }
        Ok(Some(answer))
    }
}

impl<'s> LocalDocuments<'s> for Joining<'s> {
    fn next(&mut self) -> Result<Option<(Vec<u8>, Input<'s>)>> {
        let lookup = Arc::clone(&self.lookup);
        let Strategy::Batches { field, key } = &lookup.strategy else {
            let Some(bytes) = self.read()? else { return Ok(None) };
            let results = match lookup.strategy {
                Strategy::Once => self.all()?,
                _ => lookup.query_one(&bytes, &self.context)?,
            };
            return Ok(Some((bytes, results)));
        };
        if self.ready.is_empty() && !self.fill(field, key)? {
            return Ok(None);
        }
        let Some((bytes, found)) = self.ready.pop_front() else { return Ok(None) };
        let results = match found {
            Found::NeedsOwnQuery => lookup.query_one(&bytes, &self.context)?,
            Found::Others(others) => lookup.finished(&bytes, Chosen { others, next: 0 }, &self.context)?,
        };
        Ok(Some((bytes, results)))
    }
}

const ARGUMENTS: &[&str] = &["from", "as", "localField", "foreignField", "let", "pipeline"];

/// The text of an argument that must be a string; None if it is not given.
fn text<'j>(fields: &'j Map<String, Json>, name: &str) -> Result<Option<&'j str>> {
    match given(fields, name) {
        None => Ok(None),
        Some(Json::String(text)) => Ok(Some(text)),
        Some(other) => bail!(Kind::TypeMismatch, "$lookup argument '{name}' must be a string, but found: {other}"),
    }
}

/// The text of an argument that is a path; None if it is not given.
fn path_of<'j>(fields: &'j Map<String, Json>, name: &str) -> Result<Option<&'j str>> {
    let text = text(fields, name)?.filter(|text| !text.is_empty());
    text.map(path::check_field_path).transpose()?;
    Ok(text)
}

/// True if a part of a pipeline uses a variable of one of these names.
fn uses(json: &Json, names: &HashSet<&str>) -> bool {
    let mut found = false;
    visit_variables(json, &mut |name| found |= names.contains(name));
    found
}

/// Visits the names of the variables that a part of a pipeline uses.
fn visit_variables<'j>(json: &'j Json, visit: &mut impl FnMut(&'j str)) {
    budget::step();
    match json {
        Json::String(text) => text.strip_prefix("$$").into_iter().for_each(|name| visit(path::split(name).0)),
        Json::Array(items) => items.iter().for_each(|item| visit_variables(item, visit)),
        Json::Object(fields) => fields.values().for_each(|value| visit_variables(value, visit)),
        _ => {}
    }
}

/// Returns the first equality of a field and a variable that the filter requires by `$expr`: the field, and the variable's
/// position.
fn equality_of(filter: &Json, variables: &[(String, Expression)]) -> Option<(String, usize)> {
    let positions: HashMap<&str, usize> =
        variables.iter().enumerate().map(|(position, (name, _))| (name.as_str(), position)).collect();
    let sides = |one: &Json, other: &Json| {
        budget::step();
        let field = one.as_str()?.strip_prefix('$').filter(|path| !path.is_empty() && !path.starts_with('$'))?;
        let name = other.as_str()?.strip_prefix("$$")?;
        Some((field.to_owned(), *positions.get(name)?))
    };
    fn expressions<'j>(expression: &'j Json, found: &mut Vec<(&'j Json, &'j Json)>) {
        for (name, argument) in expression.as_object().into_iter().flatten() {
            match (name.as_str(), argument.as_array().map(Vec::as_slice)) {
                ("$and", Some(parts)) => parts.iter().for_each(|part| expressions(part, found)),
                ("$eq", Some([one, other])) => found.push((one, other)),
                _ => {}
            }
        }
    }
    let mut equalities = Vec::new();
    for (name, condition) in filter.as_object().into_iter().flatten() {
        match name.as_str() {
            "$expr" => expressions(condition, &mut equalities),
            "$and" => {
                for part in condition.as_array().into_iter().flatten() {
                    part.get("$expr").into_iter().for_each(|inner| expressions(inner, &mut equalities));
                }
            }
            _ => {}
        }
    }
    equalities.into_iter().find_map(|(one, other)| sides(one, other).or_else(|| sides(other, one)))
}

pub(in crate::query::stage) fn lookup(parser: &Parser<'_>, json: &Json) -> Result<Parsed> {
    let arguments = arguments_of(json)?;
    let from = parser.other_collection(given(arguments, "from"))?;
    let (fields, target, pipeline) = fields_and_pipeline(arguments)?;
    let (variables, environment) = variables_of(parser, given(arguments, "let"))?;
    ensure!(
        pipeline.is_some() || given(arguments, "let").is_none(),
        Kind::FailedToParse,
        "$lookup with a 'let' argument must also specify 'pipeline'"
    );
    let pipeline = pipeline.unwrap_or_default();
    let open = environment.with_bindings(variables.iter().map(|(name, _)| (name.clone(), Binding::Open)));
    let stages = parser.other_pipeline(&pipeline, &open, 51047)?;
    let makes_documents = stages.first().is_some_and(|stage| stage.operator.makes_documents());
    match from {
        None => ensure!(
            makes_documents,
            Kind::FailedToParse,
            "must specify 'from' field for a $lookup, unless its pipeline begins with $documents"
        ),
        Some(name) => parser.check_other(name, makes_documents)?,
    }
    let mut inner_collections = BTreeSet::new();
    stages.iter().for_each(|stage| stage.operation.collections(&mut inner_collections));
    let variables = used_by(&pipeline, variables);
    let names: HashSet<&str> = variables.iter().map(|(name, _)| name.as_str()).collect();
    let is_common =
        |stage: &&Json| stage.get("$match").is_some_and(|filter| !uses(filter, &names) && !is_random(filter));
    let leading = usize::from(stages.first().is_some_and(|stage| stage.operator.comes_first));
    let common = leading + pipeline.iter().skip(leading).take_while(is_common).count();
    let equality = pipeline.get(common).and_then(|stage| equality_of(stage.get("$match")?, &variables));
    let depends = |stage: &Json| uses(stage, &names) || is_random(stage);
    let strategy = match (&fields, equality) {
        _ if makes_documents && depends(&pipeline[0]) => Strategy::Each,
        (Some((local, foreign)), _) => Strategy::Batches { field: foreign.clone(), key: Key::Field(local.clone()) },
        (None, Some((field, position))) => Strategy::Batches { field, key: Key::Variable(position) },
        (None, None) if pipeline.iter().any(depends) => Strategy::Each,
        (None, None) => Strategy::Once,
    };
    Parser::one(Lookup {
        from: from.map(str::to_owned),
        target,
        fields,
        variables,
        pipeline,
        stages,
        leading,
        common,
        inner_collections,
        strategy,
        environment,
        nested: parser.nested,
        depth: parser.depth + 1,
    })
}

fn arguments_of(json: &Json) -> Result<&Map<String, Json>> {
    let Some(arguments) = ext_json::document(json) else {
        bail!(Kind::FailedToParse, "the $lookup stage specification must be an object, but found: {json}")
    };
    let has_source = arguments.contains_key("from") || arguments.contains_key("pipeline");
    ensure!(has_source, Kind::FailedToParse, "must specify 'from' field for a $lookup");
    if let Some(unknown) = arguments.keys().find(|name| !ARGUMENTS.contains(&name.as_str())) {
        bail!(Kind::UnknownOption, "BSON field '$lookup.{unknown}' is an unknown field.");
    }
    Ok(arguments)
}

/// The variables that a pipeline uses.
fn used_by(pipeline: &[Json], mut variables: Vec<(String, Expression)>) -> Vec<(String, Expression)> {
    let mut used = HashSet::new();
    for stage in pipeline {
        visit_variables(stage, &mut |name| {
            used.insert(name);
        });
    }
    variables.retain(|(name, _)| used.contains(name.as_str()));
    variables
}

/// The local and the foreign field of an equality join, if the stage has one.
type JoinFields = Option<(String, String)>;

/// The fields that join, the field for the result, and the pipeline. At least one of join fields and pipeline is given.
fn fields_and_pipeline(arguments: &Map<String, Json>) -> Result<(JoinFields, String, Option<Vec<Json>>)> {
    let (local, foreign) = (path_of(arguments, "localField")?, path_of(arguments, "foreignField")?);
    let is_empty = arguments.get("as").and_then(Json::as_str).is_some_and(str::is_empty);
    ensure!(!is_empty, 40352, "FieldPath cannot be constructed with empty string");
    let Some(target) = path_of(arguments, "as")? else { bail!(40414, "must specify 'as' field for a $lookup") };
    let pipeline = match arguments.get("pipeline") {
        None => None,
        Some(Json::Array(stages)) => Some(stages.clone()),
        Some(other) => bail!(Kind::TypeMismatch, "'pipeline' option must be specified as an array, but found: {other}"),
    };
    let fields = match (local, foreign) {
        (Some(local), Some(foreign)) => Some((local.to_owned(), foreign.to_owned())),
        (None, None) => None,
        _ => bail!(
            Kind::FailedToParse,
            "$lookup requires both or neither of 'localField' and 'foreignField' to be specified"
        ),
    };
    ensure!(
        pipeline.is_some() || fields.is_some(),
        Kind::FailedToParse,
        "$lookup requires either 'pipeline' or both 'localField' and 'foreignField' to be specified"
    );
    Ok((fields, target.to_owned(), pipeline))
}

/// The variables of `let` that depend on the document, and the environment with the others.
fn variables_of(parser: &Parser<'_>, json: Option<&Json>) -> Result<(Vec<(String, Expression)>, Environment)> {
    let environment = parser.environment.clone();
    let Some(json) = json else { return Ok((Vec::new(), environment)) };
    let Some(fields) = ext_json::document(json) else {
        bail!(Kind::TypeMismatch, "$lookup argument 'let' must be an object, but found: {json}")
    };
    let (mut variables, mut constants) = (Vec::new(), Vec::new());
    for (name, json) in fields {
        check_variable_name(name)?;
        let expression = Expression::parse(json, &environment)?;
        match expression.binding() {
            Some(constant) => constants.push((name.clone(), constant)),
            None => variables.push((name.clone(), expression)),
        }
    }
    Ok((variables, environment.with_bindings(constants)))
}
