//! From JSON to an expression's tree; how an operator takes its arguments.
//!
//! The parser is given the operators, as these parse their own arguments with it.

use super::node::{Call, Function, Node, Scope, Variable};
use crate::error::{Error, Kind, Result, bail, ensure, error};
use crate::query::environment::Environment;
use crate::query::operand::Operand;
use crate::values::document::ext_json;
use crate::values::document::raw;
use crate::values::document::value::Value;
use crate::values::document::write;
use crate::values::path;
use serde_json::{Map, Value as Json};
use std::collections::HashMap;

/// The deepest nesting of an expression, as of a document.
const MAX_LEVELS: usize = 100;

/// An operator: `{name: arguments}`.
pub(super) struct Operator {
    pub function: Function,
    pub arguments: Arguments,
}

/// How an operator takes its arguments.
pub(super) enum Arguments {
    /// an array; the least and the greatest number of arguments. A single argument needs no array
    Positional(usize, usize),
    /// by name
    Named(&'static [Parameter], Refusal),
    /// its own way
    Special(fn(&mut Parser<'_>, &Json) -> Result<Vec<Node>>),
}

/// An argument that has a name.
pub(super) struct Parameter {
    pub name: &'static str,
    /// the error if it is not given
    pub required: Option<Kind>,
    /// true if it is not always evaluated
    pub lazy: bool,
}

impl Parameter {
    pub const fn required(name: &'static str, kind: Kind) -> Parameter {
        Parameter { name, required: Some(kind), lazy: false }
    }

    pub const fn optional(name: &'static str) -> Parameter {
        Parameter { name, required: None, lazy: false }
    }

    pub const fn lazy(name: &'static str) -> Parameter {
        Parameter { name, required: None, lazy: true }
    }
}

/// The errors of arguments that should have names.
pub(super) struct Refusal {
    /// they are no object
    pub object: Kind,
    /// a name is not known
    pub name: Kind,
}

impl Refusal {
    pub fn no_object(&self, operator: &str, found: &Json) -> Error {
        let found = ext_json::from_json(found).map_or("object", |value| value.type_name());
        error!(self.object, "{operator} only supports an object as its argument, found: {found}")
    }

    pub fn unknown(&self, operator: &str, name: &str) -> Error {
        error!(self.name, "Unrecognized argument to {operator}: {name}")
    }
}

impl Operator {
    /// An operator whose result depends on its arguments alone.
    pub const fn new(
        name: &'static str,
        arguments: Arguments,
        evaluate: for<'s> fn(&Call<'s>) -> Result<Operand<'s>>,
    ) -> Operator {
        Operator { function: Function { name, pure: true, evaluate }, arguments }
    }

    /// An operator that takes exactly `count` arguments.
    pub const fn exactly(
        name: &'static str,
        count: usize,
        evaluate: for<'s> fn(&Call<'s>) -> Result<Operand<'s>>,
    ) -> Operator {
        Operator::new(name, Arguments::Positional(count, count), evaluate)
    }

    /// One that takes any number of arguments.
    pub const fn any(name: &'static str, evaluate: for<'s> fn(&Call<'s>) -> Result<Operand<'s>>) -> Operator {
        Operator::new(name, Arguments::Positional(0, usize::MAX), evaluate)
    }

    /// One that binds variables while it evaluates, or is not the same every time.
    pub const fn impure(
        name: &'static str,
        arguments: Arguments,
        evaluate: for<'s> fn(&Call<'s>) -> Result<Operand<'s>>,
    ) -> Operator {
        Operator { function: Function { name, pure: false, evaluate }, arguments }
    }
}

/// Finds an operator by its name.
pub(super) type Operators = fn(&str) -> Result<&'static Operator>;

/// Parses a whole expression.
pub(super) fn expression(json: &Json, environment: &Environment, operators: Operators) -> Result<Node> {
    Parser { environment, operators, bound: Vec::new(), places: HashMap::new(), lazy: 0, level: 0 }.node(json)
}

/// The variables that are in sight while parsing.
pub(super) struct Parser<'p> {
    pub environment: &'p Environment,
    operators: Operators,
    /// names of bound variables, the innermost last
    bound: Vec<String>,
    /// where each name is bound, the innermost last
    places: HashMap<String, Vec<usize>>,
    /// above 0 where an error that is the same for every document may never come up
    lazy: usize,
    level: usize,
}

impl Parser<'_> {
    /// Parses any expression.
    pub fn node(&mut self, json: &Json) -> Result<Node> {
        self.level += 1;
        ensure!(self.level <= MAX_LEVELS, Kind::Overflow, "the expression is nested too deeply");
        let node = match json {
            Json::String(text) => self.text(text),
            Json::Array(items) => {
                let items = items.iter().map(|item| self.node(item)).collect::<Result<Vec<_>>>()?;
                Ok(folded(items, Node::Array, Value::Array))
            }
            Json::Object(fields) => self.object(fields, json),
            other => Ok(Node::Constant(ext_json::from_json(other)?)),
        }?;
        self.level -= 1;
        Ok(node)
    }

    /// Parses what need not be evaluated, though it is constant.
    pub fn lazy_node(&mut self, json: &Json) -> Result<Node> {
        self.lazy += 1;
        let node = self.node(json);
        self.lazy -= 1;
        node
    }

    /// Parses with further variables in sight.
    pub fn node_with(&mut self, names: &[&str], json: &Json) -> Result<Node> {
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

    fn text(&mut self, text: &str) -> Result<Node> {
        match (text.strip_prefix("$$"), text.strip_prefix('$')) {
            (Some(variable), _) => self.variable(variable),
            (None, Some(path)) => {
                ensure!(!path.is_empty(), 16872, "'$' by itself is not a valid FieldPath");
                path::check_field_path(path)?;
                Ok(Node::Path(self.current(), path.to_owned()))
            }
            (None, None) => Ok(Node::Constant(Value::String(text.to_owned()))),
        }
    }

    /// `$$CURRENT`: the document, unless it is bound anew.
    fn current(&self) -> Variable {
        self.bound_variable("CURRENT").unwrap_or(Variable::Root)
    }

    fn bound_variable(&self, name: &str) -> Option<Variable> {
        let position = self.places.get(name)?.last()?;
        Some(Variable::Bound(self.bound.len() - 1 - position))
    }

    fn variable(&mut self, text: &str) -> Result<Node> {
        let (name, path) = path::split(text);
        let path = path.unwrap_or_default();
        ensure!(!name.is_empty(), Kind::FailedToParse, "empty variable names are not allowed");
        if !path.is_empty() || text.ends_with('.') {
            path::check_field_path(path)?;
        }
        let path = path.to_owned();
        if let Some(variable) = self.bound_variable(name) {
            return Ok(Node::Path(variable, path));
        }
        let value = match name {
            "ROOT" | "CURRENT" => return Ok(Node::Path(Variable::Root, path)),
            "REMOVE" => return Ok(Node::Path(Variable::Remove, path)),
            "NOW" => match self.environment.now() {
                Some(now) => Value::Date(now),
                None => bail!(51144, "Builtin variable '$$NOW' is not available"),
            },
            "CLUSTER_TIME" | "USER_ROLES" | "SEARCH_META" => {
                bail!(Kind::NotImplemented, "the variable $${name} is not supported")
            }
            _ => {
                if !name.starts_with(|c: char| c.is_ascii_uppercase()) {
                    check_variable_name(name)?;
                }
                match self.environment.variable(name) {
                    Some(value) => value.clone(),
                    None => bail!(17276, "Use of undefined variable: {name}"),
                }
            }
        };
        if path.is_empty() {
            return Ok(Node::Constant(value));
        }
        let found = Operand::Made(value).at(&path);
        Ok(found.into_option().map_or(Node::Path(Variable::Remove, String::new()), Node::Constant))
    }

    fn object(&mut self, fields: &Map<String, Json>, json: &Json) -> Result<Node> {
        if let Some(value) = ext_json::extended_value(fields)? {
            return Ok(Node::Constant(value));
        }
        if let Some(name) = fields.keys().find(|name| name.starts_with('$')) {
            if fields.len() != 1 {
                bail!(15983, "an expression specification must contain exactly one field, found {json}");
            }
            return self.call((self.operators)(name)?, &fields[name]);
        }
        let mut nodes = Vec::with_capacity(fields.len());
        for (name, json) in fields {
            if name.contains('.') {
                bail!(16412, "FieldPath field names may not contain '.'. Consider using $getField or $setField.");
            }
            ensure!(!name.is_empty(), 15998, "FieldPath field names may not be empty strings.");
            nodes.push((name.clone(), self.node(json)?));
        }
        let constant = nodes.iter().all(|(_, node)| matches!(node, Node::Constant(_)));
        if !constant {
            return Ok(Node::Object(nodes));
        }
        let fields = nodes.into_iter().filter_map(|(name, node)| match node {
            Node::Constant(value) => Some((name, value)),
            _ => None,
        });
        Ok(Node::Constant(Value::Object(fields.collect())))
    }

    fn call(&mut self, operator: &'static Operator, argument: &Json) -> Result<Node> {
        let nodes = match &operator.arguments {
            Arguments::Special(parse) => parse(self, argument)?,
            Arguments::Positional(least, most) => {
                let nodes = match argument {
                    Json::Array(items) => items.iter().map(|item| self.node(item)).collect::<Result<Vec<_>>>(),
                    single => Ok(vec![self.node(single)?]),
                };
                // The number of arguments counts before what is wrong with one of them.
                let count = if let Json::Array(items) = argument { items.len() } else { 1 };
                check_count(operator.function.name, count, *least, *most)?;
                nodes?
            }
            Arguments::Named(parameters, refuse) => {
                let Json::Object(fields) = argument else {
                    return Err(refuse.no_object(operator.function.name, argument));
                };
                if let Some(unknown) = fields.keys().find(|name| !parameters.iter().any(|known| known.name == *name)) {
                    return Err(refuse.unknown(operator.function.name, unknown));
                }
                let mut nodes = Vec::with_capacity(parameters.len());
                for parameter in *parameters {
                    nodes.push(match (fields.get(parameter.name), parameter.required) {
                        (Some(json), _) if parameter.lazy => self.lazy_node(json)?,
                        (Some(json), _) => self.node(json)?,
                        (None, None) => Node::Absent,
                        (None, Some(kind)) => {
                            bail!(kind, "Missing '{}' parameter to {}", parameter.name, operator.function.name)
                        }
                    });
                }
                nodes
            }
        };
        self.fold(&operator.function, nodes)
    }

    /// What is the same for every document is computed once.
    fn fold(&mut self, function: &'static Function, nodes: Vec<Node>) -> Result<Node> {
        let constant = |node: &Node| matches!(node, Node::Constant(_) | Node::Absent | Node::Path(Variable::Remove, _));
        if !function.pure || !nodes.iter().all(constant) {
            return Ok(Node::Call(function, nodes));
        }
        let nothing = write::value(&Value::Object(Vec::new()))?;
        let Some(document) = raw::document(&nothing) else { return Ok(Node::Call(function, nodes)) };
        let folded = {
            let collator = self.environment.collator().map(|collator| &**collator);
            let call = Call::new(function.name, &nodes, Scope::new(document, collator));
            (function.evaluate)(&call).map(|operand| operand.into_option())
        };
        match folded {
            Ok(Some(value)) => Ok(Node::Constant(value)),
            Ok(None) => Ok(Node::Path(Variable::Remove, String::new())),
            Err(_) if self.lazy > 0 => Ok(Node::Call(function, nodes)),
            Err(error) => Err(error),
        }
    }
}

/// Joins nodes; constant ones into a constant.
fn folded(nodes: Vec<Node>, join: impl Fn(Vec<Node>) -> Node, constant: impl Fn(Vec<Value>) -> Value) -> Node {
    if !nodes.iter().all(|node| matches!(node, Node::Constant(_))) {
        return join(nodes);
    }
    let values = nodes.into_iter().filter_map(|node| match node {
        Node::Constant(value) => Some(value),
        _ => None,
    });
    Node::Constant(constant(values.collect()))
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
