//! Random documents of all types of BSON.

use bson::spec::BinarySubtype;
use bson::{Binary, Bson, Decimal128, Document, JavaScriptCodeWithScope, Regex, Timestamp};
use proptest::prelude::*;

fn scalar() -> impl Strategy<Value = Bson> {
    prop_oneof![
        any::<f64>().prop_map(Bson::Double),
        prop_oneof![Just(0.0), Just(-0.0), Just(5.0), Just(f64::NAN), Just(f64::INFINITY)].prop_map(Bson::Double),
        "[a-zäß€😀 \"\\\\]{0,12}".prop_map(Bson::String),
        (any::<u8>(), prop::collection::vec(any::<u8>(), 0..20))
            .prop_map(|(subtype, bytes)| Bson::Binary(Binary { subtype: BinarySubtype::from(subtype), bytes })),
        Just(Bson::Undefined),
        any::<[u8; 12]>().prop_map(|id| Bson::ObjectId(id.into())),
        any::<bool>().prop_map(Bson::Boolean),
        any::<i64>().prop_map(|millis| Bson::DateTime(bson::DateTime::from_millis(millis))),
        (-100_000_000_000_000i64..400_000_000_000_000)
            .prop_map(|millis| Bson::DateTime(bson::DateTime::from_millis(millis))),
        Just(Bson::Null),
        ("[a-z^$.*]{0,8}", "i?m?s?x?").prop_map(|(pattern, options)| Bson::RegularExpression(Regex {
            pattern: pattern.try_into().unwrap(),
            options: options.try_into().unwrap(),
        })),
        "[a-z(){}]{0,8}".prop_map(Bson::JavaScriptCode),
        "[a-z]{0,8}".prop_map(Bson::Symbol),
        any::<i32>().prop_map(Bson::Int32),
        any::<i64>().prop_map(Bson::Int64),
        (any::<u32>(), any::<u32>()).prop_map(|(time, increment)| Bson::Timestamp(Timestamp { time, increment })),
        decimal(),
        Just(Bson::MinKey),
        Just(Bson::MaxKey),
    ]
}

fn decimal() -> impl Strategy<Value = Bson> {
    let number = ("-?[1-9][0-9]{0,33}", -6176i32..=6111).prop_map(|(digits, exponent)| format!("{digits}E{exponent}"));
    prop_oneof![number, Just("NaN".to_owned()), Just("-Infinity".to_owned()), Just("0.00".to_owned())]
        .prop_map(|text| Bson::Decimal128(text.parse::<Decimal128>().unwrap()))
}

/// Random documents.
pub fn documents() -> impl Strategy<Value = Document> {
    documents_of("[a-zé.]{0,6}".boxed())
}

/// Random documents with names that start with `$`. Some of the names are those of Extended JSON.
pub fn documents_with_dollars() -> impl Strategy<Value = Document> {
    const PARTS: &[&str] =
        &["$options", "$scope", "$type", "$ref", "$id", "$db", "$set", "$eq", "$", "$$", "$a.b", "base64"];
    const RESERVED: &[&str] = &["$date", "$oid", "$regex", "$code", "$binary", "$numberLong", "$minKey", "$dbPointer"];
    let name = prop_oneof![
        20 => "[a-zé.]{1,6}",
        20 => "[$][a-zé.]{0,6}",
        10 => prop::sample::select(PARTS).prop_map(str::to_owned),
        1 => prop::sample::select(RESERVED).prop_map(str::to_owned),
    ];
    documents_of(name.boxed())
}

fn documents_of(name: BoxedStrategy<String>) -> impl Strategy<Value = Document> {
    let inner_name = name.clone();
    let value = scalar().prop_recursive(5, 40, 6, move |inner| {
        let fields = prop::collection::vec((inner_name.clone(), inner.clone()), 0..6);
        prop_oneof![
            prop::collection::vec(inner, 0..6).prop_map(Bson::Array),
            fields.clone().prop_map(|fields| Bson::Document(fields.into_iter().collect())),
            ("[a-z]{0,5}", fields).prop_map(|(code, scope)| {
                let scope = scope.into_iter().collect();
                Bson::JavaScriptCodeWithScope(JavaScriptCodeWithScope { code, scope })
            }),
        ]
    });
    prop::collection::vec((name, value), 0..6).prop_map(|fields| fields.into_iter().collect())
}
