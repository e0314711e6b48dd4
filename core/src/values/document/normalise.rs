//! Converts a client's document into the form that is stored: adds `_id`, puts it in front if the order of fields is kept, relaxes Extended
//! JSON, checks names and sizes. Names may start with `$`, apart from those that are reserved for Extended JSON and those in `_id`.
//!
//! One walk over the raw bytes. It returns None for values that need no change, so a document in its stored form is not copied; a
//! changed value is returned as [`Part`]s that still borrow everything else from the input.

use super::element::Element;
use super::field_order::keeps_order;
use super::number::Number;
use super::raw::{RawObject, RawValue};
use super::value::Value;
use super::write::{self, Part, too_deep};
use super::{MAX_DEPTH, MAX_DOCUMENT_BYTES, ext_json, raw};
use crate::error::{Error, Kind, Result, bail, ensure, error};
use std::borrow::Cow;

/// A document ready to be stored.
#[derive(Debug)]
pub struct Stored<'a> {
    /// jsonb's bytes; borrowed where the input needed no change
    pub bytes: Cow<'a, [u8]>,
    /// true if an `_id` was generated
    pub generated_id: bool,
}

/// Normalises a document that comes from a client; `new_id` is called when `_id` is missing.
///
/// # Errors
/// `InvalidIdField` for an `_id` that is an array, a regular expression or undefined; `BadValue` for a number beyond every double;
/// `DollarPrefixedFieldName`, `DocumentTooDeep`, `BSONObjectTooLarge`; `FailedToParse` for malformed Extended JSON.
pub fn for_insert<'a>(document: RawObject<'a>, new_id: impl FnOnce() -> [u8; 12]) -> Result<Stored<'a>> {
    check_size(document.bytes())?;
    let edits = root_edits(document)?;
    let generated_id = document.get("_id").is_none();
    let moves_id = !generated_id && keeps_order() && document.first_in_order().is_none_or(|(name, _)| name != "_id");
    let bytes = if generated_id || moves_id {
        let mut fields = edited_fields(document, edits);
        if generated_id {
            fields.insert(0, (Cow::Borrowed("_id"), Part::Owned(Value::ObjectId(new_id()))));
        } else if let Some(at) = fields.iter().position(|(name, _)| name == "_id") {
            fields[..=at].rotate_right(1);
        }
        Cow::Owned(write::document(&Part::Object(fields))?)
    } else if edits.is_empty() {
        Cow::Borrowed(document.bytes())
    } else {
        Cow::Owned(write::document(&Part::Edited(document, edits))?)
    };
    if let Some(id) = raw::document(&bytes).and_then(|document| document.get("_id")) {
        check_id(id)?;
    }
    Ok(Stored { bytes, generated_id })
}

/// Replaces the timestamps `(0, 0)` at the root of a stored document by the current time, as MongoDB does; None if there are
/// none. `_id` keeps its value. `now` is called for each replaced timestamp.
///
/// # Errors
/// `BSONObjectTooLarge`, which does not occur for stored documents.
pub fn with_times(document: RawObject<'_>, mut now: impl FnMut() -> (u32, u32)) -> Result<Option<Vec<u8>>> {
    let is_empty = |value: RawValue<'_>| {
        matches!(value, RawValue::Object(object) if object.dollar_name().is_some())
            && matches!(Element::of(value), Element::Timestamp(0, 0))
    };
    let fields = document.iter().enumerate().filter(|(_, (name, value))| is_empty(*value) && *name != "_id");
    let edits: Edits<'_> = fields
        .map(|(position, _)| {
            let (seconds, ordinal) = now();
            (position, Part::Owned(Value::Timestamp(seconds, ordinal)))
        })
        .collect();
    (!edits.is_empty()).then(|| write::document(&Part::Edited(document, edits))).transpose()
}

/// Checks a value, or a whole document, that a caller gives, and that becomes a part of a document.
///
/// # Errors
/// Those of [`for_insert`], for the values inside.
pub fn check_given(bytes: &[u8]) -> Result<()> {
    changed_value(raw::root(bytes), 0).map(drop)
}

/// The checks of the domain `docshard.document` on a stored value.
///
/// # Errors
/// Those of [`for_insert`], but `BadValue` where Extended JSON is not in its relaxed form.
pub fn check_stored(bytes: &[u8]) -> Result<()> {
    check_size(bytes)?;
    let document =
        raw::document(bytes).ok_or_else(|| error!(Kind::TypeMismatch, "a document must be a JSON object"))?;
    if !root_edits(document)?.is_empty() {
        return Err(not_stored());
    }
    document.get("_id").map_or(Ok(()), check_id)
}

/// Like [`check_stored`], for a stored document in which only the values of the fields at these positions have changed, and not
/// `_id`.
///
/// # Errors
/// Those of [`check_stored`].
pub fn check_edited(document: RawObject<'_>, positions: impl Iterator<Item = usize>) -> Result<()> {
    check_size(document.bytes())?;
    for value in positions.filter_map(|position| document.value_at(position)) {
        if changed_value(value, 1)?.is_some() {
            return Err(not_stored());
        }
    }
    Ok(())
}

fn not_stored() -> Error {
    error!(Kind::BadValue, "The document is not in stored form")
        .with_hint("Insert it with docshard's functions, which convert Extended JSON to its relaxed form.")
}

fn check_size(bytes: &[u8]) -> Result<()> {
    let size = bytes.len();
    let fits = size <= MAX_DOCUMENT_BYTES;
    ensure!(fits, Kind::BSONObjectTooLarge, "The document is {size} bytes large, more than {MAX_DOCUMENT_BYTES}");
    Ok(())
}

/// Checks the `_id` of a document.
///
/// # Errors
/// `InvalidIdField` (array, regex, undefined); `DollarPrefixedFieldName` for an object with a field whose name starts with `$`, unless it
/// is a DBRef.
pub fn check_id(id: RawValue<'_>) -> Result<()> {
    let kind = match Element::of(id) {
        Element::Array(_) => "array",
        Element::Regex(..) => "regex",
        Element::Undefined => "undefined",
        Element::Object(object) => return check_id_names(object),
        _ => return Ok(()),
    };
    bail!(Kind::InvalidIdField, "The '_id' value cannot be of type {kind}")
}

fn check_id_names(id: RawObject<'_>) -> Result<()> {
    match id.dollar_name() {
        Some(name) if !is_reference(id) => bail!(
            Kind::DollarPrefixedFieldName,
            "_id fields may not contain '$'-prefixed fields: {name} is not valid for storage."
        ),
        _ => Ok(()),
    }
}

/// The values that must change, by their positions in jsonb.
type Edits<'a> = Vec<(usize, Part<'a>)>;

/// The document's fields in their order, with the values that change.
fn edited_fields<'a>(document: RawObject<'a>, edits: Edits<'a>) -> Vec<(Cow<'a, str>, Part<'a>)> {
    let mut parts: Vec<_> =
        document.iter().map(|(name, value)| Some((Cow::Borrowed(name), Part::Raw(value)))).collect();
    for (position, part) in edits {
        if let Some(Some(field)) = parts.get_mut(position) {
            field.1 = part;
        }
    }
    match document.order() {
        Some(order) => order.filter_map(|position| parts.get_mut(position)?.take()).collect(),
        None => parts.into_iter().flatten().collect(),
    }
}

/// The document's values that must change. The root cannot be a value of an extended type.
fn root_edits(document: RawObject<'_>) -> Result<Edits<'_>> {
    check_names(document)?;
    edits(document, 1)
}

/// Refuses reserved names at this level.
fn check_names(object: RawObject<'_>) -> Result<()> {
    reserved_name(object).map_or(Ok(()), |name| Err(ext_json::reserved(name)))
}

/// The first reserved name at this level.
fn reserved_name(object: RawObject<'_>) -> Option<&str> {
    object.dollar_name()?;
    object.iter().map(|(name, _)| name).find(|name| ext_json::is_reserved(name))
}

/// The object's values that must change. `depth` counts the documents and arrays around the values.
fn edits(object: RawObject<'_>, depth: usize) -> Result<Edits<'_>> {
    if depth > MAX_DEPTH {
        return Err(too_deep());
    }
    let mut edits = Vec::new();
    for (position, (_, value)) in object.iter().enumerate() {
        if let Some(part) = changed_value(value, depth)? {
            edits.push((position, part));
        }
    }
    Ok(edits)
}

/// The object with the values that must change; None if there is none.
fn changed_object(object: RawObject<'_>, depth: usize) -> Result<Option<Part<'_>>> {
    let edits = edits(object, depth)?;
    Ok((!edits.is_empty()).then_some(Part::Edited(object, edits)))
}

/// The value in its stored form; None if it needs no change.
fn changed_value(value: RawValue<'_>, depth: usize) -> Result<Option<Part<'_>>> {
    match value {
        RawValue::Null | RawValue::Bool(_) | RawValue::String(_) => Ok(None),
        RawValue::Number(number) if number.is_stored_form() => Ok(None),
        RawValue::Number(number) => {
            let double = number.to_f64();
            if !double.is_finite() {
                return Err(error!(Kind::BadValue, "A number exceeds the range of a double")
                    .with_hint("Write it as a decimal: {\"$numberDecimal\": \"…\"}."));
            }
            Ok(Some(Part::Owned(Value::Number(Number::Double(double)))))
        }
        RawValue::Array(array) => {
            if depth >= MAX_DEPTH {
                return Err(too_deep());
            }
            let mut changed: Option<Vec<Part<'_>>> = None;
            for (index, item) in array.iter().enumerate() {
                if let Some(part) = changed_value(item, depth + 1)? {
                    let items = changed.get_or_insert_with(|| array.iter().map(Part::Raw).collect());
                    if let Some(item) = items.get_mut(index) {
                        *item = part;
                    }
                }
            }
            Ok(changed.map(Part::Array))
        }
        RawValue::Object(object) => match object.dollar_name() {
            None => changed_object(object, depth + 1),
            Some(_) => changed_extended(object, depth),
        },
    }
}

/// Like [`changed_value`], for an object with a name that starts with `$`: an extended type, an ordinary object without reserved names, or
/// an error.
fn changed_extended(object: RawObject<'_>, depth: usize) -> Result<Option<Part<'_>>> {
    match Element::of(RawValue::Object(object)) {
        Element::Object(_) => {}
        Element::CodeWithScope(code, scope) => {
            check_names(scope)?;
            let Some(scope) = changed_object(scope, depth + 1)? else { return Ok(None) };
            let code = (Cow::Borrowed("$code"), Part::Raw(RawValue::String(code)));
            return Ok(Some(Part::Object(vec![code, (Cow::Borrowed("$scope"), scope)])));
        }
        Element::Number(Number::Decimal(decimal)) => {
            let printed = decimal.to_string();
            let unchanged = matches!(object.get("$numberDecimal"), Some(RawValue::String(text)) if text == printed);
            return Ok((!unchanged).then_some(Part::Owned(Value::Number(Number::Decimal(decimal)))));
        }
        _ => return Ok(None),
    }
    let Some(name) = reserved_name(object) else { return changed_object(object, depth + 1) };
    if depth >= MAX_DEPTH {
        return Err(too_deep());
    }
    let json = ext_json::to_json(&Value::from_raw(RawValue::Object(object)));
    match ext_json::from_json(&json)? {
        Value::Object(_) => Err(ext_json::reserved(name)),
        value => Ok(Some(Part::Owned(value))),
    }
}

/// True for a DBRef.
fn is_reference(object: RawObject<'_>) -> bool {
    matches!(object.get("$ref"), Some(RawValue::String(_)))
        && object.get("$id").is_some()
        && object.iter().all(|(name, _)| !name.starts_with('$') || ext_json::is_reference(name))
}
