//! BSON is read as the Extended JSON text of the same document, and written so that it reads back.

mod common;

use bson::{Bson, DbPointer, Document, doc};
use common::bson_documents::documents;
use docshard_core::json;
use docshard_core::query::specification::{self, Role, read_bson};
use docshard_core::values::document::bson::read::{self, Failure};
use docshard_core::values::document::bson::write::{Item, Writer};
use docshard_core::values::document::value::Value;
use docshard_core::values::document::{ext_json, raw, write as jsonb};
use proptest::prelude::*;
use serde_json::json;

fn value_of(bytes: &[u8]) -> Value {
    ext_json::from_json(&read::parse(bytes).unwrap()).unwrap()
}

/// JSON does not say which integers have 64 bits.
fn shown(value: &Value) -> String {
    format!("{value:?}").replace(", Long)", ", BySize)")
}

fn bytes_of(value: &Value) -> Vec<u8> {
    let Value::Object(fields) = value else { panic!("{value:?} is no document") };
    let mut writer = Writer::new();
    for (name, value) in fields.iter() {
        writer.field(name, Item::Value(value)).unwrap();
    }
    writer.finish().unwrap()
}

/// JSON does not say which integers have 64 bits.
fn shorten(value: &mut Bson) {
    match value {
        Bson::Int64(long) => {
            if let Ok(int) = i32::try_from(*long) {
                *value = Bson::Int32(int);
            }
        }
        Bson::Array(items) => items.iter_mut().for_each(shorten),
        Bson::Document(fields) => fields.iter_mut().for_each(|(_, value)| shorten(value)),
        Bson::JavaScriptCodeWithScope(code) => code.scope.iter_mut().for_each(|(_, value)| shorten(value)),
        _ => {}
    }
}

proptest! {
    #[test]
    fn bson_is_read_as_extended_json(document in documents()) {
        let bytes = document.to_vec().unwrap();
        let text = Bson::Document(document).into_canonical_extjson().to_string();
        let expected = ext_json::from_json(&json::parse(&text).unwrap()).unwrap();
        prop_assert_eq!(shown(&value_of(&bytes)), shown(&expected));
    }

    #[test]
    fn values_are_read_as_their_json(document in documents()) {
        let bytes = document.to_vec().unwrap();
        prop_assert_eq!(shown(&read::value(&bytes).unwrap()), shown(&value_of(&bytes)));
    }

    #[test]
    fn what_is_read_is_written_again(document in documents()) {
        let written = bytes_of(&value_of(&document.to_vec().unwrap()));
        let mut expected = Bson::Document(document);
        shorten(&mut expected);
        let found = Bson::Document(Document::from_reader(written.as_slice()).unwrap());
        // As text, because NaN is not equal to itself.
        prop_assert_eq!(found.into_canonical_extjson().to_string(), expected.into_canonical_extjson().to_string());
    }

    #[test]
    fn stored_documents_are_written_as_their_values(document in documents()) {
        let value = value_of(&document.to_vec().unwrap());
        let stored = jsonb::value(&value).unwrap();
        let mut writer = Writer::new();
        for (name, value) in raw::document(&stored).unwrap().iter() {
            writer.field(name, Item::Stored(value)).unwrap();
        }
        let Value::Object(fields) = Value::from_raw(raw::root(&stored)) else { unreachable!() };
        prop_assert_eq!(writer.finish().unwrap(), bytes_of(&Value::Object(fields)));
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = read_bson(&bytes, Role::Request, None);
        let _ = read::first_name(&bytes);
        let mut framed = (bytes.len() as i32 + 5).to_le_bytes().to_vec();
        framed.extend(&bytes);
        framed.push(0);
        let _ = read_bson(&framed, Role::Request, None);
        let _ = read::value(&framed);
    }

    #[test]
    fn mutated_bytes_are_refused_or_read(document in documents(), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut bytes = document.to_vec().unwrap();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        let owned = read::value(&bytes);
        if let Ok((json, _)) = read_bson(&bytes, Role::Request, None)
            && let Ok(value) = ext_json::from_json(&json)
        {
            // A field that is given twice may be a condition.
            if let Ok(owned) = owned {
                prop_assert_eq!(shown(&owned), shown(&value));
            }
            let _ = Document::from_reader(bytes_of(&value).as_slice()).unwrap();
        }
    }
}

#[test]
fn a_db_pointer_is_read_and_written() {
    let json = json!({"p": {"$dbPointer": {"$ref": "db.c", "$id": {"$oid": "507f1f77bcf86cd799439011"}}}});
    let pointer: DbPointer = match Bson::try_from(json["p"].clone()).unwrap() {
        Bson::DbPointer(pointer) => pointer,
        other => panic!("{other:?}"),
    };
    let bytes = bson::doc! { "p": Bson::DbPointer(pointer) }.to_vec().unwrap();
    assert_eq!(read::parse(&bytes).unwrap(), json);
    assert_eq!(bytes_of(&value_of(&bytes)), bytes);
}

#[test]
fn what_is_no_document_is_refused() {
    let valid = bson::doc! { "a": "text" }.to_vec().unwrap();
    let refused = |bytes: &[u8]| match read::parse(bytes) {
        Err(Failure::Invalid(error)) => error.message.clone(),
        other => panic!("{bytes:?}: {other:?}"),
    };
    for length in 0..valid.len() {
        refused(&valid[..length]);
    }
    refused(&[valid.as_slice(), b"\0"].concat());
    // A boolean of 2, a string that is not UTF-8, an unknown type, a negative length.
    refused(b"\x09\0\0\0\x08a\0\x02\0");
    refused(b"\x0e\0\0\0\x02a\0\x02\0\0\0\xff\0\0");
    refused(b"\x08\0\0\0\x20a\0\0");
    refused(b"\xff\xff\xff\xff\0");
    // As JSON these would be other values.
    assert!(refused(&bson::doc! { "a": { "$oid": "507f1f77bcf86cd799439011" } }.to_vec().unwrap()).contains("$oid"));
    let nested =
        |levels: usize| (1..levels).fold(bson::doc! {}, |inner, _| bson::doc! { "a": inner }).to_vec().unwrap();
    assert!(read::parse(&nested(127)).is_ok());
    assert!(refused(&nested(128)).contains("nested"));
}

#[test]
fn a_condition_that_is_given_twice_counts_twice() {
    // {filter: {a: 1, a: 2}}
    let bytes = b"\x20\0\0\0\x03filter\0\x13\0\0\0\x10a\0\x01\0\0\0\x10a\0\x02\0\0\0\0\0";
    let (json, _) = read_bson(bytes, Role::Request, None).unwrap();
    let (expected, _) = specification::read(r#"{"filter": {"a": 1, "a": 2}}"#, Role::Request).unwrap();
    assert_eq!(json, expected);
}

#[test]
fn documents_can_be_left_as_bytes() {
    let documents = vec![bson::doc! { "a": 1 }, bson::doc! { "b": [2] }];
    let command = bson::doc! { "insert": "c", "documents": documents.clone(), "ordered": true }.to_vec().unwrap();
    let (json, left) = read_bson(&command, Role::Request, Some("documents")).unwrap();
    assert_eq!(json, json!({"insert": "c", "documents": [], "ordered": true}));
    let bytes: Vec<Vec<u8>> = documents.iter().map(|document| document.to_vec().unwrap()).collect();
    assert_eq!(left.unwrap(), bytes);
    // Only an array whose elements all are documents.
    for other in [bson::doc! { "documents": [{}, 1] }, bson::doc! { "documents": { "0": {} } }, bson::doc! {}] {
        let bytes = other.to_vec().unwrap();
        let (json, left) = read_bson(&bytes, Role::Request, Some("documents")).unwrap();
        assert_eq!((json, left), (read::parse(&bytes).unwrap(), None));
    }
}

#[test]
fn a_name_comes_once_in_an_owned_document() {
    for count in [1, 20] {
        let mut document: bson::Document = (0..count).map(|n| (format!("f{n:02}"), bson::Bson::Null)).collect();
        assert!(read::value(&document.to_vec().unwrap()).is_ok());
        document.insert("f0x", bson::Bson::Null);
        let mut bytes = document.to_vec().unwrap();
        let at = bytes.windows(3).position(|name| name == b"f0x").unwrap();
        bytes[at + 2] = b'0';
        assert_eq!(read::value(&bytes).unwrap_err().kind.code(), 40413);
    }
}

/// A command's 64-bit integers that fit 32 bits are marked where the type makes a difference, and nowhere else.
#[test]
fn longs_of_a_command_are_marked_in_expressions_and_stored_values() {
    let expression = || doc! { "$add": ["$a", 1_i64] };
    let marked = json!({"$add": ["$a", {"$numberLong": "1"}]});
    let command = doc! {
        "find": "c",
        "filter": { "a": 1_i64, "$or": [{ "b": { "$gt": 1_i64 } }, { "$expr": expression() }] },
        "projection": { "a": expression(), "b": { "$slice": [1_i64, 1_i64] }, "c": { "$elemMatch": { "d": { "$size": 1_i64 } } } },
        "query": { "a": 1_i64, "$nor": [{ "a": 1_i64, "$expr": expression() }] },
        "deletes": [{ "q": { "a": 1_i64, "$expr": expression() }, "limit": 1_i64 }],
        "limit": 1_i64,
    };
    let bytes = command.to_vec().unwrap();
    let (json, _) = read_bson(&bytes, Role::Request, None).unwrap();
    let expected = json!({
        "find": "c",
        "filter": {"a": 1, "$or": [{"b": {"$gt": 1}}, {"$expr": marked}]},
        "projection": {"a": marked, "b": {"$slice": [1, 1]}, "c": {"$elemMatch": {"d": {"$size": 1}}}},
        "query": {"a": {"$numberLong": "1"}, "$nor": [{"a": 1, "$expr": marked}]},
        "deletes": [{"q": {"a": 1, "$expr": marked}, "limit": 1}],
        "limit": 1,
    });
    assert_eq!(json, expected);
}

/// What is stored has no operators, whatever its names are: all its 64-bit integers are marked, and a name that would make a value of another
/// type is refused.
#[test]
fn stored_values_have_no_operators() {
    let names = || doc! { "x": 1_i64, "$x": 1_i64, "$sort": { "$slice": [1_i64], "$position": { "y": 1_i64 } } };
    let one = json!({"$numberLong": "1"});
    let marked = || json!({"x": one, "$x": one, "$sort": {"$slice": [one], "$position": {"y": one}}});
    let reference = || doc! { "$ref": "c", "$id": 1_i64 };
    let updates = |q: bson::Document, u: bson::Document| doc! { "update": "c", "updates": [{ "q": q, "u": u }] };
    let cases = [
        (updates(doc! {}, names()), json!({"q": {}, "u": marked()})),
        (updates(doc! {}, doc! { "$set": names() }), json!({"q": {}, "u": {"$set": marked()}})),
        (
            updates(doc! {}, doc! { "$push": { "a": names(), "b": { "$each": [names()], "$position": 1_i64 } } }),
            json!({"q": {}, "u": {"$push": {"a": marked(), "b": {"$each": [marked()], "$position": 1}}}}),
        ),
        (
            updates(
                doc! { "a": names(), "b": { "$eq": names() }, "$and": [{ "c": [names()] }, { "$or": [{ "d": reference() }] }, { "e": { "$in": [names()] } }] },
                doc! {},
            ),
            json!({"q": {"a": marked(), "b": {"$eq": marked()}, "$and": [{"c": [marked()]}, {"$or": [{"d": {"$ref": "c", "$id": one}}]}, {"e": {"$in": [marked()]}}]}, "u": {}}),
        ),
    ];
    for (command, expected) in cases {
        let (json, _) = read_bson(&command.to_vec().unwrap(), Role::Request, None).unwrap();
        assert_eq!(json["updates"][0], expected, "{command}");
    }
    let literal = doc! { "pipeline": [{ "$set": { "a": { "$literal": names() } } }] };
    let (json, _) = read_bson(&literal.to_vec().unwrap(), Role::Request, None).unwrap();
    assert_eq!(json["pipeline"][0]["$set"]["a"]["$literal"], marked());

    let pattern = || doc! { "xx": 1, "$x": { "$regex": "a" } };
    for refused in [
        updates(doc! {}, pattern()),
        updates(doc! {}, doc! { "$set": { "a": pattern() } }),
        updates(doc! { "a": pattern() }, doc! {}),
        updates(doc! { "a": { "$eq": pattern() } }, doc! {}),
        updates(doc! { "$or": [{ "a": { "$in": [pattern()] } }] }, doc! {}),
    ] {
        assert!(read_bson(&refused.to_vec().unwrap(), Role::Request, None).is_err(), "{refused}");
    }
    let regex = || doc! { "$regex": "a" };
    let search = updates(
        doc! { "a": regex(), "b": { "$not": regex() }, "$or": [{ "c": regex() }, { "d": { "$elemMatch": regex() } }] },
        doc! {},
    );
    assert!(read_bson(&search.to_vec().unwrap(), Role::Request, None).is_ok());
}
