//! `docshard_catalog.rotation`: new passwords of the service role that are not stored in a server's user mapping yet.

rows! {
    /// A server, and its new password.
    Rotation from "rotation" { server: String, password: String }
}

statements! {
    /// All servers whose user mapping needs a new password.
    pub fn all() -> Vec<Rotation> { select "" }

    /// The new password for a server; None if its user mapping needs none.
    pub fn password(server: &str) -> Option<String> {
        run "SELECT password FROM docshard_catalog.rotation WHERE server = $1::pg_catalog.name"
    }

    /// Inserts the new password for a server.
    pub fn insert(rotation: &Rotation) {
        run "INSERT INTO docshard_catalog.rotation (server, password) VALUES ($1::pg_catalog.name, $2)",
            [rotation.server, rotation.password]
    }

    /// Deletes the row of a server.
    pub fn delete(server: &str) { run "DELETE FROM docshard_catalog.rotation WHERE server = $1::pg_catalog.name" }
}
