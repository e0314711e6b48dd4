//! Documents that a recipient could not store, because another document had the same key.

use crate::pg::error::{Error, Result};
use docshard_core::error::{Kind, error};
use docshard_core::values::document::ext_json::to_json;
use docshard_core::values::key::encode::decode;

/// If a batch has more refused documents, the change fails: they cannot all have changed in between, so there are duplicates.
const MAX_REFUSED: usize = 20_000;

/// The key of a document at its donor: `skey` and `id`.
pub(super) type DonorKey = (Vec<u8>, Vec<u8>);

/// Reads what a recipient reports.
///
/// # Errors
/// `BadValue` for other bytes; [`duplicate`] for more than [`MAX_REFUSED`].
pub(super) fn read(namespace: &str, mut bytes: &[u8]) -> Result<Vec<DonorKey>> {
    let truncated = || error!(Kind::BadValue, "malformed list of refused documents: truncated");
    let mut keys = Vec::new();
    while !bytes.is_empty() {
        let (skey, rest) = part(bytes).ok_or_else(truncated)?;
        let (id, rest) = part(rest).ok_or_else(truncated)?;
        keys.push((skey.to_vec(), id.to_vec()));
        bytes = rest;
        if keys.len() > MAX_REFUSED {
            return Err(duplicate(namespace, keys.first()));
        }
    }
    Ok(keys)
}

fn part(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_at_checked(4)?;
    rest.split_at_checked(u32::from_le_bytes(length.try_into().ok()?) as usize)
}

/// The error for documents that would have the same key in the new layout.
pub(super) fn duplicate(namespace: &str, key: Option<&DonorKey>) -> Error {
    let error = error!(
        Kind::DuplicateKey,
        "E11000 duplicate key error collection: {namespace}: in the new layout a document would have the same unique key as another one"
    );
    let error = match key.and_then(|(_, id)| decode(id).ok()) {
        Some((id, _)) => error.with_detail(format!("Its _id is {}.", to_json(&id))),
        None => error,
    };
    error.with_hint("With the new shard key, two documents must not have the same shard key and _id, nor the same key of a unique index.")
}

#[cfg(any(test, feature = "pg_test"))]
#[pgrx::pg_schema]
mod tests {
    use super::*;
    use pgrx::pg_test;

    #[pg_test]
    fn a_malformed_list_of_refused_documents_is_an_error() {
        let list = [&2_u32.to_le_bytes()[..], b"ab", &1_u32.to_le_bytes(), b"c"].concat();
        assert_eq!(read("a.b", &list).unwrap(), [(b"ab".to_vec(), b"c".to_vec())]);
        assert_eq!(read("a.b", &[]).unwrap(), []);
        for length in 1..list.len() {
            assert_eq!(read("a.b", &list[..length]).unwrap_err().kind, Kind::BadValue, "{length}");
        }
        assert_eq!(read("a.b", &[u8::MAX; 8]).unwrap_err().kind, Kind::BadValue);
        let many = vec![0; 8 * (MAX_REFUSED + 1)];
        assert_eq!(read("a.b", &many).unwrap_err().kind, Kind::DuplicateKey);
    }
}
