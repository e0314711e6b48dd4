//! Runs MongoDB's commands through docshard's SQL functions, and returns the answers of MongoDB's server.
//!
//! A command that the functions cannot express (with a missing field, or one that no driver sends) goes to
//! `docshard.run_command`.

use postgres::Client;
use postgres::types::ToSql;
use serde_json::{Map, Value, json};
use std::collections::HashSet;

/// The way in which commands are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    /// by an SQL function for each operation
    Functions,
    /// `docshard.run_command`
    Command,
}

/// The answer of a command.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// documents of a find
    Documents(Vec<Value>),
    /// a command's answer
    Response(Value),
}

/// An error.
#[derive(Clone, Debug)]
pub struct Failure {
    /// MongoDB's code; None for an error that has none
    pub code: Option<i64>,
    /// the message
    pub message: String,
}

impl Failure {
    fn new(message: impl Into<String>) -> Failure {
        Failure { code: None, message: message.into() }
    }

    /// An error as the client sees it: MongoDB's code is in its detail.
    pub fn of(error: &postgres::Error) -> Failure {
        let Some(error) = error.as_db_error() else { return Failure::new(error.to_string()) };
        let detail = error.detail().unwrap_or_default();
        let code = detail.strip_prefix("MongoDB error ").and_then(|rest| {
            let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
            digits.parse().ok()
        });
        Failure { code, message: format!("{} {}: {} {detail}", error.severity(), error.code().code(), error.message()) }
    }
}

/// A connection that runs commands.
pub struct Shell {
    client: Client,
    door: Door,
    functions: HashSet<String>,
}

impl Shell {
    /// Over a connection to the router.
    ///
    /// # Panics
    /// If the connection fails.
    pub fn new(mut client: Client, door: Door) -> Shell {
        let sql = "SELECT proname::text FROM pg_proc WHERE pronamespace = 'docshard'::regnamespace";
        let rows = client.query(sql, &[]).expect("the extension is there");
        let functions = rows.iter().map(|row| row.get(0)).collect();
        Shell { client, door, functions }
    }

    /// True if there is such a function in docshard's schema.
    pub fn has(&self, function: &str) -> bool {
        self.functions.contains(function)
    }

    /// The connection itself.
    pub fn client(&mut self) -> &mut Client {
        &mut self.client
    }

    /// Calls a function with a namespace and `json` arguments; None stands for the function's default.
    pub fn call(&mut self, function: &str, namespace: &str, arguments: &[&Value]) -> Result<Value, Failure> {
        let texts: Vec<String> = arguments.iter().map(|argument| argument.to_string()).collect();
        let mut sql = format!("SELECT docshard.{function}($1::text");
        for index in 0..texts.len() {
            sql += &format!(", ${}::text::json", index + 2);
        }
        sql += ")::text";
        let mut parameters: Vec<&(dyn ToSql + Sync)> = vec![&namespace];
        parameters.extend(texts.iter().map(|text| text as &(dyn ToSql + Sync)));
        let row = self.client.query_one(&sql, &parameters).map_err(|e| Failure::of(&e))?;
        Ok(row.get::<_, Option<String>>(0).map_or(Value::Null, |text| parse(&text)))
    }

    /// The documents that a find returns.
    pub fn find(&mut self, namespace: &str, filter: &Value, options: &Value) -> Result<Vec<Value>, Failure> {
        let sql = "SELECT d::text FROM docshard.find($1::text, $2::text::json, $3::text::json) AS d";
        let rows = self
            .client
            .query(sql, &[&namespace, &filter.to_string(), &options.to_string()])
            .map_err(|e| Failure::of(&e))?;
        Ok(rows.iter().map(|row| parse(row.get(0))).collect())
    }

    /// The documents that a pipeline makes.
    pub fn aggregate(&mut self, namespace: &str, pipeline: &Value, options: &Value) -> Result<Vec<Value>, Failure> {
        let sql = "SELECT d::text FROM docshard.aggregate($1::text, $2::text::json, $3::text::json) AS d";
        let rows = self
            .client
            .query(sql, &[&namespace, &pipeline.to_string(), &options.to_string()])
            .map_err(|e| Failure::of(&e))?;
        Ok(rows.iter().map(|row| parse(row.get(0))).collect())
    }

    /// Inserts documents, all or none.
    pub fn insert(&mut self, namespace: &str, documents: &[Value]) -> Result<(), Failure> {
        let texts: Vec<String> = documents.iter().map(Value::to_string).collect();
        let sql = "SELECT docshard.insert_many($1::text, $2::text[]::jsonb[])::text";
        self.client.query_one(sql, &[&namespace, &texts]).map(|_| ()).map_err(|e| Failure::of(&e))
    }

    /// Runs a command on a collection of another name.
    pub fn run(&mut self, namespace: &str, command: &Map<String, Value>) -> Result<Answer, Failure> {
        if self.door == Door::Command {
            return self.run_command(namespace, command);
        }
        let Some((name, target)) = command.iter().next() else { return self.run_command(namespace, command) };
        if name == "aggregate" && *target == json!(1) {
            let database = namespace.split_once('.').map_or(namespace, |(database, _)| database);
            return self.run_aggregate(&format!("{database}.$cmd.aggregate"), command);
        }
        if !target.is_string() {
            return self.run_command(namespace, command);
        }
        match name.as_str() {
            "find" if only(command, FIND) => self.run_find(namespace, command),
            "count" if only(command, COUNT) => self.run_count(namespace, command),
            "distinct" if only(command, DISTINCT) && command.get("key").is_some_and(Value::is_string) => {
                self.run_distinct(namespace, command)
            }
            "aggregate" if only(command, AGGREGATE) && command.contains_key("pipeline") => {
                self.run_aggregate(namespace, command)
            }
            "insert"
                if only(command, INSERT)
                    && is_list_of_objects(command.get("documents"))
                    && command.get("ordered").is_none_or(Value::is_boolean) =>
            {
                self.run_insert(namespace, command)
            }
            "update" if only(command, UPDATE) && operations(command, "updates", &["q", "u"], UPDATE_OPERATION) => {
                self.run_updates(namespace, command)
            }
            "delete" if only(command, DELETE) && operations(command, "deletes", &["q", "limit"], DELETE_OPERATION) => {
                self.run_deletes(namespace, command)
            }
            "findAndModify" | "findandmodify" => self.run_find_and_modify(namespace, command),
            "createIndexes"
                if only(command, &["createIndexes", "indexes"]) && is_list_of_objects(command.get("indexes")) =>
            {
                self.run_create_indexes(namespace, command)
            }
            "shardCollection" if command.get("key").is_some_and(Value::is_object) => {
                let options = rest(command, &["shardCollection", "key"]);
                self.call("shard_collection", namespace, &[&command["key"], &options])?;
                Ok(Answer::Response(json!({"ok": 1})))
            }
            _ => self.run_command(namespace, command),
        }
    }

    fn run_command(&mut self, namespace: &str, command: &Map<String, Value>) -> Result<Answer, Failure> {
        if !self.has("run_command") {
            return Err(Failure::new("there is no run_command"));
        }
        let (mut database, collection) = namespace.split_once('.').expect("a namespace has a dot");
        let mut command = command.clone();
        if let Some((name, target)) = command.iter().next().map(|(name, target)| (name.clone(), target.clone()))
            && target.is_string()
        {
            let full = name.to_lowercase().ends_with("shardcollection");
            command[&name] = json!(if full { namespace } else { collection });
            if full {
                database = "admin";
            }
        }
        let wanted = command.clone();
        let sql = "SELECT docshard.run_command($1::text, $2::text::json)::text";
        let row = self
            .client
            .query_one(sql, &[&database, &Value::Object(command).to_string()])
            .map_err(|e| Failure::of(&e))?;
        let answer = parse(row.get(0));
        if answer["ok"].as_f64() != Some(1.0) {
            return Err(Failure { code: answer["code"].as_i64(), message: answer.to_string() });
        }
        let mut documents = match answer["cursor"]["firstBatch"].as_array() {
            Some(batch) => batch.clone(),
            None => return Ok(Answer::Response(answer)),
        };
        let mut cursor = answer["cursor"]["id"].clone();
        while cursor.as_i64().is_some_and(|id| id != 0) && wanted.get("singleBatch") != Some(&json!(true)) {
            let more = json!({"getMore": cursor, "collection": collection});
            let row = self.client.query_one(sql, &[&database, &more.to_string()]).map_err(|e| Failure::of(&e))?;
            let answer = parse(row.get(0));
            documents.extend(answer["cursor"]["nextBatch"].as_array().cloned().unwrap_or_default());
            cursor = answer["cursor"]["id"].clone();
        }
        Ok(Answer::Documents(documents))
    }

    fn run_find(&mut self, namespace: &str, command: &Map<String, Value>) -> Result<Answer, Failure> {
        let filter = command.get("filter").cloned().unwrap_or_else(|| json!({}));
        let options = rest(command, &["find", "filter", "$db", "batchSize", "singleBatch"]);
        Ok(Answer::Documents(self.find(namespace, &filter, &options)?))
    }

    fn run_aggregate(&mut self, namespace: &str, command: &Map<String, Value>) -> Result<Answer, Failure> {
        let options = rest(command, &["aggregate", "pipeline", "cursor", "$db"]);
        Ok(Answer::Documents(self.aggregate(namespace, &command["pipeline"], &options)?))
    }

    fn run_count(&mut self, namespace: &str, command: &Map<String, Value>) -> Result<Answer, Failure> {
        let filter = command.get("query").cloned().unwrap_or_else(|| json!({}));
        let mut options = rest(command, &["count", "query", "$db"]);
        // The command has no limit of 0.
        if options["limit"].as_i64() == Some(0) {
            options.as_object_mut().expect("an object").remove("limit");
        }
        let n = self.call("count_documents", namespace, &[&filter, &options])?;
        Ok(Answer::Response(json!({"n": n, "ok": 1})))
    }

    fn run_distinct(&mut self, namespace: &str, command: &Map<String, Value>) -> Result<Answer, Failure> {
        let filter = command.get("query").cloned().unwrap_or_else(|| json!({}));
        let options = rest(command, &["distinct", "key", "query", "$db"]);
        let values = self.distinct(namespace, &command["key"], &filter, &options)?;
        Ok(Answer::Response(json!({"values": values, "ok": 1})))
    }

    /// The distinct values of a field.
    pub fn distinct(
        &mut self,
        namespace: &str,
        field: &Value,
        filter: &Value,
        options: &Value,
    ) -> Result<Value, Failure> {
        let sql = "SELECT d::text FROM docshard.distinct($1::text, $2::text, $3::text::json, $4::text::json) AS d";
        let field = field.as_str().unwrap_or_default();
        let rows = self
            .client
            .query(sql, &[&namespace, &field, &filter.to_string(), &options.to_string()])
            .map_err(|e| Failure::of(&e))?;
        Ok(rows.iter().map(|row| parse(row.get(0))).collect())
    }

    fn run_insert(&mut self, namespace: &str, command: &Map<String, Value>) -> Result<Answer, Failure> {
        let sql = "SELECT docshard.insert_one($1::text, $2::text::jsonb)::text";
        let mut batch = Batch::of(command);
        for document in command["documents"].as_array().into_iter().flatten() {
            let inserted = self.client.query_one(sql, &[&namespace, &document.to_string()]);
            if !batch.add(inserted.map(|_| json!({"matchedCount": 1})).map_err(|e| Failure::of(&e))) {
                break;
            }
        }
        Ok(batch.answer(false))
    }

    fn run_updates(&mut self, namespace: &str, command: &Map<String, Value>) -> Result<Answer, Failure> {
        let mut batch = Batch::of(command);
        for operation in command["updates"].as_array().into_iter().flatten().filter_map(Value::as_object) {
            let many = operation.get("multi") == Some(&json!(true));
            let function = match operation["u"].as_object().map(|update| update.keys().next()) {
                Some(None) if !many => "replace_one",
                Some(Some(name)) if !many && !name.starts_with('$') => "replace_one",
                _ if many => "update_many",
                _ => "update_one",
            };
            let mut options = rest(operation, &["q", "u", "multi"]);
            with_let(&mut options, command);
            if !batch.add(self.call(function, namespace, &[&operation["q"], &operation["u"], &options])) {
                break;
            }
        }
        Ok(batch.answer(true))
    }

    fn run_deletes(&mut self, namespace: &str, command: &Map<String, Value>) -> Result<Answer, Failure> {
        let mut batch = Batch::of(command);
        for operation in command["deletes"].as_array().into_iter().flatten().filter_map(Value::as_object) {
            let function = if operation["limit"].as_f64() == Some(0.0) { "delete_many" } else { "delete_one" };
            let mut options = rest(operation, &["q", "limit"]);
            with_let(&mut options, command);
            if !batch.add(self.call(function, namespace, &[&operation["q"], &options])) {
                break;
            }
        }
        Ok(batch.answer(false))
    }

    fn run_find_and_modify(&mut self, namespace: &str, command: &Map<String, Value>) -> Result<Answer, Failure> {
        let options = rest(command, &["findAndModify", "findandmodify", "$db"]);
        // The function returns only the document, without the command's other fields.
        let value = self.call("find_and_modify", namespace, &[&options])?;
        Ok(Answer::Response(json!({"value": value, "ok": 1})))
    }

    fn run_create_indexes(&mut self, namespace: &str, command: &Map<String, Value>) -> Result<Answer, Failure> {
        let indexes = command["indexes"].as_array().into_iter().flatten().filter_map(Value::as_object);
        let indexes: Value = indexes.map(|index| rest(index, &["v"])).collect();
        self.call("create_indexes", namespace, &[&indexes])?;
        Ok(Answer::Response(json!({"ok": 1})))
    }
}

const FIND: &[&str] = &[
    "find",
    "filter",
    "projection",
    "sort",
    "skip",
    "limit",
    "collation",
    "let",
    "hint",
    "batchSize",
    "singleBatch",
    "comment",
    "$db",
];
const COUNT: &[&str] = &["count", "query", "skip", "limit", "collation", "let", "hint", "comment", "$db"];
const DISTINCT: &[&str] = &["distinct", "key", "query", "collation", "let", "hint", "comment", "$db"];
const AGGREGATE: &[&str] = &["aggregate", "pipeline", "cursor", "collation", "let", "hint", "comment", "$db"];
const INSERT: &[&str] = &["insert", "documents", "ordered", "comment", "$db"];
const UPDATE: &[&str] = &["update", "updates", "ordered", "let", "comment", "$db"];
const UPDATE_OPERATION: &[&str] = &["q", "u", "multi", "upsert", "arrayFilters", "collation", "sort", "hint"];
const DELETE: &[&str] = &["delete", "deletes", "ordered", "let", "comment", "$db"];
const DELETE_OPERATION: &[&str] = &["q", "limit", "collation", "hint"];

/// The answer of a function; `create_index` returns a name.
fn parse(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| json!(text))
}

/// True if the command has no other fields than these.
fn only(command: &Map<String, Value>, fields: &[&str]) -> bool {
    command.keys().all(|field| fields.contains(&field.as_str()))
}

fn is_list_of_objects(value: Option<&Value>) -> bool {
    value.and_then(Value::as_array).is_some_and(|list| !list.is_empty() && list.iter().all(Value::is_object))
}

/// True if the functions can express all operations of the list: they have all required fields and no unknown ones.
fn operations(command: &Map<String, Value>, list: &str, required: &[&str], known: &[&str]) -> bool {
    let fits = |operation: &Value| {
        let Some(operation) = operation.as_object() else { return false };
        let limit_fits = operation.get("limit").is_none_or(|limit| matches!(limit.as_f64(), Some(0.0 | 1.0)));
        required.iter().all(|field| operation.contains_key(*field))
            && only(operation, known)
            && limit_fits
            && operation.get("u").is_none_or(|u| u.is_object() || u.is_array())
            && operation.get("multi").is_none_or(Value::is_boolean)
            && !(operation.contains_key("sort") && operation.get("multi") == Some(&json!(true)))
    };
    is_list_of_objects(command.get(list))
        && command[list].as_array().is_some_and(|list| list.iter().all(fits))
        && command.get("ordered").is_none_or(Value::is_boolean)
}

/// The command's other fields, as options.
fn rest(command: &Map<String, Value>, fields: &[&str]) -> Value {
    let others = command.iter().filter(|(name, _)| !fields.contains(&name.as_str()));
    Value::Object(others.map(|(name, value)| (name.clone(), value.clone())).collect())
}

fn with_let(options: &mut Value, command: &Map<String, Value>) {
    if let Some(variables) = command.get("let") {
        options["let"] = variables.clone();
    }
}

/// Collects the answers of a write command's operations.
struct Batch {
    ordered: bool,
    index: i64,
    n: i64,
    modified: i64,
    upserted: Vec<Value>,
    errors: Vec<Value>,
}

impl Batch {
    fn of(command: &Map<String, Value>) -> Batch {
        let ordered = command.get("ordered") != Some(&json!(false));
        Batch { ordered, index: 0, n: 0, modified: 0, upserted: Vec::new(), errors: Vec::new() }
    }

    /// True if the next operation is to be run.
    fn add(&mut self, result: Result<Value, Failure>) -> bool {
        let index = self.index;
        self.index += 1;
        match result {
            Ok(result) => {
                let number = |name: &str| result[name].as_i64().unwrap_or(0);
                self.n += number("matchedCount") + number("deletedCount") + number("upsertedCount");
                self.modified += number("modifiedCount");
                if number("upsertedCount") > 0 {
                    self.upserted.push(json!({"index": index, "_id": result["upsertedId"]}));
                }
                true
            }
            Err(failure) => {
                self.errors.push(json!({"index": index, "code": failure.code, "errmsg": failure.message}));
                !self.ordered
            }
        }
    }

    fn answer(self, modified: bool) -> Answer {
        let mut answer = json!({"n": self.n, "ok": 1});
        if modified {
            answer["nModified"] = json!(self.modified);
        }
        if !self.upserted.is_empty() {
            answer["upserted"] = json!(self.upserted);
        }
        if !self.errors.is_empty() {
            answer["writeErrors"] = json!(self.errors);
        }
        Answer::Response(answer)
    }
}
