//! `docshard_catalog.settings`: settings that differ from their defaults.

statements! {
    /// A setting's value, in the active snapshot; None if it is the default.
    pub fn read(name: &str) -> Option<String> {
        run_active "SELECT value FROM docshard_catalog.settings WHERE name = $1"
    }

    /// Sets a setting; false if it has this value.
    pub fn set(name: &str, value: &str) -> bool {
        run "INSERT INTO docshard_catalog.settings AS s (name, value) VALUES ($1, $2) \
             ON CONFLICT (name) DO UPDATE SET value = excluded.value WHERE s.value <> excluded.value"
    }

    /// Restores the default of a setting; false if it has no other value.
    pub fn delete(name: &str) -> bool { run "DELETE FROM docshard_catalog.settings WHERE name = $1" }
}
