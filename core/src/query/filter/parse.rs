//! Parses JSON into a filter's tree.
//!
//! The operators are tables: a name and the function that parses its argument. MongoDB's operators that are not supported yet
//! are listed, too, so that they get an error of their own.

use super::bits::Bits;
use super::modulo::Modulo;
use super::node::{FilterNode, Test};
use super::schema::Schema;
use super::side::Side;
use super::types::Types;
use crate::budget;
use crate::error::{Error, Kind, Result, bail, ensure, error};
use crate::query::environment::Environment;
use crate::query::expression::Expression;
use crate::query::operand::Operand;
use crate::query::regex::Pattern;
use crate::values::document::number::Number;
use crate::values::document::value::Value;
use crate::values::document::{MAX_DEPTH, ext_json};
use crate::values::order::Class;
use serde_json::{Map, Value as Json};

/// An operator on a field: `{path: {name: argument}}`.
type FieldOperator = (&'static str, fn(field: Field<'_>, argument: &Json) -> Result<FilterNode>);

/// The surroundings of an operator on a field.
#[derive(Clone, Copy)]
struct Field<'a> {
    path: &'a str,
    /// The operator's name.
    name: &'a str,
    /// All operators on the field, this one included.
    operators: &'a Map<String, Json>,
    context: Context<'a>,
}

/// The surroundings of a part of a filter.
#[derive(Clone, Copy)]
struct Context<'a> {
    depth: usize,
    place: Place,
    environment: &'a Environment,
}

/// The subject of a part of a filter.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// the whole document; operators such as `$expr` are allowed
    Document,
    /// an element that an update or an array filter chooses; `$expr` is not allowed
    Chosen,
    /// an array's element
    Element,
}

impl<'a> Context<'a> {
    fn new(environment: &'a Environment) -> Context<'a> {
        Context { depth: 0, place: Place::Document, environment }
    }

    /// The context inside a logical operator.
    fn deeper(self) -> Context<'a> {
        Context { depth: self.depth + 1, ..self }
    }

    /// The context of a condition on an array's element.
    fn inside(self) -> Context<'a> {
        Context { depth: self.depth + 1, place: Place::Element, ..self }
    }
}

const FIELD_OPERATORS: &[FieldOperator] = &[
    ("$eq", |field, argument| equality(field.path, ext_json::from_json(argument)?, field.context.environment)),
    ("$ne", ne),
    ("$gt", |field, argument| range(field, Side::Greater, argument)),
    ("$gte", |field, argument| range(field, Side::GreaterOrEqual, argument)),
    ("$lt", |field, argument| range(field, Side::Less, argument)),
    ("$lte", |field, argument| range(field, Side::LessOrEqual, argument)),
    ("$in", membership),
    ("$nin", |field, argument| Ok(not(membership(field, argument)?))),
    ("$not", not_operators),
    ("$exists", exists),
    ("$type", |field, argument| {
        Ok(leaf(field.path, Test::Type(Types::parse(field.path, &ext_json::from_json(argument)?)?)))
    }),
    ("$mod", |field, argument| Ok(leaf(field.path, Test::Modulo(Modulo::parse(&ext_json::from_json(argument)?)?)))),
    ("$regex", regex),
    ("$options", |field, _| {
        // `$regex` reads the options.
        ensure!(field.operators.contains_key("$regex"), Kind::BadValue, "$options needs a $regex");
        Ok(FilterNode::And(Vec::new()))
    }),
    ("$size", size),
    ("$all", all),
    ("$elemMatch", |field, argument| Ok(leaf(field.path, element_test(argument, field.context)?))),
    ("$bitsAllSet", |field, argument| bits(field, argument, true, true)),
    ("$bitsAllClear", |field, argument| bits(field, argument, true, false)),
    ("$bitsAnySet", |field, argument| bits(field, argument, false, true)),
    ("$bitsAnyClear", |field, argument| bits(field, argument, false, false)),
    ("$comment", |_, _| Ok(FilterNode::And(Vec::new()))),
];

/// MongoDB's operators on a field that are not supported yet.
const FIELD_OPERATORS_TO_COME: &[&str] = &["$geoIntersects", "$geoWithin", "$near", "$nearSphere", "$within"];

/// An operator in the place of a path: `{name: argument}`.
struct TopLevelOperator {
    name: &'static str,
    /// True if an argument of `$pull` with this operator is a filter of documents.
    of_documents: bool,
    parse: fn(name: &str, argument: &Json, context: Context<'_>) -> Result<FilterNode>,
}

impl TopLevelOperator {
    const fn new(name: &'static str, parse: fn(&str, &Json, Context<'_>) -> Result<FilterNode>) -> TopLevelOperator {
        TopLevelOperator { name, of_documents: false, parse }
    }

    const fn of_documents(self) -> TopLevelOperator {
        TopLevelOperator { of_documents: true, ..self }
    }
}

const TOP_LEVEL_OPERATORS: &[TopLevelOperator] = &[
    TopLevelOperator::new("$and", |name, json, context| Ok(FilterNode::And(branches(name, json, context)?)))
        .of_documents(),
    TopLevelOperator::new("$or", |name, json, context| Ok(FilterNode::Or(branches(name, json, context)?)))
        .of_documents(),
    TopLevelOperator::new("$nor", |name, json, context| Ok(not(FilterNode::Or(branches(name, json, context)?))))
        .of_documents(),
    TopLevelOperator::new("$alwaysTrue", |name, json, _| constant(name, json).map(|()| FilterNode::And(Vec::new()))),
    TopLevelOperator::new("$alwaysFalse", |name, json, _| constant(name, json).map(|()| FilterNode::Or(Vec::new()))),
    TopLevelOperator::new("$comment", |_, _, _| Ok(FilterNode::And(Vec::new()))),
    TopLevelOperator::new("$expr", expression).of_documents(),
    TopLevelOperator::new("$jsonSchema", |name, json, context| {
        check_at_top(name, context)?;
        Ok(FilterNode::Schema(Schema::parse(json, MAX_FILTER_DEPTH)?))
    })
    .of_documents(),
    TopLevelOperator::new("$sampleRate", sample_rate),
    TopLevelOperator::new("$where", |_, _, _| {
        Err(error!(Kind::NotImplemented, "$where is not supported: there is no server-side JavaScript")
            .with_hint("Write the condition with $expr."))
    }),
];

/// The names of all operators.
pub(crate) fn operator_names() -> impl Iterator<Item = &'static str> {
    FIELD_OPERATORS.iter().map(|(name, _)| *name).chain(TOP_LEVEL_OPERATORS.iter().map(|operator| operator.name))
}

/// True for an operator in the place of a path.
pub(super) fn is_top_level(name: &str) -> bool {
    TOP_LEVEL_OPERATORS.iter().any(|operator| operator.name == name)
}

/// True for an operator that makes an argument of `$pull` a filter of documents.
pub(crate) fn is_of_documents(name: &str) -> bool {
    TOP_LEVEL_OPERATORS.iter().any(|operator| operator.name == name && operator.of_documents)
}

/// MongoDB's operators in the place of a path that are not supported yet.
const TOP_LEVEL_OPERATORS_TO_COME: &[&str] = &["$text"];

/// The deepest nesting of `$and`, `$or`, `$nor` and `$not`: MongoDB's limit.
const MAX_FILTER_DEPTH: usize = 100;

/// The deepest JSON that is parsed: every logical operator takes two levels, an object and an array.
const MAX_JSON_DEPTH: usize = MAX_DEPTH + 2 * MAX_FILTER_DEPTH;

/// Parses a whole filter.
pub(super) fn filter(json: &Json, environment: &Environment) -> Result<FilterNode> {
    check_depth(json)?;
    document(json, Context::new(environment))
}

/// Parses a condition on an array's elements, a document of paths.
pub(super) fn element_filter(json: &Json, environment: &Environment) -> Result<FilterNode> {
    check_depth(json)?;
    document(json, Context { place: Place::Chosen, ..Context::new(environment) })
}

/// True for operators, such as `{"$gt": 5}`, and regular expressions.
pub(super) fn is_condition(json: &Json) -> Result<bool> {
    check_depth(json)?;
    let regex = || matches!(json, Json::Object(fields) if is_extended(fields));
    Ok(as_operators(json).is_some() || regex() && matches!(ext_json::from_json(json)?, Value::Regex(..)))
}

/// Parses a condition on single values ([`is_condition`]); the paths of its leaves are empty.
pub(super) fn condition(json: &Json, environment: &Environment) -> Result<FilterNode> {
    field("", json, Context::new(environment))
}

fn document(json: &Json, context: Context<'_>) -> Result<FilterNode> {
    budget::step();
    if context.depth > MAX_FILTER_DEPTH {
        return Err(too_deep());
    }
    let Some(fields) = ext_json::document(json) else {
        bail!(Kind::TypeMismatch, "the filter must be an object, not {}", json_type(json))
    };
    let mut nodes = Vec::with_capacity(fields.len());
    for (name, argument) in fields {
        budget::step();
        let node = match TOP_LEVEL_OPERATORS.iter().find(|operator| operator.name == name) {
            Some(operator) => (operator.parse)(name, argument, context)?,
            None if TOP_LEVEL_OPERATORS_TO_COME.contains(&name.as_str()) => return Err(to_come(name)),
            None if name.starts_with('$') && !ext_json::is_reference(name) => bail!(
                Kind::BadValue,
                "unknown top level operator: {name}. If you have a field name that starts with a '$' symbol, \
                     consider using $getField or $setField."
            ),
            None => field(name, argument, context)?,
        };
        push(&mut nodes, node);
    }
    Ok(FilterNode::And(nodes))
}

/// The filters in an argument of `$and`, `$or` or `$nor`.
fn branches(name: &str, argument: &Json, context: Context<'_>) -> Result<Vec<FilterNode>> {
    let elements = match argument {
        Json::Array(elements) if !elements.is_empty() => elements,
        Json::Array(_) => bail!(Kind::BadValue, "$and/$or/$nor must be a nonempty array"),
        _ => bail!(Kind::BadValue, "{name} must be an array"),
    };
    elements
        .iter()
        .map(|element| match element {
            Json::Object(fields) if ext_json::is_document(fields) => document(element, context.deeper()),
            _ => bail!(Kind::BadValue, "$or/$and/$nor entries need to be full objects"),
        })
        .collect()
}

/// `{path: argument}`: operators, or a value to equal.
fn field(path: &str, argument: &Json, context: Context<'_>) -> Result<FilterNode> {
    if let Some(operators) = as_operators(argument) {
        return field_operators(path, operators, context);
    }
    if let Json::Object(fields) = argument
        && !is_extended(fields)
        && let Some(name) =
            fields.keys().find(|name| name.starts_with('$') && FIELD_OPERATORS.iter().any(|(known, _)| known == name))
    {
        return Err(unknown_operator(name));
    }
    equality_or_regex(path, ext_json::from_json(argument)?, context.environment)
}

/// A value without an operator: equality, or a search for a regular expression.
fn equality_or_regex(path: &str, value: Value, environment: &Environment) -> Result<FilterNode> {
    match value {
        Value::Regex(pattern, options) => Ok(leaf(path, Test::Regex(Pattern::new(&pattern, &options)?))),
        value => equality(path, value, environment),
    }
}

fn field_operators(path: &str, operators: &Map<String, Json>, context: Context<'_>) -> Result<FilterNode> {
    let mut nodes = Vec::with_capacity(operators.len());
    for (name, argument) in operators {
        budget::step();
        let node = match FIELD_OPERATORS.iter().find(|(known, _)| known == name) {
            Some((_, parse)) => parse(Field { path, name, operators, context }, argument)?,
            None if FIELD_OPERATORS_TO_COME.contains(&name.as_str()) => return Err(to_come(name)),
            None => return Err(unknown_operator(name)),
        };
        push(&mut nodes, node);
    }
    Ok(if nodes.len() == 1 { nodes.remove(0) } else { FilterNode::And(nodes) })
}

fn ne(field: Field<'_>, argument: &Json) -> Result<FilterNode> {
    match ext_json::from_json(argument)? {
        Value::Regex(..) => bail!(Kind::BadValue, "Can't have regex as arg to $ne."),
        value => Ok(not(equality(field.path, value, field.context.environment)?)),
    }
}

fn equality(path: &str, value: Value, environment: &Environment) -> Result<FilterNode> {
    defined(&value)?;
    Ok(leaf(path, Test::equal(value).under(environment.collator())))
}

fn range(field: Field<'_>, side: Side, argument: &Json) -> Result<FilterNode> {
    let bound = ext_json::from_json(argument)?;
    defined(&bound)?;
    if Class::of(&bound) == Class::Regex {
        bail!(Kind::BadValue, "Can't have RegEx as arg to predicate over field '{}'.", field.path);
    }
    Ok(leaf(field.path, Test::range(side, bound).under(field.context.environment.collator())))
}

fn membership(field: Field<'_>, argument: &Json) -> Result<FilterNode> {
    let name = field.name;
    let Json::Array(elements) = argument else { bail!(Kind::BadValue, "{name} needs an array") };
    let mut values = Vec::with_capacity(elements.len());
    let mut patterns = Vec::new();
    for element in elements {
        if let Some(pattern) = legacy_regex(element)? {
            patterns.push(pattern);
            continue;
        }
        ensure!(as_operators(element).is_none(), Kind::BadValue, "cannot nest $ under {name}");
        match ext_json::from_json(element)? {
            Value::Regex(pattern, options) => patterns.push(Pattern::new(&pattern, &options)?),
            value => {
                defined(&value)?;
                values.push(value);
            }
        }
    }
    Ok(leaf(field.path, Test::one_of(values, patterns).under(field.context.environment.collator())))
}

fn not_operators(field: Field<'_>, argument: &Json) -> Result<FilterNode> {
    if field.context.depth >= MAX_FILTER_DEPTH {
        return Err(too_deep());
    }
    match argument {
        Json::Object(operators) if operators.is_empty() => bail!(Kind::BadValue, "$not cannot be empty"),
        Json::Object(operators) if operators.contains_key("$regularExpression") => {
            Ok(not(equality_or_regex(field.path, ext_json::from_json(argument)?, field.context.environment)?))
        }
        Json::Object(operators) => Ok(not(field_operators(field.path, operators, field.context.deeper())?)),
        _ => bail!(Kind::BadValue, "$not needs a regex or a document"),
    }
}

fn exists(field: Field<'_>, argument: &Json) -> Result<FilterNode> {
    let wanted = match ext_json::from_json(argument)? {
        Value::Null | Value::Undefined => false,
        Value::Bool(wanted) => wanted,
        number @ Value::Number(_) => number != Value::Number(Number::int(0)),
        _ => true,
    };
    let exists = leaf(field.path, Test::Exists);
    Ok(if wanted { exists } else { not(exists) })
}

fn bits(field: Field<'_>, argument: &Json, all: bool, set: bool) -> Result<FilterNode> {
    let bits = Bits::parse(field.name, field.path, &ext_json::from_json(argument)?, all, set)?;
    Ok(leaf(field.path, Test::Bits(bits)))
}

fn regex(field: Field<'_>, argument: &Json) -> Result<FilterNode> {
    let (pattern, own) = match ext_json::from_json(argument)? {
        Value::String(pattern) => (pattern, String::new()),
        Value::Regex(pattern, options) => (pattern, options),
        _ => bail!(Kind::BadValue, "$regex has to be a string"),
    };
    let options = match field.operators.get("$options") {
        None => own,
        Some(Json::String(options)) if own.is_empty() => options.clone(),
        Some(Json::String(_)) => {
            let mut names = field.operators.keys().filter(|name| ["$regex", "$options"].contains(&name.as_str()));
            let code = if names.next().is_some_and(|first| first == "$options") { 51074 } else { 51075 };
            bail!(code, "options set in both $regex and $options");
        }
        Some(_) => bail!(Kind::BadValue, "$options has to be a string"),
    };
    Ok(leaf(field.path, Test::Regex(Pattern::new(&pattern, &options)?)))
}

/// `{"$regex": …, "$options": …}` in a list: a regular expression in older Extended JSON.
fn legacy_regex(json: &Json) -> Result<Option<Pattern>> {
    let Json::Object(fields) = json else { return Ok(None) };
    match (fields.len(), fields.get("$regex"), fields.get("$options")) {
        (2, Some(Json::String(pattern)), Some(Json::String(options))) => Pattern::new(pattern, options).map(Some),
        (1, Some(Json::String(pattern)), None) => Pattern::new(pattern, "").map(Some),
        _ => Ok(None),
    }
}

fn size(field: Field<'_>, argument: &Json) -> Result<FilterNode> {
    let fail = |what: &str| error!(Kind::BadValue, "Failed to parse $size. {what} in: $size: {argument}");
    let Value::Number(number) = ext_json::from_json(argument)? else { return Err(fail("Expected a number")) };
    let size = number.as_i64().ok_or_else(|| fail("Expected an integer"))?;
    let size = usize::try_from(size).map_err(|_| fail("Expected a non-negative number"))?;
    Ok(leaf(field.path, Test::Size(size)))
}

fn all(field: Field<'_>, argument: &Json) -> Result<FilterNode> {
    let Json::Array(elements) = argument else { bail!(Kind::BadValue, "$all needs an array") };
    let element_of = |json: &Json| {
        as_operators(json).is_some_and(|operators| operators.keys().next().is_some_and(|name| name == "$elemMatch"))
    };
    let elements_matched = elements.first().is_some_and(element_of);
    let nodes = elements.iter().map(|json| {
        if elements_matched {
            let Some(operators) = as_operators(json).filter(|_| element_of(json)) else {
                bail!(Kind::BadValue, "$all/$elemMatch has to be consistent")
            };
            return field_operators(field.path, operators, field.context.deeper());
        }
        if let Some(pattern) = legacy_regex(json)? {
            return Ok(leaf(field.path, Test::Regex(pattern)));
        }
        ensure!(as_operators(json).is_none(), Kind::BadValue, "no $ expressions in $all");
        equality_or_regex(field.path, ext_json::from_json(json)?, field.context.environment)
    });
    // An empty list matches nothing.
    if elements.is_empty() {
        Ok(FilterNode::Or(Vec::new()))
    } else {
        Ok(FilterNode::And(nodes.collect::<Result<_>>()?))
    }
}

/// Parses the argument of `$elemMatch`.
pub(super) fn element_condition(json: &Json, environment: &Environment) -> Result<Test> {
    check_depth(json)?;
    element_test(json, Context::new(environment))
}

fn element_test(argument: &Json, context: Context<'_>) -> Result<Test> {
    if context.depth >= MAX_FILTER_DEPTH {
        return Err(too_deep());
    }
    let Some(fields) = ext_json::document(argument) else { bail!(Kind::BadValue, "$elemMatch needs an Object") };
    let logical =
        |name: &String| TOP_LEVEL_OPERATORS.iter().any(|operator| operator.name == name && name != "$comment");
    Ok(match as_operators(argument) {
        Some(operators) if !operators.keys().next().is_some_and(logical) => {
            Test::ElementValue(Box::new(field_operators("", fields, context.inside())?))
        }
        _ => Test::ElementDocument(Box::new(document(argument, context.inside())?)),
    })
}

/// `$expr`.
fn expression(name: &str, argument: &Json, context: Context<'_>) -> Result<FilterNode> {
    check_at_top(name, context)?;
    let expression = Expression::parse(argument, context.environment)?;
    Ok(match expression.constant() {
        Some(value) if Operand::Given(&value).is_true() => FilterNode::And(Vec::new()),
        Some(_) => FilterNode::Or(Vec::new()),
        None => FilterNode::Expression(expression, context.environment.collator().cloned()),
    })
}

fn sample_rate(name: &str, argument: &Json, context: Context<'_>) -> Result<FilterNode> {
    check_at_top(name, context)?;
    let rate = match ext_json::from_json(argument)? {
        Value::Number(number) => number.to_f64(),
        _ => bail!(Kind::BadValue, "argument to $sampleRate must be a numeric type"),
    };
    ensure!((0.0..=1.0).contains(&rate), Kind::BadValue, "numeric argument to $sampleRate must be in [0, 1]");
    Ok(FilterNode::Sample(rate))
}

fn check_at_top(name: &str, context: Context<'_>) -> Result<()> {
    match context.place {
        Place::Document => Ok(()),
        Place::Chosen => Err(not_allowed(name)),
        Place::Element => bail!(Kind::BadValue, "{name} can only be applied to the top-level document"),
    }
}

pub(super) fn not_allowed(name: &str) -> Error {
    error!(Kind::QueryFeatureNotAllowed, "{name} is not allowed in this context")
}

/// True if a valid filter has an `$expr`, even one that is constant.
pub(super) fn has_expression(json: &Json) -> bool {
    budget::step();
    json.as_object().is_some_and(|fields| {
        fields.iter().any(|(name, argument)| match (name.as_str(), argument) {
            ("$expr", _) => true,
            ("$and" | "$or" | "$nor", Json::Array(branches)) => branches.iter().any(has_expression),
            _ => false,
        })
    })
}

fn constant(name: &str, argument: &Json) -> Result<()> {
    match ext_json::from_json(argument)? {
        Value::Number(number) if number.as_i64() == Some(1) => Ok(()),
        _ => bail!(Kind::FailedToParse, "{name} must be an integer value of 1"),
    }
}

fn leaf(path: &str, test: Test) -> FilterNode {
    FilterNode::Leaf(path.to_owned(), test)
}

fn not(node: FilterNode) -> FilterNode {
    FilterNode::Not(Box::new(node))
}

/// Adds a node to a conjunction, and keeps it flat.
fn push(conjunction: &mut Vec<FilterNode>, node: FilterNode) {
    match node {
        FilterNode::And(nodes) => conjunction.extend(nodes),
        node => conjunction.push(node),
    }
}

/// The operators of an object whose first name starts with `$`, unless it is a value.
pub(super) fn as_operators(json: &Json) -> Option<&Map<String, Json>> {
    let Json::Object(fields) = json else { return None };
    let first = fields.keys().next()?;
    (first.starts_with('$') && !is_extended(fields)).then_some(fields)
}

/// True for an extended value or a DBRef, whatever the order of its names (legacy forms put `$type` before `$binary`).
fn is_extended(fields: &Map<String, Json>) -> bool {
    fields.keys().next().is_some_and(|first| ext_json::NAMES.contains(&first.as_str()))
        || ["$binary", "$code"].iter().any(|name| fields.contains_key(*name))
        || ["$ref", "$id"].iter().all(|name| fields.contains_key(*name))
}

/// True if the JSON nests at most `levels` deep.
pub(crate) fn is_shallow(json: &Json, levels: usize) -> bool {
    budget::step();
    match json {
        Json::Object(_) | Json::Array(_) if levels == 0 => false,
        Json::Object(fields) => fields.values().all(|value| is_shallow(value, levels - 1)),
        Json::Array(elements) => elements.iter().all(|value| is_shallow(value, levels - 1)),
        _ => true,
    }
}

fn check_depth(json: &Json) -> Result<()> {
    if is_shallow(json, MAX_JSON_DEPTH) { Ok(()) } else { Err(too_deep()) }
}

fn defined(value: &Value) -> Result<()> {
    ensure!(!matches!(value, Value::Undefined), Kind::BadValue, "cannot compare to undefined");
    Ok(())
}

fn json_type(json: &Json) -> &'static str {
    match json {
        Json::Null => "null",
        Json::Bool(_) => "bool",
        Json::Number(_) => "a number",
        Json::String(_) => "a string",
        Json::Array(_) => "an array",
        Json::Object(_) => "an object",
    }
}

fn unknown_operator(name: &str) -> Error {
    error!(Kind::BadValue, "unknown operator: {name}")
}

fn to_come(name: &str) -> Error {
    error!(Kind::NotImplemented, "the query operator {name} is not supported yet")
}

fn too_deep() -> Error {
    error!(Kind::BadValue, "exceeded depth: a filter nests at most {MAX_FILTER_DEPTH} deep")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operator_is_listed_once() {
        let field = FIELD_OPERATORS.iter().map(|(name, _)| *name).chain(FIELD_OPERATORS_TO_COME.iter().copied());
        let top =
            TOP_LEVEL_OPERATORS.iter().map(|operator| operator.name).chain(TOP_LEVEL_OPERATORS_TO_COME.iter().copied());
        for names in [field.collect::<Vec<_>>(), top.collect::<Vec<_>>()] {
            for name in &names {
                assert!(name.starts_with('$'));
                assert_eq!(names.iter().filter(|other| *other == name).count(), 1, "{name}");
            }
        }
    }

    #[test]
    fn values_are_told_from_operators() {
        let is_operators = |json: Json| as_operators(&json).is_some();
        assert!(is_operators(serde_json::json!({"$gt": 1})));
        assert!(is_operators(serde_json::json!({"$type": "string"})));
        assert!(!is_operators(serde_json::json!({"$type": "00", "$binary": ""})));
        assert!(!is_operators(serde_json::json!({"$oid": "0123456789ab0123456789ab"})));
        assert!(!is_operators(serde_json::json!({"$ref": "c", "$id": 1})));
        assert!(!is_operators(serde_json::json!({"a": 1})));
        assert!(!is_operators(serde_json::json!({})));
    }
}
