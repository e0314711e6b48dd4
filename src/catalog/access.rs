//! What an application's role needs: on the router, and on every shard for the role that it is mapped to there.

use super::cache;
use super::model::Place;
use super::nodes::query_on;
use crate::pg::error::{Error, Result};
use crate::pg::param::Param;
use crate::pg::spi;
use crate::pg::sql::{quote_ident, quote_literal};
use docshard_core::error::Kind;

/// The statements that let a role work with documents on one node.
fn grants(role: &str) -> [String; 3] {
    let name = quote_ident(role);
    [
        format!("GRANT USAGE ON SCHEMA docshard, docshard_internal, docshard_data, docshard_catalog TO {name}"),
        format!(
            "ALTER DEFAULT PRIVILEGES IN SCHEMA docshard_data GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO {name}"
        ),
        format!(
            "DO $grant$ DECLARE documents regclass; BEGIN \
               FOR documents IN SELECT oid FROM pg_catalog.pg_class WHERE relnamespace = 'docshard_data'::regnamespace \
                 AND relkind = 'r' AND relname ~ '^c[0-9]+$' \
               LOOP EXECUTE pg_catalog.format('GRANT SELECT, INSERT, UPDATE, DELETE ON %s TO %I', documents, {}); \
               END LOOP; END $grant$",
            quote_literal(role)
        ),
    ]
}

/// Lets a role work with documents everywhere. It is mapped to `user` at the shards (by default the same name), with
/// `password`; without one only if the shards let it in so, which an administrator allows by this call. The role is
/// made at the shards where it is missing.
///
/// # Errors
/// `UserNotFound`; what PostgreSQL or a shard raises.
pub fn grant(role: &str, user: Option<&str>, password: Option<&str>) -> Result<()> {
    let known = spi::query("SELECT FROM pg_catalog.pg_roles WHERE rolname = $1", &[Param::Text(role)])?;
    if known.is_empty() {
        return Err(Error::new(Kind::UserNotFound, format!("role \"{role}\" does not exist"))
            .with_hint("Create it first: CREATE ROLE … LOGIN."));
    }
    for statement in grants(role) {
        spi::run_script(&statement)?;
    }
    let there = user.unwrap_or(role);
    for shard in cache::shards()?.values() {
        let Place::Remote(_) = shard.place else { continue };
        let server = quote_ident(shard.server.as_deref().unwrap_or_default());
        let mapped = spi::query(
            "SELECT FROM pg_catalog.pg_user_mappings WHERE srvname = $1 AND usename = $2",
            &[Param::OptText(shard.server.as_deref()), Param::Text(role)],
        )?;
        let replace = if mapped.is_empty() {
            String::new()
        } else {
            format!("DROP USER MAPPING FOR {} SERVER {server}; ", quote_ident(role))
        };
        let secret = match password {
            Some(password) => format!("password {}", quote_literal(password)),
            None => "password_required 'false'".to_owned(),
        };
        spi::run_script(&format!(
            "GRANT USAGE ON FOREIGN SERVER {server} TO {role}; {replace}\
             CREATE USER MAPPING FOR {role} SERVER {server} OPTIONS (user {user}, {secret})",
            role = quote_ident(role),
            user = quote_literal(there),
        ))?;
        let missing = query_on(
            shard,
            "SELECT 1 WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = $1)",
            &[Param::Text(there)],
            1,
        )?;
        if !missing.is_empty() {
            let password = password.map_or(String::new(), |password| format!(" PASSWORD {}", quote_literal(password)));
            let create = format!("CREATE ROLE {} LOGIN{password}", quote_ident(there));
            query_on(shard, &create, &[], 0)?;
        }
        for statement in grants(there) {
            query_on(shard, &statement, &[], 0)?;
        }
    }
    Ok(())
}
