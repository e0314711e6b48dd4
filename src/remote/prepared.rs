//! The prepared statements of one connection, found by their text, the least recently used ones given up first.

use std::collections::HashMap;
use std::ffi::CString;
use std::hash::{BuildHasherDefault, Hasher};
use xxhash_rust::xxh64::Xxh64;

/// Statements that a connection keeps prepared.
const CAPACITY: usize = 500;

/// xxHash behind `BuildHasherDefault`.
#[derive(Default)]
pub(super) struct TextHasher(Xxh64);

impl Hasher for TextHasher {
    fn finish(&self) -> u64 {
        self.0.digest()
    }
    fn write(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }
}

#[derive(Debug)]
struct Entry {
    name: CString,
    number: u64,
    types: Vec<pq_sys::Oid>,
    used: u64,
}

/// What to do to run a statement.
#[derive(Debug)]
pub(super) struct Lookup {
    pub(super) name: CString,
    /// the statement has to be prepared under that name first; its number, for [`Prepared::forget`]
    pub(super) prepare: Option<u64>,
    /// a statement to deallocate
    pub(super) evict: Option<CString>,
}

#[derive(Default)]
pub(super) struct Prepared {
    entries: HashMap<Box<str>, Entry, BuildHasherDefault<TextHasher>>,
    clock: u64,
}

impl Prepared {
    /// The statement's name if it is prepared with these parameter types. The fast way in.
    pub(super) fn find(&mut self, sql: &str, types: &[pq_sys::Oid]) -> Option<&CString> {
        self.clock += 1;
        let entry = self.entries.get_mut(sql).filter(|e| e.types == types)?;
        entry.used = self.clock;
        Some(&entry.name)
    }

    /// The statement's name, with what has to be sent before it can be used.
    pub(super) fn find_or_add(&mut self, sql: &str, types: &[pq_sys::Oid]) -> Lookup {
        if let Some(name) = self.find(sql, types) {
            return Lookup { name: name.clone(), prepare: None, evict: None };
        }
        let victim = if self.entries.contains_key(sql) {
            Some(Box::from(sql))
        } else if self.entries.len() >= CAPACITY {
            self.entries.iter().min_by_key(|(_, e)| e.used).map(|(k, _)| k.clone())
        } else {
            None
        };
        let evict = victim.and_then(|key: Box<str>| self.entries.remove(&key)).map(|e| e.name);
        let number = self.clock;
        let name = CString::new(format!("docshard_{number}")).unwrap_or_default();
        let entry = Entry { name: name.clone(), number, types: types.to_vec(), used: self.clock };
        self.entries.insert(sql.into(), entry);
        Lookup { name, prepare: Some(number), evict }
    }

    /// A statement could not be prepared.
    pub(super) fn forget(&mut self, number: u64) {
        self.entries.retain(|_, e| e.number != number);
    }

    /// The server doesn't know or accept its statements any more.
    pub(super) fn clear(&mut self) {
        self.entries.clear();
    }
}

impl std::fmt::Debug for Prepared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} prepared statements", self.entries.len())
    }
}
