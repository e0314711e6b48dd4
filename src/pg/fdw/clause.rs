//! The planner's conditions on one foreign table, as values without pointers. A wrapper may have them evaluated elsewhere.
//!
//! Only built-in operators of types that columns can have are recognised, by their operator families and OIDs. A condition that contains
//! anything else is [`Clause::Other`], and PostgreSQL evaluates it. The other side of an operator is an *operand*: an expression without
//! columns of the table, which the executor evaluates once before a scan. So a user's function is never called with a row here.

use super::value::Kind;
use pgrx::{PgList, pg_sys};
use serde::{Deserialize, Serialize};
use std::ffi::CStr;

/// What an operator compares with an operand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Term {
    /// a column, by its number, and how the operator compares its strings
    Column(i16, Collation),
    /// the text at a path in a jsonb column
    Text { column: i16, path: Vec<String>, compared: Compared },
}

/// How a text is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compared {
    /// as a string
    AsText(Collation),
    /// cast to another type
    Cast(Kind),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Operator {
    Less,
    LessOrEqual,
    Equal,
    GreaterOrEqual,
    Greater,
    NotEqual,
}

impl Operator {
    /// The operator of a b-tree strategy.
    fn of_strategy(strategy: i32) -> Option<Self> {
        Some(match strategy {
            1 => Self::Less,
            2 => Self::LessOrEqual,
            3 => Self::Equal,
            4 => Self::GreaterOrEqual,
            5 => Self::Greater,
            _ => return None,
        })
    }

    /// The operator that is true where this one is false.
    fn negated(self) -> Self {
        match self {
            Self::Less => Self::GreaterOrEqual,
            Self::LessOrEqual => Self::Greater,
            Self::Equal => Self::NotEqual,
            Self::GreaterOrEqual => Self::Less,
            Self::Greater => Self::LessOrEqual,
            Self::NotEqual => Self::Equal,
        }
    }
}

/// How an operator compares strings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Collation {
    /// by bytes; also where no strings are compared
    Bytes,
    /// the database's own
    Default,
    /// another one, in which different strings are different
    Deterministic,
    /// another one, in which different strings may be equal
    Nondeterministic,
}

/// A condition. An operand is the position of its expression in [`Reader::operands`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Clause {
    All(Vec<Clause>),
    Any(Vec<Clause>),
    Compare {
        term: Term,
        operator: Operator,
        operand: usize,
        kind: Kind,
    },
    /// `= ANY`, or `<> ALL`; `kind` is the type of the elements
    Member {
        term: Term,
        is_negated: bool,
        operand: usize,
        kind: Kind,
    },
    IsNull {
        column: i16,
        is_negated: bool,
    },
    /// a boolean column is true, or false
    Is {
        column: i16,
        value: bool,
    },
    /// `LIKE`
    Like {
        column: i16,
        operand: usize,
        collation: Collation,
    },
    /// `@>` on a jsonb column
    Contains {
        column: i16,
        operand: usize,
    },
    /// `?` on a jsonb column
    HasKey {
        column: i16,
        operand: usize,
    },
    /// anything else
    Other,
}

/// B-tree operator families of the types that columns can have: their operators compare values of one type, or integers of several.
const FAMILIES: [u32; 7] = [1976, 1994, 424, 2968, 434, 1970, 1988];

/// True for one of [`FAMILIES`].
pub(super) fn is_family(family: pg_sys::Oid) -> bool {
    FAMILIES.contains(&family.to_u32())
}

const TEXT_LIKE: u32 = 1209;
const JSONB_ARROW: u32 = 3211;
const JSONB_TEXT: u32 = 3477;
const JSONB_PATH: u32 = 3213;
const JSONB_PATH_TEXT: u32 = 3206;
const JSONB_CONTAINS: u32 = 3246;
const JSONB_HAS_KEY: u32 = 3247;

/// Reads the conditions on one relation.
pub(super) struct Reader {
    root: *mut pg_sys::PlannerInfo,
    relation: pg_sys::Index,
    /// the operands found so far
    pub operands: Vec<*mut pg_sys::Node>,
}

impl Reader {
    /// # Safety
    /// The planner's state and a base relation of it.
    pub(super) unsafe fn new(root: *mut pg_sys::PlannerInfo, relation: pg_sys::Index) -> Self {
        Self { root, relation, operands: Vec::new() }
    }

    /// Reads a condition.
    ///
    /// # Safety
    /// An expression of the planner's query, after its constants were folded.
    pub(super) unsafe fn clause(&mut self, node: *mut pg_sys::Node) -> Clause {
        // SAFETY: promised by the caller.
        unsafe { self.read(node, true) }
    }

    /// The condition that is true for the rows for which the expression has the value `wanted`.
    ///
    /// # Safety
    /// The same as for [`clause`](Self::clause).
    unsafe fn read(&mut self, node: *mut pg_sys::Node, wanted: bool) -> Clause {
        if node.is_null() {
            return Clause::Other;
        }
        // SAFETY: promised by the caller; a node's tag says what it is.
        unsafe {
            pg_sys::check_stack_depth();
            match (*node).type_ {
                pg_sys::NodeTag::T_RestrictInfo => {
                    self.read((*node.cast::<pg_sys::RestrictInfo>()).clause.cast(), wanted)
                }
                pg_sys::NodeTag::T_BoolExpr => {
                    let boolean = &*node.cast::<pg_sys::BoolExpr>();
                    let arguments = PgList::<pg_sys::Node>::from_pg(boolean.args);
                    if boolean.boolop == pg_sys::BoolExprType::NOT_EXPR {
                        return arguments.get_ptr(0).map_or(Clause::Other, |first| self.read(first, !wanted));
                    }
                    let parts = arguments.iter_ptr().map(|argument| self.read(argument, wanted)).collect();
                    if (boolean.boolop == pg_sys::BoolExprType::AND_EXPR) == wanted {
                        Clause::All(parts)
                    } else {
                        Clause::Any(parts)
                    }
                }
                pg_sys::NodeTag::T_NullTest => {
                    let test = &*node.cast::<pg_sys::NullTest>();
                    let is_null = test.nulltesttype == pg_sys::NullTestType::IS_NULL;
                    match self.column(test.arg.cast()).filter(|_| !test.argisrow) {
                        Some(column) => Clause::IsNull { column, is_negated: is_null != wanted },
                        None => Clause::Other,
                    }
                }
                pg_sys::NodeTag::T_BooleanTest => {
                    let test = &*node.cast::<pg_sys::BooleanTest>();
                    let value = match test.booltesttype {
                        pg_sys::BoolTestType::IS_TRUE => true,
                        pg_sys::BoolTestType::IS_FALSE => false,
                        _ => return Clause::Other,
                    };
                    self.column(test.arg.cast())
                        .filter(|_| wanted)
                        .map_or(Clause::Other, |column| Clause::Is { column, value })
                }
                pg_sys::NodeTag::T_Var | pg_sys::NodeTag::T_RelabelType => {
                    self.column(node).map_or(Clause::Other, |column| Clause::Is { column, value: wanted })
                }
                pg_sys::NodeTag::T_OpExpr => self.comparison(&*node.cast(), wanted),
                pg_sys::NodeTag::T_ScalarArrayOpExpr => self.member(&*node.cast(), wanted),
                _ => Clause::Other,
            }
        }
    }

    /// # Safety
    /// The same as for [`clause`](Self::clause).
    unsafe fn comparison(&mut self, call: &pg_sys::OpExpr, wanted: bool) -> Clause {
        // SAFETY: promised by the caller.
        unsafe {
            let arguments = PgList::<pg_sys::Node>::from_pg(call.args);
            let (Some(left), Some(right)) = (arguments.get_ptr(0), arguments.get_ptr(1)) else { return Clause::Other };
            let collation = collation_of(call.inputcollid);
            let special = call.opno.to_u32();
            if matches!(special, TEXT_LIKE | JSONB_CONTAINS | JSONB_HAS_KEY) {
                let Some(column) = self.column(left).filter(|_| wanted) else { return Clause::Other };
                let Some(operand) = self.operand(right) else { return Clause::Other };
                return match special {
                    TEXT_LIKE => Clause::Like { column, operand, collation },
                    JSONB_CONTAINS => Clause::Contains { column, operand },
                    _ => Clause::HasKey { column, operand },
                };
            }
            let (term, other, number) = match self.term(left, collation) {
                Some(term) => (term, right, call.opno),
                None => match self.term(right, collation) {
                    Some(term) => (term, left, pg_sys::get_commutator(call.opno)),
                    None => return Clause::Other,
                },
            };
            let Some(operator) = operator_of(number) else { return Clause::Other };
            let Some(kind) = Kind::of(pg_sys::exprType(other), -1) else { return Clause::Other };
            let Some(operand) = self.operand(other) else { return Clause::Other };
            let operator = if wanted { operator } else { operator.negated() };
            Clause::Compare { term, operator, operand, kind }
        }
    }

    /// # Safety
    /// The same as for [`clause`](Self::clause).
    unsafe fn member(&mut self, call: &pg_sys::ScalarArrayOpExpr, wanted: bool) -> Clause {
        // SAFETY: promised by the caller.
        unsafe {
            let arguments = PgList::<pg_sys::Node>::from_pg(call.args);
            let (Some(left), Some(right)) = (arguments.get_ptr(0), arguments.get_ptr(1)) else { return Clause::Other };
            let Some(operator) = operator_of(call.opno) else { return Clause::Other };
            let is_negated = match (operator, call.useOr) {
                (Operator::Equal, true) => !wanted,
                (Operator::NotEqual, false) => wanted,
                _ => return Clause::Other,
            };
            let collation = collation_of(call.inputcollid);
            let (Some(term), Some(array)) = (self.term(left, collation), Kind::of(pg_sys::exprType(right), -1)) else {
                return Clause::Other;
            };
            if !array.is_array {
                return Clause::Other;
            }
            let Some(operand) = self.operand(right) else { return Clause::Other };
            let kind = Kind { is_array: false, ..array };
            Clause::Member { term, is_negated, operand, kind }
        }
    }

    /// The number of the column that an expression names; None if it is not a column of the relation.
    ///
    /// # Safety
    /// The same as for [`clause`](Self::clause).
    pub(super) unsafe fn column(&self, node: *mut pg_sys::Node) -> Option<i16> {
        // SAFETY: promised by the caller.
        unsafe {
            let node = without_relabel(node);
            if node.is_null() || (*node).type_ != pg_sys::NodeTag::T_Var {
                return None;
            }
            let var = &*node.cast::<pg_sys::Var>();
            let own = var.varno as i64 == i64::from(self.relation) && var.varlevelsup == 0 && var.varattno > 0;
            own.then_some(var.varattno)
        }
    }

    /// Reads a side of an operator that compares strings with this collation. None if it is neither a column nor a text in one.
    ///
    /// # Safety
    /// The same as for [`clause`](Self::clause).
    unsafe fn term(&self, node: *mut pg_sys::Node, collation: Collation) -> Option<Term> {
        // SAFETY: promised by the caller.
        unsafe {
            if let Some(column) = self.column(node) {
                return Some(Term::Column(column, collation));
            }
            let node = without_relabel(node);
            if node.is_null() {
                return None;
            }
            if (*node).type_ == pg_sys::NodeTag::T_CoerceViaIO {
                let cast = &*node.cast::<pg_sys::CoerceViaIO>();
                let (column, path) = self.text(without_relabel(cast.arg.cast()))?;
                return Some(Term::Text { column, path, compared: Compared::Cast(Kind::of(cast.resulttype, -1)?) });
            }
            let (column, path) = self.text(node)?;
            Some(Term::Text { column, path, compared: Compared::AsText(collation) })
        }
    }

    /// The column and the path of an expression that reads a text in a jsonb column: `doc ->> 'a'`, `doc -> 'a' ->> 'b'`, `doc #>> '{a,b}'`.
    ///
    /// # Safety
    /// The same as for [`clause`](Self::clause).
    unsafe fn text(&self, node: *mut pg_sys::Node) -> Option<(i16, Vec<String>)> {
        // SAFETY: promised by the caller.
        unsafe {
            if node.is_null() || (*node).type_ != pg_sys::NodeTag::T_OpExpr {
                return None;
            }
            let call = &*node.cast::<pg_sys::OpExpr>();
            if !matches!(call.opno.to_u32(), JSONB_TEXT | JSONB_PATH_TEXT) {
                return None;
            }
            let mut path = Vec::new();
            let column = self.steps(node, &mut path)?;
            Some((column, path))
        }
    }

    /// Collects the steps of a path, and returns the column that it begins with.
    ///
    /// # Safety
    /// The same as for [`clause`](Self::clause).
    unsafe fn steps(&self, node: *mut pg_sys::Node, path: &mut Vec<String>) -> Option<i16> {
        // SAFETY: promised by the caller; the constants have the types that the operators take.
        unsafe {
            pg_sys::check_stack_depth();
            if let Some(column) = self.column(node) {
                return Some(column);
            }
            if (*node).type_ != pg_sys::NodeTag::T_OpExpr {
                return None;
            }
            let call = &*node.cast::<pg_sys::OpExpr>();
            let arguments = PgList::<pg_sys::Node>::from_pg(call.args);
            let (left, right) = (arguments.get_ptr(0)?, arguments.get_ptr(1)?);
            if (*right).type_ != pg_sys::NodeTag::T_Const {
                return None;
            }
            let constant = &*right.cast::<pg_sys::Const>();
            if constant.constisnull {
                return None;
            }
            let column = self.steps(left, path)?;
            match (call.opno.to_u32(), super::value::of_datum(constant.constvalue, constant.consttype)?) {
                (JSONB_ARROW | JSONB_TEXT, super::value::SqlValue::Text(step)) => path.push(step),
                (JSONB_PATH | JSONB_PATH_TEXT, super::value::SqlValue::Array(steps)) => {
                    for step in steps {
                        let Some(super::value::SqlValue::Text(step)) = step else { return None };
                        path.push(step);
                    }
                }
                _ => return None,
            }
            Some(column)
        }
    }

    /// Adds an operand and returns its position. None if the expression names columns of the relation, or its value may change during a
    /// scan.
    ///
    /// # Safety
    /// The same as for [`clause`](Self::clause).
    pub(super) unsafe fn operand(&mut self, node: *mut pg_sys::Node) -> Option<usize> {
        // SAFETY: promised by the caller.
        unsafe {
            let relations = pg_sys::pull_varnos(self.root, node);
            let is_constant = !pg_sys::bms_is_member(self.relation as i32, relations)
                && !pg_sys::contain_volatile_functions(node)
                && !pg_sys::contain_subplans(node);
            is_constant.then(|| {
                self.operands.push(node);
                self.operands.len() - 1
            })
        }
    }
}

/// # Safety
/// A node or null.
pub(super) unsafe fn without_relabel(mut node: *mut pg_sys::Node) -> *mut pg_sys::Node {
    // SAFETY: promised by the caller.
    unsafe {
        while !node.is_null() && (*node).type_ == pg_sys::NodeTag::T_RelabelType {
            node = (*node.cast::<pg_sys::RelabelType>()).arg.cast();
        }
        node
    }
}

/// The comparison that an operator makes; None for any other operator. Both sides have one type, or are integers.
pub(super) fn operator_of(number: pg_sys::Oid) -> Option<Operator> {
    let in_families = |number: pg_sys::Oid| {
        FAMILIES.iter().find_map(|family| {
            // SAFETY: syscache look-ups.
            let (strategy, types) = unsafe {
                let family = pg_sys::Oid::from(*family);
                let strategy = pg_sys::get_op_opfamily_strategy(number, family);
                if strategy == 0 {
                    return None;
                }
                let (mut again, mut left, mut right) = (0, pg_sys::InvalidOid, pg_sys::InvalidOid);
                pg_sys::get_op_opfamily_properties(
                    number,
                    family,
                    false,
                    &raw mut again,
                    &raw mut left,
                    &raw mut right,
                );
                (strategy, (left, right))
            };
            let integer = |oid| matches!(oid, pg_sys::INT2OID | pg_sys::INT4OID | pg_sys::INT8OID);
            let comparable = types.0 == types.1 || integer(types.0) && integer(types.1);
            Operator::of_strategy(strategy).filter(|_| comparable)
        })
    };
    if number == pg_sys::InvalidOid {
        return None;
    }
    in_families(number).or_else(|| {
        // SAFETY: a syscache look-up.
        let negator = unsafe { pg_sys::get_negator(number) };
        let equal = negator != pg_sys::InvalidOid && in_families(negator) == Some(Operator::Equal);
        equal.then_some(Operator::NotEqual)
    })
}

pub(super) fn collation_of(oid: pg_sys::Oid) -> Collation {
    const C: u32 = 950;
    const POSIX: u32 = 951;
    match oid.to_u32() {
        0 | C | POSIX => Collation::Bytes,
        100 => Collation::Default,
        // SAFETY: a syscache look-up.
        _ if unsafe { pg_sys::get_collation_isdeterministic(oid) } => Collation::Deterministic,
        _ => Collation::Nondeterministic,
    }
}

/// # Safety
/// A C string or null.
pub(super) unsafe fn text(string: *const std::ffi::c_char) -> String {
    if string.is_null() {
        return String::new();
    }
    // SAFETY: promised by the caller.
    unsafe { CStr::from_ptr(string) }.to_string_lossy().into_owned()
}
