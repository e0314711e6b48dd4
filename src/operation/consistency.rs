//! Checks that the catalog and all shards agree: MongoDB's checkMetadataConsistency.

use super::arguments::Arguments;
use crate::catalog::cache;
use crate::catalog::cluster::identity::check_router;
use crate::catalog::collections::{namespace, views};
use crate::pg::error::{Error, Result};
use crate::pg::transaction::snapshot::{self, ActiveSnapshot};
use crate::status::consistency::{self, Scope};
use crate::store;
use docshard_core::error::Kind;
pub use docshard_core::routing::consistency::Finding;

/// Checks a collection, a database (a name without a dot), or all.
///
/// # Errors
/// `NamespaceNotFound`, `InvalidNamespace`, `CommandNotSupportedOnView`; `OperationNotSupportedInTransaction` under REPEATABLE READ, whose
/// snapshot may be older than the shards' answers.
pub fn check(ns: Option<&str>, options: &Arguments<'_>) -> Result<Vec<Finding>> {
    check_router()?;
    let scope = match ns {
        None => Scope::Cluster,
        Some(name) if name.contains('.') => {
            namespace::split(name)?;
            let is_there = {
                let _snapshot = ActiveSnapshot::latest();
                store::collections::read_id(name)?.is_some()
            };
            if !is_there {
                views::refuse(name)?;
                return Err(cache::not_found(name));
            }
            Scope::Collection(name)
        }
        Some(database) => {
            namespace::check_database(database)?;
            Scope::Database(database)
        }
    };
    if !snapshot::per_statement() {
        let message = "metadata can be checked only under READ COMMITTED";
        return Err(Error::new(Kind::OperationNotSupportedInTransaction, message)
            .with_hint("Call it outside a transaction, or begin one with BEGIN ISOLATION LEVEL READ COMMITTED."));
    }
    consistency::check(scope, options.flag("checkIndexes"))
}
