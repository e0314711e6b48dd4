//! An owned value of a document.

use super::element::{Element, impl_type_name};
use super::nested::{Child, Nested};
use super::number::Number;
use super::raw::{RawObject, RawValue};
use crate::budget;
use crate::error::Result;

/// The elements of an array.
pub type Items = Nested<Value>;

/// The fields of an object.
pub type Fields = Nested<(String, Value)>;

/// A value in one of MongoDB's types. `Object` has its fields in order; a stored document keeps that order only while
/// [`keeps_order`](super::field_order::keeps_order).
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub enum Value {
    MinKey,
    Undefined,
    Null,
    Number(Number),
    String(String),
    Object(Fields),
    Array(Items),
    Binary(u8, Vec<u8>),
    ObjectId([u8; 12]),
    Bool(bool),
    Date(i64),
    Timestamp(u32, u32),
    Regex(String, String),
    DbPointer(String, [u8; 12]),
    Code(String),
    CodeWithScope(String, Box<Fields>),
    Symbol(String),
    MaxKey,
}

/// Alias and number of every type. Source: MongoDB's manual, "BSON Types".
pub(crate) const TYPES: &[(&str, i64)] = &[
    ("double", 1),
    ("string", 2),
    ("object", 3),
    ("array", 4),
    ("binData", 5),
    ("undefined", 6),
    ("objectId", 7),
    ("bool", 8),
    ("date", 9),
    ("null", 10),
    ("regex", 11),
    ("dbPointer", 12),
    ("javascript", 13),
    ("symbol", 14),
    ("javascriptWithScope", 15),
    ("int", 16),
    ("timestamp", 17),
    ("long", 18),
    ("decimal", 19),
    ("minKey", -1),
    ("maxKey", 127),
];

/// Finds the alias of a type by its number or its alias.
pub(crate) fn type_of_code(code: Option<i64>, alias: Option<&str>) -> Option<&'static str> {
    let same = |(known, number): &&(&'static str, i64)| code == Some(*number) || alias == Some(*known);
    TYPES.iter().find(same).map(|(alias, _)| *alias)
}

impl Child for Value {
    #[inline]
    fn levels(&self) -> u16 {
        match self {
            Value::Array(items) => items.levels(),
            Value::Object(fields) => fields.levels(),
            Value::CodeWithScope(_, scope) => scope.levels(),
            _ => 0,
        }
    }
}

impl Child for (String, Value) {
    #[inline]
    fn levels(&self) -> u16 {
        self.1.levels()
    }
}

impl_type_name!(Value);

impl Value {
    /// An array.
    ///
    /// # Errors
    /// `DocumentTooDeep`.
    #[inline]
    pub fn array(items: Vec<Value>) -> Result<Value> {
        Nested::new(items).map(Value::Array)
    }
    /// An object.
    ///
    /// # Errors
    /// `DocumentTooDeep`.
    #[inline]
    pub fn object(fields: Vec<(String, Value)>) -> Result<Value> {
        Nested::new(fields).map(Value::Object)
    }
    /// An array whose depth is not checked: see [`Nested::fixed`].
    #[inline]
    pub fn fixed_array(items: Vec<Value>) -> Value {
        Value::Array(Nested::fixed(items))
    }
    /// An object whose depth is not checked: see [`Nested::fixed`].
    #[inline]
    pub fn fixed_object(fields: Vec<(String, Value)>) -> Value {
        Value::Object(Nested::fixed(fields))
    }
    /// An owned copy of a stored value.
    pub fn from_raw(raw: RawValue<'_>) -> Value {
        Value::from_element(&Element::of(raw))
    }
    /// An owned copy of an element. Values nested deeper than any document become null.
    pub fn from_element(element: &Element<'_>) -> Value {
        copy(element, super::MAX_RECURSION)
    }
    /// True for a string, and for an array or object that contains one: such values may differ and still be equal under a collation.
    pub fn has_strings(&self) -> bool {
        budget::step();
        match self {
            Value::String(_) | Value::Symbol(_) => true,
            Value::Array(items) => items.iter().any(Value::has_strings),
            Value::Object(fields) => fields.iter().any(|(_, value)| value.has_strings()),
            _ => false,
        }
    }
}

fn copy(element: &Element<'_>, levels: usize) -> Value {
    match element {
        Element::MinKey => Value::MinKey,
        Element::Undefined => Value::Undefined,
        Element::Null => Value::Null,
        Element::Number(number) => Value::Number(number.clone()),
        Element::String(value) => {
            budget::room_for(value.len());
            budget::bytes(value.len());
            Value::String((*value).to_owned())
        }
        Element::Object(_) | Element::Array(_) | Element::CodeWithScope(..) if levels == 0 => Value::Null,
        Element::Object(object) => Value::Object(copy_fields(*object, levels - 1)),
        Element::Array(array) => {
            let child = |child| {
                budget::step();
                copy(&Element::of(child), levels - 1)
            };
            Value::fixed_array(array.iter().map(child).collect())
        }
        Element::Binary(subtype, bytes) => Value::Binary(*subtype, bytes.clone()),
        Element::ObjectId(id) => Value::ObjectId(*id),
        Element::Bool(value) => Value::Bool(*value),
        Element::Date(millis) => Value::Date(*millis),
        Element::Timestamp(t, i) => Value::Timestamp(*t, *i),
        Element::Regex(pattern, options) => Value::Regex((*pattern).to_owned(), (*options).to_owned()),
        Element::DbPointer(namespace, id) => Value::DbPointer((*namespace).to_owned(), *id),
        Element::Code(code) => Value::Code((*code).to_owned()),
        Element::CodeWithScope(code, scope) => {
            Value::CodeWithScope((*code).to_owned(), Box::new(copy_fields(*scope, levels - 1)))
        }
        Element::Symbol(value) => Value::Symbol((*value).to_owned()),
        Element::MaxKey => Value::MaxKey,
    }
}

fn copy_fields(object: RawObject<'_>, levels: usize) -> Fields {
    let field = |(key, child): (&str, _)| {
        budget::step();
        (key.to_owned(), copy(&Element::of(child), levels))
    };
    Nested::fixed(object.in_order().map(field).collect())
}
