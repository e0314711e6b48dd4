//! The prepared statements of one connection, found by their text. The least recently used one is evicted.

use std::collections::HashMap;
use std::ffi::CString;
use std::hash::BuildHasherDefault;
use xxhash_rust::xxh64::Xxh64;

const CAPACITY: usize = 500;

#[derive(Debug)]
struct Entry {
    name: CString,
    number: u64,
    types: Vec<u32>,
    used: u64,
}

pub(super) struct Lookup {
    pub(super) name: CString,
    /// the statement's number, for [`Prepared::forget`], if the caller must prepare the statement first; None if it is prepared
    pub(super) prepare: Option<u64>,
    /// a statement to deallocate
    pub(super) evict: Option<CString>,
}

#[derive(Debug, Default)]
pub(super) struct Prepared {
    entries: HashMap<Box<str>, Entry, BuildHasherDefault<Xxh64>>,
    clock: u64,
}

impl Prepared {
    /// Returns the statement's name if it is prepared with these parameter types.
    pub(super) fn find(&mut self, sql: &str, types: &[u32]) -> Option<&CString> {
        self.clock += 1;
        let entry = self.entries.get_mut(sql).filter(|e| e.types == types)?;
        entry.used = self.clock;
        Some(&entry.name)
    }

    pub(super) fn find_or_add(&mut self, sql: &str, types: &[u32]) -> Lookup {
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

    /// Called when a statement could not be prepared.
    pub(super) fn forget(&mut self, number: u64) {
        self.entries.retain(|_, e| e.number != number);
    }

    pub(super) fn clear(&mut self) {
        self.entries.clear();
    }
}
