//! The comparison order over all types: MinKey < null < numbers < strings < object < array < binary < ObjectId <
//! boolean < date < timestamp < regex < dbPointer < code < code with scope < MaxKey.

use super::element::Element;
use super::raw::RawValue;
use super::value::Value;
use std::cmp::Ordering;

/// Compares two elements in the order of all types.
pub fn compare_elements(_a: &Element<'_>, _b: &Element<'_>) -> Ordering {
    todo!()
}

/// Compares a stored value with an owned one, without allocating for the stored one where that can be avoided.
pub fn compare_raw(_a: RawValue<'_>, _b: &Value) -> Ordering {
    todo!()
}

/// Compares two owned values.
pub fn compare_values(_a: &Value, _b: &Value) -> Ordering {
    todo!()
}

/// The class that values are compared within (type bracketing): values of different classes never match a range.
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
    pub fn of_raw(_raw: RawValue<'_>) -> Class {
        todo!()
    }
    /// An owned value's class.
    pub fn of(_value: &Value) -> Class {
        todo!()
    }
}
