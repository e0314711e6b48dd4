//! Parses JSON into an expression's tree, and describes how operators take their arguments.
//!
//! The parser receives the lookup of operators as a parameter: the files of the operators import the parser, so the parser
//! cannot import them.

use super::node::{Call, ExpressionNode, Form, Function, Scope, Variable};
use crate::budget;
use crate::error::{Kind, Result, bail, ensure, error};
use crate::query::environment::{Binding, Environment};
use crate::query::operand::Operand;
use crate::values::document::ext_json;
use crate::values::document::number::Number;
use crate::values::document::raw;
use crate::values::document::value::Value;
use crate::values::document::write;
use crate::values::path;
use serde_json::{Map, Value as Json};
use std::collections::HashMap;

/// The deepest nesting of an expression: the same as for documents.
const MAX_LEVELS: usize = 100;

/// An operator: `{name: arguments}`.
pub(super) struct Operator {
    /// The name and the evaluation.
    pub function: Function,
    /// The form of the arguments.
    pub arguments: Arguments,
}

/// How an operator takes its arguments.
pub(super) enum Arguments {
    /// An array of arguments, with their minimum and maximum number. A single argument may stand without an array.
    Positional(usize, usize),
    /// One argument, which may stand without an array, with MongoDB's error code for another number of them.
    One(i32),
    /// An object of named arguments, with MongoDB's error codes for another type and for an unknown name.
    Named(&'static [Parameter], [i32; 2]),
    /// A function that parses the operator's argument; its second parameter is the operator's name.
    Special(fn(&mut Parser<'_>, &str, &Json) -> Result<Vec<ExpressionNode>>),
}

/// A named argument.
pub(super) struct Parameter {
    name: &'static str,
    /// MongoDB's error code if the argument is missing; None if it is optional.
    missing: Option<i32>,
    reading: Reading,
}

/// How a named argument is parsed.
enum Reading {
    /// As an expression.
    Always,
    /// As an expression that may never be evaluated: if folding a constant in it fails, the error is raised at evaluation.
    Lazy,
    /// Not as an expression: it is a variable's name, which another parameter's [`Reading::Within`] reads.
    Literal,
    /// As an expression with further variables, whose names the function finds in the operator's arguments.
    Within(fn(&Map<String, Json>) -> Result<Vec<&str>>),
}

/// A required parameter, with MongoDB's error code if it is missing.
pub(super) const fn required(name: &'static str, missing: i32) -> Parameter {
    Parameter { name, missing: Some(missing), reading: Reading::Always }
}

/// An optional parameter.
pub(super) const fn optional(name: &'static str) -> Parameter {
    Parameter { name, missing: None, reading: Reading::Always }
}

/// An optional parameter that is not always evaluated.
pub(super) const fn lazy(name: &'static str) -> Parameter {
    Parameter { name, missing: None, reading: Reading::Lazy }
}

/// An optional parameter that is no expression.
pub(super) const fn literal(name: &'static str) -> Parameter {
    Parameter { name, missing: None, reading: Reading::Literal }
}

/// A required parameter with further variables.
pub(super) const fn within(
    name: &'static str,
    missing: i32,
    variables: fn(&Map<String, Json>) -> Result<Vec<&str>>,
) -> Parameter {
    Parameter { name, missing: Some(missing), reading: Reading::Within(variables) }
}

/// Returns the fields of an operator's argument, which must be an object with known names. The codes are those of
/// [`Arguments::Named`].
pub(super) fn named<'j>(
    operator: &str,
    argument: &'j Json,
    is_known: impl Fn(&str) -> bool,
    codes: [i32; 2],
) -> Result<&'j Map<String, Json>> {
    let Some(fields) = ext_json::document(argument) else {
        bail!(codes[0], "{operator} only supports an object as its argument, found: {}", type_name(argument))
    };
    match fields.keys().find(|name| !is_known(name)) {
        Some(unknown) => bail!(codes[1], "Unrecognized argument to {operator}: {unknown}"),
        None => Ok(fields),
    }
}

/// Returns a required field of an operator's argument.
pub(super) fn field<'j>(operator: &str, fields: &'j Map<String, Json>, name: &str, missing: i32) -> Result<&'j Json> {
    fields.get(name).ok_or_else(|| error!(missing, "Missing '{name}' parameter to {operator}"))
}

/// MongoDB's alias of the type of a constant.
pub(super) fn type_name(json: &Json) -> &'static str {
    ext_json::from_json(json).map_or("object", |value| value.type_name())
}

/// Returns the elements of an array, or the argument itself as the only one.
pub(super) fn list(argument: &Json) -> &[Json] {
    if let Json::Array(items) = argument { items } else { std::slice::from_ref(argument) }
}

impl Operator {
    const fn of(name: &'static str, arguments: Arguments, form: Form) -> Operator {
        Operator { function: Function { name, pure: true, form }, arguments }
    }

    /// An operator whose function evaluates the arguments that it needs.
    pub const fn new(
        name: &'static str,
        arguments: Arguments,
        evaluate: for<'s> fn(&Call<'s>) -> Result<Operand<'s>>,
    ) -> Operator {
        Operator::of(name, arguments, Form::Call(evaluate))
    }

    /// An operator of exactly `count` arguments.
    pub const fn exactly(
        name: &'static str,
        count: usize,
        evaluate: for<'s> fn(&Call<'s>) -> Result<Operand<'s>>,
    ) -> Operator {
        Operator::new(name, Arguments::Positional(count, count), evaluate)
    }

    /// An operator of any number of arguments.
    pub const fn any(name: &'static str, evaluate: for<'s> fn(&Call<'s>) -> Result<Operand<'s>>) -> Operator {
        Operator::new(name, Arguments::Positional(0, usize::MAX), evaluate)
    }

    /// An operator of one argument, which returns null for null.
    pub const fn unary(
        name: &'static str,
        evaluate: for<'s> fn(&Call<'s>, Operand<'s>) -> Result<Operand<'s>>,
    ) -> Operator {
        Operator::of(name, Arguments::Positional(1, 1), Form::Unary(evaluate))
    }

    /// Like [`Operator::unary`], with the operator's own error code for another number of arguments.
    pub const fn conversion(
        name: &'static str,
        code: i32,
        evaluate: for<'s> fn(&Call<'s>, Operand<'s>) -> Result<Operand<'s>>,
    ) -> Operator {
        Operator::of(name, Arguments::One(code), Form::Unary(evaluate))
    }

    /// An operator of two arguments, which returns null if one of them is null.
    pub const fn binary(
        name: &'static str,
        evaluate: for<'s> fn(&Call<'s>, Operand<'s>, Operand<'s>) -> Result<Operand<'s>>,
    ) -> Operator {
        Operator::of(name, Arguments::Positional(2, 2), Form::Binary(evaluate))
    }

    /// An operator of one number, which returns null for null.
    pub const fn numeric(name: &'static str, evaluate: fn(&Call<'_>, &Number) -> Result<Number>) -> Operator {
        Operator::of(name, Arguments::Positional(1, 1), Form::Numeric(evaluate))
    }

    /// Marks an operator whose result does not depend on its arguments alone: it binds variables, or is random.
    pub const fn impure(self) -> Operator {
        Operator { function: Function { pure: false, ..self.function }, ..self }
    }
}

/// The function that finds an operator by its name.
pub(super) type Operators = fn(&str) -> Result<&'static Operator>;

/// Parses a whole expression.
pub(super) fn expression(json: &Json, environment: &Environment, operators: Operators) -> Result<ExpressionNode> {
    expression_with(&[], json, environment, operators)
}

/// Parses a whole expression with variables that the caller binds when it evaluates the expression.
pub(super) fn expression_with(
    names: &[&str],
    json: &Json,
    environment: &Environment,
    operators: Operators,
) -> Result<ExpressionNode> {
    let mut parser = Parser { environment, operators, bound: Vec::new(), places: HashMap::new(), lazy: 0, level: 0 };
    parser.node_with(names, json)
}

/// The state of the parser.
pub(super) struct Parser<'p> {
    pub environment: &'p Environment,
    operators: Operators,
    /// the names of bound variables, the innermost last
    bound: Vec<String>,
    /// for each name its positions in `bound`, the innermost last
    places: HashMap<String, Vec<usize>>,
    /// above 0 inside an argument that may never be evaluated: errors in constants are not raised there
    lazy: usize,
    /// the current nesting of expressions
    level: usize,
}

impl Parser<'_> {
    /// Parses any expression.
    pub fn node(&mut self, json: &Json) -> Result<ExpressionNode> {
        budget::step();
        self.level += 1;
        ensure!(self.level <= MAX_LEVELS, Kind::Overflow, "the expression is nested too deeply");
        let node = match json {
            Json::String(text) => self.text(text),
            Json::Array(items) => {
                let items = items.iter().map(|item| self.node(item)).collect::<Result<_>>()?;
                match constants(items) {
                    Ok(values) => Value::array(values).map(ExpressionNode::Constant),
                    Err(nodes) => Ok(ExpressionNode::Array(nodes)),
                }
            }
            Json::Object(fields) => self.object(fields, json),
            other => Ok(ExpressionNode::Constant(ext_json::from_json(other)?)),
        }?;
        self.level -= 1;
        Ok(node)
    }

    /// Parses an expression that is not always evaluated.
    pub fn lazy_node(&mut self, json: &Json) -> Result<ExpressionNode> {
        self.lazy += 1;
        let node = self.node(json);
        self.lazy -= 1;
        node
    }

    /// Parses an expression with further variables.
    pub fn node_with(&mut self, names: &[&str], json: &Json) -> Result<ExpressionNode> {
        let outer = self.bound.len();
        for name in names {
            self.places.entry((*name).to_owned()).or_default().push(self.bound.len());
            self.bound.push((*name).to_owned());
        }
        let node = self.node(json);
        for name in self.bound.drain(outer..) {
            self.places.entry(name).or_default().pop();
        }
        node
    }

    fn text(&mut self, text: &str) -> Result<ExpressionNode> {
        match (text.strip_prefix("$$"), text.strip_prefix('$')) {
            (Some(variable), _) => self.variable(variable),
            (None, Some(path)) => {
                ensure!(!path.is_empty(), 16872, "'$' by itself is not a valid FieldPath");
                path::check_field_path(path)?;
                Ok(ExpressionNode::Path(self.current(), path.to_owned()))
            }
            (None, None) => Ok(ExpressionNode::Constant(Value::String(text.to_owned()))),
        }
    }

    /// `$$CURRENT`: the document, unless the variable is bound.
    fn current(&self) -> Variable {
        self.bound_variable("CURRENT").unwrap_or(Variable::Root)
    }

    fn bound_variable(&self, name: &str) -> Option<Variable> {
        let position = self.places.get(name)?.last()?;
        Some(Variable::Bound(self.bound.len() - 1 - position))
    }

    fn variable(&mut self, text: &str) -> Result<ExpressionNode> {
        let (name, path) = path::split(text);
        let path = path.unwrap_or_default();
        ensure!(!name.is_empty(), Kind::FailedToParse, "empty variable names are not allowed");
        if text != name {
            path::check_field_path(text)?;
        }
        let path = path.to_owned();
        if let Some(variable) = self.bound_variable(name) {
            return Ok(ExpressionNode::Path(variable, path));
        }
        let value = match name {
            "ROOT" | "CURRENT" => return Ok(ExpressionNode::Path(Variable::Root, path)),
            "REMOVE" => return Ok(ExpressionNode::Path(Variable::Remove, path)),
            "NOW" => match self.environment.now() {
                Some(now) => Value::Date(now),
                None => bail!(51144, "Builtin variable '$$NOW' is not available"),
            },
            "CLUSTER_TIME" => bail!(10071200, "Builtin variable '$$CLUSTER_TIME' is not available"),
            "USER_ROLES" => match self.environment.roles()? {
                Some(roles) => roles,
                None => bail!(51144, "Builtin variable '$$USER_ROLES' is not available"),
            },
            "SEARCH_META" => bail!(Kind::NotImplemented, "the variable $$SEARCH_META is not supported"),
            _ => {
                if !name.starts_with(|c: char| c.is_ascii_uppercase()) {
                    check_variable_name(name)?;
                }
                match self.environment.variable(name) {
                    Some(Binding::Value(value)) => value.clone(),
                    Some(Binding::Missing) => return Ok(ExpressionNode::Path(Variable::Remove, path)),
                    Some(Binding::Open) => return Ok(ExpressionNode::Path(Variable::Open, path)),
                    None => bail!(17276, "Use of undefined variable: {name}"),
                }
            }
        };
        if path.is_empty() {
            return Ok(ExpressionNode::Constant(value));
        }
        let found = Operand::Made(value).at(&path);
        Ok(found.into_option().map_or(ExpressionNode::Path(Variable::Remove, String::new()), ExpressionNode::Constant))
    }

    fn object(&mut self, fields: &Map<String, Json>, json: &Json) -> Result<ExpressionNode> {
        if let Some(value) = ext_json::extended_value(fields)? {
            return Ok(ExpressionNode::Constant(value));
        }
        if let Some(name) = fields.keys().next().filter(|name| name.starts_with('$')) {
            if fields.len() != 1 {
                bail!(15983, "an expression specification must contain exactly one field, found {json}");
            }
            return self.call((self.operators)(name)?, &fields[name]);
        }
        for name in fields.keys() {
            ensure!(
                !name.starts_with('$') || ext_json::is_reference(name),
                16410,
                "FieldPath field names may not start with '$'. Consider using $getField or $setField."
            );
            ensure!(
                !name.contains('.'),
                16412,
                "FieldPath field names may not contain '.'. Consider using $getField or $setField."
            );
            ensure!(!name.is_empty(), 15998, "FieldPath field names may not be empty strings.");
        }
        let nodes = fields.values().map(|json| self.node(json)).collect::<Result<_>>()?;
        let names = fields.keys().cloned();
        Ok(match constants(nodes) {
            Ok(values) => ExpressionNode::Constant(Value::object(names.zip(values).collect())?),
            Err(nodes) => ExpressionNode::Object(names.zip(nodes).collect()),
        })
    }

    fn call(&mut self, operator: &'static Operator, argument: &Json) -> Result<ExpressionNode> {
        let name = operator.function.name;
        let nodes = match &operator.arguments {
            Arguments::Special(parse) => parse(self, name, argument)?,
            Arguments::Positional(least, most) => {
                let nodes: Result<_> = list(argument).iter().map(|item| self.node(item)).collect();
                // A wrong number of arguments takes precedence over an error in one of them.
                check_count(name, list(argument).len(), *least, *most)?;
                nodes?
            }
            Arguments::One(code) => {
                let [item] = list(argument) else {
                    bail!(*code, "{name} requires a single argument, got {}", list(argument).len())
                };
                vec![self.node(item)?]
            }
            Arguments::Named(parameters, codes) => self.named(name, argument, parameters, *codes)?,
        };
        self.fold(&operator.function, nodes)
    }

    /// Parses named arguments, as [`Arguments::Named`] describes them.
    pub fn named(
        &mut self,
        operator: &str,
        argument: &Json,
        parameters: &[Parameter],
        codes: [i32; 2],
    ) -> Result<Vec<ExpressionNode>> {
        let is_known = |name: &str| parameters.iter().any(|known| known.name == name);
        let fields = named(operator, argument, is_known, codes)?;
        for parameter in parameters {
            parameter.missing.map_or(Ok(()), |code| field(operator, fields, parameter.name, code).map(|_| ()))?;
        }
        parameters.iter().map(|parameter| self.parameter(parameter, fields)).collect()
    }

    fn parameter(&mut self, parameter: &Parameter, fields: &Map<String, Json>) -> Result<ExpressionNode> {
        match (fields.get(parameter.name), &parameter.reading) {
            (None, _) | (_, Reading::Literal) => Ok(ExpressionNode::Absent),
            (Some(json), Reading::Always) => self.node(json),
            (Some(json), Reading::Lazy) => self.lazy_node(json),
            (Some(json), Reading::Within(variables)) => self.node_with(&variables(fields)?, json),
        }
    }

    /// Makes a call, and evaluates it at once if its result is the same for every document.
    fn fold(&mut self, function: &'static Function, nodes: Vec<ExpressionNode>) -> Result<ExpressionNode> {
        let constant = |node: &ExpressionNode| {
            matches!(
                node,
                ExpressionNode::Constant(_) | ExpressionNode::Absent | ExpressionNode::Path(Variable::Remove, _)
            )
        };
        if !function.pure || !nodes.iter().all(constant) {
            return Ok(ExpressionNode::Call(function, nodes));
        }
        let nothing = write::empty()?;
        let Some(document) = raw::document(&nothing) else { return Ok(ExpressionNode::Call(function, nodes)) };
        let collator = self.environment.collator().map(|collator| &**collator);
        let folded = function.evaluate(&nodes, Scope::new(document, collator)).map(Operand::into_option);
        match folded {
            Ok(Some(value)) => Ok(ExpressionNode::Constant(value)),
            Ok(None) => Ok(ExpressionNode::Path(Variable::Remove, String::new())),
            Err(_) if self.lazy > 0 => Ok(ExpressionNode::Call(function, nodes)),
            Err(error) => Err(error),
        }
    }
}

/// Returns the values of the nodes if all are constant, otherwise the nodes.
fn constants(nodes: Vec<ExpressionNode>) -> std::result::Result<Vec<Value>, Vec<ExpressionNode>> {
    if !nodes.iter().all(|node| matches!(node, ExpressionNode::Constant(_))) {
        return Err(nodes);
    }
    let value = |node| if let ExpressionNode::Constant(value) = node { Some(value) } else { None };
    Ok(nodes.into_iter().filter_map(value).collect())
}

/// Checks how many arguments an operator is given.
pub(super) fn check_count(name: &str, count: usize, least: usize, most: usize) -> Result<()> {
    if (least..=most).contains(&count) {
        return Ok(());
    }
    ensure!(least != most, 16020, "Expression {name} takes exactly {least} arguments. {count} were passed in.");
    let at_most = if most == usize::MAX { String::new() } else { format!(", and at most {most}") };
    bail!(28667, "Expression {name} takes at least {least} arguments{at_most}, but {count} were passed in.")
}

/// Checks the name of a variable that a user binds.
pub(crate) fn check_variable_name(name: &str) -> Result<()> {
    let error = |why: &str| bail!(Kind::FailedToParse, "'{name}' {why}");
    let Some(first) = name.chars().next() else { bail!(Kind::FailedToParse, "empty variable names are not allowed") };
    if name == "CURRENT" {
        return Ok(());
    }
    if first.is_ascii() && !first.is_ascii_lowercase() {
        return error("starts with an invalid character for a user variable name");
    }
    match name.chars().find(|c| c.is_ascii() && !c.is_ascii_alphanumeric() && *c != '_') {
        None => Ok(()),
        Some(c) => error(&format!("contains an invalid character for a variable name: '{c}'")),
    }
}
