//! `$jsonSchema`: MongoDB's dialect of JSON Schema, draft 4, with `bsonType` and without references and formats.
//!
//! A keyword for one type accepts all values of other types.

use super::side::Side;
use super::types::Types;
use crate::budget;
use crate::error::{Error, Kind, Result, bail, ensure, error};
use crate::query::regex::Pattern;
use crate::values::document::element::Element;
use crate::values::document::ext_json;
use crate::values::document::number::{self, Decimal, Number};
use crate::values::document::raw::{RawArray, RawObject, RawValue};
use crate::values::document::value::Value;
use crate::values::order::{compare_elements, compare_raw, compare_values};
use crate::values::path;
use bigdecimal::Zero;
use serde_json::{Map, Value as Json};
use std::collections::HashSet;
use std::ops::RangeInclusive;

/// A parsed schema: every rule must hold.
#[derive(Debug, Default)]
pub(super) struct Schema {
    rules: Vec<Rule>,
}

/// The rule of one keyword, or of several that belong together.
#[derive(Debug)]
enum Rule {
    Types(Types),
    /// Sorted.
    Enum(Vec<Value>),
    All(Vec<Schema>),
    Any(Vec<Schema>),
    One(Vec<Schema>),
    Not(Schema),
    Bound(Side, Number),
    MultipleOf(Number),
    Length(RangeInclusive<usize>),
    Pattern(Pattern),
    /// Binary data that a client has encrypted.
    Encrypted,
    Count(RangeInclusive<usize>),
    /// A schema for each of the first elements, and for the others.
    Items(Vec<Schema>, Additional),
    Unique,
    Fields(RangeInclusive<usize>),
    Required(Vec<String>),
    Properties(Properties),
    Dependencies(Vec<(String, Dependency)>),
}

/// `properties`, `patternProperties` and `additionalProperties`.
#[derive(Debug)]
struct Properties {
    /// Sorted by name.
    named: Vec<(String, Schema)>,
    patterns: Vec<(Pattern, Schema)>,
    others: Additional,
}

/// What is allowed for elements and fields without a schema of their own.
#[derive(Debug)]
enum Additional {
    Anything,
    Nothing,
    Matching(Box<Schema>),
}

#[derive(Debug)]
enum Dependency {
    Fields(Vec<String>),
    Schema(Schema),
}

/// The types of JSON Schema. MongoDB's aliases are the same, except `bool` for `boolean`.
const JSON_TYPES: [&str; 6] = ["array", "boolean", "null", "number", "object", "string"];

/// A keyword and the function that parses its rule. The function returns None if the keyword has no effect, or if the rule of another
/// keyword includes it.
type Keyword = (&'static str, fn(&Keywords<'_>, &'static str) -> Result<Option<Rule>>);

const KEYWORDS: &[Keyword] = &[
    ("title", |keywords, name| keywords.text(name).map(|_| None)),
    ("description", |keywords, name| keywords.text(name).map(|_| None)),
    ("type", |keywords, name| {
        if keywords.fields.contains_key("bsonType") {
            bail!(Kind::FailedToParse, "Cannot specify both $jsonSchema keywords 'type' and 'bsonType'");
        }
        Ok(Some(Rule::Types(keywords.types(name, true)?)))
    }),
    ("bsonType", |keywords, name| Ok(Some(Rule::Types(keywords.types(name, false)?)))),
    ("enum", |keywords, name| {
        let mut values = keywords.array(name)?.iter().map(ext_json::from_json).collect::<Result<Vec<_>>>()?;
        ensure!(!values.is_empty(), Kind::FailedToParse, "$jsonSchema keyword 'enum' cannot be an empty array");
        values.sort_by(|a, b| {
            budget::step();
            compare_values(a, b)
        });
        if values.windows(2).any(|pair| compare_values(&pair[0], &pair[1]).is_eq()) {
            bail!(Kind::FailedToParse, "$jsonSchema keyword 'enum' array cannot contain duplicate values.");
        }
        Ok(Some(Rule::Enum(values)))
    }),
    ("allOf", |keywords, name| Ok(Some(Rule::All(keywords.schemas(name)?)))),
    ("anyOf", |keywords, name| Ok(Some(Rule::Any(keywords.schemas(name)?)))),
    ("oneOf", |keywords, name| Ok(Some(Rule::One(keywords.schemas(name)?)))),
    ("not", |keywords, name| Ok(Some(Rule::Not(keywords.nested(name, &keywords.fields[name])?)))),
    ("minimum", |keywords, name| {
        let side = if keywords.is_set("exclusiveMinimum")? { Side::Greater } else { Side::GreaterOrEqual };
        Ok(Some(Rule::Bound(side, keywords.number(name)?)))
    }),
    ("exclusiveMinimum", |keywords, name| keywords.check_beside(name, "minimum").map(|()| None)),
    ("maximum", |keywords, name| {
        let side = if keywords.is_set("exclusiveMaximum")? { Side::Less } else { Side::LessOrEqual };
        Ok(Some(Rule::Bound(side, keywords.number(name)?)))
    }),
    ("exclusiveMaximum", |keywords, name| keywords.check_beside(name, "maximum").map(|()| None)),
    ("multipleOf", |keywords, name| {
        let divisor = keywords.number(name)?;
        if !number::compare(&divisor, &Number::int(0)).is_gt() {
            bail!(Kind::FailedToParse, "$jsonSchema keyword 'multipleOf' must have a positive value");
        }
        Ok(Some(Rule::MultipleOf(divisor)))
    }),
    ("minLength", |keywords, name| Ok(Some(Rule::Length(keywords.count(name)?..=usize::MAX)))),
    ("maxLength", |keywords, name| Ok(Some(Rule::Length(0..=keywords.count(name)?)))),
    ("pattern", |keywords, name| Ok(Some(Rule::Pattern(Pattern::new(keywords.text(name)?, "")?)))),
    ("minItems", |keywords, name| Ok(Some(Rule::Count(keywords.count(name)?..=usize::MAX)))),
    ("maxItems", |keywords, name| Ok(Some(Rule::Count(0..=keywords.count(name)?)))),
    ("uniqueItems", |keywords, name| Ok(keywords.is_set(name)?.then_some(Rule::Unique))),
    ("items", |keywords, name| match &keywords.fields[name] {
        Json::Array(items) => {
            let first = items.iter().map(|item| keywords.nested(name, item)).collect::<Result<_>>()?;
            Ok(Some(Rule::Items(first, keywords.additional("additionalItems")?)))
        }
        json @ Json::Object(fields) if ext_json::is_document(fields) => {
            let all = Additional::Matching(Box::new(keywords.nested(name, json)?));
            Ok(Some(Rule::Items(Vec::new(), all)))
        }
        _ => Err(mismatch(name, "an array or an object")),
    }),
    ("additionalItems", |keywords, name| keywords.additional(name).map(|_| None)),
    ("minProperties", |keywords, name| Ok(Some(Rule::Fields(keywords.count(name)?..=usize::MAX)))),
    ("maxProperties", |keywords, name| Ok(Some(Rule::Fields(0..=keywords.count(name)?)))),
    ("required", |keywords, name| {
        let names = keywords.array(name)?;
        ensure!(!names.is_empty(), Kind::FailedToParse, "$jsonSchema keyword 'required' cannot be an empty array");
        Ok(Some(Rule::Required(names_of(name, names)?)))
    }),
    ("encrypt", |keywords, name| {
        check_encryption(keywords, name, ENCRYPT)?;
        let others = ["type", "bsonType", "encryptMetadata"];
        if let Some(other) = others.iter().find(|name| keywords.fields.contains_key(**name)) {
            bail!(Kind::FailedToParse, "$jsonSchema keyword 'encrypt' cannot be used in conjunction with '{other}'");
        }
        Ok(Some(Rule::Encrypted))
    }),
    ("encryptMetadata", |keywords, name| check_encryption(keywords, name, ENCRYPT_METADATA).map(|()| None)),
    ("properties", |keywords, name| keywords.properties(name)),
    ("patternProperties", |keywords, name| keywords.properties(name)),
    ("additionalProperties", |keywords, name| keywords.properties(name)),
    ("dependencies", |keywords, name| {
        let dependencies = keywords.object(name)?.iter().map(|(field, json)| {
            let dependency = match json {
                Json::Array(names) if names.is_empty() => bail!(
                    Kind::FailedToParse,
                    "property '{field}' in $jsonSchema keyword 'dependencies' cannot be an empty array"
                ),
                Json::Array(names) => Dependency::Fields(names_of(name, names)?),
                Json::Object(fields) if ext_json::is_document(fields) => {
                    Dependency::Schema(keywords.nested(name, json)?)
                }
                _ => return Err(mismatch(name, "an object of arrays and objects")),
            };
            Ok((field.clone(), dependency))
        });
        Ok(Some(Rule::Dependencies(dependencies.collect::<Result<_>>()?)))
    }),
];

/// Keywords that MongoDB refuses as not supported.
const NOT_SUPPORTED: &[&str] = &["$ref", "$schema", "default", "definitions", "format", "id", "keyId"];

/// The fields of `encrypt`, which only clients use.
const ENCRYPT: &[&str] = &["algorithm", "bsonType", "keyId"];
/// The fields of `encryptMetadata`.
const ENCRYPT_METADATA: &[&str] = &["algorithm", "keyId"];
/// The subtype of binary data that a client has encrypted.
const ENCRYPTED: u8 = 6;

/// Checks that the keyword's document has no unknown fields.
fn check_encryption(keywords: &Keywords<'_>, keyword: &str, known: &[&str]) -> Result<()> {
    match keywords.object(keyword)?.keys().find(|name| !known.contains(&name.as_str())) {
        Some(name) => bail!(Kind::UnknownOption, "BSON field '{keyword}.{name}' is an unknown field."),
        None => Ok(()),
    }
}

fn mismatch(keyword: &str, wanted: &str) -> Error {
    error!(Kind::TypeMismatch, "$jsonSchema keyword '{keyword}' must be {wanted}")
}

fn names_of(keyword: &str, names: &[Json]) -> Result<Vec<String>> {
    let mut found: Vec<String> = Vec::with_capacity(names.len());
    let mut known = HashSet::new();
    for name in names {
        budget::step();
        let Json::String(name) = name else { return Err(mismatch(keyword, "an array of strings")) };
        if !known.insert(name) {
            bail!(Kind::FailedToParse, "$jsonSchema keyword '{keyword}' array cannot contain duplicate values");
        }
        found.push(name.clone());
    }
    Ok(found)
}

/// The keywords of one schema.
struct Keywords<'j> {
    fields: &'j Map<String, Json>,
    /// how deep schemas may still nest
    levels: usize,
}

impl Schema {
    /// Parses a schema; `levels` bounds how deep it nests.
    ///
    /// # Errors
    /// `TypeMismatch`, `FailedToParse`, `BadValue`.
    pub fn parse(json: &Json, levels: usize) -> Result<Schema> {
        let Some(fields) = ext_json::document(json) else { bail!(Kind::TypeMismatch, "$jsonSchema must be an object") };
        budget::steps(1 + fields.len());
        ensure!(levels != 0, Kind::FailedToParse, "$jsonSchema is nested too deeply");
        let keywords = Keywords { fields, levels: levels - 1 };
        let mut rules = Vec::with_capacity(fields.len());
        for name in fields.keys() {
            match KEYWORDS.iter().find(|(known, _)| known == name) {
                Some((name, parse)) => rules.extend(parse(&keywords, name)?),
                None if NOT_SUPPORTED.contains(&name.as_str()) => {
                    bail!(Kind::FailedToParse, "$jsonSchema keyword '{name}' is not currently supported")
                }
                None => bail!(Kind::FailedToParse, "Unknown $jsonSchema keyword: {name}"),
            }
        }
        Ok(Schema { rules })
    }

    /// True if the document matches.
    pub fn matches_document(&self, document: RawObject<'_>) -> bool {
        self.matches(RawValue::Object(document))
    }

    /// True if the value matches.
    pub fn matches(&self, value: RawValue<'_>) -> bool {
        budget::steps(1 + self.rules.len());
        self.rules.iter().all(|rule| rule.accepts(value))
    }
}

impl<'j> Keywords<'j> {
    fn nested(&self, keyword: &str, json: &Json) -> Result<Schema> {
        match json {
            Json::Object(fields) if ext_json::is_document(fields) => Schema::parse(json, self.levels),
            _ => Err(mismatch(keyword, "an object")),
        }
    }

    fn array(&self, keyword: &str) -> Result<&'j [Json]> {
        match self.fields.get(keyword) {
            Some(Json::Array(items)) => Ok(items),
            _ => Err(mismatch(keyword, "an array")),
        }
    }

    fn object(&self, keyword: &str) -> Result<&'j Map<String, Json>> {
        match self.fields.get(keyword) {
            Some(Json::Object(fields)) if ext_json::is_document(fields) => Ok(fields),
            _ => Err(mismatch(keyword, "an object")),
        }
    }

    fn text(&self, keyword: &str) -> Result<&'j str> {
        match self.fields.get(keyword) {
            Some(Json::String(text)) => Ok(text),
            _ => Err(mismatch(keyword, "a string")),
        }
    }

    fn is_set(&self, keyword: &str) -> Result<bool> {
        match self.fields.get(keyword) {
            None => Ok(false),
            Some(Json::Bool(value)) => Ok(*value),
            Some(_) => Err(mismatch(keyword, "a boolean")),
        }
    }

    fn number(&self, keyword: &str) -> Result<Number> {
        match ext_json::from_json(&self.fields[keyword])? {
            Value::Number(number) => Ok(number),
            _ => Err(mismatch(keyword, "a number")),
        }
    }

    fn count(&self, keyword: &str) -> Result<usize> {
        let number = match ext_json::from_json(&self.fields[keyword])? {
            Value::Number(number) => number,
            _ => bail!(Kind::FailedToParse, "Expected a number in: {keyword}"),
        };
        let whole = number.as_i64().ok_or_else(|| error!(Kind::FailedToParse, "Expected an integer: {keyword}"))?;
        usize::try_from(whole).map_err(|_| error!(Kind::FailedToParse, "Expected a non-negative number in: {keyword}"))
    }

    fn check_beside(&self, keyword: &str, other: &str) -> Result<()> {
        self.is_set(keyword)?;
        let is_given = self.fields.contains_key(other);
        ensure!(
            is_given,
            Kind::FailedToParse,
            "$jsonSchema keyword '{other}' must be a present if {keyword} is present"
        );
        Ok(())
    }

    fn schemas(&self, keyword: &str) -> Result<Vec<Schema>> {
        let items = self.array(keyword)?;
        ensure!(!items.is_empty(), Kind::BadValue, "$jsonSchema keyword '{keyword}' must be a non-empty array");
        items.iter().map(|item| self.nested(keyword, item)).collect()
    }

    fn types(&self, keyword: &str, json_types: bool) -> Result<Types> {
        let json = &self.fields[keyword];
        let names = match json {
            Json::String(_) => std::slice::from_ref(json),
            Json::Array(names) => names,
            _ => return Err(mismatch(keyword, "a string or an array of strings")),
        };
        let mut aliases = Vec::with_capacity(names.len());
        for name in names_of(keyword, names)? {
            ensure!(name != "integer", Kind::FailedToParse, "$jsonSchema type 'integer' is not currently supported.");
            let is_known = !json_types || JSON_TYPES.contains(&name.as_str());
            ensure!(is_known, Kind::BadValue, "Unknown type name alias: {name}");
            aliases.push(Value::String(if json_types && name == "boolean" { "bool".to_owned() } else { name }));
        }
        if aliases.is_empty() {
            bail!(Kind::FailedToParse, "$jsonSchema keyword '{keyword}' must name at least one type");
        }
        Types::parse(keyword, &Value::fixed_array(aliases))
    }

    fn additional(&self, keyword: &str) -> Result<Additional> {
        match self.fields.get(keyword) {
            None | Some(Json::Bool(true)) => Ok(Additional::Anything),
            Some(Json::Bool(false)) => Ok(Additional::Nothing),
            Some(json @ Json::Object(fields)) if ext_json::is_document(fields) => {
                Ok(Additional::Matching(Box::new(Schema::parse(json, self.levels)?)))
            }
            Some(_) => Err(mismatch(keyword, "an object or a boolean")),
        }
    }

    /// Parses the three keywords for fields into one rule, when called for the first of those that the schema has; None for the others.
    fn properties(&self, keyword: &'static str) -> Result<Option<Rule>> {
        let mut three = ["properties", "patternProperties", "additionalProperties"].into_iter();
        if three.find(|name| self.fields.contains_key(*name)) != Some(keyword) {
            return Ok(None);
        }
        let (mut named, mut patterns) = (Vec::new(), Vec::new());
        if self.fields.contains_key("properties") {
            for (name, json) in self.object("properties")? {
                named.push((name.clone(), self.nested("properties", json)?));
            }
        }
        if self.fields.contains_key("patternProperties") {
            for (pattern, json) in self.object("patternProperties")? {
                patterns.push((Pattern::new(pattern, "")?, self.nested("patternProperties", json)?));
            }
        }
        named.sort_by(|(one, _): &(String, Schema), (other, _)| one.cmp(other));
        let others = self.additional("additionalProperties")?;
        Ok(Some(Rule::Properties(Properties { named, patterns, others })))
    }
}

impl Rule {
    fn accepts(&self, value: RawValue<'_>) -> bool {
        match self {
            Rule::Types(types) => types.contain(value),
            Rule::Enum(values) => values.binary_search_by(|allowed| compare_raw(value, allowed).reverse()).is_ok(),
            Rule::All(schemas) => schemas.iter().all(|schema| schema.matches(value)),
            Rule::Any(schemas) => schemas.iter().any(|schema| schema.matches(value)),
            Rule::One(schemas) => schemas.iter().filter(|schema| schema.matches(value)).take(2).count() == 1,
            Rule::Not(schema) => !schema.matches(value),
            Rule::Bound(side, bound) => number_in(value, |number| {
                number.is_nan() == bound.is_nan() && side.accepts(number::compare(number, bound))
            }),
            Rule::MultipleOf(divisor) => number_in(value, |number| is_multiple(number, divisor)),
            Rule::Length(lengths) => text_in(value, |text| lengths.contains(&text.chars().count())),
            Rule::Pattern(pattern) => text_in(value, |text| pattern.is_found_in(text)),
            Rule::Encrypted => matches!(Element::of(value), Element::Binary(ENCRYPTED, _)),
            Rule::Count(counts) => array_in(value, |array| counts.contains(&array.len())),
            Rule::Items(first, others) => array_in(value, |array| {
                array.iter().enumerate().all(|(index, item)| match first.get(index) {
                    Some(schema) => schema.matches(item),
                    None => others.accepts(item),
                })
            }),
            Rule::Unique => array_in(value, |array| {
                let mut elements: Vec<Element<'_>> = array.iter().map(Element::of).collect();
                elements.sort_by(compare_elements);
                elements.windows(2).all(|pair| compare_elements(&pair[0], &pair[1]).is_ne())
            }),
            Rule::Fields(counts) => path::embedded(value).is_none_or(|object| counts.contains(&object.len())),
            Rule::Required(names) => {
                budget::steps(names.len());
                path::embedded(value).is_none_or(|object| names.iter().all(|name| object.get(name).is_some()))
            }
            Rule::Properties(properties) => path::embedded(value).is_none_or(|object| properties.accept(object)),
            Rule::Dependencies(dependencies) => path::embedded(value).is_none_or(|object| {
                budget::steps(dependencies.len());
                dependencies.iter().filter(|(name, _)| object.get(name).is_some()).all(|(_, dependency)| {
                    match dependency {
                        Dependency::Fields(names) => {
                            names.iter().inspect(|_| budget::step()).all(|name| object.get(name).is_some())
                        }
                        Dependency::Schema(schema) => schema.matches(value),
                    }
                })
            }),
        }
    }
}

fn number_in(value: RawValue<'_>, test: impl FnOnce(&Number) -> bool) -> bool {
    match value {
        RawValue::Number(number) => test(&number.to_number()),
        RawValue::Object(_) => match Element::of(value) {
            Element::Number(number) => test(&number),
            _ => true,
        },
        _ => true,
    }
}

fn text_in(value: RawValue<'_>, test: impl FnOnce(&str) -> bool) -> bool {
    if let RawValue::String(text) = value { test(text) } else { true }
}

fn array_in(value: RawValue<'_>, test: impl FnOnce(RawArray<'_>) -> bool) -> bool {
    if let RawValue::Array(array) = value { test(array) } else { true }
}

fn is_multiple(number: &Number, divisor: &Number) -> bool {
    match (number, divisor) {
        (Number::Int(a, _), Number::Int(b, _)) => a.wrapping_rem(*b) == 0,
        _ => match (number.to_decimal(), divisor.to_decimal()) {
            (Decimal::Finite(a), Decimal::Finite(b)) if !b.is_zero() => (*a % *b).is_zero(),
            _ => false,
        },
    }
}

impl Additional {
    fn accepts(&self, value: RawValue<'_>) -> bool {
        match self {
            Additional::Anything => true,
            Additional::Nothing => false,
            Additional::Matching(schema) => schema.matches(value),
        }
    }
}

impl Properties {
    fn accept(&self, object: RawObject<'_>) -> bool {
        budget::steps(self.named.len());
        let named = self.named.iter().all(|(name, schema)| object.get(name).is_none_or(|value| schema.matches(value)));
        if !named || self.patterns.is_empty() && matches!(self.others, Additional::Anything) {
            return named;
        }
        object.iter().all(|(name, value)| {
            let mut known = self.named.binary_search_by(|(named, _)| named.as_str().cmp(name)).is_ok();
            for (pattern, schema) in &self.patterns {
                if pattern.is_found_in(name) {
                    known = true;
                    if !schema.matches(value) {
                        return false;
                    }
                }
            }
            known || self.others.accepts(value)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_keyword_is_listed_once() {
        let names: Vec<&str> = KEYWORDS.iter().map(|(name, _)| *name).chain(NOT_SUPPORTED.iter().copied()).collect();
        for name in &names {
            assert_eq!(names.iter().filter(|other| *other == name).count(), 1, "{name}");
        }
    }
}
