//! The options of operations, as drivers name them. What is not known is refused, never ignored.

use crate::catalog::cache;
use crate::pg::error::{Error, Result};
use crate::pg::memory::recently_used::RecentlyUsed;
use docshard_core::error::Kind;
use docshard_core::query::envelope;
use docshard_core::query::environment::Environment;
use docshard_core::query::index::Bounds;
use docshard_core::query::projection::Projection;
use docshard_core::query::sort::Sort;
use docshard_core::values::collation::Collator;
use docshard_core::values::document::ext_json;
use docshard_core::values::document::number::Number;
use docshard_core::values::document::value::Value;
use serde_json::Value as Json;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::{SystemTime, UNIX_EPOCH};

/// Options as an object, each of them known.
pub struct Options<'a>(&'a serde_json::Map<String, Json>);

impl<'a> Options<'a> {
    /// Checks that `json` is an object with known names only.
    ///
    /// # Errors
    /// `TypeMismatch`, `UnknownOption`.
    pub fn of(json: &'a Json, operation: &str, known: &[&str]) -> Result<Self> {
        let Json::Object(fields) = json else {
            return Err(Error::new(Kind::TypeMismatch, format!("options of {operation} must be a JSON object")));
        };
        if let Some(unknown) = fields.keys().find(|name| !known.contains(&name.as_str())) {
            let message = format!("unknown option \"{unknown}\" of {operation}");
            let error = Error::new(Kind::UnknownOption, message);
            return Err(if known.is_empty() {
                error
            } else {
                error.with_hint(format!("Options are: {}.", known.join(", ")))
            });
        }
        Ok(Self(fields))
    }

    /// An option's value, if it is given and not null.
    pub fn get(&self, name: &str) -> Option<&'a Json> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    /// A boolean.
    ///
    /// # Errors
    /// `TypeMismatch`.
    pub fn boolean(&self, name: &str) -> Result<Option<bool>> {
        match self.get(name) {
            None => Ok(None),
            Some(Json::Bool(value)) => Ok(Some(*value)),
            Some(other) => Err(mismatch(name, "a boolean", other)),
        }
    }

    /// A text.
    ///
    /// # Errors
    /// `TypeMismatch`.
    pub fn text(&self, name: &str) -> Result<Option<&'a str>> {
        match self.get(name) {
            None => Ok(None),
            Some(Json::String(value)) => Ok(Some(value)),
            Some(other) => Err(mismatch(name, "a string", other)),
        }
    }

    /// A sort specification in the statement's setting, and the text that shards are sent; None for an empty one.
    ///
    /// # Errors
    /// Those of [`Sort::parse_in`] and of the setting.
    pub fn sort(&self, name: &str, setting: Option<&Json>) -> Result<Option<(Sort, String)>> {
        match self.get(name) {
            Some(spec) if spec.as_object().is_some_and(serde_json::Map::is_empty) => Ok(None),
            Some(spec) => Ok(Some((
                Sort::parse_in(spec, &parsed_setting(setting)?)?,
                envelope::wrap(&spec.to_string(), setting, None),
            ))),
            None => Ok(None),
        }
    }

    /// What a statement over a collection says for all its parts: the options `collation` and `let`, and the time if one
    /// of the texts asks for it; None if nothing.
    ///
    /// # Errors
    /// Those of [`Environment::parse`].
    pub fn setting(&self, namespace: &str, texts: &[&str]) -> Result<Option<Json>> {
        setting(namespace, self.get("collation"), self.get("let"), texts)
    }

    /// A number without its fraction.
    ///
    /// # Errors
    /// `TypeMismatch`.
    pub fn truncated(&self, name: &str) -> Result<Option<i64>> {
        let Some(json) = self.get(name) else { return Ok(None) };
        match ext_json::from_json(json)? {
            Value::Number(number) => Ok(Some(number.to_i64_truncated())),
            _ => Err(mismatch(name, "a number", json)),
        }
    }

    /// An integer, also as an integral double or in Extended JSON.
    ///
    /// # Errors
    /// `TypeMismatch`.
    pub fn integer(&self, name: &str) -> Result<Option<i64>> {
        let Some(json) = self.get(name) else { return Ok(None) };
        match ext_json::from_json(json)? {
            Value::Number(Number::Int(n)) => Ok(Some(n)),
            Value::Number(Number::Double(d)) if d.fract() == 0.0 && d.abs() < 9e15 => Ok(Some(d as i64)),
            _ => Err(mismatch(name, "an integer", json)),
        }
    }
}

/// As [`Options::setting`], of a collation and variables. Without a collation, the collection's own counts.
///
/// # Errors
/// Those of [`Environment::parse`].
pub fn setting(
    namespace: &str,
    collation: Option<&Json>,
    variables: Option<&Json>,
    texts: &[&str],
) -> Result<Option<Json>> {
    let given = collation.filter(|json| !json.as_object().is_some_and(serde_json::Map::is_empty));
    let collection = if given.is_none() { cache::find(namespace)? } else { None };
    let own = collection.as_ref().and_then(|collection| collection.collation.as_deref());
    let collation = given.or_else(|| own.map(Collator::definition));
    let asks = |text: &str| text.contains("$$NOW");
    let timed = texts.iter().any(|text| asks(text)) || variables.is_some_and(|json| asks(&json.to_string()));
    let json = Environment::to_json(collation, variables, timed.then(now));
    parsed_setting(json.as_ref())?;
    Ok(json)
}

/// The present time, in milliseconds since 1970.
pub fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis());
    i64::try_from(since).unwrap_or(i64::MAX)
}

/// A setting as `Environment::to_json` wrote it.
///
/// # Errors
/// Those of [`Environment::parse`].
pub fn parsed_setting(json: Option<&Json>) -> Result<Environment> {
    Ok(json.map(Environment::parse).transpose()?.unwrap_or_default())
}

fn mismatch(name: &str, wanted: &str, found: &Json) -> Error {
    Error::new(Kind::TypeMismatch, format!("option \"{name}\" must be {wanted}, not {found}"))
}

/// Options of a find.
#[derive(Clone, Debug, Default)]
pub struct FindOptions {
    /// the order, and its text
    pub sort: Option<(Sort, String)>,
    /// the projection's text; None for whole documents
    pub projection: Option<String>,
    /// true if the projection depends on how the filter matched
    pub positional: bool,
    /// the paths that the projection includes, if that is all that it does
    pub included: Option<Vec<String>>,
    /// the statement's collation, variables and time, as `Environment::to_json` writes them
    pub setting: Option<Json>,
    /// documents to leave out at the start
    pub skip: u64,
    /// documents to return at most; None: all
    pub limit: Option<u64>,
    /// the index to use
    pub hint: Option<Json>,
    /// `min` and `max`: the range of its keys
    pub bounds: Option<Bounds>,
}

/// The options of so many texts are kept by a session.
const MOST_KEPT: usize = 8;
/// So long, in bytes, may a text be whose options are kept.
const LONGEST_KEPT: usize = 1000;

/// An operation, and the text of its options.
type Call = (&'static str, String);

thread_local! {
    /// Clients send the same text again and again.
    static KEPT: RefCell<RecentlyUsed<Call, Rc<FindOptions>, MOST_KEPT>> = const { RefCell::new(RecentlyUsed::NONE) };
}

impl FindOptions {
    /// The options of a call, parsed if none of the last ones had the same.
    ///
    /// INVARIANT: what is kept depends on nothing but the text: there is no setting in it, neither of the text nor of the
    /// collection that it was parsed for; and one with a collation asks for none.
    ///
    /// # Errors
    /// Those of [`parse`](Self::parse).
    pub fn of_call(namespace: &str, text: &str, operation: &'static str) -> Result<Rc<Self>> {
        let parse = || Self::parse(namespace, &crate::pg::datum::json::parse(text)?, operation).map(Rc::new);
        if cache::find(namespace)?.is_some_and(|collection| collection.collation.is_some()) {
            return parse();
        }
        let is_it = |(known, of): &Call| *known == operation && of == text;
        if let Some(options) = KEPT.with_borrow(|kept| kept.find(is_it)) {
            return Ok(options);
        }
        let options = parse()?;
        if options.setting.is_none() && text.len() <= LONGEST_KEPT {
            KEPT.with_borrow_mut(|kept| kept.keep((operation, text.to_owned()), Rc::clone(&options)));
        }
        Ok(options)
    }

    /// Parses the options of `find`, `find_one`, `explain`.
    ///
    /// # Errors
    /// `UnknownOption`, `TypeMismatch`, `BadValue`; those of [`Bounds::parse`].
    pub fn parse(namespace: &str, json: &Json, operation: &str) -> Result<Self> {
        let known: &[&str] = match operation {
            "find_one" => &["sort", "projection", "skip", "hint", "min", "max", "collation", "let", "comment"],
            _ => &["sort", "projection", "skip", "limit", "hint", "min", "max", "collation", "let", "comment"],
        };
        let options = Options::of(json, operation, known)?;
        let projection = options.get("projection").map(Json::to_string);
        let setting = options.setting(namespace, &[projection.as_deref().unwrap_or_default()])?;
        let sort = options.sort("sort", setting.as_ref())?;
        let parsed = match options.get("projection") {
            Some(spec) => Some(Projection::parse_in(spec, &parsed_setting(setting.as_ref())?)?),
            None => None,
        };
        let positional = parsed.as_ref().is_some_and(Projection::is_positional);
        let included = parsed.as_ref().and_then(Projection::included);
        let projection = projection.filter(|_| parsed.is_some_and(|parsed| !parsed.is_identity()));
        let skip = options.truncated("skip")?.unwrap_or(0);
        let skip = u64::try_from(skip)
            .map_err(|_| Error::new(Kind::Location51024, format!("skip must be non-negative, but received: {skip}")))?;
        // As in MongoDB: 0 is no limit, and a negative one means its size.
        let limit = match operation {
            "find_one" => Some(1),
            _ => options.truncated("limit")?.map(i64::unsigned_abs).filter(|limit| *limit > 0),
        };
        let bounds = Bounds::parse(options.get("min"), options.get("max"))?;
        let hint = options.get("hint").cloned();
        Ok(Self { sort, projection, positional, included, setting, skip, limit, hint, bounds })
    }
}

/// Options of a count.
#[derive(Debug, Default)]
pub struct CountOptions {
    /// documents to leave out
    pub skip: u64,
    /// documents to count at most; None: all
    pub limit: Option<u64>,
    /// the statement's collation, variables and time, as `Environment::to_json` writes them
    pub setting: Option<Json>,
    /// the index to use
    pub hint: Option<Json>,
}

impl CountOptions {
    /// Parses the options of `count_documents`.
    ///
    /// # Errors
    /// `UnknownOption`, `TypeMismatch`, `BadValue`.
    pub fn parse(namespace: &str, json: &Json) -> Result<Self> {
        let options = Options::of(json, "count_documents", &["skip", "limit", "hint", "collation", "let", "comment"])?;
        let count = |name: &str| -> Result<Option<u64>> {
            let Some(n) = options.integer(name)? else { return Ok(None) };
            u64::try_from(n)
                .map(Some)
                .map_err(|_| Error::new(Kind::Location51024, format!("{name} must be non-negative, but received: {n}")))
        };
        let limit = count("limit")?;
        if limit == Some(0) {
            return Err(Error::new(Kind::BadValue, "the limit must be positive"));
        }
        let hint = options.get("hint").cloned();
        Ok(Self { skip: count("skip")?.unwrap_or(0), limit, setting: options.setting(namespace, &[])?, hint })
    }
}
