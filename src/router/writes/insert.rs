//! Inserts documents. The router prepares them, groups them by shard and sends them in pieces, so that shards insert the first
//! ones while it prepares the next. An unordered insert must know for each document whether its key is a duplicate, so it sends
//! one batch to each shard.

use super::once;
use crate::catalog::collections::namespace;
use crate::catalog::collections::{collection, duplicate};
use crate::pg::client::sole_call;
use crate::pg::error::{Error, Result};
use crate::router::dispatch::feed::Feed;
use crate::router::dispatch::reading;
use crate::router::dispatch::writing::{self, LockRange, Written};
use crate::router::fresh_map::with_fresh_map;
use crate::router::session;
use docshard_core::cluster::chunk_map::ShardId;
use docshard_core::error::{Kind, bail, error};
use docshard_core::query::validator;
use docshard_core::routing::model::Collection;
use docshard_core::routing::plan::conditions::Conditions;
use docshard_core::routing::plan::destination::{self, Destination};
use docshard_core::routing::plan::statement::{Statement, first_params};
use docshard_core::routing::protocol::checked::Parameter;
use docshard_core::routing::protocol::documents::{FindViolations, InsertDocuments, Refused, pack};
use docshard_core::routing::protocol::sql;
use docshard_core::sql::column::Column;
use docshard_core::values::document::element::Element;
use docshard_core::values::document::value::Value;
use docshard_core::values::document::{normalise, raw};
use docshard_core::values::key::encode::encode;
use docshard_core::values::key::{KeyRange, KeyRanges, MAX_KEY_BYTES};
use std::borrow::Borrow;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU32, Ordering};

/// Size limits of a batch: large enough to make the round trip cheap, small enough to keep memory flat.
const BATCH_DOCUMENTS: usize = 2000;
const BATCH_BYTES: usize = 8 * 1024 * 1024;
/// Bytes that are sent to shards before their answers are awaited. At that point fast shards wait for slow ones; after a stale
/// map all of these bytes are sent again.
const FEED_BYTES: usize = 32 * 1024 * 1024;
/// Bytes that are collected for a shard before they are sent. The first piece is small, so that the shard starts early. Each
/// further one is twice as large, up to [`PIECE_BYTES`], since inserting many index entries at once is faster.
const FIRST_PIECE_BYTES: usize = 32 * 1024;
const PIECE_BYTES: usize = 256 * 1024;

/// The present time as a timestamp. No two calls in one process return the same.
fn timestamp() -> (u32, u32) {
    static ORDINAL: AtomicU32 = AtomicU32::new(0);
    let seconds = u32::try_from(session::now() / 1000).unwrap_or(u32::MAX);
    (seconds, ORDINAL.fetch_add(1, Ordering::Relaxed).saturating_add(1))
}

/// A document that is ready to be stored, independent of the chunk map.
#[derive(Debug)]
pub struct Storable {
    pub bytes: Vec<u8>,
    pub id: Value,
    /// each attempt to insert it makes the same document: nothing in it was generated
    is_repeatable: bool,
    id_key: Vec<u8>,
}

impl Storable {
    /// Normalizes a new document, and gives it an `_id` if it has none, and times for its empty timestamps.
    pub fn new(bytes: &[u8]) -> Result<Self> {
        Self::of(bytes, true)
    }

    /// Takes a document that is stored already, as it is.
    pub fn of_stored(bytes: &[u8]) -> Result<Self> {
        Self::of(bytes, false)
    }

    fn of(bytes: &[u8], is_new: bool) -> Result<Self> {
        let document =
            raw::document(bytes).ok_or_else(|| error!(Kind::TypeMismatch, "a document must be a JSON object"))?;
        let mut is_repeatable = true;
        let stored = normalise::for_insert(document, || {
            is_repeatable = false;
            bson::oid::ObjectId::new().bytes()
        })?;
        let mut bytes = stored.bytes.into_owned();
        let object = raw::document(&bytes).ok_or_else(|| error!(Kind::InternalError, "a document was lost"))?;
        if is_new && let Some(timed) = normalise::with_times(object, timestamp)? {
            (bytes, is_repeatable) = (timed, false);
        }
        let object = raw::document(&bytes).ok_or_else(|| error!(Kind::InternalError, "a document was lost"))?;
        let id = object.get("_id").ok_or_else(|| error!(Kind::InvalidIdField, "document must have an _id"))?;
        let element = Element::of(id);
        let mut id_key = Vec::with_capacity(16);
        encode(&element, &mut id_key);
        let id = Value::from_element(&element);
        Ok(Self { bytes, id, is_repeatable, id_key })
    }

    fn parts<'a>(&'a self, skey: &'a [u8]) -> [&'a [u8]; 3] {
        [skey, &self.id_key, &self.bytes]
    }

    pub fn id_key(&self) -> &[u8] {
        &self.id_key
    }

    /// The home of a numbered insert that begins with this document. It is the same for each attempt, so it must not depend on an `_id`
    /// or a time that is generated: each attempt makes another one.
    fn home(&self, collection: &Collection) -> Result<Vec<u8>> {
        if self.is_repeatable { self.shard_key(collection) } else { Ok(Vec::new()) }
    }

    pub fn shard_key(&self, collection: &Collection) -> Result<Vec<u8>> {
        let key = if collection.key.is_unsharded() {
            Vec::new()
        } else {
            let object = raw::document(&self.bytes).expect("checked when it was made");
            collection.key.key_of(object)?
        };
        if key.len() + self.id_key.len() > MAX_KEY_BYTES {
            let size = key.len() + self.id_key.len();
            bail!(Kind::KeyTooLong, "shard key and _id are too long together: {size} bytes, at most {MAX_KEY_BYTES}");
        }
        Ok(key)
    }
}

/// A document or operation of a batch that failed.
#[derive(Debug)]
pub struct WriteError {
    /// the position in the batch
    pub index: usize,
    pub error: Error,
}

/// Documents that are prepared one at a time, when they are needed: shards insert the earlier ones in the meantime.
struct Incoming<'a> {
    made: Vec<Storable>,
    next: &'a mut dyn FnMut() -> Result<Option<Storable>>,
    ended: bool,
}

impl Incoming<'_> {
    /// True if there is a document at this position, at most one beyond those that have been prepared.
    fn has(&mut self, at: usize) -> Result<bool> {
        if at >= self.made.len() && !self.ended {
            match (self.next)()? {
                Some(document) => self.made.push(document),
                None => self.ended = true,
            }
        }
        Ok(at < self.made.len())
    }

    /// Returns the end of the batch that begins at `start`.
    fn batch_end(&mut self, start: usize) -> Result<usize> {
        let (mut end, mut bytes) = (start, 0);
        while end - start < BATCH_DOCUMENTS && bytes < BATCH_BYTES && self.has(end)? {
            bytes += self.made[end].bytes.len();
            end += 1;
        }
        Ok(end)
    }
}

/// Inserts all documents that `next` returns, and returns them; after an error none is inserted. `sole`: the caller does nothing else in
/// the client's transaction, which may be committed by the shard that writes last.
pub fn insert(
    namespace: &str,
    sole: bool,
    next: &mut dyn FnMut() -> Result<Option<Storable>>,
) -> Result<Vec<Storable>> {
    namespace::split(namespace)?;
    namespace::check_writable(namespace)?;
    let mut incoming = Incoming { made: Vec::new(), next, ended: false };
    let mut start = 0;
    while incoming.has(start)? {
        start = with_fresh_map(namespace, |collection| {
            let collection = match collection {
                Some(collection) => collection,
                None => {
                    // Prepare the first batch now: documents that are refused must not create a collection.
                    incoming.batch_end(start)?;
                    collection::create_implicitly(namespace)?
                }
            };
            insert_from(&collection, sole, &mut incoming, start)
        })?;
    }
    Ok(incoming.made)
}

pub fn insert_all(namespace: &str, documents: Vec<Storable>) -> Result<Vec<Storable>> {
    let mut documents = documents.into_iter();
    insert(namespace, false, &mut || Ok(documents.next()))
}

/// Inserts a batch that begins at `start` and returns its end.
fn insert_from(collection: &Collection, sole: bool, incoming: &mut Incoming<'_>, start: usize) -> Result<usize> {
    let feed = if incoming.has(start + 1)? { Feed::open(collection)? } else { None };
    let Some(mut feed) = feed else {
        let end = incoming.batch_end(start)?;
        let is_last = sole && !incoming.has(end)?;
        insert_at_once(collection, &incoming.made[start..end], is_last)?;
        return Ok(end);
    };
    let mut pieces: BTreeMap<ShardId, (Vec<u8>, usize)> = BTreeMap::new();
    let (mut end, mut bytes) = (start, 0);
    let mut sent = Ok(());
    while sent.is_ok() && bytes < FEED_BYTES && incoming.has(end)? {
        let document = &incoming.made[end];
        let key = document.shard_key(collection)?;
        let shard = collection.map.owner(&key);
        let (piece, enough) = pieces.entry(shard).or_insert((Vec::new(), FIRST_PIECE_BYTES));
        pack(piece, document.parts(&key));
        if piece.len() >= *enough {
            sent = feed.send(shard, &insertion(collection, std::mem::take(piece)).into());
            *enough = PIECE_BYTES.min(*enough * 2);
        }
        bytes += document.bytes.len();
        end += 1;
    }
    for (shard, (piece, _)) in pieces {
        if sent.is_ok() && !piece.is_empty() {
            sent = feed.send(shard, &insertion(collection, piece).into());
        }
    }
    match sent.and_then(|()| feed.finish()) {
        Ok(()) => Ok(end),
        Err(error) => Err(duplicate_among(collection, &incoming.made[start..end], error)),
    }
}

/// Claims a command's number before its documents are inserted. Omitted for a single document in which nothing is generated: its
/// insert claims.
pub fn claim(namespace: &str, documents: &[Storable]) -> Result<()> {
    match documents {
        [] => Ok(()),
        [document] if document.is_repeatable && once::may_claim_by_itself() => Ok(()),
        [first, ..] => once::claim_at(namespace, true, |collection| first.home(collection)),
    }
}

/// Inserts the only document of a numbered command, which claims the number.
pub fn insert_once(namespace: &str, document: &Storable) -> Result<()> {
    with_fresh_map(namespace, |collection| {
        let collection = collection.map_or_else(|| collection::create_implicitly(namespace), Ok)?;
        insert_alone(&collection, document, false)
    })
}

/// Inserts the documents whose keys are free and returns errors for the others.
pub fn insert_unordered(namespace: &str, documents: &[impl Borrow<Storable>]) -> Result<Vec<WriteError>> {
    let error = |index: usize, taken_in: Option<Error>| {
        taken_in.unwrap_or_else(|| duplicate::of_id(namespace, &documents[index].borrow().id))
    };
    let missing = in_batches(namespace, documents, insert_batch)?;
    Ok(missing.into_iter().map(|(index, taken_in)| WriteError { index, error: error(index, taken_in) }).collect())
}

/// Returns the errors of those documents that the collection's validator refuses.
pub fn violations(namespace: &str, documents: &[impl Borrow<Storable>]) -> Result<Vec<WriteError>> {
    let refused = in_batches(namespace, documents, violations_of_batch)?;
    Ok(refused.into_iter().map(|(index, info)| WriteError { index, error: validator::refused(info) }).collect())
}

fn violations_of_batch(collection: &Collection, batch: &[impl Borrow<Storable>]) -> Result<Refused> {
    let mut by_shard: BTreeMap<ShardId, (Vec<usize>, Vec<u8>)> = BTreeMap::new();
    for (index, document) in batch.iter().map(Borrow::borrow).enumerate() {
        let key = document.shard_key(collection)?;
        let (positions, packed) = by_shard.entry(collection.map.owner(&key)).or_default();
        positions.push(index);
        pack(packed, document.parts(&key));
    }
    let destinations = place(collection, &by_shard)?;
    let &Collection { id, token, .. } = collection;
    let (positions, packed): (Vec<_>, Vec<_>) = by_shard.into_values().unzip();
    let call = |packed: Vec<u8>| FindViolations { collection: id, token, version: 0, documents: packed.into() }.into();
    let statements: Vec<Statement> = packed.into_iter().map(call).collect();
    let mut refused = Vec::new();
    for (mut stream, positions) in
        reading::read_each(collection, &destinations, &statements)?.into_iter().zip(positions)
    {
        while let Some(row) = stream.next_row()? {
            let malformed = || Error::protocol_violation("malformed answer of find_violations");
            let of_shard: Refused = serde_json::from_slice(row.bytes(0)).map_err(|_| malformed())?;
            for (at, info) in of_shard {
                refused.push((*positions.get(at).ok_or_else(malformed)?, info));
            }
        }
    }
    refused.sort_unstable_by_key(|(index, _)| *index);
    refused.dedup_by_key(|(index, _)| *index);
    Ok(refused)
}

/// Inserts the documents whose keys are free and returns the positions of the others.
pub fn insert_free(namespace: &str, documents: &[impl Borrow<Storable>]) -> Result<Vec<usize>> {
    let missing = in_batches(namespace, documents, |collection, batch| {
        let (missing, _) = insert_where_free(collection, batch)?;
        Ok(missing.into_iter().map(|index| (index, ())).collect())
    })?;
    Ok(missing.into_iter().map(|(index, ())| index).collect())
}

/// Calls `insert` for each batch of documents. Returns all its results, each with the document's position among all documents.
fn in_batches<D: Borrow<Storable>, T>(
    namespace: &str,
    documents: &[D],
    insert: impl Fn(&Collection, &[D]) -> Result<Vec<(usize, T)>>,
) -> Result<Vec<(usize, T)>> {
    namespace::split(namespace)?;
    namespace::check_writable(namespace)?;
    let mut all = Vec::new();
    let mut start = 0;
    while start < documents.len() {
        let mut bytes = 0;
        let mut end = start;
        while end < documents.len() && end - start < BATCH_DOCUMENTS && bytes < BATCH_BYTES {
            bytes += documents[end].borrow().bytes.len();
            end += 1;
        }
        let batch = &documents[start..end];
        let some = with_fresh_map(namespace, |collection| match collection {
            Some(collection) => insert(&collection, batch),
            None => insert(&*collection::create_implicitly(namespace)?, batch),
        })?;
        all.extend(some.into_iter().map(|(index, what)| (start + index, what)));
        start = end;
    }
    Ok(all)
}

/// Translates a unique violation on one of these documents, which PostgreSQL's DETAIL identifies.
fn duplicate_among(collection: &Collection, batch: &[Storable], error: Error) -> Error {
    if !duplicate::is_of_primary_key(collection, &error) {
        return duplicate::translate(collection, error);
    }
    let taken = match batch {
        [document] => Some(document),
        _ => duplicate::last_encoded(&error).and_then(|id| batch.iter().find(|document| document.id_key == id)),
    };
    match taken {
        Some(document) => duplicate::of_id(&collection.namespace, &document.id).at_place_of(&error),
        None => duplicate::translate(collection, error),
    }
}

/// Returns the error of the secondary unique index that a document violates; None if its primary key is the duplicate.
fn taken_in(collection: &Collection, document: &Storable, skey: &[u8]) -> Result<Option<Error>> {
    if !collection.has_unique_index() {
        return Ok(None);
    }
    let mut conditions = Conditions::new(collection);
    let row = [skey, &document.id_key, &document.bytes].map(|value| conditions.param(Parameter::Bytes(value.to_vec())));
    let sql = format!("SELECT * FROM {} WHERE {}", taken(collection, &row), conditions.sql());
    let statement = conditions.into_statement(sql, const { &[Column::BYTES, Column::BYTES.or_null()] });
    let destinations = destination::destinations(collection, &KeyRanges::new(vec![KeyRange::point(skey)]))?;
    for mut stream in reading::read(collection, &destinations, &statement)? {
        if let Some(row) = stream.next_row()? {
            let relation = String::from_utf8_lossy(row.bytes(0));
            let error = match collection.index_of(&relation) {
                Some(index) => duplicate::of_unique(&collection.namespace, index, row.get(1)),
                None => duplicate::of_unknown(&collection.namespace, &relation),
            };
            while stream.next_row()?.is_some() {}
            return Ok(Some(error));
        }
    }
    Ok(None)
}

fn taken(collection: &Collection, [skey, id, bytes]: &[String; 3]) -> String {
    sql::find_conflict(collection.id, skey, id, bytes)
}

/// Returns the condition that the row violates no secondary unique index. `ON CONFLICT DO NOTHING` does not apply to these
/// indexes.
pub fn is_free(collection: &Collection, row: &[String; 3]) -> String {
    if !collection.has_unique_index() {
        return "true".to_owned();
    }
    format!("NOT EXISTS (SELECT FROM {})", taken(collection, row))
}

/// A document's position in its batch, with the error of the secondary unique index that it violates; None for a duplicate
/// primary key.
type Missing = (usize, Option<Error>);

/// Inserts a whole batch with one statement for each shard, or fails.
fn insert_at_once(collection: &Collection, batch: &[Storable], is_last: bool) -> Result<()> {
    if let [document] = batch {
        return insert_alone(collection, document, is_last);
    }
    let mut by_shard: BTreeMap<ShardId, Vec<u8>> = BTreeMap::new();
    let mut keys = Vec::with_capacity(batch.len());
    for document in batch {
        let key = document.shard_key(collection)?;
        pack(by_shard.entry(collection.map.owner(&key)).or_default(), document.parts(&key));
        keys.push(KeyRange::point(&key));
    }
    let destinations = place(collection, &by_shard)?;
    let range = LockRange::of(&KeyRanges::new(keys));
    let statements: Vec<Statement> =
        by_shard.into_values().map(|packed| insertion(collection, packed).into()).collect();
    writing::write_checked(collection, &destinations, &range, is_last, |at| &statements[at])
        .map_err(|error| duplicate_among(collection, batch, error))?;
    Ok(())
}

fn insert_alone(collection: &Collection, document: &Storable, is_last: bool) -> Result<()> {
    let key = document.shard_key(collection)?;
    let destination = destination::destination_of(collection, &key)?;
    let mut packed = Vec::new();
    pack(&mut packed, document.parts(&key));
    let call = insertion(collection, packed);
    // The function's result contains the `_id`. If the result is large, sending it to the client could fail, so the shard must
    // not commit before.
    let is_last = is_last && document.id_key.len() <= sole_call::MAX_RESULT;
    once::write(collection, &[destination], &key, is_last, call)
        .map_err(|error| duplicate_among(collection, std::slice::from_ref(document), error))?;
    Ok(())
}

/// The statement that inserts packed documents: see `shard::documents`.
fn insertion(collection: &Collection, packed: Vec<u8>) -> InsertDocuments<'static> {
    let documents = packed.into();
    InsertDocuments { collection: collection.id, token: collection.token, version: 0, documents }
}

/// Inserts the documents of a batch whose keys are free and returns the others.
fn insert_batch(collection: &Collection, batch: &[impl Borrow<Storable>]) -> Result<Vec<Missing>> {
    let (missing, keys) = insert_where_free(collection, batch)?;
    missing.into_iter().map(|index| Ok((index, taken_in(collection, batch[index].borrow(), &keys[index])?))).collect()
}

/// Like [`insert_batch`], without the errors; also returns the shard keys of all documents.
fn insert_where_free(collection: &Collection, batch: &[impl Borrow<Storable>]) -> Result<(Vec<usize>, Vec<Vec<u8>>)> {
    let keys = batch.iter().map(|document| document.borrow().shard_key(collection)).collect::<Result<Vec<_>>>()?;
    let mut by_shard: BTreeMap<ShardId, Vec<usize>> = BTreeMap::new();
    for (index, key) in keys.iter().enumerate() {
        by_shard.entry(collection.map.owner(key)).or_default().push(index);
    }
    let ranges = KeyRanges::new(keys.iter().map(|key| KeyRange::point(key)).collect());
    let destinations = place(collection, &by_shard)?;
    let groups: Vec<&Vec<usize>> = by_shard.values().collect();
    let statements: Vec<_> = groups.iter().map(|group| statement(collection, batch, &keys, group)).collect();
    let written = writing::write(collection, &destinations, &LockRange::of(&ranges), |at| &statements[at])
        .map_err(|error| duplicate::translate(collection, error))?;
    let mut missing = Vec::new();
    for (group, written) in groups.iter().zip(&written) {
        if inserted(group, written) != group.len() as u64 {
            missing.extend(not_inserted(batch, &keys, group, written));
        }
    }
    missing.sort_unstable();
    Ok((missing, keys))
}

fn place<T>(collection: &Collection, by_shard: &BTreeMap<ShardId, T>) -> Result<Vec<Destination>> {
    let all = destination::destinations(collection, &KeyRanges::all())?;
    Ok(all.into_iter().filter(|destination| by_shard.contains_key(&destination.shard)).collect())
}

/// `$1` and `$2` are the token and the version. For several documents the result is the number of inserted ones and,
/// only if some are missing, their keys.
fn statement(collection: &Collection, batch: &[impl Borrow<Storable>], keys: &[Vec<u8>], group: &[usize]) -> Statement {
    let check = sql::at_version(collection.id, "$1", "$2");
    let head = format!("INSERT INTO {} (skey, id, doc)", collection.table());
    let mut params = first_params(collection);
    let (text, columns): (_, &[Column]) = if let [index] = group {
        params.push(Parameter::Bytes(keys[*index].clone()));
        params.push(Parameter::Bytes(batch[*index].borrow().id_key.clone()));
        params.push(Parameter::Bytes(batch[*index].borrow().bytes.clone()));
        let free = is_free(collection, &["$3", "$4", "$5"].map(str::to_owned));
        let doc = sql::unpack("$5");
        (format!("{head} SELECT $3, $4, {doc} WHERE {check} AND {free} ON CONFLICT DO NOTHING"), &[])
    } else {
        params.push(Parameter::BytesArray(group.iter().map(|i| keys[*i].clone()).collect()));
        params.push(Parameter::BytesArray(group.iter().map(|i| batch[*i].borrow().id_key.clone()).collect()));
        params.push(Parameter::BytesArray(group.iter().map(|i| batch[*i].borrow().bytes.clone()).collect()));
        params.push(Parameter::Int8(group.len() as i64));
        let free = is_free(collection, &["skey", "id", "t.doc"].map(str::to_owned));
        let text = format!(
            "WITH inserted AS ({head} SELECT skey, id, {} \
             FROM unnest($3::bytea[], $4::bytea[], $5::bytea[]) AS t (skey, id, doc) WHERE {check} \
             AND {free} ON CONFLICT DO NOTHING RETURNING skey, id), total AS (SELECT count(*) AS n FROM inserted) \
             SELECT n, skey, id FROM total LEFT JOIN inserted ON n < $6",
            sql::unpack("doc")
        );
        (text, const { &[Column::INT8, Column::BYTES.or_null(), Column::BYTES.or_null()] })
    };
    Statement { sql: text, params, columns }
}

fn inserted(group: &[usize], written: &Written) -> u64 {
    match group {
        [_] => written.affected,
        _ => written.rows.first().map_or(0, |row| row.i64(0).unsigned_abs()),
    }
}

/// Returns the positions of the documents that were not inserted. If documents have equal keys, only the first can have been inserted.
fn not_inserted(batch: &[impl Borrow<Storable>], keys: &[Vec<u8>], group: &[usize], written: &Written) -> Vec<usize> {
    if let [index] = group {
        return vec![*index];
    }
    let mut returned: HashMap<(&[u8], &[u8]), usize> = HashMap::new();
    for key in written.rows.iter().filter_map(|row| row.get(1).zip(row.get(2))) {
        *returned.entry(key).or_default() += 1;
    }
    group
        .iter()
        .copied()
        .filter(|index| match returned.get_mut(&(keys[*index].as_slice(), batch[*index].borrow().id_key.as_slice())) {
            Some(left) if *left > 0 => {
                *left -= 1;
                false
            }
            _ => true,
        })
        .collect()
}

/// The error of a document whose primary key or whose key in a unique index is a duplicate.
pub fn refused(collection: &Collection, document: &Storable) -> Result<Error> {
    let skey = document.shard_key(collection)?;
    Ok(taken_in(collection, document, &skey)?.unwrap_or_else(|| duplicate::of_id(&collection.namespace, &document.id)))
}

/// Inserts one document unless its key is a duplicate; returns whether it did.
pub fn insert_if_absent(collection: &Collection, document: &Storable) -> Result<bool> {
    match insert_batch(collection, std::slice::from_ref(document))?.pop() {
        None => Ok(true),
        Some((_, None)) => Ok(false),
        Some((_, Some(error))) => Err(error),
    }
}
