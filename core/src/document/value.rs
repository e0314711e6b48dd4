//! An owned value of a document.

use super::element::Element;
use super::number::Number;
use super::raw::RawValue;

/// A value in one of MongoDB's types. `Object` keeps the order it was made in; stored documents lose it.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub enum Value {
    MinKey,
    Undefined,
    Null,
    Number(Number),
    String(String),
    Object(Vec<(String, Value)>),
    Array(Vec<Value>),
    Binary(u8, Vec<u8>),
    ObjectId([u8; 12]),
    Bool(bool),
    Date(i64),
    Timestamp(u32, u32),
    Regex(String, String),
    DbPointer(String, [u8; 12]),
    Code(String),
    CodeWithScope(String, Vec<(String, Value)>),
    Symbol(String),
    MaxKey,
}

impl Value {
    /// An owned copy of what was read.
    pub fn from_raw(raw: RawValue<'_>) -> Value {
        Value::from_element(&Element::of(raw))
    }
    /// An owned copy of an element.
    pub fn from_element(_element: &Element<'_>) -> Value {
        todo!()
    }
    /// MongoDB's alias of the type.
    pub fn type_name(&self) -> &'static str {
        todo!()
    }
}

/// Values are equal when they compare equal in MongoDB's order (so `2 == 2.0`, and field order does not matter).
impl PartialEq for Value {
    fn eq(&self, _other: &Self) -> bool {
        todo!()
    }
}
