//! The command aggregate.

use super::cursors::{self, FIRST_BATCH, Opening};
use super::find::{batch_size, size};
use super::reply::Reply;
use super::request::Request;
use crate::operation::arguments::{number, type_name};
use crate::operation::explaining::Verbosity;
use crate::operation::reading::{self, WITHOUT_COLLECTION};
use crate::operation::table;
use crate::pg::error::{Error, Result};
use docshard_core::error::{Kind, error};
use serde_json::Value as Json;

/// Returns the namespace that the first field names: a collection, or 1 for a pipeline without one.
pub fn namespace(request: &Request<'_>) -> Result<String> {
    if request.target.is_string() {
        return request.namespace();
    }
    match number(request.target).map(|number| number.to_f64() == 1.0) {
        Some(true) => Ok(format!("{}.{WITHOUT_COLLECTION}", request.db)),
        Some(false) => {
            let message = "Invalid command format: the 'aggregate' field must specify a collection name or 1";
            Err(Error::new(Kind::BadValue, message))
        }
        None => Err(error!(Kind::InvalidNamespace, "collection name has invalid type: {}", type_name(request.target))),
    }
}

/// Explains the command.
pub fn explain(request: &Request<'_>, verbosity: Verbosity) -> Result<Json> {
    reading::explain_aggregate(&namespace(request)?, request.json("pipeline"), &request.fields, verbosity)
}

/// Runs the command. Its result may have any number of documents, so it is always read from a portal.
pub fn aggregate(request: &Request<'_>) -> Result<Reply> {
    request.check_right(&table::AGGREGATE)?;
    let batch = batch_size(request)?;
    if request.fields.flag("explain") {
        if request.generic.get("writeConcern").is_some() {
            let message = "Aggregation explain does not support the 'writeConcern' option";
            return Err(Error::new(Kind::FailedToParse, message));
        }
        return Ok(Reply::of(explain(request, Verbosity::default())?));
    }
    let namespace = namespace(request)?;
    let opening = Opening {
        namespace: &namespace,
        batch: size(batch, FIRST_BATCH),
        single_batch: false,
        may_expire: true,
        sole: request.sole,
    };
    let pipeline = request.json("pipeline").to_string();
    let mut options = request.fields.as_options(table::AGGREGATE.options);
    if let Some(read_concern) = request.read_concern() {
        options["readConcern"] = read_concern.clone();
    }
    let options = options.to_string();
    Ok(cursors::open(&opening, &table::AGGREGATE, &pipeline, &options)?.reply("firstBatch", &namespace))
}
