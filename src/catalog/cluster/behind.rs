//! Shards whose version of a collection is older or newer than the catalog's. A shard with an older version is *behind*: it has lost
//! commits, because it was promoted from an asynchronous standby, or restored from a backup. Statements on the collection are refused there
//! until an administrator has the shard's state adopted (`migration::adopt`).
//!
//! A shard prepares or commits a change of ownership before the catalog commits it, so without a failure it has lost nothing. Its version may be
//! older for a while: until it commits prepared transactions that the router has decided, and, after a failover, until the worker has ended those
//! of moves that have ended. So two answers are compared: a shard is known to be behind if its version is still older in a later answer, and the
//! prepared transactions of the first answer that may bring it forward, if any, have ended.
//!
//! If the shard lacks a collection, and shards have tables with higher numbers that the catalog does not know, then the router, not the shard,
//! has lost commits: the collection was copied into another layout, whose table has another number.
//!
//! A shard with a newer version is *ahead*: the router has lost commits. A shard is known to be ahead if its version is still newer half a
//! second later, and the collection has no undecided move that explains it. For a statement that the shard refuses after every retry, one answer is
//! enough ([`explain_ahead`]). When its state is adopted, the catalog takes over its version.

use super::identity;
use super::shard_state::{self, Orphan};
use crate::catalog::cache;
use crate::catalog::cluster::nodes::read_call_on;
use crate::catalog::cluster::shard::{LOCAL_SERVER, Shard};
use crate::pg::error::{Error, Result};
use crate::pg::security::user;
use crate::pg::server::sleep_ms;
use crate::pg::transaction::snapshot::ActiveSnapshot;
use crate::store::{collections, migrations, placements, resharding, transactions};
use docshard_core::cluster::chunk_map::ShardId;
use docshard_core::error::sqlstate;
use docshard_core::error::{Kind, error};
use docshard_core::routing::model::Collection;
use docshard_core::routing::names;
use docshard_core::routing::protocol::Call;
use docshard_core::routing::protocol::shard_tables::{ReadShardServers, SeeVersions};
use docshard_core::sql::quote::quote_literal;
use docshard_core::sql::record::{malformed, parse_json};
use serde_json::Value as Json;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt::{self, Display, Formatter, Write as _};
use std::rc::Rc;
use std::time::Duration;

/// The largest answer to [`SeeVersions`], in bytes: enough for hundreds of thousands of collections.
const MAX_SEEN: usize = 16 << 20;

/// How long a shard must be ahead before it is reported, in milliseconds: it commits some changes shortly before the catalog does.
const AHEAD_MS: i64 = 500;

/// The largest number of collections, or of tables, that a message names.
const NAMED: usize = 3;

/// How long shards may take to answer which tables they have.
const PATIENCE: Duration = Duration::from_millis(2500);

/// What a shard answers to [`SeeVersions`].
pub struct Seen {
    prepared: HashSet<String>,
    /// token and version by collection
    placed: HashMap<i64, (i64, i64)>,
}

impl Seen {
    /// Reads the answer.
    /// Errors: `InternalError` if it is not valid.
    pub fn read(text: &[u8]) -> Result<Self> {
        if text.len() > MAX_SEEN {
            return Err(malformed(SeeVersions::NAME, &format!("{} bytes", text.len())));
        }
        let json = parse_json(SeeVersions::NAME, text)?;
        let array = |value: &Json| value.as_array().cloned().unwrap_or_default();
        let placed = array(&json["placed"]);
        let numbers = placed.iter().filter_map(|row| Some((row[0].as_i64()?, (row[1].as_i64()?, row[2].as_i64()?))));
        let prepared = array(&json["prepared"]).iter().filter_map(Json::as_str).map(str::to_owned).collect();
        Ok(Self { prepared, placed: numbers.collect() })
    }

    /// The names of docshard's prepared transactions.
    pub fn prepared(&self) -> impl Iterator<Item = &str> {
        self.prepared.iter().map(String::as_str)
    }

    /// The shard's version of a collection; None if it has no table of that number, or the table is another collection's.
    fn version(&self, collection: i32, token: i64) -> Option<i64> {
        let (found, version) = self.placed.get(&collection.into())?;
        (*found == token).then_some(*version)
    }
}

/// A collection in which a shard is behind the catalog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Behind {
    /// the collection's number
    pub collection: i32,
    pub namespace: String,
    /// the shard's version; None if it does not have the collection
    pub found: Option<i64>,
    /// the catalog's version
    pub version: i64,
}

impl Behind {
    fn of(collection: i32, namespace: &str, found: Option<i64>, version: i64) -> Option<Self> {
        let is_behind = found.is_none_or(|found| found < version);
        is_behind.then(|| Self { collection, namespace: namespace.to_owned(), found, version })
    }

    /// The collection if the shard is ahead of the catalog in it.
    fn ahead(collection: i32, namespace: &str, found: Option<i64>, version: i64) -> Option<Self> {
        let is_ahead = found.is_some_and(|found| found > version);
        is_ahead.then(|| Self { collection, namespace: namespace.to_owned(), found, version })
    }
}

/// The prepared transactions that may bring a shard forward. They must end before it is known to be behind.
fn may_bring_forward(shard: &Shard, seen: &Seen) -> Result<HashSet<String>> {
    if seen.prepared.is_empty() {
        return Ok(HashSet::new());
    }
    let decided = user::as_extension_owner(|| {
        let _snapshot = ActiveSnapshot::latest();
        transactions::read_of_server(shard.server.as_ref().map_or("", |server| &server.name))
    })?;
    let waits = |gid: &&String| gid.starts_with("docshard_m_") || decided.contains(gid);
    Ok(seen.prepared.iter().filter(waits).cloned().collect())
}

/// Asks a shard for its prepared transactions, and its version of one collection or of all.
fn look(shard: &Shard, collection: Option<i32>) -> Result<Seen> {
    Seen::read(&read_call_on(shard, &SeeVersions { collection })?.unwrap_or_default())
}

/// The shards that are suspected to be behind, each with the prepared transactions that must end before this is known.
#[derive(Default)]
pub struct Suspicion(HashMap<ShardId, HashSet<String>>);

impl Suspicion {
    /// Asks the shard that has raised a statement's error. Returns the error to report if that shard is behind the catalog in this
    /// collection, else None. A shard that does not answer, or whose prepared transactions may still bring it forward, counts as not
    /// behind.
    pub fn confirm(&mut self, collection: &Collection, error: &Error) -> Result<Option<Error>> {
        let Some(shard) = shard_of(collection, error)? else { return Ok(None) };
        let Some(&version) = collection.placements.get(&shard.id) else { return Ok(None) };
        // The first call asks twice: in one answer, the versions may be older than the list of prepared transactions.
        for _ in 0..2 {
            let Ok(seen) = look(&shard, Some(collection.id)) else { return Ok(None) };
            let found = seen.version(collection.id, collection.token);
            let Some(behind) = Behind::of(collection.id, &collection.namespace, found, version) else {
                self.0.remove(&shard.id);
                return Ok(None);
            };
            match self.0.get_mut(&shard.id) {
                Some(waits) => {
                    waits.retain(|gid| seen.prepared.contains(gid));
                    let is_behind = waits.is_empty() && is_in_catalog(collection)?;
                    return is_behind.then(|| refusal(&shard.name, &[behind])).transpose();
                }
                None => drop(self.0.insert(shard.id, may_bring_forward(&shard, &seen)?)),
            }
        }
        Ok(None)
    }
}

/// True if the collection is still in the catalog. A drop or a change of layout is committed in the catalog, then at the shards, and only
/// then are the sessions' caches invalidated. So a shard may already lack the table of a collection that is still in this session's cache.
fn is_in_catalog(collection: &Collection) -> Result<bool> {
    user::as_extension_owner(|| {
        let _snapshot = ActiveSnapshot::latest();
        Ok(collections::read_id(&collection.namespace)? == Some(collection.id))
    })
}

/// The remote shard that has raised an error; None if the error names none.
fn shard_of(collection: &Collection, error: &Error) -> Result<Option<Rc<Shard>>> {
    let Some(name) = error.shards.last() else { return Ok(None) };
    for id in collection.placements.keys() {
        let shard = cache::shard(*id)?;
        if !shard.is_local() && *name == shard.name {
            return Ok(Some(shard));
        }
    }
    Ok(None)
}

/// The error of a statement that a shard has refused because it is behind.
fn refusal(shard: &str, behind: &[Behind]) -> Result<Error> {
    let (message, hint) = explain(shard, behind)?;
    // Not SQLSTATE 40001, on which clients retry: a retry cannot succeed.
    Ok(Error::new(Kind::StaleShardVersion, message)
        .with_sqlstate(sqlstate::OBJECT_NOT_IN_PREREQUISITE_STATE)
        .with_hint(hint))
}

/// Says in which collections a shard is behind, or what the router has lost, and what to do.
fn explain(shard: &str, behind: &[Behind]) -> Result<(String, String)> {
    let Some(missing) = behind.iter().filter(|one| one.found.is_none()).map(|one| one.collection).min() else {
        return Ok((describe(shard, behind), hint(shard)));
    };
    let changes = user::as_extension_owner(|| {
        let _snapshot = ActiveSnapshot::latest();
        resharding::unfinished()
    })?;
    if changes.iter().any(|change| change.collection == missing) {
        return Ok((describe(shard, behind), HINT_UNENDED_LAYOUT.to_owned()));
    }
    let Unknown { tables, silent } = unknown_tables(missing, &[])?;
    if !tables.is_empty() {
        let start = format!(
            "the catalog has lost its last commits, and does not know {}: on shard \"{shard}\", ",
            tables.join(", ")
        );
        return Ok((list(start, behind), HINT_LOST_LAYOUT.to_owned()));
    }
    if !silent.is_empty() {
        let hint = format!(
            "Shard {} does not answer, or is not in the catalog, and may have the documents under another number, if the router has lost its \
             last commits. Wait until it answers, or add it with docshard.add_shard().",
            silent.join(", ")
        );
        return Ok((describe(shard, behind), hint));
    }
    Ok((describe(shard, behind), hint(shard)))
}

const HINT_UNENDED_LAYOUT: &str = "A change of the collection's layout has not ended, which the router's previous server may have decided. \
     docshard.resharding shows why.";

const HINT_LOST_LAYOUT: &str = "The router was probably promoted from an asynchronous standby, or restored from a backup, and lacks a change of the \
     collection's layout. Nothing is deleted. Connect to its previous server if that can still come back. Otherwise the documents are in the tables \
     that docshard.list_orphaned_relations() shows.";

/// A collection's table is missing at a shard: where the collection's documents may be, if the router has lost a change of the collection's layout.
struct Unknown {
    /// tables at shards that the catalog does not know and whose numbers are higher than the collection's
    tables: Vec<String>,
    /// the names of shards that do not answer in time, and of the servers of shards that only other shards know
    silent: Vec<String>,
}

/// Finds the tables and silent shards of [`Unknown`]. The shards `lost` are not reported as silent.
fn unknown_tables(collection: i32, lost: &[ShardId]) -> Result<Unknown> {
    let lost = lost.iter().map(|id| Ok(cache::shard(*id)?.name.clone())).collect::<Result<HashSet<_>>>()?;
    let (orphans, silent) = user::as_extension_owner(|| shard_state::orphans(PATIENCE))?;
    let is_later = |one: &Orphan| names::collection_of(&one.relation).is_some_and(|number| number > collection);
    let name = |one: Orphan| format!("{} on shard \"{}\"", names::relation_name(one.relation), one.shard);
    let tables = orphans.into_iter().filter(is_later).take(NAMED).map(name).collect();
    let silent = silent.into_iter().map(|(shard, _)| shard).filter(|shard| !lost.contains(shard));
    let silent = silent.chain(unknown_shards()?);
    let silent = silent.take(NAMED).map(|shard| format!("\"{shard}\"")).collect();
    Ok(Unknown { tables, silent })
}

/// The servers of shards that other shards know and the catalog does not: the router added these shards before it lost its last commits.
fn unknown_shards() -> Result<Vec<String>> {
    let shards = cache::shards()?;
    let known: HashSet<_> = shards.values().filter_map(|shard| Some(&shard.server.as_ref()?.name)).collect();
    let mut unknown = BTreeSet::new();
    for shard in shards.values().filter(|shard| !shard.is_local()) {
        // An error is ignored: `shard_state::orphans` already reports a shard that does not answer.
        let servers = read_call_on(shard, &ReadShardServers {}).unwrap_or_default();
        unknown.extend(servers.into_iter().filter(|server| server != LOCAL_SERVER && !known.contains(server)));
    }
    Ok(unknown.into_iter().collect())
}

/// Refuses to create a collection's missing table anew while its documents may be elsewhere, because the router has lost a change of
/// the collection's layout.
/// Errors: `IllegalOperation`.
pub fn check_may_create(shard: &str, collection: &Collection) -> Result<()> {
    let Unknown { tables, silent } = unknown_tables(collection.id, &[])?;
    let (where_, hint) = match (&*tables, &*silent) {
        ([], []) => return Ok(()),
        ([], silent) => (
            format!("shard {}, which does not answer or is not in the catalog", silent.join(", ")),
            "Run it again when that shard answers, or has been added with docshard.add_shard(), or was removed as a lost one.",
        ),
        (tables, _) => (
            format!("{}, which the catalog does not know", tables.join(", ")),
            "Connect to the router's previous server if that can still come back, or copy the documents. docshard.drop_orphaned_relation() drops \
             the table; then this succeeds.",
        ),
    };
    Err(error!(
        Kind::IllegalOperation,
        "{} is missing on shard \"{shard}\", and its documents may be in {where_}", collection.namespace
    )
    .with_hint(hint))
}

/// Refuses to complete a change of a collection's layout while shards may have tables of a later change that the catalog does not know. The
/// shards `lost` are being removed, so they may be silent.
/// Errors: `OperationFailed`.
pub fn check_may_be_last(collection: i32, namespace: &str, lost: &[ShardId]) -> Result<()> {
    let Unknown { tables, silent } = unknown_tables(collection, lost)?;
    let unknown = [tables, silent].concat();
    if unknown.is_empty() {
        return Ok(());
    }
    Err(error!(
        Kind::OperationFailed,
        "shards have dropped the former table of {namespace}, but its documents may be in {}, which the catalog does not know",
        unknown.join(", ")
    )
    .with_hint(
        "Nothing is dropped. Look at these tables. When the documents that are needed have been copied out of them, docshard.drop_orphaned_relation() \
         drops a table; then the change is completed.",
    ))
}

/// The hint of the error: the function that repairs a shard, and what to consider before.
pub fn hint(shard: &str) -> String {
    format!(
        "It was probably promoted from an asynchronous standby, or restored from a backup. If its previous primary is not coming back, \
         docshard.accept_shard({}, '{{\"adopt\": true}}') brings shard and catalog together, and says what is lost.",
        quote_literal(shard)
    )
}

/// The message of the error: the collections in which a shard is behind.
fn describe(shard: &str, behind: &[Behind]) -> String {
    list(format!("shard \"{shard}\" has lost its last commits, and is behind the catalog: "), behind)
}

fn list(mut text: String, behind: &[Behind]) -> String {
    for (n, Behind { namespace, found, version, .. }) in behind.iter().take(NAMED).enumerate() {
        let comma = if n == 0 { "" } else { ", " };
        let _ = match found {
            Some(found) => write!(text, "{comma}{namespace} is at version {found} there, not {version}"),
            None => write!(text, "{comma}{namespace} is missing there"),
        };
    }
    if behind.len() > NAMED {
        let _ = write!(text, ", and {} more collections", behind.len() - NAMED);
    }
    text
}

/// Returns the error to report for a statement that a shard refuses after every retry, if the shard is ahead of the catalog; else None.
pub fn explain_ahead(collection: &Collection, error: &Error) -> Result<Option<Error>> {
    let Some(shard) = shard_of(collection, error)? else { return Ok(None) };
    let Ok(seen) = look(&shard, Some(collection.id)) else { return Ok(None) };
    let found = seen.version(collection.id, collection.token);
    let version = collection.placements.get(&shard.id).copied().unwrap_or_default();
    let ahead = Behind::ahead(collection.id, &collection.namespace, found, version);
    Ok(ahead.map(|ahead| {
        Error::new(Kind::StaleShardVersion, describe_ahead(&shard.name, &[ahead])).with_hint(hint_ahead(&shard.name))
    }))
}

fn hint_ahead(shard: &str) -> String {
    format!(
        "The router was probably promoted from an asynchronous standby, or restored from a backup. If its previous server is not coming \
         back, docshard.accept_shard({}, '{{\"adopt\": true}}') makes the catalog follow the shards.",
        quote_literal(shard)
    )
}

fn describe_ahead(shard: &str, ahead: &[Behind]) -> String {
    let text = format!("shard \"{shard}\" is ahead of the catalog, which has lost its last commits: ");
    list(text, ahead)
}

/// How a shard differs from the catalog.
pub struct Difference {
    /// the collections that are affected
    pub collections: Vec<String>,
    pub text: String,
    /// what to do
    pub hint: String,
}

impl Display for Difference {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.text, self.hint)
    }
}

fn namespaces(collections: &[Behind]) -> Vec<String> {
    collections.iter().map(|one| one.namespace.clone()).collect()
}

/// The collections that each remote shard should have; read before the shards are asked.
pub struct Expected(HashMap<ShardId, Vec<placements::PlacedCollection>>);

impl Expected {
    /// Reads the catalog.
    pub fn read() -> Result<Self> {
        let mut expected = HashMap::new();
        for (shard, _) in cache::remote_shards()? {
            expected.insert(shard.id, placements::of_shard(shard.id)?);
        }
        Ok(Self(expected))
    }

    fn compare(&self, shard: ShardId, seen: &Seen) -> Vec<Behind> {
        let placed = self.0.get(&shard).into_iter().flatten();
        placed
            .filter_map(|one| {
                Behind::of(one.collection, &one.namespace, seen.version(one.collection, one.token), one.version)
            })
            .collect()
    }

    /// Says in which collections a shard is known to be behind or ahead, and what to do. None if there are none, or if the shard does not
    /// answer.
    pub fn find(&self, shard: &Shard) -> Result<Option<Difference>> {
        match self.0.get(&shard.id).filter(|placed| !placed.is_empty()).map(|_| look(shard, None)) {
            Some(Ok(first)) => self.difference(shard, &first),
            _ => Ok(None),
        }
    }

    /// Like [`Expected::find`], given the shard's first answer.
    pub fn difference(&self, shard: &Shard, first: &Seen) -> Result<Option<Difference>> {
        let behind = self.behind(shard, first)?;
        if !behind.is_empty() {
            let (text, hint) = explain(&shard.name, &behind)?;
            return Ok(Some(Difference { collections: namespaces(&behind), text, hint }));
        }
        let ahead = self.ahead(shard, first)?;
        Ok((!ahead.is_empty()).then(|| {
            let (text, hint) = (describe_ahead(&shard.name, &ahead), hint_ahead(&shard.name));
            Difference { collections: namespaces(&ahead), text, hint }
        }))
    }

    /// The collections in which a shard is known to be ahead.
    fn ahead(&self, shard: &Shard, first: &Seen) -> Result<Vec<Behind>> {
        let placed: Vec<_> = self.0.get(&shard.id).into_iter().flatten().collect();
        let is_ahead = |one: &&placements::PlacedCollection, seen: &Seen| {
            Behind::ahead(one.collection, &one.namespace, seen.version(one.collection, one.token), one.version)
        };
        let suspects: Vec<_> = placed.into_iter().filter(|one| is_ahead(one, first).is_some()).collect();
        if suspects.is_empty() || identity::require_router().is_err() {
            return Ok(Vec::new());
        }
        sleep_ms(AHEAD_MS);
        let Ok(seen) = look(shard, None) else { return Ok(Vec::new()) };
        user::as_extension_owner(|| {
            // The shard was read before the catalog, so a move that has ended meanwhile is in this snapshot.
            let _snapshot = ActiveSnapshot::latest();
            let mut ahead = Vec::new();
            for one in suspects {
                if !migrations::read_undecided(one.collection)?.is_empty() {
                    continue;
                }
                let now = placements::read(one.collection)?.into_iter().find(|placed| placed.shard == shard.id);
                let found = seen.version(one.collection, one.token);
                ahead.extend(now.and_then(|now| Behind::ahead(one.collection, &one.namespace, found, now.version)));
            }
            Ok(ahead)
        })
    }

    /// The collections in which a shard is known to be behind, given its first answer.
    fn behind(&self, shard: &Shard, first: &Seen) -> Result<Vec<Behind>> {
        if identity::require_router().is_err() || self.compare(shard.id, first).is_empty() {
            return Ok(Vec::new());
        }
        let waits = may_bring_forward(shard, first)?;
        // An error of one shard must not prevent the report of the others.
        let Ok(seen) = look(shard, None) else { return Ok(Vec::new()) };
        if waits.iter().any(|gid| seen.prepared.contains(gid)) {
            return Ok(Vec::new());
        }
        Ok(self.compare(shard.id, &seen))
    }
}
