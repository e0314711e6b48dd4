//! Databases: their primary shard, where unsharded collections live.

use super::namespace;
use crate::catalog::{cache, change};
use crate::pg::error::{Error, Result};
use crate::store::{databases as store, shards};
use docshard_core::cluster::chunk_map::ShardId;
use docshard_core::error::{Kind, error};
use serde_json::json;

pub use crate::store::databases::primary;

/// Creates a database if it does not exist; returns its primary shard. A new one gets the requested shard, or the one with the
/// fewest chunks and databases.
/// Errors: `InvalidNamespace`; `InvalidOptions` for `local`; `ShardNotFound`, also if the requested shard is being removed;
/// `IllegalOperation` for `config`; `NamespaceExists` if the database has another primary shard than the requested one.
pub fn ensure(name: &str, wanted: Option<&str>) -> Result<ShardId> {
    namespace::check_database(name)?;
    namespace::check_writable(name)?;
    if name == namespace::LOCAL {
        return Err(reserved(name));
    }
    let wanted = match wanted {
        Some(shard) => {
            let shard = cache::shard_named(shard)?;
            shard.require_takes_data()?;
            Some(shard.id)
        }
        None => None,
    };
    if let Some(current) = primary(name)? {
        return match wanted {
            Some(other) if other != current => {
                let current = &cache::shard(current)?.name;
                let message = format!("database {name} already exists with primary shard {current}");
                Err(Error::new(Kind::NamespaceExists, message)
                    .with_hint("docshard.move_primary(database, shard) moves it."))
            }
            _ => Ok(current),
        };
    }
    let shard = match wanted {
        Some(shard) => shard,
        None => shards::emptiest()?.ok_or_else(|| {
            error!(Kind::ShardNotFound, "no shard can take data").with_hint("Add one: docshard.add_shard().")
        })?,
    };
    store::insert(name, shard)?;
    primary(name)?.ok_or_else(|| error!(Kind::InternalError, "database {name} could not be created"))
}

fn reserved(name: &str) -> Error {
    error!(Kind::InvalidOptions, "Cannot manually create or shard the '{name}' database")
}

/// Enables sharding of a database: in MongoDB the step before `shardCollection`. Here `shard_collection` does it itself.
/// Errors: those of [`ensure`]; `InvalidOptions` for MongoDB's own databases.
pub fn enable_sharding(name: &str, primary: Option<&str>) -> Result<()> {
    if namespace::is_reserved(name) {
        return Err(reserved(name));
    }
    ensure(name, primary)?;
    if store::set_partitioned(name)? {
        change::log("enableSharding", Some(name), &json!({}))?;
        change::announce();
    }
    Ok(())
}

pub use crate::store::collections::unsharded_of_database as unsharded_collections;

/// Makes a shard the primary one of a database, whose unsharded collections are there already.
pub fn set_primary(name: &str, shard: ShardId) -> Result<()> {
    store::set_primary(name, shard)?;
    change::log("movePrimary", Some(name), &json!({"to": cache::shard(shard)?.name}))?;
    change::announce();
    Ok(())
}

/// Removes a database that has no collection left.
pub fn forget(name: &str) -> Result<()> {
    store::delete(name)?;
    change::log("dropDatabase", Some(name), &json!({}))?;
    change::announce();
    Ok(())
}
