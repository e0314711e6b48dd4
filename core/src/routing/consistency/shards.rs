//! Compares a collection in the catalog with what a shard reports: its table, version, indexes, validator and privileges.

use super::{Finding, Repair};
use crate::cluster::chunk_map::ShardId;
use crate::error::Result;
use crate::routing::model::Index;
use crate::routing::names;
use crate::routing::protocol::shard_tables::FoundRelation;
use crate::routing::protocol::sql;
use crate::sql::record::{malformed, parse_json};
use crate::values::key::KeyPattern;
use serde_json::{Value as Json, json};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// The most bytes of a report: enough for tens of thousands of collections.
const MAX_REPORT: usize = 64 << 20;

/// The privileges of a role that may write a collection. A role that may only read it has the first one.
pub const WRITING: [&str; 4] = ["SELECT", "INSERT", "UPDATE", "DELETE"];

/// A collection's row of `placement` at a shard.
#[derive(Clone, Debug)]
struct Placed {
    token: i64,
    version: i64,
    validator: Option<String>,
}

/// A relation of an index at a shard.
#[derive(Clone, Debug)]
struct Relation {
    is_valid: bool,
    /// the texts of its expressions and of its predicate as PostgreSQL's expression trees (`pg_node_tree`)
    expressions: String,
}

/// What a shard reports of itself: the answer to `DescribeShard`.
#[derive(Debug, Default)]
pub struct Report {
    /// the names of docshard's prepared transactions
    pub prepared: HashSet<String>,
    /// the numbers of the moves and changes of layout that capture writes at the shard
    pub captures: BTreeSet<i64>,
    /// the names of the tables that moves and changes of layout have created at the shard
    pub move_tables: BTreeSet<String>,
    placed: HashMap<i32, Placed>,
    /// the privileges of each role on each collection's table
    tables: HashMap<i32, BTreeMap<String, BTreeSet<String>>>,
    indexes: HashMap<i32, HashMap<String, Relation>>,
}

impl Report {
    /// The tables, versions and indexes that the shard has.
    pub fn relations(&self) -> Vec<FoundRelation> {
        let numbers: BTreeSet<i32> = self.placed.keys().chain(self.tables.keys()).copied().collect();
        let table = |collection: &i32| {
            let placed = self.placed.get(collection);
            FoundRelation {
                collection: *collection,
                index: None,
                present: self.tables.contains_key(collection),
                token: placed.map(|placed| placed.token),
                version: placed.map(|placed| placed.version),
                documents: None,
            }
        };
        let index = |(collection, index): &(i32, i32)| FoundRelation {
            collection: *collection,
            index: Some(*index),
            present: true,
            token: None,
            version: None,
            documents: None,
        };
        let of = |(collection, names): (&i32, &HashMap<String, Relation>)| -> Vec<(i32, i32)> {
            names.keys().filter_map(|name| names::index_of(name)).map(|index| (*collection, index)).collect()
        };
        let indexes: BTreeSet<(i32, i32)> = self.indexes.iter().flat_map(of).collect();
        numbers.iter().map(table).chain(indexes.iter().map(index)).collect()
    }

    /// Reads a report.
    ///
    /// # Errors
    /// 08P01 for a text that is no report.
    pub fn read(text: &[u8]) -> Result<Self> {
        const OF: &str = "DescribeShard";
        if text.len() > MAX_REPORT {
            return Err(malformed(OF, &format!("{} bytes", text.len())));
        }
        let report = parse_json(OF, text)?;
        let rows = |name: &str| report[name].as_array().cloned().unwrap_or_default();
        let number = |json: &Json| json.as_i64().and_then(|number| i32::try_from(number).ok());
        let text = |json: &Json| json.as_str().map(str::to_owned);
        let placed = |row: &Json| {
            let (token, version, validator) = (row[1].as_i64()?, row[2].as_i64()?, text(&row[3]));
            Some((number(&row[0])?, Placed { token, version, validator }))
        };
        let mut read = Self {
            prepared: rows("prepared").iter().filter_map(text).collect(),
            captures: rows("captures").iter().filter_map(Json::as_i64).collect(),
            move_tables: rows("moveTables").iter().filter_map(text).collect(),
            placed: rows("placed").iter().filter_map(placed).collect(),
            ..Self::default()
        };
        for row in rows("tables") {
            let Some(collection) = number(&row[0]) else { continue };
            let roles = read.tables.entry(collection).or_default();
            for one in row[1].as_array().into_iter().flatten() {
                let granted = text(&one[0]).zip(text(&one[1]));
                if let Some((role, privilege)) = granted.filter(|(_, privilege)| WRITING.contains(&privilege.as_str()))
                {
                    roles.entry(role).or_default().insert(privilege);
                }
            }
        }
        for row in rows("indexes") {
            let (Some(collection), Some(name)) = (number(&row[0]), text(&row[1])) else { continue };
            let relation = Relation { is_valid: row[2] == true, expressions: text(&row[3]).unwrap_or_default() };
            read.indexes.entry(collection).or_default().insert(name, relation);
        }
        Ok(read)
    }
}

/// What the catalog says of a collection.
#[derive(Clone, Debug)]
pub struct Recorded {
    pub id: i32,
    pub namespace: String,
    pub token: i64,
    pub key: KeyPattern,
    pub indexes: Vec<Index>,
    /// the definition of the validator that shards have
    pub validator: Option<String>,
    /// the option `validator` of the collection, with which the repair sets it again
    pub validator_option: Option<Json>,
    /// for each role with grants: its privileges on the collection's tables, and a call that sets them again
    pub roles: BTreeMap<String, (BTreeSet<String>, Repair)>,
    /// the version of each shard that has the collection
    pub placements: BTreeMap<ShardId, i64>,
    /// the versions that shards get by moves that are decided; the catalog does not have them yet
    pub decided: BTreeMap<ShardId, i64>,
}

/// A shard that has reported.
#[derive(Clone, Copy, Debug)]
pub struct Shard<'a> {
    pub id: ShardId,
    pub name: &'a str,
    /// it is the router's own database
    pub is_local: bool,
    pub report: &'a Report,
}

/// Why the router's own database is not adopted.
const LOCAL: &str = "it is the router's own database: restore it from a backup";

impl Shard<'_> {
    fn finding(&self, kind: &'static str, of: &Recorded, description: String) -> Finding {
        Finding::new(kind, Some(&of.namespace), Some(self.name), description)
    }

    /// Adds the repair by adopting the shard; for the router's own database, the reason why it is not adopted.
    fn adopted(&self, finding: Finding) -> Finding {
        if self.is_local { finding.without_repair(LOCAL) } else { finding.repaired_by(Repair::adopt(self.name)) }
    }
}

/// Compares a collection with the report of a shard. Returns nothing if the catalog does not place the collection on this shard.
pub fn compare(of: &Recorded, shard: Shard<'_>) -> Vec<Finding> {
    let Some(&version) = of.placements.get(&shard.id) else { return Vec::new() };
    let (placed, privileges) = (shard.report.placed.get(&of.id), shard.report.tables.get(&of.id));
    let table = names::table(of.id);
    if let Some(other) = placed.filter(|placed| placed.token != of.token) {
        let description =
            format!("the table {table} belongs to another collection; the repair drops it with its documents");
        let finding = shard
            .finding("CollectionUUIDMismatch", of, description)
            .with("token", of.token)
            .with("tokenAtShard", other.token);
        return vec![finding.repaired_by(Repair::new("drop_orphaned_relation", [shard.name, &table]))];
    }
    let (Some(placed), Some(privileges)) = (placed, privileges) else {
        const KIND: &str = "MissingLocalCollection";
        let details = |finding: Finding| finding.with("relation", table).with("version", version);
        if privileges.is_some() {
            let finding =
                details(shard.finding(KIND, of, "the shard has a table, but no version of the collection".to_owned()));
            return vec![
                finding.without_repair("whose table it is, is not known there: restore the shard from a backup"),
            ];
        }
        let description =
            "the shard has no table of the collection; the repair creates an empty one, documents are lost";
        return vec![shard.adopted(details(shard.finding(KIND, of, description.to_owned())))];
    };
    if placed.version != version && of.decided.get(&shard.id) != Some(&placed.version) {
        return vec![version_mismatch(of, shard, placed.version, version)];
    }
    let mut found = compare_indexes(of, shard);
    found.extend(compare_validator(of, shard, placed));
    found.extend(compare_privileges(of, shard, privileges));
    found
}

fn version_mismatch(of: &Recorded, shard: Shard<'_>, found: i64, version: i64) -> Finding {
    const KIND: &str = "ShardCatalogCacheCollectionMetadataMismatch";
    let details = |finding: Finding| finding.with("version", version).with("versionAtShard", found);
    let how = if found < version { "behind" } else { "ahead" };
    let description =
        format!("the shard is {how}: its ranges are those of version {found}, in the catalog of {version}");
    shard.adopted(details(shard.finding(KIND, of, description)))
}

fn compare_indexes(of: &Recorded, shard: Shard<'_>) -> Vec<Finding> {
    let none = HashMap::new();
    let present = shard.report.indexes.get(&of.id).unwrap_or(&none);
    let is_valid = |relation: &str| present.get(relation).is_some_and(|found| found.is_valid);
    let mut found = Vec::new();
    let primary = names::primary_key(of.id);
    if !is_valid(&primary) {
        let description = format!("the table has no valid primary key {primary}, which has the order of the shard key");
        let why = format!(
            "a superuser runs at the shard: ALTER TABLE {} ADD CONSTRAINT {primary} PRIMARY KEY (skey, id)",
            names::table(of.id)
        );
        found
            .push(shard.finding("MissingShardKeyIndex", of, description).with("relation", primary).without_repair(why));
    }
    let by_id = names::id_index(of.id);
    if !of.key.is_in_order_of_id() && !is_valid(&by_id) {
        let description = "the index on _id is missing or invalid".to_owned();
        let finding =
            shard.finding("InconsistentIndex", of, description).with("index", "_id_").with("missing", json!([by_id]));
        found.push(finding.repaired_by(Repair::new("compact", [of.namespace.as_str()])));
    }
    for index in &of.indexes {
        let relations = names::relations(index.id, &index.keys, index.unique);
        let texts = std::iter::once(index.definition.as_str())
            .chain(index.partial.as_deref().map(|partial| partial.text.as_str()));
        let texts: Vec<String> = texts.map(sql::constant_in_tree).collect();
        let differs = |relation: &&String| {
            present.get(*relation).is_some_and(|found| texts.iter().any(|text| !found.expressions.contains(text)))
        };
        let missing: Vec<&String> = relations.iter().filter(|relation| !is_valid(relation)).collect();
        let different: Vec<&String> = relations.iter().filter(differs).collect();
        if missing.is_empty() && different.is_empty() {
            continue;
        }
        let what = if different.is_empty() { "missing or invalid" } else { "different" };
        let finding = shard
            .finding("InconsistentIndex", of, format!("the index {} is {what} at the shard", index.name))
            .with("index", index.name.clone())
            .with("missing", json!(missing))
            .with("different", json!(different));
        // Adopting the shard builds only missing and invalid indexes, and is not possible for the router's own database.
        // Otherwise the whole collection is copied.
        found.push(match different.is_empty() && !shard.is_local {
            true => finding.repaired_by(Repair::adopt(shard.name)),
            false => finding.repaired_by(Repair::new("compact", [of.namespace.as_str()])),
        });
    }
    found
}

fn compare_validator(of: &Recorded, shard: Shard<'_>, placed: &Placed) -> Option<Finding> {
    if placed.validator == of.validator {
        return None;
    }
    let options = json!({"validator": of.validator_option.clone().unwrap_or_else(|| json!({}))}).to_string();
    let finding = shard
        .finding("CollectionOptionsMismatch", of, "the shard has another validator than the catalog".to_owned())
        .with("validator", of.validator.clone())
        .with("validatorAtShard", placed.validator.clone());
    Some(finding.repaired_by(Repair::new("modify_collection", [of.namespace.as_str(), &options])))
}

/// Checks only roles with grants: an administrator may give others privileges.
fn compare_privileges(
    of: &Recorded,
    shard: Shard<'_>,
    privileges: &BTreeMap<String, BTreeSet<String>>,
) -> Vec<Finding> {
    let none = BTreeSet::new();
    let mut found = Vec::new();
    for (role, (expected, repair)) in &of.roles {
        let there = privileges.get(role).unwrap_or(&none);
        if there != expected {
            let description = format!("the role {role} has other privileges on the shard's table than its grants say");
            let finding = shard
                .finding("PrivilegesMismatch", of, description)
                .with("role", role.clone())
                .with("privileges", json!(expected))
                .with("privilegesAtShard", json!(there));
            found.push(finding.repaired_by(repair.clone()));
        }
    }
    found
}

/// True if the shard key has an index, as MongoDB requires: its own, or another one that begins with it. A hashed key, and one in the order
/// of `_id`, need none.
pub fn serves_key(key: &KeyPattern, is_unique: bool, has_key_index: bool, indexes: &[Index]) -> bool {
    let is_enough = |index: &Index| !is_unique || (index.unique && index.is_of_key(key));
    let serves = |index: &Index| !index.hidden && index.begins_with_key(key) && is_enough(index);
    key.hashed_field().is_some() || key.is_in_order_of_id() || has_key_index || indexes.iter().any(serves)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::query::index::IndexKeys;
    use crate::query::specification::parse;

    fn index() -> Index {
        let keys_json = r#"{"it's": 1}"#.to_owned();
        Index {
            id: 5,
            name: "n_1".to_owned(),
            definition: keys_json.clone(),
            keys: IndexKeys::parse(&parse(&keys_json).unwrap()).unwrap(),
            keys_json,
            wildcard_projection: None,
            unique: false,
            hidden: false,
            sparse: false,
            partial: None,
            expire_after_s: None,
        }
    }

    fn recorded() -> Recorded {
        let reader = (BTreeSet::from(["SELECT".to_owned()]), Repair::new("grant_access", ["r"]));
        Recorded {
            id: 3,
            namespace: "a.b".to_owned(),
            token: 77,
            key: KeyPattern::parse(&json!({"k": 1})).unwrap(),
            indexes: vec![index()],
            validator: Some("V".to_owned()),
            validator_option: Some(json!({"a": 1})),
            roles: BTreeMap::from([("r".to_owned(), reader)]),
            placements: BTreeMap::from([(1, 9), (2, 8)]),
            decided: BTreeMap::new(),
        }
    }

    /// The report of a shard at which all is well.
    fn report() -> Json {
        let index =
            format!("({{FUNCEXPR {{CONST :constvalue 15 [ 60 0 0 0{}}}}})", sql::constant_in_tree(r#"{"it's": 1}"#));
        json!({
            "prepared": null, "captures": null, "moveTables": null,
            "placed": [[3, 77, 9, "V"]],
            "tables": [[3, [["r", "SELECT"], ["r", "TRIGGER"], ["other", "SELECT"]]]],
            "indexes": [[3, "c3_pkey", true, ""], [3, "c3_id", true, ""], [3, "i5", true, index], [3, "i5_entries", true, index]],
        })
    }

    fn found(of: &Recorded, report: &Json, is_local: bool) -> Vec<(&'static str, Option<String>)> {
        let report = Report::read(report.to_string().as_bytes()).unwrap();
        let findings = compare(of, Shard { id: 1, name: "s", is_local, report: &report });
        assert!(
            findings.iter().all(|one| one.repair.is_some() != one.details.contains_key("noRepair")),
            "{findings:?}"
        );
        findings.into_iter().map(|one| (one.kind, one.repair.map(|repair| repair.to_string()))).collect()
    }

    #[test]
    fn every_difference_of_a_shard_is_found() {
        let of = recorded();
        assert_eq!(found(&of, &report(), false), []);
        let adopt = || Some(r#"SELECT docshard.accept_shard('s', '{"adopt": true}')"#.to_owned());
        let compact = || Some("SELECT docshard.compact('a.b')".to_owned());
        let drop = || Some("SELECT docshard.drop_orphaned_relation('s', 'docshard_data.c3')".to_owned());
        let validator = || Some(r#"SELECT docshard.modify_collection('a.b', '{"validator":{"a":1}}')"#.to_owned());
        let grant = || Some("SELECT docshard.grant_access('r')".to_owned());
        let behind = "ShardCatalogCacheCollectionMetadataMismatch";
        for (field, value, kind, repair) in [
            ("placed", json!(null), "MissingLocalCollection", None),
            ("tables", json!(null), "MissingLocalCollection", adopt()),
            ("placed", json!([[3, 78, 9, "V"]]), "CollectionUUIDMismatch", drop()),
            ("placed", json!([[3, 77, 8, "V"]]), behind, adopt()),
            ("placed", json!([[3, 77, 10, "V"]]), behind, adopt()),
            ("placed", json!([[3, 77, 9, null]]), "CollectionOptionsMismatch", validator()),
            ("placed", json!([[3, 77, 9, "W"]]), "CollectionOptionsMismatch", validator()),
            ("tables", json!([[3, [["r", "SELECT"], ["r", "INSERT"]]]]), "PrivilegesMismatch", grant()),
            ("tables", json!([[3, null]]), "PrivilegesMismatch", grant()),
        ] {
            let mut report = report();
            report[field] = value;
            assert_eq!(found(&of, &report, false), [(kind, repair)], "{field}");
        }
        for (relation, kind, repair) in [
            ("c3_pkey", "MissingShardKeyIndex", None),
            ("c3_id", "InconsistentIndex", compact()),
            ("i5", "InconsistentIndex", adopt()),
        ] {
            for is_there in [false, true] {
                let mut report = report();
                let rows = report["indexes"].as_array_mut().unwrap();
                match is_there {
                    false => rows.retain(|row| row[1] != relation),
                    true => rows.iter_mut().filter(|row| row[1] == relation).for_each(|row| row[2] = false.into()),
                }
                assert_eq!(found(&of, &report, false), [(kind, repair.clone())], "{relation}");
            }
        }
        let mut different = report();
        different["indexes"][2][3] = "".into();
        assert_eq!(found(&of, &different, false), [("InconsistentIndex", compact())]);
    }

    #[test]
    fn what_is_no_difference() {
        let mut of = recorded();
        let mut moved = report();
        moved["placed"] = json!([[3, 77, 10, "V"]]);
        of.decided.insert(1, 10);
        assert_eq!(found(&of, &moved, false), [], "a decided move");
        of.placements.clear();
        assert_eq!(found(&of, &moved, false), [], "a shard that has none of it");
        let mut behind = report();
        behind["placed"] = json!([[3, 77, 1, "V"]]);
        assert_eq!(found(&recorded(), &behind, true)[0].1, None, "the router's own database is not adopted");
    }

    #[test]
    fn another_report_is_refused() {
        assert!(Report::read(b"{").is_err());
        assert!(Report::read(b"[1]").is_ok_and(|report| report.placed.is_empty()));
    }

    #[test]
    fn a_shard_key_is_served_by_an_index() {
        let key = |json: Json| KeyPattern::parse(&json).unwrap();
        assert!(serves_key(&key(json!({"k": 1})), false, true, &[]));
        assert!(!serves_key(&key(json!({"k": 1})), false, false, &[]));
        assert!(serves_key(&key(json!({"it's": 1})), false, false, &[index()]));
        assert!(!serves_key(&key(json!({"it's": 1})), true, false, &[index()]));
        assert!(serves_key(&key(json!({"k": "hashed"})), false, false, &[]));
    }
}
