//! Databases: their primary shard, where unsharded collections live.

use super::{cache, change, namespace};
use crate::pg::error::{Error, Result};
use crate::pg::spi;
use crate::pg::spi::param::Param;
use docshard_core::cluster::chunk_map::ShardId;
use docshard_core::error::Kind;
use serde_json::json;

/// The primary shard of a database; None if there is no such database.
///
/// # Errors
/// Internal ones.
pub fn primary(name: &str) -> Result<Option<ShardId>> {
    let rows =
        spi::query("SELECT primary_shard FROM docshard_catalog.databases WHERE name = $1", &[Param::Text(name)])?;
    Ok(rows.first().map(|row| row.i32(0)))
}

/// Makes sure that a database exists; answers its primary shard. A new one gets the shard with the fewest chunks and
/// databases, or the one asked for.
///
/// # Errors
/// `InvalidNamespace`, `ShardNotFound`, `IllegalOperation` if another primary was asked for than it has.
pub fn ensure(name: &str, wanted: Option<&str>) -> Result<ShardId> {
    namespace::check_database(name)?;
    namespace::check_writable(name)?;
    let wanted = match wanted {
        Some(shard) => {
            let shard = cache::shard_named(shard)?;
            if shard.draining {
                let message = format!("shard {} is being removed", shard.name);
                return Err(Error::new(Kind::IllegalOperation, message));
            }
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
        None => emptiest_shard()?,
    };
    spi::execute(
        "INSERT INTO docshard_catalog.databases (name, primary_shard) VALUES ($1, $2) ON CONFLICT DO NOTHING",
        &[Param::Text(name), Param::Int4(shard)],
    )?;
    primary(name)?.ok_or_else(|| Error::new(Kind::InternalError, format!("database {name} could not be made")))
}

/// The shard that should get new things: not draining, with the fewest chunks and databases.
fn emptiest_shard() -> Result<ShardId> {
    let rows = spi::query(
        "SELECT s.id FROM docshard_catalog.shards s WHERE NOT s.draining ORDER BY \
         (SELECT count(*) FROM docshard_catalog.chunks c WHERE c.shard_id = s.id) + \
         (SELECT count(*) FROM docshard_catalog.databases d WHERE d.primary_shard = s.id), s.id LIMIT 1",
        &[],
    )?;
    rows.first().map(|row| row.i32(0)).ok_or_else(|| {
        Error::new(Kind::ShardNotFound, "there is no shard that can take data")
            .with_hint("Add one: docshard.add_shard().")
    })
}

/// Enables sharding of a database: MongoDB's step before `shard_collection`, which does it by itself.
///
/// # Errors
/// As [`ensure`]; `InvalidOptions` for MongoDB's own databases.
pub fn enable_sharding(name: &str, primary: Option<&str>) -> Result<()> {
    if namespace::is_reserved(name) {
        return Err(Error::new(Kind::InvalidOptions, format!("Cannot manually create or shard the '{name}' database")));
    }
    ensure(name, primary)?;
    let changed = spi::execute(
        "UPDATE docshard_catalog.databases SET partitioned = true WHERE name = $1 AND NOT partitioned",
        &[Param::Text(name)],
    )?;
    if changed.processed > 0 {
        change::log("enableSharding", Some(name), &json!({}))?;
        change::announce();
    }
    Ok(())
}

/// The unsharded collections of a database.
///
/// # Errors
/// Internal ones.
pub fn unsharded_collections(name: &str) -> Result<Vec<String>> {
    let rows = spi::query(
        "SELECT namespace FROM docshard_catalog.collections WHERE database = $1 AND key IS NULL ORDER BY namespace",
        &[Param::Text(name)],
    )?;
    Ok(rows.iter().map(|row| row.text(0).to_owned()).collect())
}

/// Makes a shard the primary one of a database, whose unsharded collections are there already.
///
/// # Errors
/// Internal ones.
pub fn set_primary(name: &str, shard: ShardId) -> Result<()> {
    spi::execute(
        "UPDATE docshard_catalog.databases SET primary_shard = $2 WHERE name = $1",
        &[Param::Text(name), Param::Int4(shard)],
    )?;
    change::log("movePrimary", Some(name), &json!({"to": cache::shard(shard)?.name}))?;
    change::announce();
    Ok(())
}

/// Removes a database that has no collection left.
///
/// # Errors
/// Internal ones.
pub fn forget(name: &str) -> Result<()> {
    spi::execute("DELETE FROM docshard_catalog.databases WHERE name = $1", &[Param::Text(name)])?;
    change::log("dropDatabase", Some(name), &json!({}))?;
    change::announce();
    Ok(())
}
