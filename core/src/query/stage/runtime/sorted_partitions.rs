//! Sorts documents by partition, then by a sort specification, then by their order of arrival.

use super::sorter::Sorter;
use super::stream::{Input, Memory, document};
use crate::budget;
use crate::error::{Kind, Result, bail};
use crate::query::expression::Expression;
use crate::query::operand::Operand;
use crate::query::sort::Sort;
use crate::values::collation::Collator;
use crate::values::document::raw::RawObject;
use crate::values::key::encode::encoded_under;
use std::sync::Arc;

/// How documents are partitioned, and how each partition is sorted.
#[derive(Debug)]
pub(in crate::query::stage) struct PartitionOrder {
    pub partition_by: Option<Expression>,
    pub sort_by: Option<Sort>,
    pub collator: Option<Arc<Collator>>,
}

impl PartitionOrder {
    /// True if there is one partition that is not sorted.
    fn is_unsorted(&self) -> bool {
        self.partition_by.is_none() && self.sort_by.is_none()
    }

    /// The key of a document's partition.
    fn partition_key(&self, document: RawObject<'_>) -> Result<Vec<u8>> {
        let Some(expression) = &self.partition_by else { return Ok(Vec::new()) };
        let collator = self.collator.as_deref();
        let value = expression.operand(document, collator)?;
        if value.is_array() {
            bail!(Kind::TypeMismatch, "Cannot 'partitionBy' an expression of type array");
        }
        // A missing value counts as null, as in `$group`.
        let value = if value.is_missing() { Operand::NULL } else { value };
        Ok(encoded_under(&value.into_value(), collator))
    }

    fn sort_key(&self, document: RawObject<'_>) -> Result<Vec<u8>> {
        self.sort_by.as_ref().map_or_else(|| Ok(Vec::new()), |sort| sort.key_of(document))
    }
}

/// A stream of documents in the order of a [`PartitionOrder`].
pub(in crate::query::stage) struct SortedPartitions<'s> {
    order: Arc<PartitionOrder>,
    /// None once it has been sorted, or has ended
    input: Option<Input<'s>>,
    /// None if documents stay in the order of the input
    sorter: Option<Box<dyn Sorter>>,
    sorted: bool,
}

/// The number of bytes at the end of a row's key that hold the length of its partition key.
const LENGTH: usize = size_of::<u32>();

impl<'s> SortedPartitions<'s> {
    pub fn new(order: Arc<PartitionOrder>, input: Input<'s>, memory: &dyn Memory) -> Result<Self> {
        let sorter = if order.is_unsorted() { None } else { Some(memory.sorter(None, false)?) };
        Ok(Self { order, input: Some(input), sorter, sorted: false })
    }

    /// Reads and sorts all documents, and calls `visit` with each. Does nothing if documents stay in the order of the
    /// input.
    pub fn sort(&mut self, mut visit: impl FnMut(RawObject<'_>)) -> Result<()> {
        self.sorted = true;
        let Some(sorter) = &mut self.sorter else { return Ok(()) };
        let Some(mut input) = self.input.take() else { return Ok(()) };
        let mut position: u64 = 0;
        while input.advance()? {
            budget::step();
            let document = document(&input)?;
            visit(document);
            let mut key = self.order.partition_key(document)?;
            let length = u32::try_from(key.len()).unwrap_or(u32::MAX);
            key.extend(self.order.sort_key(document)?);
            key.extend(position.to_be_bytes());
            key.extend(length.to_be_bytes());
            sorter.add(&key, input.bytes())?;
            position += 1;
        }
        sorter.sort()
    }

    /// Moves on to the next document; false if there is none.
    pub fn advance(&mut self) -> Result<bool> {
        if !self.sorted {
            self.sort(|_| ())?;
        }
        if let Some(sorter) = &mut self.sorter {
            return sorter.advance();
        }
        let more = match &mut self.input {
            Some(input) => input.advance()?,
            None => false,
        };
        if !more {
            self.input = None;
        }
        Ok(more)
    }

    /// The document's jsonb.
    pub fn bytes(&self) -> &[u8] {
        match (&self.sorter, &self.input) {
            (Some(sorter), _) => sorter.value(),
            (None, Some(input)) => input.bytes(),
            (None, None) => &[],
        }
    }

    /// The key of the document's partition.
    pub fn partition(&self) -> &[u8] {
        let key = self.sorter.as_ref().and_then(|sorter| sorter.key().split_last_chunk::<LENGTH>());
        key.and_then(|(key, length)| key.get(..u32::from_be_bytes(*length) as usize)).unwrap_or_default()
    }
}
