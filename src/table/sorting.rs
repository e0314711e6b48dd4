//! Orders of columns that MongoDB has, too.
//!
//! MongoDB's ascending order has null and missing values first, SQL's last. So the order of a column with NULLs is MongoDB's only with
//! `NULLS FIRST`, or `DESC NULLS LAST`; a column that is `NOT NULL`, or that a condition compares with a value, has none.

use super::column::Layout;
use super::matching::orders_by_bytes;
use crate::pg::fdw::SortKey;
use crate::pg::fdw::value::Scalar;
use serde_json::{Map, Value as Json};

/// The sort specification of an order; None if PostgreSQL must sort.
pub fn specification(layout: &Layout, keys: &[SortKey], bytes_by_default: &dyn Fn() -> bool) -> Option<Json> {
    // A value that does not fit would be NULL, and in another place.
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
