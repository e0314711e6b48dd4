//! MongoDB's hash of hashed indexes, which `$toHashedIndexKey` returns, for comparison with MongoDB. docshard's own keys are hashed by
//! [`encode`](super::encode).
//!
//! The hash is the first half of the MD5 of a seed, the value's class in MongoDB's order of types and the value's bytes in BSON.
//! Numbers are hashed as 64-bit integers without their fractions, documents and arrays as their values with names.

use crate::budget;
use crate::values::document::number::Number;
use crate::values::document::value::Value;
use md5::{Digest, Md5};

/// The number of hashed bytes that count as a step.
const BYTES_A_STEP: usize = 64;

/// The hash of a value.
pub fn hash(value: &Value) -> i64 {
    let mut md5 = Md5::new();
    md5.update(0_i32.to_le_bytes());
    add(&mut md5, value, None);
    let digest: [u8; 16] = md5.finalize().into();
    let [a, b, c, d, e, f, g, h, ..] = digest;
    i64::from_le_bytes([a, b, c, d, e, f, g, h])
}

/// The class of a value's type.
fn class(value: &Value) -> i32 {
    match value {
        Value::MinKey => -1,
        Value::Undefined => 0,
        Value::Null => 5,
        Value::Number(_) => 10,
        Value::String(_) | Value::Symbol(_) => 15,
        Value::Object(_) => 20,
        Value::Array(_) => 25,
        Value::Binary(..) => 30,
        Value::ObjectId(_) => 35,
        Value::Bool(_) => 40,
        Value::Date(_) => 45,
        Value::Timestamp(..) => 47,
        Value::Regex(..) => 50,
        Value::DbPointer(..) => 55,
        Value::Code(_) => 60,
        Value::CodeWithScope(..) => 65,
        Value::MaxKey => 127,
    }
}

/// Adds a value, with its name if it is a field or an element.
fn add(md5: &mut Md5, value: &Value, name: Option<&str>) {
    budget::step();
    md5.update(class(value).to_le_bytes());
    if let Some(name) = name {
        add_terminated(md5, name);
    }
    match value {
        Value::MinKey | Value::MaxKey | Value::Undefined | Value::Null => {}
        Value::Number(number) => md5.update(integer(number).to_le_bytes()),
        Value::String(text) | Value::Symbol(text) | Value::Code(text) => add_string(md5, text),
        Value::Object(fields) => add_fields(md5, fields.iter().map(|(name, value)| (name.as_str(), value))),
        Value::Array(items) => {
            let names: Vec<String> = (0..items.len()).map(|index| index.to_string()).collect();
            add_fields(md5, names.iter().map(String::as_str).zip(items));
        }
        Value::Binary(subtype, bytes) => {
            md5.update(length(bytes.len()).to_le_bytes());
            md5.update([*subtype]);
            add_bytes(md5, bytes);
        }
        Value::ObjectId(id) => md5.update(id),
        Value::Bool(value) => md5.update([u8::from(*value)]),
        Value::Date(millis) => md5.update(millis.to_le_bytes()),
        Value::Timestamp(seconds, increment) => {
            md5.update(increment.to_le_bytes());
            md5.update(seconds.to_le_bytes());
        }
        Value::Regex(pattern, options) => {
            add_terminated(md5, pattern);
            add_terminated(md5, options);
        }
        Value::DbPointer(namespace, id) => {
            add_string(md5, namespace);
            md5.update(id);
        }
        Value::CodeWithScope(code, scope) => {
            add_terminated(md5, code);
            add_fields(md5, scope.iter().map(|(name, value)| (name.as_str(), value)));
        }
    }
}

fn add_fields<'a>(md5: &mut Md5, fields: impl Iterator<Item = (&'a str, &'a Value)>) {
    for (name, value) in fields {
        add(md5, value, Some(name));
    }
    // The end of a document counts as a value without name and bytes.
    md5.update(0_i32.to_le_bytes());
}

fn add_string(md5: &mut Md5, text: &str) {
    md5.update(length(text.len() + 1).to_le_bytes());
    add_terminated(md5, text);
}

/// Adds bytes, which may be many, and checks for interrupts.
fn add_bytes(md5: &mut Md5, bytes: &[u8]) {
    for part in bytes.chunks(BYTES_A_STEP * budget::INTERVAL) {
        budget::steps(1 + part.len() / BYTES_A_STEP);
        md5.update(part);
    }
}

fn add_terminated(md5: &mut Md5, text: &str) {
    add_bytes(md5, text.as_bytes());
    md5.update([0]);
}

/// A length in BSON has 32 bits, which no document exceeds.
fn length(bytes: usize) -> i32 {
    i32::try_from(bytes).unwrap_or(i32::MAX)
}

fn integer(number: &Number) -> i64 {
    match number {
        // MongoDB keeps the result of an old conversion, for existing indexes.
        Number::Double(value) if *value == 9_223_372_036_854_775_808.0 => i64::MIN,
        _ => number.to_i64_truncated(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::document::ext_json;
    use serde_json::json;

    #[test]
    fn values_hash_as_in_mongodb() {
        let fields = json!({"a": "abc", "b": 123});
        for (json, expected) in [
            (json!(42), -944_302_157_085_130_861),
            (json!(42.123), -944_302_157_085_130_861),
            (json!({"$numberDecimal": "42.9"}), -944_302_157_085_130_861),
            (json!(0), 4_854_801_880_128_277_513),
            (json!({"$numberDouble": "NaN"}), 4_854_801_880_128_277_513),
            (json!(1), 5_902_408_780_260_971_510),
            (json!(-1.789), 1_140_205_862_565_771_219),
            (json!(i64::MAX), 921_523_596_458_303_250),
            (json!(f64::MAX), 921_523_596_458_303_250),
            (json!(i64::MIN), 4_532_067_210_535_695_462),
            (json!(-f64::MAX), 4_532_067_210_535_695_462),
            (json!(9_223_372_036_854_775_808.0_f64), 4_532_067_210_535_695_462),
            (json!({"$minKey": 1}), 7_961_148_599_568_647_290),
            (json!({"$maxKey": 1}), 5_504_842_513_779_440_750),
            (json!({"$undefined": true}), 40_158_834_000_849_533),
            (json!(null), 2_338_878_944_348_059_895),
            (json!("abc"), 8_478_485_326_885_698_097),
            (json!("string to hash"), 763_543_691_661_428_748),
            (json!({"$symbol": "abc"}), 8_478_485_326_885_698_097),
            (json!(""), 2_049_396_243_249_673_340),
            (fields, 4_771_603_801_758_380_216),
            (json!({}), 7_980_500_913_326_740_417),
            (json!(["bar", "baz", "qux"]), -2_938_911_267_422_831_539),
            (json!([]), 8_849_948_234_993_459_283),
            (json!({"$binary": {"base64": "AAECAwQG", "subType": "00"}}), 7_252_465_090_394_235_301),
            (json!({"$binary": {"base64": "AAECAwQG", "subType": "80"}}), 5_736_670_452_907_618_262),
            (json!({"$oid": "010203040506070809101112"}), -5_588_663_249_627_035_708),
            (json!(true), 6_405_873_908_747_105_701),
            (json!(false), 6_289_544_573_401_934_092),
            (json!({"$date": 0}), -1_178_696_894_582_842_035),
            (json!({"$regularExpression": {"pattern": ".*", "options": "i"}}), 7_095_855_029_187_981_886),
            (
                json!({"$dbPointer": {"$ref": "db.c", "$id": {"$oid": "010203040506070809101112"}}}),
                2_426_768_198_104_018_194,
            ),
            (json!({"$code": "func f() { return 1; }"}), 6_861_638_109_178_014_270),
            (json!({"$code": "func f() { return 1; }", "$scope": {"c": true}}), 501_342_939_894_575_968),
        ] {
            assert_eq!(hash(&ext_json::from_json(&json).unwrap()), expected, "{json}");
        }
    }
}
