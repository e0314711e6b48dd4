//! Dotted paths over documents.
//!
//! A path is stored as text and split at its dots during a walk, without allocations. The document's depth bounds every walk, not
//! the path's length.
//!
//! INVARIANT: a walk never enters an extended value (`{"$date": …}`): it counts as a scalar.

use crate::budget;
use crate::error::{Error, Kind, Result};
use crate::values::document::MAX_DEPTH;
use crate::values::document::element::Element;
use crate::values::document::ext_json;
use crate::values::document::raw::{RawArray, RawObject, RawValue};

/// The first component of a path, and the rest.
pub(crate) fn split(path: &str) -> (&str, Option<&str>) {
    match path.split_once('.') {
        Some((head, rest)) => (head, Some(rest)),
        None => (path, None),
    }
}

/// The array position that a component names: digits without a leading zero.
pub(crate) fn array_index(component: &str) -> Option<usize> {
    let canonical = component == "0" || !component.starts_with('0');
    if canonical && !component.is_empty() && component.bytes().all(|b| b.is_ascii_digit()) {
        component.parse().ok()
    } else {
        None
    }
}

/// The embedded document that a value is; None for anything else, extended values included.
pub(crate) fn embedded(value: RawValue<'_>) -> Option<RawObject<'_>> {
    let RawValue::Object(object) = value else { return None };
    // All names in an extended value start with `$`, so the first one decides in nearly all cases.
    let suspicious = object.iter().next().is_some_and(|(name, _)| name.starts_with('$'));
    if suspicious && !matches!(Element::of(value), Element::Object(_)) { None } else { Some(object) }
}

/// Returns the value at a path that leads through embedded documents only.
pub(crate) fn value_at<'d>(document: RawObject<'d>, path: &str) -> Option<RawValue<'d>> {
    let (head, rest) = split(path);
    let value = document.get(head)?;
    match rest {
        None => Some(value),
        Some(rest) => value_at(embedded(value)?, rest),
    }
}

/// True if `path` lies strictly below `ancestor`.
pub(crate) fn is_below(path: &str, ancestor: &str) -> bool {
    path.strip_prefix(ancestor).is_some_and(|rest| rest.starts_with('.'))
}

/// The value at a path through embedded documents only; an array on the path is returned itself. None if missing.
pub(crate) fn resolve<'a>(object: RawObject<'a>, path: &str) -> Option<RawValue<'a>> {
    let (head, rest) = split(path);
    let value = object.get(head)?;
    match (rest, value) {
        (None, _) | (_, RawValue::Array(_)) => Some(value),
        (Some(rest), _) => resolve(embedded(value)?, rest),
    }
}

/// The value at a path through embedded documents and named positions of arrays. None if missing.
pub(crate) fn at<'a>(object: RawObject<'a>, path: &str) -> Option<RawValue<'a>> {
    inside(RawValue::Object(object), path)
}

/// The start of a path: a document, or an array, whose positions are its names.
#[derive(Clone, Copy)]
pub(crate) enum Base<'a> {
    Object(RawObject<'a>),
    Array(RawArray<'a>),
    /// a document of one field
    Field(&'a str, RawValue<'a>),
}

impl<'a> Base<'a> {
    fn get(self, name: &str) -> Option<RawValue<'a>> {
        match self {
            Base::Field(field, value) => (name == field).then_some(value),
            Base::Object(object) => object.get(name),
            Base::Array(array) => array_index(name).and_then(|index| array.get(index)),
        }
    }
}

/// What an array at the end of a path yields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AtEnd {
    /// its elements, and then the array itself
    Elements,
    /// the array itself
    Whole,
}

/// True if `test` accepts one of the values at a query's path, as MongoDB's `BSONElementIterator` yields them. In arrays on the path
/// the elements that are documents are searched, and the position that a numeric component names; an array at the end yields
/// what `at_end` says. `None` stands for a missing value. An array on the path without such elements yields nothing, not even
/// `None`.
pub(crate) fn any<'a>(base: Base<'a>, path: &str, at_end: AtEnd, test: &impl Fn(Option<RawValue<'a>>) -> bool) -> bool {
    let (head, rest) = split(path);
    match (base.get(head), rest) {
        (None, _) => test(None),
        (Some(value), None) => any_at_end(value, at_end, test),
        (Some(RawValue::Array(array)), Some(rest)) => any_in_array(array, rest, at_end, test),
        (Some(value), Some(rest)) => match embedded(value) {
            Some(inner) => any(Base::Object(inner), rest, at_end, test),
            None => test(None),
        },
    }
}

/// Like [`any`], but returns the position in the outermost array on the path: None if nothing is accepted, Some(None) if the accepted
/// value lies in no array, or at a position that the path names.
pub(crate) fn position<'a>(
    base: Base<'a>,
    path: &str,
    at_end: AtEnd,
    test: &impl Fn(Option<RawValue<'a>>) -> bool,
) -> Option<Option<usize>> {
    let (head, rest) = split(path);
    match (base.get(head), rest) {
        (None, _) => test(None).then_some(None),
        (Some(value @ RawValue::Array(array)), None) if at_end == AtEnd::Elements => {
            let found = counted(array).position(|element| test(Some(element)));
            found.map(Some).or_else(|| test(Some(value)).then_some(None))
        }
        (Some(value), None) => test(Some(value)).then_some(None),
        (Some(RawValue::Array(array)), Some(rest)) => {
            let enters = |element| embedded(element).is_some_and(|inner| any(Base::Object(inner), rest, at_end, test));
            let found = counted(array).position(enters);
            found.map(Some).or_else(|| any_in_array(array, rest, at_end, test).then_some(None))
        }
        (Some(value), Some(rest)) => match embedded(value) {
            Some(inner) => position(Base::Object(inner), rest, at_end, test),
            None => test(None).then_some(None),
        },
    }
}

/// Like [`at`], from any start.
pub(crate) fn end<'a>(base: Base<'a>, path: &str) -> Option<RawValue<'a>> {
    let (head, rest) = split(path);
    let value = base.get(head)?;
    rest.map_or(Some(value), |rest| inside(value, rest))
}

fn inside<'a>(value: RawValue<'a>, path: &str) -> Option<RawValue<'a>> {
    path.split('.').try_fold(value, |value, name| match value {
        RawValue::Array(array) => array.get(array_index(name)?),
        value => embedded(value)?.get(name),
    })
}

/// An array's elements, each counted as a step.
fn counted(array: RawArray<'_>) -> impl Iterator<Item = RawValue<'_>> {
    array.iter().inspect(|_| budget::step())
}

/// Like [`any`], at the end of the path.
#[inline]
pub(crate) fn any_at_end<'a>(value: RawValue<'a>, at_end: AtEnd, test: &impl Fn(Option<RawValue<'a>>) -> bool) -> bool {
    match value {
        RawValue::Array(array) if at_end == AtEnd::Elements => {
            counted(array).any(|element| test(Some(element))) || test(Some(value))
        }
        value => test(Some(value)),
    }
}

fn any_in_array<'a>(
    array: RawArray<'a>,
    path: &str,
    at_end: AtEnd,
    test: &impl Fn(Option<RawValue<'a>>) -> bool,
) -> bool {
    if counted(array).filter_map(embedded).any(|element| any(Base::Object(element), path, at_end, test)) {
        return true;
    }
    let (head, rest) = split(path);
    let Some(element) = array_index(head).and_then(|index| array.get(index)) else { return false };
    match (rest, element) {
        (None, _) => test(Some(element)),
        (Some(rest), RawValue::Array(nested)) => any_in_array(nested, rest, at_end, test),
        (Some(rest), _) => embedded(element).is_some_and(|inner| any(Base::Object(inner), rest, at_end, test)),
    }
}

/// Checks a path of a projection or of a sort specification.
///
/// # Errors
/// Those of MongoDB's `FieldPath`: for an empty path or component, a null byte, and a component that starts with `$`; `Overflow` for more
/// components than a document's greatest depth.
pub(crate) fn check_field_path(path: &str) -> Result<()> {
    let error = |kind, message: &str| Err(Error::new(kind, message));
    if path.is_empty() {
        return error(Kind::Location(40352), "FieldPath cannot be constructed with empty string");
    }
    if path.ends_with('.') {
        return error(Kind::Location(40353), "FieldPath must not end with a '.'.");
    }
    if path.split('.').count() > MAX_DEPTH {
        return error(Kind::Overflow, "FieldPath is too long");
    }
    if path.contains('\0') {
        return error(Kind::Location(16411), "FieldPath field names may not contain null bytes.");
    }
    for (position, name) in path.split('.').enumerate() {
        if name.is_empty() {
            return error(Kind::Location(15998), "FieldPath field names may not be empty strings.");
        }
        if name.starts_with('$') && (position == 0 || !ext_json::is_reference(name)) {
            let message = "FieldPath field names may not start with '$'. Consider using $getField or $setField.";
            return error(Kind::Location(16410), message);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_canonical_digits_name_a_position() {
        for (component, index) in [("0", Some(0)), ("10", Some(10)), ("01", None), ("", None), ("-1", None)] {
            assert_eq!(array_index(component), index, "{component}");
        }
        assert_eq!(array_index("99999999999999999999999"), None);
    }

    #[test]
    fn below_is_strict_and_by_component() {
        assert!(is_below("a.b", "a"));
        assert!(!is_below("a", "a"));
        assert!(!is_below("ab", "a"));
    }

    #[test]
    fn field_paths_are_checked() {
        assert!(check_field_path("a.b.0.$id").is_ok());
        for (path, code) in [
            ("", 40352),
            ("a.", 40353),
            (".a", 15998),
            ("a..b", 15998),
            ("$a", 16410),
            ("a.$b", 16410),
            ("$id", 16410),
            (&["a"; 200].join("."), 15),
        ] {
            assert_eq!(check_field_path(path).unwrap_err().kind.code(), code, "{path}");
        }
    }
}
