//! Separates the order of a document's fields and the marks of its integers from the document, where it is sent as text, which has neither:
//! see [`field_order`](super::field_order).

use super::field_order::{FieldOrder, Keeping};
use super::number::Number;
use super::raw::{RawObject, RawValue};
use super::value::Value;
use super::write::{self, Part};
use crate::budget;
use crate::error::{Error, Kind, Result, ensure, error};
use std::borrow::Cow;

/// Returns the orders and marks of a document; empty if it has none. They are listed in the order of a walk over all values. For each
/// object with an order and each marked integer, the list has the number of values since the previous entry; and for an object, the order.
#[must_use]
pub fn detach(document: RawObject<'_>) -> Vec<u8> {
    let mut walk = Detached::default();
    walk.object(document, super::MAX_RECURSION);
    walk.out
}

#[derive(Default)]
struct Detached {
    /// how many values have been seen since the last one that was noted
    passed: usize,
    out: Vec<u8>,
}

impl Detached {
    fn note(&mut self) {
        let mut number = std::mem::take(&mut self.passed);
        while number >= 0x80 {
            self.out.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.out.push(number as u8);
    }

    fn object(&mut self, object: RawObject<'_>, levels: usize) {
        if let Some(order) = object.field_order() {
            self.note();
            self.out.extend(order.bytes());
        }
        object.iter().for_each(|(_, value)| self.value(value, levels));
    }

    fn value(&mut self, value: RawValue<'_>, levels: usize) {
        budget::step();
        self.passed += 1;
        match value {
            RawValue::Object(object) if levels > 0 => self.object(object, levels - 1),
            RawValue::Array(array) if levels > 0 => array.iter().for_each(|value| self.value(value, levels - 1)),
            RawValue::Number(number) if number.is_marked_long() => self.note(),
            _ => {}
        }
    }
}

/// Returns the document with the orders and marks that [`detach`] returned for it, or for a document with the same text.
///
/// # Errors
/// `BadValue` for bytes that are not of this document.
pub fn attach(document: RawObject<'_>, detached: &[u8]) -> Result<Vec<u8>> {
    let _keeping = Keeping::order();
    let mut walk = Attached { rest: detached, left: None };
    walk.advance()?;
    let part = walk.object(document, super::MAX_RECURSION)?;
    ensure!(walk.left.is_none(), Kind::BadValue, "{MALFORMED}");
    write::answer(&part)
}

const MALFORMED: &str = "malformed order of fields";

fn malformed() -> Error {
    error!(Kind::BadValue, "{MALFORMED}")
}

struct Attached<'b> {
    rest: &'b [u8],
    /// how many values come before the next one that is noted; None if there are no more
    left: Option<usize>,
}

impl Attached<'_> {
    /// Reads the distance to the next value that is noted.
    fn advance(&mut self) -> Result<()> {
        if self.rest.is_empty() {
            self.left = None;
            return Ok(());
        }
        let (mut number, mut shift) = (0usize, 0);
        loop {
            let (byte, rest) = self.rest.split_first().ok_or_else(malformed)?;
            self.rest = rest;
            ensure!(shift < 35, Kind::BadValue, "{MALFORMED}");
            number |= usize::from(byte & 0x7F) << shift;
            shift += 7;
            if byte & 0x80 == 0 {
                break;
            }
        }
        self.left = Some(number);
        Ok(())
    }

    fn object<'a>(&mut self, object: RawObject<'a>, levels: usize) -> Result<Part<'a>> {
        let mut order: Option<Vec<usize>> = None;
        if self.left == Some(0) {
            let (found, rest) = FieldOrder::split_from(self.rest, object.len()).ok_or_else(malformed)?;
            order = Some(found.positions().collect());
            self.rest = rest;
            self.advance()?;
        }
        let mut fields = Vec::with_capacity(object.len());
        for (name, value) in object.iter() {
            fields.push((Cow::Borrowed(name), self.value(value, levels)?));
        }
        if let Some(order) = order {
            let mut sorted: Vec<_> = fields.into_iter().map(Some).collect();
            fields = order.into_iter().filter_map(|at| sorted.get_mut(at)?.take()).collect();
        }
        Ok(Part::Object(fields))
    }

    fn value<'a>(&mut self, value: RawValue<'a>, levels: usize) -> Result<Part<'a>> {
        budget::step();
        if let Some(left) = &mut self.left {
            *left = left.checked_sub(1).ok_or_else(malformed)?;
        }
        match (value, self.left) {
            (_, None) => Ok(Part::Raw(value)),
            (RawValue::Object(object), _) if levels > 0 => self.object(object, levels - 1),
            (RawValue::Array(array), _) if levels > 0 => {
                array.iter().map(|value| self.value(value, levels - 1)).collect::<Result<_>>().map(Part::Array)
            }
            (RawValue::Number(number), Some(0)) => match number.to_number() {
                Number::Int(long, _) => {
                    self.advance()?;
                    Ok(Part::Owned(Value::Number(Number::long(long))))
                }
                _ => Err(malformed()),
            },
            _ => Ok(Part::Raw(value)),
        }
    }
}
