//! Which fields a stage looks at, and which it changes.

use crate::values::path;
use std::collections::BTreeSet;

/// Dotted paths. A path stands for all that lies below it, too.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fields {
    /// what decides, or values are made of; None for any field
    pub read: Option<BTreeSet<String>>,
    /// what may differ afterwards
    pub written: Written,
}

/// Which fields may differ after a stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Written {
    /// these
    Only(BTreeSet<String>),
    /// all but these
    AllBut(BTreeSet<String>),
}

impl Default for Written {
    fn default() -> Self {
        Written::Only(BTreeSet::new())
    }
}

/// The field at the top of a document that a path leads through.
pub(super) fn top(path: &str) -> &str {
    path::split(path).0
}

impl Fields {
    /// A stage that makes other documents of these fields; None for any field.
    pub(super) fn replaced(read: Option<BTreeSet<String>>) -> Fields {
        Fields { read, written: Written::AllBut(BTreeSet::new()) }
    }

    /// A stage that leaves documents as they are, and looks at these fields.
    pub(super) fn kept(read: impl IntoIterator<Item = String>) -> Fields {
        Fields { read: Some(read.into_iter().collect()), written: Written::default() }
    }
}

impl Written {
    /// True if the whole field at the top of a path stays as it is. Below it a change of one field may change what another
    /// path finds, as both lead through the same arrays.
    pub(super) fn keeps(&self, path: &str) -> bool {
        match self {
            Written::Only(paths) => !paths.iter().any(|written| top(written) == top(path)),
            Written::AllBut(paths) => paths.contains(top(path)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_top_level_field_is_all_that_counts() {
        let written = Written::Only(BTreeSet::from(["a.b".to_owned()]));
        assert!(written.keeps("b") && !written.keeps("a.c"));
        let written = Written::AllBut(BTreeSet::from(["a.b".to_owned(), "c".to_owned()]));
        assert!(!written.keeps("a.b") && written.keeps("c.d") && !written.keeps("e"));
    }
}
