//! Creates secondary indexes. An index exists on every shard that has the collection's table. A shard that gets the table later gets the
//! indexes, too.

use super::{collection, duplicate, namespace, nul};
use crate::catalog::cluster::move_exclusion;
use crate::catalog::cluster::nodes::call_on_all;
use crate::catalog::collections::index_options::IndexOptions;
use crate::catalog::{cache, change};
use crate::pg::error::{Error, Result};
use crate::pg::process;
use crate::store;
use crate::store::index_builds::Build;
use crate::store::indexes::StoredIndex;
use docshard_core::cluster::chunk_map::ShardId;
use docshard_core::error::{Kind, bail, ensure, error};
use docshard_core::json::pairs_as_object;
use docshard_core::query::index::IndexKeys;
use docshard_core::routing::model::Collection;
use docshard_core::routing::protocol::table::CreateIndex;
use docshard_core::values::key::KeyPattern;
use serde_json::{Value as Json, json};

/// The largest number of indexes of a collection, including that of `_id` and the shard key's own: MongoDB's limit.
const MAX_INDEXES: usize = 64;

/// Creates an index on every shard and returns its name. If an identical index exists, only returns that index's name. Otherwise `prepare`
/// is called after the checks, and then the index is created.
/// Errors: those of [`draft`], [`enter`] and `prepare`; `ConflictingOperationInProgress` while another index of the collection is being
/// built; `DuplicateKey`; the shards' errors.
pub fn create(
    ns: &str,
    keys_json: &str,
    options: &IndexOptions<'_>,
    prepare: &dyn Fn(&Draft) -> Result<()>,
) -> Result<String> {
    let draft = match draft(ns, keys_json, options)? {
        Drafted::Exists(name) => return Ok(name),
        Drafted::Busy(build) => return Err(change::index_is_being_built_error(&build, ns)),
        Drafted::New(draft) => draft,
    };
    prepare(&draft)?;
    call_on_all(&draft.shards, &draft.creation()).map_err(|error| draft.translate(error))?;
    enter(&draft, options)?;
    Ok(draft.name)
}

/// The result of checking a requested index.
#[derive(Debug)]
pub enum Drafted {
    /// it exists already, under this name
    Exists(String),
    /// this build of an index of the collection, maybe of the same index, has to end first
    Busy(Build),
    /// it can be created
    New(Box<Draft>),
}

/// An index that is to be created.
#[derive(Debug)]
pub struct Draft {
    /// the index's number, which no other index ever has
    pub id: i32,
    /// the collection's number
    pub collection: i32,
    pub namespace: String,
    pub name: String,
    /// the keys as text
    pub keys_json: String,
    pub keys: IndexKeys,
    /// the definition for shards
    pub definition: String,
    /// no two documents with the same keys
    pub unique: bool,
    /// the filter of a partial index, as text that shards parse
    pub partial: Option<String>,
    /// the shards that have the collection's table
    pub shards: Vec<ShardId>,
}

impl Draft {
    /// The call that creates the index on a shard.
    pub fn creation(&self) -> CreateIndex<'_> {
        CreateIndex {
            collection: self.collection,
            index: self.id,
            keys: &self.definition,
            is_unique: self.unique,
            partial: self.partial.as_deref(),
        }
    }

    /// Translates a shard's error into MongoDB's if documents have duplicate keys. Other errors are unchanged.
    pub fn translate(&self, error: Error) -> Error {
        duplicate::translate_build(&self.namespace, &self.name, &self.keys, error)
    }
}

/// Checks whether an index can be created, and gives it a number. Creates the collection if it does not exist. Locks the collection's
/// metadata until the transaction ends, unless the index is found to exist before the lock is taken.
/// Errors: `BadValue`, `CannotCreateIndex`, `InvalidIndexSpecificationOption` and `Location16764` for invalid keys, name or options;
/// `IndexKeySpecsConflict` and `IndexOptionsConflict` for another index with the same name or keys; those of [`namespace::split`],
/// [`IndexKeys::parse`], [`collection::create_implicitly`] and [`move_exclusion::lock`].
pub fn draft(ns: &str, keys_json: &str, options: &IndexOptions<'_>) -> Result<Drafted> {
    namespace::split(ns)?;
    let parsed = docshard_core::query::specification::parse(keys_json)?;
    let keys = IndexKeys::parse(&parsed)?.projected(options.wildcard_projection)?.under(options.collation.clone());
    let keys_json = pairs_as_object(&parsed).to_string();
    options.check(&keys)?;
    let name = options.name_of(&keys)?;
    nul::refuse([&parsed, &Json::String(name.clone())].into_iter().chain(options.wildcard_projection))?;
    let partial: Option<Json> = options.partial_filter().and_then(|text| serde_json::from_str(text).ok());
    nul::refuse(&partial)?;
    if cache::find(ns)?.is_none() {
        collection::create_implicitly(ns)?;
    }
    if keys.is_of_id() {
        if cache::get(ns)?.collation != options.collation {
            let message = "The _id index must have the same collation as the collection";
            return Err(Error::new(Kind::BadValue, message));
        }
        return Ok(Drafted::Exists("_id_".to_owned()));
    }
    if name == "_id_" {
        bail!(
            Kind::BadValue,
            "The index name '_id_' is reserved for the _id index, which has the keys {{\"_id\":1}}, not {keys_json}"
        );
    }
    // If the index exists there is no need to wait for moves.
    if let Some(name) = existing(&*cache::get(ns)?, &name, &keys, options)? {
        return Ok(Drafted::Exists(name));
    }
    let locked = move_exclusion::lock(ns)?;
    // The collection is read again under the lock, so that its placements include a shard that got its first chunk meanwhile.
    let collection = cache::get(ns)?;
    if let Some(name) = existing(&collection, &name, &keys, options)? {
        return Ok(Drafted::Exists(name));
    }
    if options.unique {
        check_unique(&collection.key, &keys, &keys_json)?;
    }
    check_count(ns, collection.count_of_indexes() + 1)?;
    if let Some(build) = change::running_build(locked.id)? {
        return Ok(Drafted::Busy(build));
    }
    let projection = options.wildcard_projection.map(Json::to_string);
    let definition = IndexKeys::definition(&keys_json, projection.as_deref(), options.collation.as_deref());
    Ok(Drafted::New(Box::new(Draft {
        id: store::indexes::next_id()?,
        collection: collection.id,
        namespace: ns.to_owned(),
        name,
        keys_json,
        definition,
        unique: options.unique,
        partial: options.predicate(&keys).as_deref().map(|partial| partial.text.clone()),
        keys,
        shards: collection.placements.keys().copied().collect(),
    })))
}

/// Refuses more than [`MAX_INDEXES`] indexes.
///
/// # Errors
/// `CannotCreateIndex`.
pub(super) fn check_count(ns: &str, count: usize) -> Result<()> {
    ensure!(
        count <= MAX_INDEXES,
        Kind::CannotCreateIndex,
        "add index fails, too many indexes for {ns}: at most {MAX_INDEXES}"
    );
    Ok(())
}

/// Collects the names of the indexes that one call creates. It is an error if the call creates the same index twice.
#[derive(Debug)]
pub struct Made {
    /// the indexes that existed when the call began
    former: Vec<String>,
    made: Vec<String>,
}

impl Made {
    /// Begins a call: remembers the indexes that exist, which [`Self::add`] does not count as created.
    pub fn none(ns: &str) -> Result<Self> {
        let collection = cache::find(ns)?;
        let own = collection.as_ref().and_then(|collection| collection.key_index()).map(|keys| keys.default_name());
        let names = collection.iter().flat_map(|collection| &collection.indexes).map(|index| index.name.clone());
        Ok(Self { former: names.chain(own).chain(["_id_".to_owned()]).collect(), made: Vec::new() })
    }

    /// The names of the indexes that the call has created.
    pub fn made(&self) -> &[String] {
        &self.made
    }

    /// Adds an index that exists now, unless it existed before the call.
    /// Errors: `IndexAlreadyExists` if the same call has created it already.
    pub fn add(&mut self, name: &str) -> Result<()> {
        if self.made.iter().any(|made| made == name) {
            bail!(Kind::IndexAlreadyExists, "Identical index already exists: {name}");
        }
        if !self.former.iter().any(|former| former == name) {
            self.made.push(name.to_owned());
        }
        Ok(())
    }
}

/// Inserts an index into the catalog, which makes it usable. The caller has created it on every shard that has the collection's table.
/// Errors: those of [`change::touch`].
pub fn enter(draft: &Draft, options: &IndexOptions<'_>) -> Result<()> {
    let index = StoredIndex {
        id: draft.id,
        name: draft.name.clone(),
        keys: draft.keys_json.clone(),
        unique: draft.unique,
        hidden: options.hidden,
        expire_after_s: options.expire_after_s,
        sparse: options.sparse,
        partial_filter: options.partial_filter().map(str::to_owned),
        collation: options.collation.as_deref().map(|collator| collator.definition().clone()),
        wildcard_projection: options.wildcard_projection.map(Json::to_string),
    };
    store::indexes::insert(draft.collection, &index)?;
    change::log("createIndex", Some(&draft.namespace), &json!({"name": draft.name, "unique": draft.unique}))?;
    if options.expire_after_s.is_some() {
        process::wake_at_commit();
    }
    change::touch(draft.collection)
}

/// Creates the unique index of a collection that is sharded with `unique`. Does nothing for `{"_id": 1}`, which the tables' primary key
/// makes unique.
/// Errors: those of [`create`].
pub fn create_for_unique_key(ns: &str, pattern: &KeyPattern) -> Result<()> {
    if pattern.is_in_order_of_id() {
        return Ok(());
    }
    let options = IndexOptions { unique: true, ..IndexOptions::default() };
    create(ns, &pattern.to_json().to_string(), &options, &|_| Ok(())).map(|_| ())
}

/// Returns the name of an existing index that is identical; None if there is none.
/// Errors: `IndexKeySpecsConflict` and `IndexOptionsConflict` if an existing index conflicts.
fn existing(
    collection: &Collection,
    name: &str,
    keys: &IndexKeys,
    options: &IndexOptions<'_>,
) -> Result<Option<String>> {
    for index in &collection.indexes {
        let same_keys = index.keys.has_pattern_of(keys) && index.keys.wildcard == keys.wildcard;
        if index.name == name {
            if same_keys && options.are_those_of(index) {
                return Ok(Some(name.to_owned()));
            }
            if same_keys && options.identify(index) {
                let message = "An equivalent index already exists with the same name but different options: ";
                bail!(Kind::IndexOptionsConflict, "{message}{name}");
            }
            bail!(
                Kind::IndexKeySpecsConflict,
                "An existing index has the same name as the requested index: {name}, keys {}",
                index.keys_json
            );
        }
        if same_keys && options.identify(index) {
            bail!(Kind::IndexOptionsConflict, "Index already exists with a different name: {}", index.name);
        }
    }
    shard_key_index(collection, name, keys, options)
}

/// Like [`existing`], for the shard key's own index.
fn shard_key_index(
    collection: &Collection,
    name: &str,
    keys: &IndexKeys,
    options: &IndexOptions<'_>,
) -> Result<Option<String>> {
    let Some(own) = collection.key_index() else { return Ok(None) };
    let own_name = own.default_name();
    let is_plain = !options.unique && !options.sparse && options.partial.is_none() && options.collation.is_none();
    let is_same = own.has_pattern_of(keys) && keys.wildcard.is_none() && is_plain;
    let conflict = |kind, message: String| Err(Error::new(kind, message));
    match (name == own_name, is_same) {
        (false, false) => Ok(None),
        (false, true) => {
            conflict(Kind::IndexOptionsConflict, format!("Index already exists with a different name: {own_name}"))
        }
        (true, false) => {
            let own = collection.key.to_json();
            let message = format!("An existing index has the same name as the requested index: {name}, keys {own}");
            conflict(Kind::IndexKeySpecsConflict, message)
        }
        (true, true) if options.hidden || options.expire_after_s.is_some() => {
            let message = "An equivalent index already exists with the same name but different options: ";
            conflict(Kind::IndexOptionsConflict, format!("{message}{name}"))
        }
        (true, true) => Ok(Some(own_name)),
    }
}

/// Checks a unique index of a sharded collection. Each shard checks only its own documents, so the keys must begin with the shard key.
/// Errors: `CannotCreateIndex`.
fn check_unique(pattern: &KeyPattern, keys: &IndexKeys, keys_json: &str) -> Result<()> {
    let prefixed = pattern.hashed_field().is_none()
        && keys.fields.len() >= pattern.fields.len()
        && pattern.fields.iter().zip(&keys.fields).all(|((path, _), (field, _))| path == field);
    if pattern.is_unsharded() || prefixed && keys.collation.is_none() {
        return Ok(());
    }
    let hint = if keys.collation.is_some() {
        "A unique index of a sharded collection has the collation {\"locale\": \"simple\"}."
    } else {
        "A unique index of a sharded collection starts with the fields of its (not hashed) shard key."
    };
    Err(error!(
        Kind::CannotCreateIndex,
        "cannot create unique index over {keys_json} with shard key pattern {}",
        pattern.to_json()
    )
    .with_hint(hint))
}
