//! Sampled statements, and what each needs of a collection under a shard key.
//!
//! The classes ([`Reach`]) are those of MongoDB's `analyzeShardKey`: they depend on the shard key alone, not on how the documents are
//! distributed at the moment.

use crate::cluster::targeting;
use crate::error::{Kind as ErrorKind, Result, error};
use crate::query::filter::Filter;
use crate::query::specification;
use crate::query::update::{self, Update};
use crate::values::key::{KeyPattern, KeyRanges};

/// What a statement does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// a find
    Find,
    /// an aggregation; its filter is the one with which the pipeline begins
    Aggregate,
    /// a count
    Count,
    /// a distinct
    Distinct,
    /// an update or a replacement
    Update,
    /// a deletion
    Delete,
    /// a find that also updates or deletes
    FindAndModify,
}

impl Kind {
    /// All kinds, reads first.
    pub const ALL: [Self; 7] =
        [Self::Find, Self::Aggregate, Self::Count, Self::Distinct, Self::Update, Self::Delete, Self::FindAndModify];

    /// MongoDB's name of the command.
    pub fn name(self) -> &'static str {
        match self {
            Self::Find => "find",
            Self::Aggregate => "aggregate",
            Self::Count => "count",
            Self::Distinct => "distinct",
            Self::Update => "update",
            Self::Delete => "delete",
            Self::FindAndModify => "findAndModify",
        }
    }

    /// True for a statement that writes.
    pub fn writes(self) -> bool {
        matches!(self, Self::Update | Self::Delete | Self::FindAndModify)
    }
}

/// Which part of a collection a statement needs under a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// at most one value of the key, which is on one shard however the documents are distributed
    Targeted,
    /// several values or ranges
    Ranges,
    /// all documents
    Scatter,
}

impl Reach {
    /// The part that consists of these keys.
    pub fn of(keys: &KeyRanges) -> Self {
        if keys.is_none() || keys.as_point().is_some() {
            Self::Targeted
        } else if keys.is_all() {
            Self::Scatter
        } else {
            Self::Ranges
        }
    }
}

/// A sampled statement.
#[derive(Debug)]
pub struct Statement {
    /// what it does
    pub kind: Kind,
    /// which documents it needs
    pub filter: Filter,
    update: Option<Update>,
    /// true if it writes all documents that match, false if one
    pub many: bool,
}

impl Statement {
    /// Reads a statement as a router has sampled it.
    ///
    /// # Errors
    /// `BadValue` for an unknown kind; those of the parsers.
    pub fn read(kind: &str, filter: &str, modification: Option<&str>, many: bool) -> Result<Self> {
        let known = Kind::ALL.into_iter().find(|known| known.name() == kind);
        let kind = known.ok_or_else(|| error!(ErrorKind::BadValue, "unknown kind of statement: {kind}"))?;
        let filter = Filter::read(&specification::parse(filter)?)?;
        let update = modification.map(|text| update::read(&specification::parse(text)?)).transpose()?;
        Ok(Self { kind, filter, update, many })
    }

    /// The shard keys that it needs.
    pub fn keys(&self, pattern: &KeyPattern) -> KeyRanges {
        targeting::key_ranges(pattern, &self.filter)
    }

    /// True for an update, a replacement, and a find that updates.
    pub fn updates(&self) -> bool {
        self.update.is_some()
    }

    /// True if it could change a document's shard key.
    pub fn may_change_key(&self, pattern: &KeyPattern) -> bool {
        let Some(update) = &self.update else { return false };
        if let Some(replacement) = update.replacement() {
            let old = targeting::exact_key(pattern, &self.filter);
            return old.is_none() || pattern.key_of(replacement).ok() != old;
        }
        pattern.fields.iter().any(|(path, _)| update.may_change(path))
    }
}
