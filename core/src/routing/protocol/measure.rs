//! Calls that measure collections at a shard.

rows! {
    /// The size of a chunk.
    ChunkSize {
        /// the chunk's position, from 0, among the lower bounds that were asked for
        chunk: i32,
        documents: i64,
        bytes: i64,
    }

    /// The size of a collection by statistics.
    Estimate {
        collection: i32,
        /// None where nothing is known
        documents: Option<i64>,
        /// the size of the documents; the size of the table where nothing else is known
        bytes: i64,
    }

    /// The size of a collection at a shard, and the space that is free there.
    StorageSpace {
        /// bytes of the documents, by statistics
        documents: i64,
        /// bytes of the table, including free space in it
        stored: i64,
        /// bytes of the table's indexes
        indexes: i64,
        /// bytes that are free on the file system on which new tables are stored
        free: i64,
    }

    /// The sampled accesses to a key.
    SampledAccess {
        collection: i32,
        /// the shard key, or its first [`MAX_SAMPLED_KEY`](crate::cluster::load::MAX_SAMPLED_KEY) bytes; None: accesses to no
        /// particular key, by statements that read most of the collection
        key: Option<Vec<u8>>,
        /// in 1,000 seconds
        reads: i64,
        /// in 1,000 seconds
        writes: i64,
        /// the number of samples from which reads and writes are estimated
        samples: i64,
    }

    /// The exact size of a range.
    RangeSize { documents: i64, bytes: i64 }
}

calls! {
    /// The size of each chunk that has documents, given the ascending lower bounds of all chunks of a collection.
    measure_chunks => MeasureChunks<'a> {
        collection: i32,
        bounds: &'a [&'a [u8]],
        /// the documents of a table of less than this number of MiB are counted; those of a larger one are estimated
        counted_mb: i32,
    } -> Vec<ChunkSize>;

    /// The sizes of collections by PostgreSQL's statistics; no row for those that the shard does not have.
    estimate_sizes => EstimateSizes<'a> { collections: &'a [i32] } -> Vec<Estimate>;

    /// The size of a collection, 0 if the shard does not have it, and the free space.
    storage_space => MeasureSpace { collection: i32 } -> StorageSpace;

    /// The accesses to documents by the statements of routers, as rates that the shard has smoothed, from at most `most` samples.
    sampled_accesses => SampledAccesses { most: i32 } -> Vec<SampledAccess>;

    /// The exact size of `[lo, hi)`; without `hi` there is no upper end.
    measure_range => MeasureRange<'a> { collection: i32, lo: &'a [u8], hi: Option<&'a [u8]> } -> RangeSize;

    /// Keys that divide `[lo, hi)` into at most `parts` parts of about equal size; none if there are not two different keys.
    split_points => FindSplitPoints<'a> {
        collection: i32,
        lo: &'a [u8],
        hi: Option<&'a [u8]>,
        parts: i32,
        /// the approximate number of documents in the range
        documents: i64,
    } -> Vec<Vec<u8>>;
}
