//! Expressions: parsed once into a tree, evaluated on jsonb's bytes.
//!
//! * [`parse`] parses JSON into a tree. It refuses unknown operators, wrong numbers of arguments and unknown argument names,
//!   and folds constants: what does not depend on the document is evaluated only once.
//! * [`node`] is the tree, its evaluation, and the scope with the variables.
//! * [`operators`] combines the tables of operators. Each file of a subject, such as arrays or dates, has a table and the
//!   functions of its operators.
//!
//! `$expr`, projections, stages and updates use this module, which uses none of them.

mod node;

mod parse;

mod accumulator;
mod real;
mod zone;

mod decimal;

mod arithmetic;
mod bits;
mod boolean;
mod date;
mod date_arithmetic;
mod date_format;
mod object;
mod percentile;
mod regex;
mod set;
mod trigonometry;
mod variable;

mod array;
mod convert;
mod hash;

mod string;

mod operators;

use crate::budget::Evaluation;
use crate::error::Result;
use crate::query::environment::{Binding, Environment};
use crate::query::operand::Operand;
use crate::values::collation::Collator;
use crate::values::document::raw::{self, RawObject, RawValue};
use crate::values::document::value::Value;
use crate::values::document::write;
use crate::values::path;
use node::{ExpressionNode, Scope, Variable};
use serde_json::Value as Json;
use std::collections::BTreeSet;

pub(crate) use arithmetic::{difference, product_of};
pub(crate) use date_arithmetic::Unit;
pub(crate) use operators::operator_names;
pub(crate) use parse::check_variable_name;

/// The variable that paths start at.
const CURRENT: &str = "CURRENT";

/// A parsed expression.
#[derive(Debug)]
pub struct Expression {
    root: ExpressionNode,
    /// true if its errors have the codes of `$group`
    in_group: bool,
}

impl Expression {
    /// Parses an expression, such as `{"$add": ["$price", "$tax"]}`.
    ///
    /// # Errors
    /// MongoDB's errors for an unknown operator, a wrong number of arguments, an invalid path or variable, and for a constant
    /// part whose evaluation fails.
    pub fn parse(json: &Json, environment: &Environment) -> Result<Expression> {
        let _evaluation = Evaluation::begin();
        Ok(Expression { root: parse::expression(json, environment, operators::find)?, in_group: environment.in_group })
    }

    /// Like [`parse`](Self::parse), but paths start at `$$CURRENT`, which [`evaluate_part`](Self::evaluate_part) binds to a
    /// part of the document.
    ///
    /// # Errors
    /// Those of [`parse`](Self::parse).
    pub(crate) fn parse_of_parts(json: &Json, environment: &Environment) -> Result<Expression> {
        let _evaluation = Evaluation::begin();
        Ok(Expression {
            root: parse::expression_with(&[CURRENT], json, environment, operators::find)?,
            in_group: environment.in_group,
        })
    }

    /// Evaluates an expression that [`parse_of_parts`](Self::parse_of_parts) has parsed, for a part of a document.
    ///
    /// # Errors
    /// Those of its operators.
    pub(crate) fn evaluate_part(
        &self,
        part: RawObject<'_>,
        document: RawObject<'_>,
        collator: Option<&Collator>,
    ) -> Result<Option<Value>> {
        let _evaluation = Evaluation::begin();
        let part = Operand::Stored(RawValue::Object(part));
        Scope::new(document, collator).with(part, |scope| Ok(self.root.evaluate(scope)?.into_option()))
    }

    /// The paths whose values the expression's value contains unchanged: for an expression that is a path, this path; for a
    /// document literal, the paths among its fields. Documents for which the expression has equal values have equal values
    /// at these paths.
    pub(crate) fn whole_paths(&self) -> BTreeSet<&str> {
        let mut paths = BTreeSet::new();
        self.root.whole_paths(&mut paths);
        paths
    }

    /// True for the name of one of MongoDB's operators, such as `$add`.
    pub(crate) fn is_known(name: &str) -> bool {
        operators::is_known(name)
    }

    /// The value of a constant expression; null for a constant that is missing. None if the expression is no constant.
    pub fn constant(&self) -> Option<Value> {
        match &self.root {
            ExpressionNode::Constant(value) => Some(value.clone()),
            ExpressionNode::Path(Variable::Remove, _) => Some(Value::Null),
            _ => None,
        }
    }

    /// True if the expression has variables without a value yet ([`Binding::Open`]) and reads nothing of the document.
    pub(crate) fn is_open(&self) -> bool {
        self.root.has_open() && self.fields_read().is_some_and(|fields| fields.is_empty())
    }

    /// Like [`constant`](Self::constant), but a missing value is [`Binding::Missing`] instead of null.
    pub(crate) fn binding(&self) -> Option<Binding> {
        match &self.root {
            ExpressionNode::Constant(value) => Some(Binding::Value(value.clone())),
            ExpressionNode::Path(Variable::Remove, _) => Some(Binding::Missing),
            _ => None,
        }
    }

    /// Like [`binding`](Self::binding), but also evaluates an expression that is not constant and yet reads nothing of the
    /// document, such as `{"$rand": {}}`.
    ///
    /// # Errors
    /// Those of its operators.
    pub(crate) fn evaluated(&self, collator: Option<&Collator>) -> Result<Option<Binding>> {
        let reads = || self.root.has_open() || self.fields_read().is_none_or(|fields| !fields.is_empty());
        let found = self.binding();
        if found.is_some() || reads() {
            return Ok(found);
        }
        let nothing = write::empty()?;
        let Some(document) = raw::document(&nothing) else { return Ok(None) };
        Ok(Some(self.evaluate(document, collator)?.map_or(Binding::Missing, Binding::Value)))
    }

    /// The value for a document; None if it is missing.
    ///
    /// # Errors
    /// Those of its operators.
    pub fn evaluate(&self, document: RawObject<'_>, collator: Option<&Collator>) -> Result<Option<Value>> {
        Ok(self.operand(document, collator)?.into_option())
    }

    /// Like [`evaluate`](Self::evaluate), without copying stored values.
    pub(crate) fn operand<'s>(
        &'s self,
        document: RawObject<'s>,
        collator: Option<&'s Collator>,
    ) -> Result<Operand<'s>> {
        let _evaluation = Evaluation::begin();
        self.root.evaluate(&Scope::new(document, collator).in_group(self.in_group))
    }

    /// The paths of the document that the evaluation reads; None for the whole document.
    pub(crate) fn fields_read(&self) -> Option<BTreeSet<String>> {
        let mut paths = BTreeSet::new();
        self.root.read(&mut paths).then_some(paths)
    }

    /// The conditions "path equals constant" that hold whenever the expression is true: the expression itself if it is an
    /// `$eq`, or each `$eq` among the operands of an `$and`, also a nested one. The constant is never null, undefined or an
    /// array.
    pub(crate) fn required_equalities(&self) -> Vec<(&str, &Value)> {
        let mut found = Vec::new();
        required(&self.root, &mut found);
        found
    }
}

fn required<'n>(node: &'n ExpressionNode, found: &mut Vec<(&'n str, &'n Value)>) {
    let ExpressionNode::Call(function, arguments) = node else { return };
    match (function.name, arguments.as_slice()) {
        ("$and", nodes) => nodes.iter().for_each(|node| required(node, found)),
        ("$eq", [ExpressionNode::Path(Variable::Root, path), ExpressionNode::Constant(value)])
        | ("$eq", [ExpressionNode::Constant(value), ExpressionNode::Path(Variable::Root, path)])
            if !path.is_empty() && !matches!(value, Value::Null | Value::Undefined | Value::Array(_)) =>
        {
            // In an expression, a path through arrays yields an array, which equals no such value. So wherever the
            // expression is true, no array is on the path, and the same equality holds in a filter.
            debug_assert!(path::check_field_path(path).is_ok());
            found.push((path, value));
        }
        _ => {}
    }
}
