//! `$limit` and `$skip`: the first documents of the input, or all but the first.

use crate::error::{Kind, Result, bail, error};
use crate::query::stage::fields::Fields;
use crate::query::stage::operation::{Context, Operation, Parsed, Parser, Shape};
use crate::query::stage::runtime::stream::{Input, Stream};
use crate::values::document::ext_json;
use crate::values::document::value::Value;
use serde_json::Value as Json;
use std::sync::Arc;

#[derive(Clone, Copy, Debug)]
enum Part {
    Limit(u64),
    Skip(u64),
}

impl Operation for Part {
    fn fields(&self) -> Fields {
        Fields::kept([])
    }

    fn begin<'s>(self: Arc<Self>, input: Input<'s>, _: &Context) -> Result<Input<'s>> {
        let (skip, left) = match *self {
            Self::Limit(most) => (0, most),
            Self::Skip(skip) => (skip, u64::MAX),
        };
        Ok(Box::new(PartOfInput { input, skip, left }))
    }

    fn shape(&self) -> Shape<'_> {
        match *self {
            Self::Limit(most) => Shape::Limit(most),
            Self::Skip(skip) => Shape::Skip(skip),
        }
    }
}

struct PartOfInput<'s> {
    input: Input<'s>,
    /// how many documents must be skipped before the next one
    skip: u64,
    /// how many documents may still be returned
    left: u64,
}

impl Stream for PartOfInput<'_> {
    fn advance(&mut self) -> Result<bool> {
        while self.skip > 0 {
            self.skip -= 1;
            if !self.input.advance()? {
                return Ok(false);
            }
        }
        if self.left == 0 {
            return Ok(false);
        }
        self.left -= 1;
        self.input.advance()
    }

    fn bytes(&self) -> &[u8] {
        self.input.bytes()
    }

    fn key(&self) -> &[u8] {
        self.input.key()
    }
}

pub(in crate::query::stage) fn limit(parser: &Parser<'_>, json: &Json) -> Result<Parsed> {
    match count(parser.name, json, Kind::Location(5107201))? {
        0 => bail!(15958, "the limit must be positive"),
        most => Parser::one(Part::Limit(most)),
    }
}

pub(in crate::query::stage) fn skip(parser: &Parser<'_>, json: &Json) -> Result<Parsed> {
    Parser::one(Part::Skip(count(parser.name, json, Kind::Location(5107200))?))
}

/// Parses a number of documents. It must not be negative.
fn count(name: &str, json: &Json, kind: Kind) -> Result<u64> {
    let number = match ext_json::from_json(json)? {
        Value::Number(number) => number.as_i64(),
        _ => None,
    };
    number.and_then(|number| u64::try_from(number).ok()).ok_or_else(|| {
        error!(kind, "invalid argument to {name} stage: Expected a non-negative number in: {name}: {json}")
    })
}
