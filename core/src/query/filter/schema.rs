//! `$jsonSchema`: JSON Schema, draft 4, as MongoDB has it: with `bsonType`, without references and formats.
//!
//! A keyword that speaks of one type lets values of every other type pass.

use super::types::Types;
use crate::error::{Error, Kind, Result, bail, ensure, error};
use crate::query::regex::Pattern;
use crate::values::document::element::Element;
use crate::values::document::ext_json;
use crate::values::document::number::{self, Decimal, Number};
use crate::values::document::raw::{RawObject, RawValue};
use crate::values::document::value::Value;
use crate::values::order::{compare_elements, compare_raw};
use crate::values::path;
use bigdecimal::Zero;
use serde_json::{Map, Value as Json};
use std::collections::HashSet;

/// A parsed schema: every rule must hold.
#[derive(Debug, Default)]
pub(super) struct Schema {
    rules: Vec<Rule>,
}

/// What one keyword, or a few that belong together, demand.
#[derive(Debug)]
enum Rule {
    Types(Types),
    Enum(Vec<Value>),
    All(Vec<Schema>),
    Any(Vec<Schema>),
    One(Vec<Schema>),
    Not(Schema),
    Least {
        bound: Number,
        exclusive: bool,
    },
    Greatest {
        bound: Number,
        exclusive: bool,
    },
    MultipleOf(Number),
    Length {
        least: usize,
        greatest: usize,
    },
    Pattern(Pattern),
    /// binary data that a client has encrypted
    Encrypted,
    Count {
        least: usize,
        greatest: usize,
    },
    Items(Items),
    Unique,
    Fields {
        least: usize,
        greatest: usize,
    },
    Required(Vec<String>),
    Properties(Properties),
    Dependencies(Vec<(String, Dependency)>),
}

/// `items` and `additionalItems`.
#[derive(Debug)]
struct Items {
    /// for the first elements, one each
    first: Vec<Schema>,
    /// for the others
    others: Additional,
}

/// `properties`, `patternProperties` and `additionalProperties`.
#[derive(Debug)]
struct Properties {
    /// by name
    named: Vec<(String, Schema)>,
    patterns: Vec<(Pattern, Schema)>,
    others: Additional,
}

/// What is allowed beyond what is named.
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

/// The JSON types that draft 4 names, and MongoDB's aliases of them.
const JSON_TYPES: &[(&str, &str)] = &[
    ("array", "array"),
    ("boolean", "bool"),
    ("null", "null"),
    ("number", "number"),
    ("object", "object"),
    ("string", "string"),
];

/// A keyword by itself; keywords that belong together are read together.
type Keyword = (&'static str, fn(&Keywords<'_>, &mut Vec<Rule>) -> Result<()>);

const KEYWORDS: &[Keyword] = &[
    ("title", |keywords, _| keywords.text("title").map(|_| ())),
    ("description", |keywords, _| keywords.text("description").map(|_| ())),
    ("type", |keywords, rules| {
        if keywords.fields.contains_key("bsonType") {
            bail!(Kind::FailedToParse, "Cannot specify both $jsonSchema keywords 'type' and 'bsonType'");
        }
        rules.push(Rule::Types(keywords.types("type", true)?));
        Ok(())
    }),
    ("bsonType", |keywords, rules| {
        rules.push(Rule::Types(keywords.types("bsonType", false)?));
        Ok(())
    }),
    ("enum", |keywords, rules| {
        let items = keywords.array("enum")?;
        let values = items.iter().map(ext_json::from_json).collect::<Result<Vec<_>>>()?;
        ensure!(!values.is_empty(), Kind::FailedToParse, "$jsonSchema keyword 'enum' cannot be an empty array");
        for (index, value) in values.iter().enumerate() {
            if values[..index].contains(value) {
                bail!(Kind::FailedToParse, "$jsonSchema keyword 'enum' array cannot contain duplicate values.");
            }
        }
        rules.push(Rule::Enum(values));
        Ok(())
    }),
    ("allOf", |keywords, rules| {
        rules.push(Rule::All(keywords.schemas("allOf")?));
        Ok(())
    }),
    ("anyOf", |keywords, rules| {
        rules.push(Rule::Any(keywords.schemas("anyOf")?));
        Ok(())
    }),
    ("oneOf", |keywords, rules| {
        rules.push(Rule::One(keywords.schemas("oneOf")?));
        Ok(())
    }),
    ("not", |keywords, rules| {
        rules.push(Rule::Not(keywords.schema("not")?));
        Ok(())
    }),
    ("minimum", |keywords, rules| {
        let exclusive = keywords.boolean("exclusiveMinimum")?.unwrap_or(false);
        rules.push(Rule::Least { bound: keywords.number("minimum")?, exclusive });
        Ok(())
    }),
    ("exclusiveMinimum", |keywords, _| keywords.only_with("exclusiveMinimum", "minimum")),
    ("maximum", |keywords, rules| {
        let exclusive = keywords.boolean("exclusiveMaximum")?.unwrap_or(false);
        rules.push(Rule::Greatest { bound: keywords.number("maximum")?, exclusive });
        Ok(())
    }),
    ("exclusiveMaximum", |keywords, _| keywords.only_with("exclusiveMaximum", "maximum")),
    ("multipleOf", |keywords, rules| {
        let divisor = keywords.number("multipleOf")?;
        if !number::compare(&divisor, &Number::Int(0)).is_gt() {
            bail!(Kind::FailedToParse, "$jsonSchema keyword 'multipleOf' must have a positive value");
        }
        rules.push(Rule::MultipleOf(divisor));
        Ok(())
    }),
    ("minLength", |keywords, rules| {
        rules.push(Rule::Length { least: keywords.count("minLength")?, greatest: usize::MAX });
        Ok(())
    }),
    ("maxLength", |keywords, rules| {
        rules.push(Rule::Length { least: 0, greatest: keywords.count("maxLength")? });
        Ok(())
    }),
    ("pattern", |keywords, rules| {
        rules.push(Rule::Pattern(Pattern::new(keywords.text("pattern")?, "")?));
        Ok(())
    }),
    ("minItems", |keywords, rules| {
        rules.push(Rule::Count { least: keywords.count("minItems")?, greatest: usize::MAX });
        Ok(())
    }),
    ("maxItems", |keywords, rules| {
        rules.push(Rule::Count { least: 0, greatest: keywords.count("maxItems")? });
        Ok(())
    }),
    ("uniqueItems", |keywords, rules| {
        if keywords.boolean("uniqueItems")? == Some(true) {
            rules.push(Rule::Unique);
        }
        Ok(())
    }),
    ("items", |keywords, rules| {
        let (first, others) = match &keywords.fields["items"] {
            Json::Array(items) => {
                let first = items.iter().map(|item| keywords.nested("items", item)).collect::<Result<_>>()?;
                (first, keywords.additional("additionalItems")?)
            }
            json @ Json::Object(_) => (Vec::new(), Additional::Matching(Box::new(keywords.nested("items", json)?))),
            _ => return Err(mismatch("items", "an array or an object")),
        };
        rules.push(Rule::Items(Items { first, others }));
        Ok(())
    }),
    ("additionalItems", |keywords, _| keywords.additional("additionalItems").map(|_| ())),
    ("minProperties", |keywords, rules| {
        rules.push(Rule::Fields { least: keywords.count("minProperties")?, greatest: usize::MAX });
        Ok(())
    }),
    ("maxProperties", |keywords, rules| {
        rules.push(Rule::Fields { least: 0, greatest: keywords.count("maxProperties")? });
        Ok(())
    }),
    ("required", |keywords, rules| {
        let names = keywords.array("required")?;
        ensure!(!names.is_empty(), Kind::FailedToParse, "$jsonSchema keyword 'required' cannot be an empty array");
        rules.push(Rule::Required(names_of("required", names)?));
        Ok(())
    }),
    ("encrypt", |keywords, rules| {
        check_encryption(keywords, "encrypt", ENCRYPT)?;
        if let Some(other) =
            ["type", "bsonType", "encryptMetadata"].iter().find(|name| keywords.fields.contains_key(**name))
        {
            bail!(Kind::FailedToParse, "$jsonSchema keyword 'encrypt' cannot be used in conjunction with '{other}'");
        }
        rules.push(Rule::Encrypted);
        Ok(())
    }),
    ("encryptMetadata", |keywords, _| check_encryption(keywords, "encryptMetadata", ENCRYPT_METADATA)),
    ("properties", |keywords, rules| keywords.properties("properties", rules)),
    ("patternProperties", |keywords, rules| keywords.properties("patternProperties", rules)),
    ("additionalProperties", |keywords, rules| keywords.properties("additionalProperties", rules)),
    ("dependencies", |keywords, rules| {
        let mut dependencies = Vec::new();
        for (name, json) in keywords.object("dependencies")? {
            dependencies.push((
                name.clone(),
                match json {
                    Json::Array(names) if names.is_empty() => bail!(
                        Kind::FailedToParse,
                        "property '{name}' in $jsonSchema keyword 'dependencies' cannot be an empty array"
                    ),
                    Json::Array(names) => Dependency::Fields(names_of("dependencies", names)?),
                    Json::Object(_) => Dependency::Schema(keywords.nested("dependencies", json)?),
                    _ => return Err(mismatch("dependencies", "an object of arrays and objects")),
                },
            ));
        }
        rules.push(Rule::Dependencies(dependencies));
        Ok(())
    }),
];

/// Keywords of draft 4 that MongoDB does not have.
const NOT_SUPPORTED: &[&str] = &["$ref", "$schema", "default", "definitions", "format", "id", "keyId"];

/// What `encrypt` says of the client's encryption, which the server does not look into.
const ENCRYPT: &[&str] = &["algorithm", "bsonType", "keyId"];
/// What `encryptMetadata` says of it.
const ENCRYPT_METADATA: &[&str] = &["algorithm", "keyId"];
/// The subtype of binary data that a client has encrypted.
const ENCRYPTED: u8 = 6;

/// The keyword's document, which may have no other fields than these.
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
        let Json::String(name) = name else {
            return Err(mismatch(keyword, "an array of strings"));
        };
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
        let Json::Object(fields) = json else { bail!(Kind::TypeMismatch, "$jsonSchema must be an object") };
        ensure!(levels != 0, Kind::FailedToParse, "$jsonSchema is nested too deeply");
        let keywords = Keywords { fields, levels: levels - 1 };
        let mut rules = Vec::with_capacity(fields.len());
        for name in fields.keys() {
            match KEYWORDS.iter().find(|(known, _)| known == name) {
                Some((_, parse)) => parse(&keywords, &mut rules)?,
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

    fn matches(&self, value: RawValue<'_>) -> bool {
        self.rules.iter().all(|rule| rule.accepts(value))
    }
}

impl<'j> Keywords<'j> {
    fn nested(&self, keyword: &str, json: &Json) -> Result<Schema> {
        match json {
            Json::Object(_) => Schema::parse(json, self.levels),
            _ => Err(mismatch(keyword, "an object")),
        }
    }

    fn schema(&self, keyword: &str) -> Result<Schema> {
        self.nested(keyword, &self.fields[keyword])
    }

    fn array(&self, keyword: &str) -> Result<&'j [Json]> {
        match self.fields.get(keyword) {
            Some(Json::Array(items)) => Ok(items),
            _ => Err(mismatch(keyword, "an array")),
        }
    }

    fn object(&self, keyword: &str) -> Result<&'j Map<String, Json>> {
        match self.fields.get(keyword) {
            Some(Json::Object(fields)) => Ok(fields),
            _ => Err(mismatch(keyword, "an object")),
        }
    }

    fn text(&self, keyword: &str) -> Result<&'j str> {
        match self.fields.get(keyword) {
            Some(Json::String(text)) => Ok(text),
            _ => Err(mismatch(keyword, "a string")),
        }
    }

    fn boolean(&self, keyword: &str) -> Result<Option<bool>> {
        match self.fields.get(keyword) {
            None => Ok(None),
            Some(Json::Bool(value)) => Ok(Some(*value)),
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

    fn only_with(&self, keyword: &str, other: &str) -> Result<()> {
        self.boolean(keyword)?;
        if self.fields.contains_key(other) {
            return Ok(());
        }
        bail!(Kind::FailedToParse, "$jsonSchema keyword '{other}' must be a present if {keyword} is present")
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
            let alias = if json_types {
                match JSON_TYPES.iter().find(|(known, _)| *known == name) {
                    Some((_, alias)) => (*alias).to_owned(),
                    None => bail!(Kind::BadValue, "Unknown type name alias: {name}"),
                }
            } else {
                name
            };
            aliases.push(Value::String(alias));
        }
        if aliases.is_empty() {
            bail!(Kind::FailedToParse, "$jsonSchema keyword '{keyword}' must name at least one type");
        }
        Types::parse(keyword, &Value::Array(aliases))
    }

    fn additional(&self, keyword: &str) -> Result<Additional> {
        match self.fields.get(keyword) {
            None | Some(Json::Bool(true)) => Ok(Additional::Anything),
            Some(Json::Bool(false)) => Ok(Additional::Nothing),
            Some(json @ Json::Object(_)) => Ok(Additional::Matching(Box::new(Schema::parse(json, self.levels)?))),
            Some(_) => Err(mismatch(keyword, "an object or a boolean")),
        }
    }

    /// The three keywords about fields are one rule, made by the first of them.
    fn properties(&self, keyword: &str, rules: &mut Vec<Rule>) -> Result<()> {
        let first = ["properties", "patternProperties", "additionalProperties"]
            .into_iter()
            .find(|name| self.fields.contains_key(*name));
        if first != Some(keyword) {
            return Ok(());
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
        rules.push(Rule::Properties(Properties { named, patterns, others: self.additional("additionalProperties")? }));
        Ok(())
    }
}

impl Rule {
    fn accepts(&self, value: RawValue<'_>) -> bool {
        match self {
            Rule::Types(types) => types.contain(value),
            Rule::Enum(values) => values.iter().any(|allowed| compare_raw(value, allowed).is_eq()),
            Rule::All(schemas) => schemas.iter().all(|schema| schema.matches(value)),
            Rule::Any(schemas) => schemas.iter().any(|schema| schema.matches(value)),
            Rule::One(schemas) => schemas.iter().filter(|schema| schema.matches(value)).take(2).count() == 1,
            Rule::Not(schema) => !schema.matches(value),
            Rule::Least { bound, exclusive } => number_in(value, |number| {
                let order = number::compare(number, bound);
                number.is_nan() == bound.is_nan() && if *exclusive { order.is_gt() } else { order.is_ge() }
            }),
            Rule::Greatest { bound, exclusive } => number_in(value, |number| {
                let order = number::compare(number, bound);
                number.is_nan() == bound.is_nan() && if *exclusive { order.is_lt() } else { order.is_le() }
            }),
            Rule::MultipleOf(divisor) => number_in(value, |number| is_multiple(number, divisor)),
            Rule::Length { least, greatest } => {
                text_in(value, |text| (*least..=*greatest).contains(&text.chars().count()))
            }
            Rule::Pattern(pattern) => text_in(value, |text| pattern.is_found_in(text)),
            Rule::Encrypted => matches!(Element::of(value), Element::Binary(ENCRYPTED, _)),
            Rule::Count { least, greatest } => match value {
                RawValue::Array(array) => (*least..=*greatest).contains(&array.len()),
                _ => true,
            },
            Rule::Items(items) => items.accept(value),
            Rule::Unique => is_unique(value),
            Rule::Fields { least, greatest } => {
                path::embedded(value).is_none_or(|object| (*least..=*greatest).contains(&object.len()))
            }
            Rule::Required(names) => {
                path::embedded(value).is_none_or(|object| names.iter().all(|name| object.get(name).is_some()))
            }
            Rule::Properties(properties) => path::embedded(value).is_none_or(|object| properties.accept(object)),
            Rule::Dependencies(dependencies) => path::embedded(value).is_none_or(|object| {
                dependencies.iter().filter(|(name, _)| object.get(name).is_some()).all(|(_, dependency)| {
                    match dependency {
                        Dependency::Fields(names) => names.iter().all(|name| object.get(name).is_some()),
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
    match value {
        RawValue::String(text) => test(text),
        _ => true,
    }
}

fn is_multiple(number: &Number, divisor: &Number) -> bool {
    match (number, divisor) {
        (Number::Int(a), Number::Int(b)) => a.wrapping_rem(*b) == 0,
        _ => match (number.to_decimal(), divisor.to_decimal()) {
            (Decimal::Finite(a), Decimal::Finite(b)) if !b.is_zero() => (*a % *b).is_zero(),
            _ => false,
        },
    }
}

fn is_unique(value: RawValue<'_>) -> bool {
    let RawValue::Array(array) = value else { return true };
    let mut elements: Vec<Element<'_>> = array.iter().map(Element::of).collect();
    elements.sort_by(compare_elements);
    elements.windows(2).all(|pair| compare_elements(&pair[0], &pair[1]).is_ne())
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

impl Items {
    fn accept(&self, value: RawValue<'_>) -> bool {
        let RawValue::Array(array) = value else { return true };
        array.iter().enumerate().all(|(index, item)| match self.first.get(index) {
            Some(schema) => schema.matches(item),
            None => self.others.accepts(item),
        })
    }
}

impl Properties {
    fn accept(&self, object: RawObject<'_>) -> bool {
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
