//! Translates conditions on columns to MongoDB's filters.
//!
//! A filter never excludes a row for which SQL's condition is true. It is *exact* if it selects no other row whose values all fit their
//! columns. Then PostgreSQL need not evaluate the condition again, provided that a value which does not fit is an error when its row is
//! read. The reasons, for each type:
//!
//! * Strings: filters compare them by their bytes. `=` means the same under every deterministic collation; an order only under C.
//! * Types: a comparison in MongoDB selects values of one type, and no missing ones, as SQL does with a column's type and NULL. `$ne` also
//!   selects other types and missing values, so the filter excludes null, too.
//! * Arrays: MongoDB also selects an array with a matching element, but an array does not fit the column.
//! * int2, int4, int8: a number that fits is an integer; MongoDB and SQL compare integers by value.
//! * float8, numeric: SQL rounds, prints and orders numbers in other ways (NaN is the greatest), so filters select more than the condition.
//! * Dates: MongoDB's have milliseconds. A bound with microseconds is rounded so that the same dates are selected. Infinite bounds select
//!   all or nothing.
//! * uuid: binary values with subtype 4 and 16 bytes are ordered by their bytes in both. ObjectIds are compared only for equality.

use super::bound::Bound::{self, Always, Never};
use super::bound::{all, any, compare, contains_value, has_key, like, member, not_null, push_step, text};
use super::column::Layout;
use super::matching::Matching;
use crate::pg::fdw::Translation;
use crate::pg::fdw::clause::{Clause, Collation, Compared, Operator, Term};
use crate::pg::fdw::value::{Scalar, SqlValue};
use serde::{Deserialize, Serialize};
use serde_json::json;

/// A condition. `operand` is the number of its operand.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Condition {
    All(Vec<Condition>),
    Any(Vec<Condition>),
    Compare {
        path: String,
        operator: Operator,
        operand: usize,
        matching: Matching,
    },
    Member {
        path: String,
        is_negated: bool,
        operand: usize,
        matching: Matching,
    },
    /// null or missing; `exists`: the negated condition selects every value at the path, also null
    Null {
        path: String,
        is_negated: bool,
        exists: bool,
    },
    Is {
        path: String,
        value: bool,
    },
    /// `LIKE` the pattern in the operand
    Like {
        path: String,
        operand: usize,
    },
    Contains {
        path: String,
        operand: usize,
    },
    HasKey {
        operand: usize,
    },
    /// the text of a value, or a number that is cast from it
    Text {
        path: String,
        operator: Operator,
        operand: usize,
        is_number: bool,
    },
    TextMember {
        path: String,
        operand: usize,
    },
}

/// Translates conditions of one table.
pub struct Translator<'a> {
    pub layout: &'a Layout,
    /// returns true if the database's own collation orders strings by their bytes
    pub bytes_by_default: &'a dyn Fn() -> bool,
}

/// A translated condition.
struct Part {
    condition: Condition,
    is_exact: bool,
    /// columns that cannot be NULL in rows for which the condition is true
    not_null: Vec<i16>,
}

/// The deepest nesting of conditions that shards evaluate. Plans hold conditions as JSON, whose parser limits nesting.
const MAX_DEPTH: usize = 32;

impl Translator<'_> {
    pub fn translate(&self, clause: &Clause) -> Option<Translation> {
        let Part { condition, is_exact, not_null } = self.part(clause, 0)?;
        let condition = serde_json::to_value(condition).ok()?;
        Some(Translation { condition, is_exact: is_exact && self.layout.is_strict(), not_null })
    }

    fn part(&self, clause: &Clause, depth: usize) -> Option<Part> {
        if depth > MAX_DEPTH {
            return None;
        }
        let inner = |clause| self.part(clause, depth + 1);
        let part = |condition, is_exact, not_null| Some(Part { condition, is_exact, not_null });
        match clause {
            Clause::Other => None,
            Clause::Compare { .. } | Clause::Member { .. } => self.comparison(clause),
            Clause::All(clauses) => {
                let parts: Vec<Part> = clauses.iter().filter_map(inner).collect();
                if parts.is_empty() {
                    return None;
                }
                let is_exact = parts.len() == clauses.len() && parts.iter().all(|part| part.is_exact);
                let not_null = parts.iter().flat_map(|part| part.not_null.clone()).collect();
                part(Condition::All(parts.into_iter().map(|part| part.condition).collect()), is_exact, not_null)
            }
            Clause::Any(clauses) => {
                let parts: Vec<Part> = clauses.iter().map(inner).collect::<Option<_>>()?;
                let is_exact = parts.iter().all(|part| part.is_exact);
                part(Condition::Any(parts.into_iter().map(|part| part.condition).collect()), is_exact, Vec::new())
            }
            Clause::IsNull { column: number, is_negated } => {
                let column = self.layout.column(*number)?;
                if column.path.is_empty() || !is_negated && !self.layout.is_strict() {
                    return None;
                }
                let (path, is_negated, exists) = (column.path.clone(), *is_negated, !column.is_scalar());
                let not_null = if is_negated { vec![*number] } else { Vec::new() };
                part(Condition::Null { path, is_negated, exists }, column.is_scalar(), not_null)
            }
            Clause::Is { column: number, value } => {
                let column = self.layout.column(*number)?;
                let is_bool = column.kind.scalar == Scalar::Bool && column.is_scalar();
                let condition = Condition::Is { path: column.path.clone(), value: *value };
                is_bool.then_some(Part { condition, is_exact: true, not_null: vec![*number] })
            }
            Clause::Like { column: number, operand, collation } => {
                let column = self.layout.column(*number)?;
                let is_text = column.kind.scalar == Scalar::Text && column.is_scalar() && !column.is_object_id;
                if !is_text || *collation == Collation::Nondeterministic {
                    return None;
                }
                part(Condition::Like { path: column.path.clone(), operand: *operand }, false, vec![*number])
            }
            Clause::Contains { column: number, operand } => {
                let column = self.layout.column(*number)?;
                let is_json = column.kind.scalar == Scalar::Jsonb && !column.kind.is_array;
                let condition = Condition::Contains { path: column.path.clone(), operand: *operand };
                is_json.then_some(Part { condition, is_exact: false, not_null: Vec::new() })
            }
            Clause::HasKey { column: number, operand } => {
                let column = self.layout.column(*number)?;
                let condition = Condition::HasKey { operand: *operand };
                // In a column that is not the whole document, `?` is also true for an array of strings.
                column.path.is_empty().then_some(Part { condition, is_exact: false, not_null: Vec::new() })
            }
        }
    }

    /// Translates a comparison with a value, or with the elements of an array.
    fn comparison(&self, clause: &Clause) -> Option<Part> {
        let part = |condition, is_exact, not_null| Some(Part { condition, is_exact, not_null });
        match clause {
            Clause::Compare { term: Term::Column(number, collation), operator, operand, kind } => {
                let column = self.layout.column(*number)?;
                let matching = Matching::of(column, *kind)?;
                if !matching.has(*operator, *collation, self.bytes_by_default) {
                    return None;
                }
                let (path, operator, operand) = (column.path.clone(), *operator, *operand);
                part(Condition::Compare { path, operator, operand, matching }, matching.is_exact(), vec![*number])
            }
            Clause::Member { term: Term::Column(number, collation), is_negated, operand, kind } => {
                let column = self.layout.column(*number)?;
                let matching = Matching::of(column, *kind)?;
                if !matching.has(Operator::Equal, *collation, self.bytes_by_default) {
                    return None;
                }
                let (path, is_negated, operand) = (column.path.clone(), *is_negated, *operand);
                // `<> ALL` of an empty array is also true for NULL.
                let not_null = if is_negated { Vec::new() } else { vec![*number] };
                part(Condition::Member { path, is_negated, operand, matching }, matching.is_exact(), not_null)
            }
            Clause::Compare { term: Term::Text { column, path, compared }, operator, operand, kind: _ } => {
                let (path, operator) = (self.path(*column, path)?, *operator);
                let is_number = is_number(*compared)?;
                if !is_number && !matches!(operator, Operator::Equal | Operator::NotEqual) {
                    return None;
                }
                part(Condition::Text { path, operator, operand: *operand, is_number }, false, Vec::new())
            }
            Clause::Member { term: Term::Text { column, path, compared }, is_negated, operand, kind: _ } => {
                let path = self.path(*column, path)?;
                if *is_negated || is_number(*compared)? {
                    return None;
                }
                part(Condition::TextMember { path, operand: *operand }, false, Vec::new())
            }
            _ => None,
        }
    }

    /// The dotted path of steps below a jsonb column; None if MongoDB would find another value there.
    fn path(&self, number: i16, steps: &[String]) -> Option<String> {
        let column = self.layout.column(number)?;
        if column.kind.scalar != Scalar::Jsonb || column.kind.is_array || steps.is_empty() {
            return None;
        }
        let mut path = column.path.clone();
        for step in steps {
            push_step(&mut path, step)?;
        }
        Some(path)
    }
}

/// True if a text is compared as a number; false if it is compared as a string under a collation in which only strings with equal
/// bytes are equal; None otherwise.
fn is_number(compared: Compared) -> Option<bool> {
    match compared {
        Compared::AsText(Collation::Nondeterministic) => None,
        Compared::AsText(Collation::Bytes | Collation::Default | Collation::Deterministic) => Some(false),
        Compared::Cast(kind) => {
            let is_number =
                matches!(kind.scalar, Scalar::Int2 | Scalar::Int4 | Scalar::Int8 | Scalar::Float8 | Scalar::Numeric);
            is_number.then_some(true)
        }
    }
}

impl Condition {
    /// Returns the condition's filter with these operands.
    pub fn bind(&self, operands: &[Option<SqlValue>]) -> Bound {
        let value = |number: usize| operands.get(number).and_then(Option::as_ref);
        match self {
            Condition::All(parts) => all(parts.iter().map(|part| part.bind(operands))),
            Condition::Any(parts) => any(parts.iter().map(|part| part.bind(operands))),
            Condition::Compare { path, operator, operand, matching } => match value(*operand) {
                Some(value) => compare(path, *operator, value, *matching),
                None => Never,
            },
            Condition::Member { path, is_negated, operand, matching } => match value(*operand) {
                Some(SqlValue::Array(items)) => member(path, *is_negated, items, *matching),
                Some(SqlValue::Unknown(number)) => {
                    let operator = if *is_negated { "$nin" } else { "$in" };
                    Bound::Filter(json!({path: {operator: format!("${number}")}}))
                }
                Some(_) => Always,
                None => Never,
            },
            Condition::Null { path, is_negated, exists } => Bound::Filter(match (is_negated, exists) {
                (false, _) => json!({path: null}),
                (true, false) => not_null(path),
                (true, true) => json!({path: {"$exists": true}}),
            }),
            Condition::Is { path, value } => Bound::Filter(json!({path: value})),
            Condition::Like { path, operand } => match value(*operand) {
                Some(SqlValue::Text(pattern)) => like(path, pattern),
                Some(SqlValue::Unknown(number)) => Bound::Filter(json!({path: {"$gte": format!("${number}")}})),
                Some(_) => Always,
                None => Never,
            },
            Condition::Contains { path, operand } => value(*operand).map_or(Never, |value| contains_value(path, value)),
            Condition::HasKey { operand } => value(*operand).map_or(Never, has_key),
            Condition::Text { path, operator, operand, is_number } => match value(*operand) {
                Some(value) => text(path, *operator, value, *is_number),
                None => Never,
            },
            Condition::TextMember { path, operand } => match value(*operand) {
                Some(SqlValue::Array(items)) => {
                    any(items.iter().flatten().map(|item| text(path, Operator::Equal, item, false)))
                }
                Some(SqlValue::Unknown(number)) => Bound::Filter(json!({path: {"$in": format!("${number}")}})),
                Some(_) => Always,
                None => Never,
            },
        }
    }

    /// Adds the paths at which the condition proves that values fit: each document that its filter selects has a value there that
    /// fits the column, unless there is an array on the path or the string is too long.
    pub fn proves<'c>(&'c self, found: &mut Vec<&'c str>) {
        match self {
            Condition::All(parts) => parts.iter().for_each(|part| part.proves(found)),
            Condition::Compare { path, operator: Operator::Equal, matching, .. }
            | Condition::Member { path, is_negated: false, matching, .. }
                if matching.is_exact() =>
            {
                found.push(path);
            }
            Condition::Compare { path, operator, matching: Matching::Text, .. } if *operator != Operator::NotEqual => {
                found.push(path);
            }
            Condition::Is { path, .. } => found.push(path),
            _ => {}
        }
    }

    /// Adds the paths on which an index can find the rows for which the condition is true.
    pub fn narrowing_paths<'c>(&'c self, found: &mut Vec<&'c str>) {
        match self {
            Condition::All(parts) => parts.iter().for_each(|part| part.narrowing_paths(found)),
            Condition::Compare { path, operator, .. } if *operator != Operator::NotEqual => found.push(path),
            Condition::Member { path, is_negated: false, .. }
            | Condition::Like { path, .. }
            | Condition::TextMember { path, .. } => {
                found.push(path);
            }
            Condition::Is { path, .. } => found.push(path),
            Condition::Text { path, operator: Operator::Equal, is_number: false, .. } => found.push(path),
            _ => {}
        }
    }
}
