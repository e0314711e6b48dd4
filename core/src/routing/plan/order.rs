//! Recognises sorts for which a shard's rows already have a suitable order.

use crate::query::filter::Filter;
use crate::query::sort::Sort;
use crate::routing::model::Collection;
use crate::values::key::pattern::FieldKind;

/// The order of the rows of each shard; their second column is the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    None,
    Ascending,
    Descending,
}

/// Returns the column whose bytes are in the order of the sort, and true if it is descending.
///
/// `id` has the order of `_id`, `skey` has the order of the shard key's fields. The sort may omit fields for which the filter
/// gives one value, and it may end before the shard key does.
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
        return Some((id_column(collection), descending));
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

/// Returns the column that an index has in the order of `_id`. If the shard key is the `_id`, the primary key has this order, and
/// there is no index on `id`.
pub fn id_column(collection: &Collection) -> &'static str {
    let by_key = !collection.key.is_unsharded() && collection.key.is_in_order_of_id();
    if by_key { "t.skey" } else { "t.id" }
}
