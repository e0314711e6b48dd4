//! OIDs of relations that hot paths look up by name: kept until a relation changes.
//!
//! They are as fresh as what PostgreSQL's own look-up by name would answer, which reads a cache that the same messages empty.

use super::invalidation::relation_changes;
use pgrx::pg_sys::Oid;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::CStr;

/// What a relation is called: the number of what it belongs to, and what its kind is called.
type Name = (i32, &'static CStr);

#[derive(Default)]
struct Known {
    as_of: u64,
    oids: BTreeMap<Name, Oid>,
}

thread_local! {
    static KNOWN: RefCell<Known> = RefCell::new(Known::default());
}

/// The relation's OID, which `look_up` finds if it is not known; None if there is none.
pub fn relation(name: Name, look_up: impl FnOnce() -> Option<Oid>) -> Option<Oid> {
    let as_of = relation_changes();
    let known = KNOWN.with_borrow(|known| known.oids.get(&name).copied().filter(|_| known.as_of == as_of));
    if known.is_some() {
        return known;
    }
    let found = look_up()?;
    // A change that was told of meanwhile may be this relation's.
    if relation_changes() == as_of {
        KNOWN.with_borrow_mut(|known| {
            if known.as_of != as_of {
                known.oids.clear();
                known.as_of = as_of;
            }
            known.oids.insert(name, found);
        });
    }
    Some(found)
}
