//! Conditions on columns as filters of MongoDB.
//!
//! A filter never excludes a row for which SQL's condition is true. It is *exact* if, in addition, it selects no other row whose columns
//! all fit: then PostgreSQL need not evaluate the condition again, as long as a value that does not fit is an error, which the row
//! becomes when it is read. Why each is so:
//!
//! * Strings are compared by their bytes here; `=` means the same under every deterministic collation, an order under C only.
//! * A comparison in MongoDB selects values of one type only, and no missing ones, as a column's type and NULL do. `$ne` also selects those, so
//!   null is excluded beside it.
//! * Arrays: MongoDB also selects an array with a matching element. It does not fit the column.
//! * int2, int4, int8: numbers of documents that fit are integers, which both compare by value.
//! * float8 and numeric round, print and order numbers in their own ways (NaN is the greatest): their filters are wider than the condition.
//! * Dates have milliseconds: a bound with microseconds becomes the next one in its direction. Infinite bounds select all or nothing.
//! * uuid: binary values of subtype 4 and 16 bytes are ordered by their bytes. A column with the type objectId has one type, too.

use super::column::{Column, DAY_MS, EPOCH_MS, Layout};
use super::options;
use crate::pg::fdw::Translation;
use crate::pg::fdw::clause::{Clause, Collation, Compared, Operator, Term};
use crate::pg::fdw::value::{Kind, Scalar, SqlValue};
use docshard_core::values::document::MAX_RECURSION;
use docshard_core::values::document::ext_json;
use docshard_core::values::document::number::Number;
use docshard_core::values::document::raw;
use docshard_core::values::document::value::Value;
use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};

/// A condition, whose operands have numbers.
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
    /// null or missing; `exists`: any value counts as not null
    Null {
        path: String,
        is_negated: bool,
        exists: bool,
    },
    Is {
        path: String,
        value: bool,
    },
    /// begins with what a pattern begins with
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

/// How values are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Matching {
    Text,
    ObjectId,
    Integer { least: i64, greatest: i64 },
    Bool,
    Float,
    Numeric,
    Date,
    Timestamp,
    Uuid,
}

/// A condition with the values of its operands.
#[derive(Clone, Debug, PartialEq)]
pub enum Bound {
    /// it may be true for every row
    Always,
    Never,
    Filter(Json),
}

use Bound::{Always, Never};

impl Matching {
    /// How a column's values are compared with an operand of this type; None: by PostgreSQL only.
    fn of(column: &Column, operand: Kind) -> Option<Self> {
        if !column.is_scalar() || operand.is_array || column.path.is_empty() {
            return None;
        }
        let (least, greatest) = column.integers();
        Some(match (column.kind.scalar, operand.scalar) {
            (Scalar::Text, Scalar::Text) | (Scalar::Bytea, Scalar::Bytea) if column.is_object_id => Self::ObjectId,
            (Scalar::Text, Scalar::Text) => Self::Text,
            (Scalar::Int2 | Scalar::Int4 | Scalar::Int8, Scalar::Int2 | Scalar::Int4 | Scalar::Int8) => {
                Self::Integer { least, greatest }
            }
            (Scalar::Bool, Scalar::Bool) => Self::Bool,
            (Scalar::Float8, Scalar::Float8) => Self::Float,
            (Scalar::Numeric, Scalar::Numeric) if column.kind.rounding.is_none() => Self::Numeric,
            (Scalar::Date, Scalar::Date) => Self::Date,
            (Scalar::Timestamp, Scalar::Timestamp) | (Scalar::TimestampTz, Scalar::TimestampTz) => Self::Timestamp,
            (Scalar::Uuid, Scalar::Uuid) => Self::Uuid,
            _ => return None,
        })
    }

    /// True if filters are exact.
    fn is_exact(self) -> bool {
        !matches!(self, Self::Float | Self::Numeric)
    }

    /// True if MongoDB can compare by this operator.
    fn has(self, operator: Operator, collation: Collation, bytes_by_default: impl Fn() -> bool) -> bool {
        let is_equality = matches!(operator, Operator::Equal | Operator::NotEqual);
        match self {
            Self::ObjectId => is_equality && collation != Collation::Nondeterministic,
            Self::Text if is_equality => collation != Collation::Nondeterministic,
            Self::Text => orders_by_bytes(collation, bytes_by_default),
            _ => true,
        }
    }
}

/// True if strings are ordered by their bytes.
pub fn orders_by_bytes(collation: Collation, bytes_by_default: impl Fn() -> bool) -> bool {
    collation == Collation::Bytes || collation == Collation::Default && bytes_by_default()
}

/// Translates conditions of one table.
pub struct Translator<'a> {
    pub layout: &'a Layout,
    /// whether the database's own collation orders by bytes
    pub bytes_by_default: &'a dyn Fn() -> bool,
}

/// A condition, and whether it is exact.
struct Part {
    condition: Condition,
    is_exact: bool,
    not_null: Vec<i16>,
}

/// The deepest nesting of conditions that shards evaluate. A plan is JSON, whose nesting its parser limits.
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
                // Of another jsonb, an array of strings would have them as keys.
                column.path.is_empty().then_some(Part { condition, is_exact: false, not_null: Vec::new() })
            }
        }
    }

    /// A comparison with a value, or with the elements of an array.
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
                // Of an empty array, `<> ALL` is true for NULL, too.
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

/// True if a text is compared as a number, false if as a string of which equal ones have equal bytes; None: in another way.
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

fn contains_value(path: &str, value: &SqlValue) -> Bound {
    match value {
        // Of a deeper one, only a part is read.
        SqlValue::Jsonb(bytes) if !raw::nests_within(bytes, MAX_RECURSION) => Always,
        SqlValue::Jsonb(bytes) => {
            let mut left = MAX_CONTAINED;
            contains(path, &Value::from_raw(raw::root(bytes)), &mut left)
        }
        SqlValue::Unknown(number) => Bound::Filter(json!({"$contains": format!("${number}")})),
        _ => Always,
    }
}

fn has_key(value: &SqlValue) -> Bound {
    match value {
        SqlValue::Text(key) => {
            let mut path = String::new();
            push_step(&mut path, key).map_or(Always, |()| Bound::Filter(json!({path: {"$exists": true}})))
        }
        SqlValue::Unknown(number) => Bound::Filter(json!({format!("${number}"): {"$exists": true}})),
        _ => Always,
    }
}

/// Adds a field's name to a path; None if the name has a meaning in paths, or is a position in an array that only PostgreSQL knows.
fn push_step(path: &mut String, step: &str) -> Option<()> {
    let is_other_number = step.starts_with(|c: char| c.is_whitespace() || c == '-' || c == '+')
        || step.starts_with('0') && step.len() > 1;
    if step.contains('.') || is_other_number || options::check_path(step).is_err() {
        return None;
    }
    if !path.is_empty() {
        path.push('.');
    }
    path.push_str(step);
    Some(())
}

impl Condition {
    /// Returns the filter with these operands.
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

    /// Adds the paths at which a document has a value that fits its column if the condition's filter selects it, unless it is in an array, or a string
    /// too long.
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

    /// The paths that the condition compares so that an index can find them.
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

/// The filter of all conditions. Conditions on different fields become one object. An object that a field has is one of operators.
pub fn all(bounds: impl Iterator<Item = Bound>) -> Bound {
    let mut filters: Vec<Json> = Vec::new();
    for bound in bounds {
        match bound {
            Always => {}
            Never => return Never,
            Bound::Filter(filter) => filters.push(filter),
        }
    }
    if filters.is_empty() {
        return Always;
    }
    let mut merged = serde_json::Map::new();
    for filter in &filters {
        for (name, value) in filter.as_object().into_iter().flatten() {
            let is_operators = value.is_object() && !is_extended(value);
            let value = if is_operators || name.starts_with('$') { value.clone() } else { json!({"$eq": value}) };
            match merged.get_mut(name) {
                None => {
                    merged.insert(name.clone(), value);
                }
                Some(Json::Object(known)) if !name.starts_with('$') && joinable(known, &value) => {
                    known.extend(value.as_object().cloned().unwrap_or_default());
                }
                Some(_) => return Bound::Filter(json!({"$and": filters})),
            }
        }
    }
    for value in merged.values_mut() {
        if let Some(object) = value.as_object()
            && object.len() == 1
            && let Some(equal) = object.get("$eq")
        {
            *value = equal.clone();
        }
    }
    Bound::Filter(Json::Object(merged))
}

/// True for a value of a type that JSON lacks, such as `{"$oid": …}`; not for operators.
fn is_extended(json: &Json) -> bool {
    json.get("$regex").is_none() && ext_json::from_json(json).is_ok_and(|value| !matches!(value, Value::Object(_)))
}

/// True if the operators have different names.
fn joinable(known: &serde_json::Map<String, Json>, value: &Json) -> bool {
    value.as_object().is_some_and(|value| !value.keys().any(|name| known.contains_key(name)))
}

fn any(bounds: impl Iterator<Item = Bound>) -> Bound {
    let mut filters: Vec<Json> = Vec::new();
    for bound in bounds {
        match bound {
            Always => return Always,
            Never => {}
            Bound::Filter(filter) => filters.push(filter),
        }
    }
    match filters.len() {
        0 => Never,
        1 => Bound::Filter(filters.remove(0)),
        _ => Bound::Filter(json!({"$or": filters})),
    }
}

fn not_null(path: &str) -> Json {
    json!({path: {"$ne": null}})
}

fn name(operator: Operator) -> &'static str {
    match operator {
        Operator::Less => "$lt",
        Operator::LessOrEqual => "$lte",
        Operator::Equal => "$eq",
        Operator::GreaterOrEqual => "$gte",
        Operator::Greater => "$gt",
        Operator::NotEqual => "$ne",
    }
}

/// A comparison with a value that MongoDB compares as SQL does.
fn plain(path: &str, operator: Operator, value: Json) -> Bound {
    Bound::Filter(match operator {
        Operator::Equal => json!({path: {"$eq": value}}),
        Operator::NotEqual => json!({path: {"$nin": [value, null]}}),
        _ => json!({path: {name(operator): value}}),
    })
}

/// A comparison with a value that no value of the column equals: for `=` nothing, for `<>` all.
fn different(path: &str, operator: Operator) -> Bound {
    match operator {
        Operator::NotEqual => Bound::Filter(not_null(path)),
        _ => Never,
    }
}

fn compare(path: &str, operator: Operator, value: &SqlValue, matching: Matching) -> Bound {
    if let SqlValue::Unknown(number) = value {
        return plain(path, operator, format!("${number}").into());
    }
    match (matching, value) {
        (Matching::Text, SqlValue::Text(text)) => plain(path, operator, text.clone().into()),
        (Matching::Bool, SqlValue::Bool(value)) => plain(path, operator, (*value).into()),
        (Matching::Uuid, SqlValue::Uuid(bytes)) => {
            plain(path, operator, ext_json::to_json(&Value::Binary(4, bytes.to_vec())))
        }
        (Matching::Integer { least, greatest }, SqlValue::Int(value)) => {
            let is_equality = matches!(operator, Operator::Equal | Operator::NotEqual);
            if is_equality && !(least..=greatest).contains(value) {
                return different(path, operator);
            }
            plain(path, operator, (*value).into())
        }
        (Matching::ObjectId, SqlValue::Text(_) | SqlValue::Bytes(_)) => match object_id(value) {
            Some(id) => plain(path, operator, id),
            None => different(path, operator),
        },
        (Matching::Timestamp, SqlValue::Timestamp(micros)) => {
            let is_infinite = matches!(*micros, i64::MIN | i64::MAX);
            date(path, operator, *micros, is_infinite, |micros| (micros.div_euclid(1000), micros.rem_euclid(1000) != 0))
        }
        (Matching::Date, SqlValue::Date(days)) => {
            let is_infinite = matches!(*days, i32::MIN | i32::MAX);
            let days = i64::from(*days);
            date(path, operator, days, is_infinite, |days| (days * DAY_MS, false))
        }
        (Matching::Float, SqlValue::Float(value)) => number(path, operator, *value),
        (Matching::Numeric, SqlValue::Numeric(text)) => {
            if operator == Operator::Equal
                && let Some(integer) = text.parse::<i64>().ok().filter(|integer| integer.unsigned_abs() < 1 << 53)
            {
                return plain(path, operator, integer.into());
            }
            match text.as_str() {
                "NaN" => number(path, operator, f64::NAN),
                // Beyond double's range is infinite.
                text => text.parse().map_or(Always, |value| number(path, operator, value)),
            }
        }
        _ => Always,
    }
}

/// The ObjectId that an operand is; None if it is none, or not as the column shows it.
fn object_id(value: &SqlValue) -> Option<Json> {
    let text = match value {
        SqlValue::Bytes(bytes) if bytes.len() == 12 => super::column::hex(bytes),
        SqlValue::Text(text) => text.clone(),
        _ => return None,
    };
    let is_hex = text.len() == 24 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    is_hex.then(|| json!({"$oid": text}))
}

/// A comparison with a date. `millis` returns the milliseconds since 2000 that are not greater, and whether the date is greater than these.
fn date(path: &str, operator: Operator, at: i64, is_infinite: bool, millis: impl Fn(i64) -> (i64, bool)) -> Bound {
    use Operator::{Equal, Greater, GreaterOrEqual, Less, LessOrEqual, NotEqual};
    if is_infinite {
        let is_all = match operator {
            NotEqual => true,
            Less | LessOrEqual => at > 0,
            Greater | GreaterOrEqual => at < 0,
            Equal => false,
        };
        return if is_all { Bound::Filter(not_null(path)) } else { Never };
    }
    let (floor, is_more) = millis(at);
    let value = |millis: i64| ext_json::to_json(&Value::Date(millis + EPOCH_MS));
    match operator {
        Equal | NotEqual if is_more => different(path, operator),
        Less | GreaterOrEqual if is_more => plain(path, operator, value(floor + 1)),
        _ => plain(path, operator, value(floor)),
    }
}

/// A filter that matches at least the numbers for which the comparison as float8 or numeric is true. Conversions round, so its bounds are a
/// few units in the last place wider.
fn number(path: &str, operator: Operator, value: f64) -> Bound {
    let double = |value: f64| ext_json::to_json(&Value::Number(Number::Double(value)));
    let nan = || double(f64::NAN);
    let (lo, hi) = around(value);
    Bound::Filter(match operator {
        Operator::Equal if value.is_nan() => json!({path: {"$eq": nan()}}),
        Operator::Equal => json!({path: {"$gte": double(lo), "$lte": double(hi)}}),
        Operator::NotEqual => not_null(path),
        Operator::Less | Operator::LessOrEqual if value.is_nan() => not_null(path),
        Operator::Less | Operator::LessOrEqual => json!({path: {"$lte": double(hi)}}),
        Operator::Greater if value.is_nan() => return Never,
        Operator::GreaterOrEqual if value.is_nan() => json!({path: {"$eq": nan()}}),
        Operator::Greater | Operator::GreaterOrEqual => {
            json!({"$or": [{path: {"$gte": double(lo)}}, {path: {"$eq": nan()}}]})
        }
    })
}

fn around(value: f64) -> (f64, f64) {
    (0..4).fold((value, value), |(lo, hi), _| (lo.next_down(), hi.next_up()))
}

fn member(path: &str, is_negated: bool, items: &[Option<SqlValue>], matching: Matching) -> Bound {
    if is_negated {
        // A NULL among them makes the condition NULL or false; without elements it is true.
        if items.is_empty() {
            return Always;
        }
        if items.iter().any(Option::is_none) {
            return Never;
        }
        return all_of(items.iter().flatten().map(|item| compare(path, Operator::NotEqual, item, matching)), path);
    }
    let mut equal = Vec::new();
    let mut others = Vec::new();
    for item in items.iter().flatten() {
        match compare(path, Operator::Equal, item, matching) {
            Always => return Always,
            Never => {}
            Bound::Filter(filter) => match filter.get(path).and_then(|condition| condition.get("$eq")) {
                Some(value) => equal.push(value.clone()),
                None => others.push(Bound::Filter(filter)),
            },
        }
    }
    if !equal.is_empty() {
        others.push(Bound::Filter(json!({path: {"$in": equal}})));
    }
    any(others.into_iter())
}

/// The values that several `<>` exclude.
fn all_of(bounds: impl Iterator<Item = Bound>, path: &str) -> Bound {
    let mut excluded = vec![Json::Null];
    for bound in bounds {
        match bound {
            Always | Never => return bound,
            Bound::Filter(filter) => {
                let values = filter.get(path).and_then(|condition| condition.get("$nin")).and_then(Json::as_array);
                excluded.extend(values.into_iter().flatten().filter(|value| !value.is_null()).cloned());
            }
        }
    }
    Bound::Filter(json!({path: {"$nin": excluded}}))
}

/// The most characters of a prefix that narrow a search.
const MAX_PREFIX: usize = 1000;

/// Strings that begin with what the pattern begins with.
fn like(path: &str, pattern: &str) -> Bound {
    let mut prefix = String::new();
    let mut characters = pattern.chars();
    let mut is_whole = true;
    for length in 0.. {
        let Some(character) = characters.next() else { break };
        match character {
            _ if length == MAX_PREFIX => {
                is_whole = false;
                break;
            }
            '%' | '_' => {
                is_whole = false;
                break;
            }
            '\\' => match characters.next() {
                Some(escaped) => prefix.push(escaped),
                // PostgreSQL reports the error.
                None => return Always,
            },
            other => prefix.push(other),
        }
    }
    if is_whole {
        return Bound::Filter(json!({path: {"$eq": prefix}}));
    }
    if prefix.is_empty() {
        return Bound::Filter(not_null(path));
    }
    let mut end = prefix.clone();
    while let Some(last) = end.pop() {
        let next = if last == '\u{D7FF}' { Some('\u{E000}') } else { char::from_u32(u32::from(last) + 1) };
        if let Some(next) = next {
            end.push(next);
            return Bound::Filter(json!({path: {"$gte": prefix, "$lt": end}}));
        }
    }
    Bound::Filter(json!({path: {"$gte": prefix}}))
}

/// The most values of a `@>` that narrow a search.
const MAX_CONTAINED: usize = 32;

/// A superset of documents that contain a value at a path, as `@>` means it.
fn contains(path: &str, value: &Value, left: &mut usize) -> Bound {
    if *left == 0 {
        return Always;
    }
    *left -= 1;
    match value {
        Value::Object(fields) => {
            if fields.is_empty() {
                return if path.is_empty() { Always } else { Bound::Filter(json!({path: {"$exists": true}})) };
            }
            let mut bounds = Vec::new();
            for (name, value) in fields.iter() {
                let mut inner = path.to_owned();
                if push_step(&mut inner, name).is_some() {
                    bounds.push(contains(&inner, value, left));
                }
            }
            all(bounds.into_iter())
        }
        // A document contains no array and no scalar.
        _ if path.is_empty() => Always,
        Value::Array(items) => {
            let bounds = items.iter().map(|item| match item {
                Value::Array(_) => Always,
                item => contains(path, item, left),
            });
            match all(bounds.collect::<Vec<_>>().into_iter()) {
                Always => Bound::Filter(json!({path: {"$exists": true}})),
                narrower => narrower,
            }
        }
        Value::Null
        | Value::Bool(_)
        | Value::String(_)
        | Value::Number(Number::Int(_))
        | Value::Date(_)
        | Value::ObjectId(_)
        | Value::Binary(..) => Bound::Filter(json!({path: {"$eq": ext_json::to_json(value)}})),
        // Values that filters compare in another way than jsonb does, or refuse.
        _ => Bound::Filter(json!({path: {"$exists": true}})),
    }
}

/// A superset of documents whose value at a path has this text, or is this number after a cast.
fn text(path: &str, operator: Operator, value: &SqlValue, is_number: bool) -> Bound {
    if let SqlValue::Unknown(number) = value {
        return Bound::Filter(json!({path: {name(operator): format!("${number}")}}));
    }
    let exists = || Bound::Filter(json!({path: {"$exists": true}}));
    if operator == Operator::NotEqual {
        return exists();
    }
    if is_number {
        let double = match value {
            SqlValue::Int(value) => *value as f64,
            SqlValue::Float(value) => *value,
            SqlValue::Numeric(text) if text == "NaN" => f64::NAN,
            SqlValue::Numeric(text) => text.parse().unwrap_or(f64::NAN),
            _ => return exists(),
        };
        // Strings are cast, too.
        let strings = Bound::Filter(json!({path: {"$type": "string"}}));
        return any([number(path, operator, double), strings].into_iter());
    }
    let SqlValue::Text(text) = value else { return exists() };
    if text.starts_with(['{', '[']) {
        return exists();
    }
    let mut equal: Vec<Json> = vec![text.clone().into()];
    equal.extend(text.parse::<bool>().ok().map(Json::from));
    match (text.parse::<i64>(), text.parse::<f64>()) {
        (Ok(integer), _) => equal.push(integer.into()),
        (Err(_), Ok(value)) if value.is_finite() => {
            let strings = Bound::Filter(json!({path: {"$in": equal}}));
            return any([strings, number(path, Operator::Equal, value)].into_iter());
        }
        // A number with more digits than a double.
        (Err(_), Ok(_)) if text.starts_with(|c: char| c == '-' || c.is_ascii_digit()) => return exists(),
        _ => {}
    }
    Bound::Filter(if equal.len() == 1 {
        json!({path: {"$eq": equal.remove(0)}})
    } else {
        json!({path: {"$in": equal}})
    })
}
