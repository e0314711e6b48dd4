//! Calls that create and drop collections' tables and indexes.

use super::signature::qualified;
use crate::routing::model::Index;

calls! {
    /// Creates a collection's table and places it at a version.
    create_table => CreateTable { collection: i32, token: i64, version: i64, id_index: bool } -> ();

    /// Sets the validator of a collection at the shard, by the text of its definition; None: it has none. Excludes writers.
    set_validator => SetValidator<'a> { collection: i32, token: i64, definition: Option<&'a str> } -> ();

    /// Drops a collection's table and its placement.
    drop_table => DropTable { collection: i32 } -> ();

    /// Creates a secondary index of a collection's table.
    create_index => CreateIndex<'a> {
        collection: i32,
        index: i32,
        /// the definition's text
        keys: &'a str,
        is_unique: bool,
        /// the filter of a partial index; None: it holds all documents
        partial: Option<&'a str>,
    } -> ();

    /// Drops a secondary index.
    drop_index => DropIndex { index: i32 } -> ();

    /// Excludes every writer of a collection until the transaction ends.
    exclude_writers => ExcludeWriters { collection: i32 } -> ();
}

impl<'a> CreateIndex<'a> {
    /// The call that creates an index of a collection.
    pub fn of(collection: i32, index: &'a Index) -> Self {
        Self {
            collection,
            index: index.id,
            keys: &index.definition,
            is_unique: index.unique,
            partial: index.partial.as_deref().map(|partial| partial.text.as_str()),
        }
    }
}

impl DropTable {
    /// The statement with its argument in it, to be run with others as one text.
    pub fn text(self) -> String {
        format!("SELECT {}({})", qualified(Self::SIGNATURE.function), self.collection)
    }
}

impl DropIndex {
    /// Like [`DropTable::text`].
    pub fn text(self) -> String {
        format!("SELECT {}({})", qualified(Self::SIGNATURE.function), self.index)
    }
}
