//! Which fields a stage looks at, and which it changes.

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
