//! jsonb's bytes: they are written as by PostgreSQL, values read back as they were written, and no bytes cause a panic.

mod values;

use docshard_core::error::Kind;
use docshard_core::values::document::element::Element;
use docshard_core::values::document::nested::Nested;
use docshard_core::values::document::normalise::{check_stored, for_insert, with_times};
use docshard_core::values::document::number::Number;
use docshard_core::values::document::raw::{self, RawValue};
use docshard_core::values::document::value::Value;
use docshard_core::values::document::write::{self, Part};
use docshard_core::values::document::{MAX_DEPTH, MAX_DOCUMENT_BYTES, MAX_RECURSION, ext_json};
use proptest::prelude::*;
use serde_json::{Value as Json, json};
use std::borrow::Cow;

const ID: [u8; 12] = [7; 12];

fn jsonb(json: &Json) -> Vec<u8> {
    plain(json, &mut |part| write::document(part).expect("writable"))
}

/// Writes JSON as jsonb without normalisation: objects of extended types stay objects.
fn plain(json: &Json, write: &mut dyn FnMut(&Part<'_>) -> Vec<u8>) -> Vec<u8> {
    fn part(json: &Json) -> Part<'_> {
        match json {
            Json::Object(fields) => {
                Part::Object(fields.iter().map(|(name, value)| (Cow::Borrowed(name.as_str()), part(value))).collect())
            }
            Json::Array(items) => Part::Array(items.iter().map(part).collect()),
            scalar => Part::Owned(ext_json::from_json(scalar).expect("a scalar")),
        }
    }
    write(&part(json))
}

fn inserted(json: &Json) -> docshard_core::error::Result<Json> {
    let bytes = jsonb(json);
    let stored = for_insert(raw::document(&bytes).expect("an object"), || ID)?;
    check_stored(&stored.bytes).expect("what is stored is in its stored form");
    Ok(ext_json::to_json(&Value::from_raw(raw::root(&stored.bytes))))
}

#[test]
fn empty_timestamps_at_the_root_become_times() {
    let empty = json!({"$timestamp": {"t": 0, "i": 0}});
    let timed = |of: &Json| {
        let (bytes, mut ordinal) = (jsonb(of), 0);
        let now = || {
            ordinal += 1;
            (9, ordinal)
        };
        let found = with_times(raw::document(&bytes).expect("an object"), now).expect("small");
        found.map(|found| ext_json::to_json(&Value::from_raw(raw::root(&found))))
    };
    let of = json!({"_id": empty, "a": empty, "b": {"c": empty}, "d": [empty], "e": empty, "f": {"$timestamp": {"t": 0, "i": 1}}});
    let mut wanted = of.clone();
    (wanted["a"], wanted["e"]) = (json!({"$timestamp": {"t": 9, "i": 1}}), json!({"$timestamp": {"t": 9, "i": 2}}));
    assert_eq!(timed(&of), Some(wanted));
    assert_eq!(timed(&json!({"_id": empty, "a": {"b": empty}, "c": {"$ref": "x", "$id": 1}})), None);
}

#[test]
fn postgresql_writes_the_same_bytes() {
    // Little-endian bytes, as PostgreSQL 15 stored them.
    if cfg!(target_endian = "big") {
        return;
    }
    let fixtures = include_str!("data/postgresql_jsonb.tsv");
    assert!(fixtures.lines().count() > 80);
    for line in fixtures.lines() {
        let (text, hex) = line.split_once('\t').expect("two columns");
        let digits: Vec<u32> = hex.chars().map(|digit| digit.to_digit(16).expect("hexadecimal")).collect();
        let bytes: Vec<u8> = digits.chunks(2).map(|pair| (pair[0] * 16 + pair[1]) as u8).collect();
        let value = ext_json::from_json(&serde_json::from_str(text).expect("JSON")).expect("well-formed");
        raw::validate(&bytes).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(write::value(&value).expect("writable"), bytes, "{text}");
        assert_eq!(format!("{:?}", Value::from_raw(raw::root(&bytes))), format!("{:?}", sorted(value)), "{text}");
    }
}

/// The value as jsonb stores it: fields sorted.
fn sorted(value: Value) -> Value {
    let sort = |fields: Vec<(String, Value)>| {
        let mut fields: Vec<_> = fields.into_iter().map(|(name, value)| (name, sorted(value))).collect();
        fields.sort_by(|a, b| (a.0.len(), &a.0).cmp(&(b.0.len(), &b.0)));
        fields
    };
    match value {
        Value::Object(fields) => Value::object(sort(fields.into_vec())).unwrap(),
        Value::CodeWithScope(code, scope) => {
            Value::CodeWithScope(code, Box::new(Nested::new(sort(scope.into_vec())).unwrap()))
        }
        Value::Array(items) => Value::array(items.into_iter().map(sorted).collect()).unwrap(),
        value => value,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn what_is_written_reads_back(value in values::value(false)) {
        let bytes = write::value(&value).unwrap();
        raw::validate(&bytes).unwrap();
        let back = Value::from_raw(raw::root(&bytes));
        prop_assert_eq!(format!("{:?}", &back), format!("{:?}", sorted(value)));
        prop_assert_eq!(write::document(&Part::Raw(raw::root(&bytes))).unwrap(), bytes);
    }

    #[test]
    fn every_field_and_element_is_found(names in proptest::collection::hash_set("[a-c]{0,6}", 0..90)) {
        let names: Vec<String> = names.into_iter().collect();
        let fields = names.iter().enumerate().map(|(index, name)| (name.clone(), Value::Number(Number::int(index as i64))));
        let bytes = write::value(&Value::object(fields.collect()).unwrap()).unwrap();
        let object = raw::document(&bytes).unwrap();
        prop_assert_eq!(object.len(), names.len());
        for (index, name) in names.iter().enumerate() {
            let Some(RawValue::Number(number)) = object.get(name) else { panic!("{name} is missing") };
            prop_assert_eq!(number.as_i64(), Some(index as i64));
        }
        prop_assert!(object.get("d").is_none() && object.get("aaaaaaa").is_none());

        let bytes = write::value(&Value::array(names.iter().cloned().map(Value::String).collect()).unwrap()).unwrap();
        let RawValue::Array(array) = raw::root(&bytes) else { panic!("no array") };
        for (index, name) in names.iter().enumerate() {
            prop_assert!(matches!(array.get(index), Some(RawValue::String(text)) if text == name));
        }
        prop_assert!(array.get(names.len()).is_none());
    }

    #[test]
    fn extended_json_reads_back(value in values::value(false)) {
        let json = ext_json::to_json(&value);
        let text = json.to_string();
        let back = ext_json::from_json(&serde_json::from_str(&text).unwrap()).unwrap();
        prop_assert_eq!(format!("{:?}", back), format!("{:?}", value));
    }

    #[test]
    fn a_stored_document_is_stored_as_it_is(document in values::document(), id in -3..3i64) {
        let Value::Object(fields) = document else { panic!("no object") };
        let mut fields = fields.into_vec();
        fields.push(("_id".to_owned(), Value::Number(Number::int(id))));
        let bytes = write::value(&Value::object(fields).unwrap()).unwrap();
        let stored = for_insert(raw::document(&bytes).unwrap(), || ID).unwrap();
        prop_assert!(matches!(stored.bytes, Cow::Borrowed(_)));
        prop_assert!(!stored.generated_id);
        check_stored(&bytes).unwrap();
    }

    #[test]
    fn damaged_bytes_are_harmless(
        value in values::value(false),
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in any::<prop::sample::Index>(),
        name in values::string(false),
    ) {
        let mut bytes = write::value(&value).unwrap();
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let keep = cut.index(2 * bytes.len()).max(1).min(bytes.len());
        for bytes in [&bytes[..], &bytes[..keep], &bytes[bytes.len() - keep..]] {
            let valid = raw::validate(bytes).is_ok();
            let root = raw::root(bytes);
            let copy = Value::from_raw(root);
            let _ = ext_json::to_json(&copy);
            if let RawValue::Object(object) = root {
                let _ = object.get(&name);
                let _ = for_insert(object, || ID);
            }
            let _ = check_stored(bytes);
            if valid {
                raw::validate(&write::document(&Part::Raw(root)).unwrap()).unwrap();
            }
        }
    }

    #[test]
    fn a_numeric_is_read_as_the_nearest_double(digits in "[0-9]{1,40}", point in 0..40usize) {
        // Doubles of all lengths, and integers beyond 64 bits, go through the writer; here through PostgreSQL's digits.
        let double: f64 = format!("{digits}e-{point}").parse().unwrap();
        let bytes = write::value(&Value::Number(Number::Double(double))).unwrap();
        let RawValue::Number(number) = raw::root(&bytes) else { panic!("no number") };
        prop_assert_eq!(number.to_f64().to_bits(), double.to_bits());
        prop_assert!(matches!(number.to_number(), Number::Double(_)));
    }
}

#[test]
fn any_double_reads_back() {
    let mut bits = 0x9E37_79B9_7F4A_7C15u64;
    for _ in 0..20_000 {
        bits = bits.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let double = f64::from_bits(bits ^ bits >> 31);
        if double.is_finite() {
            let bytes = write::value(&Value::Number(Number::Double(double))).unwrap();
            let RawValue::Number(number) = raw::root(&bytes) else { panic!("no number") };
            assert_eq!(number.to_f64(), double);
            raw::validate(&bytes).unwrap();
        }
    }
}

#[test]
fn every_form_of_extended_json_is_stored_relaxed() {
    for (sent, stored) in [
        (json!({"$numberInt": "5"}), json!(5)),
        (json!({"$numberLong": "-5"}), json!(-5)),
        (json!({"$numberDouble": "5"}), json!(5.0)),
        (json!({"$numberDouble": "-0.5e1"}), json!(-5.0)),
        (json!({"$numberDouble": "Infinity"}), json!({"$numberDouble": "Infinity"})),
        (json!({"$numberDecimal": "1.50"}), json!({"$numberDecimal": "1.50"})),
        (json!({"$numberDecimal": "1e3"}), json!({"$numberDecimal": "1E+3"})),
        (json!({"$oid": "0123456789ABCDEF01234567"}), json!({"$oid": "0123456789abcdef01234567"})),
        (json!({"$date": 1238569200123i64}), json!({"$date": "2009-04-01T07:00:00.123Z"})),
        (json!({"$date": "2009-04-01T00:00:00.000-0700"}), json!({"$date": "2009-04-01T07:00:00Z"})),
        (json!({"$date": {"$numberLong": "0"}}), json!({"$date": "1970-01-01T00:00:00Z"})),
        (json!({"$date": {"$numberLong": "-1"}}), json!({"$date": {"$numberLong": "-1"}})),
        (json!({"$date": "1969-12-31T23:59:59.999Z"}), json!({"$date": {"$numberLong": "-1"}})),
        (json!({"$binary": "AQI=", "$type": "00"}), json!({"$binary": {"base64": "AQI=", "subType": "00"}})),
        (json!({"$binary": {"subType": "5", "base64": ""}}), json!({"$binary": {"base64": "", "subType": "05"}})),
        (
            json!({"$uuid": "00112233-4455-6677-8899-aabbccddeeff"}),
            json!({"$binary": {"base64": "ABEiM0RVZneImaq7zN3u/w==", "subType": "04"}}),
        ),
        (json!({"$options": "mi", "$regex": "^a"}), json!({"$regularExpression": {"pattern": "^a", "options": "im"}})),
        (
            json!({"$regularExpression": {"options": "xi", "pattern": ""}}),
            json!({"$regularExpression": {"pattern": "", "options": "ix"}}),
        ),
        (json!({"$timestamp": {"i": 2, "t": 1}}), json!({"$timestamp": {"t": 1, "i": 2}})),
        (json!({"$code": "f()", "$scope": {"a": {"$numberLong": "1"}}}), json!({"$code": "f()", "$scope": {"a": 1}})),
        (
            json!({"$dbPointer": {"$ref": "a.b", "$id": {"$oid": "0123456789ABCDEF01234567"}}}),
            json!({"$dbPointer": {"$ref": "a.b", "$id": {"$oid": "0123456789abcdef01234567"}}}),
        ),
        (json!({"$symbol": "s"}), json!({"$symbol": "s"})),
        (json!({"$undefined": true}), json!({"$undefined": true})),
        (json!({"$minKey": 1}), json!({"$minKey": 1})),
        (json!({"$ref": "c", "$id": {"$numberLong": "1"}, "x": 1}), json!({"$ref": "c", "$id": 1, "x": 1})),
        (json!([{"b": [{"$numberLong": "1"}]}, 2]), json!([{"b": [1]}, 2])),
    ] {
        assert_eq!(
            inserted(&json!({"_id": 1, "v": sent, "w": "x"})).unwrap(),
            json!({"_id": 1, "v": stored, "w": "x"})
        );
        if !sent.as_object().is_some_and(|object| object.contains_key("$ref")) {
            assert_eq!(ext_json::to_json(&ext_json::from_json(&sent).unwrap()), stored, "{sent}");
        }
    }
}

#[test]
fn malformed_extended_json_is_refused() {
    for sent in [
        json!({"$oid": "xyz"}),
        json!({"$oid": 5}),
        json!({"$oid": "0123456789abcdef01234567", "a": 1}),
        json!({"$numberInt": "5.5"}),
        json!({"$numberInt": "2147483648"}),
        json!({"$numberInt": 5}),
        json!({"$numberLong": "9223372036854775808"}),
        json!({"$numberDouble": "inf"}),
        json!({"$numberDecimal": "1.2.3"}),
        json!({"$date": "yesterday"}),
        json!({"$date": 1.5}),
        json!({"$binary": {"base64": "?", "subType": "00"}}),
        json!({"$binary": {"base64": "", "subType": "000"}}),
        json!({"$timestamp": {"t": -1, "i": 0}}),
        json!({"$timestamp": {"t": 1}}),
        json!({"$regularExpression": {"pattern": "a"}}),
        json!({"$regex": "a", "$options": 1}),
        json!({"$uuid": "0"}),
        json!({"$minKey": 2}),
        json!({"$undefined": false}),
        json!({"$code": 1}),
        json!({"$dbPointer": {"$ref": "a", "$id": 1}}),
    ] {
        assert_eq!(ext_json::from_json(&sent).unwrap_err().kind, Kind::FailedToParse, "{sent}");
        assert_eq!(inserted(&json!({"v": sent})).unwrap_err().kind, Kind::FailedToParse, "{sent}");
        // In stored data the same bytes are an ordinary object.
        let bytes = jsonb(&sent);
        assert!(matches!(Element::of(raw::root(&bytes)), Element::Object(_)), "{sent}");
    }
}

/// Each line of the file is a value that the specification does not allow, with the rule that it breaks.
#[test]
fn a_corpus_of_malformed_values_is_refused() {
    let mut accepted = Vec::new();
    let lines = include_str!("data/malformed_ext_json.jsonl").lines();
    let mut values = std::collections::HashSet::new();
    for line in lines {
        let case: Json = serde_json::from_str(line).expect("JSON");
        let malformed = &case["value"];
        // The same at any position.
        for document in [
            json!({"_id": 1, "a": malformed}),
            json!({"_id": 1, "a": [malformed]}),
            json!({"_id": 1, "a": {"b": malformed}}),
            json!({"_id": malformed}),
        ] {
            match inserted(&document) {
                Ok(_) => accepted.push(format!("{}: {document}", case["rule"])),
                Err(error) => {
                    let kinds = [Kind::FailedToParse, Kind::DollarPrefixedFieldName, Kind::BadValue];
                    assert!(kinds.contains(&error.kind), "{error:?} for {document}");
                }
            }
        }
        assert!(values.insert(malformed.to_string()), "{malformed} is there twice");
    }
    assert!(values.len() >= 180, "only {} values", values.len());
    assert!(accepted.is_empty(), "{} are accepted:\n{}", accepted.len(), accepted.join("\n"));
}

#[test]
fn names_that_start_with_a_dollar_are_stored() {
    for sent in [
        json!({"a.b": 1, "": 2, "a$": 3}),
        json!({"$a": 1}),
        json!({"$": {"$$": 1}}),
        json!({"a": {"$b": 1}}),
        json!({"a": [{"b": 1, "$c": {"$oid": "0123456789abcdef01234567"}}]}),
        json!({"$ref": "c", "$id": 1}),
        json!({"a": {"$ref": "c", "$id": 1, "$x": 1}}),
        json!({"a": {"$id": 1}}),
        json!({"a": {"$set": {"$scope": {}}, "$options": "i", "$type": "00", "$uid": 1}}),
        json!({"_id": {"a": {"$b": 1}}, "b": {"_id": {"$b": 1}}}),
        json!({"_id": {"$ref": "c", "$id": 1, "$db": "d", "x": 2}}),
    ] {
        let mut wanted = sent.clone();
        if wanted.get("_id").is_none() {
            wanted["_id"] = json!({"$oid": "070707070707070707070707"});
        }
        assert_eq!(inserted(&sent).unwrap(), wanted, "{sent}");
    }
    // Values inside are converted, as elsewhere.
    let stored = inserted(&json!({"_id": 1, "$a": {"$b": {"$numberInt": "5"}}})).unwrap();
    assert_eq!(stored, json!({"_id": 1, "$a": {"$b": 5}}));
}

#[test]
fn reserved_names_and_names_in_ids_are_refused() {
    for (sent, name) in [
        (json!({"$oid": "0123456789abcdef01234567"}), "$oid"),
        (json!({"$date": 1, "a": 1}), "$date"),
        (json!({"$regex": "a"}), "$regex"),
        (json!({"a": {"$regex": 1}}), "$regex"),
        (json!({"a": {"$code": "x", "$scope": {"$minKey": 1}}}), "$minKey"),
        (json!({"_id": {"$b": 1}}), "$b"),
        (json!({"_id": {"a": 1, "$b": 1}}), "$b"),
        (json!({"_id": {"$id": 1}}), "$id"),
        (json!({"_id": {"$ref": "c", "$id": 1, "$x": 1}}), "$x"),
    ] {
        let error = inserted(&sent).unwrap_err();
        assert_eq!(error.kind, Kind::DollarPrefixedFieldName, "{sent}");
        assert!(error.message.contains(name) || sent["_id"]["$ref"].is_string(), "{sent}: {}", error.message);
    }
}

#[test]
fn ids() {
    let generated = inserted(&json!({"a": 1})).unwrap();
    assert_eq!(generated, json!({"_id": {"$oid": "070707070707070707070707"}, "a": 1}));
    for id in [json!([1]), json!({"$regex": "a"}), json!({"$undefined": true})] {
        assert_eq!(inserted(&json!({"_id": id})).unwrap_err().kind, Kind::InvalidIdField, "{id}");
    }
    for id in [json!(null), json!({"a": [1]}), json!(1.5), json!({"$minKey": 1})] {
        assert!(inserted(&json!({"_id": id})).is_ok(), "{id}");
    }
}

/// A numeric from its base-10000 digits, such as no double is written as.
fn numeric_document(scale: u16, weight: u16, digits: &[u16]) -> Vec<u8> {
    let mut bytes = write::value(&Value::object(vec![("a".to_owned(), Value::Null)]).unwrap()).unwrap();
    let size = 6 + 2 * digits.len();
    let entry = 0x1000_0000u32 | (3 + size as u32);
    bytes[8..12].copy_from_slice(&entry.to_ne_bytes());
    bytes.extend([0; 3]);
    let header = if cfg!(target_endian = "little") { (size as u32) << 2 } else { size as u32 };
    bytes.extend(header.to_ne_bytes());
    bytes.extend((0x8000 | scale << 7 | weight).to_ne_bytes());
    bytes.extend(digits.iter().flat_map(|digit| digit.to_ne_bytes()));
    raw::validate(&bytes).expect("a valid number");
    bytes
}

#[test]
fn numbers_are_stored_as_doubles_read_them() {
    let number = |bytes: &[u8]| match raw::document(bytes).and_then(|document| document.get("a")) {
        Some(RawValue::Number(number)) => (number.to_number(), number.scale()),
        other => panic!("no number: {other:?}"),
    };
    let stored = |bytes: &[u8]| for_insert(raw::document(bytes).unwrap(), || ID).unwrap().bytes.into_owned();

    // 9223372036854775808 does not fit a long; 1.2345678901234567890 has more digits than a double.
    let large = numeric_document(0, 4, &[922, 3372, 368, 5477, 5808]);
    assert!(matches!(number(&large), (Number::Double(value), 0) if value == 9_223_372_036_854_775_808.0));
    assert!(matches!(number(&stored(&large)), (Number::Double(value), 1) if value == 9_223_372_036_854_775_808.0));
    let long = numeric_document(19, 0, &[1, 2345, 6789, 123, 4567, 8900]);
    assert!(matches!(number(&stored(&long)), (Number::Double(value), 16) if value == 1.234_567_890_123_456_8));
    assert_eq!(check_stored(&large).unwrap_err().kind, Kind::BadValue);

    // 5.00 and 1.50 stay as they are.
    for (scale, digits) in [(2, &[5][..]), (2, &[1, 5000])] {
        let bytes = numeric_document(scale, 0, digits);
        assert_eq!(number(&stored(&bytes)).1, u32::from(scale));
        check_stored(&bytes).unwrap();
    }
}

#[test]
fn a_number_beyond_every_double_is_refused() {
    let mut bytes = numeric_document(0, 63, &[1]);
    check_stored(&bytes).unwrap_err();
    // The same in the long form, with a weight of 100: 1e400.
    let start = bytes.len() - 8;
    bytes.truncate(start);
    let size = 10u32;
    bytes[8..12].copy_from_slice(&(0x1000_0000u32 | (3 + size)).to_ne_bytes());
    bytes.extend((if cfg!(target_endian = "little") { size << 2 } else { size }).to_ne_bytes());
    bytes.extend([0u16, 100, 1].iter().flat_map(|word| word.to_ne_bytes()));
    raw::validate(&bytes).unwrap();
    let error = for_insert(raw::document(&bytes).unwrap(), || ID).unwrap_err();
    assert_eq!(error.kind, Kind::BadValue);
}

#[test]
fn depth_is_limited() {
    let nested = |levels: usize| {
        let object = |fields| Value::object(fields).unwrap();
        (1..levels).fold(object(vec![]), |inner, _| object(vec![("a".to_owned(), inner)]))
    };
    let bytes = write::value(&nested(MAX_DEPTH)).unwrap();
    assert!(for_insert(raw::document(&bytes).unwrap(), || ID).is_ok());
    assert_eq!(write::value(&nested(MAX_DEPTH + 1)).unwrap_err().kind, Kind::DocumentTooDeep);
    let wrapped = Part::Array(vec![Part::Raw(raw::root(&bytes))]);
    assert_eq!(write::document(&wrapped).unwrap_err().kind, Kind::DocumentTooDeep);

    // Arrays of one array each have the fewest bytes for their depth.
    let arrays = |levels: usize| {
        let array = |items| Value::array(items).unwrap();
        write::value(&(1..levels).fold(array(vec![]), |inner, _| array(vec![inner]))).unwrap()
    };
    for levels in [1, 2, MAX_DEPTH - 1, MAX_DEPTH] {
        let bytes = arrays(levels);
        assert!(raw::nests_within(&bytes, levels) && !raw::nests_within(&bytes, levels - 1), "{levels}");
        let written = write::document(&Part::Array(vec![Part::Raw(raw::root(&bytes))]));
        assert_eq!(written.is_ok(), levels < MAX_DEPTH, "{levels}");
    }

    // A value of an extended type at the deepest level counts as a value.
    let mut deepest = Value::Date(-1);
    for _ in 0..MAX_DEPTH {
        deepest = Value::object(vec![("a".to_owned(), deepest)]).unwrap();
    }
    let bytes = write::value(&deepest).unwrap();
    assert!(matches!(for_insert(raw::document(&bytes).unwrap(), || ID), Ok(stored) if stored.generated_id));

    // Deeper bytes, which are never written here, cause no panic.
    let mut deep = 0x4000_0000u32.to_ne_bytes().to_vec();
    for _ in 0..100_000 {
        let mut outer = 0x4000_0001u32.to_ne_bytes().to_vec();
        outer.extend((0xD000_0000u32 | deep.len() as u32).to_ne_bytes());
        deep.splice(0..0, outer);
        if deep.len() > 40_000 {
            break;
        }
    }
    assert!(raw::validate(&deep).is_err());
    assert!(!raw::nests_within(&deep, MAX_RECURSION));
    let value = Value::from_raw(raw::root(&deep));
    assert!(value == Value::from_raw(raw::root(&deep)));
    assert_eq!(check_stored(&deep).unwrap_err().kind, Kind::TypeMismatch);
}

#[test]
fn size_is_limited() {
    let large = |length: usize| Value::object(vec![("a".to_owned(), Value::String("x".repeat(length)))]).unwrap();
    assert_eq!(write::value(&large(MAX_DOCUMENT_BYTES)).unwrap_err().kind, Kind::BSONObjectTooLarge);
    let bytes = write::value(&large(MAX_DOCUMENT_BYTES - 100)).unwrap();
    assert!(for_insert(raw::document(&bytes).unwrap(), || ID).is_ok());
}

#[test]
fn nul_cannot_be_stored() {
    for value in [json!({"a": "\u{0}"}), json!({"\u{0}": 1})] {
        assert_eq!(write::value(&ext_json::from_json(&value).unwrap()).unwrap_err().kind, Kind::BadValue);
    }
}

#[test]
fn of_equal_names_the_last_wins() {
    let part = Part::Object(vec![
        (Cow::Borrowed("a"), Part::Owned(Value::Bool(false))),
        (Cow::Borrowed("b"), Part::Owned(Value::Null)),
        (Cow::Borrowed("a"), Part::Owned(Value::Bool(true))),
    ]);
    let bytes = write::document(&part).unwrap();
    raw::validate(&bytes).unwrap();
    assert!(matches!(raw::document(&bytes).unwrap().get("a"), Some(RawValue::Bool(true))));
    assert_eq!(raw::document(&bytes).unwrap().len(), 2);
}

#[test]
fn values_say_their_type() {
    let names: Vec<&str> = [
        json!({"$minKey": 1}),
        json!(null),
        json!(1),
        json!(1i64 << 40),
        json!(1.5),
        json!({"$numberDecimal": "1"}),
        json!("a"),
        json!({}),
        json!([]),
        json!({"$oid": "0123456789abcdef01234567"}),
        json!(true),
    ]
    .iter()
    .map(|json| ext_json::from_json(json).unwrap().type_name())
    .collect();
    let expected =
        ["minKey", "null", "int", "long", "double", "decimal", "string", "object", "array", "objectId", "bool"];
    assert_eq!(names, expected);
}

proptest! {
    /// For any values beside the changed ones, and any number of fields (every 32nd entry is of another kind).
    #[test]
    fn an_edited_object_is_written_as_a_new_one(
        values in proptest::collection::vec(values::value(false), 1..90),
        others in proptest::collection::vec((0..90usize, values::value(false)), 1..5),
        within in any::<bool>(),
    ) {
        // Keys of one length in order, so that a field's position is its number.
        let name = |position: usize| format!("field{position:02}");
        let mut fields: Vec<_> = values.into_iter().enumerate().map(|(at, value)| (name(at), value)).collect();
        let before = write::document(&Part::Owned(Value::object(fields.clone()).unwrap())).expect("writable");
        let object = raw::document(&before).expect("an object");
        let mut edits = std::collections::BTreeMap::new();
        for (at, value) in others {
            let at = at % fields.len();
            fields[at].1 = value.clone();
            edits.insert(at, Part::Owned(value));
        }
        let edited = Part::Edited(object, edits.into_iter().collect());
        let new = Part::Owned(Value::object(fields).unwrap());
        let around = |part| if within { Part::Array(vec![Part::Owned(Value::String("a".to_owned())), part]) } else { part };
        let bytes = write::document(&around(edited)).expect("writable");
        raw::validate(&bytes).expect("well-formed");
        prop_assert_eq!(bytes, write::document(&around(new)).expect("writable"));
    }
}
