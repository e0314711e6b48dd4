//! What hot paths look up in PostgreSQL's catalogs, such as OIDs by name: kept until a relation changes.
//!
//! It is as fresh as what PostgreSQL's own caches would answer, which the same messages empty.

use crate::pg::object::invalidation::relation_changes;
use pgrx::pg_sys::Oid;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::CStr;

/// Values by keys, all of which are forgotten when a relation changes.
pub struct LookupCache<K, V> {
    as_of: u64,
    values: BTreeMap<K, V>,
}

impl<K: Ord, V: Clone> LookupCache<K, V> {
    /// Nothing is known yet.
    pub const NONE: Self = Self { as_of: 0, values: BTreeMap::new() };

    /// The key's value, which `look_up` finds if it is not known; None if there is none.
    pub fn get(known: &RefCell<Self>, key: K, look_up: impl FnOnce() -> Option<V>) -> Option<V> {
        let as_of = relation_changes();
        let value = Some(known.borrow()).filter(|known| known.as_of == as_of).and_then(|k| k.values.get(&key).cloned());
        if value.is_some() {
            return value;
        }
        let found = look_up()?;
        // A change that was told of meanwhile may concern it.
        if relation_changes() == as_of {
            let mut known = known.borrow_mut();
            if known.as_of != as_of {
                known.values.clear();
                known.as_of = as_of;
            }
            known.values.insert(key, found.clone());
        }
        Some(found)
    }
}

/// What a relation is called: the number of what it belongs to, and what its kind is called.
type Name = (i32, &'static CStr);

thread_local! {
    static RELATIONS: RefCell<LookupCache<Name, Oid>> = const { RefCell::new(LookupCache::NONE) };
}

/// The relation's OID, which `look_up` finds if it is not known; None if there is none.
pub fn relation(name: Name, look_up: impl FnOnce() -> Option<Oid>) -> Option<Oid> {
    RELATIONS.with(|known| LookupCache::get(known, name, look_up))
}
