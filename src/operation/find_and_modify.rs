//! Changes or deletes one document and returns it.

use super::arguments::Arguments;
use super::request_parts::Specification;
use super::writing::DocumentWrite;
use crate::pg::error::{Error, Result};
use docshard_core::error::{Kind, error};
use docshard_core::query::envelope;
use docshard_core::query::projection::Projection;
use docshard_core::query::specification;
use docshard_core::query::update::Style;
use docshard_core::routing::request::modification::WriteResult;
use docshard_core::routing::request::query::Query;
use docshard_core::values::document::raw;
use serde_json::Value as Json;

#[derive(Debug)]
pub struct FindAndModify<'a> {
    write: DocumentWrite<'a>,
    projection: Option<&'a Json>,
    /// return the new document, not the old one
    new: bool,
}

impl<'a> FindAndModify<'a> {
    /// Reads the options. The new document is requested by `returnDocument: "after"`, or by the flag `new`, which the shell calls
    /// `returnNewDocument`.
    pub fn of(
        filter: Specification<'a>,
        update: Option<(Specification<'a>, Style)>,
        arguments: &Arguments<'a>,
    ) -> Self {
        Self {
            write: DocumentWrite::of(filter, update, false, arguments, None),
            projection: arguments.get("projection"),
            new: arguments.text("returnDocument").map_or_else(|| arguments.flag("new"), |state| state == "after"),
        }
    }

    /// Like [`of`](Self::of), if filter and update are among the arguments.
    pub fn of_specification(arguments: &Arguments<'a>) -> Self {
        let update = arguments.get("update").map(|update| (Specification::Value(update), Style::Either));
        Self::of(Specification::of(arguments.get("filter")), update, arguments)
    }

    /// Returns the projected document, if one matched, and the counts. An upsert that inserts has no old document.
    pub fn run(&self, namespace: &str) -> Result<(Option<Vec<u8>>, WriteResult)> {
        let query = self.write.shared.query(namespace, self.write.filter)?;
        let projection = projection(self.projection, &query)?;
        let after = self.new && self.write.update.is_some();
        // Refused: the update may remove the array element that the filter matched, and that the projection would return.
        if after && projection.as_ref().is_some_and(Projection::is_positional) {
            let message = "cannot use a positional projection and return the new document";
            return Err(Error::new(Kind::BadValue, message));
        }
        let mut result = self.write.run_on(namespace, &query, true)?;
        let document = if after { result.after.take() } else { result.before.take() };
        let document = match (document, projection) {
            (Some(document), Some(projection)) => {
                let object = raw::document(&document)
                    .ok_or_else(|| error!(Kind::InternalError, "a shard returned a value that is no document"))?;
                Some(projection.apply(object)?)
            }
            (document, _) => document,
        };
        Ok((document, result))
    }
}

/// Parses the projection; None if whole documents are returned.
fn projection(json: Option<&Json>, query: &Query) -> Result<Option<Projection>> {
    let Some(json) = json else { return Ok(None) };
    let parsed = Projection::parse_in(json, &query.environment)?;
    if parsed.is_identity() {
        return Ok(None);
    }
    if !parsed.is_positional() {
        return Ok(Some(parsed));
    }
    let text = envelope::wrap(&json.to_string(), query.environment.json().as_ref(), Some(&query.text()));
    Ok(Some(Projection::read(&specification::parse(&text)?)?))
}
