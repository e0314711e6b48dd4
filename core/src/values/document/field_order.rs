//! The order in which a client has given an object's fields. jsonb sorts the fields by the length and the bytes of their names.
//!
//! The order is stored behind an object's last value, inside the bytes that the object occupies. PostgreSQL's functions find all
//! values by their entries, so none of them reads it. A copy of the object keeps the order; a function that makes another object
//! loses it, and jsonb's text does not show it. The order has a number for each field, the field's position in jsonb, of one byte
//! if there are at most 256 fields, else of two or four, little-endian. An object whose fields are in jsonb's order stores none.
//! Only output depends on the order.
//!
//! Longs that fit 32 bits are marked in a similar way, so that reading a number gives its type: see [`numeric`](super::numeric).
//!
//! [`Keeping`] says whether documents that are written keep order and marks. [`detached`](super::detached) separates them from a document
//! that is sent as text.

use std::cell::Cell;

thread_local! {
    static KEEPS: Cell<bool> = const { Cell::new(false) };
}

/// Sets, until it is dropped, whether objects that this thread writes keep the order of their fields. The innermost one decides.
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

    /// Objects keep the order if `keeps`, or if they already do.
    #[must_use]
    pub fn order_if(keeps: bool) -> Self {
        Self::set(keeps || keeps_order())
    }

    /// Objects stop keeping the order, unless `keeps`.
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

/// The number of bytes for each position in an object with `count` fields.
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
    /// Reads the bytes behind the last value of an object with `count` fields. None if there are no such bytes, which means
    /// jsonb's order, or if their number is wrong.
    #[inline]
    pub(super) fn read(bytes: &'a [u8], count: usize) -> Option<Self> {
        let width = width(count);
        (!bytes.is_empty() && bytes.len() == count * width).then_some(Self { bytes, width })
    }

    /// Reads the order of an object with `count` fields from the beginning of `bytes`; returns it and the rest. None if it is not valid.
    pub(super) fn split_from(bytes: &'a [u8], count: usize) -> Option<(Self, &'a [u8])> {
        let (order, rest) = bytes.split_at_checked(count * width(count))?;
        Self::read(order, count).filter(|order| order.is_valid()).map(|order| (order, rest))
    }

    /// The positions of the fields, in their order.
    pub(super) fn positions(self) -> impl Iterator<Item = usize> + use<'a> {
        let Self { bytes, width } = self;
        bytes
            .chunks_exact(width)
            .map(|bytes| bytes.iter().rev().fold(0, |number, byte| number << 8 | usize::from(*byte)))
    }

    /// True if each position occurs once, and they are not in jsonb's order.
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

/// Appends an order. Each position occurs once.
pub(super) fn push(positions: impl ExactSizeIterator<Item = usize>, out: &mut Vec<u8>) {
    let width = width(positions.len());
    positions.for_each(|position| out.extend(&(position as u32).to_le_bytes()[..width]));
}
