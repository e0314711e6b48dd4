//! The fields that a stage reads and writes.

use crate::values::path;
use std::collections::BTreeSet;
use std::ops::Bound;

/// The paths that a stage reads and writes. A path includes all paths below it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fields {
    /// the paths that the result depends on; None if it may depend on any
    pub read: Option<BTreeSet<String>>,
    /// the paths that the stage may change
    pub written: Written,
}

/// The paths that a stage may change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Written {
    /// only these paths
    Only(BTreeSet<String>),
    /// all paths but these
    AllBut(BTreeSet<String>),
}

impl Default for Written {
    fn default() -> Self {
        Written::Only(BTreeSet::new())
    }
}

/// Returns the first component of a path: the name of a top-level field.
pub(super) fn top(path: &str) -> &str {
    path::split(path).0
}

impl Fields {
    /// The fields of a stage that replaces documents. `read`: the paths that it reads; None for any.
    pub(super) fn replaced(read: Option<BTreeSet<String>>) -> Fields {
        Fields { read, written: Written::AllBut(BTreeSet::new()) }
    }

    /// The fields of a stage that does not change documents, and reads these paths.
    pub(super) fn kept(read: impl IntoIterator<Item = String>) -> Fields {
        Fields { read: Some(read.into_iter().collect()), written: Written::default() }
    }
}

impl Written {
    /// True if the stage changes nothing in the top-level field of this path. Only top-level fields are compared: writing `a.b`
    /// may replace scalars in an array `a` by documents, so that a condition on `a.c` has another result.
    pub(super) fn keeps(&self, path: &str) -> bool {
        match self {
            Written::Only(paths) => {
                let top = top(path);
                let below = format!("{top}.");
                let next = paths.range::<str, _>((Bound::Included(below.as_str()), Bound::Unbounded)).next();
                !paths.contains(top) && !next.is_some_and(|written| written.starts_with(&below))
            }
            Written::AllBut(paths) => paths.contains(top(path)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_top_level_field_is_all_that_counts() {
        let written = Written::Only(BTreeSet::from(["a!".to_owned(), "a.b".to_owned(), "c".to_owned()]));
        assert!(written.keeps("b") && !written.keeps("a.c") && !written.keeps("a") && !written.keeps("a!.b"));
        assert!(!written.keeps("c.d") && written.keeps("cd") && written.keeps(""));
        let written = Written::AllBut(BTreeSet::from(["a.b".to_owned(), "c".to_owned()]));
        assert!(!written.keeps("a.b") && written.keeps("c.d") && !written.keeps("e"));
    }
}
