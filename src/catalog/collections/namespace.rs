//! Names of databases and collections.

use crate::pg::error::{Error, Result};
use docshard_core::error::{Kind, error};

/// The longest namespace, in bytes: MongoDB's limit.
pub const MAX_NAMESPACE: usize = 255;
/// The longest database name, in bytes: MongoDB's limit.
const MAX_DATABASE: usize = 63;

fn invalid(message: String) -> Error {
    Error::new(Kind::InvalidNamespace, message).with_hint("A namespace is database.collection, such as social.inbox.")
}

/// The database whose collections show the catalog. It stores nothing.
pub const CONFIG: &str = "config";
/// The database in which each node of MongoDB keeps its own data. Routers write nothing to it.
pub const LOCAL: &str = "local";

/// Refuses to write to a namespace of the database that shows the catalog.
/// Errors: `IllegalOperation`.
pub fn check_writable(namespace: &str) -> Result<()> {
    if namespace.split_once('.').map_or(namespace, |(database, _)| database) != CONFIG {
        return Ok(());
    }
    Err(error!(Kind::IllegalOperation, "{namespace} shows the catalog and cannot be written").with_hint(
        "Functions change it: docshard.set_setting(), start_balancer(), add_shard(), split_at(), update_zone_key_range() …",
    ))
}

/// True for databases to which pipelines cannot write.
pub fn is_internal(database: &str) -> bool {
    is_reserved(database) || database == CONFIG
}

/// True for MongoDB's internal databases, whose collections cannot be sharded.
pub fn is_reserved(database: &str) -> bool {
    ["admin", LOCAL].contains(&database)
}

/// Checks the name of a database.
/// Errors: `InvalidNamespace`.
pub fn check_database(name: &str) -> Result<()> {
    if name.is_empty() {
        return Err(invalid("database names cannot be empty".to_owned()));
    }
    if name.len() > MAX_DATABASE {
        return Err(invalid(format!("database name is too long: {} bytes, at most {MAX_DATABASE}", name.len())));
    }
    if let Some(bad) = name.chars().find(|c| matches!(c, '/' | '\\' | '.' | ' ' | '"' | '$' | '\0')) {
        return Err(invalid(format!("database name '{name}' contains the character '{bad}'")));
    }
    Ok(())
}

/// Splits `db.coll` and checks both parts.
/// Errors: `InvalidNamespace`.
pub fn split(namespace: &str) -> Result<(&str, &str)> {
    split_with(namespace, None)
}

/// True for the name of a collection of the system.
pub fn is_system(namespace: &str) -> bool {
    namespace.split_once('.').is_some_and(|(_, name)| name.starts_with("system."))
}

/// Like [`split`], for operations that no internal collection allows.
/// Errors: `IllegalOperation` for a collection of an internal database, and a system collection.
pub fn split_of_users(namespace: &str) -> Result<(&str, &str)> {
    let parts = if is_system(namespace) { None } else { Some(split(namespace)?) };
    parts
        .filter(|(database, _)| !is_internal(database))
        .ok_or_else(|| error!(Kind::IllegalOperation, "{namespace} is an internal collection"))
}

/// Like [`split`], but also accepts `allowed` in the place of the collection's name, although no collection can have it.
pub fn split_with<'n>(namespace: &'n str, allowed: Option<&str>) -> Result<(&'n str, &'n str)> {
    if namespace.is_empty() {
        return Err(invalid("the namespace is empty".to_owned()));
    }
    let Some((database, collection)) = namespace.split_once('.') else {
        return Err(invalid(format!("Invalid namespace specified '{namespace}': it has no dot")));
    };
    check_database(database)?;
    if allowed == Some(collection) {
        return Ok((database, collection));
    }
    if collection.is_empty() {
        return Err(invalid(format!("Invalid namespace specified '{namespace}': the collection's name is empty")));
    }
    if namespace.len() > MAX_NAMESPACE {
        return Err(invalid(format!("namespace is too long: {} bytes, at most {MAX_NAMESPACE}", namespace.len())));
    }
    if collection.starts_with('.') || collection.ends_with('.') || collection.contains("..") {
        return Err(invalid(format!("Invalid namespace specified '{namespace}': misplaced dot")));
    }
    if collection.contains(['$', '\0']) {
        return Err(invalid(format!("Invalid collection name '{collection}': it contains '$' or a zero byte")));
    }
    if collection.starts_with("system.") {
        return Err(invalid(format!("Invalid collection name '{collection}': system collections are reserved")));
    }
    Ok((database, collection))
}
