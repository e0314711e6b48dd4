//! JSON from a fuzzer's bytes: well-formed in form, made of the names and values that parsers look for.

use docshard_core::query::vocabulary;
use serde_json::{Map, Value as Json, json};
use std::sync::LazyLock;

/// Paths, and names that no table of the language has.
const OWN_NAMES: &[&str] = &[
    "a",
    "b",
    "0",
    "1",
    "a.b",
    "a.0",
    "a.b.c",
    "",
    ".",
    "a.",
    "a..b",
    "$",
    "a.$",
    "a.$[]",
    "a.$[x]",
    "a.$[x].b",
    "x",
    "x.b",
    "_id",
    "_id.a",
    "and",
    "or",
    "xor",
    "base64",
    "subType",
    "t",
    "i",
    "pattern",
    "options",
    "newRoot",
    "input",
    "as",
    "in",
    "vars",
    "bsonType",
    "properties",
    "required",
    "items",
    "minimum",
    "maxLength",
    "enum",
    "not",
    "anyOf",
    "if",
    "then",
    "else",
    "\u{0}",
    "ä",
];

/// Names that mean something somewhere.
static NAMES: LazyLock<Vec<&str>> = LazyLock::new(|| OWN_NAMES.iter().copied().chain(vocabulary::names()).collect());

const TEXTS: &[&str] = &[
    "",
    "a",
    "b",
    "$a",
    "$$ROOT",
    "$$NOW",
    "$$x",
    "$a.b",
    "$a.",
    "$",
    "int",
    "string",
    "number",
    "double",
    "object",
    "1",
    "-1",
    "1.5",
    "1e3",
    "NaN",
    "Infinity",
    "-Infinity",
    "9223372036854775807",
    "1E6144",
    "0.1",
    "AA==",
    "00",
    "0123456789abcdef01234567",
    "2020-01-01T00:00:00Z",
    "2020-02-30T00:00:00Z",
    "^a",
    "(a+)+$",
    "[",
    "(?<x>a)\\k<x>",
    "a{1,1000}",
    "i",
    "imsx",
    "00112233-4455-6677-8899-aabbccddeeff",
    "hashed",
    "date",
    "timestamp",
    "\u{0}",
    "ä",
];

/// A fuzzer's bytes, taken from the front; zero when they are used up.
pub struct Source<'a>(pub &'a [u8]);

impl Source<'_> {
    fn byte(&mut self) -> usize {
        match self.0.split_first() {
            Some((first, rest)) => {
                self.0 = rest;
                usize::from(*first)
            }
            None => 0,
        }
    }

    fn number(&mut self) -> Json {
        match self.byte() % 8 {
            0..3 => json!(self.byte() as i64 - 4),
            3 => json!(i64::MAX - self.byte() as i64),
            4 => json!(i64::MIN + self.byte() as i64),
            5 => json!(self.byte() as f64 / 4.0),
            6 => json!(f64::from_bits(u64::from_ne_bytes(std::array::from_fn(|_| self.byte() as u8)))),
            _ => json!(i32::MAX as i64 + self.byte() as i64 - 4),
        }
    }

    /// A name.
    pub fn name(&mut self) -> String {
        NAMES[(self.byte() << 8 | self.byte()) % NAMES.len()].to_owned()
    }

    /// Any JSON, nested at most so deep.
    pub fn json(&mut self, depth: usize) -> Json {
        match self.byte() % if depth == 0 { 8 } else { 16 } {
            0 => Json::Null,
            1 => json!(self.byte() < 128),
            2..5 => self.number(),
            5..8 => json!(TEXTS[self.byte() % TEXTS.len()]),
            8..11 => (0..self.byte() % 4).map(|_| self.json(depth - 1)).collect(),
            11 => self.extended(),
            _ => self.object(depth),
        }
    }

    /// An object.
    pub fn object(&mut self, depth: usize) -> Json {
        let fields: Map<String, Json> =
            (0..self.byte() % 4).map(|_| (self.name(), self.json(depth.saturating_sub(1)))).collect();
        Json::Object(fields)
    }

    /// A document that can be stored, more often than not.
    pub fn document(&mut self) -> Json {
        let mut fields = Map::new();
        fields.insert("_id".to_owned(), json!(self.byte()));
        for name in ["a", "b", "0"] {
            if self.byte() < 170 {
                fields.insert(name.to_owned(), self.stored(3));
            }
        }
        Json::Object(fields)
    }

    fn stored(&mut self, depth: usize) -> Json {
        match self.byte() % if depth == 0 { 6 } else { 10 } {
            0 => Json::Null,
            1 => json!(self.byte() < 128),
            2 | 3 => self.number(),
            4 => Json::from(["", "a", "b", "ab", "ä"][self.byte() % 5]),
            5 => self.extended(),
            6 | 7 => (0..self.byte() % 4).map(|_| self.stored(depth - 1)).collect(),
            _ => {
                let names = ["a", "b", "0", "1", "c"];
                Json::Object(
                    (0..self.byte() % 4).map(|_| (names[self.byte() % 5].to_owned(), self.stored(depth - 1))).collect(),
                )
            }
        }
    }

    fn extended(&mut self) -> Json {
        match self.byte() % 10 {
            0 => json!({"$oid": "0123456789abcdef01234567"}),
            1 => {
                json!({"$date": {"$numberLong": (self.byte() as i64 * 86_400_000_123 - 9_000_000_000_000).to_string()}})
            }
            2 => json!({"$numberDecimal": format!("{}E{}", self.byte(), self.byte() as i64 - 128)}),
            3 => json!({"$numberDouble": (["NaN", "Infinity", "-Infinity"][self.byte() % 3])}),
            4 => json!({"$binary": {"base64": "AAEC", "subType": format!("{:02x}", self.byte())}}),
            5 => json!({"$timestamp": {"t": self.byte(), "i": self.byte()}}),
            6 => json!({"$regularExpression": {"pattern": (TEXTS[self.byte() % TEXTS.len()]), "options": "i"}}),
            7 => json!({"$minKey": 1}),
            8 => json!({"$maxKey": 1}),
            _ => json!({"$undefined": true}),
        }
    }
}
