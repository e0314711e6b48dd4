//! Adds a document's results from another collection to a field of the document: as an array, or, if `$unwind` follows, as one
//! document for each result.

use super::unwind::with;
use crate::budget;
use crate::error::{Kind, Result, ensure};
use crate::query::stage::operation::Unwound;
use crate::query::stage::runtime::stream::{Input, Stream, object};
use crate::values::document::MAX_DOCUMENT_BYTES;
use crate::values::document::number::Number;
use crate::values::document::raw::{self, RawObject};
use crate::values::document::value::Value;
use crate::values::document::write::{self, Part};

/// The field that the results are written to.
#[derive(Debug)]
pub(in crate::query::stage) struct ResultField {
    /// the field's path
    pub path: String,
    /// the options of the `$unwind` of this field that follows; None if none follows
    pub unwound: Option<Unwound>,
}

/// A source of documents, each with its results.
pub(in crate::query::stage) trait LocalDocuments<'s> {
    /// The next document, and a stream of its results, which is read before the next call.
    ///
    /// # Errors
    /// Those of reading.
    fn next(&mut self) -> Result<Option<(Vec<u8>, Input<'s>)>>;
}

/// The stream of documents with their results in place.
pub(in crate::query::stage) struct Attached<'s, S: LocalDocuments<'s>> {
    source: S,
    target: ResultField,
    /// the document that is being unwound, its results, and how many of them have been returned
    current: Option<(Vec<u8>, Input<'s>, i64)>,
    made: Vec<u8>,
}

impl<'s, S: LocalDocuments<'s>> Attached<'s, S> {
    pub fn new(source: S, target: ResultField) -> Self {
        Self { source, target, current: None, made: Vec::new() }
    }

    /// Makes the document of the next result; false after the last one.
    fn unwind(&mut self, unwound: &Unwound) -> Result<bool> {
        let Some((bytes, results, count)) = &mut self.current else { return Ok(false) };
        let local = object(bytes)?;
        let position = *count;
        if results.advance()? {
            *count += 1;
            let made = write::document(&with(local, &self.target.path, Some(Part::Raw(raw::root(results.bytes())))))?;
            self.made = indexed(made, unwound, Value::Number(Number::long(position)))?;
            return Ok(true);
        }
        let is_kept = position == 0 && unwound.preserves;
        if is_kept {
            let empty = write::document(&with(local, &self.target.path, Some(Part::Array(Vec::new()))))?;
            let without = write::document(&with(object(&empty)?, &self.target.path, None))?;
            self.made = indexed(without, unwound, Value::Null)?;
        }
        self.current = None;
        Ok(is_kept)
    }
}

impl<'s, S: LocalDocuments<'s>> Stream for Attached<'s, S> {
    fn advance(&mut self) -> Result<bool> {
        let unwound = self.target.unwound.clone();
        loop {
            budget::step();
            if let Some(unwound) = &unwound
                && self.unwind(unwound)?
            {
                return Ok(true);
            }
            let Some((bytes, results)) = self.source.next()? else { return Ok(false) };
            if unwound.is_some() {
                self.current = Some((bytes, results, 0));
                continue;
            }
            self.made = with_all(object(&bytes)?, &self.target.path, results)?;
            return Ok(true);
        }
    }

    fn bytes(&self) -> &[u8] {
        &self.made
    }
}

fn indexed(made: Vec<u8>, unwound: &Unwound, position: Value) -> Result<Vec<u8>> {
    match &unwound.index {
        Some(path) => write::document(&with(object(&made)?, path, Some(Part::Owned(position)))),
        None => Ok(made),
    }
}

fn with_all(local: RawObject<'_>, path: &str, mut results: Input<'_>) -> Result<Vec<u8>> {
    let mut size = 0;
    let mut found: Vec<Vec<u8>> = Vec::new();
    while results.advance()? {
        size += results.bytes().len();
        ensure!(
            size <= MAX_DOCUMENT_BYTES,
            Kind::BSONObjectTooLarge,
            "the documents for the field '{path}' of one document are larger than {MAX_DOCUMENT_BYTES} bytes"
        );
        found.push(results.bytes().to_vec());
    }
    let array = Part::Array(found.iter().map(|bytes| Part::Raw(raw::root(bytes))).collect());
    write::document(&with(local, path, Some(array)))
}
