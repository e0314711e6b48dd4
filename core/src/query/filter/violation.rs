//! Describes why a document does not match a filter, in the form of MongoDB's `errInfo.details`.
//!
//! A report walks the filter's JSON, and parses and evaluates each condition separately. So the code that matches documents has nothing to
//! do with reports.
//!
//! INVARIANT: a report takes at most about [`MAX_BYTES`], however large the document and the filter are. [`Report::truncated`] says
//! whether something was left out.

use super::parse;
use crate::budget;
use crate::error::{Error, Result};
use crate::query::environment::Environment;
use crate::query::expression::Expression;
use crate::query::regex;
use crate::values::document::element::Element;
use crate::values::document::ext_json;
use crate::values::document::raw::{RawObject, RawValue};
use crate::values::document::value::Value;
use crate::values::path::{self, AtEnd, Base};
use serde_json::{Map, Value as Json, json};
use std::cell::RefCell;
use std::collections::BTreeSet;

/// The most bytes of values, arguments and names that a report repeats.
const MAX_BYTES: usize = 16 << 10;
/// The bytes that count for an entry of a list, beside its values.
const ENTRY_BYTES: usize = 64;
/// The most values that an entry shows for one path: MongoDB's limit.
const MAX_VALUES: usize = 10;

/// An object of a report.
pub(super) type Details = Map<String, Json>;

/// A report while it is made.
pub(crate) struct Report<'e> {
    environment: &'e Environment,
    left: usize,
    /// true if something was left out
    pub truncated: bool,
}

/// The values that an operator tests, which a report repeats.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Considered {
    Nothing,
    /// the values at the path; for an array, its elements
    Elements,
    /// like [`Elements`](Self::Elements), with their types
    Types,
    /// the values at the path; an array is not replaced by its elements
    Whole,
}

/// Operators on fields, each with its reason for not matching, its reason for matching, and the values that it tests.
const REASONS: &[(&str, [&str; 2], Considered)] = &[
    ("$eq", COMPARED, Considered::Elements),
    ("$gt", COMPARED, Considered::Elements),
    ("$gte", COMPARED, Considered::Elements),
    ("$lt", COMPARED, Considered::Elements),
    ("$lte", COMPARED, Considered::Elements),
    ("$ne", [COMPARED[1], COMPARED[0]], Considered::Elements),
    ("$in", FOUND, Considered::Elements),
    ("$nin", [FOUND[1], FOUND[0]], Considered::Elements),
    ("$type", ["type did not match", "type did match"], Considered::Types),
    (
        "$mod",
        ["$mod did not evaluate to expected remainder", "$mod did evaluate to expected remainder"],
        Considered::Elements,
    ),
    ("$regex", ["regular expression did not match", "regular expression did match"], Considered::Elements),
    ("$size", ["array length was not equal to given size", "array length was equal to given size"], Considered::Whole),
    (
        "$all",
        ["array did not contain all specified values", "array did contain all specified values"],
        Considered::Whole,
    ),
    (
        "$elemMatch",
        ["array did not satisfy the child predicate", "array did satisfy the child predicate"],
        Considered::Whole,
    ),
    ("$bitsAllSet", BITS, Considered::Elements),
    ("$bitsAllClear", BITS, Considered::Elements),
    ("$bitsAnySet", BITS, Considered::Elements),
    ("$bitsAnyClear", BITS, Considered::Elements),
];
const COMPARED: [&str; 2] = ["comparison failed", "comparison succeeded"];
const FOUND: [&str; 2] = ["no matching value found in array", "matching value found in array"];
const BITS: [&str; 2] = ["bitwise operator failed to match", "bitwise operator matched successfully"];

/// One condition of a filter.
enum Clause<'j> {
    /// `$and`, `$or` or `$nor`, `$expr`, `$jsonSchema` and others in the place of a path
    Top(&'j str, &'j Json),
    /// a path, an operator, and `{operator: argument}` or the value of an equality
    Field(&'j str, &'j str, Json),
}

impl Clause<'_> {
    /// The filter that consists of this condition.
    fn as_filter(&self) -> Json {
        match self {
            Clause::Top(name, argument) => json!({*name: argument}),
            Clause::Field(path, _, argument) => json!({*path: argument}),
        }
    }
}

/// The conditions of a filter, all of which must hold.
fn clauses(filter: &Json) -> Vec<Clause<'_>> {
    let mut clauses = Vec::new();
    for (name, argument) in filter.as_object().into_iter().flatten() {
        budget::step();
        match parse::as_operators(argument) {
            _ if name == "$comment" => {}
            _ if parse::is_top_level(name) => clauses.push(Clause::Top(name, argument)),
            None => {
                let is_regex = matches!(ext_json::from_json(argument), Ok(Value::Regex(..)));
                clauses.push(Clause::Field(name, if is_regex { "$regex" } else { "$eq" }, argument.clone()));
            }
            Some(operators) => {
                for (operator, argument) in
                    operators.iter().filter(|(name, _)| !["$options", "$comment"].contains(&name.as_str()))
                {
                    let mut given = json!({operator: argument});
                    if operator == "$regex"
                        && let Some(options) = operators.get("$options")
                    {
                        given["$options"] = options.clone();
                    }
                    clauses.push(Clause::Field(name, operator, given));
                }
            }
        }
    }
    clauses
}

impl<'e> Report<'e> {
    pub fn new(environment: &'e Environment) -> Self {
        Self { environment, left: MAX_BYTES, truncated: false }
    }

    /// Takes this many bytes of the report's limit. False if fewer are left, and in all later calls.
    pub(super) fn takes(&mut self, bytes: usize) -> bool {
        budget::bytes(bytes);
        match self.left.checked_sub(bytes) {
            Some(left) => self.left = left,
            None => self.truncated = true,
        }
        !self.truncated
    }

    /// True if there is room for an entry of a list.
    pub(super) fn takes_entry(&mut self, name: &str) -> bool {
        self.takes(ENTRY_BYTES + name.len())
    }

    /// Adds a stored value, if there is room for it.
    pub(super) fn add(&mut self, to: &mut Details, name: &str, value: RawValue<'_>) {
        if let Some(value) = self.value(value) {
            to.insert(name.to_owned(), value);
        }
    }

    /// A stored value as Extended JSON, if there is room for it.
    pub(super) fn value(&mut self, value: RawValue<'_>) -> Option<Json> {
        let bytes = match value {
            RawValue::String(text) => text.len(),
            RawValue::Array(array) => 2 * array.bytes().len(),
            RawValue::Object(object) => 2 * object.bytes().len(),
            RawValue::Number(_) | RawValue::Null | RawValue::Bool(_) => 8,
        };
        self.takes(bytes).then(|| ext_json::to_json(&Value::from_raw(value)))
    }

    /// Adds a condition as the filter has it, if there is room for it.
    pub(super) fn specify(&mut self, to: &mut Details, json: Json) {
        // The text is written before its length is checked: it is not longer than the filter's text, which was in memory, too.
        if self.takes(json.to_string().len()) {
            to.insert("specifiedAs".to_owned(), json);
        }
    }

    fn evaluate(&self, filter: &Json, document: RawObject<'_>) -> Result<bool> {
        let node = parse::filter(filter, self.environment)?;
        regex::watched(|| node.matches(Base::Object(document)))?
    }

    /// Describes why a document does not match a filter, or, if `matched`, why it does.
    pub fn of_filter(&mut self, filter: &Json, document: RawObject<'_>, matched: bool) -> Details {
        let clauses = clauses(filter);
        match clauses.as_slice() {
            [clause] => self.of_clause(clause, document, matched),
            clauses => {
                let filters = clauses.iter().map(Clause::as_filter);
                let of = |report: &mut Self, at: usize| report.of_clause(&clauses[at], document, matched);
                self.list("$and", filters, document, matched, of)
            }
        }
    }

    /// Describes the filters that match the document if `matched`, else those that do not.
    fn list(
        &mut self,
        name: &str,
        filters: impl Iterator<Item = Json>,
        document: RawObject<'_>,
        matched: bool,
        of: impl Fn(&mut Self, usize) -> Details,
    ) -> Details {
        let mut entries = Vec::new();
        for (index, filter) in filters.enumerate() {
            // A condition that cannot be evaluated is not satisfied.
            if self.evaluate(&filter, document).unwrap_or(false) == matched {
                if !self.takes_entry("") {
                    break;
                }
                entries.push(json!({"index": index, "details": of(self, index)}));
            }
        }
        let which = if matched { "clausesSatisfied" } else { "clausesNotSatisfied" };
        object(json!({"operatorName": name, which: entries}))
    }

    fn of_clause(&mut self, clause: &Clause<'_>, document: RawObject<'_>, matched: bool) -> Details {
        match clause {
            Clause::Top(name @ ("$and" | "$or" | "$nor"), Json::Array(filters)) => {
                let matched = matched != (*name == "$nor");
                let of = |report: &mut Self, at: usize| report.of_filter(&filters[at], document, matched);
                self.list(name, filters.iter().cloned(), document, matched, of)
            }
            Clause::Top("$jsonSchema", _) if matched => {
                object(json!({"operatorName": "$jsonSchema", "reason": "schema matched"}))
            }
            Clause::Top("$jsonSchema", Json::Object(schema)) => {
                let mut details = object(json!({"operatorName": "$jsonSchema"}));
                self.entitle(&mut details, schema);
                let rules = self.of_schema(schema, RawValue::Object(document));
                details.insert("schemaRulesNotSatisfied".to_owned(), rules.into());
                details
            }
            Clause::Top("$expr", expression) => self.of_expression(expression, document, matched),
            Clause::Top(name, argument) => {
                let mut details = object(json!({"operatorName": name}));
                self.specify(&mut details, json!({*name: argument}));
                let reason = if matched {
                    "expression always evaluates to true"
                } else {
                    "expression always evaluates to false"
                };
                details.insert("reason".to_owned(), reason.into());
                details
            }
            Clause::Field(path, "$not", given) => {
                let inner = json!({*path: given["$not"]});
                let inner = self.of_filter(&inner, document, !matched);
                object(json!({"operatorName": "$not", "details": inner}))
            }
            Clause::Field(path, name, given) => self.of_field((path, name, given), document, matched),
        }
    }

    fn of_expression(&mut self, json: &Json, document: RawObject<'_>, matched: bool) -> Details {
        let mut details = object(json!({"operatorName": "$expr"}));
        self.specify(&mut details, json!({"$expr": json}));
        let collator = self.environment.collator().map(AsRef::as_ref);
        let evaluated =
            Expression::parse(json, self.environment).and_then(|expression| expression.evaluate(document, collator));
        match evaluated {
            Ok(value) => {
                let reason = if matched { "expression did match" } else { "expression did not match" };
                details.insert("reason".to_owned(), reason.into());
                let value = value.as_ref().map_or(Json::Null, ext_json::to_json);
                if self.takes(value.to_string().len()) {
                    details.insert("expressionResult".to_owned(), value);
                }
            }
            Err(error) => {
                details.insert("reason".to_owned(), "failed to evaluate aggregation expression".into());
                details.insert("details".to_owned(), failure(&error));
            }
        }
        details
    }

    fn of_field(
        &mut self,
        (path, name, given): (&str, &str, &Json),
        document: RawObject<'_>,
        matched: bool,
    ) -> Details {
        let mut details = object(json!({"operatorName": name}));
        self.specify(&mut details, json!({path: given}));
        if name == "$exists" {
            let exists = !values_at(document, path, Considered::Elements).1.is_empty();
            let reason = if exists { "path does exist" } else { "path does not exist" };
            details.insert("reason".to_owned(), reason.into());
            return details;
        }
        let (_, reasons, considered) =
            REASONS.iter().find(|(known, ..)| *known == name).copied().unwrap_or(("", COMPARED, Considered::Nothing));
        let (of_array, values) = values_at(document, path, considered);
        let is_missing = values.is_empty() && !of_array;
        let reason = if is_missing && !matched { "field was missing" } else { reasons[usize::from(matched)] };
        details.insert("reason".to_owned(), reason.into());
        self.consider(&mut details, &values, of_array, considered);
        details
    }

    fn consider(&mut self, details: &mut Details, values: &[RawValue<'_>], of_array: bool, considered: Considered) {
        match values {
            [] if !of_array => return,
            [one] => self.add(details, "consideredValue", *one),
            several => {
                let mut shown = Vec::new();
                for value in several.iter().take(MAX_VALUES) {
                    shown.extend(self.value(*value));
                }
                details.insert("consideredValues".to_owned(), shown.into());
                if several.len() > MAX_VALUES {
                    details.insert("consideredValuesTruncated".to_owned(), true.into());
                }
            }
        }
        if considered == Considered::Types {
            let types: BTreeSet<&str> = values.iter().map(|value| type_name(*value)).collect();
            match types.first() {
                None => {}
                Some(one) if types.len() == 1 => drop(details.insert("consideredType".to_owned(), (*one).into())),
                Some(_) => {
                    let types: Vec<&str> = types.into_iter().collect();
                    details.insert("consideredTypes".to_owned(), types.into());
                }
            }
        }
    }

    /// Adds the schema's own title and description.
    pub(super) fn entitle(&mut self, details: &mut Details, schema: &Details) {
        for name in ["title", "description"] {
            if let Some(Json::String(text)) = schema.get(name)
                && self.takes(text.len())
            {
                details.insert(name.to_owned(), text.as_str().into());
            }
        }
    }
}

/// The type's alias.
pub(super) fn type_name(value: RawValue<'_>) -> &'static str {
    match value {
        RawValue::Array(_) => "array",
        value => Element::of(value).type_name(),
    }
}

/// The values at a path. Unless arrays are considered whole, each array is replaced by its elements, and the result's flag is then true.
fn values_at<'a>(document: RawObject<'a>, path: &str, considered: Considered) -> (bool, Vec<RawValue<'a>>) {
    let values = RefCell::new(Vec::new());
    let _ = path::any(Base::Object(document), path, AtEnd::Whole, &|value| {
        budget::step();
        values.borrow_mut().extend(value);
        false
    });
    let (mut of_array, mut found) = (false, Vec::new());
    for value in values.into_inner() {
        match value {
            RawValue::Array(array) if considered != Considered::Whole => {
                of_array = true;
                found.extend(array.iter().inspect(|_| budget::step()));
            }
            value => found.push(value),
        }
    }
    (of_array, found)
}

fn failure(error: &Error) -> Json {
    json!({"code": error.kind.code(), "codeName": error.kind.name(), "errmsg": error.message})
}

/// The fields of an object that was just made.
pub(super) fn object(json: Json) -> Details {
    match json {
        Json::Object(fields) => fields,
        _ => Details::new(),
    }
}
