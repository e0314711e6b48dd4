//! Reads jsonb's on-disk form in place.
//!
//! The bytes are those behind the varlena header: a container (`JsonbContainer`), a 32-bit header with the count of
//! children and flags, then one 32-bit `JEntry` a child (object: all keys, then all values; every 32nd holds an
//! offset, the others a length), then the children's bytes, numerics and containers aligned to 4 from the start of the
//! root. Integers are in the machine's byte order. Source: PostgreSQL's `src/include/utils/jsonb.h`.
//! Behind the last value of an object there may be the order of its fields, which PostgreSQL does not know: see
//! [`field_order`](super::field_order).
//!
//! INVARIANT: on bytes that PostgreSQL wrote, or that [`validate`] accepted, no function fails. On any other bytes none panics or
//! reads outside the slice; a damaged value reads as null or as absent.

use super::field_order::FieldOrder;
use crate::error::{Error, Kind, Result, error};
use std::cmp::Ordering;

/// Count of children in a container's header.
pub(super) const COUNT_MASK: u32 = 0x0FFF_FFFF;
/// The root array that wraps a scalar.
pub(super) const FLAG_SCALAR: u32 = 0x1000_0000;
/// The container is an object.
pub(super) const FLAG_OBJECT: u32 = 0x2000_0000;
/// The container is an array.
pub(super) const FLAG_ARRAY: u32 = 0x4000_0000;

/// Length or end offset in a `JEntry`.
pub(super) const ENTRY_LENGTH_MASK: u32 = 0x0FFF_FFFF;
/// The child's type in a `JEntry`.
pub(super) const ENTRY_TYPE_MASK: u32 = 0x7000_0000;
/// The `JEntry` holds an end offset, not a length.
pub(super) const ENTRY_HAS_OFFSET: u32 = 0x8000_0000;
/// The entry of every 32nd child holds an offset.
pub(super) const OFFSET_STRIDE: usize = 32;

pub(super) const ENTRY_STRING: u32 = 0x0000_0000;
pub(super) const ENTRY_NUMERIC: u32 = 0x1000_0000;
pub(super) const ENTRY_FALSE: u32 = 0x2000_0000;
pub(super) const ENTRY_TRUE: u32 = 0x3000_0000;
pub(super) const ENTRY_NULL: u32 = 0x4000_0000;
pub(super) const ENTRY_CONTAINER: u32 = 0x5000_0000;

/// Largest number of fields for which a scan over the keys' lengths is faster than a binary search.
const LINEAR_SEARCH_FIELDS: usize = 32;

/// Any jsonb value, borrowed.
#[derive(Clone, Copy, Debug)]
pub enum RawValue<'a> {
    /// JSON null.
    Null,
    /// A boolean.
    Bool(bool),
    /// A number: PostgreSQL's numeric, on disk.
    Number(RawNumeric<'a>),
    /// A string.
    String(&'a str),
    /// An array.
    Array(RawArray<'a>),
    /// An object.
    Object(RawObject<'a>),
}

/// PostgreSQL's on-disk numeric, the bytes behind its own varlena header.
#[derive(Clone, Copy, Debug)]
pub struct RawNumeric<'a>(pub(super) &'a [u8]);

/// A jsonb array's container.
#[derive(Clone, Copy, Debug)]
pub struct RawArray<'a>(pub(super) &'a [u8]);

/// A jsonb object's container.
#[derive(Clone, Copy, Debug)]
pub struct RawObject<'a>(pub(super) &'a [u8]);

/// The parts of a container: one entry for each child, and the children's bytes.
#[derive(Clone, Copy)]
pub(super) struct Children<'a> {
    pub(super) entries: &'a [[u8; 4]],
    pub(super) data: &'a [u8],
}

impl<'a> Children<'a> {
    /// `per_count`: 1 for an array, 2 for an object. No children if the header claims more than there is.
    #[inline]
    pub(super) fn of(container: &'a [u8], per_count: usize) -> Self {
        let (words, _) = container.as_chunks::<4>();
        let Some((header, words)) = words.split_first() else {
            return Self { entries: &[], data: &[] };
        };
        let count = (u32::from_ne_bytes(*header) & COUNT_MASK) as usize * per_count;
        match (words.get(..count), container.get(4 + 4 * count..)) {
            (Some(entries), Some(data)) => Self { entries, data },
            _ => Self { entries: &[], data: &[] },
        }
    }

    #[inline]
    pub(super) fn entry(&self, index: usize) -> u32 {
        self.entries.get(index).map_or(ENTRY_NULL, |bytes| u32::from_ne_bytes(*bytes))
    }

    /// The end of a child that starts at `start`.
    #[inline]
    pub(super) fn end(&self, index: usize, start: usize) -> usize {
        let entry = self.entry(index);
        let length = (entry & ENTRY_LENGTH_MASK) as usize;
        if entry & ENTRY_HAS_OFFSET != 0 { length } else { start.saturating_add(length) }
    }

    /// The start of a child, counted from the nearest stored offset before it: every 32nd entry holds one.
    #[inline]
    pub(super) fn start(&self, index: usize) -> usize {
        let nearest = index.saturating_sub(1) / OFFSET_STRIDE * OFFSET_STRIDE;
        let length = |entry: &[u8; 4]| (u32::from_ne_bytes(*entry) & ENTRY_LENGTH_MASK) as usize;
        self.entries.get(nearest..index).unwrap_or_default().iter().map(length).sum()
    }

    #[inline]
    pub(super) fn bytes(&self, start: usize, end: usize) -> &'a [u8] {
        self.data.get(start..end).unwrap_or_default()
    }

    /// The order of an object's fields, given the end of its last value; None if it is jsonb's.
    #[inline]
    pub(super) fn order_behind(&self, end: usize) -> Option<FieldOrder<'a>> {
        FieldOrder::read(self.data.get(end..)?, self.entries.len() / 2)
    }

    /// A child's type and bytes without padding, which do not depend on where it is.
    #[inline]
    pub(super) fn stored(&self, index: usize) -> (u32, &'a [u8]) {
        let start = self.start(index);
        let end = self.end(index, start);
        match self.entry(index) & ENTRY_TYPE_MASK {
            kind @ (ENTRY_NUMERIC | ENTRY_CONTAINER) => (kind, self.bytes(align(start), end)),
            kind => (kind, self.bytes(start, end)),
        }
    }

    /// A child's value, given where it starts.
    #[inline]
    fn value(&self, index: usize, start: usize) -> RawValue<'a> {
        let end = self.end(index, start);
        match self.entry(index) & ENTRY_TYPE_MASK {
            ENTRY_STRING => match std::str::from_utf8(self.bytes(start, end)) {
                Ok(string) => RawValue::String(string),
                Err(_) => RawValue::Null,
            },
            ENTRY_NUMERIC => match varlena_body(self.bytes(align(start), end)) {
                Some(body) => RawValue::Number(RawNumeric(body)),
                None => RawValue::Null,
            },
            ENTRY_FALSE => RawValue::Bool(false),
            ENTRY_TRUE => RawValue::Bool(true),
            ENTRY_CONTAINER => container(self.bytes(align(start), end)),
            _ => RawValue::Null,
        }
    }

    /// The position of a key among the `count` sorted keys.
    #[inline]
    fn find_key(&self, count: usize, key: &[u8]) -> Option<usize> {
        if count <= LINEAR_SEARCH_FIELDS {
            let mut start = 0;
            for index in 0..count {
                let end = self.end(index, start);
                let length = end.saturating_sub(start);
                if length == key.len() && self.bytes(start, end) == key {
                    return Some(index);
                }
                if length > key.len() {
                    return None;
                }
                start = end;
            }
            return None;
        }
        let (mut low, mut high) = (0, count);
        while low < high {
            let middle = low + (high - low) / 2;
            let start = self.start(middle);
            match compare_keys(self.bytes(start, self.end(middle, start)), key) {
                Ordering::Less => low = middle + 1,
                Ordering::Greater => high = middle,
                Ordering::Equal => return Some(middle),
            }
        }
        None
    }
}

/// The order of an object's keys in jsonb: shorter first, then bytewise.
pub(crate) fn compare_keys(a: &[u8], b: &[u8]) -> Ordering {
    a.len().cmp(&b.len()).then_with(|| a.cmp(b))
}

/// Rounds up to the alignment of numerics and containers.
#[inline]
pub(super) fn align(offset: usize) -> usize {
    offset.saturating_add(3) & !3
}

/// The size, header included, that a four-byte varlena header states; None for any other form of varlena.
fn varlena_size(header: [u8; 4]) -> Option<usize> {
    let header = u32::from_ne_bytes(header);
    if cfg!(target_endian = "little") {
        (header & 3 == 0).then_some((header >> 2) as usize)
    } else {
        (header >> 30 == 0).then_some(header as usize)
    }
}

/// A four-byte varlena header for a value of `size` bytes, header included.
pub(super) fn varlena_header(size: usize) -> [u8; 4] {
    let size = size as u32;
    if cfg!(target_endian = "little") { (size << 2).to_ne_bytes() } else { size.to_ne_bytes() }
}

/// The bytes after the four-byte header of a varlena.
#[inline]
pub(super) fn varlena_body(bytes: &[u8]) -> Option<&[u8]> {
    let size = varlena_size(*bytes.first_chunk::<4>()?)?;
    bytes.get(4..size)
}

#[inline]
fn container(bytes: &[u8]) -> RawValue<'_> {
    match bytes.first_chunk::<4>().map(|header| u32::from_ne_bytes(*header)) {
        Some(header) if header & FLAG_OBJECT != 0 => RawValue::Object(RawObject(bytes)),
        Some(header) if header & FLAG_ARRAY != 0 => RawValue::Array(RawArray(bytes)),
        _ => RawValue::Null,
    }
}

impl<'a> RawObject<'a> {
    /// The number of fields.
    #[inline]
    pub fn len(&self) -> usize {
        Children::of(self.0, 2).entries.len() / 2
    }
    /// True if there is no field.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// The field's value, found over the sorted keys.
    #[inline]
    pub fn get(&self, key: &str) -> Option<RawValue<'a>> {
        self.find(key).map(|(_, value)| value)
    }
    /// The field's position and value.
    #[inline]
    pub fn find(&self, key: &str) -> Option<(usize, RawValue<'a>)> {
        let children = Children::of(self.0, 2);
        let count = children.entries.len() / 2;
        let position = children.find_key(count, key.as_bytes())?;
        Some((position, children.value(count + position, children.start(count + position))))
    }
    /// True if both documents have the same bytes at a field, or neither has it.
    pub fn has_same(&self, other: RawObject<'_>, key: &str) -> bool {
        self.field_bytes(key) == other.field_bytes(key)
    }
    /// The field's position.
    pub(super) fn position(&self, key: &str) -> Option<usize> {
        let children = Children::of(self.0, 2);
        children.find_key(children.entries.len() / 2, key.as_bytes())
    }
    /// A value's type and bytes without padding, which do not depend on its position.
    #[inline]
    fn field_bytes(&self, key: &str) -> Option<(u32, &'a [u8])> {
        let children = Children::of(self.0, 2);
        let count = children.entries.len() / 2;
        Some(children.stored(count + children.find_key(count, key.as_bytes())?))
    }
    /// The value of the field at a position.
    pub fn value_at(&self, position: usize) -> Option<RawValue<'a>> {
        let children = Children::of(self.0, 2);
        let count = children.entries.len() / 2;
        (position < count).then(|| children.value(count + position, children.start(count + position)))
    }
    /// The parts of the container: all keys, then all values.
    pub(super) fn children(&self) -> Children<'a> {
        Children::of(self.0, 2)
    }
    /// The first name that starts with `$`, at this level only.
    pub fn dollar_name(&self) -> Option<&'a str> {
        let children = Children::of(self.0, 2);
        let mut start = 0;
        (0..children.entries.len() / 2).find_map(|index| {
            let end = children.end(index, start);
            let key = children.bytes(start, end);
            start = end;
            if key.first() == Some(&b'$') { std::str::from_utf8(key).ok() } else { None }
        })
    }
    /// Fields in jsonb's order (shorter names first, then bytewise).
    pub fn iter(&self) -> impl Iterator<Item = (&'a str, RawValue<'a>)> + use<'a> {
        let children = Children::of(self.0, 2);
        let count = children.entries.len() / 2;
        let mut key_start = 0;
        let mut value_start = children.start(count);
        (0..count).filter_map(move |index| {
            let key_end = children.end(index, key_start);
            let key = std::str::from_utf8(children.bytes(key_start, key_end));
            let value = children.value(count + index, value_start);
            key_start = key_end;
            value_start = children.end(count + index, value_start);
            Some((key.ok()?, value))
        })
    }
    /// The positions of the fields in the order in which a client has given them; None if that is jsonb's.
    #[inline]
    pub(crate) fn order(&self) -> Option<impl Iterator<Item = usize> + use<'a>> {
        self.field_order().map(FieldOrder::positions)
    }
    #[inline]
    pub(super) fn field_order(&self) -> Option<FieldOrder<'a>> {
        let children = self.children();
        children.order_behind(children.start(children.entries.len()))
    }
    /// Fields in the order in which a client has given them, or else in jsonb's.
    pub fn in_order(&self) -> impl Iterator<Item = (&'a str, RawValue<'a>)> + use<'a> {
        let (object, order) = (*self, self.order());
        let sorted = if order.is_none() { Some(self.iter()) } else { None };
        let given = order.into_iter().flatten().filter_map(move |position| object.at(position));
        given.chain(sorted.into_iter().flatten())
    }
    /// The first field in the order in which a client has given them.
    pub fn first_in_order(&self) -> Option<(&'a str, RawValue<'a>)> {
        self.at(self.order().map_or(Some(0), |mut order| order.next())?)
    }
    /// The field at a position.
    fn at(&self, position: usize) -> Option<(&'a str, RawValue<'a>)> {
        let children = self.children();
        let count = children.entries.len() / 2;
        if position >= count {
            return None;
        }
        let start = children.start(position);
        let key = std::str::from_utf8(children.bytes(start, children.end(position, start))).ok()?;
        Some((key, children.value(count + position, children.start(count + position))))
    }
    /// The container's bytes, for copying it whole.
    pub fn bytes(&self) -> &'a [u8] {
        self.0
    }
}

impl<'a> RawArray<'a> {
    /// The number of elements.
    #[inline]
    pub fn len(&self) -> usize {
        Children::of(self.0, 1).entries.len()
    }
    /// True if there is no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// True if this is the other array, at the same place of the same document.
    pub fn is_same(self, other: RawArray<'_>) -> bool {
        std::ptr::eq(self.0, other.0)
    }
    /// The element at a position.
    #[inline]
    pub fn get(&self, index: usize) -> Option<RawValue<'a>> {
        let children = Children::of(self.0, 1);
        (index < children.entries.len()).then(|| children.value(index, children.start(index)))
    }
    /// Elements in order.
    pub fn iter(&self) -> impl Iterator<Item = RawValue<'a>> + use<'a> {
        let children = Children::of(self.0, 1);
        let mut start = 0;
        (0..children.entries.len()).map(move |index| {
            let value = children.value(index, start);
            start = children.end(index, start);
            value
        })
    }
    /// The container's bytes, for copying it whole.
    pub fn bytes(&self) -> &'a [u8] {
        self.0
    }
}

/// The root of a jsonb value (without its varlena header). A scalar root is jsonb's array of one scalar.
pub fn root(bytes: &[u8]) -> RawValue<'_> {
    match container(bytes) {
        RawValue::Array(array) if is_scalar(bytes) => array.get(0).unwrap_or(RawValue::Null),
        value => value,
    }
}

fn is_scalar(bytes: &[u8]) -> bool {
    bytes.first_chunk::<4>().is_some_and(|header| u32::from_ne_bytes(*header) & FLAG_SCALAR != 0)
}

/// The root as a document; None if it is not an object.
pub fn document(bytes: &[u8]) -> Option<RawObject<'_>> {
    match root(bytes) {
        RawValue::Object(object) => Some(object),
        _ => None,
    }
}

/// An object's header with the entries of its keys, and its names: two objects that agree in both have the same fields.
/// None for anything but an object.
pub(super) fn fields(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let RawValue::Object(object) = container(bytes) else { return None };
    let children = object.children();
    let count = children.entries.len() / 2;
    let end = (0..count).fold(0, |start, index| children.end(index, start));
    Some((bytes.get(..4 + 4 * count)?, children.bytes(0, end)))
}

/// The fewest bytes of a container that has another one: its header, and an entry.
pub(super) const LEAST_LEVEL: usize = 8;

/// True if containers nest at most this number of levels deep. PostgreSQL's jsonb may nest thousands of levels, more than a recursion may
/// take. Only containers that are large enough to nest so deep are read.
pub fn nests_within(bytes: &[u8], levels: usize) -> bool {
    if bytes.len() < levels.saturating_mul(LEAST_LEVEL) {
        return true;
    }
    let Some(inside) = levels.checked_sub(1) else { return false };
    let (children, first) = match container(bytes) {
        RawValue::Object(object) => (object.children(), object.len()),
        _ => (Children::of(bytes, 1), 0),
    };
    let mut start = children.start(first);
    (first..children.entries.len()).all(|index| {
        let (from, to) = (start, children.end(index, start));
        start = to;
        children.entry(index) & ENTRY_TYPE_MASK != ENTRY_CONTAINER
            || nests_within(children.bytes(align(from), to), inside)
    })
}

/// Checks untrusted bytes: lengths, offsets, alignment, UTF-8, key order and numerics, in one walk.
///
/// # Errors
/// `BadValue` for bytes that PostgreSQL would not have written, or that nest deeper than any document; after `Ok`,
/// PostgreSQL's own C code may read them.
pub fn validate(bytes: &[u8]) -> Result<()> {
    validate_container(bytes, true, 0)
}

fn damaged(what: &str) -> Error {
    error!(Kind::BadValue, "invalid jsonb: {what}")
}

fn refuse(is_damaged: bool, what: &str) -> Result<()> {
    if is_damaged { Err(damaged(what)) } else { Ok(()) }
}

/// INVARIANT: `bytes` starts on an alignment boundary of the root and is all that the container may occupy.
fn validate_container(bytes: &[u8], is_root: bool, depth: usize) -> Result<()> {
    refuse(depth >= super::MAX_RECURSION, "nested too deeply")?;
    let header = bytes.first_chunk::<4>().ok_or_else(|| damaged("a container's header is cut off"))?;
    let header = u32::from_ne_bytes(*header);
    let count = (header & COUNT_MASK) as usize;
    let per_count = match header & !COUNT_MASK {
        FLAG_OBJECT => 2,
        FLAG_ARRAY => 1,
        flags if is_root && count == 1 && flags == FLAG_ARRAY | FLAG_SCALAR => 1,
        _ => return Err(damaged("a container's flags are wrong")),
    };
    let children = Children::of(bytes, per_count);
    refuse(children.entries.len() != count * per_count, "a container's entries are cut off")?;

    let mut start = 0;
    let mut last_key: Option<&[u8]> = None;
    for index in 0..children.entries.len() {
        let entry = children.entry(index);
        refuse(
            (entry & ENTRY_HAS_OFFSET != 0) != index.is_multiple_of(OFFSET_STRIDE),
            "an offset is missing or misplaced",
        )?;
        let end = children.end(index, start);
        let child = children.data.get(start..end).ok_or_else(|| damaged("a child is cut off"))?;
        let is_key = per_count == 2 && index < count;
        refuse(is_key && entry & ENTRY_TYPE_MASK != ENTRY_STRING, "a key is not a string")?;
        match entry & ENTRY_TYPE_MASK {
            ENTRY_STRING => {
                refuse(!is_text(child), "a string is not UTF-8")?;
                if is_key {
                    let in_order = last_key.is_none_or(|last| compare_keys(last, child).is_lt());
                    refuse(!in_order, "keys are not in order")?;
                    last_key = Some(child);
                }
            }
            ENTRY_FALSE | ENTRY_TRUE | ENTRY_NULL => refuse(!child.is_empty(), "a constant has a length")?,
            ENTRY_NUMERIC => {
                let body = aligned_child(child, start)?;
                let size = body.first_chunk::<4>().and_then(|header| varlena_size(*header));
                let is_whole = size == Some(body.len());
                refuse(!is_whole || !RawNumeric(&body[4..]).is_canonical(), "a number is malformed")?;
            }
            ENTRY_CONTAINER if header & FLAG_SCALAR == 0 => {
                validate_container(aligned_child(child, start)?, false, depth + 1)?;
            }
            _ => return Err(damaged("a child's type is unknown")),
        }
        start = end;
    }
    if start == children.data.len() {
        return Ok(());
    }
    let order = if per_count == 2 { children.order_behind(start) } else { None };
    refuse(!order.is_some_and(FieldOrder::is_valid), "bytes are left over")
}

/// True for UTF-8 without a zero byte, as PostgreSQL's text is. Most strings are short and ASCII, so eight bytes at a time are
/// tested for that first.
fn is_text(bytes: &[u8]) -> bool {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    const TOPS: u64 = u64::from_ne_bytes([0x80; 8]);
    // The subtraction borrows, and so sets a byte's highest bit, only where a byte is zero.
    let is_ascii = |word: &[u8; 8]| {
        let word = u64::from_ne_bytes(*word);
        (word | word.wrapping_sub(ONES)) & TOPS == 0
    };
    let (words, rest) = bytes.as_chunks();
    let ascii = words.iter().all(is_ascii)
        && match bytes.last_chunk() {
            Some(last) => is_ascii(last),
            None => rest.iter().all(|byte| (1..0x80).contains(byte)),
        };
    ascii || !bytes.contains(&0) && std::str::from_utf8(bytes).is_ok()
}

/// The child's bytes after its padding, which must be zero.
fn aligned_child(child: &[u8], start: usize) -> Result<&[u8]> {
    match child.split_at_checked(align(start) - start) {
        Some((padding, body)) if padding.iter().all(|&byte| byte == 0) => Ok(body),
        _ => Err(damaged("padding is missing")),
    }
}
