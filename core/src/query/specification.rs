//! Reads a client's JSON text according to its [`Role`]: a filter, an update, a pipeline, or the fields of a request.
//!
//! An object may name a field twice, as MongoDB's documents may. In a filter both conditions count. An operator of an update may be
//! given twice, for different paths. Anywhere else a repeated field is an error, as a parsed object could hold only one of the two.
//!
//! A text without such a field is parsed once. Only a text with one is parsed into a [`Tree`], which the functions here turn into
//! an equal specification that names each field once.
//!
//! INVARIANT: the result has every condition and every value of the text, or there is an error.

use crate::budget;
use crate::error::{Kind, Result, bail, ensure, error};
use crate::json::{self, Failure, Tree};
use crate::values::document::bson::read as bson;
use crate::values::document::ext_json;
use serde_json::{Map, Value as Json, json};
use std::collections::HashMap;

/// What a text specifies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A filter, which selects documents.
    Filter,
    /// An update: operators, a replacement, or a pipeline.
    Update,
    /// The stages of an aggregation.
    Pipeline,
    /// A projection.
    Projection,
    /// The fields of a command, options, or a list of operations.
    Request,
    /// An order of fields: a sort, or the keys of an index or of shards.
    Order,
    /// A value, such as a document.
    Plain,
}

/// Fields of requests and stages whose values have a role of their own. Any other field is [`Role::Plain`].
const FIELDS: &[(&str, Role)] = &[
    ("filter", Role::Filter),
    ("query", Role::Filter),
    ("q", Role::Filter),
    ("partialFilterExpression", Role::Filter),
    ("restrictSearchWithMatch", Role::Filter),
    ("validator", Role::Filter),
    ("arrayFilters", Role::Filter),
    ("u", Role::Update),
    ("update", Role::Update),
    ("replacement", Role::Update),
    ("pipeline", Role::Pipeline),
    ("whenMatched", Role::Pipeline),
    ("projection", Role::Projection),
    ("fields", Role::Projection),
    ("sort", Role::Order),
    ("hint", Role::Order),
    ("key", Role::Order),
    ("index", Role::Order),
    ("keyPattern", Role::Order),
    ("updates", Role::Request),
    ("deletes", Role::Request),
    ("indexes", Role::Request),
    ("explain", Role::Request),
    ("insertOne", Role::Request),
    ("updateOne", Role::Request),
    ("updateMany", Role::Request),
    ("replaceOne", Role::Request),
    ("deleteOne", Role::Request),
    ("deleteMany", Role::Request),
];

/// The most times that an operator may be given in a [`condition`]: each further time nests two deeper, and filters nest at most 100 deep.
const MAX_NEGATIONS: usize = 50;

/// Operators of filters that stand where a field can stand.
const LOGICAL: &[&str] = &["$and", "$or", "$nor"];

/// Parses the text of a plain value: see [`read`].
///
/// # Errors
/// Those of [`read`].
pub fn parse(text: &str) -> Result<Json> {
    read(text, Role::Plain).map(|(value, _)| value)
}

/// Reads a text. The second part is an equal text that names each field once; None if the given text does so itself.
///
/// # Errors
/// `FailedToParse` for malformed JSON, `Overflow` for a value that is nested too deeply. For a field that is given twice: `Location40323`
/// in a stage, `Location31250` in a projection, `ConflictingUpdateOperators` for a path of an operator, `Location40413` elsewhere.
pub fn read(text: &str, role: Role) -> Result<(Json, Option<String>)> {
    let malformed = |failure: Failure| match failure {
        Failure::TooDeep => error!(Kind::Overflow, "{failure}"),
        failure => error!(Kind::FailedToParse, "malformed JSON: {failure}"),
    };
    match json::parse(text) {
        Ok(value) => Ok((value, None)),
        Err(Failure::RepeatedField(_)) => {
            let value = resolve(json::parse_tree(text).map_err(malformed)?, role)?;
            let text = value.to_string();
            Ok((value, Some(text)))
        }
        Err(failure) => Err(malformed(failure)),
    }
}

/// Like [`read`], of a document in BSON. If the field `left` is an array of documents, the result has an empty array instead, and the
/// documents' bytes are returned separately, unless the document names a field twice.
///
/// # Errors
/// `InvalidBSON`, `DocumentTooDeep`; for a field that is given twice those of [`read`].
pub fn read_bson<'a>(bytes: &'a [u8], role: Role, left: Option<&str>) -> Result<bson::Split<'a>> {
    match bson::parse_without(bytes, left) {
        Ok(read) => Ok(read),
        Err(bson::Failure::RepeatedField(_)) => Ok((resolve(bson::parse_tree(bytes)?, role)?, None)),
        Err(bson::Failure::Invalid(error)) => Err(error),
    }
}

fn resolve(tree: Tree, role: Role) -> Result<Json> {
    match (tree, role) {
        (Tree::Scalar(value), _) => Ok(value),
        // A list of filters, operations, stages or values. An update that is an array is a pipeline.
        (Tree::Array(items), _) => {
            let role = if role == Role::Update { Role::Pipeline } else { role };
            items.into_iter().map(|item| resolve(item, role)).collect()
        }
        (Tree::Object(fields), Role::Filter) => filter(fields),
        (Tree::Object(fields), Role::Update) => update(fields),
        (Tree::Object(fields), Role::Pipeline) => stage(fields),
        (Tree::Object(fields), Role::Projection) => projection(fields),
        (Tree::Object(fields), Role::Request) => once(fields, 40413, |name, value| resolve(value, role_of(name))),
        (Tree::Object(fields), Role::Order | Role::Plain) => {
            once(fields, 40413, |_, value| resolve(value, Role::Plain))
        }
    }
}

/// True for operators whose field `sortBy` is an order.
fn sorts_by(operator: &str) -> bool {
    operator.starts_with("$top")
        || operator.starts_with("$bottom")
        || ["$setWindowFields", "$fill", "$sortArray"].contains(&operator)
}

/// Fields of requests that contain documents. [`check_unordered`] does not check their values.
const DOCUMENTS: &[&str] = &["document", "documents"];

/// Checks a specification that comes from jsonb, which does not keep the order of fields: an order of several fields is refused.
///
/// # Errors
/// `BadValue`.
pub fn check_unordered(json: &Json, role: Role) -> Result<()> {
    budget::step();
    match (json, role) {
        (Json::Array(items), _) => items.iter().try_for_each(|item| check_unordered(item, role)),
        (Json::Object(fields), Role::Order) if fields.len() > 1 => {
            let message = format!("jsonb does not keep the order of the fields of {json}");
            Err(error!(Kind::BadValue, "{message}")
                .with_hint("Pass json instead of jsonb, or an array of pairs, such as [[\"a\", 1], [\"b\", -1]]."))
        }
        (Json::Object(fields), Role::Request) => {
            // In dropIndexes it is the keys of an index, in collMod a change of one.
            let of_field = |name: &str| match name {
                "index" if fields.contains_key("collMod") => Role::Request,
                name => role_of(name),
            };
            fields
                .iter()
                .filter(|(name, _)| !DOCUMENTS.contains(&name.as_str()))
                .try_for_each(|(name, value)| check_unordered(value, of_field(name)))
        }
        (Json::Object(fields), _) => fields.iter().try_for_each(|(name, value)| match name.as_str() {
            "$literal" => Ok(()),
            "$sort" => check_unordered(value, Role::Order),
            name if sorts_by(name) => {
                if let Some(order) = value.get("sortBy") {
                    check_unordered(order, Role::Order)?;
                }
                check_unordered(value, Role::Plain)
            }
            _ => check_unordered(value, Role::Plain),
        }),
        _ => Ok(()),
    }
}

fn role_of(field: &str) -> Role {
    FIELDS.iter().find(|(name, _)| *name == field).map_or(Role::Plain, |(_, role)| *role)
}

/// Makes an object whose fields may not be given twice; the error has this code.
fn once(
    fields: Vec<(String, Tree)>,
    code: impl Into<Kind>,
    value_of: impl Fn(&str, Tree) -> Result<Json>,
) -> Result<Json> {
    let kind = code.into();
    let mut object = Map::new();
    for (name, value) in fields {
        budget::step();
        ensure!(!object.contains_key(&name), kind, "the field '{name}' is given twice");
        let value = value_of(&name, value)?;
        object.insert(name, value);
    }
    Ok(Json::Object(object))
}

/// Distributes fields over objects that name each field once: the n-th occurrence of a name is in the n-th object.
fn split(fields: Vec<(String, Tree)>) -> Vec<Vec<(String, Tree)>> {
    let mut seen: HashMap<String, usize> = HashMap::new();
    let mut objects: Vec<Vec<(String, Tree)>> = Vec::new();
    for (name, value) in fields {
        budget::step();
        let count = seen.entry(name.clone()).or_default();
        if *count == objects.len() {
            objects.push(Vec::new());
        }
        objects[*count].push((name, value));
        *count += 1;
    }
    objects
}

/// A filter; conditions that are given twice become branches of an `$and`.
fn filter(fields: Vec<(String, Tree)>) -> Result<Json> {
    if is_extended(&fields) {
        return resolve(Tree::Object(fields), Role::Plain);
    }
    let mut branches = Vec::new();
    for fields in split(fields) {
        let mut branch = Map::new();
        // The second and later conditions of fields whose operators are given twice.
        let mut more = Vec::new();
        for (name, value) in fields {
            let value = match value {
                value if LOGICAL.contains(&name.as_str()) => resolve(value, Role::Filter)?,
                Tree::Object(operators) if !name.starts_with('$') && is_operators(&operators) => {
                    let mut conditions = split(operators).into_iter();
                    let first = conditions.next().unwrap_or_default();
                    for condition in conditions {
                        // A second `$options` without a second `$regex` would have nothing to apply to, so it is refused.
                        let is_alone = condition.iter().any(|(name, _)| name == "$options")
                            && condition.iter().all(|(name, _)| name != "$regex");
                        ensure!(!is_alone, 40413, "the field '$options' is given twice");
                        more.push(json!({ &name: once(condition, 40413, operator)? }));
                    }
                    once(first, 40413, operator)?
                }
                value => resolve(value, Role::Plain)?,
            };
            branch.insert(name, value);
        }
        branches.push(Json::Object(branch));
        branches.append(&mut more);
    }
    Ok(match branches.len() {
        0 => json!({}),
        1 => branches.remove(0),
        _ => json!({ "$and": branches }),
    })
}

/// True for the operators of a field; false for a value, such as an extended one or a DBRef.
fn is_operators(fields: &[(String, Tree)]) -> bool {
    fields.first().is_some_and(|(name, _)| name.starts_with('$') && !ext_json::is_reference(name))
        && !is_extended(fields)
}

/// True for a value of an extended type, such as `{"$numberInt": "1"}`.
fn is_extended(fields: &[(String, Tree)]) -> bool {
    fields.first().is_some_and(|(name, _)| ext_json::NAMES.contains(&name.as_str()))
}

/// The argument of a field's operator.
fn operator(name: &str, argument: Tree) -> Result<Json> {
    match (name, argument) {
        ("$not" | "$elemMatch", argument) => condition(argument),
        ("$all", Tree::Array(items)) => items
            .into_iter()
            .map(|item| match item {
                Tree::Object(fields) if is_operators(&fields) => condition(Tree::Object(fields)),
                value => resolve(value, Role::Plain),
            })
            .collect(),
        (_, argument) => resolve(argument, Role::Plain),
    }
}

/// A condition on an element of an array, or on a value: operators, or a filter.
fn condition(tree: Tree) -> Result<Json> {
    match tree {
        Tree::Object(fields) if !is_operators(&fields) || LOGICAL.contains(&fields[0].0.as_str()) => filter(fields),
        Tree::Object(operators) => {
            // `$and` is not allowed here. So each further condition is added as the negation of its negation.
            let conditions = split(operators);
            ensure!(
                conditions.len() <= MAX_NEGATIONS,
                Kind::BadValue,
                "an operator is given more than {MAX_NEGATIONS} times"
            );
            let mut result: Option<Json> = None;
            for condition in conditions.into_iter().rev() {
                let mut condition = once(condition, 40413, operator)?;
                if let (Some(rest), Json::Object(fields)) = (result.take(), &mut condition) {
                    ensure!(
                        !fields.contains_key("$not"),
                        Kind::BadValue,
                        "$not is given with operators that are given twice"
                    );
                    fields.insert("$not".to_owned(), json!({ "$not": rest }));
                }
                result = Some(condition);
            }
            Ok(result.unwrap_or_else(|| json!({})))
        }
        other => resolve(other, Role::Plain),
    }
}

/// An update by operators, or a replacement.
fn update(fields: Vec<(String, Tree)>) -> Result<Json> {
    if !fields.first().is_some_and(|(name, _)| name.starts_with('$')) {
        return resolve(Tree::Object(fields), Role::Plain);
    }
    let mut operators = Map::new();
    for (name, argument) in fields {
        let paths = match argument {
            Tree::Object(fields) => once(fields, Kind::ConflictingUpdateOperators, |_, value| match value {
                value if name == "$pull" => condition(value),
                value => resolve(value, Role::Plain),
            })?,
            argument => resolve(argument, Role::Plain)?,
        };
        match (operators.get_mut(&name), paths) {
            (None, paths) => {
                operators.insert(name, paths);
            }
            (Some(Json::Object(known)), Json::Object(paths)) => {
                for (path, argument) in paths {
                    if known.insert(path.clone(), argument).is_some() {
                        let message = "Updating the path '{path}' would create a conflict at '{path}'";
                        bail!(Kind::ConflictingUpdateOperators, "{}", message.replace("{path}", &path));
                    }
                }
            }
            (Some(_), _) => bail!(Kind::FailedToParse, "the modifier {name} is given twice, and not with fields"),
        }
    }
    Ok(Json::Object(operators))
}

/// A stage, which has one field.
fn stage(fields: Vec<(String, Tree)>) -> Result<Json> {
    once(fields, 40323, |name, argument| match (name, argument) {
        ("$match", argument) => resolve(argument, Role::Filter),
        ("$facet", Tree::Object(facets)) => once(facets, 40413, |_, pipeline| resolve(pipeline, Role::Pipeline)),
        ("$project" | "$unset", argument) => resolve(argument, Role::Projection),
        ("$addFields" | "$set", Tree::Object(fields)) => once(fields, 40176, |_, value| resolve(value, Role::Plain)),
        ("$lookup" | "$graphLookup" | "$unionWith" | "$merge", argument) => resolve(argument, Role::Request),
        (_, argument) => resolve(argument, Role::Plain),
    })
}

/// A projection, whose `$elemMatch` has a filter.
fn projection(fields: Vec<(String, Tree)>) -> Result<Json> {
    once(fields, 31250, |_, value| match value {
        Tree::Object(fields) if fields.iter().any(|(name, _)| name == "$elemMatch") => once(fields, 40413, operator),
        value => resolve(value, Role::Plain),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_as(text: &str, role: Role) -> std::result::Result<Json, i32> {
        let read = read(text, role).map_err(|error| error.kind.code())?;
        // The text that is sent to shards names each field once, and parses to the same value.
        if let Some(text) = &read.1 {
            assert_eq!(json::parse(text).unwrap(), read.0, "{text}");
        }
        Ok(read.0)
    }

    #[test]
    fn many_repetitions_do_not_nest_without_limit() {
        let text = |count: usize| format!(r#"{{"a": {{"$elemMatch": {{{}}}}}}}"#, vec![r#""$gt": 1"#; count].join(","));
        assert!(read_as(&text(MAX_NEGATIONS), Role::Filter).is_ok());
        assert_eq!(read_as(&text(MAX_NEGATIONS + 1), Role::Filter), Err(Kind::BadValue.code()));
        assert_eq!(read_as(&text(200_000), Role::Filter), Err(Kind::BadValue.code()));
    }

    #[test]
    fn orders_of_jsonb() {
        use Role::{Filter, Order, Pipeline, Plain, Request, Update};
        for (role, json, is_refused) in [
            (Order, json!({"a": 1}), false),
            (Order, json!({"a": 1, "b": 1}), true),
            (Order, json!([["a", 1], ["b", 1]]), false),
            (Plain, json!({"a": 1, "b": 1}), false),
            (Request, json!({"sort": {"a": 1, "b": 1}}), true),
            (Request, json!({"sort": {"a": 1}, "let": {"a": 1, "b": 2}}), false),
            (Request, json!({"find": "c", "hint": {"a": 1, "b": 1}}), true),
            (Request, json!([{"key": {"a": 1, "b": 1}}]), true),
            (
                Request,
                json!({"insert": "c", "documents": [{"key": {"a": 1, "b": 2}, "$sort": {"a": 1, "b": 1}}]}),
                false,
            ),
            (Request, json!({"update": "c", "updates": [{"q": {}, "u": {"$set": {"sort": {"a": 1, "b": 2}}}}]}), false),
            (
                Request,
                json!([{"updateOne": {"update": {"$push": {"a": {"$each": [], "$sort": {"x": 1, "y": 1}}}}}}]),
                true,
            ),
            (Request, json!({"explain": {"find": "c", "sort": {"a": 1, "b": 1}}}), true),
            (Filter, json!({"sort": {"a": 1, "b": 1}, "sortBy": {"a": 1, "b": 1}}), false),
            (Filter, json!({"$expr": {"$sortArray": {"input": "$a", "sortBy": {"a": 1, "b": 1}}}}), true),
            (Update, json!({"$push": {"a": {"$each": [], "$sort": -1}}}), false),
            (Pipeline, json!([{"$sort": {"a": 1, "b": 1}}]), true),
            (Pipeline, json!([{"$facet": {"x": [{"$lookup": {"pipeline": [{"$sort": {"a": 1, "b": 1}}]}}]}}]), true),
            (Pipeline, json!([{"$setWindowFields": {"sortBy": {"a": 1, "b": 1}}}]), true),
            (Pipeline, json!([{"$group": {"_id": null, "x": {"$topN": {"sortBy": {"a": 1, "b": 1}}}}}]), true),
            (
                Pipeline,
                json!([{"$set": {"sortBy": {"a": 1, "b": 1}, "x": {"$literal": {"$sort": {"a": 1, "b": 1}}}}}]),
                false,
            ),
        ] {
            assert_eq!(check_unordered(&json, role).is_err(), is_refused, "{json}");
        }
    }

    #[test]
    fn fields_given_twice() {
        use Role::{Filter, Pipeline, Plain, Projection, Request, Update};
        for (role, text, expected) in [
            (Filter, r#"{"a": 1, "b": 2}"#, Ok(json!({"a": 1, "b": 2}))),
            (
                Filter,
                r#"{"a": {"$gte": 4}, "b": 1, "a": {"$lte": 100}}"#,
                Ok(json!({"$and": [{"a": {"$gte": 4}, "b": 1}, {"a": {"$lte": 100}}]})),
            ),
            (
                Filter,
                r#"{"a": {"$gt": 4, "$lt": 9, "$gt": 5, "$gt": 6}, "b": 1}"#,
                Ok(json!({"$and": [{"a": {"$gt": 4, "$lt": 9}, "b": 1}, {"a": {"$gt": 5}}, {"a": {"$gt": 6}}]})),
            ),
            (
                Filter,
                r#"{"$or": [{"a": 1, "a": 2}], "$or": [{"b": 1}]}"#,
                Ok(json!({"$and": [{"$or": [{"$and": [{"a": 1}, {"a": 2}]}]}, {"$or": [{"b": 1}]}]})),
            ),
            (
                Filter,
                r#"{"a": {"$elemMatch": {"$gt": 1, "$gt": 2, "$gt": 3}}}"#,
                Ok(
                    json!({"a": {"$elemMatch": {"$gt": 1, "$not": {"$not": {"$gt": 2, "$not": {"$not": {"$gt": 3}}}}}}}),
                ),
            ),
            (
                Filter,
                r#"{"a": {"$elemMatch": {"x": 1, "x": 2}, "$size": 1}}"#,
                Ok(json!({"a": {"$elemMatch": {"$and": [{"x": 1}, {"x": 2}]}, "$size": 1}})),
            ),
            (Filter, r#"{"a": {"$elemMatch": {"$not": {"$gt": 1}, "$not": {"$lt": 0}}}}"#, Err(2)),
            (Filter, r#"{"a": {"x": 1, "x": 2}}"#, Err(40413)),
            (Filter, r#"{"$expr": {"$gt": ["$a", 1], "$gt": ["$a", 2]}}"#, Err(40413)),
            (
                Update,
                r#"{"$set": {"a": 1}, "$inc": {"c": 1}, "$set": {"b": 1}}"#,
                Ok(json!({"$set": {"a": 1, "b": 1}, "$inc": {"c": 1}})),
            ),
            (Update, r#"{"$set": {"a": 1}, "$set": {"a": 1}}"#, Err(40)),
            (Update, r#"{"$set": {"a": 1, "a": 2}}"#, Err(40)),
            (Update, r#"{"$set": 1, "$set": {"a": 2}}"#, Err(9)),
            (Update, r#"{"$set": {"a": {"x": 1, "x": 2}}}"#, Err(40413)),
            (Update, r#"{"a": 1, "a": 2}"#, Err(40413)),
            (Update, r#"[{"$set": {"a": 1, "a": 2}}]"#, Err(40176)),
            (
                Update,
                r#"{"$pull": {"a": {"$gt": 1, "$gt": 2}, "b": {"x": 1, "x": 2}}}"#,
                Ok(json!({"$pull": {
                    "a": {"$gt": 1, "$not": {"$not": {"$gt": 2}}}, "b": {"$and": [{"x": 1}, {"x": 2}]}}})),
            ),
            (Pipeline, r#"[{"$match": {"a": 1, "a": 2}}]"#, Ok(json!([{"$match": {"$and": [{"a": 1}, {"a": 2}]}}]))),
            (Pipeline, r#"[{"$match": {"a": 1}, "$match": {"b": 1}}]"#, Err(40323)),
            (Pipeline, r#"[{"$project": {"a": 1, "a": 1}}]"#, Err(31250)),
            (Pipeline, r#"[{"$lookup": {"from": "x", "from": "y"}}]"#, Err(40413)),
            (
                Pipeline,
                r#"[{"$lookup": {"pipeline": [{"$match": {"a": 1, "a": 2}}]}}]"#,
                Ok(json!([{"$lookup": {"pipeline": [{"$match": {"$and": [{"a": 1}, {"a": 2}]}}]}}])),
            ),
            (
                Pipeline,
                r#"[{"$facet": {"f": [{"$match": {"a": 1, "a": 2}}]}}]"#,
                Ok(json!([{"$facet": {"f": [{"$match": {"$and": [{"a": 1}, {"a": 2}]}}]}}])),
            ),
            (
                Projection,
                r#"{"a": {"$elemMatch": {"x": 1, "x": 2}}}"#,
                Ok(json!({"a": {"$elemMatch": {"$and": [{"x": 1}, {"x": 2}]}}})),
            ),
            (Projection, r#"{"a": 1, "a": 0}"#, Err(31250)),
            (Request, r#"{"find": "c", "limit": 1, "limit": 2}"#, Err(40413)),
            (Request, r#"[{"insertOne": {"document": {}}, "insertOne": {"document": {}}}]"#, Err(40413)),
            (
                Request,
                r#"{"update": "c", "updates": [{"q": {"a": 1, "a": 2}, "u": {"$set": {"b": 1}, "$set": {"c": 1}}}]}"#,
                Ok(json!({"update": "c", "updates": [
                    {"q": {"$and": [{"a": 1}, {"a": 2}]}, "u": {"$set": {"b": 1, "c": 1}}}]})),
            ),
            (Filter, r#"{"_id": {"$numberInt": "1", "$numberInt": "2"}}"#, Err(40413)),
            (Filter, r#"{"a": {"$oid": "5f0000000000000000000001", "$oid": "5f0000000000000000000001"}}"#, Err(40413)),
            (Filter, r#"{"a": {"$date": 1, "$date": 2}}"#, Err(40413)),
            (Filter, r#"{"a": {"$binary": {"base64": "", "base64": ""}}}"#, Err(40413)),
            (Filter, r#"{"a": {"$elemMatch": {"$numberLong": "1", "$numberLong": "1"}}}"#, Err(40413)),
            (Filter, r#"{"a": {"$regex": "a", "$options": "i", "$options": "m"}}"#, Err(40413)),
            (Plain, r#"{"a": 1, "a": -1}"#, Err(40413)),
            (Plain, r#"{"a": "#, Err(9)),
        ] {
            assert_eq!(read_as(text, role), expected, "{text}");
        }
        let nested = |levels: usize| format!("{}1{}", r#"{"$and": ["#.repeat(levels), "]}".repeat(levels));
        assert_eq!(read_as(&nested(150), Filter), Err(15));
        assert!(read_as(&nested(60), Filter).is_ok());
    }
}
