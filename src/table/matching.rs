//! The comparisons of a column with an operand that MongoDB can make as SQL does.

use super::column::Column;
use crate::pg::fdw::clause::{Collation, Operator};
use crate::pg::fdw::value::{Kind, Scalar};
use serde::{Deserialize, Serialize};

/// How values of a column are compared with an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Matching {
    Text,
    ObjectId,
    /// with the least and the greatest value of the column's type
    Integer {
        least: i64,
        greatest: i64,
    },
    Bool,
    Float,
    Numeric,
    Date,
    Timestamp,
    Uuid,
}

impl Matching {
    /// How a column's values are compared with an operand of this type; None: only PostgreSQL can compare them.
    pub fn of(column: &Column, operand: Kind) -> Option<Self> {
        if !column.is_scalar() || operand.is_array || column.path.is_empty() {
            return None;
        }
        let (least, greatest) = column.integers();
        Some(match (column.kind.scalar, operand.scalar) {
            (Scalar::Text, Scalar::Text) | (Scalar::Bytea, Scalar::Bytea) if column.is_object_id => Self::ObjectId,
            (Scalar::Text, Scalar::Text) => Self::Text,
            (Scalar::Int2 | Scalar::Int4 | Scalar::Int8, Scalar::Int2 | Scalar::Int4 | Scalar::Int8) => {
                Self::Integer { least, greatest }
            }
            (Scalar::Bool, Scalar::Bool) => Self::Bool,
            (Scalar::Float8, Scalar::Float8) => Self::Float,
            (Scalar::Numeric, Scalar::Numeric) if column.kind.rounding.is_none() => Self::Numeric,
            (Scalar::Date, Scalar::Date) => Self::Date,
            (Scalar::Timestamp, Scalar::Timestamp) | (Scalar::TimestampTz, Scalar::TimestampTz) => Self::Timestamp,
            (Scalar::Uuid, Scalar::Uuid) => Self::Uuid,
            _ => return None,
        })
    }

    /// True if filters of such comparisons are exact.
    pub fn is_exact(self) -> bool {
        !matches!(self, Self::Float | Self::Numeric)
    }

    /// True if MongoDB can compare by this operator.
    pub fn has(self, operator: Operator, collation: Collation, bytes_by_default: impl Fn() -> bool) -> bool {
        let is_equality = matches!(operator, Operator::Equal | Operator::NotEqual);
        match self {
            Self::ObjectId => is_equality && collation != Collation::Nondeterministic,
            Self::Text if is_equality => collation != Collation::Nondeterministic,
            Self::Text => orders_by_bytes(collation, bytes_by_default),
            _ => true,
        }
    }
}

/// True if a collation orders strings by their bytes.
pub fn orders_by_bytes(collation: Collation, bytes_by_default: impl Fn() -> bool) -> bool {
    collation == Collation::Bytes || collation == Collation::Default && bytes_by_default()
}
