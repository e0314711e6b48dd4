//! `docshard_catalog.settings`: settings that differ from their defaults.

use super::row;
use crate::pg::error::Result;
use crate::pg::spi::param::Param;

/// A setting's value, in the active snapshot; None if it is the default.
pub fn read(name: &str) -> Result<Option<String>> {
    Ok(row::read_values("settings", "value", "WHERE name = $1", &[Param::Text(name)])?.into_iter().next())
}

/// Sets a setting.
pub fn set(name: &str, value: &str) -> Result<()> {
    row::execute(
        "INSERT INTO docshard_catalog.settings (name, value) VALUES ($1, $2) \
         ON CONFLICT (name) DO UPDATE SET value = excluded.value",
        &[Param::Text(name), Param::Text(value)],
    )
}

/// Goes back to the default.
pub fn delete(name: &str) -> Result<()> {
    row::execute("DELETE FROM docshard_catalog.settings WHERE name = $1", &[Param::Text(name)])
}
