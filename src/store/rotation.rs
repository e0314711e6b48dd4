//! `docshard_catalog.rotation`: servers whose user mapping has yet to get the service role's new password.

use super::row::{self, row};
use crate::pg::error::Result;
use crate::pg::spi::param::Param;

row! {
    /// A server, and its new password.
    pub struct Rotation from "rotation" {
        /// the server
        pub server: String,
        /// the password
        pub password: String,
    }
}

/// All that are left.
pub fn all() -> Result<Vec<Rotation>> {
    row::query("", &[])
}

/// Inserts one.
pub fn insert(rotation: &Rotation) -> Result<()> {
    row::execute(
        "INSERT INTO docshard_catalog.rotation (server, password) VALUES ($1::pg_catalog.name, $2)",
        &[Param::Text(&rotation.server), Param::Text(&rotation.password)],
    )
}

/// Deletes a server's.
pub fn delete(server: &str) -> Result<()> {
    let sql = "DELETE FROM docshard_catalog.rotation WHERE server = $1::pg_catalog.name";
    row::execute(sql, &[Param::Text(server)])
}
