//! Random values of all types that are close to each other: equal across types, or adjacent.
#![allow(dead_code)] // every test file is a crate of its own and uses its part

use docshard_core::values::document::nested::Nested;
use docshard_core::values::document::number::{Decimal, Number};
use docshard_core::values::document::value::Value;
use proptest::prelude::*;
use proptest::sample::select;

/// Numbers of all types around the same few values.
pub fn number() -> impl Strategy<Value = Number> + Clone {
    let integers = prop_oneof![
        4 => -3..=3i64,
        2 => (0..63u32, -2..=2i64).prop_map(|(shift, offset)| (1i64 << shift).wrapping_add(offset)),
        1 => (0..63u32, -2..=2i64).prop_map(|(shift, offset)| (-1i64 << shift).wrapping_add(offset)),
        1 => any::<i64>(),
    ];
    let doubles = prop_oneof![
        3 => integers.clone().prop_map(|integer| integer as f64),
        2 => integers.clone().prop_map(|integer| integer as f64 / 10.0),
        1 => any::<f64>(),
        1 => select(vec![
            0.0, -0.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, f64::MAX, f64::MIN, f64::MIN_POSITIVE, 5e-324, -5e-324, 0.1,
            1e15, 1e16, 1e17, 1e300, 1e-300,
        ]),
    ];
    let decimals = prop_oneof![
        3 => (integers.clone(), -3..=3i32).prop_map(|(integer, exponent)| format!("{integer}E{exponent}")),
        2 => doubles.clone().prop_filter("finite", |double| double.is_finite()).prop_map(|double| format!("{double:e}")),
        1 => (integers.clone(), -6170..=6080i32).prop_map(|(integer, exponent)| format!("{integer}E{exponent}")),
        1 => select(vec!["NaN", "Infinity", "-Infinity", "0E+10", "2.00", "9.999999999999999999999999999999999E6144"])
            .prop_map(str::to_owned),
    ];
    prop_oneof![
        integers.prop_map(Number::int),
        doubles.prop_map(Number::Double),
        decimals.prop_map(|text| Number::Decimal(Decimal::parse(&text).expect("a decimal128"))),
    ]
}

/// Short strings over few characters; with NUL, which only a key's encoding can hold, if `nul`.
pub fn string(nul: bool) -> impl Strategy<Value = String> + Clone {
    let characters = if nul { "[\0\u{1}\u{2}ab]{0,4}" } else { "[\u{1}\u{2}abé€😀]{0,4}" };
    characters.prop_map(|text| text)
}

fn fields(
    values: impl Strategy<Value = Value> + Clone,
    nul: bool,
) -> impl Strategy<Value = Vec<(String, Value)>> + Clone {
    proptest::collection::vec((string(nul), values), 0..4).prop_map(|mut fields| {
        fields.sort_by(|a, b| (a.0.len(), &a.0).cmp(&(b.0.len(), &b.0)));
        fields.dedup_by(|a, b| a.0 == b.0);
        fields
    })
}

/// Values of every type; objects' fields in jsonb's order.
pub fn value(nul: bool) -> impl Strategy<Value = Value> + Clone {
    let id = select(vec![[0u8; 12], [1; 12], [0xFF; 12]]);
    let small = 0..3u32;
    let scalars = prop_oneof![
        1 => select(vec![Value::MinKey, Value::Undefined, Value::Null, Value::MaxKey]),
        3 => number().prop_map(Value::Number),
        3 => string(nul).prop_map(Value::String),
        1 => string(nul).prop_map(Value::Symbol),
        1 => (0..3u8, proptest::collection::vec(0..3u8, 0..4)).prop_map(|(kind, bytes)| Value::Binary(kind, bytes)),
        1 => id.clone().prop_map(Value::ObjectId),
        1 => any::<bool>().prop_map(Value::Bool),
        1 => prop_oneof![-2..3i64, any::<i64>(), 0..253_402_300_800_000i64].prop_map(Value::Date),
        1 => (small.clone(), prop_oneof![small, any::<u32>()]).prop_map(|(t, i)| Value::Timestamp(t, i)),
        1 => (string(nul), select(vec!["", "i", "im"])).prop_map(|(pattern, o)| Value::Regex(pattern, o.to_owned())),
        1 => (string(nul), id).prop_map(|(namespace, id)| Value::DbPointer(namespace, id)),
        1 => string(nul).prop_map(Value::Code),
    ];
    scalars.prop_recursive(3, 24, 4, move |inner| {
        prop_oneof![
            fields(inner.clone(), nul).prop_map(Value::fixed_object),
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::fixed_array),
            (string(nul), fields(inner, nul)).prop_map(|(code, scope)| {
                Value::CodeWithScope(code, Box::new(Nested::new(scope).expect("not deep")))
            }),
        ]
    })
}

/// A document with fields of every type.
pub fn document() -> impl Strategy<Value = Value> + Clone {
    fields(value(false), false).prop_map(Value::fixed_object)
}
