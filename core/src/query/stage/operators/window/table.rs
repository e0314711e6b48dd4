//! The table of window functions, and their parsers.

use super::bounds::{Bounds, parse_unit};
use super::function::{EndFunction, Function, FunctionArgument, FunctionKind};
use super::removable::{MovingCount, MovingExtreme, MovingSum};
use super::running::{Covariance, ExponentialAverage, Integral, LastKnown, Rank, Ranking};
use super::tally::Tally;
use crate::error::{Kind, Result, bail, ensure, error};
use crate::query::accumulator::{self, Argument};
use crate::query::environment::Environment;
use crate::query::expression::Expression;
use crate::query::operand::Operand;
use crate::query::sort::Sort;
use crate::query::stage::operators::accumulating::Accumulating;
use crate::values::collation::Collator;
use crate::values::document::ext_json;
use crate::values::document::number::{self, Number, quotient};
use crate::values::document::value::Value;
use serde_json::{Map, Value as Json};
use std::fmt;
use std::sync::Arc;

/// A row of the table: the name of a window function, its parser, and its state for moving windows.
pub struct WindowOperator {
    /// such as `$rank`
    pub name: &'static str,
    parse: fn(&Arguments<'_>) -> Result<Function>,
    /// makes a state from which values can be removed; None if the function has no such state
    moving: Option<Moving>,
}

/// Makes a state from which values can be removed.
type Moving = fn(Option<Arc<Collator>>) -> Box<dyn Tally>;

impl fmt::Debug for WindowOperator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl WindowOperator {
    const fn new(name: &'static str, parse: fn(&Arguments<'_>) -> Result<Function>) -> Self {
        Self { name, parse, moving: None }
    }

    /// A function that is the accumulator of the same name.
    const fn accumulator(name: &'static str) -> Self {
        Self::new(name, accumulated)
    }

    /// Like [`accumulator`](Self::accumulator), with a state from which values can be removed.
    const fn moving(name: &'static str, moving: Moving) -> Self {
        Self { moving: Some(moving), ..Self::accumulator(name) }
    }
}

/// All supported window functions.
pub const WINDOW_FUNCTIONS: &[WindowOperator] = &[
    WindowOperator::moving("$sum", |_| Box::new(MovingSum::<false>::default())),
    WindowOperator::moving("$avg", |_| Box::new(MovingSum::<true>::default())),
    WindowOperator::moving("$count", |_| Box::new(MovingCount::default())),
    WindowOperator::moving("$min", |collator| Box::new(MovingExtreme::<false>::new(collator))),
    WindowOperator::moving("$max", |collator| Box::new(MovingExtreme::<true>::new(collator))),
    WindowOperator::accumulator("$push"),
    WindowOperator::accumulator("$addToSet"),
    WindowOperator::accumulator("$concatArrays"),
    WindowOperator::accumulator("$setUnion"),
    WindowOperator::accumulator("$mergeObjects"),
    WindowOperator::accumulator("$stdDevPop"),
    WindowOperator::accumulator("$stdDevSamp"),
    WindowOperator::accumulator("$firstN"),
    WindowOperator::accumulator("$lastN"),
    WindowOperator::accumulator("$minN"),
    WindowOperator::accumulator("$maxN"),
    WindowOperator::accumulator("$top"),
    WindowOperator::accumulator("$topN"),
    WindowOperator::accumulator("$bottom"),
    WindowOperator::accumulator("$bottomN"),
    WindowOperator::accumulator("$median"),
    WindowOperator::accumulator("$percentile"),
    WindowOperator::new("$first", |arguments| end_values(arguments, EndFunction::First)),
    WindowOperator::new("$last", |arguments| end_values(arguments, EndFunction::Last)),
    WindowOperator::new("$shift", shift),
    WindowOperator::new("$rank", |arguments| rank(arguments, Ranking::Gaps)),
    WindowOperator::new("$denseRank", |arguments| rank(arguments, Ranking::Dense)),
    WindowOperator::new("$documentNumber", |arguments| rank(arguments, Ranking::Each)),
    WindowOperator::new("$covariancePop", |arguments| tally(arguments, || Ok(Box::new(Covariance::new(false))))),
    WindowOperator::new("$covarianceSamp", |arguments| tally(arguments, || Ok(Box::new(Covariance::new(true))))),
    WindowOperator::new("$locf", last_known),
    WindowOperator::new("$linearFill", linear_fill),
    WindowOperator::new("$expMovingAvg", exponential_average),
    WindowOperator::new("$derivative", derivative),
    WindowOperator::new("$integral", integral),
];

/// MongoDB's window functions that are not supported.
const NOT_SUPPORTED: &[&str] = &["$minMaxScaler"];

/// What the parser of a function is given.
struct Arguments<'p> {
    operator: &'static WindowOperator,
    argument: &'p Json,
    window: Option<&'p Json>,
    sort: Option<&'p Sort>,
    environment: &'p Environment,
}

/// Parses the function of an output field: `{"$sum": "$x", "window": {…}}`.
///
/// # Errors
/// `FailedToParse` if it is not a function, `NotImplemented` for one of MongoDB's that is not supported; those of functions,
/// accumulators and expressions.
pub(super) fn parse(field: &str, json: &Json, sort: Option<&Sort>, environment: &Environment) -> Result<Function> {
    let Some(fields) = ext_json::document(json) else {
        bail!(Kind::FailedToParse, "The field '{field}' must be an object with a window function")
    };
    let Some((name, argument)) = fields.iter().find(|(name, _)| name.starts_with('$')) else {
        let first = fields.keys().next().map_or_else(String::new, |name| format!(", {name}"));
        bail!(Kind::FailedToParse, "Expected a $-prefixed window function{first}")
    };
    let operator = WINDOW_FUNCTIONS.iter().find(|operator| operator.name == name);
    let Some(operator) = operator else {
        let known = NOT_SUPPORTED.contains(&name.as_str());
        ensure!(!known, Kind::NotImplemented, "the window function {name} is not supported");
        bail!(Kind::FailedToParse, "Unrecognized window function, {name}")
    };
    let is_rank = matches!(operator.name, "$rank" | "$denseRank" | "$documentNumber");
    ensure!(!is_rank || fields.len() == 1, 5371601, "Rank style window functions take no other arguments");
    if let Some(other) = fields.keys().find(|other| *other != name && *other != "window") {
        let is_function = WINDOW_FUNCTIONS.iter().any(|operator| operator.name == other);
        ensure!(!is_function, Kind::FailedToParse, "Cannot specify two functions in window function spec");
        bail!(Kind::FailedToParse, "Window function {name} found an unknown argument: {other}");
    }
    let window = fields.get("window");
    (operator.parse)(&Arguments { operator, argument, window, sort, environment })
}

impl<'p> Arguments<'p> {
    fn name(&self) -> &'static str {
        self.operator.name
    }

    /// The window; the whole partition if it is not given.
    fn bounds(&self) -> Result<Bounds> {
        self.window.map_or(Ok(Bounds::partition()), |window| Bounds::parse(window, self.sort, self.environment))
    }

    fn refuse_window(&self) -> Result<()> {
        ensure!(self.window.is_none(), Kind::FailedToParse, "'window' field is not allowed in {}", self.name());
        Ok(())
    }

    /// Parses the argument as an expression over a document.
    fn value(&self) -> Result<FunctionArgument> {
        self.value_of(self.argument)
    }

    fn value_of(&self, json: &Json) -> Result<FunctionArgument> {
        let expression = Expression::parse(json, self.environment)?;
        Ok(FunctionArgument::Value(expression, self.environment.collator().cloned()))
    }

    fn positioned(&self, path: &str, json: &Json) -> Result<FunctionArgument> {
        let expression = Expression::parse(json, self.environment)?;
        Ok(FunctionArgument::Positioned(path.to_owned(), expression, self.environment.collator().cloned()))
    }

    /// Returns the only field of `sortBy`. `kind`: the error if it has none or several.
    fn sort_path(&self, kind: impl Into<Kind>) -> Result<&'p str> {
        match self.sort.map(|sort| sort.fields.as_slice()) {
            Some([(path, _)]) => Ok(path),
            _ => bail!(kind, "{} must be specified with a top level sortBy with exactly one field", self.name()),
        }
    }

    /// Returns the fields of the argument, which must be among the known ones.
    fn fields(&self, known: &[&str]) -> Result<&'p Map<String, Json>> {
        let Some(fields) = ext_json::document(self.argument) else {
            bail!(Kind::FailedToParse, "{} expects an object, but found: {}", self.name(), self.argument)
        };
        match fields.keys().find(|field| !known.contains(&field.as_str())) {
            Some(field) => bail!(Kind::FailedToParse, "{} got unexpected argument: {field}", self.name()),
            None => Ok(fields),
        }
    }
}

fn tally(
    arguments: &Arguments<'_>,
    begin: impl Fn() -> Result<Box<dyn Tally>> + Send + Sync + 'static,
) -> Result<Function> {
    let kind = FunctionKind::Tally { begin: Box::new(begin), removes: false };
    Ok(Function { bounds: arguments.bounds()?, input: arguments.value()?, kind })
}

fn accumulated(arguments: &Arguments<'_>) -> Result<Function> {
    let bounds = arguments.bounds()?;
    let operator = accumulator::find(arguments.name())?;
    let takes_nothing = operator.argument == Argument::Nothing;
    let is_empty = arguments.argument.as_object().is_some_and(Map::is_empty);
    ensure!(!takes_nothing || is_empty, Kind::FailedToParse, "{} takes no arguments: {{}}", arguments.name());
    let sort = arguments.argument.get("sortBy");
    ensure!(
        sort.is_none_or(|sort| ext_json::document(sort).is_some()),
        5788604,
        "expected 'sortBy' to be an object in the arguments to {}",
        arguments.name()
    );
    let parse = || Accumulating::parse_argument(operator, arguments.argument, arguments.environment);
    let (input, beginning) = (parse()?, parse()?);
    let collator = arguments.environment.collator().cloned();
    let kind = match arguments.operator.moving.filter(|_| !bounds.begins_with_partition()) {
        Some(moving) => FunctionKind::Tally { begin: Box::new(move || Ok(moving(collator.clone()))), removes: true },
        None => {
            let begin = move || -> Result<Box<dyn Tally>> { Ok(Box::new(beginning.begin(&Value::Null)?)) };
            FunctionKind::Tally { begin: Box::new(begin), removes: false }
        }
    };
    Ok(Function { bounds, input: FunctionArgument::Accumulated(input), kind })
}

fn end_values(arguments: &Arguments<'_>, function: EndFunction) -> Result<Function> {
    let kind = FunctionKind::EndValues { function, default: Value::Null };
    Ok(Function { bounds: arguments.bounds()?, input: arguments.value()?, kind })
}

fn shift(arguments: &Arguments<'_>) -> Result<Function> {
    arguments.refuse_window()?;
    let fields = arguments.fields(&["output", "by", "default"])?;
    let required = |name: &str| -> Result<&Json> {
        fields.get(name).ok_or_else(|| error!(Kind::FailedToParse, "$shift requires '{name}'"))
    };
    let by = ext_json::from_json(required("by")?)?;
    let by = Operand::Given(&by).int32().ok_or_else(|| {
        error!(Kind::FailedToParse, "'$shift:by' field must be an integer, but found {}", Operand::Given(&by).shown())
    })?;
    let default = fields.get("default").map(|json| -> Result<Value> {
        let constant = Expression::parse(json, arguments.environment)?.constant();
        constant.ok_or_else(|| error!(Kind::FailedToParse, "'$shift:default' expression must yield a constant value."))
    });
    let default = default.transpose()?.unwrap_or(Value::Null);
    let input = arguments.value_of(required("output")?)?;
    ensure!(arguments.sort.is_some(), Kind::FailedToParse, "'$shift' requires a sortBy");
    Ok(Function {
        bounds: Bounds::one(by),
        input,
        kind: FunctionKind::EndValues { function: EndFunction::First, default },
    })
}

fn rank(arguments: &Arguments<'_>, ranking: Ranking) -> Result<Function> {
    let name = arguments.name();
    let empty = arguments.argument.as_object().is_some_and(Map::is_empty);
    ensure!(empty, 5371603, "{name} must be specified with '{{}}' as the value");
    arguments.sort_path(5371602)?;
    let input = FunctionArgument::SortKey(arguments.sort.cloned().unwrap_or_default());
    let kind = FunctionKind::Tally { begin: Box::new(move || Ok(Box::new(Rank::new(ranking)))), removes: false };
    Ok(Function { bounds: Bounds::so_far(), input, kind })
}

fn last_known(arguments: &Arguments<'_>) -> Result<Function> {
    arguments.refuse_window()?;
    let kind = FunctionKind::Tally { begin: Box::new(|| Ok(Box::new(LastKnown(Value::Null)))), removes: false };
    Ok(Function { bounds: Bounds::so_far(), input: arguments.value()?, kind })
}

fn linear_fill(arguments: &Arguments<'_>) -> Result<Function> {
    arguments.refuse_window()?;
    let input = arguments.positioned(arguments.sort_path(605001)?, arguments.argument)?;
    Ok(Function { bounds: Bounds::partition(), input, kind: FunctionKind::LinearFill })
}

fn exponential_average(arguments: &Arguments<'_>) -> Result<Function> {
    let wanted = "an 'input' field, and either an 'N' field or an 'alpha' field";
    let fields =
        arguments.argument.as_object().filter(|_| arguments.window.is_none()).ok_or_else(|| {
            error!(Kind::FailedToParse, "$expMovingAvg must have exactly one argument that is an object")
        })?;
    let (Some(input), 2) = (fields.get("input"), fields.len()) else {
        bail!(Kind::FailedToParse, "$expMovingAvg sub object must have exactly two fields: {wanted}")
    };
    ensure!(arguments.sort.is_some(), Kind::FailedToParse, "$expMovingAvg requires an explicit 'sortBy'");
    let number = |name: &str| -> Result<Option<Number>> {
        let Some(json) = fields.get(name) else { return Ok(None) };
        match ext_json::from_json(json)? {
            Value::Number(number) => Ok(Some(number)),
            _ => bail!(Kind::FailedToParse, "'{name}' must be a number, but found: {json}"),
        }
    };
    let alpha = match (number("N")?, number("alpha")?) {
        (Some(count), _) => {
            let Some(count) = count.as_i64() else {
                bail!(
                    Kind::FailedToParse,
                    "'N' field must be an integer. To use a non-integer, use the 'alpha' argument"
                )
            };
            ensure!(count > 0, Kind::FailedToParse, "'N' must be greater than zero. Got {count}");
            let two = Number::Decimal(Number::int(2).to_decimal());
            quotient(&two, &Number::int(count.saturating_add(1)))
        }
        (None, Some(alpha)) => {
            let is_part =
                number::compare(&alpha, &Number::int(0)).is_gt() && number::compare(&alpha, &Number::int(1)).is_lt();
            ensure!(is_part, Kind::FailedToParse, "'alpha' must be between 0 and 1 (exclusive)");
            alpha
        }
        (None, None) => bail!(
            Kind::FailedToParse,
            "Got unrecognized field in $expMovingAvg: its object must have exactly two fields: {wanted}"
        ),
    };
    let begin = move || -> Result<Box<dyn Tally>> { Ok(Box::new(ExponentialAverage::new(&alpha)?)) };
    let kind = FunctionKind::Tally { begin: Box::new(begin), removes: false };
    Ok(Function { bounds: Bounds::so_far(), input: arguments.value_of(input)?, kind })
}

/// Parses the argument `{input: expression, unit: name}` into the function's input and the unit in milliseconds.
fn with_unit(arguments: &Arguments<'_>) -> Result<(FunctionArgument, Option<i64>)> {
    let path = arguments.sort_path(Kind::FailedToParse)?;
    let fields = arguments.fields(&["input", "unit"])?;
    let unit = fields.get("unit").map(|unit| -> Result<i64> {
        let millis = parse_unit(unit)?.fixed_millis();
        millis.ok_or_else(|| error!(5490710, "unit must be 'week' or smaller"))
    });
    let unit = unit.transpose()?;
    let Some(input) = fields.get("input") else {
        bail!(Kind::FailedToParse, "{} requires an 'input' expression", arguments.name())
    };
    Ok((arguments.positioned(path, input)?, unit))
}

fn derivative(arguments: &Arguments<'_>) -> Result<Function> {
    let (input, unit) = with_unit(arguments)?;
    ensure!(arguments.window.is_some(), Kind::FailedToParse, "$derivative requires explicit window bounds");
    let kind = FunctionKind::EndValues { function: EndFunction::Derivative(unit), default: Value::Null };
    Ok(Function { bounds: arguments.bounds()?, input, kind })
}

fn integral(arguments: &Arguments<'_>) -> Result<Function> {
    let (input, unit) = with_unit(arguments)?;
    let kind = FunctionKind::Tally { begin: Box::new(move || Ok(Box::new(Integral::new(unit)))), removes: false };
    Ok(Function { bounds: arguments.bounds()?, input, kind })
}
