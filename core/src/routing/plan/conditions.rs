//! The WHERE clause of a shard's statement: the version check, key conditions that PostgreSQL can match to an index, and the
//! filter.
//!
//! Key conditions only narrow the search; the filter implies each of them, so it is always correct to omit or widen one. Values
//! are parameters, so that one text, and one prepared statement, serves every value: a shard plans it once (see
//! `remote::connection`). Only the bounds of ranges are in the text, unless other conditions leave few rows: a range may contain
//! nothing or everything, and the shard's planner needs the bounds to estimate that.

use super::index_choice::{MAX_ALTERNATIVES, MAX_RANGES, beside_keys, best_of_part, index_for, says_keys_alone};
use super::index_restriction::{IndexRestriction, refuse_scan};
use super::order::id_column;
use super::search::Search;
use super::statement::{Statement, first_params};
use crate::error::Result;
use crate::query::filter::Part;
use crate::query::index::{IN_ENTRIES, IndexKeys, RowBounds, Span, Wanted};
use crate::routing::model::{Collection, Index};
use crate::routing::protocol::checked::Parameter;
use crate::routing::protocol::sql;
use crate::routing::request::query::Query;
use crate::sql::column::Column;
use crate::sql::quote::quote_literal;
use crate::values::key::{KeyRange, KeyRanges};
use std::fmt::Write;

/// Terms joined by AND, and the parameters of the whole statement.
#[derive(Debug)]
pub struct Conditions {
    terms: Vec<String>,
    /// the version check, if the first term also counts the statement
    uncounted: Option<String>,
    /// the `$n` of the filter; None without a filter, if other conditions narrow the search, or if the indexes are restricted
    scanned_by: Option<String>,
    /// the first two are the collection's token and the shard's version
    pub params: Vec<Parameter>,
}

impl Conditions {
    /// The version check alone.
    pub fn new(collection: &Collection) -> Self {
        Self {
            terms: vec![sql::at_version(collection.id, "$1", "$2")],
            uncounted: None,
            scanned_by: None,
            params: first_params(collection),
        }
    }

    /// The version check, which also counts the statement if the search is counted.
    pub fn checked(search: &Search<'_>) -> Self {
        let mut conditions = Self::new(search.collection);
        if let Some(keys) = &search.counted_at {
            let keys = match keys.is_empty() {
                true => "'{}'".to_owned(),
                false => conditions.param(Parameter::BytesArray(keys.clone())),
            };
            let counted = sql::at_keys(search.collection.id, "$1", "$2", keys);
            conditions.uncounted = Some(std::mem::replace(&mut conditions.terms[0], counted));
        }
        conditions
    }

    /// Returns `terms`, which begin with those of [`sql`](Self::sql), for another part of the statement. There they only check
    /// the version, so that the statement is counted once.
    pub fn in_other_part(&self, terms: &str) -> String {
        match &self.uncounted {
            Some(uncounted) => terms.replacen(&self.terms[0], uncounted, 1),
            None => terms.to_owned(),
        }
    }

    /// The version check, key conditions, and the filter. Fails with `NoQueryExecutionPlans` if `notablescan` is on and no index
    /// can be used.
    pub fn of_search(search: &Search<'_>) -> Result<Self> {
        Self::of_keys(search).map_or_else(|| Self::beyond_keys(search), Ok)
    }

    /// The version check, conditions on shard key and `_id`, and the filter; None if the filter constrains neither, or if the query is
    /// restricted to certain indexes. A condition on a secondary index may be added, so that the shard's planner can choose.
    fn of_keys(search: &Search<'_>) -> Option<Self> {
        let free = matches!(search.restriction, IndexRestriction::None | IndexRestriction::AnyIndex);
        if search.filter().is_empty() || !free {
            return None;
        }
        let mut conditions = Self::checked(search);
        if !conditions.keys(search) {
            return None;
        }
        if let Some((index, wanted)) = beside_keys(search) {
            conditions.index(index, &wanted);
        }
        conditions.terms.extend(search.restriction.term());
        conditions.matches(search.query);
        Some(conditions)
    }

    /// The version check, conditions on the best secondary index, and the filter.
    fn beyond_keys(search: &Search<'_>) -> Result<Self> {
        let (collection, filter) = (search.collection, search.filter());
        let mut conditions = Self::checked(search);
        let alone = conditions.terms.len();
        match &search.restriction {
            IndexRestriction::NoIndex => {}
            IndexRestriction::Part { index: Some(index), span, .. } => {
                conditions.index(index, &index.keys.wanted_within(span));
            }
            IndexRestriction::Part { index: None, keys, span } => conditions.keys_within(collection, keys, span),
            _ if filter.is_empty() => {}
            IndexRestriction::Index(index) => conditions.index(index, &index.keys.wanted(filter)),
            IndexRestriction::KeyIndexes => {
                conditions.keys(search);
            }
            IndexRestriction::None | IndexRestriction::AnyIndex => conditions.best_index(search),
        }
        let is_alone = conditions.terms.len() == alone;
        if matches!(search.restriction, IndexRestriction::AnyIndex) && is_alone {
            return Err(refuse_scan(collection));
        }
        let free = is_alone && matches!(search.restriction, IndexRestriction::None);
        conditions.obey(&search.restriction);
        conditions.matches(search.query);
        conditions.scanned_by = free.then(|| format!("${}", conditions.params.len())).filter(|_| !filter.is_empty());
        Ok(conditions)
    }

    /// The version check and conditions on shard key and `_id`; None if these are not equivalent to the filter, or if the query is
    /// restricted to certain indexes.
    pub fn of_keys_alone(search: &Search<'_>) -> Option<Self> {
        let free = matches!(search.restriction, IndexRestriction::None | IndexRestriction::AnyIndex);
        if !free || !says_keys_alone(search) {
            return None;
        }
        let mut conditions = Self::checked(search);
        let narrowed = conditions.keys(search);
        conditions.terms.extend(search.restriction.term());
        narrowed.then_some(conditions)
    }

    /// Returns the WHERE clause that finds a document by a unique index for each row of `rows`, which has the shard key in the column
    /// `skey`. The columns `v0`, `v1`, … have the keys of the index's columns, and then the ends of the ranges of entries; `values` is the
    /// number of these columns.
    pub fn of_joined_key(collection: &Collection, index: &Index, rows: &str, values: usize) -> String {
        let mut terms = vec![sql::at_version(collection.id, "$1", "$2")];
        if !collection.key.is_unsharded() {
            terms.push(format!("t.skey = {rows}.skey"));
        }
        let fields = index.fields().len();
        let equal =
            (0..fields).map(|column| format!("{} = {rows}.v{column}", index_expression("t.doc", index, column)));
        let tree = equal.collect::<Vec<_>>().join(" AND ");
        let ends: Vec<String> = (fields..values).map(|column| format!("{rows}.v{column}")).collect();
        if ends.is_empty() {
            terms.push(tree);
        } else {
            let keys = format!("{}::text", quote_literal(&index.definition));
            let entries = sql::index_entries("t.doc", &keys);
            terms.push(format!(
                "({tree} OR {} AND {})",
                sql::has_index_entries("t.doc", &keys),
                sql::entries_meet(&entries, &format!("ARRAY[{}]", ends.join(", ")))
            ));
        }
        terms.join(" AND ")
    }

    /// Adds the terms that restrict the shard's planner to the allowed indexes and, for `min` and `max`, the term that the
    /// document has a key in the span.
    pub fn obey(&mut self, restriction: &IndexRestriction<'_>) {
        self.terms.extend(restriction.term());
        if let IndexRestriction::Part { index: Some(index), span, .. } = restriction {
            let [keys, lo, hi] = self.part(index, span);
            self.terms.push(sql::key_within("t.doc", keys, lo, hi) + " IS NOT NULL");
        }
    }

    /// The index's keys and the bounds of a span, as arguments of [`sql::key_within`].
    pub fn part(&mut self, index: &Index, span: &Span) -> [String; 3] {
        let (lo, hi) = span.ends(&index.keys);
        let (lo, hi) = (self.param(Parameter::Bytes(lo)), self.param(Parameter::Bytes(hi)));
        [format!("{}::text", quote_literal(&index.definition)), lo, hi]
    }

    /// Adds conditions for a span of the index on `_id`, or of the shard key's own index, on the column that has its keys.
    fn keys_within(&mut self, collection: &Collection, keys: &IndexKeys, span: &Span) {
        if collection.key.is_unsharded() {
            self.terms.push("t.skey = ''::bytea".to_owned());
        }
        let column = if keys.is_of_id() { id_column(collection) } else { "t.skey" };
        for (corner, operator) in [(&span.min, ">="), (&span.max, "<")] {
            if let Some(corner) = corner {
                let key = self.param(Parameter::Bytes(corner.concat()));
                self.terms.push(format!("{column} {operator} {key}"));
            }
        }
    }

    pub fn matches(&mut self, query: &Query) {
        if !query.filter.is_empty() {
            let term = self.matched("t.doc", query);
            self.terms.push(term);
        }
    }

    /// The term that a document matches the filter.
    pub fn matched(&mut self, document: &str, query: &Query) -> String {
        let text = self.param(Parameter::Text(query.text()));
        sql::matches(document, text)
    }

    /// The version check and the filter's `$n`, if these are all the terms and no index is required.
    pub fn of_scan(&self) -> Option<(&str, &str)> {
        Some((self.terms.first()?, self.scanned_by.as_deref()?))
    }

    /// Some if nothing narrows a sequential scan and no index is required: with the text of the filter, or None for all documents.
    pub fn filter_of_scan(&self, search: &Search<'_>) -> Option<Option<String>> {
        if search.filter().is_empty() && matches!(search.restriction, IndexRestriction::None) {
            return Some(None);
        }
        self.of_scan().map(|_| Some(search.query.text()))
    }

    /// Adds a parameter and returns its `$n`.
    pub fn param(&mut self, value: Parameter) -> String {
        self.params.push(value);
        format!("${}", self.params.len())
    }

    pub fn and(&mut self, term: String) {
        self.terms.push(term);
    }

    pub fn into_statement(self, sql: String, columns: &'static [Column]) -> Statement {
        Statement { sql, params: self.params, columns }
    }

    /// The text of the WHERE clause.
    pub fn sql(&self) -> String {
        self.terms.join(" AND ")
    }

    /// Adds conditions on `skey` and `id`; returns whether the filter constrains them.
    fn keys(&mut self, search: &Search<'_>) -> bool {
        let (pattern, filter) = (&search.collection.key, search.filter());
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
            let skeys = self.ranges("t.skey", &search.keys, false, narrow);
            self.terms.extend(skeys);
            if ids.is_all() {
                return !search.keys.is_all();
            }
        }
        let ids = self.ranges("t.id", &ids, false, narrow);
        self.terms.extend(ids);
        true
    }

    /// Adds conditions on the index that the filter constrains most.
    fn best_index(&mut self, search: &Search<'_>) {
        if let Some((index, wanted)) = index_for(search, |_, _| false) {
            return self.index(index, &wanted);
        }
        for parts in search.filter().part().alternatives().into_iter().filter(|parts| parts.len() <= MAX_ALTERNATIVES) {
            if let Some(term) = self.alternatives(search.collection, &parts) {
                return self.terms.push(term);
            }
        }
    }

    /// Adds conditions on an index that narrows the search more than these keys of another index do; the shard's planner chooses
    /// between the two.
    pub fn narrower_than(&mut self, wanted: &Wanted, search: &Search<'_>) {
        if !matches!(search.restriction, IndexRestriction::None) {
            return;
        }
        let best = index_for(search, |_, _| false);
        let is_narrower = best.as_ref().is_some_and(|(_, narrower)| narrower.score() > wanted.score());
        if is_narrower || best.is_none() && wanted.is_all() {
            self.best_index(search);
        }
    }

    /// The condition of an `$or` whose branches each use an index; None if a branch has none.
    fn alternatives(&mut self, collection: &Collection, parts: &[Part<'_>]) -> Option<String> {
        let best = parts.iter().map(|part| best_of_part(collection, *part));
        let best: Vec<(&Index, Wanted)> = best.collect::<Option<_>>()?;
        let terms: Vec<String> = best.iter().filter_map(|(index, wanted)| self.in_either(index, wanted)).collect();
        Some(format!("({})", terms.join(" OR ")))
    }

    fn index(&mut self, index: &Index, wanted: &Wanted) {
        self.held_by(index);
        if wanted.is_all() {
            return;
        }
        let term = self.in_either(index, wanted);
        self.terms.extend(term);
    }

    /// Returns the condition that a wanted key is in the b-tree or among the entries.
    fn in_either(&mut self, index: &Index, wanted: &Wanted) -> Option<String> {
        if !index.keys.has_tree() {
            // All documents have entries, so a condition for all entries excludes nothing.
            return (!wanted.entries.is_all()).then(|| self.entry_in(index, wanted));
        }
        let tree = self.in_tree(index, wanted, &[])?;
        Some(match index.keys.has_entries() {
            true => format!("({tree} OR {})", self.among_entries(index, wanted)),
            false => tree,
        })
    }

    /// The condition on the columns of the b-tree; it excludes documents whose keys are entries.
    ///
    /// A `pinned` column has one wanted key, which the condition hides from PostgreSQL's planner: the planner would
    /// drop the column from an ORDER BY and not see that the scan has the order of all columns.
    pub fn in_tree(&mut self, index: &Index, wanted: &Wanted, pinned: &[usize]) -> Option<String> {
        let narrow = wanted.columns.first().is_some_and(KeyRanges::are_points);
        let mut terms = Vec::new();
        for (column, ranges) in wanted.columns.iter().enumerate() {
            let expression = index_expression("t.doc", index, column);
            match ranges.as_point().filter(|_| pinned.contains(&column)) {
                None => terms.extend(self.ranges(&expression, ranges, true, narrow)),
                Some(point) => {
                    let point = self.param(Parameter::Bytes(point.to_vec()));
                    terms.push(match column {
                        // On the first column, only this form keeps the index's order.
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
            terms.push(format!("{first} < {}", literal(IN_ENTRIES)));
        }
        (!terms.is_empty()).then(|| terms.join(" AND "))
    }

    /// Adds a comparison of rows of columns.
    fn row(&mut self, index: &Index, row: &RowBounds, terms: &mut Vec<String>) {
        for (keys, operator) in [(&row.least, ">="), (&row.greatest, "<=")] {
            let Some(keys) = keys else { continue };
            let columns = (0..keys.len()).map(|column| index_expression("t.doc", index, row.first + column));
            let columns: Vec<String> = columns.collect();
            let keys: Vec<String> = keys.iter().map(|key| self.param(Parameter::Bytes(key.clone()))).collect();
            terms.push(format!("ROW({}) {operator} ROW({})", columns.join(", "), keys.join(", ")));
        }
    }

    /// Returns the condition on the entries, with the same text as in the definition of the index.
    pub fn among_entries(&mut self, index: &Index, wanted: &Wanted) -> String {
        if wanted.entries.is_all() {
            let first = index_expression("t.doc", index, 0);
            return format!("{first} = {}", literal(IN_ENTRIES));
        }
        let entry = self.entry_in(index, wanted);
        let keys = quote_literal(&index.definition);
        format!("{} AND {entry}", sql::has_index_entries("t.doc", format_args!("{keys}::text")))
    }

    /// The term that an entry is in a wanted range.
    fn entry_in(&mut self, index: &Index, wanted: &Wanted) -> String {
        let end = |range: &KeyRange| range.hi.clone().unwrap_or_else(|| IN_ENTRIES.to_vec());
        let flat = wanted.entries.as_slice().iter().flat_map(|range| [range.lo.clone(), end(range)]).collect();
        let ranges = self.param(Parameter::BytesArray(flat));
        let keys = quote_literal(&index.definition);
        sql::entries_meet(&sql::index_entries("t.doc", format_args!("{keys}::text")), &format!("{ranges}::bytea[]"))
    }

    /// Adds the predicate of a partial index, with the same text as in its definition.
    pub fn held_by(&mut self, index: &Index) {
        if let Some(partial) = &index.partial {
            self.terms.push(sql::matches("t.doc", format_args!("{}::text", quote_literal(&partial.text))));
        }
    }

    /// Returns the condition that a column is in the ranges; None for all values. `narrow`: other conditions leave few rows, so
    /// bounds may be parameters. `below`: [`IN_ENTRIES`] is excluded.
    fn ranges(&mut self, column: &str, ranges: &KeyRanges, below: bool, narrow: bool) -> Option<String> {
        if ranges.is_all() {
            return None;
        }
        let slice = ranges.as_slice();
        let points: Option<Vec<Vec<u8>>> = slice.iter().map(|range| range.as_point().map(<[u8]>::to_vec)).collect();
        Some(match points {
            Some(mut points) if points.len() == 1 => {
                let point = self.param(Parameter::Bytes(points.swap_remove(0)));
                format!("{column} = {point}")
            }
            Some(points) => {
                let points = self.param(Parameter::BytesArray(points));
                format!("{column} = ANY ({points}::bytea[])")
            }
            None => {
                let hull = ranges.hull();
                let few = if slice.len() <= MAX_RANGES { slice } else { hull.as_slice() };
                let end = |range: &KeyRange| range.hi.clone().or_else(|| below.then(|| IN_ENTRIES.to_vec()));
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
        let mut bound = |key: &[u8]| if narrow { self.param(Parameter::Bytes(key.to_vec())) } else { literal(key) };
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

/// Returns a literal that means the same under every setting of `standard_conforming_strings`.
fn literal(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len() + 14);
    text.push_str(r"E'\\x");
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    text.push_str("'::bytea");
    text
}

/// Returns a column of an index as it is written in the index's definition: see `shard::table`.
pub fn index_expression(doc: &str, index: &Index, column: usize) -> String {
    sql::index_key(doc, format_args!("{}::text", quote_literal(&index.definition)), column)
}
