//! Results have MongoDB's types: a long stays a long however small, and an int that overflows becomes one.

mod common;

use bson::{Document, doc};
use common::pipelines::aggregate;
use common::{bytes, document};
use docshard_core::query::filter::Filter;
use docshard_core::query::index::IndexKeys;
use docshard_core::query::update::Update;
use docshard_core::values::document::bson::read;
use docshard_core::values::document::bson::write::{Item, Writer};
use docshard_core::values::document::field_order::Keeping;
use docshard_core::values::document::{normalise, raw, write};
use serde_json::{Value as Json, json};

fn long(value: i64) -> Json {
    json!({"$numberLong": value.to_string()})
}

/// `l` is a long, `i` an int.
fn documents() -> Json {
    json!([{"_id": 1, "l": long(5), "i": 7, "a": [long(1), 2]}, {"_id": 2, "l": long(6), "i": 8, "a": [3]}])
}

/// What the stages return of documents that remember longs.
fn results(stages: &Json) -> Vec<Json> {
    let _keeping = Keeping::order();
    aggregate(stages, &documents()).unwrap_or_else(|error| panic!("{stages}: {error:?}"))
}

#[test]
fn expressions_have_the_type_of_their_operands() {
    let most = i64::from(i32::MAX);
    for (expression, expected) in [
        (json!("$l"), "long"),
        (json!("$i"), "int"),
        (json!({"$add": ["$l", 1]}), "long"),
        (json!({"$add": ["$i", 1]}), "int"),
        (json!({"$add": ["$i", long(1)]}), "long"),
        (json!({"$add": ["$i", most]}), "long"),
        (json!({"$add": [most, 1, -1]}), "int"),
        (json!({"$add": ["$l", 0.5]}), "double"),
        (json!({"$subtract": ["$l", 5]}), "long"),
        (json!({"$subtract": [{"$toDate": long(5)}, {"$toDate": long(4)}]}), "long"),
        (json!({"$multiply": ["$i", "$l"]}), "long"),
        (json!({"$multiply": ["$i", 2]}), "int"),
        (json!({"$mod": ["$l", 2]}), "long"),
        (json!({"$mod": ["$l", 2.0]}), "long"),
        (json!({"$mod": ["$i", 2]}), "int"),
        (json!({"$divide": ["$l", 1]}), "double"),
        (json!({"$pow": ["$l", 2]}), "long"),
        (json!({"$pow": ["$i", 2]}), "int"),
        (json!({"$abs": "$l"}), "long"),
        (json!({"$ceil": "$l"}), "long"),
        (json!({"$floor": "$i"}), "int"),
        (json!({"$round": ["$l", -1]}), "long"),
        (json!({"$trunc": ["$l", 0]}), "long"),
        (json!({"$bitAnd": ["$i", "$l"]}), "long"),
        (json!({"$bitOr": ["$i", 1]}), "int"),
        (json!({"$bitNot": "$l"}), "long"),
        (json!({"$sum": ["$i", "$l"]}), "long"),
        (json!({"$sum": "$a"}), "long"),
        (json!({"$sum": ["$i", 1]}), "int"),
        (json!({"$avg": "$a"}), "double"),
        (json!({"$max": ["$l", 1]}), "long"),
        (json!({"$first": "$a"}), "long"),
        (json!({"$arrayElemAt": ["$a", 0]}), "long"),
        (json!({"$reduce": {"input": "$a", "initialValue": 0, "in": {"$add": ["$$value", "$$this"]}}}), "long"),
        (json!({"$ifNull": ["$none", "$l"]}), "long"),
        (json!({"$cond": [true, "$l", 1]}), "long"),
        (json!({"$let": {"vars": {"v": "$l"}, "in": "$$v"}}), "long"),
        (json!({"$getField": {"field": "x", "input": {"x": "$l"}}}), "long"),
        (json!({"$toLong": "$i"}), "long"),
        (json!({"$toLong": "12"}), "long"),
        (json!({"$toInt": "$l"}), "int"),
        (json!({"$convert": {"input": true, "to": "long"}}), "long"),
        (json!({"$literal": long(1)}), "long"),
        (json!({"$size": "$a"}), "int"),
        (json!({"$strLenCP": "x"}), "int"),
        (json!({"$cmp": ["$l", "$i"]}), "int"),
        (json!({"$year": {"$toDate": long(5)}}), "int"),
        (json!({"$isoWeekYear": {"$toDate": long(5)}}), "long"),
        (
            json!({"$dateDiff": {"startDate": {"$toDate": long(0)}, "endDate": {"$toDate": long(5)}, "unit": "day"}}),
            "long",
        ),
        (json!({"$tsSecond": {"$timestamp": {"t": 1, "i": 1}}}), "long"),
        (json!({"$toHashedIndexKey": "x"}), "long"),
    ] {
        // The value, and what a stage has stored of it.
        for stages in [
            json!([{"$project": {"t": {"$type": &expression}}}]),
            json!([{"$set": {"v": &expression}}, {"$project": {"t": {"$type": "$v"}}}]),
        ] {
            assert_eq!(results(&stages)[0]["t"], expected, "{stages}");
        }
    }
    let sizes = json!([{"$project": {"_id": 0, "l": {"$bsonSize": {"x": "$l"}}, "i": {"$bsonSize": {"x": "$i"}}}}]);
    assert_eq!(results(&sizes)[0], json!({"l": 16, "i": 12}));
}

#[test]
fn stages_have_the_type_of_what_they_read() {
    let typed = |stage: Json| {
        results(&json!([{"$sort": {"_id": 1}}, stage, {"$project": {"t": {"$type": "$n"}}}]))[0]["t"].clone()
    };
    for (accumulator, expected) in [
        (json!({"$sum": "$l"}), "long"),
        (json!({"$sum": "$i"}), "int"),
        (json!({"$sum": 1}), "int"),
        (json!({"$sum": long(1)}), "long"),
        (json!({"$count": {}}), "int"),
        (json!({"$sum": {"$add": ["$i", "$l"]}}), "long"),
        (json!({"$min": "$l"}), "long"),
        (json!({"$max": "$i"}), "int"),
        (json!({"$first": "$l"}), "long"),
        (json!({"$avg": "$l"}), "double"),
    ] {
        let grouped = json!({"$group": {"_id": null, "n": &accumulator}});
        assert_eq!(typed(grouped), expected, "{accumulator}");
        let window = json!({"$setWindowFields": {"sortBy": {"_id": 1}, "output": {"n": &accumulator}}});
        if accumulator.get("$count").is_none() {
            assert_eq!(typed(window), expected, "{accumulator} in a window");
        }
    }
    assert_eq!(typed(json!({"$group": {"_id": "$l", "n": {"$first": "$_id"}}})), "int");
    let keys = json!([{"$group": {"_id": "$l"}}, {"$project": {"t": {"$type": "$_id"}}}]);
    assert_eq!(results(&keys)[0]["t"], "long");
    assert_eq!(typed(json!({"$unwind": {"path": "$a", "includeArrayIndex": "n"}})), "long");
    assert_eq!(typed(json!({"$count": "n"})), "int");
    let moving = json!({"$setWindowFields": {"sortBy": {"_id": 1}, "output": {"n": {"$sum": "$l", "window": {"documents": [-1, 0]}}}}});
    assert_eq!(typed(moving), "long");
}

#[test]
fn filters_see_the_type_that_a_document_remembers() {
    let _keeping = Keeping::order();
    let (remembers, plain) = (bytes(&json!({"n": long(5)})), bytes(&json!({"n": 5})));
    for (filter, expected) in [
        (json!({"n": {"$type": "long"}}), (true, false)),
        (json!({"n": {"$type": "int"}}), (false, true)),
        (json!({"n": {"$type": 18}}), (true, false)),
        (json!({"n": {"$type": ["int", "long"]}}), (true, true)),
        (json!({"n": {"$type": "number"}}), (true, true)),
        (json!({"$jsonSchema": {"properties": {"n": {"bsonType": "long"}}}}), (true, false)),
        (json!({"$jsonSchema": {"properties": {"n": {"bsonType": "int"}}}}), (false, true)),
        (json!({"$jsonSchema": {"properties": {"n": {"type": "number"}}}}), (true, true)),
        (json!({"$expr": {"$eq": [{"$type": "$n"}, "long"]}}), (true, false)),
        (json!({"n": 5}), (true, true)),
        (json!({"n": long(5)}), (true, true)),
    ] {
        let parsed = Filter::parse(&filter).unwrap();
        let found = (parsed.matches(document(&remembers)), parsed.matches(document(&plain)));
        assert_eq!(found, expected, "{filter}");
    }
}

#[test]
fn an_index_tells_longs_from_ints() {
    let index = IndexKeys::parse(&json!({"n": -1, "o": 1})).unwrap();
    let made = |json: &Json| {
        let _keeping = Keeping::order();
        bytes(json)
    };
    for json in [
        json!({"n": long(5), "o": 5}),
        json!({"n": 5, "o": long(-5)}),
        json!({"n": {"a": long(1), "b": 2}, "o": long(0)}),
    ] {
        let stored = made(&json);
        let columns: Vec<Vec<u8>> = (0..2).map(|column| index.key(document(&stored), column)).collect();
        let types = index.types(document(&stored));
        assert_eq!(index.restore_document(columns.iter().map(Vec::as_slice), &types).unwrap(), stored, "{json}");
        // The keys themselves are the same, so that both are found.
        let plain = bytes(&json);
        assert_eq!((0..2).map(|column| index.key(document(&plain), column)).collect::<Vec<_>>(), columns);
    }
}

fn stored(document: &Document) -> Vec<u8> {
    let written = write::value(&read::value(&document.to_vec().unwrap()).unwrap()).unwrap();
    normalise::for_insert(raw::document(&written).unwrap(), || [7; 12]).unwrap().bytes.into_owned()
}

/// The document after an update that a client has sent.
fn updated(before: &Document, update: impl Into<bson::Bson>) -> Document {
    let _keeping = Keeping::order();
    let command = doc! { "update": "c", "updates": [{ "q": {}, "u": update }] };
    let json = read::parse(&command.to_vec().unwrap()).unwrap();
    let update = Update::parse(json.pointer("/updates/0/u").unwrap()).unwrap();
    let before = stored(before);
    let after = update.apply(raw::document(&before).unwrap(), &[]).unwrap().unwrap();
    let mut writer = Writer::new();
    writer.field("d", Item::Stored(raw::root(&after))).unwrap();
    let reply = Document::from_reader(writer.finish().unwrap().as_slice()).unwrap();
    reply.get_document("d").unwrap().clone()
}

#[test]
fn updates_have_the_type_of_their_operands() {
    let before = doc! { "_id": 1, "l": 5_i64, "i": 7, "big": 1_i64 << 40 };
    let most = i64::from(i32::MAX);
    for (update, field, expected) in [
        (doc! { "$inc": { "l": 1 } }, "l", bson::Bson::Int64(6)),
        (doc! { "$inc": { "i": 1 } }, "i", bson::Bson::Int32(8)),
        (doc! { "$inc": { "i": 1_i64 } }, "i", bson::Bson::Int64(8)),
        (doc! { "$inc": { "i": i32::MAX } }, "i", bson::Bson::Int64(most + 7)),
        (doc! { "$inc": { "big": 1 - (1_i64 << 40) } }, "big", bson::Bson::Int64(1)),
        (doc! { "$inc": { "new": 1_i64 } }, "new", bson::Bson::Int64(1)),
        (doc! { "$mul": { "l": 2 } }, "l", bson::Bson::Int64(10)),
        (doc! { "$mul": { "big": 0 } }, "big", bson::Bson::Int64(0)),
        (doc! { "$mul": { "new": 3_i64 } }, "new", bson::Bson::Int64(0)),
        (doc! { "$bit": { "big": { "and": 1 } } }, "big", bson::Bson::Int64(0)),
        (doc! { "$bit": { "i": { "and": 3 } } }, "i", bson::Bson::Int32(3)),
        (doc! { "$max": { "i": 9_i64 } }, "i", bson::Bson::Int64(9)),
    ] {
        assert_eq!(updated(&before, update.clone()).get(field), Some(&expected), "{update}");
    }
    for (expression, expected) in [
        (doc! { "$add": ["$l", 1] }, bson::Bson::Int64(6)),
        (doc! { "$add": ["$i", 1_i64] }, bson::Bson::Int64(8)),
        (doc! { "$add": ["$i", 1] }, bson::Bson::Int32(8)),
        (doc! { "$toLong": "$i" }, bson::Bson::Int64(7)),
    ] {
        let found = updated(&before, vec![doc! { "$set": { "n": expression.clone() } }]);
        assert_eq!(found.get("n"), Some(&expected), "{expression}");
    }
}

#[test]
fn pipelines_and_variables_of_commands_keep_longs() {
    let command = doc! { "aggregate": "c", "pipeline": [{ "$set": { "n": { "$add": ["$i", 1_i64] } } }, { "$limit": 5_i64 }], "let": { "v": 2_i64 } };
    let json = read::parse(&command.to_vec().unwrap()).unwrap();
    assert_eq!(json.pointer("/pipeline/0/$set/n/$add/1"), Some(&long(1)));
    assert_eq!(json.pointer("/let/v"), Some(&long(2)));
    assert_eq!(results(&json["pipeline"]).len(), 2);
}
