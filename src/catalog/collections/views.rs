//! Views: pipelines that are read like collections.
//!
//! A view reads a collection or another view of its database. [`resolve`] follows a chain of views to the collection below and
//! concatenates their pipelines, so that a query over a view is one pipeline over a collection. A view stores no
//! documents and has no privileges of its own: a role that reads it needs the right to read the collection.
//!
//! INVARIANT: a chain of views has no cycle and at most [`MAX_DEPTH`] views, which have the same collation. Changes of views check
//! this under a lock; [`resolve`] does not rely on it, but limits the length of the chain and compares the collations itself. A view and a
//! collection never have the same name: both are created under [`lock_name`].

use super::{databases, namespace, nul};
use crate::catalog::cluster::identity::check_may_change;
use crate::catalog::{cache, change};
use crate::pg::error::{Error, Result};
use crate::pg::transaction::snapshot::ActiveSnapshot;
use crate::storage::lock::{self, Mode, Tag};
use crate::store::views as store;
use docshard_core::error::{Kind, bail, error};
use docshard_core::query::environment::Environment;
use docshard_core::query::stage::Pipeline;
use docshard_core::routing::model::View;
use docshard_core::values::collation::Collator;
use docshard_core::values::key::encode::hash_encoded;
use serde_json::{Value as Json, json};
use std::collections::{BTreeMap, BTreeSet};

/// The largest number of views in a chain: MongoDB's limit.
const MAX_DEPTH: usize = 20;
/// The largest size of a view's pipeline, including those of the views that it reads, in bytes: MongoDB's limit.
const MAX_BYTES: usize = 16 << 20;

/// A view as a pipeline over a collection.
#[derive(Debug)]
pub struct Resolved {
    /// the collection, which may be missing
    pub namespace: String,
    pub stages: Vec<Json>,
    /// the collation of all statements over the view; `{"locale": "simple"}` if it has none
    pub collation: Json,
}

/// Follows a view to the collection that it reads; None if the namespace is not a view.
/// Errors: `ViewDepthLimitExceeded`; `ViewPipelineMaxSizeExceeded`; `OptionNotSupportedOnView` if collations differ;
/// `InvalidViewDefinition`.
pub fn resolve(namespace: &str) -> Result<Option<Resolved>> {
    let Some(first) = cache::view(namespace)? else { return Ok(None) };
    let collation = definition(first.collation());
    let mut chain = vec![first];
    loop {
        let last = &chain[chain.len() - 1];
        let Some(next) = cache::view(&last.source())? else { break };
        if next.collation() != last.collation() {
            return Err(collations_differ(&last.namespace, &next.namespace));
        }
        if chain.len() == MAX_DEPTH {
            return Err(too_deep(namespace));
        }
        chain.push(next);
    }
    check_bytes(namespace, chain.iter().map(|view| view.bytes).sum())?;
    let stages = chain.iter().rev().flat_map(|view| view.stages.iter().cloned()).collect();
    Ok(chain.last().map(|view| Resolved { namespace: view.source(), stages, collation }))
}

fn check_bytes(namespace: &str, bytes: usize) -> Result<()> {
    if bytes <= MAX_BYTES {
        return Ok(());
    }
    Err(error!(
        Kind::ViewPipelineMaxSizeExceeded,
        "the pipeline of the view {namespace} has {bytes} bytes, more than {MAX_BYTES}"
    ))
}

impl Resolved {
    /// Checks that a statement's collation, if given, is the view's, and returns the view's.
    /// Errors: `OptionNotSupportedOnView` if they differ; those of [`Collator::parse`].
    pub fn collation_for(&self, given: Option<&Json>) -> Result<&Json> {
        let given = given.filter(|json| !json.as_object().is_some_and(serde_json::Map::is_empty));
        if let Some(given) = given
            && definition(Collator::parse(given)?.as_ref()) != self.collation
        {
            bail!(Kind::OptionNotSupportedOnView, "Cannot override a view's default collation: {}", self.collation);
        }
        Ok(&self.collation)
    }
}

fn definition(collator: Option<&Collator>) -> Json {
    collator.map_or_else(|| json!({"locale": "simple"}), |collator| collator.definition().clone())
}

fn too_deep(namespace: &str) -> Error {
    let message = format!("View depth too deep: {namespace} reads through more than {MAX_DEPTH} views");
    Error::new(Kind::ViewDepthLimitExceeded, message)
}

fn collations_differ(one: &str, other: &str) -> Error {
    let message = format!("Views {one} and {other} have different collations, but one reads the other");
    Error::new(Kind::OptionNotSupportedOnView, message)
}

/// Refuses an operation on collections if the namespace is a view.
/// Errors: `CommandNotSupportedOnView`.
pub fn refuse(namespace: &str) -> Result<()> {
    match cache::view(namespace)? {
        None => Ok(()),
        Some(_) => Err(cache::not_found(namespace)),
    }
}

/// Refuses an operation on sharded collections if the namespace is a view.
/// Errors: `NamespaceNotSharded`, as in MongoDB.
pub fn refuse_sharded(namespace: &str) -> Result<()> {
    match cache::view(namespace)? {
        None => Ok(()),
        Some(_) => Err(error!(Kind::NamespaceNotSharded, "ns not sharded: {namespace} is a view")),
    }
}

/// Blocks other transactions that create a collection or a view of that name, until the transaction ends.
pub(super) fn lock_name(namespace: &str) {
    lock::acquire(Tag::Namespace(hash_encoded(namespace.as_bytes())), Mode::Exclusive);
}

/// Checks that no view or collection has the name.
/// Errors: `NamespaceExists`.
pub(super) fn check_free(namespace: &str) -> Result<()> {
    if cache::view(namespace)?.is_some() {
        bail!(Kind::NamespaceExists, "A view already exists. NS: {namespace}");
    }
    if cache::find(namespace)?.is_some() {
        bail!(Kind::NamespaceExists, "Collection {namespace} already exists.");
    }
    Ok(())
}

/// Checks the value of `viewOn`: the name of a collection or view, without its database.
fn check_name(database: &str, name: &str) -> Result<()> {
    if name.is_empty() {
        bail!(Kind::BadValue, "'viewOn' cannot be empty");
    }
    namespace::split(&format!("{database}.{name}")).map(|_| ())
}

/// Checks the definition of a view: its pipeline, and its place among the database's other views.
fn check(view: &View) -> Result<()> {
    check_bytes(&view.namespace, view.bytes)?;
    let pipeline = parsed(view)?;
    if pipeline.makes_documents() {
        let message = "a view reads a collection, so its pipeline cannot begin with $documents";
        return Err(Error::new(Kind::InvalidNamespace, message));
    }
    if pipeline.sink().is_some() {
        let message = "a view only reads, but the last stage of its pipeline writes";
        return Err(Error::new(Kind::OptionNotSupportedOnView, message));
    }
    let others = of_database(&view.database)?;
    let mut graph = Graph::default();
    for other in others.iter().filter(|other| other.namespace != view.namespace) {
        // A stored pipeline that can no longer be parsed counts as reading no other collections.
        graph.add(other, parsed(other).ok().as_ref());
    }
    graph.add(view, Some(&pipeline));
    graph.check(&view.namespace)
}

fn parsed(view: &View) -> Result<Pipeline> {
    let mut environment = json!({"now": 0, "roles": []});
    if let Some(collator) = view.collation() {
        environment["collation"] = collator.definition().clone();
    }
    Pipeline::parse(&view.stages, &Environment::parse(&environment)?)
}

/// The views of a database by name, each with the namespaces that it reads, and its collation.
#[derive(Default)]
struct Graph<'v>(BTreeMap<&'v str, (BTreeSet<String>, Option<&'v Collator>)>);

impl<'v> Graph<'v> {
    fn add(&mut self, view: &'v View, pipeline: Option<&Pipeline>) {
        let others = pipeline.into_iter().flat_map(Pipeline::collections);
        let others = others.map(|name| format!("{}.{name}", view.database));
        self.0.insert(&view.namespace, (others.chain([view.source()]).collect(), view.collation()));
    }

    /// The views that a view reads.
    fn below(&self, name: &str) -> BTreeSet<&'v str> {
        let reads = self.0.get(name).map(|(reads, _)| reads);
        reads.into_iter().flatten().filter_map(|name| Some(*self.0.get_key_value(name.as_str())?.0)).collect()
    }

    /// The views that read a view.
    fn above(&self, name: &str) -> BTreeSet<&'v str> {
        self.0.iter().filter(|(_, (reads, _))| reads.contains(name)).map(|(name, _)| *name).collect()
    }

    /// Checks the chains of views through a view. The other views were checked when they were created or changed.
    fn check(&self, name: &str) -> Result<()> {
        let (below, is_cycle) = depth(name, |name| self.below(name));
        if is_cycle {
            bail!(Kind::GraphContainsCycle, "View cycle detected: {name} would read itself");
        }
        let (above, _) = depth(name, |name| self.above(name));
        if below + above + 1 > MAX_DEPTH {
            return Err(too_deep(name));
        }
        let collation = |name: &str| self.0.get(name).and_then(|(_, collation)| *collation);
        let neighbours = self.below(name).into_iter().chain(self.above(name));
        match neighbours.into_iter().find(|other| collation(other) != collation(name)) {
            Some(other) => Err(collations_differ(name, other)),
            None => Ok(()),
        }
    }
}

/// Returns the length of the longest chain of views that begins with a view, not counting that view, and whether a chain leads back to it.
/// A longer chain than [`MAX_DEPTH`] counts as one of [`MAX_DEPTH`].
fn depth<'v>(from: &str, next: impl Fn(&str) -> BTreeSet<&'v str>) -> (usize, bool) {
    let mut level = next(from);
    for depth in 0..=MAX_DEPTH {
        if level.is_empty() || level.contains(from) {
            return (depth, !level.is_empty());
        }
        level = level.iter().flat_map(|name| next(name)).collect();
    }
    (MAX_DEPTH, false)
}

/// Creates a view.
/// Errors: `NamespaceExists`, `InvalidNamespace`; `BadValue` for an empty `view_on`; those of stages; `OptionNotSupportedOnView`,
/// `GraphContainsCycle`, `ViewDepthLimitExceeded`, `ViewPipelineMaxSizeExceeded`.
pub fn create(name: &str, view_on: &str, stages: &[Json], collation: Option<Collator>) -> Result<()> {
    check_may_change()?;
    let (database, _) = namespace::split(name)?;
    check_name(database, view_on)?;
    nul::refuse(stages)?;
    check_free(name)?;
    databases::ensure(database, None)?;
    store::lock()?;
    lock_name(name);
    check_free(name)?;
    let text = pipeline(stages);
    let view = View {
        namespace: name.to_owned(),
        database: database.to_owned(),
        view_on: view_on.to_owned(),
        stages: stages.to_vec(),
        bytes: text.len(),
        collation: collation.map(Into::into),
    };
    check(&view)?;
    let collation = view.collation().map(|collator| collator.definition().to_string());
    store::insert(name, database, view_on, &text, collation.as_deref())?;
    changed("createView", &view)
}

/// Changes the source or the stages of a view. None leaves a part unchanged.
/// Errors: those of [`create`]; `InvalidOptions` for a collection, `NamespaceNotFound`.
pub fn modify(name: &str, view_on: Option<&str>, stages: Option<&[Json]>) -> Result<()> {
    check_may_change()?;
    store::lock()?;
    let Some(view) = cache::view(name)? else {
        cache::get(name)?;
        bail!(Kind::InvalidOptions, "{name} is not a view: viewOn and pipeline are for views");
    };
    let mut view = (*view).clone();
    if let Some(view_on) = view_on {
        check_name(&view.database, view_on)?;
        view_on.clone_into(&mut view.view_on);
    }
    if let Some(stages) = stages {
        nul::refuse(stages)?;
        view.stages = stages.to_vec();
    }
    let text = pipeline(&view.stages);
    view.bytes = text.len();
    check(&view)?;
    store::set(name, &view.view_on, &text)?;
    changed("modifyView", &view)
}

fn pipeline(stages: &[Json]) -> String {
    Json::Array(stages.to_vec()).to_string()
}

fn changed(what: &str, view: &View) -> Result<()> {
    change::log(what, Some(&view.namespace), &json!({"viewOn": view.view_on, "pipeline": view.stages}))?;
    change::announce();
    Ok(())
}

/// Drops a view; false if there is none.
pub(super) fn drop(name: &str) -> Result<bool> {
    if cache::view(name)?.is_none() {
        return Ok(false);
    }
    store::lock()?;
    let dropped = store::delete(name)?;
    if dropped {
        change::log("dropView", Some(name), &json!({}))?;
        change::announce();
    }
    Ok(dropped)
}

/// The views of a database, by name.
pub fn of_database(database: &str) -> Result<Vec<View>> {
    let _snapshot = ActiveSnapshot::latest();
    store::read_of_database(database)?.into_iter().map(store::StoredView::into_view).collect()
}

/// Drops the views of a database.
pub(super) fn drop_of_database(database: &str) -> Result<()> {
    store::delete_of_database(database)?;
    change::announce();
    Ok(())
}
