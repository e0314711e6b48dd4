//! The order in which a shard's rows come.

use crate::catalog::model::Collection;
use docshard_core::query::filter::Filter;
use docshard_core::query::sort::Sort;
use docshard_core::values::key::pattern::FieldKind;

/// In which order the rows come from each shard. The second column is the key they come by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// none
    None,
    /// by the bytes of the second column
    Ascending,
    /// by its bytes, greatest first
    Descending,
}

/// True if the columns of shard key and `_id` are in the order of the sort.
pub fn is_order_of_keys(collection: &Collection, filter: &Filter, sort: &Sort) -> bool {
    column_order(collection, filter, sort).is_some()
}

/// The column whose bytes already order documents as the sort demands, and true for descending.
///
/// `id` orders by `_id`. `skey` orders by the shard key's fields; those that the filter fixes to one value may be left
/// out of the sort, and the sort may end before the key does.
pub fn column_order(collection: &Collection, filter: &Filter, sort: &Sort) -> Option<(&'static str, bool)> {
    let descending = sort.fields.first()?.1;
    if sort.collator.is_some() {
        return None;
    }
    if sort.fields.iter().any(|(_, down)| *down != descending) {
        return None;
    }
    if let [(path, _)] = sort.fields.as_slice()
        && path == "_id"
    {
        // Where the shard key is the `_id`, the primary key is in its order, and there is no index on `id`.
        let by_key = !collection.key.is_unsharded() && collection.key.is_in_order_of_id();
        return Some((if by_key { "t.skey" } else { "t.id" }, descending));
    }
    let mut wanted = sort.fields.iter().peekable();
    for (path, kind) in &collection.key.fields {
        match wanted.peek() {
            None => break,
            Some((next, _)) if next == path && *kind == FieldKind::Ranged => {
                wanted.next();
            }
            Some(_) if filter.ranges_of(path).as_point().is_some() => {}
            Some(_) => return None,
        }
    }
    wanted.peek().is_none().then_some(("t.skey", descending))
}
