//! What a router knows of a collection, read from the catalog in one snapshot.

use super::names;
use crate::cluster::chunk_map::{ChunkMap, ShardId};
use crate::error::{Kind, Result, bail, error};
use crate::query::index::{IndexKeys, Partial};
use crate::query::specification;
use crate::query::validator::{COLLATION, LEVEL, OFF, VALIDATOR, Validator};
use crate::values::collation::Collator;
use crate::values::document::ext_json;
use crate::values::key::KeyPattern;
use crate::values::key::pattern::FieldKind;
use serde_json::{Map, Value as Json, json};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

/// A secondary index.
#[derive(Clone, Debug)]
pub struct Index {
    /// its number; on shards it is named `i<id>`
    pub id: i32,
    pub name: String,
    /// its keys as given, such as `{"from": 1, "sent": -1}`
    pub keys_json: String,
    /// its definition on shards: keys, projection and collation
    pub definition: String,
    pub keys: IndexKeys,
    /// the `wildcardProjection` of a wildcard index, if it has one
    pub wildcard_projection: Option<Json>,
    /// true if no two documents may have the same keys
    pub unique: bool,
    /// true if searches do not use it
    pub hidden: bool,
    /// true if it holds only documents that have at least one of its fields
    pub sparse: bool,
    /// the filter of the documents that it holds, also for a sparse index; None: it holds all documents
    pub partial: Option<Rc<Partial>>,
    /// seconds between the date in its field and the deletion of the document; None: documents do not expire
    pub expire_after_s: Option<i64>,
}

impl Index {
    /// Its fields: dotted path, and true for descending.
    pub fn fields(&self) -> &[(String, bool)] {
        &self.keys.fields
    }

    /// The collation of its strings; None: they are in bytewise order.
    pub fn collation(&self) -> Option<&Arc<Collator>> {
        self.keys.collation.as_ref()
    }

    /// True if its keys are exactly the shard key, in byte order, and it holds every document.
    pub fn is_of_key(&self, key: &KeyPattern) -> bool {
        self.fields().len() == key.fields.len() && self.begins_with_key(key)
    }

    /// True if its keys begin with the shard key, in byte order, and it holds every document. MongoDB calls it compatible with the shard
    /// key.
    pub fn begins_with_key(&self, key: &KeyPattern) -> bool {
        let is_plain = self.partial.is_none() && self.keys.collation.is_none() && self.keys.wildcard.is_none();
        let hashed = self.keys.hashed.filter(|hashed| *hashed < key.fields.len());
        let begins = |(field, (path, _)): (&(String, bool), &(String, FieldKind))| *field == (path.clone(), false);
        is_plain
            && hashed == key.hashed_field()
            && self.fields().len() >= key.fields.len()
            && self.fields().iter().zip(&key.fields).all(begins)
    }

    /// The filter of its `partialFilterExpression`, as text.
    pub fn partial_filter(&self) -> Option<&str> {
        self.partial.as_deref().filter(|_| !self.sparse).map(|partial| partial.expression.as_str())
    }

    /// The index's definition, as `listIndexes` and `$indexStats` show it.
    ///
    /// # Errors
    /// None, as the catalog's texts are JSON.
    pub fn shown(&self) -> Result<Json> {
        let mut shown = json!({"v": 2, "key": specification::parse(&self.keys_json)?, "name": self.name});
        if self.unique {
            shown["unique"] = true.into();
        }
        if self.hidden {
            shown["hidden"] = true.into();
        }
        if self.sparse {
            shown["sparse"] = true.into();
        }
        if let Some(filter) = self.partial_filter() {
            shown["partialFilterExpression"] = specification::parse(filter)?;
        }
        if let Some(projection) = &self.wildcard_projection {
            shown["wildcardProjection"] = projection.clone();
        }
        if let Some(collator) = self.collation() {
            shown["collation"] = collator.definition().clone();
        }
        if let Some(seconds) = self.expire_after_s {
            shown["expireAfterSeconds"] = seconds.into();
        }
        Ok(shown)
    }
}

/// The options of a collection's validation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Validation {
    /// those of `validator`, `validationLevel` and `validationAction` that are set
    pub options: Map<String, Json>,
    /// the collation by which the validator compares strings
    pub collation: Option<Json>,
}

/// The longest definition of a validator, in bytes of text: each session at a shard keeps some of them parsed.
const MAX_VALIDATOR_BYTES: usize = 1 << 20;

impl Validation {
    /// The validation with these options, for a collection with this collation; None if no option is set. An empty validator counts as not
    /// set.
    pub fn of(mut options: Map<String, Json>, collation: Option<&Collator>) -> Option<Validation> {
        if options.get(VALIDATOR).and_then(ext_json::document).is_some_and(Map::is_empty) {
            options.remove(VALIDATOR);
        }
        let collation = collation.map(|collator| collator.definition().clone());
        (!options.is_empty()).then_some(Validation { options, collation })
    }

    fn definition(&self) -> Option<Json> {
        self.options.get(VALIDATOR)?;
        let collation = self.collation.iter().map(|collation| (COLLATION.to_owned(), collation.clone()));
        Some(Json::Object(self.options.clone().into_iter().chain(collation).collect()))
    }

    /// Checks the validator.
    ///
    /// # Errors
    /// `BSONObjectTooLarge`; those of [`Validator::parse`].
    pub fn check(&self) -> Result<()> {
        let Some(definition) = self.definition() else { return Ok(()) };
        let bytes = definition.to_string().len();
        if bytes > MAX_VALIDATOR_BYTES {
            bail!(Kind::BSONObjectTooLarge, "a validator may have at most {MAX_VALIDATOR_BYTES} bytes, not {bytes}");
        }
        Validator::parse(&definition).map(drop)
    }

    /// The text of the validator's definition that shards get; None: nothing is checked.
    pub fn for_shards(&self) -> Option<String> {
        let is_off = self.options.get(LEVEL).is_some_and(|level| level == OFF);
        self.definition().filter(|_| !is_off).map(|definition| definition.to_string())
    }
}

/// A view: a pipeline that is read like a collection.
#[derive(Clone, Debug)]
pub struct View {
    /// `db.view`
    pub namespace: String,
    pub database: String,
    /// the collection or view of the same database that it reads, by its name there
    pub view_on: String,
    pub stages: Vec<Json>,
    /// the size of the stages' text
    pub bytes: usize,
    /// the collation of all statements over it; None for `simple`
    pub collation: Option<Arc<Collator>>,
}

impl View {
    /// A view as the catalog has it.
    ///
    /// # Errors
    /// `InvalidViewDefinition`.
    pub fn new(namespace: String, view_on: String, pipeline: Json, collation: Option<&Json>) -> Result<View> {
        let invalid =
            |what: &str| error!(Kind::InvalidViewDefinition, "the view {namespace} has an invalid definition: {what}");
        let bytes = pipeline.to_string().len();
        let collation = collation.map(Collator::parse).transpose().map_err(|e| invalid(&e.message))?.flatten();
        let (Json::Array(stages), Some((database, _))) = (pipeline, namespace.split_once('.')) else {
            return Err(invalid("its pipeline must be an array"));
        };
        let database = database.to_owned();
        Ok(View { namespace, database, view_on, stages, bytes, collation: collation.map(Arc::new) })
    }

    pub fn collation(&self) -> Option<&Collator> {
        self.collation.as_deref()
    }

    /// Its name in the database.
    pub fn name(&self) -> &str {
        self.namespace.split_once('.').map_or("", |(_, name)| name)
    }

    /// The namespace of the collection or view that it reads.
    pub fn source(&self) -> String {
        format!("{}.{}", self.database, self.view_on)
    }
}

/// A collection, as one catalog snapshot shows it.
#[derive(Clone, Debug)]
pub struct Collection {
    /// its number; its table on shards is `docshard_data.c<id>`
    pub id: i32,
    /// `db.coll`
    pub namespace: String,
    /// the shard key; empty for an unsharded collection
    pub key: KeyPattern,
    /// true if no two documents may have the same shard key
    pub unique: bool,
    /// true if the shard key has an index of its own; false if another index served it already, or if its index was dropped
    pub has_key_index: bool,
    /// the default collation of statements
    pub collation: Option<Arc<Collator>>,
    /// its validator; None if nothing was ever set
    pub validation: Option<Rc<Validation>>,
    /// a random number that distinguishes it from another collection with the same `id`, as in a restored cluster
    pub token: i64,
    /// advanced by every change
    pub revision: i64,
    /// which shard owns which keys
    pub map: Rc<ChunkMap>,
    /// the version of every shard that has the collection's table
    pub placements: BTreeMap<ShardId, i64>,
    /// secondary indexes
    pub indexes: Vec<Index>,
    /// statements are sampled, at most one in this number of microseconds; None: they are not
    pub sampled_every_us: Option<i64>,
    /// the router's former server may have decided a change of its layout that this catalog does not know
    pub is_undecided: bool,
}

impl Collection {
    /// The collection's table on every shard.
    pub fn table(&self) -> String {
        names::table(self.id)
    }

    /// The secondary index to which a shard's relation of that name belongs; None if the catalog has no such index.
    pub fn index_of(&self, relation: &str) -> Option<&Index> {
        let id = names::index_of(relation)?;
        self.indexes.iter().find(|index| index.id == id)
    }

    /// The keys of the shard key's own index, which is the primary key of the tables. None if there is none, if it is the index on `_id`,
    /// or if a secondary index is the same one or has the same name.
    pub fn key_index(&self) -> Option<IndexKeys> {
        if self.key.is_in_order_of_id() || !self.has_key_index {
            return None;
        }
        let keys = IndexKeys::parse(&self.key.to_json()).ok()?;
        let name = keys.default_name();
        let stands_for = |index: &Index| {
            let options = (index.unique, index.hidden, index.expire_after_s);
            index.name == name || index.is_of_key(&self.key) && options == (self.unique, false, None)
        };
        (!self.indexes.iter().any(stands_for)).then_some(keys)
    }

    /// The number of indexes, including those on `_id` and the shard key.
    pub fn count_of_indexes(&self) -> usize {
        1 + usize::from(self.key_index().is_some()) + self.indexes.len()
    }

    /// True if there is a unique index besides the primary key.
    pub fn has_unique_index(&self) -> bool {
        self.indexes.iter().any(|index| index.unique)
    }

    /// Name and keys of the index to which a shard's relation of that name belongs; None if the catalog has no such index.
    pub fn described(&self, relation: &str) -> Option<(String, Json)> {
        if let Some(index) = self.index_of(relation) {
            return Some((index.name.clone(), serde_json::from_str(&index.keys_json).unwrap_or_default()));
        }
        let suffix = relation.strip_prefix('c')?.strip_prefix(&self.id.to_string())?.strip_prefix('_')?;
        let own = self.key_index().map(|keys| keys.default_name());
        let standing = || self.indexes.iter().find(|index| index.is_of_key(&self.key)).map(|index| index.name.clone());
        let name = own.or_else(standing).filter(|_| suffix == "pkey");
        Some(name.map_or_else(|| ("_id_".to_owned(), json!({"_id": 1})), |name| (name, self.key.to_json())))
    }
}
