//! The JSON form of an [`Environment`], and of a filter, projection or sort that is sent to a shard with one:
//! `{"$setting": …, "$of": …}`.

use super::environment::{Binding, Environment, Offer, Session};
use super::expression::{Expression, check_variable_name};
use super::random::is_random;
use crate::error::{Kind, Result, bail, error};
use crate::values::collation::Collator;
use crate::values::document::ext_json;
use crate::values::document::number::Number;
use crate::values::document::value::Value;
use serde_json::{Map, Value as Json, json};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// The field with the environment.
const ENVIRONMENT: &str = "$setting";
/// The field that says that a projection's results keep the order of fields.
const ORDERED: &str = "$ordered";
/// The field with the filter, the projection or the sort.
const INNER: &str = "$of";
/// The field with the filter that chose the documents, for a projection that needs it.
pub(crate) const FILTER: &str = "$filter";

/// Wraps the text of a filter, projection or sort with its environment, and for a positional projection with the text of the
/// filter. Without either, the text stays as it is.
pub fn wrap(inner: &str, environment: Option<&Json>, filter: Option<&str>) -> String {
    if environment.is_none() && filter.is_none() {
        return inner.to_owned();
    }
    let environment = environment.map_or_else(|| "{}".to_owned(), Json::to_string);
    let filter = filter.map_or_else(String::new, |filter| format!(",\"{FILTER}\":{filter}"));
    format!("{{\"{ENVIRONMENT}\":{environment},\"{INNER}\":{inner}{filter}}}")
}

/// The text of a projection whose results keep the order of fields.
#[must_use]
pub fn ordered(text: &str) -> String {
    format!("{{\"{ORDERED}\":true,\"{INNER}\":{text}}}")
}

/// The projection in JSON that [`ordered`] wrote; None for other JSON.
pub(crate) fn unwrap_ordered(json: &Json) -> Option<&Json> {
    json.get(ORDERED).and(json.get(INNER))
}

/// Unwraps JSON that [`wrap`] wrote.
///
/// # Errors
/// Those of [`Environment::parse`].
pub(crate) fn unwrap(json: &Json) -> Result<(Environment, &Json)> {
    match (json.get(ENVIRONMENT), json.get(INNER)) {
        (Some(environment), Some(inner)) => Ok((Environment::parse(environment)?, inner)),
        _ => Ok((Environment::default(), json)),
    }
}

const COLLATION: &str = "collation";
const LET: &str = "let";
const NOW: &str = "now";
const ROLES: &str = "roles";

impl Environment {
    /// Parses the collation and the variables of a statement. Time and roles are taken from the session when a part of the statement uses
    /// them.
    ///
    /// # Errors
    /// Those of [`Environment::parse`].
    pub fn of_statement(collation: Option<&Json>, variables: Option<&Json>, session: Session) -> Result<Environment> {
        let given = Self::to_json(collation, variables, None);
        let environment =
            Self::offered(Offer { session, uses_now: AtomicBool::new(false), roles: OnceLock::new(), given })?;
        // `within` replaces the expressions by their values, so that a random value is the same in all parts of the statement and on all
        // shards.
        if variables.is_some_and(is_random) { environment.within() } else { Ok(environment) }
    }

    fn offered(offer: Offer) -> Result<Environment> {
        let offer = Arc::new(offer);
        Self::parse_with(offer.given.as_ref().unwrap_or(&json!({})), Some(Arc::clone(&offer)))
    }

    /// The environment for a pipeline that a stage of the statement runs over another collection.
    ///
    /// # Errors
    /// None: the statement's environment was parsed before.
    pub fn within(&self) -> Result<Environment> {
        self.part(self.as_json())
    }

    /// The environment with more variables, given as expressions.
    ///
    /// # Errors
    /// Those of [`Environment::parse`].
    pub fn and(&self, variables: Map<String, Json>) -> Result<Environment> {
        let mut given = self.json().unwrap_or_else(|| json!({}));
        match given.get_mut(LET).and_then(Json::as_object_mut) {
            Some(known) => known.extend(variables),
            None => given[LET] = Json::Object(variables),
        }
        self.part(given)
    }

    /// An environment with the parts in `given`, and with the same session.
    fn part(&self, given: Json) -> Result<Environment> {
        let Some(Offer { session, uses_now, roles, .. }) = self.offer.as_deref() else { return Self::parse(&given) };
        let given = Some(given).filter(|given| given.as_object().is_some_and(|fields| !fields.is_empty()));
        Self::offered(Offer {
            session: *session,
            uses_now: AtomicBool::new(uses_now.load(Ordering::Relaxed)),
            roles: roles.clone(),
            given,
        })
    }

    /// The environment as it is sent to shards, with the time and the roles if parts have used them; None if it is empty.
    pub fn json(&self) -> Option<Json> {
        let mut json = match &self.offer {
            Some(offer) => offer.given.clone(),
            None => Some(self.as_json()).filter(|json| json.as_object().is_some_and(|fields| !fields.is_empty())),
        };
        let mut add = |name: &str, value: Json| json.get_or_insert_with(|| json!({}))[name] = value;
        let offer = self.offer.as_deref();
        let used = offer.filter(|offer| offer.uses_now.load(Ordering::Relaxed)).map(|offer| offer.session.now);
        if let Some(now) = self.now.or(used) {
            add(NOW, now.into());
        }
        if let Some(roles) = self.roles.as_ref().or_else(|| offer?.roles.get()) {
            add(ROLES, json!(roles));
        }
        json
    }

    /// The environment with a time of its own, which is sent whether or not a part uses it.
    pub fn timed(&self, now: i64) -> Environment {
        let now = self.now.or_else(|| self.offer.as_ref().map(|offer| offer.session.now)).unwrap_or(now);
        Environment { now: Some(now), ..self.clone() }
    }

    /// Parses `{"collation": …, "let": {name: value, …}, "now": milliseconds since 1970, "roles": [name, …]}`, each optional.
    ///
    /// # Errors
    /// Those of [`Collator::parse`] and of expressions, which must be constant; `TypeMismatch`, `BadValue` for an unknown name.
    pub fn parse(json: &Json) -> Result<Environment> {
        Self::parse_with(json, None)
    }

    fn parse_with(json: &Json, offer: Option<Arc<Offer>>) -> Result<Environment> {
        let Some(fields) = ext_json::document(json) else {
            bail!(Kind::TypeMismatch, "a statement's environment must be an object")
        };
        if let Some(unknown) = fields.keys().find(|name| ![COLLATION, LET, NOW, ROLES].contains(&name.as_str())) {
            bail!(Kind::BadValue, "a statement's environment has no field \"{unknown}\"");
        }
        let collator = fields.get(COLLATION).map(Collator::parse).transpose()?.flatten().map(Arc::new);
        let now = match fields.get(NOW).map(ext_json::from_json).transpose()? {
            None => None,
            Some(Value::Number(Number::Int(now, _)) | Value::Date(now)) => Some(now),
            Some(_) => bail!(Kind::TypeMismatch, "a statement's time must be milliseconds"),
        };
        let roles = match fields.get(ROLES) {
            None => None,
            Some(roles) => match serde_json::from_value(roles.clone()) {
                Ok(roles) => Some(roles),
                Err(_) => bail!(Kind::TypeMismatch, "a statement's roles must be names"),
            },
        };
        let variables = HashMap::new();
        let mut environment = Environment { collator, variables, now, roles, offer, in_group: false };
        match fields.get(LET) {
            None => {}
            Some(Json::Object(variables)) if ext_json::is_document(variables) => {
                for (name, json) in variables {
                    check_variable_name(name)?;
                    let collator = environment.collator().map(|collator| &**collator);
                    let value = Expression::parse(json, &environment)?.evaluated(collator)?.ok_or_else(|| {
                        error!(
                            4890500,
                            "Command let Expression tried to access a field, but this is not allowed: {name}"
                        )
                    })?;
                    environment.variables.insert(name.clone(), value);
                }
            }
            Some(_) => bail!(Kind::TypeMismatch, "BSON field 'let' must be an object"),
        }
        Ok(environment)
    }

    /// The environment as JSON that [`Environment::parse`] reads.
    fn as_json(&self) -> Json {
        let collation = self.collator().map(|collator| collator.definition());
        let variables = self.variables.iter().map(|(name, binding)| {
            let json = match binding {
                Binding::Value(value) => json!({"$literal": ext_json::to_typed_json(value)}),
                Binding::Missing | Binding::Open => json!("$$REMOVE"),
            };
            (name.clone(), json)
        });
        let variables = Some(Json::Object(variables.collect())).filter(|_| !self.variables.is_empty());
        let json = Environment::to_json(collation, variables.as_ref(), self.now);
        let mut json = json.unwrap_or_else(|| json!({}));
        if let Some(roles) = &self.roles {
            json[ROLES] = json!(roles);
        }
        json
    }

    /// Returns JSON for [`Environment::parse`] with those parts that are given; None if none is.
    pub fn to_json(collation: Option<&Json>, variables: Option<&Json>, now: Option<i64>) -> Option<Json> {
        let mut fields = Map::new();
        fields.extend(collation.map(|json| (COLLATION.to_owned(), json.clone())));
        fields.extend(variables.map(|json| (LET.to_owned(), json.clone())));
        fields.extend(now.map(|millis| (NOW.to_owned(), Json::from(millis))));
        (!fields.is_empty()).then_some(Json::Object(fields))
    }
}
