//! `docshard_catalog.settings`: settings that differ from their defaults.

statements! {
    /// A setting's value, in the active snapshot; None if it is the default.
    pub fn read(name: &str) -> Option<String> {
        run_active "SELECT value FROM docshard_catalog.settings WHERE name = $1"
    }

    /// Sets a setting.
    pub fn set(name: &str, value: &str) {
        run "INSERT INTO docshard_catalog.settings (name, value) VALUES ($1, $2) \
             ON CONFLICT (name) DO UPDATE SET value = excluded.value"
    }

    /// Restores the default of a setting.
    pub fn delete(name: &str) { run "DELETE FROM docshard_catalog.settings WHERE name = $1" }
}
