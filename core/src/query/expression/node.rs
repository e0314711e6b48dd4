//! The tree of an expression and its evaluation.
//!
//! INVARIANT: a use of a variable is stored as the number of variables that are bound further in (a De Bruijn index), so
//! evaluation never looks up a name.

use crate::budget;
use crate::error::{Error, Result, error};
use crate::query::operand::Operand;
use crate::values::collation::Collator;
use crate::values::document::number::Number;
use crate::values::document::raw::{RawObject, RawValue};
use crate::values::document::value::Value;
use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::fmt;

/// A part of an expression.
#[derive(Debug)]
pub(super) enum ExpressionNode {
    /// a value
    Constant(Value),
    /// a parameter that is not given, or that is no expression
    Absent,
    /// the value at a path of a variable; the whole variable if the path is empty
    Path(Variable, String),
    /// a document of computed fields
    Object(Vec<(String, ExpressionNode)>),
    /// an array of computed elements
    Array(Vec<ExpressionNode>),
    /// an operator with its arguments
    Call(&'static Function, Vec<ExpressionNode>),
}

/// The source of a variable's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Variable {
    /// the document: `$$ROOT`, and `$$CURRENT` unless it is bound
    Root,
    /// `$$REMOVE`, which is missing
    Remove,
    /// a variable whose value is known only when the pipeline runs; until then its expression is checked, but not evaluated
    Open,
    /// a bound variable: the number of variables that are bound further in, 0 for the innermost
    Bound(usize),
}

/// An operator's name and evaluation.
pub(super) struct Function {
    pub name: &'static str,
    /// True if equal arguments give equal results.
    pub pure: bool,
    pub form: Form,
}

/// How an operator is evaluated. All forms but `Call` return null if an argument is null or missing.
pub(super) enum Form {
    /// The function evaluates the arguments that it needs.
    Call(for<'s> fn(&Call<'s>) -> Result<Operand<'s>>),
    Unary(for<'s> fn(&Call<'s>, Operand<'s>) -> Result<Operand<'s>>),
    Binary(for<'s> fn(&Call<'s>, Operand<'s>, Operand<'s>) -> Result<Operand<'s>>),
    /// The function takes one number; any other value is an error.
    Numeric(fn(&Call<'_>, &Number) -> Result<Number>),
}

impl Function {
    pub fn evaluate<'s>(&self, arguments: &'s [ExpressionNode], scope: Scope<'s>) -> Result<Operand<'s>> {
        let call = Call { name: self.name, arguments, scope };
        match self.form {
            Form::Call(evaluate) => evaluate(&call),
            Form::Unary(evaluate) => match call.argument(0)? {
                value if value.is_nullish() => Ok(Operand::NULL),
                value => evaluate(&call, value),
            },
            Form::Binary(evaluate) => match (call.argument(0)?, call.argument(1)?) {
                (one, other) if one.is_nullish() || other.is_nullish() => Ok(Operand::NULL),
                (one, other) => evaluate(&call, one, other),
            },
            Form::Numeric(evaluate) => match call.argument(0)? {
                value if value.is_nullish() => Ok(Operand::NULL),
                value => Ok(Operand::number_of(evaluate(&call, &call.number(&value, "its argument", 28765)?)?)),
            },
        }
    }
}

impl fmt::Debug for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// The context of an evaluation.
#[derive(Clone, Copy)]
pub(crate) struct Scope<'s> {
    /// the document
    pub root: RawObject<'s>,
    /// the collation of strings; None: they are compared bytewise
    pub collator: Option<&'s Collator>,
    /// true in `$group`, which MongoDB runs in an engine that has error codes of its own
    in_group: bool,
    frame: Option<&'s Frame<'s>>,
}

/// The values of variables that are bound together, the innermost last, and the scope around them.
struct Frame<'s> {
    values: Vec<Operand<'s>>,
    outer: Option<&'s Frame<'s>>,
}

impl<'s> Scope<'s> {
    pub(crate) fn new(root: RawObject<'s>, collator: Option<&'s Collator>) -> Scope<'s> {
        Scope { root, collator, in_group: false, frame: None }
    }

    /// Sets whether the expression belongs to `$group`.
    pub(super) fn in_group(self, in_group: bool) -> Scope<'s> {
        Scope { in_group, ..self }
    }

    /// Calls `inside` with a scope that has one more variable.
    pub(super) fn with<R>(&self, value: Operand<'_>, inside: impl FnOnce(&Scope<'_>) -> R) -> R {
        self.with_all(vec![value], inside)
    }

    /// Calls `inside` with a scope that has several more variables; the last is the innermost.
    pub(super) fn with_all<R>(&self, values: Vec<Operand<'_>>, inside: impl FnOnce(&Scope<'_>) -> R) -> R {
        let frame = Frame { values, outer: self.frame };
        inside(&Scope { root: self.root, collator: self.collator, in_group: self.in_group, frame: Some(&frame) })
    }

    fn variable(&self, mut scopes: usize) -> Operand<'s> {
        let mut frame = self.frame;
        while let Some(found) = frame {
            budget::step();
            if let Some(place) = found.values.len().checked_sub(scopes + 1) {
                return match &found.values[place] {
                    Operand::Missing => Operand::Missing,
                    Operand::Stored(raw) => Operand::Stored(*raw),
                    Operand::Given(value) => Operand::Given(value),
                    Operand::Made(value) => Operand::Given(value),
                };
            }
            scopes -= found.values.len();
            frame = found.outer;
        }
        Operand::Missing
    }
}

impl ExpressionNode {
    /// Collects the paths of the document that the evaluation reads; false if it reads the whole document.
    pub(super) fn read(&self, paths: &mut BTreeSet<String>) -> bool {
        budget::step();
        match self {
            ExpressionNode::Path(Variable::Root, path) => {
                paths.insert(path.clone());
                !path.is_empty()
            }
            ExpressionNode::Constant(_) | ExpressionNode::Absent | ExpressionNode::Path(..) => true,
            ExpressionNode::Object(fields) => fields.iter().all(|(_, node)| node.read(paths)),
            ExpressionNode::Array(nodes) | ExpressionNode::Call(_, nodes) => nodes.iter().all(|node| node.read(paths)),
        }
    }

    /// True if a part is a variable whose value is not known yet.
    pub(super) fn has_open(&self) -> bool {
        budget::step();
        match self {
            ExpressionNode::Path(variable, _) => *variable == Variable::Open,
            ExpressionNode::Constant(_) | ExpressionNode::Absent => false,
            ExpressionNode::Object(fields) => fields.iter().any(|(_, node)| node.has_open()),
            ExpressionNode::Array(nodes) | ExpressionNode::Call(_, nodes) => nodes.iter().any(ExpressionNode::has_open),
        }
    }

    /// Collects the paths whose values can be read back from the node's value: see
    /// [`Expression::whole_paths`](super::Expression::whole_paths).
    pub(super) fn whole_paths<'n>(&'n self, paths: &mut BTreeSet<&'n str>) {
        match self {
            ExpressionNode::Path(Variable::Root, path) => {
                paths.insert(path);
            }
            ExpressionNode::Object(fields) => fields.iter().for_each(|(_, node)| node.whole_paths(paths)),
            _ => {}
        }
    }

    /// The value in a scope.
    pub(super) fn evaluate<'s>(&'s self, scope: &Scope<'s>) -> Result<Operand<'s>> {
        budget::step();
        Ok(match self {
            ExpressionNode::Constant(value) => Operand::Given(value),
            ExpressionNode::Absent => Operand::Missing,
            ExpressionNode::Path(Variable::Root, path) if path.is_empty() => {
                Operand::Stored(RawValue::Object(scope.root))
            }
            ExpressionNode::Path(Variable::Root, path) => Operand::Stored(RawValue::Object(scope.root)).at(path),
            ExpressionNode::Path(Variable::Remove | Variable::Open, _) => Operand::Missing,
            ExpressionNode::Path(Variable::Bound(scopes), path) if path.is_empty() => scope.variable(*scopes),
            ExpressionNode::Path(Variable::Bound(scopes), path) => scope.variable(*scopes).at(path),
            ExpressionNode::Object(fields) => {
                let mut object = Vec::with_capacity(fields.len());
                for (name, node) in fields {
                    object.extend(node.evaluate(scope)?.into_option().map(|value| (name.clone(), value)));
                }
                Operand::object(object)?
            }
            ExpressionNode::Array(items) => {
                let items = items.iter().map(|node| Ok(node.evaluate(scope)?.into_value()));
                Operand::array(items.collect::<Result<_>>()?)?
            }
            ExpressionNode::Call(function, arguments) => function.evaluate(arguments, *scope)?,
        })
    }
}

/// An operator's call. Each argument is evaluated when it is requested.
pub(super) struct Call<'s> {
    pub name: &'static str,
    arguments: &'s [ExpressionNode],
    pub scope: Scope<'s>,
}

impl<'s> Call<'s> {
    /// The number of arguments.
    pub fn len(&self) -> usize {
        self.arguments.len()
    }

    /// True in an expression of `$group`.
    pub fn is_in_group(&self) -> bool {
        self.scope.in_group
    }

    pub fn is_given(&self, index: usize) -> bool {
        self.arguments.get(index).is_some_and(|node| !matches!(node, ExpressionNode::Absent))
    }

    /// An argument's value; missing for one that is not given.
    pub fn argument(&self, index: usize) -> Result<Operand<'s>> {
        self.argument_in(index, &self.scope)
    }

    /// An argument's value, in another scope.
    pub fn argument_in<'i>(&self, index: usize, scope: &Scope<'i>) -> Result<Operand<'i>>
    where
        's: 'i,
    {
        self.arguments.get(index).map_or(Ok(Operand::Missing), |node| node.evaluate(scope))
    }

    /// All arguments' values, one after the other.
    pub fn arguments(&self) -> impl Iterator<Item = Result<Operand<'s>>> + '_ {
        self.arguments.iter().map(|node| node.evaluate(&self.scope))
    }

    /// Compares under the collation.
    pub fn compare(&self, a: &Operand<'_>, b: &Operand<'_>) -> Ordering {
        a.compare(b, self.scope.collator)
    }

    pub fn compare_values(&self, a: &Value, b: &Value) -> Ordering {
        self.compare(&Operand::Given(a), &Operand::Given(b))
    }

    /// The error for a value of a wrong type; `which` names the argument.
    pub fn wrong_type(&self, value: &Operand<'_>, which: &str, wanted: &str, code: i32) -> Error {
        error!(code, "{} requires {which} to be {wanted}, found: {}", self.name, value.type_name())
    }

    /// The elements of an argument that must be an array.
    pub fn items<'o>(&self, array: Operand<'o>, which: &str, code: i32) -> Result<Vec<Operand<'o>>> {
        if array.is_array() {
            Ok(array.into_items().unwrap_or_default())
        } else {
            Err(self.wrong_type(&array, which, "an array", code))
        }
    }

    /// The text of an argument that must be a string.
    pub fn text<'o>(&self, string: &'o Operand<'_>, which: &str, code: i32) -> Result<&'o str> {
        string.text().ok_or_else(|| self.wrong_type(string, which, "a string", code))
    }

    /// The value of an argument that must be a number.
    pub fn number(&self, value: &Operand<'_>, which: &str, code: i32) -> Result<Number> {
        value.number().ok_or_else(|| self.wrong_type(value, which, "a number", code))
    }

    /// The value of an argument that must be a 32-bit integer, of any numeric type. The error codes are for a value that is no
    /// number, and for any other number.
    pub fn int32(&self, value: &Operand<'_>, which: &str, codes: [i32; 2]) -> Result<i64> {
        self.number(value, which, codes[0])?;
        value.int32().ok_or_else(|| {
            error!(codes[1], "{} requires {which} to be an integer of 32 bits, found: {}", self.name, value.shown())
        })
    }
}
