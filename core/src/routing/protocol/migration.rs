//! Calls of a move's coordinator at its donor and its recipient.

rows! {
    /// A transaction that holds a lock.
    LockHolder {
        /// the transaction's name
        holder: String,
        /// its process; None if it is prepared
        pid: Option<i32>,
    }

    /// The documents that the donor has deleted.
    Deleted {
        documents: i64,
        /// how long that took
        micros: i64,
    }
}

calls! {
    /// The transactions that hold a collection's lock: its writers.
    collection_writers => CollectionWriters { collection: i32 } -> Vec<LockHolder>;

    /// The transactions that hold a migration's lock: the writers to its range.
    range_writers => RangeWriters { migration: i64 } -> Vec<LockHolder>;

    /// Donor: divides the range into parts of at most `documents` documents; returns the number of parts. Without `lo` the whole
    /// table is divided,
    /// by the places of its documents.
    divide_range => DivideRange<'a> {
        migration: i64,
        collection: i32,
        lo: Option<&'a [u8]>,
        hi: Option<&'a [u8]>,
        documents: i64,
    } -> i64;

    /// Donor: records where the range's documents are, so that they can be deleted quickly; returns their number, 0 if they are
    /// not located, for example because they are too many.
    locate_range => LocateRange<'a> { migration: i64, collection: i32, lo: &'a [u8], hi: Option<&'a [u8]> } -> i64;

    /// Donor: deletes rows of the capture log that have been copied; false if the range's documents should be located again.
    delete_copied_changes => DeleteCopiedChanges<'a> { migration: i64, applied: &'a [i64] } -> bool;

    /// Donor: excludes all writers to the range until the transaction ends.
    exclude_range_writers => ExcludeRangeWriters { migration: i64 } -> ();

    /// Donor: tells the writers that [`ExcludeRangeWriters`] has excluded about the hand-over; called in the same session.
    release_range_writers => ReleaseRangeWriters { migration: i64 } -> ();

    /// Donor: deletes the range, whose writers are excluded.
    delete_range => DeleteRange<'a> { migration: i64, collection: i32, lo: &'a [u8], hi: Option<&'a [u8]> } -> Deleted;

    /// Recipient: this transaction's writes are not logged for a move, as they are the move's own.
    bypass_capture => BypassCapture {} -> ();

    /// Recipient: loads a batch of pulled documents into the collection's table; answers how many.
    load_batch => LoadBatch<'a> {
        migration: i64,
        collection: i32,
        batch: i32,
        /// true if documents that a unique index refuses are skipped
        is_unique: bool,
        /// the range that must contain the keys of all documents
        lo: &'a [u8],
        hi: Option<&'a [u8]>,
        /// the text of the shard key; the documents' keys must agree with it
        key: &'a str,
    } -> i64;

    /// Recipient: applies a batch of pulled changes; answers by how many the number of documents has grown.
    apply_changes => ApplyChanges<'a> {
        migration: i64,
        collection: i32,
        batch: i32,
        /// as in [`LoadBatch`]
        lo: &'a [u8],
        hi: Option<&'a [u8]>,
        key: &'a str,
    } -> i64;

    /// Donor: the last numbered write of each session, as a text for [`LoadNumberedWrites`]; with its reply if its key is in the range.
    /// Returns a batch of these writes: of sessions after `after`, without those visible in the snapshot `since`. None if there
    /// are no more.
    numbered_writes => NumberedWrites<'a> {
        collection: i32,
        lo: &'a [u8],
        hi: Option<&'a [u8]>,
        since: &'a str,
        after: &'a [u8],
    } -> Option<String>;

    /// Any shard: deletes numbered writes: at most `most` that have expired, and at most `most` beyond the number that a role may have.
    /// Returns the larger one of both numbers.
    forget_numbered_writes => ForgetNumberedWrites { most: i64 } -> i64;

    /// Recipient: stores each numbered write unless it has this one or a later one of the same session; returns the last session.
    /// It does not wait for
    /// clients.
    load_numbered_writes => LoadNumberedWrites<'a> { writes: &'a str } -> Option<Vec<u8>>;
}
