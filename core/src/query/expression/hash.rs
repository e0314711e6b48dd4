//! Hashes of strings and binary data: `$hash` and `$hexHash`.

use super::node::Call;
use super::parse::{Arguments, Operator, Parameter, required};
use crate::budget;
use crate::error::{Kind, Result, bail};
use crate::query::operand::Operand;
use crate::values::document::value::Value;
use md5::{Digest, Md5};
use sha2::Sha256;
use xxhash_rust::xxh64::xxh64;

pub(super) const OPERATORS: &[Operator] = &[
    Operator::new("$hash", Arguments::Named(PARAMETERS, [9, 9]), |call| {
        Ok(hash(call)?.map_or(Operand::NULL, |bytes| Operand::Made(Value::Binary(0, bytes))))
    }),
    Operator::new("$hexHash", Arguments::Named(PARAMETERS, [9, 9]), |call| {
        Ok(hash(call)?.map_or(Operand::NULL, |bytes| Operand::Made(Value::String(hex::encode_upper(bytes)))))
    }),
];

const PARAMETERS: &[Parameter] = &[required("input", 9), required("algorithm", 9)];

/// The hash; None for null.
fn hash(call: &Call<'_>) -> Result<Option<Vec<u8>>> {
    let algorithm = call.argument(1)?;
    let algorithm = call.text(&algorithm, "'algorithm'", Kind::FailedToParse.code())?;
    let of = match algorithm {
        "md5" => |bytes: &[u8]| Md5::digest(bytes).to_vec(),
        "sha256" => |bytes: &[u8]| Sha256::digest(bytes).to_vec(),
        "xxh64" => |bytes: &[u8]| xxh64(bytes, 0).to_be_bytes().to_vec(),
        other => bail!(Kind::BadValue, "{} does not know the algorithm '{other}'", call.name),
    };
    let Some(input) = call.argument(0)?.non_null() else { return Ok(None) };
    let type_name = input.type_name();
    let bytes = match input.into_value() {
        Value::String(text) => text.into_bytes(),
        Value::Binary(_, bytes) => bytes,
        _ => bail!(Kind::TypeMismatch, "{} requires a string or binary data, found: {type_name}", call.name),
    };
    budget::bytes(bytes.len());
    Ok(Some(of(&bytes)))
}
