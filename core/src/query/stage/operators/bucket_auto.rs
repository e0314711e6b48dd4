//! `$bucketAuto`: divides documents by ranges of a value into groups of about equal size.
//!
//! Documents are sorted by value. If an accumulator depends on the order of the input, the documents of a bucket are sorted again,
//! by their positions in the input.

use super::accumulating::Accumulating;
use super::derived::{default_output, is_group_by, output};
use super::granularity::Granularity;
use crate::budget;
use crate::error::{Kind, Result, bail, ensure, error};
use crate::query::accumulator::Accumulation;
use crate::query::expression::Expression;
use crate::query::operand::Operand;
use crate::query::stage::fields::Fields;
use crate::query::stage::operation::{Context, Operation, Parsed, Parser};
use crate::query::stage::runtime::sorter::Sorter;
use crate::query::stage::runtime::stream::{Input, Memory, Stream, document};
use crate::values::collation::Collator;
use crate::values::document::ext_json;
use crate::values::document::number::Number;
use crate::values::document::raw::{self, RawObject};
use crate::values::document::value::Value;
use crate::values::document::write::{self, Part};
use crate::values::key::encode::encoded_under;
use serde_json::Value as Json;
use std::borrow::Cow;
use std::cmp::Ordering;
use std::rc::Rc;
use std::sync::Arc;

/// `$bucketAuto`
#[derive(Debug)]
struct BucketAuto {
    by: Expression,
    buckets: u64,
    fields: Vec<(String, Accumulating)>,
    granularity: Option<Granularity>,
    collator: Option<Arc<Collator>>,
}

impl Operation for BucketAuto {
    fn fields(&self) -> Fields {
        let read = self.fields.iter().try_fold(self.by.fields_read(), |read, (_, field)| {
            let (mut read, more) = (read?, field.fields_read()?);
            read.extend(more);
            Some(Some(read))
        });
        Fields::replaced(read.flatten())
    }

    fn begin<'s>(self: Arc<Self>, input: Input<'s>, context: &Context) -> Result<Input<'s>> {
        let sorter = context.resources.memory.sorter(None, false)?;
        let memory = Rc::clone(&context.resources.memory);
        let stream =
            Buckets { input: Some(input), stage: self, sorter, memory, size: 0, made: 0, next: None, boundary: None };
        Ok(Box::new(Bucketing { stream, current: Vec::new() }))
    }
}

impl BucketAuto {
    /// Returns the value by which a document is assigned to a bucket.
    fn value_of(&self, document: RawObject<'_>) -> Result<Value> {
        let value = self.by.operand(document, self.collator.as_deref())?.into_value();
        if self.granularity.is_some() {
            let Value::Number(number) = &value else {
                bail!(
                    40258,
                    "$bucketAuto can specify a 'granularity' with numeric boundaries only, but found a value with type: {}",
                    value.type_name()
                )
            };
            ensure!(
                !number.is_nan(),
                40259,
                "$bucketAuto can specify a 'granularity' with numeric boundaries only, but found a NaN"
            );
            if number.to_f64() < 0.0 {
                bail!(
                    40260,
                    "$bucketAuto can specify a 'granularity' with non-negative numbers only, but found a negative number"
                );
            }
        }
        Ok(value)
    }

    fn add(&self, document: RawObject<'_>, states: &mut [Accumulation]) -> Result<()> {
        self.fields.iter().zip(states).try_for_each(|((_, field), state)| field.add(document, state))
    }

    fn key_of(&self, value: &Value) -> Vec<u8> {
        encoded_under(value, self.collator.as_deref())
    }

    fn compare(&self, one: &Value, other: &Value) -> Ordering {
        Operand::Given(one).compare(&Operand::Given(other), self.collator.as_deref())
    }

    fn rounded(&self, value: &Value, round: fn(Granularity, &Number) -> Result<Number>) -> Result<Option<Value>> {
        match (self.granularity, value) {
            (Some(granularity), Value::Number(number)) => Ok(Some(Value::Number(round(granularity, number)?))),
            _ => Ok(None),
        }
    }
}

/// Sorts the input by value and divides it into buckets.
struct Buckets<'s> {
    /// None once the input has been sorted
    input: Option<Input<'s>>,
    stage: Arc<BucketAuto>,
    sorter: Box<dyn Sorter>,
    memory: Rc<dyn Memory>,
    /// the approximate number of documents of a bucket
    size: u64,
    /// the number of buckets returned so far
    made: u64,
    /// the value of the document that the sorter is at
    next: Option<Value>,
    /// with a granularity: the upper boundary of the previous bucket
    boundary: Option<Value>,
}

/// A bucket that is being filled.
struct Bucket {
    least: Value,
    greatest: Value,
    states: Vec<Accumulation>,
    /// the documents by their positions in the input; None if the order does not matter
    in_order: Option<Box<dyn Sorter>>,
}

impl Bucket {
    /// Adds the documents of `in_order` to the states, in the order of the input.
    fn add_in_order(&mut self, stage: &BucketAuto) -> Result<()> {
        let Some(mut documents) = self.in_order.take() else { return Ok(()) };
        documents.sort()?;
        while documents.advance()? {
            budget::step();
            stage.add(sorted_document(&*documents)?, &mut self.states)?;
        }
        Ok(())
    }
}

/// The document that a sorter is at.
fn sorted_document(sorter: &dyn Sorter) -> Result<RawObject<'_>> {
    raw::document(sorter.value()).ok_or_else(|| error!(Kind::InternalError, "a row that was sorted is damaged"))
}

impl Buckets<'_> {
    fn sort(&mut self, mut input: Input<'_>) -> Result<()> {
        let mut count: u64 = 0;
        while input.advance()? {
            budget::step();
            let mut key = self.stage.key_of(&self.stage.value_of(document(&input)?)?);
            key.extend(count.to_be_bytes());
            self.sorter.add(&key, input.bytes())?;
            count += 1;
        }
        self.sorter.sort()?;
        let whole = count / self.stage.buckets;
        self.size = (whole + u64::from(count % self.stage.buckets * 2 >= self.stage.buckets)).max(1);
        self.step()
    }

    /// Moves on to the next document.
    fn step(&mut self) -> Result<()> {
        self.next = match self.sorter.advance()? {
            true => Some(self.stage.value_of(self.document()?)?),
            false => None,
        };
        Ok(())
    }

    fn document(&self) -> Result<RawObject<'_>> {
        sorted_document(&*self.sorter)
    }

    /// Puts the next document into a bucket.
    fn take(&mut self, bucket: &mut Bucket) -> Result<()> {
        budget::step();
        match &mut bucket.in_order {
            None => self.stage.add(self.document()?, &mut bucket.states)?,
            Some(documents) => {
                let key = self.sorter.key();
                let position = &key[key.len().saturating_sub(size_of::<u64>())..];
                documents.add(position, self.sorter.value())?;
            }
        }
        if let Some(value) = self.next.take() {
            bucket.greatest = value;
        }
        self.step()
    }

    /// Puts documents into the bucket while `related` accepts the comparison of their value with the boundary.
    fn take_while(&mut self, bucket: &mut Bucket, boundary: &Value, related: fn(Ordering) -> bool) -> Result<()> {
        while self.next.as_ref().is_some_and(|value| related(self.stage.compare(value, boundary))) {
            self.take(bucket)?;
        }
        Ok(())
    }

    fn next_bucket(&mut self) -> Result<Option<Bucket>> {
        if let Some(input) = self.input.take() {
            self.sort(input)?;
        }
        let Some(first) = self.next.clone() else { return Ok(None) };
        self.made += 1;
        let stage = Arc::clone(&self.stage);
        let states = stage.fields.iter().map(|(_, field)| field.begin(&Value::Null)).collect::<Result<_>>()?;
        let in_order = match stage.fields.iter().any(|(_, field)| field.depends_on_order()) {
            true => Some(self.memory.sorter(None, false)?),
            false => None,
        };
        let mut bucket = Bucket { least: first.clone(), greatest: first, states, in_order };
        let mut count = 0;
        while self.next.is_some() && (count < self.size || self.made == stage.buckets) {
            self.take(&mut bucket)?;
            count += 1;
        }
        let reached = bucket.greatest.clone();
        match stage.rounded(&reached, Granularity::above)? {
            None => {
                self.take_while(&mut bucket, &reached, Ordering::is_eq)?;
                bucket.greatest = self.next.clone().unwrap_or(reached);
            }
            Some(boundary) => {
                self.take_while(&mut bucket, &boundary, Ordering::is_lt)?;
                // The boundary above zero is zero itself, so further zeros are taken here.
                self.take_while(&mut bucket, &reached, Ordering::is_eq)?;
                let least = stage.rounded(&bucket.least, Granularity::below)?;
                bucket.least = self.boundary.take().or(least).unwrap_or(reached);
                // A first bucket of zeros ends where the next one begins.
                let zero = matches!(&boundary, Value::Number(number) if number.to_f64() == 0.0);
                let next = self.next.as_ref().filter(|_| zero);
                let next = next.map(|next| stage.rounded(next, Granularity::below)).transpose()?;
                bucket.greatest = next.flatten().unwrap_or(boundary);
                self.boundary = Some(bucket.greatest.clone());
            }
        }
        bucket.add_in_order(&stage)?;
        Ok(Some(bucket))
    }
}

struct Bucketing<'s> {
    stream: Buckets<'s>,
    current: Vec<u8>,
}

impl Stream for Bucketing<'_> {
    fn advance(&mut self) -> Result<bool> {
        let Some(bucket) = self.stream.next_bucket()? else { return Ok(false) };
        let bounds = vec![("min".to_owned(), bucket.least), ("max".to_owned(), bucket.greatest)];
        let id = (Cow::Borrowed("_id"), Part::Owned(Value::fixed_object(bounds)));
        let values = self.stream.stage.fields.iter().zip(bucket.states);
        let values = values.map(|((name, _), state)| (Cow::Borrowed(name.as_str()), Part::Owned(state.finish())));
        self.current = write::document(&Part::Object(std::iter::once(id).chain(values).collect()))?;
        Ok(true)
    }

    fn bytes(&self) -> &[u8] {
        &self.current
    }
}

pub(in crate::query::stage) fn bucket_auto(parser: &Parser<'_>, json: &Json) -> Result<Parsed> {
    let fields = parser.named(json, &["groupBy", "buckets", "output", "granularity"], [40240, 40245])?;
    let (Some(by), Some(buckets)) = (fields.get("groupBy"), fields.get("buckets")) else {
        bail!(40246, "$bucketAuto requires 'groupBy' and 'buckets' to be specified")
    };
    ensure!(
        is_group_by(by),
        40239,
        "The $bucketAuto 'groupBy' field must be defined as a $-prefixed path or an expression, but found: {by}"
    );
    let Value::Number(buckets) = ext_json::from_json(buckets)? else {
        bail!(40241, "The $bucketAuto 'buckets' field must be a numeric value, but found: {buckets}")
    };
    let Some(buckets) = buckets.as_i64().filter(|buckets| i32::try_from(*buckets).is_ok()) else {
        bail!(40242, "The $bucketAuto 'buckets' field must be representable as a 32-bit integer")
    };
    let buckets = u64::try_from(buckets).ok().filter(|buckets| *buckets > 0);
    let buckets = buckets.ok_or_else(|| error!(40243, "The $bucketAuto 'buckets' field must be greater than 0"))?;
    let granularity = match fields.get("granularity") {
        None => None,
        Some(Json::String(name)) => {
            let found = Granularity::find(name);
            Some(found.ok_or_else(|| error!(40257, "Unknown rounding granularity '{name}'"))?)
        }
        Some(_) => bail!(40261, "The $bucketAuto 'granularity' field must be a string"),
    };
    let environment = parser.environment;
    let mut output = output(fields.get("output"), 40244)?;
    if output.is_empty() {
        output = default_output();
    }
    let mut accumulating = Vec::new();
    for (name, json) in output {
        let field = Accumulating::parse(&name, &json, environment)?;
        ensure!(!field.depends_on_group(), 4544714, "Can't refer to the group key in $bucketAuto");
        accumulating.push((name, field));
    }
    Parser::one(BucketAuto {
        by: Expression::parse(by, environment)?,
        buckets,
        fields: accumulating,
        granularity,
        collator: environment.collator().cloned(),
    })
}
