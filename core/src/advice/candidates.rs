//! Chooses shard keys that are worth a simulation: fields of indexes, fields that statements compare, and fields of the documents; alone,
//! hashed, and combined.

use super::characteristics::{Counted, Trend};
use super::sample::Sample;
use super::statement::Statement;
use crate::budget;
use crate::values::document::element::Element;
use crate::values::key::KeyPattern;
use crate::values::key::pattern::FieldKind;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// The most candidates.
const MAX_CANDIDATES: usize = 40;
/// The most fields that are used of an index.
const MAX_INDEX_FIELDS: usize = 4;
/// The most fields that are used of each kind: those that statements compare with values, those that they compare with ranges, and those of
/// the documents.
const MAX_FIELDS: usize = 6;
/// The most fields that are examined of a document and of a statement.
const MAX_KNOWN_FIELDS: usize = 64;

/// Why a key is a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// there is an index on it
    Index,
    /// statements look for its fields
    Statements,
    /// documents have its fields
    Documents,
}

impl Origin {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Index => "index",
            Self::Statements => "statements",
            Self::Documents => "documents",
        }
    }
}

/// The fields that statements compare, the one that most statements compare first.
#[derive(Debug, Default)]
struct Compared {
    /// compared with single values
    equal: Vec<String>,
    /// compared with ranges
    ranged: Vec<String>,
}

impl Compared {
    fn of(statements: &[Statement]) -> Self {
        let (mut equal, mut ranged) = (BTreeMap::new(), BTreeMap::new());
        for statement in statements {
            for path in statement.filter.fields_read().into_iter().flatten().take(MAX_KNOWN_FIELDS) {
                budget::step();
                let ranges = statement.filter.ranges_of(&path);
                if !ranges.is_all() {
                    let counts = if ranges.are_points() { &mut equal } else { &mut ranged };
                    *counts.entry(path).or_insert(0_usize) += 1;
                }
            }
        }
        Self { equal: most_common(equal), ranged: most_common(ranged) }
    }
}

fn most_common(counts: BTreeMap<String, usize>) -> Vec<String> {
    let mut counts: Vec<(String, usize)> = counts.into_iter().collect();
    counts.sort_by_key(|(_, count)| Reverse(*count));
    counts.truncate(MAX_FIELDS);
    counts.into_iter().map(|(path, _)| path).collect()
}

/// Top-level fields that all documents of a sample have, with scalar values; but not `_id`.
fn fields(sample: &Sample) -> Vec<String> {
    let mut known: Option<Vec<String>> = None;
    for document in sample.documents() {
        match &mut known {
            None => {
                let scalar = document.iter().filter(|(name, value)| *name != "_id" && is_scalar(&Element::of(*value)));
                let usable = |name: &str| !name.is_empty() && !name.contains('.') && !name.starts_with('$');
                let names = scalar.map(|(name, _)| name).filter(|name| usable(name));
                known = Some(names.take(MAX_KNOWN_FIELDS).map(str::to_owned).collect());
            }
            Some(known) => known.retain(|name| {
                budget::step();
                document.get(name).is_some_and(|value| is_scalar(&Element::of(value)))
            }),
        }
    }
    known.unwrap_or_default()
}

fn is_scalar(value: &Element<'_>) -> bool {
    !matches!(value, Element::Array(_) | Element::Object(_) | Element::Undefined | Element::Null)
}

/// The documents' fields, by what their values are like.
#[derive(Debug, Default)]
struct Known {
    /// fields that ascend with the insertion, and have few values
    coarse: Vec<String>,
    /// other fields, the one with the most values first
    plain: Vec<String>,
}

impl Known {
    fn of(sample: &Sample) -> Self {
        let mut found = Self::default();
        let mut plain: Vec<(u64, String)> = Vec::new();
        for name in fields(sample) {
            let pattern = pattern(&[(&name, FieldKind::Ranged)]);
            let Ok(keys) = sample.keys(&pattern) else { continue };
            let counted = Counted::of(&keys);
            let ascends = Trend::of(&pattern, &keys).0 == Trend::Monotonic;
            if ascends && counted.distinct >= 3 && counted.is_coarse() {
                found.coarse.push(name);
            } else if counted.distinct > 1 {
                plain.push((counted.distinct, name));
            }
        }
        plain.sort_by_key(|(values, _)| Reverse(*values));
        plain.truncate(MAX_FIELDS);
        found.coarse.truncate(2);
        found.plain = plain.into_iter().map(|(_, name)| name).collect();
        found
    }
}

fn pattern(fields: &[(&str, FieldKind)]) -> KeyPattern {
    KeyPattern { fields: fields.iter().map(|(path, kind)| ((*path).to_owned(), *kind)).collect() }
}

/// Collects candidates: no key twice, and only keys that all documents can have.
struct Candidates<'a> {
    sample: &'a Sample,
    found: Vec<(KeyPattern, Origin)>,
}

impl Candidates<'_> {
    fn add(&mut self, pattern: KeyPattern, origin: Origin) {
        let mut paths: Vec<&str> = pattern.fields.iter().map(|(path, _)| path.as_str()).collect();
        paths.sort_unstable();
        paths.dedup();
        let is_usable = paths.len() == pattern.fields.len()
            && self.found.len() < MAX_CANDIDATES
            && self.found.iter().all(|(known, _)| *known != pattern)
            // The pattern's own rules, such as those on paths.
            && KeyPattern::parse(&pattern.to_json()).is_ok()
            && self.sample.keys(&pattern).is_ok();
        if is_usable {
            self.found.push((pattern, origin));
        }
    }

    fn ranged(&mut self, paths: &[&str], origin: Origin) {
        let fields: Vec<_> = paths.iter().map(|path| (*path, FieldKind::Ranged)).collect();
        self.add(pattern(&fields), origin);
    }

    fn hashed(&mut self, path: &str, origin: Origin) {
        self.add(pattern(&[(path, FieldKind::Hashed)]), origin);
    }
}

/// The candidates, given the paths of the fields of each index.
pub fn candidates(sample: &Sample, statements: &[Statement], indexes: &[Vec<String>]) -> Vec<(KeyPattern, Origin)> {
    let (compared, known) = (Compared::of(statements), Known::of(sample));
    let mut found = Candidates { sample, found: Vec::new() };
    for index in indexes {
        let paths: Vec<&str> = index.iter().map(String::as_str).take(MAX_INDEX_FIELDS).collect();
        for length in [paths.len(), 1, 2] {
            found.ranged(&paths[..length.min(paths.len())], Origin::Index);
        }
    }
    for equal in compared.equal.iter().map(String::as_str) {
        found.ranged(&[equal], Origin::Statements);
        found.hashed(equal, Origin::Statements);
        found.ranged(&[equal, "_id"], Origin::Statements);
        for ranged in &compared.ranged {
            found.ranged(&[equal, ranged], Origin::Statements);
        }
        for coarse in &known.coarse {
            found.ranged(&[coarse, equal], Origin::Statements);
        }
    }
    if let [first, second, ..] = compared.equal.as_slice() {
        found.ranged(&[first, second], Origin::Statements);
        found.ranged(&[second, first], Origin::Statements);
    }
    found.ranged(&["_id"], Origin::Documents);
    found.hashed("_id", Origin::Documents);
    for field in &known.plain {
        found.ranged(&[field], Origin::Documents);
    }
    for coarse in &known.coarse {
        found.ranged(&[coarse], Origin::Documents);
        for field in &known.plain {
            found.ranged(&[coarse, field], Origin::Documents);
        }
    }
    found.found
}
