//! Results do not depend on indexes: random statements on random documents with arrays return the same with indexes of
//! every kind and without, with hints and without. This holds on a shard that had the collection when the indexes were created,
//! and on one that got it later.

use docshard_tests::Cluster;
use fastrand::Rng;
use postgres::Client;
use serde_json::{Map, Value, json};

const INDEXES: &str = r#"[
    {"key": {"a": 1}}, {"key": {"a": -1, "b": 1}}, {"key": {"b": 1}, "name": "b sparse", "sparse": true},
    {"key": {"b": 1}, "name": "b above", "partialFilterExpression": {"b": {"$gt": 2}}},
    {"key": {"c.d": 1, "a": 1}, "sparse": true}, {"key": {"c": 1}, "partialFilterExpression": {"$or": [{"a": {"$in": [1, 2]}}, {"b": {"$type": "string"}}]}},
    {"key": {"k": 1, "u": 1}, "unique": true, "partialFilterExpression": {"u": {"$exists": true}}},
    {"key": {"u": 1}, "hidden": true}, {"key": {"c.d": -1}}, {"key": {"c.d": 1, "c.e": -1, "b": 1}}, {"key": {"a.0": 1, "b": -1}},
    {"key": {"b": -1, "c.0.d": 1}}, {"key": {"a": 1, "_id": -1}}, {"key": {"b": -1, "a": 1, "_id": 1}}, {"key": {"c.d": 1, "_id": -1}},
    {"key": {"k": "hashed"}}, {"key": {"u": "hashed", "k": -1}, "sparse": true},
    {"key": {"b": "hashed"}, "name": "b hashed", "partialFilterExpression": {"b": {"$in": ["x", "y"]}, "h": true}},
    {"key": {"$**": 1}}, {"key": {"c.$**": 1}}, {"key": {"$**": 1}, "name": "all but", "wildcardProjection": {"a": 0, "c": {"d": 0}}},
    {"key": {"$**": 1}, "name": "some of", "wildcardProjection": {"c.e": 1, "u": 1}, "partialFilterExpression": {"k": {"$gte": 100}}},
    {"key": {"u": 1, "c.$**": 1}}, {"key": {"k": -1, "$**": 1}, "name": "around k", "wildcardProjection": {"k": 0, "a": 0, "u": 0}},
    {"key": {"$**": 1, "u": 1}, "name": "before u", "wildcardProjection": {"a": 1, "b": 1}}]"#;

fn scalar(rng: &mut Rng) -> Value {
    match rng.u8(0..12) {
        0..=5 => json!(rng.i64(0..5)),
        6 | 7 => json!(["x", "y", "xy"][rng.usize(0..3)]),
        8 => Value::Null,
        9 => json!(f64::from(rng.u8(0..10)) / 2.0),
        10 => json!(rng.bool()),
        _ => json!({"d": rng.i64(0..4)}),
    }
}

/// A value without an array.
fn single(rng: &mut Rng) -> Value {
    match rng.u8(0..10) {
        0 | 1 => json!({"d": scalar(rng), "e": scalar(rng)}),
        _ => scalar(rng),
    }
}

/// An array of anything; `d` may contain a further array.
fn array(rng: &mut Rng) -> Value {
    let element = |rng: &mut Rng| match rng.u8(0..10) {
        0 | 1 => json!({"d": scalar(rng), "e": scalar(rng)}),
        2 => json!({"d": (0..rng.usize(0..3)).map(|_| scalar(rng)).collect::<Vec<_>>(), "e": scalar(rng)}),
        3 => (0..rng.usize(0..3)).map(|_| single(rng)).collect(),
        _ => scalar(rng),
    };
    (0..rng.usize(0..4)).map(|_| element(rng)).collect()
}

/// Values of `a`, `b` and `c`. At most one of them has arrays, as an index cannot have two array fields.
fn values(rng: &mut Rng) -> Map<String, Value> {
    let array_at = rng.usize(0..6);
    let field = |(at, name): (usize, &str)| {
        let value = if at == array_at { array(rng) } else { single(rng) };
        (rng.u8(0..4) > 0).then(|| (name.to_owned(), value))
    };
    ["a", "b", "c"].into_iter().enumerate().filter_map(field).collect()
}

fn document(rng: &mut Rng, id: i64) -> Value {
    let mut fields = values(rng);
    fields.insert("_id".to_owned(), json!(id));
    fields.insert("k".to_owned(), json!(id));
    if rng.u8(0..3) == 0 {
        fields.insert("u".to_owned(), json!(rng.i64(0..1000)));
    }
    Value::Object(fields)
}

fn condition(rng: &mut Rng) -> Value {
    match rng.u8(0..18) {
        14 => array(rng),
        15 => json!({"$elemMatch": {"d": scalar(rng), "e": {"$lte": scalar(rng)}}}),
        16 => json!({"$elemMatch": {"$gte": scalar(rng), "$lt": scalar(rng)}}),
        17 => json!({"$in": [array(rng), scalar(rng)]}),
        0..=2 => scalar(rng),
        3..=6 => json!({["$gt", "$gte", "$lt", "$lte"][rng.usize(0..4)]: scalar(rng)}),
        7 => json!({"$gte": rng.i64(0..3), "$lte": rng.i64(1..5)}),
        8 => json!({"$in": (0..rng.usize(1..4)).map(|_| scalar(rng)).collect::<Vec<_>>()}),
        9 => json!({"$exists": rng.bool()}),
        10 => json!({"$ne": scalar(rng)}),
        11 => json!({"$type": (["string", "number", "array", "null"][rng.usize(0..4)])}),
        12 => json!({"$elemMatch": {"$gte": 1}}),
        _ => json!({"$regex": "^x"}),
    }
}

fn filter(rng: &mut Rng, depth: usize) -> Value {
    if depth > 0 && rng.u8(0..4) == 0 {
        let branches: Vec<_> = (0..rng.usize(1..3)).map(|_| filter(rng, depth - 1)).collect();
        return json!({["$or", "$and", "$nor"][rng.usize(0..3)]: branches});
    }
    let paths = ["a", "a.0", "b", "c", "c.d", "c.e", "c.0.d", "u", "k"];
    let fields = (0..rng.usize(1..4)).map(|_| (paths[rng.usize(0..paths.len())].to_owned(), condition(rng)));
    Value::Object(fields.collect())
}

/// The results of a statement for both collections.
fn answers(client: &mut Client, sql: &str, filter: &Value) -> [Value; 2] {
    ["answers.plain", "answers.indexed"].map(|ns| {
        let row = client.query_one(sql, &[&ns, filter]);
        row.unwrap_or_else(|e| panic!("{sql} {ns} {filter}: {e:?}")).get(0)
    })
}

fn assert_same(client: &mut Client, what: &str, sql: &str, filter: &Value) {
    let [plain, indexed] = answers(client, sql, filter);
    assert_eq!(indexed, plain, "{what}: {sql} {filter}");
}

const FIND: &str =
    "SELECT coalesce(jsonb_agg(d ORDER BY (d ->> '_id')::int), '[]') FROM docshard.find($1, $2::jsonb::json) d";
/// Sort orders that an index may serve. Each ends with `_id`, so that the order is unique.
const SORTS: [&str; 9] = [
    r#"{"a": 1, "_id": -1}"#,
    r#"{"a": -1, "_id": 1}"#,
    r#"{"b": -1, "a": 1, "_id": 1}"#,
    r#"{"a": 1, "_id": 1}"#,
    r#"{"a": -1, "_id": -1}"#,
    r#"{"_id": -1}"#,
    r#"{"b": 1, "a": -1, "_id": -1}"#,
    r#"{"c.d": 1, "_id": -1}"#,
    r#"{"c.d": -1, "_id": 1}"#,
];
/// Projections that an index may cover.
const PROJECTIONS: [&str; 6] = [
    r#"{"a": 1, "_id": 0}"#,
    r#"{"a": 1, "b": 1, "_id": 0}"#,
    r#"{"b": 1, "a": 1}"#,
    r#"{"a": 1}"#,
    r#"{"c.d": 1, "_id": 0}"#,
    r#"{"c.d": 1, "c.e": 1, "b": 1, "_id": 0}"#,
];
const COUNT: &str = "SELECT to_jsonb(docshard.count_documents($1, $2::jsonb::json))";

const HINTED: &str = "SELECT coalesce(jsonb_agg(d ORDER BY (d ->> '_id')::int), '[]') \
                      FROM docshard.find($1, $2::jsonb::json, json_build_object('hint', $3::jsonb)) d";

/// Runs the find with a hint, and compares the result. True if the hint is obeyed; it may be refused if the index lacks
/// documents.
fn obeys(client: &mut Client, what: &str, filter: &Value, hint: &Value) -> bool {
    let plain: Value = client.query_one(FIND, &[&"answers.plain", filter]).unwrap().get(0);
    match client.query_one(HINTED, &[&"answers.indexed", filter, hint]) {
        Ok(row) => {
            assert_eq!(row.get::<_, Value>(0), plain, "{what}: {filter}, hint {hint}");
            true
        }
        Err(error) => {
            let reasons = ["which the filter does not require", "cannot be used for the filter"];
            let refused =
                error.as_db_error().is_some_and(|e| reasons.iter().any(|reason| e.message().contains(reason)));
            assert!(refused, "{what}: {filter}, hint {hint}: {error:?}");
            false
        }
    }
}

/// Indexes with their fields; true means descending.
const PARTS: [(&str, &[(&str, bool)]); 5] = [
    ("a_1", &[("a", false)]),
    ("a_-1_b_1", &[("a", true), ("b", false)]),
    ("c.d_-1", &[("c.d", true)]),
    ("a_1__id_-1", &[("a", false), ("_id", true)]),
    ("b_-1_a_1__id_1", &[("b", true), ("a", false), ("_id", false)]),
];

/// A condition with `$expr`: true for a document without arrays whose key is after a bound, or, if `inclusively`, equal to it.
fn behind(fields: &[(&str, bool)], corner: &Map<String, Value>, inclusively: bool) -> Value {
    let value = |path: &str| json!({"$ifNull": [format!("${path}"), null]});
    let compare = |operator: &str, path: &str| json!({operator: [value(path), {"$literal": corner[path]}]});
    let mut ways: Vec<Value> = (0..fields.len())
        .map(|at| {
            let equal = fields[..at].iter().map(|(path, _)| compare("$eq", path));
            let (path, descending) = fields[at];
            let further = compare(if descending { "$lt" } else { "$gt" }, path);
            json!({"$and": equal.chain([further]).collect::<Vec<_>>()})
        })
        .collect();
    if inclusively {
        ways.push(json!({"$and": fields.iter().map(|(path, _)| compare("$eq", path)).collect::<Vec<_>>()}));
    }
    json!({"$or": ways})
}

/// Compares a find with `min` and `max` with all documents in that range of an index; true if the hint is obeyed.
fn has_part(client: &mut Client, what: &str, rng: &mut Rng, filter: &Value) -> bool {
    let (name, fields) = PARTS[rng.usize(0..PARTS.len())];
    let mut corner = || -> Map<String, Value> {
        let value = |path: &str, rng: &mut Rng| if path == "_id" { json!(rng.i64(0..600)) } else { scalar(rng) };
        fields.iter().map(|(path, _)| ((*path).to_owned(), value(path, rng))).collect()
    };
    let (min, max) = (corner(), corner());
    let what = format!("{what}: {name}, from {min:?} to {max:?}, {filter}");
    let mut found = |sort: &str| -> Result<Vec<Value>, postgres::Error> {
        let options = format!("{{\"min\": {}, \"max\": {}, \"hint\": \"{name}\"{sort}}}", json!(min), json!(max));
        let sql = "SELECT coalesce(jsonb_agg(d), '[]') FROM docshard.find('answers.indexed', $1::jsonb::json, $2::text::json) d";
        let row = client.query_one(sql, &[filter, &options])?;
        Ok(serde_json::from_value(row.get(0)).unwrap())
    };
    let sorted = match found(", \"sort\": {\"k\": 1}") {
        Ok(sorted) => sorted,
        Err(error) if error.as_db_error().is_some_and(|e| e.message().contains("does not come before")) => {
            return false;
        }
        Err(error) => panic!("{what}: {error:?}"),
    };
    let id = |document: &Value| document["_id"].as_i64().unwrap();
    let in_order = found("").unwrap();
    let mut ids: Vec<i64> = in_order.iter().map(id).collect();
    ids.sort_unstable();
    assert_eq!(ids, sorted.iter().map(id).collect::<Vec<_>>(), "{what}");
    // Without arrays each document has one key in the index, so comparisons decide which documents are in the range.
    let heads: Vec<&str> = fields.iter().map(|(path, _)| path.split('.').next().unwrap()).collect();
    let single =
        |document: &&Value| !heads.iter().any(|head| document[*head].is_array() || document[*head]["d"].is_array());
    let order: Map<String, Value> =
        fields.iter().map(|(path, down)| ((*path).to_owned(), json!(if *down { -1 } else { 1 }))).collect();
    let between =
        json!({"$nor": [{"$expr": {"$not": [behind(fields, &min, true)]}}, {"$expr": behind(fields, &max, true)}]});
    let sql =
        "SELECT coalesce(jsonb_agg(d), '[]') FROM docshard.find('answers.plain', $1::jsonb::json, $2::text::json) d";
    let options = format!("{{\"sort\": {}}}", json!(order));
    let row = client.query_one(sql, &[&json!({"$and": [filter, between]}), &options]);
    let expected: Vec<Value> = serde_json::from_value(row.unwrap_or_else(|e| panic!("{what}: {e:?}")).get(0)).unwrap();
    let places = |documents: &[Value]| -> Vec<i64> { documents.iter().filter(single).map(id).collect() };
    let (mut expected, mut actual) = (places(&expected), places(&in_order));
    if !fields.iter().any(|(path, _)| *path == "_id") {
        expected.sort_unstable();
        actual.sort_unstable();
    }
    assert_eq!(actual, expected, "{what}");
    true
}

#[test]
fn answers_do_not_depend_on_indexes() {
    let cluster = Cluster::start(2);
    let mut client = cluster.router.client();
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(|| fastrand::u64(..));
    let mut rng = Rng::with_seed(seed);
    let what = format!("SEED={seed}");
    client.batch_execute("SELECT docshard.stop_balancer(), docshard.enable_sharding('answers', 'shard0')").unwrap();
    for ns in ["answers.plain", "answers.indexed"] {
        client.execute("SELECT docshard.shard_collection($1, '{\"k\": 1}')", &[&ns]).unwrap();
        if ns == "answers.indexed" {
            client.execute(&format!("SELECT docshard.create_indexes($1, '{INDEXES}')"), &[&ns]).unwrap();
        }
        client.execute("SELECT docshard.split_at($1, '{\"k\": 300}')", &[&ns]).unwrap();
    }
    let documents: Vec<Value> = (0..600).map(|id| document(&mut rng, id)).collect();
    for ns in ["answers.plain", "answers.indexed"] {
        client.execute("SELECT docshard.insert_many($1, $2)", &[&ns, &documents]).unwrap();
        // Until now the other shard has neither the table nor the indexes.
        client.execute("SELECT docshard.move_chunk($1, '{\"k\": 300}', 'shard1')", &[&ns]).unwrap();
    }
    let kinds = "SELECT string_agg(concat(c.relname ~ 'unique', i.indpred IS NOT NULL), ' ' ORDER BY i.indexrelid::regclass::text) \
                 FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid WHERE c.relname ~ '^i[0-9]+(_unique)?$'";
    let [donor, recipient] = [0, 1].map(|shard| cluster.shards[shard].value::<String>(kinds));
    assert_eq!(donor, recipient);
    assert_eq!(donor.matches("ft").count(), 8, "{donor}");
    assert_eq!(donor.matches("tt").count(), 1, "{donor}");
    for shard in &cluster.shards {
        // Without this setting small tables are scanned, and no index is tested.
        shard.psql("ALTER SYSTEM SET enable_seqscan = off");
        shard.psql("SELECT pg_reload_conf()");
        shard.psql("VACUUM ANALYZE");
    }
    drop(client);
    let mut client = cluster.router.client();
    let hints = [
        json!("a_1"),
        json!("a_-1_b_1"),
        json!("b sparse"),
        json!("b above"),
        json!("c_1"),
        json!("k_1_u_1"),
        json!({"c.d": -1}),
        json!("_id_"),
        json!({"k": "hashed"}),
        json!("u_hashed_k_-1"),
        json!("$**_1"),
        json!("c.$**_1"),
        json!("all but"),
        json!("some of"),
        json!({"$natural": 1}),
    ];
    let (mut obeyed, mut parts) = (0, 0);
    for round in 0..120 {
        let filter = filter(&mut rng, 2);
        let some = if round % 2 == 0 { filter.clone() } else { json!({}) };
        parts += usize::from(has_part(&mut client, &what, &mut rng, &some));
        assert_same(&mut client, &what, FIND, &filter);
        assert_same(&mut client, &what, COUNT, &filter);
        let told =
            if round % 2 == 0 { filter.clone() } else { json!({"b": condition(&mut rng), "a": condition(&mut rng)}) };
        let sql = format!(
            "SELECT coalesce(jsonb_agg(d ORDER BY d::text), '[]') FROM docshard.find($1, $2::jsonb::json, \
             '{{\"projection\": {}}}') d",
            PROJECTIONS[rng.usize(0..PROJECTIONS.len())]
        );
        assert_same(&mut client, &what, &sql, &told);
        assert_same(&mut client, &what, COUNT, &told);
        let hint = &hints[rng.usize(0..hints.len())];
        obeyed += usize::from(obeys(&mut client, &what, &filter, hint));
        let narrowed = [filter.clone(), json!({"b": scalar(&mut rng), "$and": [filter]}), json!({})];
        for narrowed in narrowed.into_iter().filter(|_| round % 3 == 0) {
            let (sort, limit, skip) = (SORTS[rng.usize(0..SORTS.len())], rng.usize(1..9), rng.usize(0..4));
            let told =
                format!(", \"limit\": {limit}, \"projection\": {}", PROJECTIONS[rng.usize(0..PROJECTIONS.len())]);
            for limited in [format!(", \"limit\": {limit}"), String::new(), told] {
                let sql = format!(
                    "SELECT coalesce(jsonb_agg(d), '[]') FROM docshard.find($1, $2::jsonb::json, \
                     '{{\"sort\": {sort}, \"skip\": {skip}{limited}}}') d"
                );
                assert_same(&mut client, &what, &sql, &narrowed);
            }
            let few =
                format!("SELECT to_jsonb(count(*)) FROM docshard.find($1, $2::jsonb::json, '{{\"limit\": {limit}}}')");
            assert_same(&mut client, &what, &few, &narrowed);
        }
        if round % 10 == 0 {
            let literals = values(&mut rng).into_iter().map(|(name, value)| (name, json!({"$literal": value})));
            let set: Map<String, Value> = literals.chain([("w".to_owned(), json!(round))]).collect();
            let pipeline = json!([{"$unset": ["a", "b", "c"]}, {"$set": set}]);
            let sql = format!("SELECT docshard.update_many($1, $2::jsonb::json, '{pipeline}')");
            assert_same(&mut client, &what, &sql, &filter);
        }
        if round % 40 == 0 {
            let few = json!({"$and": [filter, {"k": {"$lt": rng.i64(0..600)}}, {"a": {"$gte": 4}}]});
            assert_same(&mut client, &what, "SELECT docshard.delete_many($1, $2::jsonb::json)", &few);
        }
    }
    assert_same(&mut client, &what, FIND, &json!({}));
    assert!(parts > 24, "{what}: {parts} parts of indexes");
    assert!(obeyed > 24, "{what}: {obeyed} hints obeyed");
}
