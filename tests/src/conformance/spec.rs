//! Tests of MongoDB's CRUD specification in its unified test format: documents, a driver's operations with their results, and the
//! final contents of the collections.

use super::compare;
use super::shell::{Failure, Shell};
use super::stage::Stage;
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::fs;
use std::path::Path;

/// One test.
#[derive(Clone, Debug)]
pub struct Test {
    /// file and description
    pub id: String,
    /// the operations' names
    pub operations: Vec<String>,
    json: Value,
}

/// Reads a file of tests, one a line.
///
/// # Panics
/// If it cannot be read or is malformed.
pub fn load(path: &Path) -> Vec<Test> {
    let text = fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    text.lines().map(|line| Test::parse(serde_json::from_str(line).expect("a test is JSON"))).collect()
}

/// The result of a driver's operation.
enum Returned {
    Result(Value),
    /// an error, and the result of the operations before it, if a driver returns that
    Error(Failure, Option<Value>),
}

impl Test {
    fn parse(json: Value) -> Test {
        let source = json["source"].as_str().expect("a test has a source");
        let file = source.rsplit('/').next().unwrap_or(source).trim_end_matches(".json");
        let description = json["description"].as_str().expect("a test has a description");
        let words: String =
            description.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' }).collect();
        let words: Vec<&str> = words.split('-').filter(|word| !word.is_empty()).collect();
        let operations = json["operations"].as_array().into_iter().flatten();
        let operations = operations.filter_map(|operation| Some(operation["name"].as_str()?.to_owned())).collect();
        Test { id: format!("{file}:{}", words.join("-")), operations, json }
    }

    /// The test's first operation, by which it is counted.
    pub fn kind(&self) -> &str {
        self.operations.first().map_or("", String::as_str)
    }

    /// Runs the test.
    ///
    /// # Errors
    /// The first difference, with MongoDB's code if an operation failed with one.
    pub fn run(&self, stage: &mut Stage) -> Result<(), Failure> {
        let difference = |message: String| Failure { code: None, message };
        let mut namespaces = HashMap::new();
        let initial = self.json["initialData"].as_array().into_iter().flatten();
        for collection in initial {
            let name = collection["collectionName"].as_str().expect("a collection has a name");
            let documents = collection["documents"].as_array().cloned().unwrap_or_default();
            namespaces.insert(name.to_owned(), stage.named(name, &documents)?);
        }
        let entities: Vec<(&str, &str, &Value)> = self.json["createEntities"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|entity| {
                let collection = &entity["collection"];
                let name = collection["collectionName"].as_str()?;
                Some((collection["id"].as_str()?, name, &collection["collectionOptions"]["readConcern"]))
            })
            .collect();
        for operation in self.json["operations"].as_array().into_iter().flatten() {
            let object = operation["object"].as_str().unwrap_or_default();
            let Some((_, collection, read_concern)) = entities.iter().find(|(id, ..)| *id == object) else {
                return Err(difference(format!("an operation on {object}")));
            };
            if !namespaces.contains_key(*collection) {
                namespaces.insert((*collection).to_owned(), stage.named(collection, &[])?);
            }
            let mut operation = operation.clone();
            // Of the functions, only `aggregate` has a read concern.
            if operation["name"] == "aggregate" && read_concern.is_object() {
                operation["arguments"]["readConcern"] = (*read_concern).clone();
            }
            if let Some(target) = target(&mut operation) {
                // A pipeline's target is unsharded unless it is there already.
                let name = target.as_str().unwrap_or_default().to_owned();
                let namespace = namespaces.entry(name).or_insert_with(|| stage.fresh());
                *target = namespace.split_once('.').map_or("", |(_, name)| name).into();
            }
            let returned = perform(&mut stage.shell, &namespaces[*collection], &operation)?;
            check(&operation, returned)?;
        }
        for collection in self.json["outcome"].as_array().into_iter().flatten() {
            let name = collection["collectionName"].as_str().expect("a collection has a name");
            let wanted = collection["documents"].as_array().cloned().unwrap_or_default();
            let Some(namespace) = namespaces.get(name) else {
                return Err(difference(format!("no collection {name}")));
            };
            let found = stage.shell.find(namespace, &json!({}), &json!({}))?;
            if !compare::same_documents(&wanted, &found, false) {
                return Err(difference(format!(
                    "{name}: expected {}, found {}",
                    Value::from(wanted),
                    Value::from(found)
                )));
            }
        }
        Ok(())
    }
}

/// The name of the collection that a pipeline writes.
fn target(operation: &mut Value) -> Option<&mut Value> {
    let stages = operation.get_mut("arguments")?.get_mut("pipeline")?.as_array_mut()?;
    let stage = stages.last_mut()?.as_object_mut()?;
    match stage.iter_mut().next()? {
        (name, target) if name == "$out" && target.is_string() => Some(target),
        (name, merge) if name == "$merge" => merge.get_mut("into"),
        _ => None,
    }
}

/// A driver's operation as docshard's function.
fn perform(shell: &mut Shell, namespace: &str, operation: &Value) -> Result<Returned, Failure> {
    let name = operation["name"].as_str().unwrap_or_default();
    let empty = Map::new();
    let arguments = operation["arguments"].as_object().unwrap_or(&empty);
    let argument = |name: &str| arguments.get(name).cloned().unwrap_or_else(|| json!({}));
    let options = |positional: &[&str]| -> Value {
        let others = arguments.iter().filter(|(name, _)| !positional.contains(&name.as_str()));
        // These options do not change the result.
        let others = others.filter(|(name, _)| !matches!(name.as_str(), "batchSize" | "maxTimeMS"));
        // Drivers have an enumeration for this, docshard has names in lower case.
        let value = |name: &str, value: &Value| match value.as_str() {
            Some(returned) if name == "returnDocument" => json!(returned.to_lowercase()),
            _ => value.clone(),
        };
        Value::Object(others.map(|(name, given)| (name.clone(), value(name, given))).collect())
    };
    let result = match name {
        "insertOne" => insert_one(shell, namespace, &argument("document"), &options(&["document"])),
        "insertMany" => insert_many(shell, namespace, &argument("documents"), &options(&["documents"])),
        "updateOne" | "updateMany" => {
            let function = if name == "updateOne" { "update_one" } else { "update_many" };
            shell.call(
                function,
                namespace,
                &[&argument("filter"), &argument("update"), &options(&["filter", "update"])],
            )
        }
        "replaceOne" => {
            let options = options(&["filter", "replacement"]);
            shell.call("replace_one", namespace, &[&argument("filter"), &argument("replacement"), &options])
        }
        "deleteOne" | "deleteMany" => {
            let function = if name == "deleteOne" { "delete_one" } else { "delete_many" };
            shell.call(function, namespace, &[&argument("filter"), &options(&["filter"])])
        }
        "find" => shell.find(namespace, &argument("filter"), &options(&["filter"])).map(Value::from),
        "aggregate" => shell.aggregate(namespace, &argument("pipeline"), &options(&["pipeline"])).map(Value::from),
        "findOne" => shell.call("find_one", namespace, &[&argument("filter"), &options(&["filter"])]),
        "countDocuments" | "count" => {
            shell.call("count_documents", namespace, &[&argument("filter"), &options(&["filter"])])
        }
        "estimatedDocumentCount" => shell.call("estimated_document_count", namespace, &[]),
        "distinct" => {
            let options = options(&["fieldName", "filter"]);
            shell.distinct(namespace, &argument("fieldName"), &argument("filter"), &options)
        }
        "findOneAndDelete" => {
            shell.call("find_one_and_delete", namespace, &[&argument("filter"), &options(&["filter"])])
        }
        "findOneAndUpdate" => {
            let options = options(&["filter", "update"]);
            shell.call("find_one_and_update", namespace, &[&argument("filter"), &argument("update"), &options])
        }
        "findOneAndReplace" => {
            let options = options(&["filter", "replacement"]);
            shell.call("find_one_and_replace", namespace, &[&argument("filter"), &argument("replacement"), &options])
        }
        "bulkWrite" => shell.call("bulk_write", namespace, &[&argument("requests"), &options(&["requests"])]),
        "createIndex" => shell.call("create_index", namespace, &[&argument("keys"), &options(&["keys"])]),
        other => return Err(Failure { code: None, message: format!("the operation {other}") }),
    };
    Ok(match result {
        Ok(result) if result.get("writeErrors").is_some_and(|errors| errors != &json!([])) => {
            let code = result["writeErrors"][0]["code"].as_i64();
            Returned::Error(Failure { code, message: result.to_string() }, Some(result))
        }
        Ok(result) => Returned::Result(result),
        Err(failure) => Returned::Error(failure, None),
    })
}

fn insert_one(shell: &mut Shell, namespace: &str, document: &Value, options: &Value) -> Result<Value, Failure> {
    let sql = "SELECT docshard.insert_one($1::text, $2::text::jsonb, $3::text::json)::text";
    answer(shell.client().query_one(sql, &[&namespace, &document.to_string(), &options.to_string()]))
}

fn insert_many(shell: &mut Shell, namespace: &str, documents: &Value, options: &Value) -> Result<Value, Failure> {
    let sql = "SELECT docshard.insert_many($1::text, $2::text[]::jsonb[], $3::text::json)::text";
    let documents: Vec<String> = documents.as_array().into_iter().flatten().map(Value::to_string).collect();
    let mut result = answer(shell.client().query_one(sql, &[&namespace, &documents, &options.to_string()]))?;
    // A driver returns the result of a bulk write even if an operation failed.
    for count in ["deletedCount", "matchedCount", "modifiedCount", "upsertedCount"] {
        result[count] = json!(0);
    }
    result["upsertedIds"] = json!({});
    // Drivers number the ids.
    if let Some(ids) = result["insertedIds"].as_array() {
        result["insertedIds"] = ids.iter().enumerate().map(|(i, id)| (i.to_string(), id.clone())).collect();
    }
    Ok(result)
}

fn answer(row: Result<postgres::Row, postgres::Error>) -> Result<Value, Failure> {
    let row = row.map_err(|e| Failure::of(&e))?;
    Ok(serde_json::from_str(row.get(0)).expect("docshard answers JSON"))
}

/// Compares the result of an operation with the expected one.
fn check(operation: &Value, returned: Returned) -> Result<(), Failure> {
    let expected_error = operation.get("expectError");
    let (expected, found) = match (expected_error, returned) {
        (None, Returned::Error(failure, _)) => return Err(failure),
        (None, Returned::Result(result)) => (operation.get("expectResult"), Some(result)),
        (Some(error), Returned::Result(result)) => {
            return Err(Failure { code: None, message: format!("expected the error {error}, found {result}") });
        }
        (Some(error), Returned::Error(failure, result)) => {
            if let Some(code) = error["errorCode"].as_i64()
                && Some(code) != failure.code
            {
                return Err(failure);
            }
            if failure.code.is_none() {
                return Err(failure);
            }
            (error.get("expectResult"), result)
        }
    };
    match (expected, found) {
        (None, _) => Ok(()),
        (Some(expected), Some(found)) if matches(expected, Some(&found), true) => Ok(()),
        // Without a sort, documents have no particular order.
        (Some(Value::Array(wanted)), Some(Value::Array(found)))
            if operation["arguments"].get("sort").is_none() && compare::same_documents(wanted, &found, false) =>
        {
            Ok(())
        }
        (Some(expected), found) => {
            let found = found.unwrap_or(Value::Null);
            Err(Failure { code: None, message: format!("{}: expected {expected}, found {found}", operation["name"]) })
        }
    }
}

/// Matching of the unified test format: a document at the root may have more fields than expected.
fn matches(expected: &Value, found: Option<&Value>, root: bool) -> bool {
    if let Some(special) = expected.as_object().filter(|fields| fields.len() == 1) {
        let (name, argument) = special.iter().next().expect("one field");
        match name.as_str() {
            "$$unsetOrMatches" => return found.is_none_or(|found| matches(argument, Some(found), root)),
            "$$exists" => return found.is_some() == (argument == true),
            "$$type" => return found.is_some_and(|found| is_of_type(argument, found)),
            _ => {}
        }
    }
    let Some(found) = found else { return false };
    match (expected, found) {
        (Value::Object(wanted), Value::Object(fields)) if !wanted.keys().any(|name| name.starts_with('$')) => {
            wanted.iter().all(|(name, value)| matches(value, fields.get(name), false))
                && (root || fields.keys().all(|name| wanted.contains_key(name)))
        }
        (Value::Array(wanted), Value::Array(elements)) => {
            // Documents of a find are roots, too.
            wanted.len() == elements.len() && wanted.iter().zip(elements).all(|(a, b)| matches(a, Some(b), root))
        }
        (wanted, found) => compare::same(wanted, found),
    }
}

fn is_of_type(types: &Value, found: &Value) -> bool {
    let names: Vec<&str> = match types {
        Value::Array(names) => names.iter().filter_map(Value::as_str).collect(),
        name => name.as_str().into_iter().collect(),
    };
    names.iter().any(|name| match *name {
        "int" | "long" => found.is_i64(),
        "double" => found.is_f64(),
        "string" => found.is_string(),
        "object" => found.is_object(),
        "objectId" => found.get("$oid").is_some(),
        _ => false,
    })
}
