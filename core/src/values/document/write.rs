//! Produces jsonb's on-disk form (without the varlena header), byte for byte as PostgreSQL would.
//!
//! The layout follows PostgreSQL's `convertJsonbValue` in `src/backend/utils/adt/jsonb_util.c`: a container is padded to an
//! alignment of 4 (the padding counts towards its length), then come its header, one entry a child, and the children.
//! INVARIANT: containers only ever start aligned, so a container that is copied from elsewhere needs no change.

use super::element::Element;
use super::field_order::{self, FieldOrder, Keeping, keeps_order};
use super::number::{Number, Width, is_numeric};
use super::raw::{
    ENTRY_CONTAINER, ENTRY_FALSE, ENTRY_HAS_OFFSET, ENTRY_LENGTH_MASK, ENTRY_NULL, ENTRY_NUMERIC, ENTRY_STRING,
    ENTRY_TRUE, ENTRY_TYPE_MASK, FLAG_ARRAY, FLAG_OBJECT, FLAG_SCALAR, LEAST_LEVEL, OFFSET_STRIDE, RawObject, RawValue,
    align, compare_keys, varlena_header,
};
use super::value::Value;
use super::{MAX_DEPTH, MAX_DOCUMENT_BYTES, ext_json, numeric};
use crate::budget;
use crate::error::{Error, Kind, Result, bail, ensure, error};

/// A value to be written: copied from another document's bytes, or owned.
#[derive(Clone, Debug)]
pub enum Part<'a> {
    /// copied as it is; sub-containers are copied whole
    Raw(RawValue<'a>),
    /// written from the owned value
    Owned(Value),
    /// an object made of parts
    Object(Vec<(std::borrow::Cow<'a, str>, Part<'a>)>),
    /// like [`Object`](Part::Object), but the fields keep their order even without [`keeps_order`]: for a stored object that has an order
    InOrder(Vec<(std::borrow::Cow<'a, str>, Part<'a>)>),
    /// an integer that fits 32 bits and is marked as a 64-bit one even without [`keeps_order`]: it replaces a marked one
    Marked(i64),
    /// an array made of parts
    Array(Vec<Part<'a>>),
    /// a whole document, as it is stored: copied without checking its depth again
    Stored(RawObject<'a>),
    /// a stored object with other values for some of its fields, by their positions, in order; the object's depth in the document
    /// does not change, so the depth of unchanged values is not checked again
    Edited(RawObject<'a>, Vec<(usize, Part<'a>)>),
}

/// Writes a document. Fields may come in any order, which is kept if [`keeps_order`]; of equal names the last wins, as in jsonb.
///
/// # Errors
/// `BSONObjectTooLarge`, `DocumentTooDeep`, and `BadValue` for what jsonb cannot hold (`\u0000`).
pub fn document(part: &Part<'_>) -> Result<Vec<u8>> {
    root(WriteNode::Part(part))
}

/// Replaces the content of a buffer by a stored object with other values for some of its fields, as [`Part::Edited`].
///
/// # Errors
/// Those of [`document`].
pub fn edited_into(object: RawObject<'_>, edits: &[(usize, Part<'_>)], out: &mut Vec<u8>) -> Result<()> {
    out.clear();
    write_edited(object, edits, deeper(0)?, out)?;
    check_size(out)
}

/// Writes a stored object with only the fields of these names, which come in the order of jsonb's keys. Values are copied as they are
/// stored.
///
/// # Errors
/// Those of [`document`].
pub fn chosen<'n>(object: RawObject<'_>, names: impl Iterator<Item = &'n str>) -> Result<Vec<u8>> {
    let children = object.children();
    let count = children.entries.len() / 2;
    let positions: Vec<usize> = names.filter_map(|name| object.position(name)).collect();
    let mut out = Vec::with_capacity(object.bytes().len());
    let entries = begin_container(&mut out, FLAG_OBJECT, positions.len());
    let mut total = 0;
    let all = positions.iter().copied().chain(positions.iter().map(|position| count + position));
    for (index, at) in all.enumerate() {
        let from = out.len();
        let (kind, bytes) = children.stored(at);
        if matches!(kind, ENTRY_NUMERIC | ENTRY_CONTAINER) {
            pad(&mut out);
        }
        out.extend(bytes);
        let entry = entry(kind, from, &out)?;
        set_entry(&mut out, entries, index, entry, &mut total);
    }
    if let Some(order) = object.order() {
        let order: Vec<usize> = order.filter_map(|position| positions.binary_search(&position).ok()).collect();
        if !order.is_sorted() {
            field_order::push(order.into_iter(), &mut out);
        }
    }
    check_size(&out)?;
    Ok(out)
}

/// Writes a value that contains documents, such as a reply: it may be larger than a document and nest deeper.
///
/// # Errors
/// `BSONObjectTooLarge` beyond what jsonb can hold, `BadValue`.
pub fn answer(part: &Part<'_>) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    write(WriteNode::Part(part), 0, &mut out)?;
    Ok(out)
}

/// Writes an owned value as jsonb, a scalar included.
///
/// # Errors
/// Those of [`document`].
pub fn value(value: &Value) -> Result<Vec<u8>> {
    root(WriteNode::Value(value))
}

/// Writes a document without fields.
///
/// # Errors
/// None.
pub(crate) fn empty() -> Result<Vec<u8>> {
    value(&Value::fixed_object(Vec::new()))
}

/// Anything that can be written, borrowed.
#[derive(Clone, Copy)]
enum WriteNode<'a> {
    Value(&'a Value),
    Part(&'a Part<'a>),
}

/// The most bytes of one value: below what an entry's 28 bits hold.
const MAX_JSONB_BYTES: usize = 240 * 1024 * 1024;

/// Levels of jsonb that a value of an extended type nests by its own form, as `{"$dbPointer": {"$id": {…}}}` does.
const EXTENDED_LEVELS: usize = 2;

fn root(node: WriteNode<'_>) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    if is_scalar(node) {
        let entries = begin_container(&mut out, FLAG_ARRAY | FLAG_SCALAR, 1);
        let entry = write(node, 0, &mut out)?;
        set_entry(&mut out, entries, 0, entry, &mut 0);
    } else {
        write(node, 0, &mut out)?;
    }
    check_size(&out)?;
    Ok(out)
}

fn check_size(document: &[u8]) -> Result<()> {
    let fits = document.len() <= MAX_DOCUMENT_BYTES;
    ensure!(fits, Kind::BSONObjectTooLarge, "The document is larger than {MAX_DOCUMENT_BYTES} bytes");
    Ok(())
}

fn is_scalar(node: WriteNode<'_>) -> bool {
    match node {
        WriteNode::Part(Part::Raw(raw)) => !matches!(raw, RawValue::Array(_) | RawValue::Object(_)),
        WriteNode::Value(value) | WriteNode::Part(Part::Owned(value)) => match value {
            Value::Null | Value::Bool(_) | Value::String(_) | Value::Number(Number::Int(..)) => true,
            Value::Number(Number::Double(value)) => is_numeric(*value),
            _ => false,
        },
        WriteNode::Part(Part::Marked(_)) => true,
        WriteNode::Part(Part::Object(_) | Part::InOrder(_) | Part::Array(_) | Part::Stored(_) | Part::Edited(..)) => {
            false
        }
    }
}

/// Appends a node and returns its entry, with its length including padding. `depth` counts the documents and arrays around it.
fn write(node: WriteNode<'_>, depth: usize, out: &mut Vec<u8>) -> Result<u32> {
    match node {
        WriteNode::Part(Part::Raw(raw)) => write_raw(*raw, depth, out),
        WriteNode::Part(Part::Owned(value)) => write_value(value, depth, out),
        WriteNode::Part(Part::Object(fields)) => write_object(nodes(fields), keeps_order(), deeper(depth)?, out),
        WriteNode::Part(Part::InOrder(fields)) => write_object(nodes(fields), true, deeper(depth)?, out),
        WriteNode::Part(Part::Marked(long)) => {
            let start = pad(out);
            numeric::push_long(*long, out);
            entry(ENTRY_NUMERIC, start, out)
        }
        WriteNode::Part(Part::Array(items)) => write_array(items.iter().map(WriteNode::Part), deeper(depth)?, out),
        WriteNode::Part(Part::Stored(document)) => {
            let start = pad(out);
            out.extend(document.bytes());
            entry(ENTRY_CONTAINER, start, out)
        }
        WriteNode::Part(Part::Edited(object, edits)) => write_edited(*object, edits, deeper(depth)?, out),
        WriteNode::Value(value) => write_value(value, depth, out),
    }
}

/// Copies the names at once. Values between two changes are copied at once, too, if their distance to the alignment is the same
/// as before; otherwise one by one, until padding restores it.
fn write_edited(object: RawObject<'_>, edits: &[(usize, Part<'_>)], depth: usize, out: &mut Vec<u8>) -> Result<u32> {
    let children = object.children();
    let count = children.entries.len() / 2;
    let mut read = children.start(count);
    let start = pad(out);
    let entries = out.len() + 4;
    out.reserve(object.bytes().len() + 64);
    out.extend(object.bytes().get(..4 + 4 * children.entries.len() + read).unwrap_or_default());
    let mut total = read as u32;
    let mut edits = edits.iter().peekable();
    let mut position = 0;
    while position < count {
        let index = count + position;
        if let Some((_, part)) = edits.next_if(|(at, _)| *at == position) {
            let entry = write(WriteNode::Part(part), depth, out)?;
            set_entry(out, entries, index, entry, &mut total);
            read = children.end(index, read);
            position += 1;
            continue;
        }
        if (read ^ total as usize) & 3 != 0 {
            let kind = children.entry(index) & ENTRY_TYPE_MASK;
            let end = children.end(index, read);
            let from = out.len();
            if matches!(kind, ENTRY_NUMERIC | ENTRY_CONTAINER) {
                pad(out);
                read = align(read);
            }
            out.extend(children.bytes(read, end));
            let entry = entry(kind, from, out)?;
            set_entry(out, entries, index, entry, &mut total);
            read = end;
            position += 1;
            continue;
        }
        let next = edits.peek().map_or(count, |(at, _)| (*at).min(count));
        let (from, base) = (read, total);
        for index in index..count + next {
            read = children.end(index, read);
            if index.is_multiple_of(OFFSET_STRIDE) {
                // Such an entry holds the offset of the child's end, which has moved.
                let kind = children.entry(index) & ENTRY_TYPE_MASK;
                put_entry(out, entries, index, kind | ENTRY_HAS_OFFSET | (base + (read - from) as u32));
            }
        }
        out.extend(children.bytes(from, read));
        total = base + (read - from) as u32;
        position = next;
    }
    // The fields are the same, so their order is, too.
    out.extend(children.order_behind(read).map_or(&[][..], FieldOrder::bytes));
    entry(ENTRY_CONTAINER, start, out)
}

fn write_raw(raw: RawValue<'_>, depth: usize, out: &mut Vec<u8>) -> Result<u32> {
    Ok(match raw {
        RawValue::Null => ENTRY_NULL,
        RawValue::Bool(value) => bool_entry(value),
        RawValue::Number(number) => {
            let start = pad(out);
            out.extend(varlena_header(number.bytes().len() + 4));
            out.extend(number.bytes());
            entry(ENTRY_NUMERIC, start, out)?
        }
        RawValue::String(value) => write_string(value, out)?,
        RawValue::Array(array) => copy_container(raw, array.bytes(), depth, out)?,
        RawValue::Object(object) => copy_container(raw, object.bytes(), depth, out)?,
    })
}

fn copy_container(raw: RawValue<'_>, bytes: &[u8], depth: usize, out: &mut Vec<u8>) -> Result<u32> {
    if depth_exceeds(raw, MAX_DEPTH.saturating_sub(depth)) {
        return Err(too_deep());
    }
    let start = pad(out);
    out.extend(bytes);
    entry(ENTRY_CONTAINER, start, out)
}

fn write_value(value: &Value, depth: usize, out: &mut Vec<u8>) -> Result<u32> {
    Ok(match value {
        Value::Null => ENTRY_NULL,
        Value::Bool(value) => bool_entry(*value),
        Value::Number(Number::Int(value, width)) => {
            let start = pad(out);
            if *width == Width::Long && keeps_order() {
                numeric::push_long(*value, out);
            } else {
                numeric::push_i64(*value, out);
            }
            entry(ENTRY_NUMERIC, start, out)?
        }
        Value::Number(Number::Double(value)) if is_numeric(*value) => {
            let start = pad(out);
            numeric::push_f64(*value, out);
            entry(ENTRY_NUMERIC, start, out)?
        }
        Value::String(value) => write_string(value, out)?,
        Value::Object(fields) => {
            let fields = fields.iter().map(|(name, value)| (name.as_str(), WriteNode::Value(value))).collect();
            write_object(fields, keeps_order(), deeper(depth)?, out)?
        }
        Value::Array(items) => write_array(items.iter().map(WriteNode::Value), deeper(depth)?, out)?,
        extended => match ext_json::relaxed(extended) {
            Some(form) => {
                // The fields of an extended type have no order, unlike those of a scope.
                let _keeping = Keeping::order_only_if(matches!(extended, Value::CodeWithScope(..)));
                write_value(&form, depth.saturating_sub(EXTENDED_LEVELS), out)?
            }
            None => ENTRY_NULL,
        },
    })
}

fn nodes<'a>(fields: &'a [(std::borrow::Cow<'a, str>, Part<'a>)]) -> Vec<(&'a str, WriteNode<'a>)> {
    fields.iter().map(|(name, part)| (name.as_ref(), WriteNode::Part(part))).collect()
}

fn write_object(
    mut fields: Vec<(&str, WriteNode<'_>)>,
    in_order: bool,
    depth: usize,
    out: &mut Vec<u8>,
) -> Result<u32> {
    let order = if in_order { given_order(&fields) } else { None };
    // The sort is stable, so the last of equal names is the last that was given.
    fields.sort_by(|a, b| compare_keys(a.0.as_bytes(), b.0.as_bytes()));
    fields.reverse();
    fields.dedup_by(|a, b| a.0 == b.0);
    fields.reverse();

    let start = pad(out);
    let entries = begin_container(out, FLAG_OBJECT, fields.len());
    let mut total = 0;
    for (index, (name, _)) in fields.iter().enumerate() {
        let entry = write_string(name, out)?;
        set_entry(out, entries, index, entry, &mut total);
    }
    for (index, (_, node)) in fields.iter().enumerate() {
        budget::step();
        let entry = write(*node, depth, out)?;
        set_entry(out, entries, fields.len() + index, entry, &mut total);
    }
    if let Some(order) = order {
        field_order::push(order.into_iter(), out);
    }
    entry(ENTRY_CONTAINER, start, out)
}

/// The positions that fields get in jsonb, in the order in which they are given; None if that is jsonb's order. A name that is
/// given several times keeps its first place.
fn given_order(fields: &[(&str, WriteNode<'_>)]) -> Option<Vec<usize>> {
    let sorted = |pair: &[(&str, WriteNode<'_>)]| compare_keys(pair[0].0.as_bytes(), pair[1].0.as_bytes()).is_lt();
    if fields.windows(2).all(sorted) {
        return None;
    }
    let mut numbers: Vec<usize> = (0..fields.len()).collect();
    let name = |number: &usize| fields.get(*number).map_or(&[][..], |(name, _)| name.as_bytes());
    numbers.sort_by(|a, b| compare_keys(name(a), name(b)));
    numbers.dedup_by(|a, b| name(a) == name(b));
    let mut places: Vec<(usize, usize)> = numbers.into_iter().enumerate().map(|(at, number)| (number, at)).collect();
    places.sort_unstable();
    let order: Vec<usize> = places.into_iter().map(|(_, at)| at).collect();
    (!order.is_sorted()).then_some(order)
}

fn write_array<'a>(
    items: impl ExactSizeIterator<Item = WriteNode<'a>>,
    depth: usize,
    out: &mut Vec<u8>,
) -> Result<u32> {
    let start = pad(out);
    let entries = begin_container(out, FLAG_ARRAY, items.len());
    let mut total = 0;
    for (index, node) in items.enumerate() {
        budget::step();
        let entry = write(node, depth, out)?;
        set_entry(out, entries, index, entry, &mut total);
    }
    entry(ENTRY_CONTAINER, start, out)
}

fn write_string(value: &str, out: &mut Vec<u8>) -> Result<u32> {
    if value.as_bytes().contains(&0) {
        bail!(Kind::BadValue, "A string or field name holds \\u0000, which jsonb cannot store");
    }
    let start = out.len();
    out.extend(value.as_bytes());
    entry(ENTRY_STRING, start, out)
}

fn bool_entry(value: bool) -> u32 {
    if value { ENTRY_TRUE } else { ENTRY_FALSE }
}

/// Pads to the alignment of containers and numerics; returns where the padding starts.
fn pad(out: &mut Vec<u8>) -> usize {
    let start = out.len();
    out.resize(align(start), 0);
    start
}

/// Appends a header and room for the entries; returns where the entries start.
fn begin_container(out: &mut Vec<u8>, flags: u32, count: usize) -> usize {
    let children = if flags & FLAG_OBJECT != 0 { 2 * count } else { count };
    out.extend((flags | count as u32).to_ne_bytes());
    let entries = out.len();
    out.resize(entries + 4 * children, 0);
    entries
}

/// Fills in an entry with the child's length; every 32nd with the offset of the child's end instead.
fn set_entry(out: &mut [u8], entries: usize, index: usize, entry: u32, total: &mut u32) {
    *total += entry & ENTRY_LENGTH_MASK;
    let entry = if index.is_multiple_of(OFFSET_STRIDE) {
        entry & !ENTRY_LENGTH_MASK | ENTRY_HAS_OFFSET | *total
    } else {
        entry
    };
    put_entry(out, entries, index, entry);
}

fn put_entry(out: &mut [u8], entries: usize, index: usize, entry: u32) {
    let at = entries + 4 * index;
    if let Some(slot) = out.get_mut(at..at + 4) {
        slot.copy_from_slice(&entry.to_ne_bytes());
    }
}

/// The entry of a child that was just written from `start` on.
fn entry(kind: u32, start: usize, out: &[u8]) -> Result<u32> {
    let fits = out.len() <= MAX_JSONB_BYTES;
    ensure!(fits, Kind::BSONObjectTooLarge, "A value exceeds {MAX_JSONB_BYTES} bytes");
    Ok(kind | (out.len() - start) as u32)
}

fn deeper(depth: usize) -> Result<usize> {
    if depth < MAX_DEPTH { Ok(depth + 1) } else { Err(too_deep()) }
}

/// The error of a document that nests too deeply.
pub(super) fn too_deep() -> Error {
    error!(Kind::DocumentTooDeep, "The document is nested more than {MAX_DEPTH} levels deep")
}

/// True if documents and arrays nest more than `levels` deep; the form of an extended type is no nesting.
fn depth_exceeds(raw: RawValue<'_>, levels: usize) -> bool {
    let bytes = match raw {
        RawValue::Object(object) => object.bytes(),
        RawValue::Array(array) => array.bytes(),
        _ => return false,
    };
    if bytes.len() < levels.saturating_mul(LEAST_LEVEL) {
        return false;
    }
    match Element::of(raw) {
        Element::Object(object) => levels == 0 || object.iter().any(|(_, child)| depth_exceeds(child, levels - 1)),
        Element::Array(array) => levels == 0 || array.iter().any(|child| depth_exceeds(child, levels - 1)),
        Element::CodeWithScope(_, scope) => {
            levels == 0 || scope.iter().any(|(_, child)| depth_exceeds(child, levels - 1))
        }
        _ => false,
    }
}
