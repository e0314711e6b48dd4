//! Groups of a foreign table's rows: a pipeline with `$group`, whose results become rows.
//!
//! The results are the same as SQL's:
//!
//! * A value that does not fit its column is an error, as it is if the row is read. Key values that do not fit form groups of
//!   their own. For each other column that the statement reads, each group also returns the `_id` and type of one value that does
//!   not fit, if there is one. This is omitted for columns where a condition proves that all values fit: an equality on `_id` or
//!   a field of the shard key, which cannot be arrays.
//! * Null and missing values form one group. Equal integers form one group whatever their types, and so do strings with the same bytes.
//! * Sums of integers are computed in integers, and those of bigint in decimals of 34 digits; never in doubles. `avg` divides as numeric.
//! * `min` and `max` are computed only for types that MongoDB and SQL order alike; strings only if SQL orders them by their bytes.

use super::column::{Column, Layout, Read};
use super::fitting::{fits, unproven, value_of};
use super::matching::orders_by_bytes;
use super::scan::{CollectionScan, Request};
use crate::operation::arguments::{Arguments, Form};
use crate::operation::reading;
use crate::operation::table::AGGREGATE;
use crate::pg::error::{Error, Result};
use crate::pg::fdw::clause::Collation;
use crate::pg::fdw::value::{Scalar, SqlValue};
use crate::pg::fdw::{AggregateCall, Function, Groups, Misfit, Scan, ScanPlan};
use crate::router::reads::aggregate::Results;
use crate::router::reads::find;
use docshard_core::error::{Kind, bail, error};
use docshard_core::values::document::ext_json;
use docshard_core::values::document::number::{Decimal, Number};
use docshard_core::values::document::raw::{self, RawObject, RawValue};
use docshard_core::values::document::value::Value;
use serde_json::{Map, Value as Json, json};
use std::rc::Rc;

/// True if the shards compute these groups exactly as SQL does.
pub fn can(layout: &Layout, groups: &Groups, bytes_by_default: &dyn Fn() -> bool) -> bool {
    let column = |number: i16| layout.column(number).filter(|column| fits(column).is_some());
    let key = |(number, collation): &(i16, Collation)| {
        column(*number)
            .is_some_and(|column| column.kind.scalar != Scalar::Text || *collation != Collation::Nondeterministic)
    };
    let call = |call: &AggregateCall| {
        let Some(number) = call.column else { return call.function == Function::Count };
        column(number).is_some_and(|column| match (call.function, column.kind.scalar) {
            (Function::Count, _) => true,
            (_, Scalar::Int2 | Scalar::Int4 | Scalar::Int8) => true,
            (Function::Sum | Function::Avg, _) => false,
            (_, Scalar::Date | Scalar::Timestamp | Scalar::TimestampTz) => true,
            (_, Scalar::Text) => orders_by_bytes(call.collation, bytes_by_default),
            _ => false,
        })
    };
    // With `on_mismatch 'null'`, a value that does not fit would have to be NULL, which the expressions do not do. So no column
    // may be read.
    let is_read = !groups.keys.is_empty() || groups.calls.iter().any(|call| call.column.is_some());
    (layout.is_strict() || !is_read)
        && groups.keys.iter().all(key)
        && groups.calls.iter().all(call)
        && groups.compared.iter().all(|number| column(*number).is_some())
}

/// A sum of integers as text.
fn integer(sum: &Number) -> Result<String> {
    match sum {
        Number::Decimal(Decimal::Finite(sum)) if sum.is_integer() => Ok(sum.with_scale(0).to_string()),
        sum => sum
            .as_i64()
            .map(|sum| sum.to_string())
            .ok_or_else(|| error!(Kind::InternalError, "a sum of integers is none")),
    }
}

pub struct GroupScan {
    scan: CollectionScan,
    groups: Groups,
    /// the stages before `$group`, and the options of the pipeline, of the last start
    asked: (Vec<Json>, Json),
    found: Option<Results>,
    /// if there are no groups, one row must still be returned: that of a statement without keys
    is_empty_due: bool,
}

impl GroupScan {
    pub fn new(layout: Rc<Layout>, plan: &ScanPlan, groups: &Groups, is_of_other_user: bool) -> Result<Self> {
        let mut columns = groups.compared.clone();
        columns.extend(groups.keys.iter().map(|(number, _)| *number));
        columns.extend(groups.calls.iter().filter_map(|call| call.column));
        let scan = CollectionScan::new(layout, plan, &columns, is_of_other_user)?;
        Ok(Self { scan, groups: groups.clone(), asked: Default::default(), found: None, is_empty_due: false })
    }

    fn column(&self, number: i16) -> Result<&Column> {
        let found = self.scan.columns().iter().find(|column| column.number == number);
        found.ok_or_else(|| error!(Kind::InternalError, "a column of a foreign table is missing"))
    }

    /// The stages before `$group`, which select documents.
    fn selection(&self, filter: &Json) -> Result<Vec<Json>> {
        let mut stages = Vec::new();
        if filter.as_object().is_some_and(|filter| !filter.is_empty()) {
            stages.push(json!({"$match": filter}));
        }
        let hiding: Vec<Json> =
            unproven(&self.scan)?.into_iter().filter(|column| self.scan.hides(column)).filter_map(fits).collect();
        if !hiding.is_empty() {
            stages.push(json!({"$match": {"$expr": {"$and": hiding}}}));
        }
        Ok(stages)
    }

    /// The expression of a group's key: null and missing are one value. Undefined, which is equal to null but fits no column, becomes MinKey.
    /// A single key is not wrapped in an object, which shards would make for each document.
    fn key(&self) -> Result<Json> {
        let columns = self.groups.keys.iter().map(|(number, _)| self.column(*number)).collect::<Result<Vec<_>>>()?;
        let field = |(at, column): (usize, &&Column)| {
            let value = value_of(column);
            let is_null = json!({"$in": [{"$type": value}, ["missing", "null"]]});
            let other = json!({"$cond": [is_null, null, {"$literal": {"$minKey": 1}}]});
            (format!("k{at}"), json!({"$cond": [{"$gt": [value, null]}, value, other]}))
        };
        Ok(match *columns {
            [] => Json::Null,
            [column] => value_of(column),
            _ => Json::Object(columns.iter().enumerate().map(field).collect()),
        })
    }

    fn group(&self) -> Result<Json> {
        let mut group = Map::new();
        group.insert("_id".to_owned(), self.key()?);
        for (at, call) in self.groups.calls.iter().enumerate() {
            let Some(number) = call.column else {
                group.insert(format!("n{at}"), json!({"$sum": 1}));
                continue;
            };
            let column = self.column(number)?;
            let value = value_of(column);
            // A value that is not greater than null is null or missing, or does not fit.
            let count = if column.not_null { json!(1) } else { json!({"$cond": [{"$gt": [value, null]}, 1, 0]}) };
            match call.function {
                Function::Min => group.insert(format!("v{at}"), json!({"$min": value})),
                Function::Max => group.insert(format!("v{at}"), json!({"$max": value})),
                Function::Count => group.insert(format!("n{at}"), json!({"$sum": count})),
                Function::Sum | Function::Avg => {
                    let converted = |input: Json, to| json!({"$convert": {"input": input, "to": to, "onError": null, "onNull": null}});
                    // The conversion from double to decimal keeps only 15 digits; by way of long, all digits are kept.
                    let long = converted(value, "long");
                    let number = if column.kind.scalar == Scalar::Int8 { converted(long, "decimal") } else { long };
                    group.insert(format!("v{at}"), json!({"$sum": number}));
                    group.insert(format!("n{at}"), json!({"$sum": count}))
                }
            };
        }
        let is_key = |column: &Column| self.groups.keys.iter().any(|(number, _)| *number == column.number);
        for column in unproven(&self.scan)?.into_iter().filter(|column| !self.scan.hides(column) && !is_key(column)) {
            let found = json!({"id": "$_id", "type": {"$type": value_of(column)}});
            let misfit = json!({"$cond": [fits(column), null, found]});
            group.insert(format!("m{}", column.number), json!({"$max": misfit}));
        }
        Ok(json!({"$group": group}))
    }

    fn read(&self, stages: Vec<Json>) -> Result<Results> {
        let namespace = &self.scan.layout().options.namespace;
        let arguments = Arguments::parse(&self.asked.1, Form::Options(AGGREGATE.function), AGGREGATE.options)?;
        Ok(match reading::over_collated_view(namespace, || Ok(stages.clone()))? {
            Some(results) => results,
            None => reading::aggregate(namespace, &stages.into(), &arguments)?,
        })
    }

    /// The error of a group whose key has a value that does not fit this column. It names one such document, if there still is one.
    fn misfit_of_key(&self, column: &Column, type_name: &str) -> Result<Error> {
        let does_not_fit = json!({"$match": {"$expr": {"$not": [fits(column)]}}});
        let mut stages = self.asked.0.clone();
        stages.extend([does_not_fit, json!({"$limit": 1}), json!({"$project": {"type": {"$type": value_of(column)}}})]);
        let document = self.read(stages)?.next_document()?;
        let error =
            document.as_ref().and_then(|document| self.misfit_of(column, raw::document(document.bytes())?, "_id"));
        Ok(error.unwrap_or_else(|| self.scan.layout().misfit(column, type_name, "")))
    }

    /// The error of a value that does not fit. `found` has the value's type in the field `type`, and the `_id` of the document in
    /// the field that `id` names.
    fn misfit_of(&self, column: &Column, found: RawObject<'_>, id: &str) -> Option<Error> {
        let text = |name: &str| found.get(name).map(|value| ext_json::to_json(&Value::from_raw(value)));
        let type_name = text("type")?.as_str()?.to_owned();
        let type_name = if type_name == "missing" { "null" } else { &type_name };
        Some(self.scan.misfit(column, type_name, &text(id).unwrap_or_default().to_string()))
    }

    /// The error of a value in the group that does not fit its column; None if all values fit.
    fn misfit(&self, group: RawObject<'_>) -> Option<Error> {
        self.scan.columns().iter().find_map(|column| {
            let Some(RawValue::Object(found)) = group.get(&format!("m{}", column.number)) else { return None };
            self.misfit_of(column, found, "id")
        })
    }

    /// The result of an aggregate call for a group; None for NULL.
    fn result(&self, at: usize, call: &AggregateCall, group: RawObject<'_>) -> Result<Option<SqlValue>> {
        let number = |name: &str| match group.get(&format!("{name}{at}")).map(Value::from_raw) {
            Some(Value::Number(number)) => Ok(number),
            _ => Err(error!(Kind::InternalError, "an aggregate of a foreign scan is not a number")),
        };
        let count = || number("n").map(|number| number.to_i64_truncated());
        Ok(match (call.function, call.column) {
            (Function::Count, _) | (_, None) => Some(SqlValue::Int(count()?)),
            (Function::Sum | Function::Avg, _) if count()? == 0 => None,
            (Function::Sum, Some(column)) if self.column(column)?.kind.scalar != Scalar::Int8 => {
                let sum = number("v")?.as_i64().ok_or_else(|| error!(Kind::Overflow, "bigint out of range"))?;
                Some(SqlValue::Int(sum))
            }
            (Function::Sum, _) => Some(SqlValue::Numeric(integer(&number("v")?)?)),
            (Function::Avg, _) => Some(SqlValue::Quotient(integer(&number("v")?)?, count()?)),
            (Function::Min | Function::Max, Some(column)) => {
                let value = group.get(&format!("v{at}")).unwrap_or(RawValue::Null);
                match self.column(column)?.value(value) {
                    Read::Value(value) => Some(value),
                    Read::Null => None,
                    Read::Misfit(_) => {
                        bail!(Kind::InternalError, "an aggregate of a foreign scan does not fit its column")
                    }
                }
            }
        })
    }

    /// The row of a statement without keys over no documents: counts are 0, and all other results are NULL.
    fn put_empty(&self, put: &mut dyn FnMut(i16, SqlValue) -> Result<()>) -> Result<()> {
        for (at, _) in self.groups.calls.iter().enumerate().filter(|(_, call)| call.function == Function::Count) {
            put(at as i16 + 1, SqlValue::Int(0))?;
        }
        Ok(())
    }
}

impl Scan for GroupScan {
    fn start(&mut self, operands: Vec<Option<SqlValue>>, _limit: Option<u64>) -> Result<()> {
        let namespace = &self.scan.layout().options.namespace;
        self.is_empty_due = self.groups.is_whole;
        let Some(Request { filter, options }) = self.scan.request(&operands, None)? else {
            return find::check(namespace);
        };
        let collation: Map<String, Json> =
            options.get("collation").map(|collation| ("collation".to_owned(), collation.clone())).into_iter().collect();
        let selection = self.selection(&filter)?;
        let mut stages = selection.clone();
        stages.push(self.group()?);
        self.asked = (selection, collation.into());
        self.found = Some(self.read(stages)?);
        Ok(())
    }

    fn next_row(&mut self, put: &mut dyn FnMut(i16, SqlValue) -> Result<()>) -> Result<bool> {
        let document = match &mut self.found {
            Some(found) => found.next_document()?,
            None => None,
        };
        let Some(document) = document else {
            self.found = None;
            if std::mem::take(&mut self.is_empty_due) {
                self.put_empty(put)?;
                return Ok(true);
            }
            return Ok(false);
        };
        self.is_empty_due = false;
        let Some(group) = raw::document(document.bytes()) else {
            bail!(Kind::InternalError, "a group is not an object");
        };
        if let Some(misfit) = self.misfit(group) {
            return Err(misfit);
        }
        let keys = self.groups.keys.len();
        for (at, (number, _)) in self.groups.keys.iter().enumerate() {
            let value = match group.get("_id") {
                Some(RawValue::Object(key)) if keys > 1 => key.get(&format!("k{at}")),
                value => value.filter(|_| keys == 1),
            };
            let column = self.column(*number)?;
            match column.value(value.unwrap_or(RawValue::Null)) {
                Read::Value(value) => put(at as i16 + 1, value)?,
                Read::Null if column.not_null => return Err(self.misfit_of_key(column, "null")?),
                Read::Null => {}
                Read::Misfit(type_name) => return Err(self.misfit_of_key(column, type_name)?),
            }
        }
        for (at, call) in self.groups.calls.iter().enumerate() {
            if let Some(value) = self.result(at, call, group)? {
                put((keys + at) as i16 + 1, value)?;
            }
        }
        Ok(true)
    }

    fn take_misfit(&mut self) -> Option<Misfit> {
        None
    }

    fn refuse_newer(&self, command: u32) -> Result<()> {
        self.scan.refuse_newer(command)
    }

    fn stop(&mut self) {
        self.found = None;
    }

    fn explain(
        &self,
        operands: Vec<Option<SqlValue>>,
        _limit: Option<u64>,
        verbose: bool,
    ) -> Result<Vec<(String, String)>> {
        let mut shown = self.scan.explain(operands, None, verbose)?;
        let name = |number: i16| self.column(number).map(|column| column.name.clone());
        let keys = self.groups.keys.iter().map(|(number, _)| name(*number)).collect::<Result<Vec<_>>>()?;
        let call = |call: &AggregateCall| {
            let function = format!("{:?}", call.function).to_lowercase();
            Ok(format!("{function}({})", call.column.map_or_else(|| Ok("*".to_owned()), name)?))
        };
        let calls = self.groups.calls.iter().map(call).collect::<Result<Vec<String>>>()?;
        let place = self.scan.place()?;
        shown.extend((!keys.is_empty()).then(|| (format!("Group at {place}"), keys.join(", "))));
        shown.extend((!calls.is_empty()).then(|| (format!("Aggregates at {place}"), calls.join(", "))));
        Ok(shown)
    }
}
