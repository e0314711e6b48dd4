//! Reading: find and count.

use super::config;
use super::dispatch::{self, Destination};
use super::few::{self, Few};
use super::fresh::with_fresh_map;
use super::hint;
use super::merge::Merged;
use super::options::{self, CountOptions, FindOptions};
use super::statement;
use crate::catalog::model::Collection;
use crate::pg::datum::jsonb::RawJsonb;
use crate::pg::error::{Error, Result};
use docshard_core::cluster::targeting;
use docshard_core::error::Kind;
use docshard_core::query::envelope;
use docshard_core::query::filter::Filter;
use docshard_core::query::index::Bounds;
use docshard_core::values::document::raw;
use docshard_core::values::key::KeyRanges;
use serde_json::Value as Json;

/// A filter, parsed, with the text that shards are sent.
#[derive(Debug)]
pub struct Query {
    /// the filter
    pub filter: Filter,
    /// its text, with the setting it is meant in
    pub text: String,
    /// the statement's collation, variables and time, as `Environment::to_json` writes them
    pub setting: Option<Json>,
    /// the index that it is to be run with: its name, its keys, or `{"$natural": 1}`
    pub hint: Option<Json>,
    /// the range of the hinted index's keys that documents must have one in
    pub bounds: Option<Bounds>,
}

impl Query {
    /// Parses a filter.
    ///
    /// # Errors
    /// What the filter's parser refuses.
    pub fn parse(text: &str) -> Result<Self> {
        Self::parse_in(text, None)
    }

    /// Parses a filter in a statement's setting, to which the present time is added if the filter asks for it.
    ///
    /// # Errors
    /// What the filter's and the setting's parsers refuse.
    pub fn parse_in(text: &str, setting: Option<&Json>) -> Result<Self> {
        let json = crate::pg::datum::json::parse(text)?;
        let mut setting = setting.cloned();
        if text.contains("$$NOW") && setting.as_ref().is_none_or(|setting| setting.get("now").is_none()) {
            let fields = setting.get_or_insert_with(|| Json::Object(serde_json::Map::new()));
            fields["now"] = Json::from(options::now());
        }
        let filter = Filter::parse_in(&json, &options::parsed_setting(setting.as_ref())?)?;
        Ok(Self { filter, text: envelope::wrap(text, setting.as_ref(), None), setting, hint: None, bounds: None })
    }

    /// The same, with a hint.
    ///
    /// # Errors
    /// `FailedToParse` for what is neither name nor keys.
    pub fn hinted(self, hint: Option<&Json>) -> Result<Self> {
        Ok(Self { hint: hint::parse(hint)?, ..self })
    }

    /// The query of a find.
    ///
    /// # Errors
    /// Those of [`parse_in`](Self::parse_in) and [`hinted`](Self::hinted).
    pub fn of_find(filter: &str, options: &FindOptions) -> Result<Self> {
        let query = Self::parse_in(filter, options.setting.as_ref())?.hinted(options.hint.as_ref())?;
        Ok(Self { bounds: options.bounds.clone(), ..query })
    }

    /// The shard keys that matching documents can have.
    pub fn keys(&self, collection: &Collection) -> KeyRanges {
        if collection.key.is_unsharded() {
            return KeyRanges::all();
        }
        targeting::key_ranges(&collection.key, &self.filter)
    }

    /// The shards that can hold matching documents.
    ///
    /// # Errors
    /// As [`dispatch::destinations`]; those of [`hint::means`], also if there are none.
    pub fn destinations(&self, collection: &Collection) -> Result<Vec<Destination>> {
        hint::means(collection, self)?;
        dispatch::destinations(collection, &self.keys(collection))
    }
}

/// The documents that a find returns, one after the other.
pub struct Documents {
    rows: Merged,
    skip: u64,
    left: u64,
}

impl Documents {
    /// Those of the streams, at most so many, in any order.
    pub(super) fn of_streams(streams: Vec<dispatch::RowStream>, left: u64) -> Self {
        Self { rows: Merged::new(streams, statement::Order::None), skip: 0, left }
    }

    /// The next document.
    ///
    /// # Errors
    /// A shard's, and `InternalError` for damaged bytes from another node.
    pub fn next_document(&mut self) -> Result<Option<RawJsonb>> {
        while self.skip > 0 {
            self.skip -= 1;
            if self.rows.next_row()?.is_none() {
                (self.skip, self.left) = (0, 0);
            }
        }
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        let Some(row) = self.rows.next_row()? else { return Ok(None) };
        let Some(bytes) = row.get(0) else { return Ok(None) };
        if row.is_foreign() {
            raw::validate(bytes).map_err(Error::from)?;
        }
        Ok(Some(RawJsonb::from_bytes(bytes)))
    }
}

/// Finds documents. A collection that does not exist has none.
///
/// # Errors
/// Stale maps beyond patience, and whatever the shards raise.
pub fn find(namespace: &str, query: &Query, options: &FindOptions) -> Result<Documents> {
    if config::is_of(namespace) {
        if query.bounds.is_some() {
            return Err(Error::new(Kind::NotImplemented, "min and max are not supported in the database config"));
        }
        return Ok(Documents::of_streams(config::find(namespace, query, options)?, u64::MAX));
    }
    with_fresh_map(namespace, |collection| {
        let none = || Documents::of_streams(Vec::new(), 0);
        let Some(collection) = collection else { return Ok(none()) };
        hint::means(&collection, query)?;
        let keys = query.keys(&collection);
        let destinations = dispatch::destinations(&collection, &keys)?;
        if destinations.is_empty() {
            return Ok(none());
        }
        let single = destinations.len() == 1;
        let by_key = if single { few::find_by_key(&collection, query, &keys, options) } else { None };
        if by_key.is_none()
            && let Some(few) = Few::of_find(&collection, query, &keys, options, single)
            && let Some(streams) = few.run(&collection, &destinations)?
        {
            return Ok(Documents {
                rows: Merged::new(streams, few.order),
                skip: options.skip,
                left: options.limit.unwrap_or(u64::MAX),
            });
        }
        let (statement, order) = match by_key {
            Some(statement) => (statement, statement::Order::None),
            None => statement::find(&collection, query, options, single)?,
        };
        let most = options.limit.map(|limit| limit.saturating_add(options.skip));
        let streams = dispatch::read_at_most(&collection, &destinations, &statement, most)?;
        Ok(Documents {
            rows: Merged::new(streams, order),
            skip: if single { 0 } else { options.skip },
            left: options.limit.unwrap_or(u64::MAX),
        })
    })
}

/// Counts documents, exactly.
///
/// # Errors
/// As [`find`].
pub fn count(namespace: &str, query: &Query, options: &CountOptions) -> Result<i64> {
    let counted = with_fresh_map(namespace, |collection| {
        if config::is_of(namespace) {
            return config::count(namespace, query);
        }
        let Some(collection) = collection else { return Ok(0) };
        let destinations = query.destinations(&collection)?;
        let statement = statement::count(&collection, query, options)?;
        sum(dispatch::read(&collection, &destinations, &statement)?)
    })?;
    let after_skip = counted.saturating_sub(i64::try_from(options.skip).unwrap_or(i64::MAX)).max(0);
    Ok(options.limit.map_or(after_skip, |limit| after_skip.min(i64::try_from(limit).unwrap_or(i64::MAX))))
}

/// The number of documents by PostgreSQL's statistics; counted where there are none yet.
///
/// # Errors
/// As [`find`].
pub fn estimated_count(namespace: &str) -> Result<i64> {
    if config::is_of(namespace) {
        return config::count(namespace, &Query::parse("{}")?);
    }
    with_fresh_map(namespace, |collection| {
        let Some(collection) = collection else { return Ok(0) };
        let destinations = dispatch::destinations(&collection, &KeyRanges::all())?;
        let conditions = super::condition::Conditions::new(&collection);
        let sql = format!(
            "SELECT CASE WHEN c.reltuples < 0 THEN (SELECT count(*) FROM {table}) ELSE c.reltuples::bigint END \
             FROM pg_catalog.pg_class c WHERE c.oid = '{table}'::regclass AND {check}",
            table = collection.table(),
            check = conditions.sql()
        );
        let statement = statement::Statement { sql, params: conditions.params };
        sum(dispatch::read(&collection, &destinations, &statement)?)
    })
}

fn sum(streams: Vec<dispatch::RowStream>) -> Result<i64> {
    let mut total = 0;
    for mut stream in streams {
        while let Some(row) = stream.next_row()? {
            total += row.i64(0);
        }
    }
    Ok(total)
}
