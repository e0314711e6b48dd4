//! Validators of collections. The catalog has the options as users have set them. Each shard of the collection has the validator, with
//! which it checks documents where rows are written (`storage::rows::validation`).
//!
//! INVARIANT: a shard gets the validator in the transaction that gives it the collection's table, or that changes the validator. A change
//! excludes moves and writers, so no document is written under the former validator after the change has committed.

use super::{namespace, nul};
use crate::catalog::cluster::identity::check_may_change;
use crate::catalog::cluster::move_exclusion;
use crate::catalog::cluster::nodes::call_on_all;
use crate::catalog::{cache, change};
use crate::pg::error::{Error, Result};
use crate::store::{collections, placements};
use docshard_core::cluster::chunk_map::ShardId;
use docshard_core::error::sqlstate::UNDEFINED_FUNCTION;
use docshard_core::error::{Kind, bail, error};
use docshard_core::query::validator::VALIDATOR;
use docshard_core::routing::model::Validation;
use docshard_core::routing::protocol::table::SetValidator;
use docshard_core::values::collation::Collator;
use serde_json::{Map, Value as Json, json};

/// Checks a collection's options of validation; None if none is set.
/// Errors: `InvalidOptions` for a collection of an internal database; those of [`Validation::check`].
pub fn of_options(name: &str, options: Map<String, Json>, collation: Option<&Collator>) -> Result<Option<Validation>> {
    let validation = Validation::of(options, collation);
    if let Some(validation) = &validation {
        check_database(name)?;
        nul::refuse(validation.options.values())?;
        validation.check()?;
    }
    Ok(validation)
}

fn check_database(name: &str) -> Result<()> {
    let (database, _) = namespace::split(name)?;
    if namespace::is_internal(database) {
        bail!(Kind::InvalidOptions, "Document validators are not allowed on collections in the {database} database");
    }
    Ok(())
}

/// Gives shards the validator of a collection whose table they have just got.
/// Errors: `IllegalOperation` for a shard of an earlier release; the shards' errors.
pub(in crate::catalog) fn place(
    shards: &[ShardId],
    id: i32,
    token: i64,
    validation: Option<&Validation>,
) -> Result<()> {
    place_by(id, token, validation, |set| call_on_all(shards, set))
}

/// Like [`place`]; `call` sends the validator to the shard or shards.
pub fn place_by(
    id: i32,
    token: i64,
    validation: Option<&Validation>,
    call: impl FnOnce(&SetValidator<'_>) -> Result<()>,
) -> Result<()> {
    let Some(definition) = validation.and_then(Validation::for_shards) else { return Ok(()) };
    call(&SetValidator { collection: id, token, definition: Some(&definition) }).map_err(outdated)
}

/// Translates the error of a shard of an earlier release, which cannot check documents.
fn outdated(error: Error) -> Error {
    if error.sqlstate != UNDEFINED_FUNCTION || error.is_ours {
        return error;
    }
    let refused = error!(Kind::IllegalOperation, "a collection with a validator needs shards of this release");
    refused.at_place_of(&error).with_hint("Update docshard there, and run ALTER EXTENSION docshard UPDATE.")
}

/// Changes a collection's options of validation. Options that are not given stay.
/// Errors: those of [`check_may_change`], [`namespace::check_writable`], [`move_exclusion::lock`], [`of_options`] and [`place`].
pub fn change(name: &str, given: Map<String, Json>) -> Result<()> {
    check_may_change()?;
    namespace::check_writable(name)?;
    let locked = move_exclusion::lock(name)?;
    let collection = cache::get(name)?;
    let before = collection.validation.as_deref();
    let mut options = before.map(|before| before.options.clone()).unwrap_or_default();
    let is_given = given.contains_key(VALIDATOR);
    options.extend(given);
    let after = of_options(name, options, collection.collation.as_deref())?;
    let definition = after.as_ref().and_then(Validation::for_shards);
    // An unchanged or removed validator is sent, too: a shard may have lost an earlier change.
    if is_given || definition.is_some() || before.and_then(Validation::for_shards).is_some() {
        let set = SetValidator { collection: locked.id, token: locked.token, definition: definition.as_deref() };
        call_on_all(&placements::shards(locked.id)?, &set).map_err(outdated)?;
    }
    let options = after.map(|after| Json::Object(after.options));
    collections::set_validation(locked.id, options.as_ref().map(Json::to_string).as_deref())?;
    change::log("collMod", Some(name), &json!({"validation": options}))?;
    change::touch(locked.id)
}
