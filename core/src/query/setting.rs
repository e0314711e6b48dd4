//! What a statement says once for all its parts: its collation, its variables, its time.

use crate::error::{Error, Kind, Result};
use crate::query::expression::Expression;
use crate::values::collation::Collator;
use crate::values::document::ext_json;
use crate::values::document::number::Number;
use crate::values::document::value::Value;
use serde_json::{Map, Value as Json};
use std::collections::HashMap;
use std::sync::Arc;

/// The collation, the variables of `let` and the time, which filters, projections, sorts and updates share.
#[derive(Clone, Debug, Default)]
pub struct Setting {
    collator: Option<Arc<Collator>>,
    variables: HashMap<String, Value>,
    now: Option<i64>,
}

/// What carries a setting beside a filter, a projection or a sort on its way to a shard: `{"$setting": …, "$of": …}`.
const SETTING: &str = "$setting";
const INNER: &str = "$of";
/// The filter that chose the documents, beside a projection that needs it.
pub(crate) const FILTER: &str = "$filter";

/// A filter, a projection or a sort with the setting that it is meant in, as JSON text; `filter` is the text of the
/// filter that a positional projection needs. Without either it is the text itself.
pub fn wrapped(inner: &str, setting: Option<&Json>, filter: Option<&str>) -> String {
    if setting.is_none() && filter.is_none() {
        return inner.to_owned();
    }
    let setting = setting.map_or_else(|| "{}".to_owned(), Json::to_string);
    let filter = filter.map_or_else(String::new, |filter| format!(",\"{FILTER}\":{filter}"));
    format!("{{\"{SETTING}\":{setting},\"{INNER}\":{inner}{filter}}}")
}

/// What [`wrapped`] wrote, taken apart.
///
/// # Errors
/// Those of [`Setting::parse`].
pub(crate) fn unwrapped(json: &Json) -> Result<(Setting, &Json)> {
    match (json.get(SETTING), json.get(INNER)) {
        (Some(setting), Some(inner)) => Ok((Setting::parse(setting)?, inner)),
        _ => Ok((Setting::default(), json)),
    }
}

const COLLATION: &str = "collation";
const LET: &str = "let";
const NOW: &str = "now";

impl Setting {
    /// Parses `{"collation": …, "let": {name: value, …}, "now": milliseconds since 1970}`, each optional.
    ///
    /// # Errors
    /// Those of [`Collator::parse`] and of expressions, which may not read fields here; `TypeMismatch`, `BadValue` for
    /// an unknown name.
    pub fn parse(json: &Json) -> Result<Setting> {
        let Json::Object(fields) = json else {
            return Err(Error::new(Kind::TypeMismatch, "a statement's setting must be an object"));
        };
        if let Some(unknown) = fields.keys().find(|name| ![COLLATION, LET, NOW].contains(&name.as_str())) {
            return Err(Error::new(Kind::BadValue, format!("a statement's setting has no \"{unknown}\"")));
        }
        let collator = fields.get(COLLATION).map(Collator::parse).transpose()?.flatten().map(Arc::new);
        let now = match fields.get(NOW).map(ext_json::from_json).transpose()? {
            None => None,
            Some(Value::Number(Number::Int(now)) | Value::Date(now)) => Some(now),
            Some(_) => return Err(Error::new(Kind::TypeMismatch, "a statement's time must be milliseconds")),
        };
        let mut setting = Setting { collator, variables: HashMap::new(), now };
        match fields.get(LET) {
            None => {}
            Some(Json::Object(variables)) => {
                for (name, json) in variables {
                    crate::query::expression::check_variable_name(name)?;
                    let value = Expression::parse(json, &setting)?.constant().ok_or_else(|| {
                        let message =
                            format!("Command let Expression tried to access a field, but this is not allowed: {name}");
                        Error::new(Kind::Location4890500, message)
                    })?;
                    setting.variables.insert(name.clone(), value);
                }
            }
            Some(_) => return Err(Error::new(Kind::TypeMismatch, "BSON field 'let' must be an object")),
        }
        Ok(setting)
    }

    /// The JSON that [`Setting::parse`] reads, or None if it says nothing.
    pub fn to_json(collation: Option<&Json>, variables: Option<&Json>, now: Option<i64>) -> Option<Json> {
        let mut fields = Map::new();
        fields.extend(collation.map(|json| (COLLATION.to_owned(), json.clone())));
        fields.extend(variables.map(|json| (LET.to_owned(), json.clone())));
        fields.extend(now.map(|millis| (NOW.to_owned(), Json::from(millis))));
        (!fields.is_empty()).then_some(Json::Object(fields))
    }

    /// The collation; None for `simple`.
    pub fn collator(&self) -> Option<&Arc<Collator>> {
        self.collator.as_ref()
    }

    /// The time, in milliseconds since 1970, where the statement knows it.
    pub(crate) fn now(&self) -> Option<i64> {
        self.now
    }

    /// A variable of `let`.
    pub(crate) fn variable(&self, name: &str) -> Option<&Value> {
        self.variables.get(name)
    }
}
