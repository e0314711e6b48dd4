//! The collections of the cases, created once and emptied between cases.

use super::case::Case;
use super::shell::{Door, Failure, Shell};
use crate::cluster::Cluster;
use serde_json::{Value, json};
use std::collections::{HashMap, HashSet};

/// The layout of a case's collection, and the way in which its commands are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Way {
    /// unsharded, on `local`
    Local,
    /// sharded over three shards by hash
    Hashed,
    /// sharded by range, chunks of neighbouring keys on different shards
    Range,
    /// unsharded, through `run_command`
    Command,
    /// unsharded, on `local`, with indexes for the case's command
    Indexed,
    /// unsharded, on `shard0`
    Remote,
    /// without a server, over documents in memory
    Memory,
    /// as `Memory`, with the pipeline divided over three parts of the documents
    Divided,
}

impl Way {
    /// All of them.
    pub const ALL: [Way; 8] =
        [Way::Local, Way::Hashed, Way::Range, Way::Command, Way::Indexed, Way::Remote, Way::Memory, Way::Divided];

    /// Its name in reports and excuses.
    pub fn name(self) -> &'static str {
        match self {
            Way::Local => "local",
            Way::Hashed => "hashed",
            Way::Range => "range",
            Way::Command => "command",
            Way::Indexed => "indexed",
            Way::Remote => "remote",
            Way::Memory => "memory",
            Way::Divided => "divided",
        }
    }

    /// Finds a way by its name.
    pub fn parse(name: &str) -> Option<Way> {
        Way::ALL.into_iter().find(|way| way.name() == name)
    }

    /// True if the collection is spread over shards.
    pub fn is_sharded(self) -> bool {
        matches!(self, Way::Hashed | Way::Range)
    }
}

/// The bounds between the chunks of a range-sharded collection, in key order. They lie among the numbers, strings and ObjectIds of the
/// cases. There are few, since each chunk is moved.
fn split_points() -> Vec<Value> {
    vec![json!(2), json!(4), json!(8), json!("2"), json!("c"), json!({"$oid": "000000000000000000000000"})]
}

/// Fewer bounds, for a collection that few cases use.
fn few_split_points() -> Vec<Value> {
    [1, 3].map(|at| split_points()[at].clone()).to_vec()
}

/// Indexes for a case's command: one on each field, or on all fields.
fn asked_for(case: &Case) -> Vec<Value> {
    let command = &case.command;
    let inner = |list: &str| command.get(list).and_then(|list| list.get(0)).and_then(|one| one.get("q"));
    let filter = ["filter", "query"].into_iter().find_map(|name| command.get(name));
    let filter = filter.or_else(|| inner("updates")).or_else(|| inner("deletes"));
    let fields = filter.and_then(Value::as_object).into_iter().flat_map(|filter| filter.keys());
    let fields: Vec<&String> = fields.filter(|field| !field.starts_with('$') && *field != "_id").take(3).collect();
    if fields.is_empty() || case.id.len().is_multiple_of(2) {
        return vec![json!({"key": {"$**": 1}})];
    }
    fields.into_iter().map(|field| json!({"key": {field: 1}})).collect()
}

/// The database of a way's collections.
fn database(way: Way) -> String {
    format!("conformance_{}", way.name())
}

/// A connection and its collections with one layout.
pub struct Stage {
    way: Way,
    /// runs the commands
    pub shell: Shell,
    /// collections by shard key and indexes, with their documents if these are known
    collections: HashMap<String, (String, Option<Vec<Value>>)>,
    /// the names of the other collections that cases need beside their own
    beside: HashSet<String>,
    count: usize,
}

impl Stage {
    /// On a cluster of three shards, `shard0` to `shard2`.
    ///
    /// # Panics
    /// If the database of this way cannot be created.
    pub fn new(cluster: &Cluster, way: Way) -> Stage {
        let door = if way == Way::Command { Door::Command } else { Door::Functions };
        let mut client = cluster.router.client();
        if way == Way::Indexed {
            // Otherwise small tables would be scanned without an index.
            client.batch_execute("SET enable_seqscan = off").expect("a setting of the session");
        }
        let primary = if way == Way::Remote { "shard0" } else { "local" };
        let sql = "SELECT docshard.enable_sharding($1::text, $2::text)";
        client.execute(sql, &[&database(way), &primary]).expect("a database with a primary shard");
        let shell = Shell::new(client, door);
        Stage { way, shell, collections: HashMap::new(), beside: HashSet::new(), count: 0 }
    }

    /// The layout and the way of this stage.
    pub fn way(&self) -> Way {
        self.way
    }

    /// A collection for a case, with its documents.
    ///
    /// # Errors
    /// If the documents cannot be inserted, or the collection cannot have this layout.
    pub fn prepare(&mut self, case: &Case) -> Result<String, Failure> {
        if self.way == Way::Indexed && !case.indexed {
            let indexes = case.indexes.iter().cloned().chain(asked_for(case)).collect();
            return self.prepare(&Case { indexes, indexed: true, ..case.clone() });
        }
        let key = self.shard_key(case.shard_key.as_ref());
        let name = format!("{key} {}", Value::from(case.indexes.clone()));
        if !self.collections.contains_key(&name) {
            let namespace = self.create(&key, &case.indexes)?;
            self.collections.insert(name.clone(), (namespace, Some(Vec::new())));
        }
        let (namespace, documents) = self.collections[&name].clone();
        if documents.as_ref() != Some(&case.documents) {
            if documents.is_none_or(|documents| !documents.is_empty()) {
                self.shell.call("delete_many", &namespace, &[&json!({})])?;
            }
            // Inserting may fail half way.
            self.forget(&name);
            self.shell.insert_storable(&namespace, &case.documents)?;
            self.collections.insert(name.clone(), (namespace.clone(), Some(case.documents.clone())));
        }
        // After a write the contents are unknown.
        let reads = |command: &serde_json::Map<String, Value>| {
            command
                .keys()
                .next()
                .is_some_and(|name| matches!(name.as_str(), "find" | "count" | "distinct" | "aggregate"))
        };
        let commands = || case.prelude.iter().chain([&case.command]);
        if commands().any(|command| command.contains_key("collMod")) {
            // Other cases do not want its validator.
            self.collections.remove(&name);
        } else if !commands().all(reads) {
            self.forget(&name);
        }
        Ok(namespace)
    }

    /// A collection with a given name and exactly these documents, sharded by `_id` if the layout is sharded.
    ///
    /// # Errors
    /// If the documents cannot be inserted, or the collection cannot have this layout.
    pub fn named(&mut self, name: &str, documents: &[Value]) -> Result<String, Failure> {
        let namespace = match self.collections.get(name) {
            Some((namespace, _)) => namespace.clone(),
            None => {
                let key = self.shard_key(None);
                let namespace = self.create(&key, &[])?;
                self.collections.insert(name.to_owned(), (namespace.clone(), None));
                namespace
            }
        };
        self.shell.call("delete_many", &namespace, &[&json!({})])?;
        self.shell.insert_storable(&namespace, documents)?;
        Ok(namespace)
    }

    fn forget(&mut self, name: &str) {
        if let Some((_, documents)) = self.collections.get_mut(name) {
            *documents = None;
        }
    }

    /// The shard key of a collection, given the case's own. Null: unsharded.
    fn shard_key(&self, wanted: Option<&Value>) -> Value {
        let id = json!({"_id": "hashed"});
        let fields = wanted.unwrap_or(&id).as_object().into_iter().flatten();
        match self.way {
            Way::Local | Way::Command | Way::Indexed | Way::Remote | Way::Memory | Way::Divided => Value::Null,
            // Only one field can be hashed.
            Way::Hashed => fields
                .enumerate()
                .map(|(at, (name, kind))| (name.clone(), if at == 0 { kind.clone() } else { json!(1) }))
                .collect(),
            Way::Range => fields.map(|(name, _)| (name.clone(), json!(1))).collect(),
        }
    }

    /// A new, unused namespace of this layout.
    pub fn fresh(&mut self) -> String {
        self.count += 1;
        format!("{}.c{}", database(self.way), self.count)
    }

    /// A collection of this name beside that of a case, with these documents, sharded by `_id` if the layout is sharded.
    ///
    /// # Errors
    /// If the documents cannot be inserted.
    pub fn beside(&mut self, name: &str, documents: &[Value]) -> Result<(), Failure> {
        let namespace = format!("{}.{name}", database(self.way));
        if self.beside.insert(name.to_owned()) {
            // A case may have written it.
            self.shell.call("drop_collection", &namespace, &[])?;
            let key = self.shard_key(None);
            self.lay_out(&namespace, &key, &few_split_points())?;
        } else {
            self.shell.call("delete_many", &namespace, &[&json!({})])?;
        }
        self.shell.insert_storable(&namespace, documents)
    }

    /// A new collection.
    ///
    /// # Errors
    /// If it cannot be sharded by this key.
    pub fn create(&mut self, key: &Value, indexes: &[Value]) -> Result<String, Failure> {
        let namespace = self.fresh();
        let is_usual = *key == json!({"_id": 1});
        self.lay_out(&namespace, key, &if is_usual { split_points() } else { few_split_points() })?;
        for index in indexes {
            let key = &index["key"];
            let unique = index["unique"] == true || index["unique"].as_i64().is_some_and(|unique| unique != 0);
            let sparse = index["sparse"] == true || index["sparse"].as_i64().is_some_and(|sparse| sparse != 0);
            let mut options = json!({"unique": unique, "sparse": sparse});
            if let Some(partial) = index.get("partialFilterExpression") {
                options["partialFilterExpression"] = partial.clone();
            }
            // An index changes no answer, so one that docshard does not have is left out.
            let _ = self
                .shell
                .call("create_index", &namespace, &[key, &options])
                .or_else(|_| self.shell.call("create_index", &namespace, &[key]));
        }
        Ok(namespace)
    }

    fn lay_out(&mut self, namespace: &str, key: &Value, points: &[Value]) -> Result<(), Failure> {
        self.shell.call("create_collection", namespace, &[])?;
        if !key.is_null() {
            self.shell.call("shard_collection", namespace, &[key])?;
        }
        if self.way == Way::Range {
            self.spread(namespace, key, points)?;
        }
        Ok(())
    }

    /// Splits a collection, and moves neighbouring chunks to different shards.
    fn spread(&mut self, namespace: &str, key: &Value, points: &[Value]) -> Result<(), Failure> {
        let Some(first) = key.as_object().and_then(|fields| fields.keys().next()) else { return Ok(()) };
        let bound = |point: &Value| -> Value {
            let rest = key.as_object().into_iter().flat_map(|fields| fields.keys().skip(1));
            std::iter::once((first.clone(), point.clone()))
                .chain(rest.map(|name| (name.clone(), json!({"$minKey": 1}))))
                .collect()
        };
        for (index, point) in points.iter().enumerate() {
            self.shell.call("split_at", namespace, &[&bound(point)])?;
            let sql = "SELECT docshard.move_chunk($1::text, $2::text::json, $3::text)::text";
            let shard = format!("shard{}", index % 3);
            self.shell
                .client()
                .query_one(sql, &[&namespace, &bound(point).to_string(), &shard])
                .map_err(|e| Failure::of(&e))?;
        }
        Ok(())
    }
}

impl Shell {
    /// Inserts documents, except those with names that start with `$`, which docshard refuses as documented.
    fn insert_storable(&mut self, namespace: &str, documents: &[Value]) -> Result<(), Failure> {
        const DOLLAR_PREFIXED_FIELD_NAME: i64 = 52;
        if documents.is_empty() {
            return Ok(());
        }
        match self.insert(namespace, documents) {
            Err(failure) if failure.code == Some(DOLLAR_PREFIXED_FIELD_NAME) => {
                documents.iter().try_for_each(|document| match self.insert(namespace, std::slice::from_ref(document)) {
                    Err(failure) if failure.code == Some(DOLLAR_PREFIXED_FIELD_NAME) => Ok(()),
                    outcome => outcome,
                })
            }
            outcome => outcome,
        }
    }
}
