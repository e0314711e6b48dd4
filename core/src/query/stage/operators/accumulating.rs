//! Parses an accumulator with its argument, such as `{"$sum": "$price"}` in a field of `$group`, and feeds it documents.

use crate::error::{Kind, Result, bail, ensure, error};
use crate::query::accumulator::{self, Accumulation, AccumulatorOperator, Argument, Method, Parameters, wanted_parts};
use crate::query::environment::Environment;
use crate::query::expression::Expression;
use crate::query::operand::Operand;
use crate::query::sort::Sort;
use crate::values::collation::Collator;
use crate::values::document::ext_json;
use crate::values::document::number::{Number, Width};
use crate::values::document::raw::{self, RawObject};
use crate::values::document::value::Value;
use crate::values::document::write;
use serde_json::{Map, Value as Json};
use std::collections::BTreeSet;
use std::sync::Arc;

/// A parsed accumulator.
#[derive(Debug)]
pub(in crate::query::stage) struct Accumulating {
    operator: &'static AccumulatorOperator,
    input: ArgumentValue,
    /// the argument `n`; its expression may read the fields of the group's `_id`
    count: Option<Expression>,
    parameters: Parameters,
    collator: Option<Arc<Collator>>,
}

/// The value that is computed from a document for the accumulator.
#[derive(Debug)]
enum ArgumentValue {
    Nothing,
    Value(Expression),
    Sorted(Sort, Expression),
}

impl Accumulating {
    /// Parses `{"$sum": "$price"}`, the accumulator of the field `field`.
    pub fn parse(field: &str, json: &Json, environment: &Environment) -> Result<Accumulating> {
        let fields = ext_json::document(json);
        let first = fields.and_then(|fields| fields.iter().next()).filter(|(name, _)| name.starts_with('$'));
        let Some((name, argument)) = first else { bail!(40234, "The field '{field}' must be an accumulator object") };
        ensure!(!field.contains('.'), 40235, "The field name '{field}' cannot contain '.'");
        ensure!(!field.starts_with('$'), 40236, "The field name '{field}' cannot be an operator name");
        let is_one = fields.is_some_and(|fields| fields.len() == 1);
        ensure!(is_one, 40238, "The field '{field}' must specify one accumulator");
        let operator = accumulator::find(name)?;
        let is_unary = operator.argument == Argument::Expression && argument.is_array();
        ensure!(!is_unary, 40237, "The {name} accumulator is a unary operator");
        Self::parse_argument(operator, argument, environment)
    }

    /// Parses the argument of an accumulator. Unlike in [`parse`](Self::parse), the argument may be an array.
    pub fn parse_argument(
        operator: &'static AccumulatorOperator,
        argument: &Json,
        environment: &Environment,
    ) -> Result<Accumulating> {
        let name = operator.name;
        let mut parser = Arguments { name, environment, fields: None };
        let mut parameters = Parameters::default();
        let mut count = None;
        let input = match operator.argument {
            Argument::Expression => ArgumentValue::Value(Expression::parse(argument, environment)?),
            Argument::Nothing => {
                let empty = argument.as_object().is_some_and(Map::is_empty);
                ensure!(empty, Kind::TypeMismatch, "{name} takes no arguments, i.e. {name}:{{}}");
                ArgumentValue::Nothing
            }
            Argument::Several => {
                let not_an_object = if matches!(name, "$minN" | "$maxN") { 5787900 } else { 5787801 };
                parser.read(argument, &["input", "n"], [not_an_object, 5787901])?;
                count = Some(parser.expression("n", 5787906)?);
                ArgumentValue::Value(parser.expression("input", 5787907)?)
            }
            Argument::Sorted => {
                parser.read(argument, &["sortBy", "output"], [5788001, 5788002])?;
                parser.sorted()?
            }
            Argument::SeveralSorted => {
                parser.read(argument, &["n", "sortBy", "output"], [5788001, 5788002])?;
                count = Some(parser.expression("n", 5788003)?);
                parser.sorted()?
            }
            Argument::Median => {
                parser.read(argument, &["input", "method"], [7436100, Kind::UnknownOption.code()])?;
                parameters.method = parser.method()?;
                ArgumentValue::Value(parser.expression("input", 40414)?)
            }
            Argument::Percentiles => {
                parser.read(argument, &["input", "method", "p"], [7429703, Kind::UnknownOption.code()])?;
                parameters.method = parser.method()?;
                let parts = parser.expression("p", 40414)?.constant();
                let parts = parts.ok_or_else(|| error!(7750300, "The $percentile 'p' field must be a constant"))?;
                parameters.parts = wanted_parts(Operand::Made(parts))?;
                ArgumentValue::Value(parser.expression("input", 40414)?)
            }
        };
        let accumulating =
            Accumulating { operator, input, count, parameters, collator: environment.collator().cloned() };
        // A constant `n` that is not a valid count is an error even without documents.
        if accumulating.count.as_ref().is_some_and(|count| count.constant().is_some()) {
            accumulating.parameters_of(&Value::Null)?;
        }
        Ok(accumulating)
    }

    /// True if the argument `n` depends on the group's `_id`.
    pub fn depends_on_group(&self) -> bool {
        self.count.as_ref().is_some_and(|count| count.constant().is_none())
    }

    /// True if its result depends on the order of the documents.
    pub fn depends_on_order(&self) -> bool {
        self.operator.depends_on_order
    }

    /// True if it counts documents: `{"$count": {}}`, or the sum of 1.
    pub fn counts(&self) -> bool {
        match &self.input {
            ArgumentValue::Nothing => true,
            ArgumentValue::Value(expression) => {
                self.operator.name == SUM
                    && matches!(expression.constant(), Some(Value::Number(Number::Int(1, Width::BySize))))
            }
            ArgumentValue::Sorted(..) => false,
        }
    }

    /// The paths that its argument reads; None for the whole document.
    pub fn fields_read(&self) -> Option<BTreeSet<String>> {
        match &self.input {
            ArgumentValue::Nothing => Some(BTreeSet::new()),
            ArgumentValue::Value(expression) => expression.fields_read(),
            ArgumentValue::Sorted(sort, expression) => {
                let mut paths = expression.fields_read()?;
                paths.extend(sort.fields.iter().map(|(path, _)| path.clone()));
                Some(paths)
            }
        }
    }

    /// Returns the initial state for a group with this `_id`.
    pub fn begin(&self, id: &Value) -> Result<Accumulation> {
        let collator = self.collator.clone();
        Ok(match self.count {
            None => Accumulation::begin(self.operator, &self.parameters, collator),
            Some(_) => Accumulation::begin(self.operator, &self.parameters_of(id)?, collator),
        })
    }

    fn parameters_of(&self, id: &Value) -> Result<Parameters> {
        let Some(count) = &self.count else { return Ok(self.parameters.clone()) };
        let count = match count.constant() {
            Some(count) => count,
            None => {
                let fields = if matches!(id, Value::Object(_)) { write::value(id)? } else { write::empty()? };
                let group = raw::document(&fields);
                let value = group.map(|group| count.evaluate(group, self.collator.as_deref())).transpose()?;
                value.flatten().unwrap_or(Value::Null)
            }
        };
        let Value::Number(number) = &count else {
            bail!(5787902, "Value for 'n' must be of integral type, but found {}", Operand::Given(&count).shown())
        };
        let Some(number) = number.as_i64() else {
            bail!(5787903, "Value for 'n' must be of integral type, but found {}", Operand::Given(&count).shown())
        };
        ensure!(number > 0, 5787908, "'n' must be greater than 0, found {number}");
        Ok(Parameters { count: usize::try_from(number).unwrap_or(usize::MAX), ..self.parameters.clone() })
    }

    /// Computes the argument for a document and adds it to the state.
    pub fn add(&self, document: RawObject<'_>, state: &mut Accumulation) -> Result<()> {
        state.add_operand(self.input(document)?)
    }

    /// Computes the argument for a document.
    pub fn input<'d>(&'d self, document: RawObject<'d>) -> Result<Operand<'d>> {
        let collator = self.collator.as_deref();
        match &self.input {
            ArgumentValue::Nothing => Ok(Operand::NULL),
            ArgumentValue::Value(expression) => expression.operand(document, collator),
            ArgumentValue::Sorted(sort, expression) => {
                let key = Value::Binary(0, sort.key_of(document)?);
                let output = expression.operand(document, collator)?.into_value();
                Operand::array(vec![key, output])
            }
        }
    }
}

const SUM: &str = "$sum";

/// Returns the state of an accumulator that [counts](Accumulating::counts) after `count` documents.
pub(in crate::query::stage) fn accumulated_count(count: u64) -> Result<Accumulation> {
    let mut state = Accumulation::begin(accumulator::find(SUM)?, &Parameters::default(), None);
    let count = i64::try_from(count).unwrap_or(i64::MAX);
    state.add_operand(Operand::Made(Value::Number(Number::int(count))))?;
    Ok(state)
}

/// Reads an accumulator's argument that is an object with named fields.
struct Arguments<'j> {
    name: &'j str,
    environment: &'j Environment,
    fields: Option<&'j Map<String, Json>>,
}

impl<'j> Arguments<'j> {
    /// Reads the object. `codes`: the errors for an argument that is not an object, and for an unknown field.
    fn read(&mut self, argument: &'j Json, known: &[&str], codes: [i32; 2]) -> Result<()> {
        let name = self.name;
        let Some(fields) = ext_json::document(argument) else {
            bail!(codes[0], "specification must be an object; found {name}: {argument}")
        };
        if let Some(unknown) = fields.keys().find(|field| !known.contains(&field.as_str())) {
            bail!(codes[1], "Unknown argument to {name} '{unknown}'");
        }
        self.fields = Some(fields);
        Ok(())
    }

    fn field(&self, field: &str, missing: i32) -> Result<&'j Json> {
        let found = self.fields.and_then(|fields| fields.get(field));
        found.ok_or_else(|| error!(missing, "Missing value for '{field}' of {}", self.name))
    }

    fn expression(&self, field: &str, missing: i32) -> Result<Expression> {
        Expression::parse(self.field(field, missing)?, self.environment)
    }

    fn method(&self) -> Result<Method> {
        Method::parse(self.field("method", 40414)?.as_str())
    }

    fn sorted(&self) -> Result<ArgumentValue> {
        let output = self.expression("output", 5788004)?;
        let sort = self.field("sortBy", 5788005)?;
        if ext_json::ordered(sort).is_none() {
            return Err(error!(10065, "expected 'sortBy' to be an object in the arguments to {}", self.name)
                .with_hint(ext_json::ORDER_HINT));
        }
        Ok(ArgumentValue::Sorted(Sort::parse_in(sort, self.environment)?, output))
    }
}
