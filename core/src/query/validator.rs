//! The validator of a collection: a filter that its documents must match, and what happens to one that does not.

use crate::budget::Evaluation;
use crate::error::{Error, Kind, Result, bail, ensure, error};
use crate::query::environment::{Environment, Session};
use crate::query::filter::{Filter, Report};
use crate::query::random::is_random;
use crate::values::document::ext_json;
use crate::values::document::raw::RawObject;
use crate::values::document::value::Value;
use serde_json::{Map, Value as Json, json};
use std::time::SystemTime;

/// The field of a definition with the filter.
pub const VALIDATOR: &str = "validator";
/// The field of a definition with the [`Level`].
pub const LEVEL: &str = "validationLevel";
/// The field of a definition with the [`Action`].
const ACTION: &str = "validationAction";
/// The field of a definition with the collation by which strings are compared.
pub const COLLATION: &str = "collation";
/// The name of [`Level::Off`].
pub const OFF: &str = "off";

/// The largest `_id` that a report includes, in bytes of JSON text.
const MAX_ID_BYTES: usize = 512;
/// The largest report, in bytes of text. Together with the text that a shard puts before it, a report is shorter than the length to which
/// a router truncates a shard's texts (`MAX_TEXT`).
pub const MAX_INFO_BYTES: usize = 14 << 10;
/// The deepest nesting of a report, so that a router can parse it and put it into a reply.
pub const MAX_INFO_DEPTH: usize = 64;
/// The bytes that a report's own field names and braces take, at most.
const FRAME_BYTES: usize = 80;

/// Which writes are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// none
    Off,
    /// inserts, and updates of documents that were valid
    Moderate,
    /// all
    Strict,
}

/// What happens to a document that is not valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// it is refused
    Error,
    /// it is stored, and the server's log says so
    Warn,
    /// it is refused, and the server's log says so
    ErrorAndLog,
}

/// The levels, by their names.
pub const LEVELS: &[(&str, Level)] = &[(OFF, Level::Off), ("strict", Level::Strict), ("moderate", Level::Moderate)];
/// The actions, by their names.
const ACTIONS: &[(&str, Action)] =
    &[("error", Action::Error), ("warn", Action::Warn), ("errorAndLog", Action::ErrorAndLog)];

/// A parsed validator.
#[derive(Debug)]
pub struct Validator {
    json: Json,
    filter: Filter,
    collation: Option<Json>,
    /// true if the filter uses the time: then the filter is parsed again for each document
    is_timed: bool,
    /// which writes are checked
    pub level: Level,
    /// what happens to a document that is not valid
    pub action: Action,
}

/// Describes why a document is not valid.
#[derive(Debug)]
pub struct Violation {
    id: Json,
    details: Json,
    truncated: bool,
}

impl Violation {
    /// MongoDB's `errInfo`. Its text has at most [`MAX_INFO_BYTES`], and its JSON is nested at most [`MAX_INFO_DEPTH`] deep.
    pub fn info(&self) -> Json {
        let mut left = MAX_INFO_BYTES - MAX_ID_BYTES - FRAME_BYTES;
        let details = shortened(&self.details, MAX_INFO_DEPTH - 1, &mut left);
        let is_whole = details.as_ref() == Some(&self.details);
        let mut info = json!({"failingDocumentId": self.id, "details": details.unwrap_or_default()});
        if self.truncated || !is_whole {
            info["truncated"] = true.into();
        }
        info
    }
}

/// Shortens JSON to at most `left` bytes of text and `depth` levels. Arrays keep their first elements, objects those fields that fit. None
/// if nothing fits.
fn shortened(json: &Json, depth: usize, left: &mut usize) -> Option<Json> {
    let take = |left: &mut usize, bytes: usize| {
        let rest = left.checked_sub(bytes);
        *left = rest.unwrap_or(0);
        rest
    };
    match json {
        Json::Array(_) | Json::Object(_) if depth == 0 => None,
        Json::Array(items) => {
            take(left, 2)?;
            Some(items.iter().map_while(|item| shortened(item, depth - 1, left)).collect())
        }
        Json::Object(fields) => {
            take(left, 2)?;
            let mut kept = Map::new();
            for (name, value) in fields {
                // The name, a colon and a comma.
                let size = serde_json::to_string(name).map_or(usize::MAX, |name| name.len() + 2);
                let Some(mut rest) = left.checked_sub(size) else { break };
                if let Some(value) = shortened(value, depth - 1, &mut rest) {
                    kept.insert(name.clone(), value);
                    *left = rest;
                }
            }
            Some(Json::Object(kept))
        }
        // A comma follows.
        scalar => take(left, scalar.to_string().len() + 1).map(|_| scalar.clone()),
    }
}

fn chosen<T: Copy>(fields: &Map<String, Json>, name: &str, choices: &[(&str, T)]) -> Result<Option<T>> {
    let Some(given) = fields.get(name) else { return Ok(None) };
    match choices.iter().find(|(known, _)| given.as_str() == Some(known)) {
        Some((_, choice)) => Ok(Some(*choice)),
        None => Err(error!(Kind::BadValue, "Enumeration value '{given}' for field '{name}' is not a valid value.")),
    }
}

impl Validator {
    /// Parses `{"validator": filter, "validationLevel": …, "validationAction": …, "collation": …}`. Only `validator` is required.
    ///
    /// # Errors
    /// `TypeMismatch`, `BadValue`; `QueryFeatureNotAllowed` for an operator that a validator cannot have; those of [`Filter::parse`].
    pub fn parse(definition: &Json) -> Result<Validator> {
        let _evaluation = Evaluation::begin();
        let fields = ext_json::document(definition)
            .ok_or_else(|| error!(Kind::TypeMismatch, "a validator's definition must be an object"))?;
        let json = fields.get(VALIDATOR).unwrap_or(&Json::Null);
        ensure!(ext_json::document(json).is_some(), Kind::TypeMismatch, "'validator' must be an object, not {json}");
        let collation = fields.get(COLLATION).cloned();
        let level = chosen(fields, LEVEL, LEVELS)?.unwrap_or(Level::Strict);
        let action = chosen(fields, ACTION, ACTIONS)?.unwrap_or(Action::Error);
        if is_random(json) {
            bail!(
                Kind::QueryFeatureNotAllowed,
                "a validator cannot use $rand, $sampleRate or $createObjectId: its result must be the same each time"
            );
        }
        let environment = environment(collation.as_ref())?;
        let filter = Filter::parse_in(json, &environment)?;
        Ok(Validator { json: json.clone(), filter, collation, is_timed: environment.uses_now(), level, action })
    }

    /// Returns the violation of a document that is to be stored; None if there is none to report. `before` is the document that `after`
    /// replaces; None for an insert.
    ///
    /// A condition that cannot be evaluated is violated.
    pub fn violation(&self, before: Option<RawObject<'_>>, after: RawObject<'_>) -> Option<Violation> {
        let _evaluation = Evaluation::begin();
        if self.level == Level::Off || self.accepts(after) {
            return None;
        }
        if self.level == Level::Moderate && before.is_some_and(|before| !self.accepts(before)) {
            return None;
        }
        Some(self.describe(after))
    }

    /// True if an insert of the document would violate the validator, whatever the [`Action`].
    pub fn is_violated_by_new(&self, document: RawObject<'_>) -> bool {
        let _evaluation = Evaluation::begin();
        self.level != Level::Off && !self.accepts(document)
    }

    fn accepts(&self, document: RawObject<'_>) -> bool {
        if self.is_timed {
            let filter =
                environment(self.collation.as_ref()).and_then(|environment| Filter::parse_in(&self.json, &environment));
            return filter.is_ok_and(|filter| filter.matches(document));
        }
        self.filter.matches(document)
    }

    /// Describes what a document violates. The document is one that the validator does not accept.
    pub fn describe(&self, document: RawObject<'_>) -> Violation {
        let environment = environment(self.collation.as_ref()).unwrap_or_default();
        let mut report = Report::new(&environment);
        let details = Json::Object(report.of_filter(&self.json, document, false));
        let id = document.get("_id").map_or(Json::Null, |id| ext_json::to_json(&Value::from_raw(id)));
        let is_long = id.to_string().len() > MAX_ID_BYTES;
        let id = if is_long { Json::Null } else { id };
        Violation { id, details, truncated: report.truncated || is_long }
    }
}

/// A validator's environment: it has the time, and no roles.
fn environment(collation: Option<&Json>) -> Result<Environment> {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let now = i64::try_from(since.as_millis()).unwrap_or(i64::MAX);
    Environment::of_statement(collation, None, Session { now, roles: no_roles })
}

fn no_roles() -> Result<Vec<String>> {
    bail!(
        Kind::QueryFeatureNotAllowed,
        "a validator cannot use $$USER_ROLES: its result must be the same for all users"
    )
}

/// The error for a document that is refused; `info`: MongoDB's `errInfo`, if it is known.
pub fn refused(info: Option<String>) -> Error {
    let error = Error::new(Kind::DocumentValidationFailure, "Document failed validation");
    match info {
        Some(info) => error.with_detail(info),
        None => error,
    }
}
