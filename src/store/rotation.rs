//! `docshard_catalog.rotation`: servers whose user mapping has yet to get the service role's new password.

rows! {
    /// A server, and its new password.
    Rotation from "rotation" { server: String, password: String }
}

statements! {
    /// All servers that have yet to get it.
    pub fn all() -> Vec<Rotation> { select "" }

    /// The new password of a server that has yet to get it.
    pub fn password(server: &str) -> Option<String> {
        run "SELECT password FROM docshard_catalog.rotation WHERE server = $1::pg_catalog.name"
    }

    /// Inserts one.
    pub fn insert(rotation: &Rotation) {
        run "INSERT INTO docshard_catalog.rotation (server, password) VALUES ($1::pg_catalog.name, $2)",
            [rotation.server, rotation.password]
    }

    /// Deletes a server's.
    pub fn delete(server: &str) { run "DELETE FROM docshard_catalog.rotation WHERE server = $1::pg_catalog.name" }
}
