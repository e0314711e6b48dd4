//! A document that a client of MongoDB's protocol stores comes back byte for byte.

mod common;

use bson::{Bson, Document, doc};
use common::bson_documents::documents;
use docshard_core::query::environment::Environment;
use docshard_core::query::filter::Filter;
use docshard_core::query::projection::Projection;
use docshard_core::query::update::Update;
use docshard_core::values::document::bson::read;
use docshard_core::values::document::bson::write::{Item, Writer};
use docshard_core::values::document::detached::{attach, detach};
use docshard_core::values::document::field_order::Keeping;
use docshard_core::values::document::raw;
use docshard_core::values::document::value::Value;
use docshard_core::values::document::{ext_json, normalise, print, write};
use docshard_core::values::order;
use proptest::prelude::*;
use serde_json::{Value as Json, json};

/// What is stored of a client's document.
fn stored(bytes: &[u8]) -> Vec<u8> {
    let _keeping = Keeping::order();
    let written = write::value(&read::value(bytes).unwrap()).unwrap();
    let stored = normalise::for_insert(raw::document(&written).unwrap(), || [7; 12]).unwrap().bytes.into_owned();
    raw::validate(&stored).unwrap();
    normalise::check_stored(&stored).unwrap();
    stored
}

/// The document as a reply has it.
fn returned(stored: &[u8]) -> Vec<u8> {
    let mut writer = Writer::new();
    writer.field("d", Item::Stored(raw::root(stored))).unwrap();
    let reply = Document::from_reader(writer.finish().unwrap().as_slice()).unwrap();
    reply.get_document("d").unwrap().to_vec().unwrap()
}

/// The same document without anything that a client has given beside its text, as PostgreSQL reads it.
fn from_text(stored: &[u8]) -> Vec<u8> {
    let mut text = Vec::new();
    print::print(stored, &mut text).unwrap();
    let json = docshard_core::json::parse(std::str::from_utf8(&text).unwrap()).unwrap();
    write::value(&ext_json::from_json(&json).unwrap()).unwrap()
}

fn with_id(document: Document) -> Document {
    let mut all = doc! { "_id": 1 };
    all.extend(document.into_iter().filter(|(name, _)| name != "_id"));
    all
}

proptest! {
    #[test]
    fn a_document_comes_back_byte_for_byte(document in documents()) {
        let bytes = with_id(document).to_vec().unwrap();
        let stored = stored(&bytes);
        prop_assert_eq!(returned(&stored), bytes);
        // Nothing but output sees a difference.
        let plain = from_text(&stored);
        prop_assert!(order::compare_raw(raw::root(&plain), &Value::from_raw(raw::root(&stored))).is_eq());
        prop_assert_eq!(plain == stored, detach(raw::document(&stored).unwrap()).is_empty());
    }

    #[test]
    fn what_is_detached_can_be_attached_again(document in documents()) {
        let stored = stored(&with_id(document).to_vec().unwrap());
        let detached = detach(raw::document(&stored).unwrap());
        let plain = from_text(&stored);
        prop_assert_eq!(detach(raw::document(&plain).unwrap()), Vec::<u8>::new());
        prop_assert_eq!(attach(raw::document(&plain).unwrap(), &detached).unwrap(), stored);
    }

    #[test]
    fn damaged_orders_are_refused(document in documents(), other in documents(), at: prop::sample::Index, byte: u8) {
        let stored = stored(&with_id(document).to_vec().unwrap());
        let mut damaged = stored.clone();
        let at = at.index(damaged.len());
        damaged[at] = byte;
        if raw::validate(&damaged).is_ok() && let Some(found) = raw::document(&damaged) {
            prop_assert_eq!(found.in_order().count(), found.len());
        }
        let detached = detach(raw::document(&stored).unwrap());
        let other = from_text(&self::stored(&with_id(other).to_vec().unwrap()));
        if let Ok(attached) = attach(raw::document(&other).unwrap(), &detached) {
            raw::validate(&attached).unwrap();
        }
        let mut damaged = detached;
        if !damaged.is_empty() {
            let at = at % damaged.len();
            damaged[at] = byte;
            if let Ok(attached) = attach(raw::document(&from_text(&stored)).unwrap(), &damaged) {
                raw::validate(&attached).unwrap();
            }
        }
    }

    #[test]
    fn any_bytes_are_attached_or_refused(document in documents(), bytes in prop::collection::vec(any::<u8>(), 0..40)) {
        let plain = from_text(&stored(&with_id(document).to_vec().unwrap()));
        if let Ok(attached) = attach(raw::document(&plain).unwrap(), &bytes) {
            raw::validate(&attached).unwrap();
        }
    }
}

#[test]
fn many_fields_come_back() {
    for count in [255, 256, 257, 70_000] {
        let mut document = doc! { "_id": 1 };
        document.extend((0..count).rev().map(|n| (format!("f{n}"), Bson::Int64(n))));
        let bytes = document.to_vec().unwrap();
        let stored = stored(&bytes);
        assert!(returned(&stored) == bytes, "{count}");
        let detached = detach(raw::document(&stored).unwrap());
        assert!(attach(raw::document(&from_text(&stored)).unwrap(), &detached).unwrap() == stored, "{count}");
    }
}

/// A field costs a byte, and an integer that is marked two and its alignment.
#[test]
fn the_order_is_short() {
    let size = |document: Document| {
        let stored = stored(&document.to_vec().unwrap());
        stored.len() - from_text(&stored).len()
    };
    assert_eq!(size(doc! { "_id": 1, "name": "x", "email": "y" }), 0, "that is the order of jsonb");
    assert_eq!(size(doc! { "_id": 1, "b": "x", "a": "y" }), 3);
    assert_eq!(size(doc! { "_id": 1, "b": { "y": "1", "x": "2" }, "a": "y" }), 7, "and alignment");
    assert_eq!(size(doc! { "_id": 1, "count": 5_i64 }), 2);
    assert_eq!(size(doc! { "_id": 1, "count": 5_i64 << 32 }), 0);
}

/// A projection includes fields in the document's order, and those of `$elemMatch` after them in its own.
#[test]
fn chosen_elements_come_last() {
    let stored = stored(&doc! { "_id": 1, "z": [1, 2], "b": 2, "a": [1, 2], "c": 3 }.to_vec().unwrap());
    let projected = |projection: Json| {
        let projection = Projection::parse_in(&projection, &Environment::default()).unwrap();
        let bytes = projection.apply(raw::document(&stored).unwrap()).unwrap();
        Document::from_reader(returned(&bytes).as_slice()).unwrap().keys().cloned().collect::<Vec<_>>().join(" ")
    };
    let element = json!({"$elemMatch": {"$gt": 1}});
    assert_eq!(projected(json!({"c": 1, "a": element, "z": element, "b": 1})), "_id b c a z");
    assert_eq!(projected(json!({"a": element, "c": 0})), "_id z b a");
}

#[test]
fn the_id_comes_first() {
    let bytes = |document: Document| document.to_vec().unwrap();
    assert_eq!(returned(&stored(&bytes(doc! { "b": 1, "_id": 2, "a": 3 }))), bytes(doc! { "_id": 2, "b": 1, "a": 3 }));
    let id = bson::oid::ObjectId::from_bytes([7; 12]);
    assert_eq!(returned(&stored(&bytes(doc! { "b": 1, "a": 3 }))), bytes(doc! { "_id": id, "b": 1, "a": 3 }));
}

#[test]
fn without_the_wish_no_order_is_kept() {
    let value = read::value(&doc! { "b": 1, "_id": 2, "a": { "d": 1, "c": 2 } }.to_vec().unwrap()).unwrap();
    let plain = write::value(&value).unwrap();
    assert!(detach(raw::document(&plain).unwrap()).is_empty());
    let kept = {
        let _keeping = Keeping::order();
        let _nothing = Keeping::order_only_if(false);
        write::value(&value).unwrap()
    };
    assert_eq!(kept, plain);
}

/// The document after an update by SQL, whose own values have no order.
fn updated(document: Document, update: &Json) -> Document {
    let stored = stored(&document.to_vec().unwrap());
    let update = Update::parse(update).unwrap();
    let after = update.apply(raw::document(&stored).unwrap(), &[]).unwrap().unwrap();
    raw::validate(&after).unwrap();
    Document::from_reader(returned(&after).as_slice()).unwrap()
}

#[test]
fn updates_by_sql_keep_what_clients_have_given() {
    let named = || doc! { "_id": 1, "name": { "y": 1, "x": 2, "z": 3 } };
    let name = |name: Document| doc! { "_id": 1, "name": name };
    for (update, expected) in [
        (json!({"$set": {"name.a": 4}}), doc! { "y": 1, "x": 2, "z": 3, "a": 4 }),
        (json!({"$unset": {"name.z": ""}}), doc! { "y": 1, "x": 2 }),
        (json!({"$rename": {"name.x": "name.a"}}), doc! { "y": 1, "z": 3, "a": 2 }),
        (json!({"$set": {"name.x": 5}}), doc! { "y": 1, "x": 5, "z": 3 }),
    ] {
        assert_eq!(updated(named(), &update).to_vec().unwrap(), name(expected).to_vec().unwrap(), "{update}");
    }
    let counted = || doc! { "_id": 1, "n": 5_i64, "o": { "n": 6_i64 }, "list": [7_i64, { "b": 1, "a": 2 }] };
    for (update, expected) in [
        (
            json!({"$inc": {"n": 1}}),
            doc! { "_id": 1, "n": 6_i64, "o": { "n": 6_i64 }, "list": [7_i64, { "b": 1, "a": 2 }] },
        ),
        (
            json!({"$mul": {"o.n": 2}}),
            doc! { "_id": 1, "n": 5_i64, "o": { "n": 12_i64 }, "list": [7_i64, { "b": 1, "a": 2 }] },
        ),
        (
            json!({"$bit": {"list.0": {"and": 3}}}),
            doc! { "_id": 1, "n": 5_i64, "o": { "n": 6_i64 }, "list": [3_i64, { "b": 1, "a": 2 }] },
        ),
        (
            json!({"$set": {"list.1.c": 1}}),
            doc! { "_id": 1, "n": 5_i64, "o": { "n": 6_i64 }, "list": [7_i64, { "b": 1, "a": 2, "c": 1 }] },
        ),
        (
            json!({"$inc": {"n": 0.5}}),
            doc! { "_id": 1, "n": 5.5, "o": { "n": 6_i64 }, "list": [7_i64, { "b": 1, "a": 2 }] },
        ),
    ] {
        let found = updated(counted(), &update);
        for (name, value) in &expected {
            assert_eq!(found.get(name), Some(value), "{update}: {found}");
        }
    }
}

#[test]
fn upserts_keep_the_longs_of_filters() {
    let _keeping = Keeping::order();
    let filter = json!({"_id": {"$numberLong": "5"}, "$and": [{"k": {"$eq": {"$numberLong": "6"}}}],
        "e": {"b": {"$numberLong": "7"}, "a": [{"$numberLong": "8"}, 9]}, "l": {"$gt": {"$numberLong": "1"}}});
    let filter = Filter::parse(&filter).unwrap();
    let made = |update: Update| Document::from_reader(returned(&update.upsert(&filter).unwrap()).as_slice()).unwrap();
    let expected = doc! { "_id": 5_i64, "e": { "b": 7_i64, "a": [8_i64, 9] }, "k": 6_i64, "z": 1 };
    let found = made(Update::parse(&json!({"$set": {"z": 1}})).unwrap());
    assert_eq!(found.get("_id"), expected.get("_id"));
    assert_eq!((found.get("e"), found.get("k")), (expected.get("e"), expected.get("k")));
    assert_eq!(made(Update::parse_replacement(&json!({"z": 1})).unwrap()), doc! { "_id": 5_i64, "z": 1 });
}

#[test]
fn a_filter_of_a_command_keeps_the_longs_that_an_upsert_stores() {
    let update = doc! { "update": "c", "updates": [{ "q": { "_id": 5_i64, "n": { "$gt": 6_i64 }, "$and": [{ "e": [7_i64] }] }, "u": { "$set": { "a": 1 } } }] };
    let json = read::parse(&update.to_vec().unwrap()).unwrap();
    let expected = json!({"_id": {"$numberLong": "5"}, "n": {"$gt": 6}, "$and": [{"e": [{"$numberLong": "7"}]}]});
    assert_eq!(json.pointer("/updates/0/q"), Some(&expected));
    let modify = doc! { "findAndModify": "c", "query": { "_id": 5_i64 }, "update": { "$set": { "a": 1 } } };
    let json = read::parse(&modify.to_vec().unwrap()).unwrap();
    assert_eq!(json.pointer("/query"), Some(&json!({"_id": {"$numberLong": "5"}})));
}

#[test]
fn a_scope_keeps_its_longs() {
    let _keeping = Keeping::order();
    let scope = json!({"a": {"$code": "f", "$scope": {"z": {"$numberLong": "1"}, "b": 2}}});
    let update = Update::parse_replacement(&scope).unwrap();
    let before = stored(&doc! { "_id": 1 }.to_vec().unwrap());
    let after = update.apply(raw::document(&before).unwrap(), &[]).unwrap().unwrap();
    let expected = bson::JavaScriptCodeWithScope { code: "f".to_owned(), scope: doc! { "z": 1_i64, "b": 2 } };
    assert_eq!(returned(&after), doc! { "_id": 1, "a": expected }.to_vec().unwrap());
}

#[test]
fn the_id_comes_first_after_a_pipeline() {
    let _keeping = Keeping::order();
    let before = stored(&doc! { "_id": 1, "y": 2 }.to_vec().unwrap());
    let update = Update::parse(&json!([{"$replaceWith": {"q": "$y", "_id": "$_id", "a": 1}}])).unwrap();
    let after = update.apply(raw::document(&before).unwrap(), &[]).unwrap().unwrap();
    assert_eq!(returned(&after), doc! { "_id": 1, "q": 2, "a": 1 }.to_vec().unwrap());
}

/// With a comparison of each name with each other, this took minutes.
#[test]
fn an_upsert_of_many_fields_ends() {
    let fields: serde_json::Map<String, Json> = (0..200_000).map(|n| (format!("f{n}"), json!(5))).collect();
    let filter = Filter::parse(&Json::Object(fields)).unwrap();
    let update = Update::parse(&json!({"$set": {"z": 1}})).unwrap();
    let made = update.upsert(&filter).unwrap();
    assert_eq!(raw::document(&made).unwrap().len(), 200_001);
}
