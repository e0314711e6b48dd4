//! A cache of catalog lookups for hot paths, such as OIDs by name. It is emptied when a relation changes, by the invalidations that
//! also empty PostgreSQL's own caches.

use crate::pg::object::invalidation::relation_changes;
use pgrx::pg_sys::Oid;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::CStr;

pub struct LookupCache<K, V> {
    /// the number of [`relation_changes`] at which the values were found
    as_of: u64,
    values: BTreeMap<K, V>,
}

impl<K: Ord, V: Clone> LookupCache<K, V> {
    pub const NONE: Self = Self { as_of: 0, values: BTreeMap::new() };

    /// Returns the cached value, or calls `look_up` and caches what it returns.
    pub fn get(known: &RefCell<Self>, key: K, look_up: impl FnOnce() -> Option<V>) -> Option<V> {
        let as_of = relation_changes();
        let value = Some(known.borrow()).filter(|known| known.as_of == as_of).and_then(|k| k.values.get(&key).cloned());
        if value.is_some() {
            return value;
        }
        let found = look_up()?;
        // An invalidation during the lookup may concern this value, which is then not cached.
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

/// A relation's name in two parts: the number of the object to which it belongs, and the kind of relation.
type Name = (i32, &'static CStr);

thread_local! {
    static RELATIONS: RefCell<LookupCache<Name, Oid>> = const { RefCell::new(LookupCache::NONE) };
}

/// Like [`LookupCache::get`], for OIDs of relations.
pub fn relation(name: Name, look_up: impl FnOnce() -> Option<Oid>) -> Option<Oid> {
    RELATIONS.with(|known| LookupCache::get(known, name, look_up))
}
