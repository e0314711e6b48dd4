//! Translates orders of SQL to MongoDB's sorts, where both are the same.
//!
//! MongoDB's ascending order has null and missing values first, SQL's has them last. So the orders of a column that may be NULL are the
//! same only with `ASC NULLS FIRST` or `DESC NULLS LAST`. A column is never NULL if it is `NOT NULL`, or if a condition compares it with a
//! value.

use super::column::Layout;
use super::matching::orders_by_bytes;
use crate::pg::fdw::SortKey;
use crate::pg::fdw::value::Scalar;
use serde_json::{Map, Value as Json};

/// The sort specification of an order; None if PostgreSQL must sort.
pub fn specification(layout: &Layout, keys: &[SortKey], bytes_by_default: &dyn Fn() -> bool) -> Option<Json> {
    // A value that does not fit would be read as NULL, whose place in the order is another one.
    if !layout.is_strict() {
        return None;
    }
    let mut sort = Map::new();
    for key in keys {
        let column = layout.column(key.column).filter(|column| column.is_scalar())?;
        let agrees = match column.kind.scalar {
            Scalar::Bool | Scalar::Int2 | Scalar::Int4 | Scalar::Int8 | Scalar::Uuid => true,
            Scalar::Date | Scalar::Timestamp | Scalar::TimestampTz => true,
            Scalar::Text => orders_by_bytes(key.collation, bytes_by_default),
            _ => false,
        };
        let nulls_agree = column.not_null || key.is_not_null || key.nulls_first != key.descending;
        if !agrees || !nulls_agree || sort.contains_key(&column.path) {
            return None;
        }
        sort.insert(column.path.clone(), if key.descending { (-1).into() } else { 1.into() });
    }
    Some(Json::Object(sort))
}

/// JSON with blanks, as PostgreSQL prints jsonb.
pub fn readable(json: &Json) -> String {
    match json {
        Json::Object(fields) => {
            let fields: Vec<String> = fields
                .iter()
                .map(|(name, value)| format!("{}: {}", Json::from(name.as_str()), readable(value)))
                .collect();
            format!("{{{}}}", fields.join(", "))
        }
        Json::Array(items) => format!("[{}]", items.iter().map(readable).collect::<Vec<_>>().join(", ")),
        scalar => scalar.to_string(),
    }
}
