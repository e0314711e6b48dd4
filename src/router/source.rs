//! What the namespace of a read names: a collection, whose documents are on shards, or a virtual collection of the database `config`, which
//! shows the catalog.
//!
//! Each read resolves its namespace to a [`Source`]. INVARIANT: only this module knows which databases are virtual; [`config`] has their
//! statements, and no module outside of the router uses it.

use super::config::{self, CatalogView};
use super::execute::{self, Documents, Part};
use super::fresh_map::read_with_fresh_map;
use super::sampling;
use super::session;
use crate::catalog::cache;
use crate::catalog::collections::{grants, namespace};
use crate::pg::error::Result;
use docshard_core::routing::model::Collection;
use docshard_core::routing::plan::search::Search;
use docshard_core::routing::plan::statement::Statement;
use docshard_core::routing::plan::{Allowed, Read};
use docshard_core::routing::request::query::Query;
use std::rc::Rc;

/// The databases that have only virtual collections. Such a database is also shown as the shard of its collections.
pub const VIRTUAL: &[&str] = &[namespace::CONFIG];

/// The collection that a namespace names.
#[derive(Debug)]
pub enum Source {
    Stored(Rc<Collection>),
    Virtual(&'static CatalogView),
    /// no collection; callers handle views
    Missing,
}

impl Source {
    /// Looks up a namespace in the cached catalog.
    pub fn of(namespace: &str) -> Result<Self> {
        Ok(Self::resolve(cache::find(namespace)?, namespace))
    }

    /// Returns the source for a namespace; `collection` is the one that the catalog has, None if it has none.
    pub fn resolve(collection: Option<Rc<Collection>>, namespace: &str) -> Self {
        match collection {
            Some(collection) => Self::Stored(collection),
            None => virtual_collection(namespace).map_or(Self::Missing, Self::Virtual),
        }
    }

    /// The source for a read of a namespace of which the catalog has no collection.
    /// Errors: `Unauthorized` for a user who could not read a collection of that name.
    pub fn without_collection(namespace: &str) -> Result<Self> {
        let source = Self::resolve(None, namespace);
        if !source.exists() && !is_reserved(namespace) {
            grants::require_for_missing(namespace)?;
        }
        Ok(source)
    }

    pub fn exists(&self) -> bool {
        !matches!(self, Self::Missing)
    }

    /// The collection on shards.
    pub fn stored(&self) -> Option<&Collection> {
        if let Self::Stored(collection) = self { Some(collection) } else { None }
    }

    /// The statement of a read that no shard answers; None if there is nothing to read.
    pub fn statement(&self, query: &Query, read: Read<'_>) -> Result<Option<Statement>> {
        if let Self::Virtual(view) = self { config::statement(view, query, read) } else { Ok(None) }
    }

    /// The documents of a read that no shard answers.
    pub fn without_shards(&self, query: &Query, read: Read<'_>) -> Result<Documents> {
        let streams = self.statement(query, read)?.map(|statement| config::rows(&statement)).transpose()?;
        Ok(Documents::of_streams(streams.into_iter().collect(), u64::MAX))
    }
}

/// Answers a read. `at_shards` plans it for a collection and executes the plan; None: a shard has declined. `without_shards` answers it
/// from any other source.
/// Errors: `Unauthorized` for a collection that does not exist, too.
pub fn answer<T>(
    namespace: &str,
    (query, kind): (&Query, &'static str),
    mut at_shards: impl FnMut(&Search<'_>, Allowed<'_>) -> Result<Option<T>>,
    without_shards: impl Fn(&Source) -> Result<T>,
) -> Result<T> {
    read_with_fresh_map(namespace, |collection| {
        let Some(collection) = collection else {
            return without_shards(&Source::without_collection(namespace)?);
        };
        sampling::read(&collection, kind, || query.text());
        let search = session::counted_search(&collection, query)?;
        execute::unless_declined(Allowed::All(&session::declined()), |allowed| at_shards(&search, allowed))
    })
}

/// True for names of which there are no collections: those of a virtual database, and `$cmd.aggregate`, which a pipeline has that reads
/// none.
fn is_reserved(namespace: &str) -> bool {
    namespace.split_once('.').is_some_and(|(database, name)| VIRTUAL.contains(&database) || name.starts_with('$'))
}

/// Reads the rows of documents, counts or values. A collection that does not exist has none.
pub fn read(namespace: &str, query: &Query, read: Read<'_>) -> Result<Documents> {
    read_as(namespace, (query, sampling::kind_of(&read)), read)
}

/// Like [`read`], for a statement that is sampled as one of this kind.
pub fn read_as(namespace: &str, (query, kind): (&Query, &'static str), read: Read<'_>) -> Result<Documents> {
    answer(
        namespace,
        (query, kind),
        |search, allowed| execute::documents(search.collection, &read.plan(search, allowed)?),
        |source| source.without_shards(query, read),
    )
}

/// Like [`read`]; also returns what is observed of each shard.
pub fn read_observed(namespace: &str, query: &Query, read: Read<'_>) -> Result<(Documents, Vec<Part>)> {
    answer(
        namespace,
        (query, sampling::kind_of(&read)),
        |search, allowed| execute::observed_documents(search.collection, &read.plan(search, allowed)?),
        |source| Ok((source.without_shards(query, read)?, Vec::new())),
    )
}

/// The names of a database's virtual collections.
pub fn virtual_names(database: &str) -> impl Iterator<Item = &'static str> {
    let views = if VIRTUAL.contains(&database) { config::VIEWS } else { &[] };
    views.iter().map(|view| view.name)
}

/// The fields of a virtual collection's documents in MongoDB's order, separated by spaces; None for other namespaces.
pub fn field_order(namespace: &str) -> Option<&'static str> {
    virtual_collection(namespace).map(|view| view.fields)
}

fn virtual_collection(namespace: &str) -> Option<&'static CatalogView> {
    let (database, name) = namespace.split_once('.')?;
    if !VIRTUAL.contains(&database) {
        return None;
    }
    config::VIEWS.iter().find(|view| view.name == name)
}
