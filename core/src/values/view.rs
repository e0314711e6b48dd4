//! A common, borrowed view of stored and owned values, so that comparison and key encoding are written once for both.
//!
//! Values that compare equal have the same view: undefined is null, a symbol is its string, and an owned object's fields have
//! jsonb's order.

use super::document::element::Element;
use super::document::number::Number;
use super::document::raw::{RawArray, RawObject, RawValue, compare_keys};
use super::document::value::Value;

/// A value, stored or owned.
pub(crate) enum View<'a> {
    MinKey,
    Null,
    Number(&'a Number),
    String(&'a str),
    Object(Fields<'a>),
    Array(Items<'a>),
    Binary(u8, &'a [u8]),
    ObjectId(&'a [u8; 12]),
    Bool(bool),
    Date(i64),
    Timestamp(u32, u32),
    Regex(&'a str, &'a str),
    DbPointer(&'a str, &'a [u8; 12]),
    Code(&'a str),
    CodeWithScope(&'a str, Fields<'a>),
    MaxKey,
}

/// An object's fields.
#[derive(Clone, Copy)]
pub(crate) enum Fields<'a> {
    Stored(RawObject<'a>),
    Owned(&'a [(String, Value)]),
}

/// An array's elements.
#[derive(Clone, Copy)]
pub(crate) enum Items<'a> {
    Stored(RawArray<'a>),
    Owned(&'a [Value]),
}

/// A child that is not classified yet.
pub(crate) enum Child<'a> {
    Stored(RawValue<'a>),
    Owned(&'a Value),
}

impl<'a> View<'a> {
    #[inline]
    pub(crate) fn of_element(element: &'a Element<'_>) -> View<'a> {
        match element {
            Element::MinKey => View::MinKey,
            Element::Undefined | Element::Null => View::Null,
            Element::Number(number) => View::Number(number),
            Element::String(value) | Element::Symbol(value) => View::String(value),
            Element::Object(object) => View::Object(Fields::Stored(*object)),
            Element::Array(array) => View::Array(Items::Stored(*array)),
            Element::Binary(subtype, bytes) => View::Binary(*subtype, bytes),
            Element::ObjectId(id) => View::ObjectId(id),
            Element::Bool(value) => View::Bool(*value),
            Element::Date(millis) => View::Date(*millis),
            Element::Timestamp(t, i) => View::Timestamp(*t, *i),
            Element::Regex(pattern, options) => View::Regex(pattern, options),
            Element::DbPointer(namespace, id) => View::DbPointer(namespace, id),
            Element::Code(code) => View::Code(code),
            Element::CodeWithScope(code, scope) => View::CodeWithScope(code, Fields::Stored(*scope)),
            Element::MaxKey => View::MaxKey,
        }
    }

    #[inline]
    pub(crate) fn of_value(value: &'a Value) -> View<'a> {
        match value {
            Value::MinKey => View::MinKey,
            Value::Undefined | Value::Null => View::Null,
            Value::Number(number) => View::Number(number),
            Value::String(value) | Value::Symbol(value) => View::String(value),
            Value::Object(fields) => View::Object(Fields::Owned(fields)),
            Value::Array(items) => View::Array(Items::Owned(items)),
            Value::Binary(subtype, bytes) => View::Binary(*subtype, bytes),
            Value::ObjectId(id) => View::ObjectId(id),
            Value::Bool(value) => View::Bool(*value),
            Value::Date(millis) => View::Date(*millis),
            Value::Timestamp(t, i) => View::Timestamp(*t, *i),
            Value::Regex(pattern, options) => View::Regex(pattern, options),
            Value::DbPointer(namespace, id) => View::DbPointer(namespace, id),
            Value::Code(code) => View::Code(code),
            Value::CodeWithScope(code, scope) => View::CodeWithScope(code, Fields::Owned(scope)),
            Value::MaxKey => View::MaxKey,
        }
    }

    pub(crate) fn class(&self) -> Class {
        match self {
            View::MinKey => Class::MinKey,
            View::Null => Class::Null,
            View::Number(_) => Class::Number,
            View::String(_) => Class::String,
            View::Object(_) => Class::Object,
            View::Array(_) => Class::Array,
            View::Binary(..) => Class::Binary,
            View::ObjectId(_) => Class::ObjectId,
            View::Bool(_) => Class::Bool,
            View::Date(_) => Class::Date,
            View::Timestamp(..) => Class::Timestamp,
            View::Regex(..) => Class::Regex,
            View::DbPointer(..) => Class::DbPointer,
            View::Code(_) => Class::Code,
            View::CodeWithScope(..) => Class::CodeWithScope,
            View::MaxKey => Class::MaxKey,
        }
    }
}

impl<'a> Fields<'a> {
    /// Calls back with the fields in jsonb's order.
    pub(crate) fn with_sorted<R>(
        self,
        use_fields: impl FnOnce(&mut dyn Iterator<Item = (&'a str, Child<'a>)>) -> R,
    ) -> R {
        match self {
            Fields::Stored(object) => use_fields(&mut object.iter().map(|(name, value)| (name, Child::Stored(value)))),
            Fields::Owned(fields) => {
                let sorted = sorted(fields);
                use_fields(&mut sorted.iter().map(|(name, value)| (*name, Child::Owned(value))))
            }
        }
    }
}

fn sorted(fields: &[(String, Value)]) -> Vec<(&str, &Value)> {
    let mut sorted: Vec<(&str, &Value)> = fields.iter().map(|(name, value)| (name.as_str(), value)).collect();
    sorted.sort_by(|a, b| compare_keys(a.0.as_bytes(), b.0.as_bytes()));
    sorted
}

impl<'a> Items<'a> {
    pub(crate) fn iter(self) -> impl Iterator<Item = Child<'a>> {
        let (stored, owned) = match self {
            Items::Stored(array) => (Some(array), None),
            Items::Owned(items) => (None, Some(items)),
        };
        let stored = stored.into_iter().flat_map(|array| array.iter()).map(Child::Stored);
        stored.chain(owned.into_iter().flatten().map(Child::Owned))
    }
}

impl Child<'_> {
    /// Classifies the child and calls back with its view.
    #[inline]
    pub(crate) fn with_view<R>(&self, use_view: impl FnOnce(View<'_>) -> R) -> R {
        match self {
            Child::Stored(raw) => use_view(View::of_element(&Element::of(*raw))),
            Child::Owned(value) => use_view(View::of_value(value)),
        }
    }
}

/// The class of a value (type bracketing): a range matches only values of one class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum Class {
    MinKey = 0x10,
    /// null, undefined and missing
    Null = 0x20,
    Number = 0x30,
    /// strings and symbols
    String = 0x40,
    Object = 0x50,
    Array = 0x60,
    Binary = 0x70,
    ObjectId = 0x80,
    Bool = 0x90,
    Date = 0xA0,
    Timestamp = 0xB0,
    Regex = 0xC0,
    DbPointer = 0xC8,
    Code = 0xD0,
    CodeWithScope = 0xD8,
    MaxKey = 0xF0,
}

impl Class {
    /// A stored value's class.
    pub fn of_raw(raw: RawValue<'_>) -> Class {
        match raw {
            RawValue::Null => Class::Null,
            RawValue::Bool(_) => Class::Bool,
            RawValue::Number(_) => Class::Number,
            RawValue::String(_) => Class::String,
            RawValue::Array(_) => Class::Array,
            RawValue::Object(_) => View::of_element(&Element::of(raw)).class(),
        }
    }

    /// An owned value's class.
    pub fn of(value: &Value) -> Class {
        View::of_value(value).class()
    }
}
