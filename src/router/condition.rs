//! The WHERE clause of a shard's statement: the version check, key conditions that PostgreSQL can match to an index, and
//! the filter itself, which decides.
//!
//! Key conditions only narrow the search; each is implied by the filter, so leaving one out or widening it is always
//! right. Values are parameters, so that one text, and one prepared statement, serves every value: shards plan it once
//! (see `remote::connection`). Only the bounds of open ranges, which may hold nothing or everything, stand in the text,
//! so that the shard's planner can tell which.

use super::choice::{beside_keys, best_of, best_of_part, says_keys_alone};
use super::hint::{self, Means};
use super::read::Query;
use crate::catalog::model::{Collection, Index};
use crate::pg::error::Result;
use crate::pg::spi::param::Param;
use crate::pg::spi::quote::quote_literal;
use docshard_core::cluster::targeting;
use docshard_core::query::filter::{Filter, Part};
use docshard_core::query::index::{APART, Row, Span, Wanted};
use docshard_core::values::key::{KeyPattern, KeyRange, KeyRanges};
use std::fmt::Write;

/// A parameter's value, owned.
#[derive(Clone, Debug)]
pub enum Bound {
    /// bytea
    Bytes(Vec<u8>),
    /// bytea or null
    OptBytes(Option<Vec<u8>>),
    /// bytea[]
    BytesArray(Vec<Vec<u8>>),
    /// text
    Text(String),
    /// text or null
    OptText(Option<String>),
    /// text[]
    TextArray(Vec<String>),
    /// int8
    Int8(i64),
}

/// Parameters that borrow from bounds.
pub struct Borrowed<'a> {
    bounds: &'a [Bound],
    bytes: Vec<Vec<&'a [u8]>>,
    texts: Vec<Vec<&'a str>>,
}

impl<'a> Borrowed<'a> {
    /// Borrows the bounds.
    pub fn new(bounds: &'a [Bound]) -> Self {
        let mut bytes = Vec::new();
        let mut texts = Vec::new();
        for bound in bounds {
            match bound {
                Bound::BytesArray(items) => bytes.push(items.iter().map(Vec::as_slice).collect()),
                Bound::TextArray(items) => texts.push(items.iter().map(String::as_str).collect()),
                _ => {}
            }
        }
        Self { bounds, bytes, texts }
    }

    /// The parameters as they are sent.
    pub fn params(&self) -> Vec<Param<'_>> {
        let mut bytes = self.bytes.iter();
        let mut texts = self.texts.iter();
        self.bounds
            .iter()
            .map(|bound| match bound {
                Bound::Bytes(value) => Param::Bytea(value),
                Bound::OptBytes(value) => Param::OptBytea(value.as_deref()),
                Bound::BytesArray(_) => Param::ByteaArray(bytes.next().map_or(&[], Vec::as_slice)),
                Bound::Text(value) => Param::Text(value),
                Bound::OptText(value) => Param::OptText(value.as_deref()),
                Bound::TextArray(_) => Param::TextArray(texts.next().map_or(&[], Vec::as_slice)),
                Bound::Int8(value) => Param::Int8(*value),
            })
            .collect()
    }

    /// The parameters of a statement that is sent to a shard at this version.
    pub fn params_at(&self, version: i64) -> Vec<Param<'_>> {
        let mut params = self.params();
        params[VERSION_PARAM] = Param::Int8(version);
        params
    }
}

/// More ranges than this on one column are searched as the one range that covers them.
pub const MAX_RANGES: usize = 16;

/// True if ranges stand in a statement as they are.
pub fn has_few_ranges(ranges: &KeyRanges) -> bool {
    ranges.are_points() || ranges.as_slice().len() <= MAX_RANGES
}

/// Conditions joined by AND, and the parameters of the whole statement.
#[derive(Debug)]
pub struct Conditions {
    terms: Vec<String>,
    /// the `$n` of the filter, if nothing else narrows the search: every document is looked at
    scanned_by: Option<String>,
    /// the statement's parameters; the first two are the collection's token and the shard's version
    pub params: Vec<Bound>,
}

/// The position of the version among the parameters: the one that differs from shard to shard.
const VERSION_PARAM: usize = 1;

/// The parameters that every checked statement begins with: the collection's token, and a place for the shard's version.
pub fn first_params(collection: &Collection) -> Vec<Bound> {
    vec![Bound::Int8(collection.token), Bound::Int8(0)]
}

impl Conditions {
    /// The version check alone.
    pub fn new(collection: &Collection) -> Self {
        Self {
            terms: vec![format!("docshard_internal.at_version({}, $1, $2)", collection.id)],
            scanned_by: None,
            params: first_params(collection),
        }
    }

    /// The version check, the key conditions and the filter.
    ///
    /// # Errors
    /// Those of [`hint::means`]; `NoQueryExecutionPlans` if there must be a key condition and is none.
    pub fn of_query(collection: &Collection, query: &Query) -> Result<Self> {
        Self::by_means(collection, query, &hint::means(collection, query)?)
    }

    /// As [`of_query`](Self::of_query), of which the means are known.
    ///
    /// # Errors
    /// `NoQueryExecutionPlans` if there must be a key condition and is none.
    pub fn by_means(collection: &Collection, query: &Query, means: &Means<'_>) -> Result<Self> {
        Self::of_keys(collection, query, means).map_or_else(|| Self::beyond_keys(collection, query, means), Ok)
    }

    /// The version check, conditions on shard key and `_id`, and the filter; None if it says nothing of those. What it says
    /// beside them may be a condition on one more index: then the shard's planner chooses.
    pub fn of_keys(collection: &Collection, query: &Query, means: &Means<'_>) -> Option<Self> {
        if query.filter.is_empty() || !matches!(means, Means::Free | Means::Indexed) {
            return None;
        }
        let mut conditions = Self::new(collection);
        let keys = targeting::key_ranges(&collection.key, &query.filter);
        if !conditions.keys(&collection.key, &query.filter, &keys) {
            return None;
        }
        if let Some((index, wanted)) = beside_keys(collection, &query.filter, &keys) {
            conditions.index(index, &wanted);
        }
        conditions.terms.extend(means.term());
        conditions.matches(query);
        Some(conditions)
    }

    /// The version check, conditions on the best other index, and the filter.
    ///
    /// # Errors
    /// As [`by_means`](Self::by_means).
    pub fn beyond_keys(collection: &Collection, query: &Query, means: &Means<'_>) -> Result<Self> {
        let filter = &query.filter;
        let mut conditions = Self::new(collection);
        let alone = conditions.terms.len();
        match means {
            Means::Natural => {}
            Means::Within { index: Some(index), span } => conditions.index(index, &index.keys.wanted_within(span)),
            Means::Within { index: None, span } => conditions.ids_within(collection, span),
            _ if filter.is_empty() => {}
            Means::Index(index) => conditions.index(index, &index.keys.wanted(filter)),
            Means::Id => {
                conditions.keys(&collection.key, filter, &targeting::key_ranges(&collection.key, filter));
            }
            Means::Free | Means::Indexed => conditions.best_index(collection, filter),
        }
        if matches!(means, Means::Indexed) && conditions.terms.len() == alone {
            return Err(hint::refuse_scan(collection));
        }
        let free = conditions.terms.len() == alone && matches!(means, Means::Free);
        conditions.obey(means);
        conditions.matches(query);
        conditions.scanned_by =
            free.then(|| format!("${}", conditions.params.len())).filter(|_| !query.filter.is_empty());
        Ok(conditions)
    }

    /// The version check and conditions on shard key and `_id`, if they are all that the filter says.
    pub fn of_keys_alone(collection: &Collection, query: &Query, means: &Means<'_>) -> Option<Self> {
        if !matches!(means, Means::Free | Means::Indexed) || !says_keys_alone(collection, &query.filter) {
            return None;
        }
        let mut conditions = Self::new(collection);
        let said =
            conditions.keys(&collection.key, &query.filter, &targeting::key_ranges(&collection.key, &query.filter));
        conditions.terms.extend(means.term());
        said.then_some(conditions)
    }

    /// What tells the planner the means, and, of a part of an index, that the document has a key there.
    pub fn obey(&mut self, means: &Means<'_>) {
        self.terms.extend(means.term());
        if let Means::Within { index: Some(index), span } = means {
            let part = self.part(index, span);
            self.terms.push(format!("docshard_internal.key_within(t.doc, {part}) IS NOT NULL"));
        }
    }

    /// The arguments of `docshard_internal.key_within` that stand for a part of an index.
    pub fn part(&mut self, index: &Index, span: &Span) -> String {
        let (lo, hi) = span.ends(&index.keys);
        let (lo, hi) = (self.param(Bound::Bytes(lo)), self.param(Bound::Bytes(hi)));
        format!("{}::text, {lo}, {hi}", quote_literal(&index.definition))
    }

    /// Conditions on `id` that give a part of its index.
    fn ids_within(&mut self, collection: &Collection, span: &Span) {
        if collection.key.is_unsharded() {
            self.terms.push("t.skey = ''::bytea".to_owned());
        }
        for (id, operator) in [(&span.min, ">="), (&span.max, "<")] {
            if let Some(id) = id.as_ref().and_then(|key| key.first()) {
                let id = self.param(Bound::Bytes(id.clone()));
                self.terms.push(format!("t.id {operator} {id}"));
            }
        }
    }

    /// The filter itself.
    pub fn matches(&mut self, query: &Query) {
        if !query.filter.is_empty() {
            let term = self.matched("t.doc", query);
            self.terms.push(term);
        }
    }

    /// That a document matches the filter.
    pub fn matched(&mut self, document: &str, query: &Query) -> String {
        let text = self.param(Bound::Text(query.text.clone()));
        format!("docshard_internal.matches({document}, {text})")
    }

    /// The version check, and the filter's `$n`, if these two are all and PostgreSQL may do as it likes.
    pub fn of_scan(&self) -> Option<(&str, &str)> {
        Some((self.terms.first()?, self.scanned_by.as_deref()?))
    }

    /// A further parameter; answers its `$n`.
    pub fn param(&mut self, value: Bound) -> String {
        self.params.push(value);
        format!("${}", self.params.len())
    }

    /// A further condition.
    pub fn and(&mut self, term: String) {
        self.terms.push(term);
    }

    /// Takes all conditions away; the parameters stay.
    pub fn clear(&mut self) {
        self.terms.clear();
    }

    /// The text behind WHERE.
    pub fn sql(&self) -> String {
        self.terms.join(" AND ")
    }

    /// Conditions on `skey`, whose values matching documents can have are `keys`, and `id`; true if the filter says something of
    /// them.
    fn keys(&mut self, pattern: &KeyPattern, filter: &Filter, keys: &KeyRanges) -> bool {
        let ids = filter.ranges_of("_id");
        let mut narrow = false;
        if pattern.is_unsharded() {
            if ids.is_all() {
                return false;
            }
            self.terms.push("t.skey = ''::bytea".to_owned());
        } else {
            let first = pattern.fields.first().map_or_else(KeyRanges::all, |(path, _)| filter.ranges_of(path));
            narrow |= first.are_points();
            let skeys = self.ranges("t.skey", keys, false, narrow);
            self.terms.extend(skeys);
            if ids.is_all() {
                return !keys.is_all();
            }
        }
        let ids = self.ranges("t.id", &ids, false, narrow);
        self.terms.extend(ids);
        true
    }

    /// Conditions on the index that the filter constrains most.
    fn best_index(&mut self, collection: &Collection, filter: &Filter) {
        if let Some((index, wanted)) = best_of(collection, filter, |_, _| false) {
            return self.index(index, &wanted);
        }
        for parts in filter.part().alternatives() {
            if let Some(term) = self.alternatives(collection, &parts) {
                return self.terms.push(term);
            }
        }
    }

    /// Conditions by which the search may be narrowed further than by an index of which these keys are wanted: the shard's
    /// planner chooses.
    pub fn narrower_than(&mut self, wanted: &Wanted, collection: &Collection, filter: &Filter) {
        let best = best_of(collection, filter, |_, _| false);
        let is_narrower = best.as_ref().is_some_and(|(_, narrower)| narrower.score() > wanted.score());
        if is_narrower || best.is_none() && wanted.is_all() {
            self.best_index(collection, filter);
        }
    }

    /// The condition of filters joined by `$or`, each on an index of its own; None if one of them has none.
    fn alternatives(&mut self, collection: &Collection, parts: &[Part<'_>]) -> Option<String> {
        let best = parts.iter().map(|part| best_of_part(collection, *part));
        let best: Vec<(&Index, Wanted)> = best.collect::<Option<_>>()?;
        let terms: Vec<String> = best.iter().filter_map(|(index, wanted)| self.in_either(index, wanted)).collect();
        Some(format!("({})", terms.join(" OR ")))
    }

    /// Conditions on an index, of which these keys are wanted: those in its b-tree, or among its entries.
    fn index(&mut self, index: &Index, wanted: &Wanted) {
        self.held_by(index);
        if wanted.is_all() {
            return;
        }
        let term = self.in_either(index, wanted);
        self.terms.extend(term);
    }

    /// That the wanted keys are in the b-tree or among the entries.
    fn in_either(&mut self, index: &Index, wanted: &Wanted) -> Option<String> {
        if !index.keys.has_tree() {
            // Of every document; all are no condition.
            return (!wanted.entries.is_all()).then(|| self.entry_in(index, wanted));
        }
        let tree = self.in_tree(index, wanted, &[])?;
        Some(match index.keys.has_entries() {
            true => format!("({tree} OR {})", self.among_entries(index, wanted)),
            false => tree,
        })
    }

    /// What the keys in the b-tree must be, so that none stands apart; None if that is true of all.
    ///
    /// Of the `pinned` columns one key alone is wanted, and it is said so that PostgreSQL's planner does not know it: it
    /// would drop them from an ORDER BY, and not see that the search comes in the order of all the columns.
    pub fn in_tree(&mut self, index: &Index, wanted: &Wanted, pinned: &[usize]) -> Option<String> {
        let narrow = wanted.columns.first().is_some_and(KeyRanges::are_points);
        let mut terms = Vec::new();
        for (column, ranges) in wanted.columns.iter().enumerate() {
            let expression = index_expression("t.doc", index, column);
            match ranges.as_point().filter(|_| pinned.contains(&column)) {
                None => terms.extend(self.ranges(&expression, ranges, true, narrow)),
                Some(point) => {
                    let point = self.param(Bound::Bytes(point.to_vec()));
                    terms.push(match column {
                        // An index is read in its order by a set of keys of its first column only.
                        0 => format!("{expression} = ANY (ARRAY[{point}])"),
                        _ => format!("{expression} >= {point} AND {expression} <= {point}"),
                    });
                }
            }
        }
        if let Some(row) = &wanted.row {
            self.row(index, row, &mut terms);
        }
        if terms.is_empty() {
            let first = index_expression("t.doc", index, 0);
            terms.push(format!("{first} < {}", literal(APART)));
        }
        (!terms.is_empty()).then(|| terms.join(" AND "))
    }

    /// Conditions on columns that are compared one after the other.
    fn row(&mut self, index: &Index, row: &Row, terms: &mut Vec<String>) {
        for (keys, operator) in [(&row.least, ">="), (&row.greatest, "<=")] {
            let Some(keys) = keys else { continue };
            let columns = (0..keys.len()).map(|column| index_expression("t.doc", index, row.first + column));
            let columns: Vec<String> = columns.collect();
            let keys: Vec<String> = keys.iter().map(|key| self.param(Bound::Bytes(key.clone()))).collect();
            terms.push(format!("ROW({}) {operator} ROW({})", columns.join(", "), keys.join(", ")));
        }
    }

    /// What the entries beside the b-tree must be: word for word as the index was created with.
    pub fn among_entries(&mut self, index: &Index, wanted: &Wanted) -> String {
        if wanted.entries.is_all() {
            let first = index_expression("t.doc", index, 0);
            return format!("{first} = {}", literal(APART));
        }
        let entry = self.entry_in(index, wanted);
        let keys = quote_literal(&index.definition);
        format!("docshard_internal.has_index_entries(t.doc, {keys}::text) AND {entry}")
    }

    /// That an entry is a wanted one.
    fn entry_in(&mut self, index: &Index, wanted: &Wanted) -> String {
        let end = |range: &KeyRange| range.hi.clone().unwrap_or_else(|| APART.to_vec());
        let flat = wanted.entries.as_slice().iter().flat_map(|range| [range.lo.clone(), end(range)]).collect();
        let ranges = self.param(Bound::BytesArray(flat));
        let keys = quote_literal(&index.definition);
        format!("docshard_internal.index_entries(t.doc, {keys}::text) OPERATOR(docshard_internal.@~) {ranges}::bytea[]")
    }

    /// The condition of the documents that an index holds, word for word as the index was created with.
    pub fn held_by(&mut self, index: &Index) {
        if let Some(partial) = &index.partial {
            self.terms.push(format!("docshard_internal.matches(t.doc, {}::text)", quote_literal(&partial.text)));
        }
    }

    /// The condition of a column's ranges, if there is one; `narrow` if few rows come into question for other reasons, and
    /// `below` if what stands apart is left out.
    fn ranges(&mut self, column: &str, ranges: &KeyRanges, below: bool, narrow: bool) -> Option<String> {
        if ranges.is_all() {
            return None;
        }
        let slice = ranges.as_slice();
        let points: Option<Vec<Vec<u8>>> = slice.iter().map(|range| range.as_point().map(<[u8]>::to_vec)).collect();
        Some(match points {
            Some(mut points) if points.len() == 1 => {
                let point = self.param(Bound::Bytes(points.swap_remove(0)));
                format!("{column} = {point}")
            }
            Some(points) => {
                let points = self.param(Bound::BytesArray(points));
                format!("{column} = ANY ({points}::bytea[])")
            }
            None => {
                let hull = ranges.hull();
                let few = if slice.len() <= MAX_RANGES { slice } else { hull.as_slice() };
                let end = |range: &KeyRange| range.hi.clone().or_else(|| below.then(|| APART.to_vec()));
                let few: Vec<KeyRange> =
                    few.iter().map(|range| KeyRange { lo: range.lo.clone(), hi: end(range) }).collect();
                let alternatives: Vec<String> = few.iter().map(|range| self.range(column, range, narrow)).collect();
                match alternatives.as_slice() {
                    [only] => only.clone(),
                    several => format!("({})", several.join(" OR ")),
                }
            }
        })
    }

    fn range(&mut self, column: &str, range: &KeyRange, narrow: bool) -> String {
        let mut bound = |key: &[u8]| if narrow { self.param(Bound::Bytes(key.to_vec())) } else { literal(key) };
        let lo = bound(&range.lo);
        match &range.hi {
            Some(hi) => {
                let hi = bound(hi);
                format!("{column} >= {lo} AND {column} < {hi}")
            }
            None => format!("{column} >= {lo}"),
        }
    }
}

fn literal(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len() + 12);
    text.push_str("'\\x");
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    text.push_str("'::bytea");
    text
}

/// What an index's column is made of, as the index was created with: see `ownership::table`.
pub fn index_expression(doc: &str, index: &Index, column: usize) -> String {
    format!("docshard_internal.index_key({doc}, {}::text, {column})", quote_literal(&index.definition))
}
