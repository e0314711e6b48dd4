//! `docshard_catalog.views`: pipelines that are read like collections.

use crate::pg::error::Result;
use crate::pg::spi;
use docshard_core::routing::model::View;
use serde_json::Value as Json;

rows! {
    /// A view.
    StoredView from "views" {
        namespace: String,
        /// the collection or view that the view reads, by its name in the same database
        view_on: String,
        /// an array of stages
        pipeline: Json,
        /// how statements over the view compare strings; None: by their bytes
        collation: Option<Json> = "collation_spec",
    }
}

impl StoredView {
    /// The view.
    ///
    /// # Errors
    /// Those of [`View::new`].
    pub fn into_view(self) -> Result<View> {
        View::new(self.namespace, self.view_on, self.pipeline, self.collation.as_ref())
    }
}

/// Blocks other transactions that define or drop views, until the transaction ends.
pub fn lock() -> Result<()> {
    spi::run_script("LOCK TABLE docshard_catalog.views IN SHARE ROW EXCLUSIVE MODE")
}

statements! {
    /// The view of that name, in the active snapshot.
    pub fn read(namespace: &str) -> Option<StoredView> { select_active "WHERE namespace = $1" }

    /// A database's views by name, in the active snapshot.
    pub fn read_of_database(database: &str) -> Vec<StoredView> { select_active "WHERE database = $1 ORDER BY namespace" }

    /// Inserts a view.
    pub fn insert(namespace: &str, database: &str, view_on: &str, pipeline: &str, collation: Option<&str>) {
        run "INSERT INTO docshard_catalog.views (namespace, database, view_on, pipeline, collation_spec) \
             VALUES ($1, $2, $3, $4::pg_catalog.text::pg_catalog.json, $5::pg_catalog.text::pg_catalog.json)"
    }

    /// Sets what a view reads, and its pipeline.
    pub fn set(namespace: &str, view_on: &str, pipeline: &str) {
        run "UPDATE docshard_catalog.views SET view_on = $2, pipeline = $3::pg_catalog.text::pg_catalog.json WHERE namespace = $1"
    }

    /// Deletes a view; false if there is none.
    pub fn delete(namespace: &str) -> bool { run "DELETE FROM docshard_catalog.views WHERE namespace = $1" }

    /// Deletes a database's views.
    pub fn delete_of_database(database: &str) { run "DELETE FROM docshard_catalog.views WHERE database = $1" }
}
