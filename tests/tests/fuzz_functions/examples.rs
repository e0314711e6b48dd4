//! Arguments as routers send and users write them, and the words of which random ones are made.

use docshard_core::query::vocabulary;
use serde_json::{Value, json};
use std::sync::LazyLock;

pub const NAMESPACES: &[&str] = &["fuzz.c", "fuzz.s", "fuzz.h", "fuzz.none", "config.chunks", "fuzz", "", ".", "a.b.c"];

pub const TEXTS: &[&str] = &[
    "",
    "a",
    "_id",
    "b",
    "a.b",
    "a.0",
    "$a",
    "$$ROOT",
    "^a",
    "(a+)+$",
    "[",
    "1",
    "NaN",
    "{}",
    "[]",
    "{\"a\":",
    "ä\u{10ffff}",
    "*",
    "matches",
    "c1",
    "hashed",
];

/// Arguments that routers send and users write, by purpose.
pub fn examples(purpose: &str) -> Vec<Value> {
    match purpose {
        "filter" => vec![
            json!({}),
            json!({"_id": 1}),
            json!({"a": {"$gte": 1, "$lt": 15}, "b": {"$in": ["x", null]}}),
            json!({"$or": [{"a": {"$elemMatch": {"b": 2}}}, {"b": {"$regex": "^t", "$options": "i"}}]}),
            json!({"$expr": {"$gt": [{"$add": ["$a", 1]}, {"$size": {"$ifNull": ["$l", []]}}]}}),
            json!({"a": {"$not": {"$type": ["int", "string"]}}, "n": {"$mod": [4, 0]}}),
            json!({"b": {"$date": {"$numberLong": "0"}}}),
            json!({"filter": {"b": "X"}, "collation": {"locale": "en", "strength": 2}}),
        ],
        "update" => vec![
            json!({"$set": {"b": "new", "c.d": [1]}}),
            json!({"$inc": {"a": 1}, "$push": {"l": {"$each": [1, 2], "$slice": -3, "$sort": 1}}}),
            json!({"$unset": {"b": 1}, "$rename": {"n": "m"}}),
            json!([{"$set": {"c": {"$concat": ["$b", "!"]}}}, {"$unset": "b"}]),
            json!({"a": 5}),
        ],
        "internal update" => vec![
            json!({"update": {"$set": {"b": "new"}}}),
            json!({"update": {"$inc": {"n": 1}}, "filter": {"a": 1}}),
            json!({"update": {"$set": {"a.$[x].b": 3}}, "arrayFilters": [{"x.b": {"$gt": 1}}]}),
            json!({"update": [{"$set": {"c": 1}}], "now": {"$date": "2026-01-01T00:00:00Z"}}),
            json!({"update": {"a": 5}, "replace": true}),
        ],
        "keys" => vec![
            json!({"b": 1}),
            json!({"a": 1, "n": -1}),
            json!({"$**": 1}),
            json!({"n": "hashed"}),
            json!({"_id": 1}),
        ],
        "projection" => vec![
            json!({"a": 1}),
            json!({"b": 0, "_id": 0}),
            json!({"a": {"$slice": 1}}),
            json!({"c": {"$toString": "$a"}}),
        ],
        "options" => vec![
            json!({}),
            json!({"sort": {"a": -1, "_id": 1}, "limit": 3, "skip": 1}),
            json!({"projection": {"a": 1}, "hint": {"b": 1}}),
            json!({"upsert": true, "collation": {"locale": "de"}}),
            json!({"arrayFilters": [{"x": 1}], "let": {"v": 1}}),
            json!({"ordered": false}),
            json!({"mode": "full", "samplesPerSecond": 100}),
            json!({"shardKey": {"a": 1, "n": "hashed"}}),
            json!({"sampleSize": 20, "shards": 3, "keyCharacteristics": false}),
        ],
        "command" => vec![
            json!({"find": "c", "filter": {"a": 1}, "sort": {"b": 1}, "batchSize": 1}),
            json!({"insert": "s", "documents": [{"a": 7}]}),
            json!({"update": "s", "updates": [{"q": {"a": 1}, "u": {"$set": {"b": 1}}, "multi": true}]}),
            json!({"delete": "h", "deletes": [{"q": {"_id": 1}, "limit": 1}]}),
            json!({"findAndModify": "c", "query": {"_id": 1}, "update": {"$inc": {"n": 1}}, "new": true}),
            json!({"distinct": "c", "key": "a"}),
            json!({"count": "s", "query": {"b": "text 1"}}),
            json!({"explain": {"find": "s"}, "verbosity": "executionStats"}),
            json!({"collStats": "c"}),
            json!({"bulkWrite": 1, "nsInfo": [{"ns": "fuzz.c"}, {"ns": "fuzz.s"}], "ops": [
                {"insert": 0, "document": {"a": 8}}, {"update": 1, "filter": {"a": 1}, "updateMods": {"$set": {"b": 1}}},
                {"delete": 0, "filter": {"a": 8}, "multi": true}
            ]}),
            json!({"usersInfo": {"user": "fuzz_app", "db": "fuzz"}}),
            json!({"rolesInfo": ["read", {"role": "x", "db": "fuzz"}], "showBuiltinRoles": true}),
            json!({"currentOp": 1, "$ownOps": true}),
            json!({"aggregate": 1, "pipeline": [{"$listClusterCatalog": {"shards": true}}], "cursor": {}}),
            json!({"update": "settings", "updates": [{"q": {"_id": "chunksize"}, "u": {"$set": {"value": 64}}}]}),
            json!({"getMore": 1, "collection": "c"}),
            json!({"listIndexes": "c"}),
            json!({"checkMetadataConsistency": "c", "checkIndexes": false, "cursor": {"batchSize": 1}}),
            json!({"analyzeShardKey": "fuzz.c", "key": {"a": 1}, "sampleRate": 0.5}),
            json!({"configureQueryAnalyzer": "fuzz.c", "mode": "full", "samplesPerSecond": 100}),
            json!({"ping": 1}),
        ],
        "spec" => vec![
            json!({"query": {"_id": 1}, "update": {"$inc": {"n": 1}}, "new": true}),
            json!({"query": {"a": {"$gt": 3}}, "sort": {"a": 1}, "remove": true, "fields": {"a": 1}}),
        ],
        "operations" => vec![json!([
            {"insertOne": {"document": {"a": 3}}},
            {"updateOne": {"filter": {"_id": 1}, "update": {"$set": {"b": 2}}}},
            {"deleteMany": {"filter": {"a": 1}}}
        ])],
        "pipeline" => vec![
            json!([{"$match": {"a": {"$gte": 1}}}, {"$group": {"_id": "$b", "n": {"$sum": 1}}}, {"$sort": {"_id": 1}}]),
            json!([{"$lookup": {"from": "s", "localField": "a", "foreignField": "a", "as": "found"}}, {"$unwind": "$found"}]),
            json!([{"$lookup": {"from": "h", "let": {"b": "$b"}, "pipeline": [{"$match": {"$expr": {"$gt": ["$_id", "$$b"]}}}], "as": "l"}}]),
            json!([{"$graphLookup": {"from": "s", "startWith": "$a", "connectFromField": "a", "connectToField": "_id", "as": "g"}}]),
            json!([{"$unionWith": {"coll": "c", "pipeline": [{"$limit": 2}]}}, {"$facet": {"x": [{"$count": "n"}]}}]),
            json!([{"$set": {"_id": {"$toString": "$_id"}}}, {"$merge": {"into": "h", "whenMatched": [{"$set": {"b": "$$new.b"}}]}}]),
            json!([{"$project": {"b": 1}}, {"$out": "made"}]),
        ],
        "work" => {
            // The jsonb of {"a": 1}.
            let document = [1, 0, 0, 32, 1, 0, 0, 128, 11, 0, 0, 16, 97, 0, 0, 0, 32, 0, 0, 0, 0, 128, 1, 0];
            let select = |sql: &str| json!({"select": {"sql": sql, "params": [{"bytes": document}, {"int8": 1}]}});
            let work = |stages: Value, source: Value| json!({"stages": stages, "onDisk": true, "source": source});
            let mut sorted =
                work(json!([{"$sort": {"a": 1}}, {"$limit": 3}]), json!({"scan": {"filter": "{\"a\": 5}"}}));
            sorted["keyed"] = json!(true);
            sorted["projection"] = json!("{\"b\": {\"$slice\": 1}}");
            sorted["environment"] = json!({"let": {"v": 1}, "now": 5, "collation": {"locale": "en"}});
            let mut measured = work(json!([{"$unwind": "$a"}]), select("SELECT $3"));
            measured["measured"] = json!(true);
            vec![
                sorted,
                measured,
                work(json!([{"$_partialGroup": {"_id": "$b", "n": {"$avg": "$a"}}}]), json!({"scan": {}})),
                work(json!([{"$_mergedGroup": {"_id": "$b", "n": {"$avg": "$a"}}}]), select("SELECT $3")),
                work(json!([{"$lookup": {"from": "s", "pipeline": [], "as": "l"}}]), json!({"scan": {}})),
                work(json!([{"$project": {"a": 1}}, {"$out": "c"}]), select("SELECT $3 WHERE $4 = 1")),
                work(json!([{"$set": {"b": 1}}]), select("SELECT 'x'::bytea")),
                work(json!([{"$set": {"b": 1}}]), select("SELECT 1.5::float8")),
                work(json!([]), select("SELECT NULL::bytea")),
                work(json!([]), select("SELECT")),
                work(json!([]), select("TABLE docshard_data.placement")),
                work(json!([]), select("CREATE TABLE t (); SELECT 1")),
            ]
        }
        "setting" => vec![json!({"collation": {"locale": "fr", "numericOrdering": true}}), json!({"let": {"x": 1}})],
        _ => vec![
            json!({"_id": 77, "a": 3, "b": "z"}),
            json!({"a": [{"b": {"$oid": "0123456789abcdef01234567"}}], "d": {"$numberDecimal": "1.50"}}),
            json!({"_id": {"$binary": {"base64": "AAEC", "subType": "00"}}, "a": -0.0, "n": 1e300}),
        ],
    }
}

/// Paths, options, and names that are in no table of the language.
const OWN_NAMES: &[&str] = &[
    "a",
    "b",
    "_id",
    "n",
    "a.b",
    "a.0",
    "",
    ".",
    "$",
    "a.$[]",
    "sort",
    "limit",
    "hint",
    "collation",
    "locale",
    "filter",
    "update",
];

/// Names with a meaning in some context.
pub static NAMES: LazyLock<Vec<&str>> =
    LazyLock::new(|| OWN_NAMES.iter().copied().chain(vocabulary::names()).collect());
