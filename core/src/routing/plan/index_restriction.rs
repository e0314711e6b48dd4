//! Restricts the indexes that a statement may use, as its `hint` or `docshard.notablescan` demands.
//!
//! A hint is enforced in the planners of the shards (see `storage::planning`), or refused. It never changes a result: MongoDB
//! omits documents that a hinted sparse or partial index does not contain; docshard refuses such a hint if the index may lack a
//! document that matches the filter. Only with `min` and `max`, which describe a part of the hinted index, the result is what
//! the index contains.

use crate::error::{Error, Result};
use crate::error::{Kind, bail, error};
use crate::query::filter::Filter;
use crate::query::index::{IndexKeys, Span};
use crate::routing::model::{Collection, Index};
use crate::routing::names;
use crate::routing::protocol::sql;
use crate::routing::request::query::Query;
use crate::values::document::ext_json;
use crate::values::document::value::Value;
use serde_json::Value as Json;
use std::sync::Arc;

#[derive(Debug)]
pub enum IndexRestriction<'a> {
    None,
    NoIndex,
    KeyIndexes,
    Index(&'a Index),
    /// any index that serves the filter; there must be one
    AnyIndex,
    /// the span of an index that `min` and `max` give
    Part {
        /// None: the index on `_id`, or that of the shard key
        index: Option<&'a Index>,
        keys: IndexKeys,
        span: Span,
    },
}

impl<'a> IndexRestriction<'a> {
    /// Reads the query's hint; `notablescan` is the setting `docshard.notablescan`.
    pub fn of_query(collection: &'a Collection, query: &Query, notablescan: bool) -> Result<Self> {
        let Some(hint) = &query.hint else {
            if query.bounds.is_some() {
                let message = "When using min()/max() a hint of which index to use must be provided";
                return Err(Error::new(Kind::Location(51173), message));
            }
            return Ok(if notablescan && !query.filter.is_empty() { Self::AnyIndex } else { Self::None });
        };
        if is_natural(hint)? {
            if notablescan {
                return Err(no_plan("hint $natural is not allowed, because 'notablescan' is enabled"));
            }
            if query.bounds.is_some() {
                return Err(no_plan("min and max are incompatible with $natural"));
            }
            return Ok(Self::NoIndex);
        }
        let own = collection.key_index().filter(|own| is_meant(own, hint));
        let index = if own.is_some() { None } else { named(collection, hint)? };
        if let Some(bounds) = &query.bounds {
            // A document that is not in the index has no key in the span, so the result lacks it anyway.
            let keys = index.map(|index| index.keys.clone()).or(own).unwrap_or_else(IndexKeys::of_id);
            let span = bounds.span(&keys, query.environment.collator().map(Arc::as_ref))?;
            return Ok(Self::Part { index, keys, span });
        }
        let Some(index) = index else { return Ok(Self::KeyIndexes) };
        if let Some(partial) = lacking(index, &query.filter) {
            bail!(
                Kind::NoQueryExecutionPlans,
                "error processing query: the index {} contains only documents that match {partial}, which the filter \
                 does not require",
                index.name
            );
        }
        if !index.keys.has_tree() && index.keys.wanted(&query.filter).is_all() {
            return Err(no_plan(&format!("the wildcard index {} cannot be used for the filter", index.name)));
        }
        Ok(Self::Index(index))
    }

    /// The term that restricts the shard's planner; None if every index is allowed.
    pub fn term(&self) -> Option<String> {
        let mark = match self {
            IndexRestriction::None => return None,
            IndexRestriction::NoIndex => names::NO_INDEX.to_owned(),
            IndexRestriction::KeyIndexes | IndexRestriction::Part { index: None, .. } => names::KEY_INDEXES.to_owned(),
            IndexRestriction::Index(index) | IndexRestriction::Part { index: Some(index), .. } => {
                names::index(index.id)
            }
            IndexRestriction::AnyIndex => names::ANY_INDEX.to_owned(),
        };
        Some(format!("{} AND {}", sql::load_library(), sql::by_index(format_args!("'{mark}'::text"))))
    }
}

/// True if the hint is this index's keys or their default name.
fn is_meant(own: &IndexKeys, hint: &Json) -> bool {
    match hint {
        Json::String(name) => own.default_name() == *name,
        keys => IndexKeys::parse(keys).is_ok_and(|keys| own.has_pattern_of(&keys) && keys.wildcard.is_none()),
    }
}

/// Finds the hinted index; None for the index on `_id`.
fn named<'a>(collection: &'a Collection, hint: &Json) -> Result<Option<&'a Index>> {
    let visible = collection.indexes.iter().filter(|index| !index.hidden);
    let found: Vec<&Index> = match hint {
        Json::String(name) if name == "_id_" => return Ok(None),
        Json::String(name) => visible.filter(|index| index.name == *name).collect(),
        keys => {
            let keys = IndexKeys::parse(keys).ok();
            if keys.as_ref().is_some_and(IndexKeys::is_of_id) {
                return Ok(None);
            }
            visible.filter(|index| keys.as_ref().is_some_and(|keys| index.keys.has_pattern_of(keys))).collect()
        }
    };
    match found.as_slice() {
        [] => {
            let message = "error processing query: hint provided does not correspond to an existing index";
            Err(Error::new(Kind::BadValue, message))
        }
        [index] => Ok(Some(index)),
        [one, other, ..] => {
            let message = "Hint matched multiple indexes, must hint by index name. Matched";
            Err(error!(Kind::IndexNotFound, "{message}: {} and {}", one.name, other.name))
        }
    }
}

/// The predicate of a partial index that may lack documents that the filter matches; None if the index has them all.
fn lacking<'a>(index: &'a Index, filter: &Filter) -> Option<&'a str> {
    let partial = index.partial.as_deref()?;
    (!filter.implies(&partial.filter)).then_some(partial.expression.as_str())
}

fn is_natural(hint: &Json) -> Result<bool> {
    let Some(direction) = hint.as_object().and_then(|keys| keys.get("$natural")) else { return Ok(false) };
    let direction = match ext_json::from_json(direction) {
        Ok(Value::Number(number)) => Some(number.to_f64()),
        _ => None,
    };
    match direction {
        Some(1.0 | -1.0) if hint.as_object().is_some_and(|keys| keys.len() == 1) => Ok(true),
        _ => Err(error!(Kind::BadValue, "$natural hint may only accept 1 or -1, and no other field beside it")),
    }
}

fn no_plan(message: &str) -> Error {
    error!(Kind::NoQueryExecutionPlans, "error processing query: {message}")
}

pub fn refuse_scan(collection: &Collection) -> Error {
    no_plan(&format!("No indexed plans available for {}, and running with 'notablescan'", collection.namespace))
        .with_hint("Create an index on a field of the filter, or set docshard.notablescan to off.")
}
