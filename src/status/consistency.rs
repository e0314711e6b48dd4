//! Checks the catalog and compares it with all shards, for `check_metadata_consistency()`. The comparisons themselves are in
//! [`docshard_core::routing::consistency`].
//!
//! Metadata may change while they are read. So they are read several times, each time being a *look*. A finding is reported if two looks in
//! a row have found it, and
//! 1. both saw the same revision of the collection, which every change of its chunks, versions and indexes advances;
//! 2. no transaction was prepared at the shard in both: it may be a part of a change that the catalog has already;
//! 3. for privileges: both saw the same grants, and no transaction changes them.
//!
//! INVARIANT: a look asks the shards before it reads the catalog. A router commits a new collection or index before its shards do, and a
//! move is durable before it changes a shard: see [`shard_state`].
//!
//! Documents outside of a shard's ranges are searched once, at the end: the statement also checks the shard's version.

use crate::catalog::cache;
use crate::catalog::cluster::identity::cluster_id;
use crate::catalog::cluster::shard::Shard;
use crate::catalog::cluster::shard_state::{self, Known};
use crate::catalog::cluster::survey::{self, ShardAnswer};
use crate::catalog::collections::grants;
use crate::migration::names::move_of;
use crate::pg::error::Result;
use crate::pg::server::sleep_ms;
use crate::pg::transaction::snapshot::ActiveSnapshot;
use crate::router::reads::foreign_ranges::{self, Foreign};
use crate::shard::leftovers;
use crate::storage::lock::{self, Tag};
use crate::store;
use crate::store::collections::Identified;
use crate::store::grants::{Grant, Level};
use crate::store::resharding::{self, Resharding};
use crate::store::zone_ranges::StoredRange;
use docshard_core::cluster::chunk_map::ShardId;
use docshard_core::cluster::migration::State;
use docshard_core::error::Kind;
use docshard_core::routing::consistency::shards::{self, Recorded, Report, WRITING};
use docshard_core::routing::consistency::{Finding, Repair, chunks, zones};
use docshard_core::routing::names;
use docshard_core::routing::protocol::shard_tables::{DescribeShard, FoundRelation};
use docshard_core::values::key::KeyPattern;
use serde_json::{Value as Json, json};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::rc::Rc;
use std::time::Duration;

/// The time limit for a shard's answer.
const PATIENCE: Duration = Duration::from_millis(2500);
/// The largest number of looks.
const LOOKS: usize = 5;
/// The time between two looks.
const PAUSE_MS: i64 = 300;

/// The types of findings after which the collection's documents cannot be read.
const UNREADABLE: [&str; 10] = [
    "CollectionUUIDMismatch",
    "MissingLocalCollection",
    "MissingRoutingTable",
    "RoutingTableMissingMaxKey",
    "RoutingTableMissingMinKey",
    "RoutingTableRangeGap",
    "RoutingTableRangeOverlap",
    "ShardCatalogCacheCollectionMetadataMismatch",
    "ShardMissingCollectionRoutingInfo",
    "TrackedUnshardedCollectionHasMultipleChunks",
];
const UNREACHABLE: &str = "ShardUnreachable";
/// Reported even if a transaction stays prepared at the shard: that transaction may be the leftover.
const LEFTOVER: &str = "LeftoverState";
const PRIVILEGES: &str = "PrivilegesMismatch";
const MISPLACED: &str = "MisplacedCollection";

/// What is checked.
#[derive(Clone, Copy, Debug)]
pub enum Scope<'a> {
    Cluster,
    Database(&'a str),
    Collection(&'a str),
}

impl Scope<'_> {
    fn covers(self, namespace: &str) -> bool {
        match self {
            Scope::Cluster => true,
            Scope::Database(database) => namespace.split_once('.').is_some_and(|(of, _)| of == database),
            Scope::Collection(name) => name == namespace,
        }
    }

    fn is_cluster(self) -> bool {
        matches!(self, Scope::Cluster)
    }
}

/// The number, token and revision of a collection.
type Revision = (i32, i64, i64);

/// What was found at one time.
#[derive(Default)]
struct Look {
    /// the findings, each with the revision of its collection
    found: Vec<(Finding, Option<Revision>)>,
    /// the prepared transactions of each shard
    prepared: HashMap<String, HashSet<String>>,
    /// role, resource and level
    grants: Vec<(String, String, Level)>,
    grants_change: bool,
}

impl Look {
    /// Splits the findings into those that the look before confirms, and the others.
    fn confirm(&self, before: &Self) -> (Vec<Finding>, Vec<Finding>) {
        let is_confirmed = |one: &(Finding, Option<Revision>)| {
            before.found.contains(one)
                && (one.0.kind == LEFTOVER
                    || one.0.shard.as_ref().is_none_or(|shard| self.lingering(before, shard).is_empty()))
                && (one.0.kind != PRIVILEGES || !self.grants_change && self.grants == before.grants)
        };
        let (confirmed, others): (Vec<_>, Vec<_>) = self.found.iter().partition(|one| is_confirmed(one));
        let findings =
            |all: Vec<&(Finding, Option<Revision>)>| all.into_iter().map(|(finding, _)| finding.clone()).collect();
        (findings(confirmed), findings(others))
    }

    /// The transactions of a shard that were prepared in both looks.
    fn lingering(&self, before: &Self, shard: &str) -> BTreeSet<&str> {
        let gids = |look: &'_ Self| look.prepared.get(shard).cloned().unwrap_or_default();
        let earlier = gids(before);
        self.prepared
            .get(shard)
            .into_iter()
            .flatten()
            .filter(|gid| earlier.contains(*gid))
            .map(String::as_str)
            .collect()
    }
}

/// Checks metadata. If `with_indexes` is false, findings about indexes at shards are left out.
///
/// # Errors
/// Those of the catalog, and of shards that answer and cannot be read.
pub fn check(scope: Scope<'_>, with_indexes: bool) -> Result<Vec<Finding>> {
    let mut before = look(scope)?;
    let mut findings = Vec::new();
    for turn in 1..LOOKS {
        if before.found.is_empty() {
            break;
        }
        sleep_ms(PAUSE_MS);
        let now = look(scope)?;
        let (confirmed, others) = now.confirm(&before);
        findings = confirmed;
        if turn + 1 == LOOKS {
            findings.extend(unresolved(&now, &before, &others));
        }
        before = now;
        if others.is_empty() {
            break;
        }
    }
    let collections: Vec<Identified> =
        store::collections::identities()?.into_iter().filter(|one| scope.covers(&one.namespace)).collect();
    findings.extend(foreign_documents(&collections, &findings)?);
    findings.retain(|one| with_indexes || one.kind != "InconsistentIndex");
    findings.sort_by(|a, b| (&a.namespace, a.kind, &a.shard).cmp(&(&b.namespace, b.kind, &b.shard)));
    Ok(findings)
}

/// Returns a finding for each shard whose prepared transactions kept other findings (`others`) from being confirmed.
fn unresolved(now: &Look, before: &Look, others: &[Finding]) -> Vec<Finding> {
    let shards: BTreeSet<&str> = others.iter().filter_map(|one| one.shard.as_deref()).collect();
    let of = |shard: &str| {
        let gids = now.lingering(before, shard);
        (!gids.is_empty()).then(|| {
            let description = "prepared transactions stay at the shard, which then differs from the catalog".to_owned();
            Finding::new("UnresolvedTransaction", None, Some(shard), description)
                .with("prepared", json!(gids))
                .without_repair("the router's background worker ends those that are decided: see docshard.health")
        })
    };
    shards.into_iter().filter_map(of).collect()
}

/// Asks the shards, and then reads the catalog.
fn look(scope: Scope<'_>) -> Result<Look> {
    let collection = match scope {
        Scope::Collection(name) => {
            let _snapshot = ActiveSnapshot::latest();
            // No collection has the number 0.
            Some(store::collections::read_id(name)?.unwrap_or(0))
        }
        _ => None,
    };
    let ask = DescribeShard { collection, move_tables: &leftovers::move_tables() };
    let mut reports: Vec<(Rc<Shard>, Report)> = Vec::new();
    let mut look = Look::default();
    for ShardAnswer { shard, answer, .. } in survey::call(&ask, PATIENCE)? {
        match answer.and_then(|text| Report::read(&text.unwrap_or_default())) {
            Ok(report) => {
                look.prepared.insert(shard.name.clone(), report.prepared.clone());
                reports.push((shard, report));
            }
            Err(error) => {
                let finding =
                    Finding::new(UNREACHABLE, None, Some(&shard.name), "the shard was not checked".to_owned());
                let finding = finding.with("error", error.message.trim());
                look.found
                    .push((finding.without_repair("see docshard.health, and repeat the check when it answers"), None));
            }
        }
    }
    let granted = grants::all()?;
    look.grants = granted.iter().map(|one| (one.name.clone(), one.resource.clone(), one.level)).collect();
    look.grants_change = store::grants::are_changing()?;
    let mut revisions: HashMap<String, Revision> = HashMap::new();
    let mut found = leftovers_of_changes(scope, &reports)?;
    found.extend(catalog(scope, &reports, &granted, &mut revisions)?);
    look.found.extend(found.into_iter().map(|finding| {
        let revision = finding.namespace.as_ref().and_then(|namespace| revisions.get(namespace)).copied();
        (finding, revision)
    }));
    Ok(look)
}

/// Checks the collections in the catalog, and compares them with the shards' reports.
fn catalog(
    scope: Scope<'_>,
    reports: &[(Rc<Shard>, Report)],
    grants: &[Grant],
    revisions: &mut HashMap<String, Revision>,
) -> Result<Vec<Finding>> {
    let known = Known::read()?;
    let collections = store::collections::identities()?;
    let mut found = Vec::new();
    let mut decided: HashMap<i32, BTreeMap<ShardId, i64>> = HashMap::new();
    for one in store::migrations::unfinished()?.iter().filter(|one| one.state == State::Committed) {
        // A later move has a higher version.
        decided.entry(one.collection).or_default().extend([one.donor, one.recipient].map(|shard| (shard, one.version)));
    }
    let mut keys: HashMap<&str, KeyPattern> = HashMap::new();
    let mut placed: HashSet<(i32, ShardId)> = HashSet::new();
    for Identified { id, namespace, .. } in collections.iter().filter(|one| scope.covers(&one.namespace)) {
        let Some((recorded, revision, of_catalog)) = record(namespace, grants)? else { continue };
        let recorded = Recorded { decided: decided.remove(id).unwrap_or_default(), ..recorded };
        revisions.insert(namespace.clone(), revision);
        found.extend(of_catalog);
        for (shard, report) in reports {
            let shard = shards::Shard { id: shard.id, name: &shard.name, is_local: shard.is_local(), report };
            found.extend(shards::compare(&recorded, shard));
        }
        placed.extend(recorded.placements.keys().map(|shard| (recorded.id, *shard)));
        keys.insert(namespace, recorded.key);
    }
    found.extend(zones_of(scope, &keys)?);
    let names: HashMap<i32, &str> = collections.iter().map(|one| (one.id, one.namespace.as_str())).collect();
    for (shard, report) in reports {
        for orphan in known.orphans(shard.id, &report.relations()) {
            let namespace = names.get(&orphan.collection).copied();
            // `shards::compare` reports the tables of collections that the catalog places on this shard.
            let is_reported = orphan.index.is_none() && placed.contains(&(orphan.collection, shard.id));
            if !is_reported && namespace.map_or(scope.is_cluster(), |namespace| scope.covers(namespace)) {
                found.push(misplaced(&shard.name, namespace, orphan));
            }
        }
    }
    keep_copies(&mut found, &resharding::unfinished()?);
    Ok(found)
}

/// If tables of a collection are missing and the catalog does not know a later table, the router may have lost a change of layout. Then the
/// unknown table may have the collection's only documents, and the missing ones have no repair. A shard that does not answer may have such
/// a table.
fn keep_copies(found: &mut [Finding], changes: &[Resharding]) {
    const MISSING: &str = "MissingLocalCollection";
    let number =
        |one: &Finding| names::collection_of(names::unqualified(one.details.get("relation").and_then(Json::as_str)?));
    let Some(first) = found.iter().filter(|one| one.kind == MISSING).filter_map(number).min() else { return };
    let is_unknown = |one: &Finding| one.kind == MISPLACED && one.namespace.is_none() && number(one) > Some(first);
    let is_changed =
        |one: &Finding| one.kind == MISSING && changes.iter().any(|change| Some(change.collection) == number(one));
    let why = if found.iter().any(is_changed) {
        "a change of the collection's layout has not ended: docshard.resharding shows why"
    } else if found.iter().any(is_unknown) {
        "the router may have lost a change of a collection's layout, and the table that the catalog does not know may have its only \
         documents: connect to the router's previous server, or copy them"
    } else if found.iter().any(|one| one.kind == UNREACHABLE) {
        "a shard that does not answer may have the documents, if the router has lost a change of a collection's layout"
    } else {
        return;
    };
    for one in found.iter_mut().filter(|one| one.kind == MISSING || is_unknown(one)) {
        let what =
            if one.kind == MISSING { "no table of the collection" } else { "a table that the catalog does not know" };
        let finding = Finding { repair: None, description: format!("the shard has {what}"), ..one.clone() };
        *one = finding.without_repair(why);
    }
}

/// The finding for a table or an index at the shard that is not in the catalog. No repair drops documents.
fn misplaced(shard: &str, namespace: Option<&str>, orphan: &FoundRelation) -> Finding {
    let relation = names::relation_name(shard_state::name(orphan));
    let finding = |kind, what| {
        Finding::new(kind, namespace, Some(shard), format!("the shard has {what}")).with("relation", relation.clone())
    };
    match orphan.index {
        None => finding(MISPLACED, "a table that the catalog does not have there")
            .without_repair("if its documents are not needed, docshard.drop_orphaned_relation() drops it with them"),
        Some(_) => finding("InconsistentIndex", "an index that the catalog does not have; the repair drops it")
            .repaired_by(Repair::new("drop_orphaned_relation", [shard, &relation])),
    }
}

/// Returns what the catalog says of a collection, and the findings that need no shard; None if the collection was dropped.
fn record(namespace: &str, grants: &[Grant]) -> Result<Option<(Recorded, Revision, Vec<Finding>)>> {
    let _snapshot = ActiveSnapshot::latest();
    let Some(described) = cache::describe(namespace)? else { return Ok(None) };
    let definition = &described.definition;
    let placements: BTreeMap<ShardId, i64> =
        store::placements::read(definition.id)?.iter().map(|one| (one.shard, one.version)).collect();
    let mut found = chunks::check(namespace, &described.key, &placements, store::chunks::read_all(definition.id)?)?;
    if !shards::serves_key(&described.key, definition.unique, definition.has_key_index, &described.indexes) {
        let key = described.key.to_json().to_string();
        let description = format!("no index serves the shard key {key}");
        let options = definition.unique.then_some(r#"{"unique": true}"#);
        let arguments = [namespace, key.as_str()].into_iter().chain(options);
        let finding = Finding::new("MissingShardKeyIndex", Some(namespace), None, description);
        found.push(finding.repaired_by(Repair::new("create_index", arguments)));
    }
    if store::views::read(namespace)?.is_some() {
        let description = "a view has the collection's name and hides it".to_owned();
        let finding = Finding::new("HiddenCollection", Some(namespace), None, description);
        found.push(
            finding.without_repair("drop_collection() drops the view: once, as the next call drops the collection"),
        );
    }
    let validation = described.validation.as_deref();
    let recorded = Recorded {
        id: definition.id,
        namespace: namespace.to_owned(),
        token: definition.token,
        validator: validation.and_then(docshard_core::routing::model::Validation::for_shards),
        validator_option: validation.and_then(|validation| validation.options.get("validator").cloned()),
        roles: roles(namespace, grants),
        placements,
        decided: BTreeMap::new(),
        indexes: described.indexes,
        key: described.key,
    };
    Ok(Some((recorded, (definition.id, definition.token, definition.revision), found)))
}

/// Returns the privileges that grants give to each role on the tables of a collection, and a call that sets them again.
fn roles(namespace: &str, granted: &[Grant]) -> BTreeMap<String, (BTreeSet<String>, Repair)> {
    let (readers, writers) = grants::of_collection(granted, namespace);
    let of = |grant: &Grant| {
        let count = match grant.name.as_str() {
            name if writers.contains(&name) => WRITING.len(),
            name if readers.contains(&name) => 1,
            _ => 0,
        };
        let options = json!({grant.level.name(): grant.resource}).to_string();
        let privileges = WRITING[..count].iter().map(|name| (*name).to_owned()).collect();
        (grant.name.clone(), (privileges, Repair::new("grant_access", [grant.name.as_str(), &options])))
    };
    // Collecting into a map keeps the last of a role's grants. So the sort puts the one that covers the collection and
    // gives most last.
    let mut ordered: Vec<&Grant> = granted.iter().collect();
    ordered.sort_by_key(|grant| (grant.covers(namespace), grant.level));
    ordered.into_iter().map(of).collect()
}

/// Checks the ranges of zones.
fn zones_of(scope: Scope<'_>, keys: &HashMap<&str, KeyPattern>) -> Result<Vec<Finding>> {
    let stored = {
        let _snapshot = ActiveSnapshot::latest();
        store::zone_ranges::read_all()?
    };
    let mut ranges: BTreeMap<String, Vec<zones::Range>> = BTreeMap::new();
    for StoredRange { namespace, min_key, max_key, min, max, zone } in stored {
        if scope.covers(&namespace) {
            ranges.entry(namespace).or_default().push(zones::Range { min_key, max_key, min, max, zone });
        }
    }
    let of = |(namespace, ranges): (&String, &Vec<zones::Range>)| {
        let key = keys.get(namespace.as_str()).filter(|key| !key.is_unsharded());
        zones::check(namespace, key, ranges)
    };
    Ok(ranges.iter().flat_map(of).collect())
}

/// Finds moves and changes of layout that no process completes, and what ended ones have left: copies, and state at the shards.
fn leftovers_of_changes(scope: Scope<'_>, reports: &[(Rc<Shard>, Report)]) -> Result<Vec<Finding>> {
    let recover = || Repair::new("recover_moves", []);
    let (moves, changes) = (store::migrations::unfinished()?, store::resharding::unfinished()?);
    let unfinished = moves.iter().map(|one| (one.id, &one.namespace, "move"));
    let unfinished = unfinished.chain(changes.iter().map(|one| (one.id, &one.namespace, one.command.as_str())));
    let (mut found, mut alive) = (Vec::new(), BTreeSet::new());
    for (id, namespace, what) in unfinished {
        alive.insert(id);
        if scope.covers(namespace) && lock::holding_processes(Tag::Coordinator(id))?.is_empty() {
            let description = format!("no process completes this {what} any more");
            let finding = Finding::new("UnfinishedChange", Some(namespace), None, description).with("id", id);
            found.push(finding.repaired_by(recover()));
        }
    }
    let copies = store::collections::identities()?.into_iter().filter(|one| scope.covers(&one.namespace));
    for Identified { id, namespace, .. } in copies {
        let is_copy = namespace.split_once('.').is_some_and(|(_, name)| name.starts_with("system.resharding."));
        if is_copy && changes.iter().all(|change| change.copy_id != id) {
            let description = "a copy is left of a change of layout that has ended".to_owned();
            let finding = Finding::new("LeftoverCopy", Some(&namespace), None, description);
            found.push(finding.repaired_by(Repair::new("drop_collection", [namespace.as_str()])));
        }
    }
    if !scope.is_cluster() {
        return Ok(found);
    }
    let cluster = cluster_id()?;
    for (shard, report) in reports {
        let number = |table: &&String| table.strip_prefix('m').and_then(|rest| rest.split_once('_')?.0.parse().ok());
        let is_dead = |id: Option<i64>| id.is_some_and(|id| !alive.contains(&id));
        let captures: Vec<&i64> = report.captures.iter().filter(|id| !alive.contains(id)).collect();
        let tables: Vec<&String> = report.move_tables.iter().filter(|table| is_dead(number(table))).collect();
        let prepared: BTreeSet<&String> = report.prepared.iter().filter(|gid| is_dead(move_of(gid, cluster))).collect();
        if captures.is_empty() && tables.is_empty() && prepared.is_empty() {
            continue;
        }
        let description = "the shard has state of moves or changes of layout that have ended".to_owned();
        let finding = Finding::new(LEFTOVER, None, Some(&shard.name), description)
            .with("captures", json!(captures))
            .with("tables", json!(tables))
            .with("prepared", json!(prepared));
        found.push(finding.repaired_by(recover()));
    }
    Ok(found)
}

/// Looks for documents outside of their shards' ranges, in collections that can be read.
fn foreign_documents(collections: &[Identified], findings: &[Finding]) -> Result<Vec<Finding>> {
    let silent: HashSet<&str> =
        findings.iter().filter(|one| one.kind == UNREACHABLE).filter_map(|one| one.shard.as_deref()).collect();
    let shards = cache::shards()?;
    let silent: HashSet<ShardId> =
        shards.values().filter(|shard| silent.contains(shard.name.as_str())).map(|shard| shard.id).collect();
    let unreadable: HashSet<&str> = findings
        .iter()
        .filter(|one| UNREADABLE.contains(&one.kind) || one.kind == "HiddenCollection")
        .filter_map(|one| one.namespace.as_deref())
        .collect();
    let mut found = Vec::new();
    for Identified { namespace, .. } in collections.iter().filter(|one| !unreadable.contains(one.namespace.as_str())) {
        let foreign = match foreign_ranges::find(namespace, &silent) {
            // Skipped: the shard has just become unreachable or was restored, which the next check reports, or the
            // collection changes all the time.
            Err(error)
                if error.is_out_of_reach() || error.is_of_class(b"40") || error.kind == Kind::StaleShardVersion =>
            {
                continue;
            }
            foreign => foreign?,
        };
        found.extend(foreign.into_iter().map(|Foreign { shard, keys }| {
            let description = "the shard has documents outside of its ranges; the repair moves them to their shards, unless these have documents of \
                               the same keys";
            Finding::new("OrphanedDocuments", Some(namespace), Some(&shard), description.to_owned())
                .with("firstKeys", keys)
                .repaired_by(Repair::new("compact", [namespace.as_str()]))
        }));
    }
    Ok(found)
}
