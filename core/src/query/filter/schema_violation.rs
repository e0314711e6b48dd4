//! Describes why a `$jsonSchema` does not accept a value: one entry for each keyword that does not accept it.

use super::schema::Schema;
use super::violation::{Details, Report, object, type_name};
use crate::query::regex::{self, Pattern};
use crate::values::document::MAX_DEPTH;
use crate::values::document::element::Element;
use crate::values::document::raw::{RawObject, RawValue};
use crate::values::order::compare_elements;
use crate::values::path;
use serde_json::{Map, Value as Json, json};

/// Keywords whose entries repeat the value, each with the reason that its entries give.
const SIMPLE: &[(&str, &str)] = &[
    ("type", "type did not match"),
    ("bsonType", "type did not match"),
    ("enum", "value was not found in enum"),
    ("minimum", "comparison failed"),
    ("maximum", "comparison failed"),
    ("multipleOf", "considered value is not a multiple of the specified value"),
    ("minLength", "specified string length was not satisfied"),
    ("maxLength", "specified string length was not satisfied"),
    ("pattern", "regular expression did not match"),
    ("minItems", "array did not match specified length"),
    ("maxItems", "array did not match specified length"),
    ("uniqueItems", "found a duplicate item"),
];

/// Keywords, each with another one that changes its meaning.
const BESIDE: &[(&str, &str)] = &[("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")];

/// Returns a function that tests whether the schema accepts a value. If the schema cannot be parsed, the function returns true for every
/// value; a stored schema can always be parsed.
fn acceptor(schema: &Json) -> impl Fn(RawValue<'_>) -> bool {
    let schema = Schema::parse(schema, MAX_DEPTH).ok();
    move |value| schema.as_ref().is_none_or(|schema| regex::watched(|| schema.matches(value)).unwrap_or(false))
}

/// True if a schema accepts a value.
fn accepts(schema: &Json, value: RawValue<'_>) -> bool {
    acceptor(schema)(value)
}

impl Report<'_> {
    /// The entries of a schema's keywords that do not accept the value.
    pub(super) fn of_schema(&mut self, schema: &Details, value: RawValue<'_>) -> Vec<Json> {
        let mut entries = Vec::new();
        for (keyword, argument) in schema {
            if self.truncated {
                break;
            }
            entries.extend(self.of_keyword(schema, keyword, argument, value).map(Json::Object));
        }
        entries
    }

    /// The entries of a schema, after the fields of `introduction` and the schema's title and description.
    fn of_nested(&mut self, introduction: Json, schema: &Json, value: RawValue<'_>) -> Json {
        let mut details = object(introduction);
        if let Json::Object(schema) = schema {
            self.entitle(&mut details, schema);
            let entries = self.of_schema(schema, value);
            details.insert("details".to_owned(), entries.into());
        }
        Json::Object(details)
    }

    fn of_keyword(&mut self, schema: &Details, keyword: &str, argument: &Json, value: RawValue<'_>) -> Option<Details> {
        if let Some((_, reason)) = SIMPLE.iter().find(|(known, _)| *known == keyword) {
            return self.of_simple(schema, keyword, argument, value, reason);
        }
        let named = |details: Details| {
            let mut named = object(json!({"operatorName": keyword}));
            named.extend(details);
            named
        };
        match (keyword, argument) {
            ("not", schema) => {
                accepts(schema, value).then(|| named(object(json!({"reason": "child expression matched"}))))
            }
            ("encrypt", _) => (!accepts(&json!({keyword: argument}), value))
                .then(|| named(object(json!({"reason": "value was not encrypted"})))),
            ("allOf" | "anyOf" | "oneOf", Json::Array(schemas)) => self.of_several(keyword, schemas, value).map(named),
            ("items", argument) => self.of_items(argument, value).map(named),
            ("additionalItems", argument) => self.of_additional_items(schema, argument, value).map(named),
            _ => {
                let object = path::embedded(value)?;
                self.of_object(schema, keyword, argument, object).map(named)
            }
        }
    }

    fn of_simple(
        &mut self,
        schema: &Details,
        keyword: &str,
        argument: &Json,
        value: RawValue<'_>,
        reason: &str,
    ) -> Option<Details> {
        let mut given = json!({keyword: argument});
        if let Some((_, beside)) = BESIDE.iter().find(|(known, _)| *known == keyword)
            && let Some(argument) = schema.get(*beside)
        {
            given[*beside] = argument.clone();
        }
        if accepts(&given, value) {
            return None;
        }
        let mut details = object(json!({"operatorName": keyword}));
        self.specify(&mut details, given);
        details.insert("reason".to_owned(), reason.into());
        self.add(&mut details, "consideredValue", value);
        match (keyword, value) {
            ("type" | "bsonType", _) => drop(details.insert("consideredType".to_owned(), type_name(value).into())),
            ("uniqueItems", RawValue::Array(array)) => {
                let mut items: Vec<RawValue<'_>> = array.iter().collect();
                items.sort_by(|a, b| compare_elements(&Element::of(*a), &Element::of(*b)));
                let is_same =
                    |pair: &&[RawValue<'_>]| compare_elements(&Element::of(pair[0]), &Element::of(pair[1])).is_eq();
                if let Some(pair) = items.windows(2).find(is_same) {
                    self.add(&mut details, "duplicatedValue", pair[0]);
                }
            }
            _ => {}
        }
        Some(details)
    }

    fn of_several(&mut self, keyword: &str, schemas: &[Json], value: RawValue<'_>) -> Option<Details> {
        let accepting: Vec<bool> = schemas.iter().map(|schema| accepts(schema, value)).collect();
        let count = accepting.iter().filter(|accepts| **accepts).count();
        let is_satisfied = match keyword {
            "allOf" => count == schemas.len(),
            "anyOf" => count > 0,
            _ => count == 1,
        };
        if is_satisfied {
            return None;
        }
        if keyword == "oneOf" && count > 1 {
            let mut matching = Vec::new();
            for (index, accepts) in accepting.iter().enumerate() {
                if *accepts && self.takes(8) {
                    matching.push(index);
                }
            }
            return Some(object(
                json!({"reason": "more than one subschema matched", "matchingSchemaIndexes": matching}),
            ));
        }
        let mut entries = Vec::new();
        for (index, schema) in schemas.iter().enumerate().filter(|(index, _)| !accepting[*index]) {
            if !self.takes_entry("") {
                break;
            }
            entries.push(self.of_nested(json!({"index": index}), schema, value));
        }
        Some(object(json!({"schemasNotSatisfied": entries})))
    }

    fn of_items(&mut self, argument: &Json, value: RawValue<'_>) -> Option<Details> {
        let RawValue::Array(array) = value else { return None };
        if let Json::Array(schemas) = argument {
            let mut entries = Vec::new();
            for (index, (schema, item)) in schemas.iter().zip(array.iter()).enumerate() {
                if !accepts(schema, item) && self.takes_entry("") {
                    entries.push(self.of_nested(json!({"itemIndex": index}), schema, item));
                }
            }
            return (!entries.is_empty() || self.truncated).then(|| object(json!({"details": entries})));
        }
        let (index, item) = first_refused(argument, array.iter())?;
        let introduction = json!({"reason": "At least one item did not match the sub-schema", "itemIndex": index});
        Some(object(self.of_nested(introduction, argument, item)))
    }

    fn of_additional_items(&mut self, schema: &Details, argument: &Json, value: RawValue<'_>) -> Option<Details> {
        let (RawValue::Array(array), Some(Json::Array(first))) = (value, schema.get("items")) else { return None };
        let others = array.iter().skip(first.len());
        match argument {
            Json::Bool(true) => None,
            Json::Bool(false) => {
                let mut shown = Vec::new();
                let mut others = others.peekable();
                others.peek()?;
                for item in others {
                    shown.extend(self.value(item));
                    if self.truncated {
                        break;
                    }
                }
                let reason = "found additional items";
                Some(object(
                    json!({"specifiedAs": {"additionalItems": false}, "reason": reason, "additionalItems": shown}),
                ))
            }
            schema => {
                let (index, item) = first_refused(schema, others)?;
                let reason = "At least one additional item did not match the sub-schema";
                let introduction = json!({"reason": reason, "itemIndex": first.len() + index});
                Some(object(self.of_nested(introduction, schema, item)))
            }
        }
    }

    /// The keywords for objects.
    fn of_object(
        &mut self,
        schema: &Details,
        keyword: &str,
        argument: &Json,
        object_: RawObject<'_>,
    ) -> Option<Details> {
        match (keyword, argument) {
            ("minProperties" | "maxProperties", _) => {
                let given = json!({keyword: argument});
                (!accepts(&given, RawValue::Object(object_))).then(|| {
                    object(json!({"specifiedAs": given, "reason": "specified number of properties was not satisfied",
                                  "numberOfProperties": object_.len()}))
                })
            }
            ("required", Json::Array(names)) => {
                let missing = self.missing(names, object_)?;
                let mut details = Details::new();
                self.specify(&mut details, json!({keyword: argument}));
                details.insert("missingProperties".to_owned(), missing.into());
                Some(details)
            }
            ("properties", Json::Object(properties)) => {
                let mut entries = Vec::new();
                for (name, schema) in properties {
                    if let Some(value) = object_.get(name)
                        && !accepts(schema, value)
                        && self.takes_entry(name)
                    {
                        entries.push(self.of_nested(json!({"propertyName": name}), schema, value));
                    }
                }
                (!entries.is_empty()).then(|| object(json!({"propertiesNotSatisfied": entries})))
            }
            ("patternProperties", Json::Object(patterns)) => self.of_pattern_properties(patterns, object_),
            ("additionalProperties", _) => self.of_additional_properties(schema, argument, object_),
            ("dependencies", Json::Object(dependencies)) => self.of_dependencies(dependencies, object_),
            _ => None,
        }
    }

    fn of_pattern_properties(&mut self, patterns: &Map<String, Json>, object_: RawObject<'_>) -> Option<Details> {
        let mut entries = Vec::new();
        for (source, schema) in patterns {
            let Ok(pattern) = Pattern::new(source, "") else { continue };
            let accepts = acceptor(schema);
            for (name, value) in object_.iter() {
                if !self.truncated && pattern.is_found_in(name) && !accepts(value) && self.takes_entry(name) {
                    let introduction = json!({"propertyName": name, "regexMatched": source});
                    entries.push(self.of_nested(introduction, schema, value));
                }
            }
        }
        (!entries.is_empty()).then(|| object(json!({"details": entries})))
    }

    fn of_dependencies(&mut self, dependencies: &Map<String, Json>, object_: RawObject<'_>) -> Option<Details> {
        let mut entries = Vec::new();
        for (name, dependency) in dependencies.iter().filter(|(name, _)| object_.get(name).is_some()) {
            match dependency {
                Json::Array(names) => {
                    if let Some(missing) = self.missing(names, object_) {
                        entries.push(json!({"conditionalProperty": name, "missingProperties": missing}));
                    }
                }
                schema => {
                    if !accepts(schema, RawValue::Object(object_)) && self.takes_entry(name) {
                        let introduction = json!({"conditionalProperty": name});
                        entries.push(self.of_nested(introduction, schema, RawValue::Object(object_)));
                    }
                }
            }
        }
        (!entries.is_empty()).then(|| object(json!({"failingDependencies": entries})))
    }

    /// The names that the object does not have; None if it has all, unless the report is truncated.
    fn missing(&mut self, names: &[Json], object: RawObject<'_>) -> Option<Vec<Json>> {
        let mut missing = Vec::new();
        for name in names.iter().filter(|name| name.as_str().is_some_and(|name| object.get(name).is_none())) {
            if !self.takes_entry(name.as_str().unwrap_or_default()) {
                break;
            }
            missing.push(name.clone());
        }
        (!missing.is_empty() || self.truncated).then_some(missing)
    }

    fn of_additional_properties(&mut self, schema: &Details, argument: &Json, of: RawObject<'_>) -> Option<Details> {
        let fields = |keyword: &str| schema.get(keyword).and_then(Json::as_object);
        let empty = Map::new();
        let named = fields("properties").unwrap_or(&empty);
        let patterns = fields("patternProperties").unwrap_or(&empty).keys();
        let patterns: Vec<Pattern> = patterns.filter_map(|source| Pattern::new(source, "").ok()).collect();
        let is_other =
            |name: &str| !named.contains_key(name) && !patterns.iter().any(|pattern| pattern.is_found_in(name));
        let mut others = of.iter().filter(|(name, _)| is_other(name));
        match argument {
            Json::Bool(true) => None,
            Json::Bool(false) => {
                let mut names = Vec::new();
                for (name, _) in others {
                    if !self.takes(name.len()) {
                        break;
                    }
                    names.push(name);
                }
                let specified = json!({"additionalProperties": false});
                (!names.is_empty()).then(|| object(json!({"specifiedAs": specified, "additionalProperties": names})))
            }
            schema => {
                let accepts = acceptor(schema);
                let (name, value) = others.find(|(_, value)| !accepts(*value))?;
                self.takes_entry(name);
                let reason = "at least one additional property did not match the subschema";
                let introduction = json!({"reason": reason, "failingProperty": name});
                Some(object(self.of_nested(introduction, schema, value)))
            }
        }
    }
}

/// The first item that the schema does not accept, and its position.
fn first_refused<'a>(schema: &Json, items: impl Iterator<Item = RawValue<'a>>) -> Option<(usize, RawValue<'a>)> {
    let accepts = acceptor(schema);
    items.enumerate().find(|(_, item)| !accepts(*item))
}
