//! The order in which a client has given an object's fields. jsonb sorts them, by length and bytes.
//!
//! The order stands behind an object's last value, inside the bytes that the object occupies, where no function of PostgreSQL looks: they
//! find all values by their entries. So every copy of the object keeps it, and a function that makes another object loses it, as does
//! jsonb's text. It is a number for each field, its position in jsonb, of one byte if there are at most 256 fields, else of two or
//! four, little-endian. An object whose fields are in jsonb's order has none. Nothing but output reads it.
//!
//! Integers of 64 bits that fit 32 bits are marked in a similar way: see [`numeric`](super::numeric).
//!
//! [`Keeping`] says whether documents that are written keep order and marks. [`detach`] takes order and marks out of a document,
//! for a way on which it is text, and [`attach`] puts them back.

use super::number::Number;
use super::raw::{Children, RawObject, RawValue};
use super::value::Value;
use super::write::{self, Part};
use crate::budget;
use crate::error::{Error, Kind, Result, ensure, error};
use std::borrow::Cow;
use std::cell::Cell;

thread_local! {
    static KEEPS: Cell<bool> = const { Cell::new(false) };
}

/// While it lives, objects that this thread writes keep the order of their fields; or not, if an inner one says so.
#[derive(Debug)]
pub struct Keeping {
    outer: bool,
}

impl Keeping {
    /// Objects keep the order.
    #[must_use]
    pub fn order() -> Self {
        Self::set(true)
    }

    /// Objects keep the order if so, or if they do already.
    #[must_use]
    pub fn order_if(keeps: bool) -> Self {
        Self::set(keeps || keeps_order())
    }

    /// Objects keep no order, or still do if so.
    #[must_use]
    pub fn order_only_if(keeps: bool) -> Self {
        Self::set(keeps && keeps_order())
    }

    fn set(keeps: bool) -> Self {
        Self { outer: KEEPS.replace(keeps) }
    }
}

impl Drop for Keeping {
    fn drop(&mut self) {
        KEEPS.set(self.outer);
    }
}

/// True while objects keep the order of their fields.
#[inline]
pub fn keeps_order() -> bool {
    KEEPS.get()
}

/// The number of bytes of a position among so many.
fn width(count: usize) -> usize {
    match count {
        0..=0x100 => 1,
        0x101..=0x1_0000 => 2,
        _ => 4,
    }
}

/// The order of an object's fields.
#[derive(Clone, Copy, Debug)]
pub(super) struct FieldOrder<'a> {
    bytes: &'a [u8],
    width: usize,
}

impl<'a> FieldOrder<'a> {
    /// The order of an object; None if it is jsonb's. Bytes of another length are none.
    #[inline]
    pub(super) fn of(object: RawObject<'a>) -> Option<Self> {
        let children = object.children();
        Self::behind(&children, children.start(children.entries.len()))
    }

    /// As [`of`](Self::of), with the end of the last value.
    #[inline]
    pub(super) fn behind(children: &Children<'a>, end: usize) -> Option<Self> {
        let bytes = children.data.get(end..).filter(|bytes| !bytes.is_empty())?;
        let count = children.entries.len() / 2;
        let width = width(count);
        (bytes.len() == count * width).then_some(Self { bytes, width })
    }

    /// The positions of the fields, in their order.
    pub(super) fn positions(self) -> impl Iterator<Item = usize> + use<'a> {
        let Self { bytes, width } = self;
        bytes
            .chunks_exact(width)
            .map(|bytes| bytes.iter().rev().fold(0, |number, byte| number << 8 | usize::from(*byte)))
    }

    /// True if each position comes once, and they are not in jsonb's order.
    pub(super) fn is_valid(self) -> bool {
        let count = self.bytes.len() / self.width;
        let mut seen = vec![false; count];
        let all = self.positions().all(|at| seen.get_mut(at).is_some_and(|seen| !std::mem::replace(seen, true)));
        all && !self.positions().is_sorted()
    }

    pub(super) fn bytes(self) -> &'a [u8] {
        self.bytes
    }
}

/// Appends an order, of positions that each come once.
pub(super) fn push(positions: impl ExactSizeIterator<Item = usize>, out: &mut Vec<u8>) {
    let width = width(positions.len());
    positions.for_each(|position| out.extend(&(position as u32).to_le_bytes()[..width]));
}

/// What [`detach`] takes out of a document: for each object with an order and for each long that is marked, in the order of a walk over all
/// values, the number of values since the one before, and the order. Empty if there is nothing.
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
        if let Some(order) = FieldOrder::of(object) {
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

/// The document with what [`detach`] has taken out of it, or out of one with the same text.
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
            let width = width(object.len());
            let (bytes, rest) = self.rest.split_at_checked(width * object.len()).ok_or_else(malformed)?;
            let found = FieldOrder { bytes, width };
            ensure!(found.is_valid(), Kind::BadValue, "{MALFORMED}");
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
                long @ Number::Int(_) => {
                    self.advance()?;
                    Ok(Part::Owned(Value::Long(long)))
                }
                _ => Err(malformed()),
            },
            _ => Ok(Part::Raw(value)),
        }
    }
}
