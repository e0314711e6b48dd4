//! Writes jsonb's on-disk form as text, byte for byte as PostgreSQL's `jsonb_out` does.

use super::MAX_RECURSION;
use super::raw::{
    COUNT_MASK, Children, ENTRY_CONTAINER, ENTRY_FALSE, ENTRY_NULL, ENTRY_NUMERIC, ENTRY_STRING, ENTRY_TRUE,
    ENTRY_TYPE_MASK, FLAG_ARRAY, FLAG_OBJECT, FLAG_SCALAR, RawNumeric, align, varlena_body,
};

/// Appends a jsonb value as text. The bytes are those after its varlena header.
///
/// None if they are damaged, or nest deeper than [`MAX_RECURSION`]; then the appended text is incomplete.
pub fn print(bytes: &[u8], out: &mut Vec<u8>) -> Option<()> {
    container(bytes, MAX_RECURSION, out)
}

fn container(bytes: &[u8], depth: usize, out: &mut Vec<u8>) -> Option<()> {
    let header = u32::from_ne_bytes(*bytes.first_chunk::<4>()?);
    let count = (header & COUNT_MASK) as usize;
    let depth = depth.checked_sub(1)?;
    match header & !COUNT_MASK {
        FLAG_OBJECT => {
            let children = Children::of(bytes, 2);
            let (mut name_at, mut value_at) = (0, children.start(count));
            out.push(b'{');
            for index in 0..count {
                if index > 0 {
                    out.extend_from_slice(b", ");
                }
                let name_end = children.end(index, name_at);
                string(children.data.get(name_at..name_end)?, out)?;
                name_at = name_end;
                out.extend_from_slice(b": ");
                value_at = child(&children, count + index, value_at, depth, out)?;
            }
            out.push(b'}');
        }
        FLAG_ARRAY => {
            let children = Children::of(bytes, 1);
            let mut start = 0;
            out.push(b'[');
            for index in 0..count {
                if index > 0 {
                    out.extend_from_slice(b", ");
                }
                start = child(&children, index, start, depth, out)?;
            }
            out.push(b']');
        }
        flags if flags == FLAG_ARRAY | FLAG_SCALAR => {
            child(&Children::of(bytes, 1), 0, 0, depth, out)?;
        }
        _ => return None,
    }
    Some(())
}

/// Appends a child that starts at `start`, and returns its end.
fn child(children: &Children<'_>, index: usize, start: usize, depth: usize, out: &mut Vec<u8>) -> Option<usize> {
    let entry = u32::from_ne_bytes(*children.entries.get(index)?);
    let end = children.end(index, start);
    match entry & ENTRY_TYPE_MASK {
        ENTRY_STRING => string(children.data.get(start..end)?, out)?,
        ENTRY_NUMERIC => {
            let body = varlena_body(children.data.get(align(start)..end)?)?;
            RawNumeric(body).print(out)?;
        }
        ENTRY_FALSE => out.extend_from_slice(b"false"),
        ENTRY_TRUE => out.extend_from_slice(b"true"),
        ENTRY_NULL => out.extend_from_slice(b"null"),
        ENTRY_CONTAINER => container(children.data.get(align(start)..end)?, depth, out)?,
        _ => return None,
    }
    Some(end)
}

/// Appends a string in quotes. Most strings need no escapes, so eight bytes at a time are tested for that first; serde_json, which
/// escapes as PostgreSQL does, writes the others.
fn string(text: &[u8], out: &mut Vec<u8>) -> Option<()> {
    let (words, rest) = text.as_chunks::<8>();
    if words.iter().all(|word| is_plain(*word)) && rest.iter().all(|byte| !matches!(byte, ..b' ' | b'"' | b'\\')) {
        out.push(b'"');
        out.extend_from_slice(text);
        out.push(b'"');
        return Some(());
    }
    serde_json::to_writer(out, std::str::from_utf8(text).ok()?).ok()
}

/// True if none of the bytes needs an escape.
fn is_plain(word: [u8; 8]) -> bool {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    const TOPS: u64 = u64::from_ne_bytes([0x80; 8]);
    let word = u64::from_ne_bytes(word);
    // True if any byte is less than `n`, which is at most 128. The result does not tell which byte it is.
    let any_below = |word: u64, n: u8| word.wrapping_sub(ONES * u64::from(n)) & !word & TOPS != 0;
    let any_is = |byte: u8| any_below(word ^ (ONES * u64::from(byte)), 1);
    !(any_below(word, b' ') || any_is(b'"') || any_is(b'\\'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::document::{ext_json, write};
    use proptest::prelude::*;
    use serde_json::{Value as Json, json};

    fn stored(json: &Json) -> Vec<u8> {
        write::value(&ext_json::from_json(json).unwrap()).unwrap()
    }

    fn printed(bytes: &[u8]) -> Option<String> {
        let mut out = Vec::new();
        print(bytes, &mut out).map(|()| String::from_utf8(out).unwrap())
    }

    #[test]
    fn all_kinds_of_values() {
        for (json, text) in [
            (json!({}), "{}"),
            (json!([]), "[]"),
            (json!(null), "null"),
            (json!("x"), "\"x\""),
            (json!(-12), "-12"),
            (json!({"b": [1, true, [], {}], "a": null, "long": {"x": false}}), {
                r#"{"a": null, "b": [1, true, [], {}], "long": {"x": false}}"#
            }),
            (json!([0, 7, 9999, 10000, -10_001, 120_000, i64::MIN]), {
                "[0, 7, 9999, 10000, -10001, 120000, -9223372036854775808]"
            }),
            (json!([0.5, 1.0, -0.25, 1e-7, 1e20, 123_456.062_5]), {
                "[0.5, 1.0, -0.25, 0.0000001, 100000000000000000000.0, 123456.0625]"
            }),
            (json!("\u{8}\u{c}\n\r\t\"\\\u{1}\u{1f}\u{7f}/é\u{2028}"), {
                "\"\\b\\f\\n\\r\\t\\\"\\\\\\u0001\\u001f\u{7f}/é\u{2028}\""
            }),
        ] {
            assert_eq!(printed(&stored(&json)).as_deref(), Some(text));
        }
    }

    #[test]
    fn characters_are_escaped_at_every_position() {
        for at in 0..20 {
            for byte in 0..=0x7Fu8 {
                let mut text = [b'a'; 20];
                text[at] = byte;
                let mut out = Vec::new();
                string(&text, &mut out).unwrap();
                assert_eq!(out, serde_json::to_vec(std::str::from_utf8(&text).unwrap()).unwrap(), "{byte} at {at}");
            }
        }
    }

    fn value() -> impl Strategy<Value = Json> {
        let leaf = prop_oneof![
            Just(Json::Null),
            any::<bool>().prop_map(Json::from),
            any::<i64>().prop_map(Json::from),
            "[^\u{0}]{0,12}".prop_map(Json::from),
        ];
        leaf.prop_recursive(4, 100, 40, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..40).prop_map(Json::from),
                proptest::collection::btree_map("[a-z]{1,3}", inner, 0..40)
                    .prop_map(|fields| Json::Object(fields.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn the_text_is_the_value(json in value()) {
            let text = printed(&stored(&json)).unwrap();
            prop_assert_eq!(serde_json::from_str::<Json>(&text).unwrap(), json);
        }

        #[test]
        fn damage_is_no_panic(json in value(), at: proptest::sample::Index, other: u8, cut: proptest::sample::Index) {
            let mut bytes = stored(&json);
            let length = bytes.len();
            let _ = print(&bytes[..cut.index(length)], &mut Vec::new());
            bytes[at.index(length)] = other;
            let _ = print(&bytes, &mut Vec::new());
        }
    }
}
