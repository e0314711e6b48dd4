//! `$group`: one document for each distinct key.
//!
//! Groups are kept in a hash table. When it outgrows the stage's memory, the states of all groups go into a sorter, by key, and
//! the table is emptied. At the end the states of each group are merged in the order in which they were written. So memory is
//! limited to the table and one group's state, whose size accumulators limit. If temporary files may not be used, a table beyond the
//! limit is an error.
//!
//! In a pipeline that is divided over shards, the stage runs twice. At a shard it returns documents of partial states,
//! `{k: key, s: [state, …]}`, and empties the table by returning them when it is full. The router merges the states.

use super::accumulating::{Accumulating, accumulated_count};
use crate::budget;
use crate::error::{Error, Kind, Result, bail, ensure, error};
use crate::query::accumulator::{Accumulation, size_of_value};
use crate::query::expression::Expression;
use crate::query::operand::Operand;
use crate::query::stage::fields::Fields;
use crate::query::stage::operation::{Context, Grouping, Operation, Parsed, Parser, Partitioning, Shape};
use crate::query::stage::runtime::sorter::Sorter;
use crate::query::stage::runtime::stream::{Input, Stream, document};
use crate::values::collation::Collator;
use crate::values::document::ext_json;
use crate::values::document::raw::{self, RawObject, RawValue};
use crate::values::document::value::Value;
use crate::values::document::write::{self, Part};
use crate::values::key::encode::encoded_under;
use serde_json::Value as Json;
use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// `$group`
#[derive(Debug)]
struct Group {
    id: Expression,
    /// if `_id` is a document with one field, such as `{"x": "$a"}`, the name of that field; a missing value of it becomes null
    only_field: Option<String>,
    fields: Vec<(String, Accumulating)>,
    collator: Option<Arc<Collator>>,
    /// true if the input is documents of partial states
    merges: bool,
    /// true if the output is documents of partial states
    partial: bool,
}

/// The names in a document of partial states.
const KEY: &str = "k";
const STATES: &str = "s";

impl Operation for Group {
    fn fields(&self) -> Fields {
        if self.merges {
            return Fields::replaced(Some(BTreeSet::from([KEY.to_owned(), STATES.to_owned()])));
        }
        let read = self.fields.iter().try_fold(self.id.fields_read(), |read, (_, field)| {
            let (mut read, more) = (read?, field.fields_read()?);
            read.extend(more);
            Some(Some(read))
        });
        Fields::replaced(read.flatten())
    }

    fn begin<'s>(self: Arc<Self>, input: Input<'s>, context: &Context) -> Result<Input<'s>> {
        Ok(Box::new(GroupingStream {
            input: Some(input),
            group: self,
            context: context.clone(),
            table: Table::default(),
            sorter: None,
            flushed: 0,
            results: Vec::new().into_iter(),
            merged: None,
            current: Vec::new(),
        }))
    }

    fn shape(&self) -> Shape<'_> {
        Shape::Group(self)
    }
}

impl Partitioning for Group {
    fn determines(&self, paths: &[&str]) -> bool {
        let whole = self.id.whole_paths();
        self.collator.is_none() && paths.iter().all(|path| whole.contains(path))
    }
}

impl Grouping for Group {
    fn only_counts(&self) -> bool {
        self.id.constant().is_some() && !self.merges && self.fields.iter().all(|(_, field)| field.counts())
    }

    fn counted(&self, count: u64) -> Result<Vec<u8>> {
        let mut group_state = self.begin_group(self.id.constant().unwrap_or(Value::Null))?;
        group_state.states.clear();
        for _ in &self.fields {
            group_state.states.push(accumulated_count(count)?);
        }
        self.result(group_state)
    }
}

/// A group: its key and the states of its accumulators.
#[derive(Debug)]
struct GroupState {
    id: Value,
    states: Vec<Accumulation>,
}

/// The approximate memory of a group besides its key and its states, in bytes: its places in the hash table and in the vector, which grow
/// by doubling, and what the allocator adds to five or more blocks. Measured: 500 to 570 bytes a group in all, for groups with one and two
/// accumulators.
const GROUP_BYTES: usize = 256;

impl Group {
    fn begin_group(&self, id: Value) -> Result<GroupState> {
        let states = self.fields.iter().map(|(_, field)| field.begin(&id)).collect::<Result<_>>()?;
        Ok(GroupState { id, states })
    }

    /// The key of a document's group.
    fn id_of<'s>(&'s self, document: RawObject<'s>) -> Result<Operand<'s>> {
        if self.merges {
            return Ok(document.get(KEY).map_or(Operand::Missing, Operand::Stored));
        }
        let id = self.id.operand(document, self.collator.as_deref())?;
        Ok(match (&self.only_field, id) {
            (Some(name), Operand::Made(Value::Object(fields))) if fields.is_empty() => {
                Operand::Made(Value::fixed_object(vec![(name.clone(), Value::Null)]))
            }
            (_, id) => id,
        })
    }

    fn key_of(&self, id: &Value) -> Vec<u8> {
        encoded_under(id, self.collator.as_deref())
    }

    fn add(&self, document: RawObject<'_>, group_state: &mut GroupState) -> Result<()> {
        if self.merges {
            return merge(document, group_state);
        }
        let fields = self.fields.iter().zip(&mut group_state.states);
        fields.into_iter().try_for_each(|((_, field), state)| field.add(document, state))
    }

    /// Returns the result document of a group, or its partial states.
    fn result(&self, group_state: GroupState) -> Result<Vec<u8>> {
        if self.partial {
            return write_state(&group_state);
        }
        let values = self.fields.iter().zip(group_state.states);
        let values = values.map(|((name, _), state)| (Cow::Borrowed(name.as_str()), Part::Owned(state.finish())));
        let id = std::iter::once((Cow::Borrowed("_id"), Part::Owned(group_state.id)));
        write::document(&Part::Object(id.chain(values).collect()))
    }
}

/// A group's partial states as a document.
fn write_state(group_state: &GroupState) -> Result<Vec<u8>> {
    let states = group_state.states.iter().map(|state| Part::Owned(state.state())).collect();
    write::answer(&Part::Object(vec![
        (Cow::Borrowed(KEY), Part::Owned(group_state.id.clone())),
        (Cow::Borrowed(STATES), Part::Array(states)),
    ]))
}

/// Merges the partial states of a document.
fn merge(document: RawObject<'_>, group_state: &mut GroupState) -> Result<()> {
    let damaged = || -> Error { error!(Kind::BadValue, "malformed states of a group") };
    let Some(RawValue::Array(states)) = document.get(STATES) else { return Err(damaged()) };
    ensure!(
        states.len() == group_state.states.len(),
        Kind::BadValue,
        "malformed states of a group: found {}, expected {}",
        states.len(),
        group_state.states.len()
    );
    let states = states.iter().zip(&mut group_state.states);
    states.into_iter().try_for_each(|(later, state)| state.merge_state(Value::from_raw(later)))
}

/// The groups in memory.
#[derive(Debug, Default)]
struct Table {
    positions: HashMap<Vec<u8>, usize>,
    groups: Vec<GroupState>,
    bytes: usize,
    /// the encoded key of the current document's group
    key: Vec<u8>,
}

impl Table {
    fn add(&mut self, group: &Group, document: RawObject<'_>) -> Result<()> {
        let id = group.id_of(document)?;
        self.key.clear();
        id.encode_under(group.collator.as_deref(), &mut self.key);
        let position = match self.positions.get(&self.key) {
            Some(position) => *position,
            None => {
                let id = id.into_value();
                self.bytes += GROUP_BYTES + self.key.len() + size_of_value(&id);
                let group_state = group.begin_group(id)?;
                self.bytes += group_state.size();
                self.groups.push(group_state);
                self.positions.insert(self.key.clone(), self.groups.len() - 1);
                self.groups.len() - 1
            }
        };
        let Some(group_state) = self.groups.get_mut(position) else { return Ok(()) };
        let before = group_state.size();
        group.add(document, group_state)?;
        self.bytes = self.bytes + group_state.size() - before;
        Ok(())
    }

    /// Removes and returns all groups, in the order of their first documents.
    fn take(&mut self) -> Vec<GroupState> {
        let table = std::mem::take(self);
        table.groups
    }
}

impl GroupState {
    fn size(&self) -> usize {
        self.states.iter().map(Accumulation::size).sum()
    }
}

struct GroupingStream<'s> {
    /// None after its last document
    input: Option<Input<'s>>,
    group: Arc<Group>,
    context: Context,
    table: Table,
    /// the partial states that were moved out of the full table; None if there are none
    sorter: Option<Box<dyn Sorter>>,
    /// how many times the table has been emptied
    flushed: u64,
    /// groups to be returned
    results: std::vec::IntoIter<GroupState>,
    /// the key and the group whose sorted states are being merged
    merged: Option<(Vec<u8>, GroupState)>,
    current: Vec<u8>,
}

impl GroupingStream<'_> {
    /// Reads input until groups can be returned; false if the input had already ended.
    fn read(&mut self) -> Result<bool> {
        let Some(mut input) = self.input.take() else { return Ok(false) };
        while input.advance()? {
            budget::step();
            self.table.add(&self.group, document(&input)?).map_err(coded)?;
            let (memory, bytes) = (&self.context.resources.memory, self.table.bytes);
            if self.group.partial {
                if bytes > memory.stage_bytes() {
                    self.results = self.table.take().into_iter();
                    self.input = Some(input);
                    return Ok(true);
                }
            } else if memory.must_spill(bytes)? {
                self.flush()?;
            }
        }
        if self.sorter.is_some() {
            self.flush()?;
            if let Some(sorter) = &mut self.sorter {
                sorter.sort()?;
            }
        } else {
            self.results = self.table.take().into_iter();
        }
        Ok(true)
    }

    /// Moves the states of all groups into the sorter. The row's key is the group's key and the number of this flush.
    fn flush(&mut self) -> Result<()> {
        if self.sorter.is_none() {
            self.sorter = Some(self.context.resources.memory.sorter(None, false)?);
        }
        let Some(sorter) = &mut self.sorter else { return Ok(()) };
        for group_state in self.table.take() {
            let mut key = self.group.key_of(&group_state.id);
            key.extend(self.flushed.to_be_bytes());
            sorter.add(&key, &write_state(&group_state)?)?;
        }
        self.flushed += 1;
        Ok(())
    }

    /// Merges the sorted states of the next group.
    fn next_merged(&mut self) -> Result<Option<GroupState>> {
        let Some(sorter) = &mut self.sorter else { return Ok(None) };
        loop {
            if !sorter.advance()? {
                self.sorter = None;
                return Ok(self.merged.take().map(|(_, group_state)| group_state));
            }
            let Some(document) = raw::document(sorter.value()) else {
                bail!(Kind::InternalError, "a row that was sorted is damaged")
            };
            let key = sorter.key().split_last_chunk::<8>().map_or(&[][..], |(key, _)| key);
            if let Some((current, group_state)) = &mut self.merged
                && current == key
            {
                merge(document, group_state)?;
                continue;
            }
            let mut group_state = self.group.begin_group(document.get(KEY).map_or(Value::Null, Value::from_raw))?;
            merge(document, &mut group_state)?;
            if let Some((_, done)) = self.merged.replace((key.to_vec(), group_state)) {
                return Ok(Some(done));
            }
        }
    }
}

impl Stream for GroupingStream<'_> {
    fn advance(&mut self) -> Result<bool> {
        loop {
            let next = match self.results.next() {
                Some(group_state) => Some(group_state),
                None if self.input.is_none() => self.next_merged()?,
                None => None,
            };
            if let Some(group_state) = next {
                self.current = self.group.result(group_state)?;
                return Ok(true);
            }
            if !self.read()? {
                return Ok(false);
            }
        }
    }

    fn bytes(&self) -> &[u8] {
        &self.current
    }
}

pub(in crate::query::stage) fn group(parser: &Parser<'_>, json: &Json) -> Result<Parsed> {
    parse(parser, json, false, false)
}

/// The part of a `$group` that runs at a shard.
pub(in crate::query::stage) fn partial(parser: &Parser<'_>, json: &Json) -> Result<Parsed> {
    parse(parser, json, false, true)
}

/// The part of a `$group` that runs over the partial states of shards.
pub(in crate::query::stage) fn merged(parser: &Parser<'_>, json: &Json) -> Result<Parsed> {
    parse(parser, json, true, false)
}

/// Gives an error the code that it has in `$group`, which MongoDB runs in an engine with codes of its own.
fn coded(error: Error) -> Error {
    let code = match error.kind {
        Kind::Location(40400) => 5911200,
        _ => return count_coded(error),
    };
    error.with_kind(code)
}

/// Like [`coded`], for errors of constants, which are computed before a document is read. Only the argument `n` has other codes: MongoDB
/// computes the other constants outside of that engine.
fn count_coded(error: Error) -> Error {
    match error.kind {
        Kind::Location(5787902 | 5787903 | 5787908) => error.with_kind(7548606),
        _ => error,
    }
}

fn parse(parser: &Parser<'_>, json: &Json, merges: bool, partial: bool) -> Result<Parsed> {
    let Some(specification) = ext_json::document(json) else {
        bail!(15947, "a group's fields must be specified in an object")
    };
    let environment = &parser.environment.in_group();
    let mut id = None;
    let mut only_field = None;
    let mut fields = Vec::new();
    for (name, value) in specification {
        if name == "_id" {
            let only_values =
                ext_json::document(value).filter(|fields| !fields.keys().any(|name| name.starts_with('$')));
            let is_inclusion = |json: &Json| matches!(ext_json::from_json(json), Ok(Value::Bool(_) | Value::Number(_)));
            if only_values.is_some_and(|fields| fields.values().any(is_inclusion)) {
                bail!(17390, "$group does not support inclusion-style expressions");
            }
            id = Some(Expression::parse(value, environment)?);
            let name = value.as_object().filter(|fields| fields.len() == 1).and_then(|fields| fields.keys().next());
            only_field = name.filter(|name| !name.starts_with('$')).cloned();
            continue;
        }
        fields.push((name.clone(), Accumulating::parse(name, value, environment).map_err(count_coded)?));
    }
    let Some(id) = id else { bail!(15955, "a group specification must include an _id") };
    Parser::one(Group { id, only_field, fields, collator: environment.collator().cloned(), merges, partial })
}
