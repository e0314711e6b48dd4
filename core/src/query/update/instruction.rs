//! The form in which an update is sent to shards: one JSON text with the update and everything else that its effect depends on. All
//! shards read the same text, so they apply the same update with the same time.

use super::apply::{Form, Update};
use crate::error::{Kind, Result, bail};
use crate::query::environment::Environment;
use crate::query::filter::Filter;
use crate::values::document::ext_json;
use crate::values::document::field_order::Keeping;
use serde_json::Value as Json;

/// The field that says that documents keep the order of their fields. Shards of earlier releases ignore it.
const ORDERED: &str = ",\"ordered\":true";

/// The allowed forms of an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// operators, or a pipeline
    Operators,
    /// a replacement document
    Replacement,
    /// any form: without operators it is a replacement
    Either,
    /// a document whose fields are set in the existing document, as `$merge` does by default
    Merge,
}

/// The stages that have the effect of [`Style::Merge`]; `$$new` is the document. Shards of release 0.2.0 run these stages. Later releases
/// set the fields without them, because the memory for values of expressions, such as `$$new`, is limited.
const MERGING_STAGES: &str = r#"[{"$replaceWith":{"$mergeObjects":["$$ROOT","$$new"]}}]"#;

/// An update with everything that its effect depends on.
#[derive(Clone, Copy, Debug)]
pub struct Instruction<'a> {
    /// the update
    pub update: &'a Json,
    /// its text
    pub text: &'a str,
    /// its allowed forms
    pub style: Style,
    /// the conditions of `$[identifier]`, an array
    pub array_filters: Option<&'a Json>,
    /// the text of the documents' filter: `$` refers to the element by which they match
    pub filter: &'a str,
    /// the time, in milliseconds since 1970; a time in the environment takes precedence
    pub now: i64,
    /// true if the document's shard key must not change
    pub keeps_key: bool,
    /// the environment of the statement
    pub environment: &'a Environment,
}

/// An instruction that can be sent.
#[derive(Debug)]
pub struct Compiled {
    /// the parsed update
    pub update: Update,
    /// the text for [`read`]
    pub text: String,
    /// true if the text has only an update by operators: no filter, array filters, environment, time or fixed shard key. Such texts often
    /// occur again
    pub is_lasting: bool,
}

impl Instruction<'_> {
    /// The conditions of array filters; and true if the update is a replacement.
    fn form(&self) -> Result<(&[Json], bool)> {
        let json = self.update;
        let filters = match self.array_filters {
            None => &[][..],
            Some(Json::Array(filters)) if filters.iter().all(|filter| ext_json::document(filter).is_some()) => filters,
            Some(_) => bail!(Kind::TypeMismatch, "arrayFilters must be an array of documents"),
        };
        let replaces = match self.style {
            Style::Replacement => true,
            Style::Operators | Style::Merge => false,
            Style::Either => match json {
                Json::Object(fields) => !fields.keys().next().is_some_and(|name| name.starts_with('$')),
                _ => false,
            },
        };
        if replaces && !filters.is_empty() {
            bail!(Kind::FailedToParse, "arrayFilters may not be specified for replacement-style updates");
        }
        Ok((filters, replaces))
    }

    /// Parses the update, and writes the text for [`read`], without the parts that a shard does not need.
    ///
    /// # Errors
    /// Those of [`Update::parse_with_array_filters`] and [`Update::parse_replacement`]; `FailedToParse` for array filters
    /// beside a replacement, `TypeMismatch` for invalid array filters.
    pub fn compile(&self) -> Result<Compiled> {
        let (json, merges) = (self.update, self.style == Style::Merge);
        let (filters, replaces) = self.form()?;
        // The environment of a pipeline always has the time, as any expression may use it.
        let environment = if json.is_array() { self.environment.timed(self.now) } else { self.environment.clone() };
        let mut update = if replaces {
            Update::parse_replacement(json)?
        } else if merges {
            Update::parse_merge(json)?
        } else {
            Update::parse_in(json, filters, &environment)?
        };
        let mut text = if merges {
            let document = self.text;
            format!(r#"{{"update":{MERGING_STAGES},"setting":{{"let":{{"new":{{"$literal":{document}}}}}}}"#)
        } else {
            format!("{{\"update\":{}", self.text)
        };
        if update.ordered {
            text += ORDERED;
        }
        let alone = text.len();
        if merges {
            text += ",\"merges\":true";
        }
        if replaces {
            text += ",\"replace\":true";
        }
        if let Some(filters) = self.array_filters {
            text += &format!(",\"arrayFilters\":{filters}");
        }
        if !replaces
            && !merges
            && let Some(environment) = environment.json()
        {
            text += &format!(",\"setting\":{environment}");
        }
        if update.is_positional() {
            text += &format!(",\"filter\":{}", self.filter);
        }
        if update.needs_clock() {
            text += &format!(",\"now\":{}", self.now);
            update.now = Some(self.now);
        }
        if self.keeps_key {
            text += ",\"keepsKey\":true";
            update.keeps_key = true;
        }
        let is_lasting = text.len() == alone;
        text.push('}');
        Ok(Compiled { update, text, is_lasting })
    }
}

/// Reads the text that [`Instruction::compile`] wrote.
///
/// # Errors
/// Those of [`Instruction::compile`].
pub fn read(json: &Json) -> Result<Update> {
    let _keeping = Keeping::order_if(json.get("ordered").is_some());
    let Some(update) = json.get("update") else { bail!(Kind::FailedToParse, "an instruction must have an update") };
    let keeps_key = json.get("keepsKey").is_some();
    if json.get("replace").is_some() {
        return Ok(Update { keeps_key, ..Update::parse_replacement(update)? });
    }
    if json.get("merges").is_some() {
        let Some(document) = json.pointer("/setting/let/new/$literal") else {
            bail!(Kind::FailedToParse, "a merging instruction must have a document")
        };
        return Ok(Update { keeps_key, ..Update::parse_merge(document)? });
    }
    let filters = json.get("arrayFilters").and_then(Json::as_array).map_or(&[][..], Vec::as_slice);
    let environment = json.get("setting").map(Environment::parse).transpose()?.unwrap_or_default();
    let mut read = Update::parse_in(update, filters, &environment)?;
    read.now = json.get("now").and_then(Json::as_i64);
    read.keeps_key = keeps_key;
    if let (Form::Operators(operators), Some(filter)) = (&mut read.form, json.get("filter")) {
        operators.filter = Some(Filter::read(filter)?);
    }
    Ok(read)
}
