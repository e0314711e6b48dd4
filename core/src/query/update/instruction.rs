//! An update as it travels: its own text and whatever else decides what it does to a document, as one JSON text. A router
//! writes it, every shard reads it, so that all of them do the same, at one time.

use super::apply::{Form, Update};
use crate::error::{Kind, Result, bail};
use crate::query::environment::Environment;
use crate::query::filter::Filter;
use serde_json::{Map, Value as Json};

/// What an update may look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// operators, or a pipeline
    Operators,
    /// a document to put in place of another
    Replacement,
    /// what it looks like: without operators it is a replacement
    Either,
}

/// An update and what belongs to it.
#[derive(Clone, Copy, Debug)]
pub struct Instruction<'a> {
    /// the update
    pub update: &'a Json,
    /// its text
    pub text: &'a str,
    /// what it may be
    pub style: Style,
    /// the conditions that `$[identifier]` names, an array
    pub array_filters: Option<&'a Json>,
    /// the text of what chose the documents: `$` stands for the element by which they match
    pub filter: &'a str,
    /// the time, in milliseconds since 1970
    pub now: i64,
    /// the statement's collation and variables, as `Environment::to_json` writes them
    pub environment: Option<&'a Json>,
}

/// An instruction ready to be sent.
#[derive(Debug)]
pub struct Compiled {
    /// the parsed update
    pub update: Update,
    /// what [`read`] reads
    pub text: String,
    /// true if all this comes of operators alone, which are used again and again, unlike a replacement, a filter or the time
    pub is_lasting: bool,
}

impl Instruction<'_> {
    /// The parsed update, and the text that [`read`] reads. What a shard has no need of is left out.
    ///
    /// # Errors
    /// Those of [`Update::parse_with_array_filters`] and [`Update::parse_replacement`]; `FailedToParse` for array filters
    /// beside a replacement, `TypeMismatch` for array filters that are none.
    pub fn compile(&self) -> Result<Compiled> {
        let json = self.update;
        let filters = match self.array_filters {
            None => &[][..],
            Some(Json::Array(filters)) if filters.iter().all(Json::is_object) => filters,
            Some(_) => bail!(Kind::TypeMismatch, "arrayFilters must be an array of documents"),
        };
        let replaces = match self.style {
            Style::Replacement => true,
            Style::Operators => false,
            Style::Either => match json {
                Json::Object(fields) => !fields.keys().next().is_some_and(|name| name.starts_with('$')),
                _ => false,
            },
        };
        if replaces && !filters.is_empty() {
            bail!(Kind::FailedToParse, "arrayFilters may not be specified for replacement-style updates");
        }
        // A pipeline may ask for the time in any place.
        let mut environment = self.environment.cloned();
        if json.is_array() {
            let fields = environment.get_or_insert_with(|| Json::Object(Map::new()));
            fields["now"] = Json::from(self.now);
        }
        let mut update = if replaces {
            Update::parse_replacement(json)?
        } else {
            Update::parse_in(
                json,
                filters,
                &environment.as_ref().map(Environment::parse).transpose()?.unwrap_or_default(),
            )?
        };
        let mut text = format!("{{\"update\":{}", self.text);
        let alone = text.len();
        if replaces {
            text += ",\"replace\":true";
        }
        if let Some(filters) = self.array_filters {
            text += &format!(",\"arrayFilters\":{filters}");
        }
        if let Some(environment) = environment.filter(|_| !replaces) {
            text += &format!(",\"setting\":{environment}");
        }
        if update.is_positional() {
            text += &format!(",\"filter\":{}", self.filter);
        }
        if update.needs_clock() {
            text += &format!(",\"now\":{}", self.now);
            update.now = Some(self.now);
        }
        let is_lasting = text.len() == alone;
        text.push('}');
        Ok(Compiled { update, text, is_lasting })
    }
}

/// Reads what [`Instruction::compile`] wrote.
///
/// # Errors
/// Those of [`Instruction::compile`].
pub fn read(json: &Json) -> Result<Update> {
    let Some(update) = json.get("update") else { bail!(Kind::FailedToParse, "an instruction must have an update") };
    if json.get("replace").is_some() {
        return Update::parse_replacement(update);
    }
    let filters = json.get("arrayFilters").and_then(Json::as_array).map_or(&[][..], Vec::as_slice);
    let environment = json.get("setting").map(Environment::parse).transpose()?.unwrap_or_default();
    let mut read = Update::parse_in(update, filters, &environment)?;
    read.now = json.get("now").and_then(Json::as_i64);
    if let (Form::Operators(operators), Some(filter)) = (&mut read.form, json.get("filter")) {
        operators.filter = Some(Filter::read(filter)?);
    }
    Ok(read)
}
