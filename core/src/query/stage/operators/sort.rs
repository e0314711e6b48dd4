//! `$sort` and `$sample`: sort documents by a specification, or by random keys.

use crate::budget;
use crate::error::{Result, bail, ensure, error};
use crate::query::sort::Sort;
use crate::query::stage::fields::Fields;
use crate::query::stage::operation::{Context, Operation, Parsed, Parser, Shape};
use crate::query::stage::runtime::sorter::Sorter;
use crate::query::stage::runtime::stream::{Input, Stream, document};
use crate::values::document::ext_json;
use crate::values::document::number::{Decimal, Number};
use crate::values::document::raw::RawObject;
use crate::values::document::value::Value;
use bigdecimal::{RoundingMode, ToPrimitive};
use serde_json::Value as Json;
use std::sync::Arc;

/// `$sort`
#[derive(Debug)]
struct Ordered(Sort);

impl Operation for Ordered {
    fn fields(&self) -> Fields {
        Fields::kept(self.0.fields.iter().map(|(path, _)| path.clone()))
    }

    fn begin<'s>(self: Arc<Self>, input: Input<'s>, context: &Context) -> Result<Input<'s>> {
        let sorter = context.resources.memory.sorter(context.most, false)?;
        let key_of = move |document: RawObject<'_>, key: &mut Vec<u8>| self.0.append_key_of(document, key);
        Ok(Box::new(Sorting { input: Some(input), key_of: Box::new(key_of), sorter }))
    }

    fn shape(&self) -> Shape<'_> {
        Shape::Sort(&self.0)
    }
}

/// `$sample`: gives documents random keys, and returns those with the least keys. So the samples of shards, merged by these keys, are a
/// sample of all.
#[derive(Debug)]
struct Sample(u64);

impl Operation for Sample {
    fn fields(&self) -> Fields {
        Fields::kept([])
    }

    fn begin<'s>(self: Arc<Self>, input: Input<'s>, context: &Context) -> Result<Input<'s>> {
        let sorter = context.resources.memory.sorter(Some(self.0), false)?;
        let key_of = |_: RawObject<'_>, key: &mut Vec<u8>| {
            key.extend(fastrand::u64(..).to_be_bytes());
            Ok(())
        };
        Ok(Box::new(Sorting { input: Some(input), key_of: Box::new(key_of), sorter }))
    }

    fn shape(&self) -> Shape<'_> {
        Shape::Sample(self.0)
    }
}

/// Appends the key of a document.
type KeyOf<'s> = Box<dyn Fn(RawObject<'_>, &mut Vec<u8>) -> Result<()> + 's>;

struct Sorting<'s> {
    /// None once the input has been sorted
    input: Option<Input<'s>>,
    key_of: KeyOf<'s>,
    sorter: Box<dyn Sorter>,
}

impl Stream for Sorting<'_> {
    fn advance(&mut self) -> Result<bool> {
        if let Some(mut input) = self.input.take() {
            let mut key = Vec::new();
            while input.advance()? {
                budget::step();
                key.clear();
                (self.key_of)(document(&input)?, &mut key)?;
                self.sorter.add(&key, input.bytes())?;
            }
            self.sorter.sort()?;
        }
        self.sorter.advance()
    }

    fn bytes(&self) -> &[u8] {
        self.sorter.value()
    }

    fn key(&self) -> &[u8] {
        self.sorter.key()
    }
}

pub(in crate::query::stage) fn sort(parser: &Parser<'_>, json: &Json) -> Result<Parsed> {
    if ext_json::ordered(json).is_none() {
        return Err(error!(15973, "the $sort key specification must be an object").with_hint(ext_json::ORDER_HINT));
    }
    let sort = Sort::parse_in(json, parser.environment)?;
    ensure!(!sort.fields.is_empty(), 15976, "$sort stage must have at least one sort key");
    Parser::one(Ordered(sort))
}

pub(in crate::query::stage) fn sample(parser: &Parser<'_>, json: &Json) -> Result<Parsed> {
    let fields = parser.named(json, &["size"], [28745, 28748])?;
    let Some(size) = fields.get("size") else { bail!(28749, "$sample stage must specify a size") };
    let Value::Number(size) = ext_json::from_json(size)? else {
        bail!(28746, "size argument to $sample must be a number")
    };
    // A decimal is rounded, a double is truncated by the cast below.
    let size = match &size {
        Number::Decimal(Decimal::Finite(value)) => value.with_scale_round(0, RoundingMode::HalfEven).to_f64(),
        size => Some(size.to_f64()),
    };
    let size = size.unwrap_or(f64::NAN);
    ensure!(size.is_nan() || size >= 0.0, 28747, "size argument to $sample must not be negative");
    // The cast saturates, so that a size beyond u64 means all documents. NaN becomes 0.
    match size as u64 {
        0 => bail!(28747, "size argument to $sample must be positive"),
        size => Parser::one(Sample(size)),
    }
}
