//! A document that a client of MongoDB's protocol stores comes back byte for byte.

mod common;

use bson::{Bson, Document, doc};
use common::bson_documents::documents;
use docshard_core::values::document::bson::read;
use docshard_core::values::document::bson::write::{Item, Writer};
use docshard_core::values::document::detached::{attach, detach};
use docshard_core::values::document::field_order::Keeping;
use docshard_core::values::document::raw;
use docshard_core::values::document::value::Value;
use docshard_core::values::document::{ext_json, normalise, print, write};
use docshard_core::values::order;
use proptest::prelude::*;

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
