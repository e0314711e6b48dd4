//! `$densify`: adds documents for values that are missing from a series.
//!
//! Documents are sorted by partition and value, and missing ones are made when the next document is read. For the bounds `full`,
//! the least and the greatest value are found during the sort.

use crate::budget;
use crate::error::{Kind, Result, bail, ensure, error};
use crate::query::accumulator::Sum;
use crate::query::environment::Environment;
use crate::query::expression::{Expression, Unit};
use crate::query::operand::Operand;
use crate::query::projection::Assignments;
use crate::query::sort::Sort;
use crate::query::stage::fields::Fields;
use crate::query::stage::operation::{Context, Operation, Parsed, Parser, given};
use crate::query::stage::runtime::position::Position;
use crate::query::stage::runtime::sorted_partitions::{PartitionOrder, SortedPartitions};
use crate::query::stage::runtime::stream::{Input, Stream};
use crate::values::document::ext_json;
use crate::values::document::number::{self, Number};
use crate::values::document::raw::{self, RawObject};
use crate::values::document::value::Value;
use crate::values::document::write;
use crate::values::path;
use serde_json::{Map, Value as Json, json};
use std::cmp::Ordering;
use std::sync::Arc;

/// `$densify`
#[derive(Debug)]
struct Densify {
    field: String,
    partitions: Vec<String>,
    /// the expressions of the partition fields
    partition_values: Vec<Expression>,
    order: Arc<PartitionOrder>,
    /// the fields that a new document gets: those of the partition, then `field`
    new_fields: Assignments,
    step: Step,
    bounds: Bounds,
}

/// The distance between two values of the series.
#[derive(Debug)]
enum Step {
    Number(Number),
    Date(Unit, i64),
}

/// The range of values in which missing documents are made.
#[derive(Debug)]
enum Bounds {
    /// from the least to the greatest value of all documents
    Full,
    /// from the least to the greatest value of the partition
    Partition,
    /// from the first value (included) to the second (excluded)
    Between(Position, Position),
}

/// The most documents that are made: MongoDB's limit.
const MAX_NEW_DOCUMENTS: usize = 500_000;

impl Operation for Densify {
    fn fields(&self) -> Fields {
        Fields::kept(self.partitions.iter().chain([&self.field]).cloned())
    }

    fn begin<'s>(self: Arc<Self>, input: Input<'s>, context: &Context) -> Result<Input<'s>> {
        let source = SortedPartitions::new(Arc::clone(&self.order), input, &*context.resources.memory)?;
        Ok(Box::new(Densifying {
            stage: self,
            source,
            sorted: false,
            extremes: None,
            pending: false,
            ended: false,
            partition: None,
            values: Vec::new(),
            next: None,
            any_value: false,
            count: 0,
            new_document: None,
        }))
    }
}

impl Densify {
    /// The value of a document; None if it is null or missing.
    ///
    /// # Errors
    /// `Location5733201` and `Location6053600` for a value of a wrong type.
    fn position(&self, document: RawObject<'_>) -> Result<Option<Position>> {
        let value = path::value_at(document, &self.field).map_or(Operand::Missing, Operand::Stored);
        if value.is_nullish() {
            return Ok(None);
        }
        let position = Position::from(value.into_value());
        match (&position, &self.step) {
            (Position::Other(_), _) => bail!(5733201, "Densify field type must be numeric or a date"),
            (Position::Number(_), Step::Date(..)) => {
                bail!(6053600, "Encountered numeric densify value in collection when step has a date unit.")
            }
            (Position::Date(_), Step::Number(_)) => {
                bail!(6053600, "Encountered date densify value in collection when step does not have a date unit.")
            }
            _ => Ok(Some(position)),
        }
    }

    /// Returns the value one step after this one.
    fn after(&self, position: &Position) -> Result<Position> {
        match (position, &self.step) {
            (Position::Number(number), Step::Number(step)) => {
                let mut sum = Sum::default();
                sum.add(number);
                sum.add(step);
                Ok(Position::Number(sum.total()))
            }
            (Position::Date(millis), Step::Date(unit, step)) => {
                let after = unit.after(*millis, *step);
                Ok(Position::Date(after.ok_or_else(|| error!(Kind::Overflow, "$densify exceeds the range of dates"))?))
            }
            (other, _) => Ok(other.clone()),
        }
    }
}

/// The sorted documents with the missing ones added.
struct Densifying<'s> {
    stage: Arc<Densify>,
    source: SortedPartitions<'s>,
    sorted: bool,
    /// the least and the greatest value of all documents
    extremes: Option<(Position, Position)>,
    /// true if the source is at a document that has not been returned
    pending: bool,
    /// true if the source has no further document
    ended: bool,
    /// the key of the present partition
    partition: Option<Vec<u8>>,
    /// the values of the present partition's fields
    values: Vec<Option<Value>>,
    /// the next value of the series; None until a document of the partition has a value
    next: Option<Position>,
    /// true if any document has had a value, or if explicit bounds are filled without one
    any_value: bool,
    /// how many documents have been made
    count: usize,
    /// None if the document is the source's
    new_document: Option<Vec<u8>>,
}

impl Densifying<'_> {
    fn sort(&mut self) -> Result<()> {
        self.sorted = true;
        let (stage, extremes) = (Arc::clone(&self.stage), &mut self.extremes);
        self.source.sort(|document| {
            // A value of a wrong type raises an error later, when the document is read.
            let Ok(Some(position)) = stage.position(document) else { return };
            match extremes {
                None => *extremes = Some((position.clone(), position)),
                Some((least, _)) if position.compare(least).is_lt() => *least = position,
                Some((_, greatest)) if position.compare(greatest).is_gt() => *greatest = position,
                Some(_) => {}
            }
        })
    }

    /// Returns the next document of the source without consuming it; None at the end of the present partition.
    fn peek(&mut self) -> Result<Option<RawObject<'_>>> {
        if !self.pending && !self.ended {
            self.pending = self.source.advance()?;
            self.ended = !self.pending;
        }
        if !self.pending || self.partition.as_deref() != Some(self.source.partition()) {
            return Ok(None);
        }
        let document = raw::document(self.source.bytes());
        document.map(Some).ok_or_else(|| error!(Kind::InternalError, "a row that was sorted is damaged"))
    }

    /// Returns the first value of the series in a partition whose first document has this value.
    fn first(&self, position: &Position) -> Position {
        match (&self.stage.bounds, &self.extremes) {
            (Bounds::Between(lower, _), _) => lower.clone(),
            (Bounds::Full, Some((least, _))) => least.clone(),
            _ => position.clone(),
        }
    }

    /// True if a value is below the upper bound, or, for `full`, equal to it. False for `partition`, because a partition's series ends with
    /// its last document.
    fn is_in_bounds(&self, position: &Position) -> bool {
        match (&self.stage.bounds, &self.extremes) {
            (Bounds::Between(_, upper), _) => position.compare(upper).is_lt(),
            (Bounds::Full, Some((_, greatest))) => position.compare(greatest).is_le(),
            _ => false,
        }
    }

    /// Makes the document for a missing value, and advances the series.
    fn make_document(&mut self, position: Position) -> Result<()> {
        budget::step();
        self.count += 1;
        ensure!(
            self.count <= MAX_NEW_DOCUMENTS,
            5897900,
            "Generated {} documents in $densify, which is over the limit of {MAX_NEW_DOCUMENTS}",
            self.count
        );
        self.next = Some(self.stage.after(&position)?);
        let mut values = self.values.clone();
        values.push(Some(position.into_value()));
        let empty = write::empty()?;
        let Some(empty) = raw::document(&empty) else { bail!(Kind::InternalError, "the empty document is invalid") };
        self.new_document = Some(self.stage.new_fields.apply(empty, &values)?);
        Ok(())
    }

    /// Moves to the next document of the partition, which is a new one or the source's next; false at the partition's end.
    fn next_in_partition(&mut self) -> Result<bool> {
        let stage = Arc::clone(&self.stage);
        let collator = stage.order.collator.as_deref();
        let Some(document) = self.peek()? else {
            return match self.next.take().filter(|next| self.is_in_bounds(next)) {
                Some(next) => self.make_document(next).map(|()| true),
                None => Ok(false),
            };
        };
        if let Some(position) = stage.position(document)? {
            let next = match self.next.clone() {
                Some(next) => next,
                None => {
                    let Some(document) = self.peek()? else { return Ok(false) };
                    let values = stage.partition_values.iter().map(|value| value.evaluate(document, collator));
                    self.values = values.collect::<Result<_>>()?;
                    self.any_value = true;
                    self.first(&position)
                }
            };
            let is_bound = matches!(stage.bounds, Bounds::Between(..));
            match next.compare(&position) {
                Ordering::Less if !is_bound || self.is_in_bounds(&next) => {
                    return self.make_document(next).map(|()| true);
                }
                // Continues from the document's value and not from the equal `next`, so that the next values have its type.
                Ordering::Equal => self.next = Some(stage.after(&position)?),
                _ => self.next = Some(next),
            }
        }
        self.new_document = None;
        self.pending = false;
        Ok(true)
    }
}

impl Stream for Densifying<'_> {
    fn advance(&mut self) -> Result<bool> {
        if !self.sorted {
            self.sort()?;
        }
        loop {
            if self.next_in_partition()? {
                return Ok(true);
            }
            if self.pending {
                self.partition = Some(self.source.partition().to_vec());
                continue;
            }
            // Explicit bounds are filled even if no document has a value.
            let Bounds::Between(lower, _) = &self.stage.bounds else { return Ok(false) };
            if std::mem::replace(&mut self.any_value, true) {
                return Ok(false);
            }
            self.next = Some(lower.clone());
            self.values = vec![None; self.stage.partitions.len()];
        }
    }

    fn bytes(&self) -> &[u8] {
        self.new_document.as_deref().unwrap_or_else(|| self.source.bytes())
    }
}

pub(in crate::query::stage) fn densify(parser: &Parser<'_>, json: &Json) -> Result<Parsed> {
    let environment = parser.environment;
    let fields =
        parser.named(json, &["field", "partitionByFields", "range"], [Kind::FailedToParse, Kind::UnknownOption])?;
    let field = match required(fields, "$densify", "field")? {
        Json::String(field) => field.clone(),
        _ => return Err(wrong_type("field", "string")),
    };
    let Some(range) = ext_json::document(required(fields, "$densify", "range")?) else {
        return Err(wrong_type("range", "object"));
    };
    if let Some(unknown) = range.keys().find(|name| !["step", "unit", "bounds"].contains(&name.as_str())) {
        bail!(Kind::UnknownOption, "BSON field '$densify.range.{unknown}' is an unknown field.");
    }
    let (step, bounds) = parse_range(range)?;
    let partitions = match given(fields, "partitionByFields") {
        None => Vec::new(),
        Some(Json::Array(names)) => {
            let name = |name: &Json| name.as_str().map(str::to_owned);
            let names: Option<Vec<String>> = names.iter().map(name).collect();
            names.ok_or_else(|| wrong_type("partitionByFields", "array of strings"))?
        }
        Some(_) => return Err(wrong_type("partitionByFields", "array")),
    };
    for path in partitions.iter().chain([&field]) {
        path::check_field_path(path)?;
    }
    if matches!(bounds, Bounds::Partition) && partitions.is_empty() {
        bail!(
            5733408,
            "One cannot specify the bounds as 'partition' without specifying a non-empty array of partitionByFields. You \
             may have meant to specify 'full' bounds."
        );
    }
    let paths: Vec<&str> = partitions.iter().chain([&field]).map(String::as_str).collect();
    let new_fields = Assignments::parse(&paths).map_err(|error| match Assignments::is_collision(&error) {
        true => error!(8993000, "BSON field '$densify.partitionByFields' contains the field that is being densified"),
        false => error,
    })?;
    let value_of = |path: &String| Expression::parse(&json!(format!("${path}")), environment);
    let order = PartitionOrder {
        partition_by: key_of(&partitions, environment)?,
        sort_by: Some(Sort { fields: vec![(field.clone(), false)], collator: environment.collator().cloned() }),
        collator: environment.collator().cloned(),
    };
    let partition_values = partitions.iter().map(value_of).collect::<Result<_>>()?;
    Parser::one(Densify { field, partitions, partition_values, order: Arc::new(order), new_fields, step, bounds })
}

/// The expression of a partition's key.
fn key_of(partitions: &[String], environment: &Environment) -> Result<Option<Expression>> {
    if partitions.is_empty() {
        return Ok(None);
    }
    let fields =
        partitions.iter().enumerate().map(|(position, path)| (position.to_string(), json!(format!("${path}"))));
    Expression::parse(&Json::Object(fields.collect()), environment).map(Some)
}

fn required<'j>(fields: &'j Map<String, Json>, above: &str, name: &str) -> Result<&'j Json> {
    let missing = || error!(40414, "BSON field '{above}.{name}' is missing but a required field");
    fields.get(name).ok_or_else(missing)
}

fn wrong_type(field: &str, expected: &str) -> crate::error::Error {
    error!(Kind::TypeMismatch, "BSON field '$densify.{field}' is the wrong type, expected type '{expected}'")
}

fn parse_range(range: &Map<String, Json>) -> Result<(Step, Bounds)> {
    let Value::Number(step) = ext_json::from_json(required(range, "$densify.range", "step")?)? else {
        return Err(wrong_type("range.step", "number"));
    };
    let bounds = required(range, "$densify.range", "bounds")?;
    ensure!(
        number::compare(&step, &Number::int(0)).is_gt(),
        5733401,
        "The step parameter in a range statement must be a strictly positive numeric value"
    );
    let unit = match range.get("unit") {
        None => None,
        Some(Json::String(name)) => {
            let whole = step.as_i64().ok_or_else(|| {
                error!(
                    6586400,
                    "The step parameter in a range statement must be a whole number when densifying a date range"
                )
            })?;
            let unit =
                Unit::find(name).ok_or_else(|| error!(Kind::FailedToParse, "unknown time unit value: {name}"))?;
            Some((unit, whole))
        }
        Some(_) => return Err(wrong_type("range.unit", "string")),
    };
    let bounds = match bounds {
        Json::String(name) if name == "full" => Bounds::Full,
        Json::String(name) if name == "partition" => Bounds::Partition,
        Json::String(_) => bail!(5946802, "Bounds string must either be 'full' or 'partition'"),
        Json::Array(bounds) => {
            let [lower, upper] = bounds.as_slice() else {
                bail!(5733403, "A bounding array in a range statement must have exactly two elements")
            };
            let (lower, upper) = (ext_json::from_json(lower)?, ext_json::from_json(upper)?);
            let (lower, upper) = (Position::from(lower), Position::from(upper));
            ensure!(
                lower.compare(&upper).is_le(),
                5733402,
                "A bounding array must be an ascending array of either two dates or two numbers"
            );
            check_bounds(&lower, &upper, &step, unit.is_some())?;
            Bounds::Between(lower, upper)
        }
        _ => bail!(
            5733404,
            "The bounds in a range statement must be the string 'full', 'partition', or an ascending array of two numbers \
             or two dates"
        ),
    };
    let step = match unit {
        Some((unit, step)) => Step::Date(unit, step),
        None => Step::Number(step),
    };
    Ok((step, bounds))
}

/// Checks that both bounds and the step have the same type.
fn check_bounds(lower: &Position, upper: &Position, step: &Number, has_unit: bool) -> Result<()> {
    let both = "A bounding array must contain either both dates or both numeric types";
    match (lower, upper) {
        (Position::Number(lower), upper) => {
            ensure!(!has_unit, 5733409, "Numeric bounds may not have unit parameter");
            let Position::Number(upper) = upper else { bail!(5733406, "{both}") };
            let type_of = std::mem::discriminant::<Number>;
            ensure!(
                type_of(lower) == type_of(upper) && type_of(lower) == type_of(step),
                5876900,
                "Upper bound, lower bound, and step must all have the same type"
            );
            Ok(())
        }
        (Position::Date(_), upper) => {
            ensure!(matches!(upper, Position::Date(_)), 5733405, "{both}");
            ensure!(has_unit, 5733410, "A bounding array of dates must specify a unit");
            Ok(())
        }
        _ => bail!(5946800, "Explicit bounds must be numeric or dates"),
    }
}
