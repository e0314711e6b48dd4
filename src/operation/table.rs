//! All operations, as data: the SQL function, its options, and which options exclude one another.
//!
//! The option documents of functions, the operations of `bulk_write` and the fields of commands are composed of the same groups of fields.
//! A field that only one of them has, or that it spells differently, is in a group of its own.

use super::arguments::Type::{
    self, Any, Array, Bool, Choice, Count, Document, Integer, Object, Order, Secret, StrictBool, String, StringOrObject,
};
use super::arguments::When::{False, Given, Missing, True};
use super::arguments::{Conflict, Field, Fields, may, must};
use docshard_core::error::Kind;

#[derive(Debug)]
pub struct Operation {
    /// the SQL function in schema `docshard`; the EXECUTE privilege on it is the right to run this operation
    pub function: &'static str,
    pub options: Fields,
    /// combinations of options that are errors
    pub conflicts: &'static [Conflict],
}

/// Rows of the table: name, SQL function, options, and conflicts of options.
macro_rules! operations {
    ($($name:ident = $function:literal $options:expr $(=> unless $conflicts:expr)?;)*) => {$(
        #[doc = concat!("`", $function, "`.")]
        pub static $name: Operation = Operation {
            function: $function,
            options: $options,
            conflicts: {
                let conflicts: &[Conflict] = &[];
                $(let _ = conflicts; let conflicts: &[Conflict] = $conflicts;)?
                conflicts
            },
        };
    )*};
}

const HINT: Field = may("hint", StringOrObject);
const COLLATION: Field = may("collation", Object);
/// Options, besides the filter, that affect which documents are chosen.
pub const CHOICE: &[Field] = &[HINT, COLLATION];
pub const LET: &[Field] = &[may("let", Object)];
const COMMENT: &[Field] = &[may("comment", Any)];
/// Options of a whole command, or of its cursor, that an SQL function has, too. An SQL function streams rows, so `batchSize` has no effect.
const LIMITS: &[Field] = &[may("maxTimeMS", Integer), may("readConcern", Document), may("batchSize", Count)];
const FILTER: Field = must("filter", Any);
const SORT: &[Field] = &[may("sort", Order)];
const UPSERT: Field = may("upsert", StrictBool);
const ARRAY_FILTERS: Field = may("arrayFilters", Array);
const UPDATING: &[Field] = &[UPSERT, ARRAY_FILTERS];

// Reading.

pub const FINDING: &[Field] = &[may("sort", Order), may("projection", Object), may("skip", Count)];
pub const LIMIT: &[Field] = &[may("limit", Count)];
pub const RANGE: &[Field] = &[HINT, may("min", Object), may("max", Object), COLLATION];
const PARTIAL: &[Field] = &[may("allowPartialResults", Bool)];
pub const FIND_COMMAND: Fields = &[
    &[may("filter", Object).never_null()],
    FINDING,
    LIMIT,
    RANGE,
    LET,
    PARTIAL,
    &[
        may("batchSize", Count),
        may("singleBatch", Bool),
        may("allowDiskUse", Bool),
        may("noCursorTimeout", Bool),
        may("tailable", Bool).refused(),
        may("awaitData", Bool).refused(),
        may("oplogReplay", Bool),
        may("returnKey", Bool).refused(),
        may("showRecordId", Bool).refused(),
    ],
];
/// Unlike other numbers of commands, the limit must be an integer and may be negative. `fields` has no effect.
pub const COUNT_COMMAND: Fields =
    &[&[may("query", Object).means("filter"), may("limit", Any), may("skip", Count), may("fields", Any)], CHOICE];
pub const DISTINCT_COMMAND: Fields = &[&[must("key", String), may("query", Object).means("filter")], CHOICE];

/// True: the validator does not check the documents that the operation writes. Only roles that may change validators may set it.
pub const BYPASS: Field = may("bypassDocumentValidation", Bool);
const BYPASSING: &[Field] = &[BYPASS];
const AGGREGATING: &[Field] = &[may("allowDiskUse", Bool).or_true(), BYPASS];
pub const AGGREGATE_COMMAND: Fields = &[
    &[
        must("pipeline", Array).never_null(),
        may("cursor", Object).never_null(),
        may("explain", StrictBool).never_null(),
        may("allowDiskUse", StrictBool).or_true().never_null(),
    ],
    BYPASSING,
    CHOICE,
    LET,
];
pub const AGGREGATE_CONFLICTS: &[Conflict] = &[Conflict::All(
    &[Missing("cursor"), False("explain")],
    Kind::FailedToParse,
    "The 'cursor' option is required, except for aggregate with the explain argument",
)];

// Writing.

const ORDERED: Field = may("ordered", StrictBool).or_true();
/// The operations of `bulk_write`, by the names that MongoDB's drivers use.
pub const BULK_OPERATIONS: &[(&str, Fields)] = &[
    ("insertOne", &[&[must("document", Any)]]),
    ("updateOne", &[&[FILTER, must("update", Any)], UPDATING, SORT, CHOICE, LET]),
    ("updateMany", &[&[FILTER, must("update", Any)], UPDATING, CHOICE, LET]),
    ("replaceOne", &[&[FILTER, must("replacement", Any).means("update"), UPSERT], SORT, CHOICE, LET]),
    ("deleteOne", &[&[FILTER], CHOICE, LET]),
    ("deleteMany", &[&[FILTER], CHOICE, LET]),
];

const BATCH: &[Field] = &[ORDERED, BYPASS, may("let", Object)];
pub const INSERT_COMMAND: Fields = &[&[must("documents", Array)], BATCH];
pub const UPDATE_COMMAND: Fields = &[&[must("updates", Array)], BATCH];
pub const DELETE_COMMAND: Fields = &[&[must("deletes", Array), ORDERED, may("let", Object)]];

pub const UPDATE_ELEMENT: Fields = &[
    &[
        must("q", Object).means("filter"),
        must("u", Any).means("update"),
        may("c", Object).refused(),
        may("multi", StrictBool),
    ],
    UPDATING,
    SORT,
    CHOICE,
];
pub const UPDATE_CONFLICTS: &[Conflict] =
    &[Conflict::All(&[True("multi"), Given("sort")], Kind::FailedToParse, "Cannot specify sort with multi=true")];
pub const DELETE_ELEMENT: Fields = &[&[must("q", Object).means("filter"), must("limit", Integer)], CHOICE];

/// The fields of `bulkWrite`, of an element of `nsInfo`, and of the three kinds of elements of `ops`.
pub const BULK_WRITE_COMMAND: Fields =
    &[&[must("ops", Array), must("nsInfo", Array), may("errorsOnly", StrictBool), may("cursor", Object)], BATCH];
pub const NAMESPACE_INFO: Fields =
    &[&[must("ns", String), may("collectionUUID", Any).refused(), may("encryptionInformation", Object).refused()]];
pub const BULK_INSERT: Fields = &[&[must("insert", Integer).means("namespace"), must("document", Object)]];
pub const BULK_UPDATE: Fields = &[
    &[
        must("update", Integer).means("namespace"),
        must("filter", Object),
        must("updateMods", Any).means("update"),
        may("multi", StrictBool),
        may("constants", Object).refused(),
    ],
    UPDATING,
    SORT,
    CHOICE,
];
pub const BULK_DELETE: Fields =
    &[&[must("delete", Integer).means("namespace"), must("filter", Object), may("multi", StrictBool)], CHOICE];

const RETURNED: Type = Choice(&["before", "after"]);
/// Skips documents that another transaction has locked, instead of waiting for it. MongoDB has no such option.
const SKIP_LOCKED: Field = may("skipLocked", StrictBool);
/// An upsert cannot skip locked documents: if the skipped one matches, the upsert would insert a second document.
const NO_LOCKED_UPSERT: Conflict = Conflict::All(
    &[True("skipLocked"), True("upsert")],
    Kind::FailedToParse,
    "Cannot specify both skipLocked=true and upsert=true: a document that is locked may match",
);
const ANSWERED: &[Field] = &[may("sort", Order), may("projection", Object), SKIP_LOCKED];
const RETURNING: &[Field] =
    &[UPSERT, may("returnDocument", RETURNED), may("returnNewDocument", StrictBool).means("new")];
const FIND_AND_MODIFY_FIELDS: &[Field] = &[
    may("query", Document).means("filter"),
    may("sort", Order),
    may("remove", Bool),
    may("update", Any),
    may("new", Bool),
    may("fields", Document).means("projection"),
    may("upsert", Bool),
    ARRAY_FILTERS,
    SKIP_LOCKED,
];
pub const FIND_AND_MODIFY_CONFLICTS: &[Conflict] = &[
    NO_LOCKED_UPSERT,
    Conflict::All(
        &[Given("update"), True("remove")],
        Kind::FailedToParse,
        "Cannot specify both an update and remove=true",
    ),
    Conflict::All(
        &[Missing("update"), False("remove")],
        Kind::FailedToParse,
        "Either an update or remove=true must be specified",
    ),
    Conflict::All(
        &[True("remove"), True("new")],
        Kind::FailedToParse,
        "Cannot specify both new=true and remove=true; 'remove' always returns the deleted document",
    ),
    Conflict::All(
        &[True("remove"), True("upsert")],
        Kind::FailedToParse,
        "Cannot specify both upsert=true and remove=true",
    ),
    Conflict::All(
        &[True("remove"), Given("arrayFilters")],
        Kind::FailedToParse,
        "Cannot specify arrayFilters and remove=true",
    ),
];
/// `hint` may have any type here: a wrong type is refused later, with another error code than in other commands.
pub const FIND_AND_MODIFY_COMMAND: Fields = &[FIND_AND_MODIFY_FIELDS, &[BYPASS, may("hint", Any), COLLATION], LET];

// Collections and indexes.

const ONLY_COLLATION: &[Field] = &[COLLATION];
const VIEW: &[Field] = &[may("viewOn", String), may("pipeline", Array)];
const NO_VIEW: Conflict = Conflict::All(
    &[Given("pipeline"), Missing("viewOn")],
    Kind::InvalidOptions,
    "'pipeline' requires 'viewOn' to also be specified",
);
pub const CREATE_COMMAND: Fields = &[
    &[
        may("capped", Bool).refused(),
        may("size", Integer),
        may("max", Integer),
        may("autoIndexId", Bool).or_true(),
        may("idIndex", Object),
        may("timeseries", Object).refused(),
        may("expireAfterSeconds", Integer).refused(),
        may("clusteredIndex", Any).refused(),
        may("indexOptionDefaults", Object),
        may("storageEngine", Object),
        may("changeStreamPreAndPostImages", Object).refused(),
    ],
    VALIDATION,
    VIEW,
    ONLY_COLLATION,
];
pub const CREATE_CONFLICTS: &[Conflict] = &[
    Conflict::All(
        &[True("capped"), Missing("size")],
        Kind::InvalidOptions,
        "the 'size' field is required when 'capped' is true",
    ),
    Conflict::All(&[False("capped"), Given("size")], Kind::InvalidOptions, NOT_CAPPED),
    Conflict::All(&[False("capped"), Given("max")], Kind::InvalidOptions, NOT_CAPPED),
    NO_VIEW,
    NO_VALIDATED_VIEW[0],
    NO_VALIDATED_VIEW[1],
    NO_VALIDATED_VIEW[2],
    Conflict::All(
        &[Given("viewOn"), Given("idIndex")],
        Kind::InvalidOptions,
        "the option 'idIndex' is not supported on a view",
    ),
    Conflict::All(
        &[Given("expireAfterSeconds"), Missing("timeseries"), Missing("clusteredIndex")],
        Kind::InvalidOptions,
        "'expireAfterSeconds' is for time-series collections and those with a 'clusteredIndex'",
    ),
    Conflict::All(
        &[False("autoIndexId")],
        Kind::InvalidOptions,
        "'autoIndexId' cannot be false: a collection always has the _id index",
    ),
];
const NOT_CAPPED: &str = "the 'capped' field needs to be true when either the 'size' or 'max' fields are present";

/// The options that set a collection's validation.
pub const VALIDATION: &[Field] = &[
    may("validator", Object),
    may("validationLevel", Choice(&["off", "strict", "moderate"])),
    may("validationAction", Choice(&["error", "warn", "errorAndLog"])),
];
const NO_VALIDATED_VIEW: [Conflict; 3] = [
    Conflict::All(
        &[Given("viewOn"), Given("validator")],
        Kind::InvalidOptions,
        "the option 'validator' is not supported on a view",
    ),
    Conflict::All(
        &[Given("viewOn"), Given("validationLevel")],
        Kind::InvalidOptions,
        "the option 'validationLevel' is not supported on a view",
    ),
    Conflict::All(
        &[Given("viewOn"), Given("validationAction")],
        Kind::InvalidOptions,
        "the option 'validationAction' is not supported on a view",
    ),
];

/// Options of MongoDB's collMod that docshard refuses. MongoDB refuses them for a view.
pub const OF_COLLECTIONS: &[Field] = &[
    may("expireAfterSeconds", Any),
    may("timeseries", Object),
    may("changeStreamPreAndPostImages", Object),
    may("cappedSize", Integer),
    may("cappedMax", Integer),
    may("prepareUnique", Bool),
];
pub const COLL_MOD_COMMAND: Fields = MODIFY_COLLECTION.options;
/// The fields of `index`.
pub const INDEX_CHANGE: Fields = &[&[
    may("name", String),
    may("keyPattern", Order),
    may("hidden", Bool),
    may("expireAfterSeconds", Integer),
    may("unique", Bool).refused(),
    may("prepareUnique", Bool).refused(),
]];
pub const INDEX_CHANGE_CONFLICTS: &[Conflict] = &[
    Conflict::All(
        &[Given("name"), Given("keyPattern")],
        Kind::InvalidOptions,
        "Cannot specify both key pattern and name.",
    ),
    Conflict::All(
        &[Missing("name"), Missing("keyPattern")],
        Kind::InvalidOptions,
        "Must specify either index name or key pattern.",
    ),
];
pub const RENAME_COMMAND: Fields = &[&[must("to", String), may("dropTarget", Any), may("stayTemp", StrictBool)]];

const KEY: &[Field] = &[may("key", Order)];
const INDEX: &[Field] =
    &[may("name", String).never_null(), may("unique", Bool).never_null(), may("hidden", StrictBool).never_null()];
/// If the build would block writes: true makes that an error, false suppresses the warning.
const CONCURRENTLY: &[Field] = &[may("concurrently", StrictBool)];
const EXPIRY: &[Field] = &[may("expireAfterSeconds", Integer).never_null()];
const INDEXED: &[Field] = &[
    may("sparse", Bool).never_null(),
    may("partialFilterExpression", Object).never_null(),
    COLLATION.never_null(),
    may("wildcardProjection", Object).never_null(),
];
pub const CREATE_INDEXES_COMMAND: Fields =
    &[&[must("indexes", Array), may("commitQuorum", Any), may("ignoreUnknownIndexOptions", Bool)]];
/// The fields of an element of `indexes`. Options of unsupported kinds of indexes are accepted here, because the parser of the keys refuses
/// these kinds.
pub const INDEX_ELEMENT: Fields = &[
    KEY,
    INDEX,
    INDEXED,
    &[
        may("expireAfterSeconds", Any),
        may("background", Bool).never_null(),
        may("dropDups", Bool),
        may("v", Integer).never_null(),
        may("ns", String),
        may("weights", Object),
        may("default_language", String),
        may("language_override", String),
        may("textIndexVersion", Integer),
        may("2dsphereIndexVersion", Integer),
    ],
];
/// The fields of `idIndex`.
pub const ID_INDEX: Fields = &[KEY, &[may("name", String), may("v", Integer), may("ns", String), COLLATION]];
pub const INDEX_CONFLICTS: &[Conflict] = &[
    NO_KEY,
    Conflict::All(
        &[Missing("name")],
        Kind::FailedToParse,
        "The 'name' field is a required property of an index specification",
    ),
];
pub const LIST_INDEXES_CONFLICTS: &[Conflict] = &[Conflict::All(
    &[True("includeBuildUUIDs"), True("includeIndexBuildInfo")],
    Kind::InvalidOptions,
    "'includeBuildUUIDs' and 'includeIndexBuildInfo' cannot both be true",
)];
const NO_KEY: Conflict = Conflict::All(
    &[Missing("key")],
    Kind::FailedToParse,
    "The 'key' field is a required property of an index specification",
);

const SHARDING: &[Field] =
    &[may("unique", Bool), may("numInitialChunks", Integer), may("implicitlyCreateIndex", Bool).or_true(), COLLATION];
pub const SHARD_COLLECTION_COMMAND: Fields = &[
    &[must("key", Order)],
    SHARDING,
    &[
        may("presplitHashedZones", Bool).refused(),
        may("timeseries", Object).refused(),
        may("enforceUniquenessCheck", Bool),
        COLLECTION_UUID,
    ],
];
/// Options of changes of a collection's layout: how long to try to find a moment in which writers wait only briefly, and whether a
/// recipient without enough free space is an error.
const CHANGING: &[Field] = &[may("commitTimeoutMS", Integer), may("checkSpace", Bool).or_true()];
const RESHARDING: &[Field] = &[may("zones", Array), may("forceRedistribution", Bool)];
/// Options for how MongoDB samples, places and waits. They have no effect here.
const RESHARDING_OF_MONGODB: &[Field] =
    &[may("demoMode", Bool), may("relaxed", Bool), may("numSamplesPerChunk", Integer)];
pub const RESHARD_COLLECTION_COMMAND: Fields = &[
    &[must("key", Order)],
    SHARDING,
    RESHARDING,
    CHANGING,
    &[
        may("shardDistribution", Array).refused(),
        may("reshardingUUID", Any).refused(),
        may("_presetReshardedChunks", Array).refused(),
        COLLECTION_UUID,
    ],
    RESHARDING_OF_MONGODB,
    VERIFYING,
];
/// Refused. In MongoDB, a collection with another UUID is an error.
const COLLECTION_UUID: Field = may("collectionUUID", Any).refused();
/// No effect: the copy is always compared with the original.
const VERIFYING: &[Field] = &[may("performVerification", Bool)];
pub const REFINE_COMMAND: Fields =
    &[&[must("key", Order), may("enforceUniquenessCheck", Bool), COLLECTION_UUID], CHANGING];
pub const UNSHARD_COMMAND: Fields = &[&[may("toShard", String)], CHANGING, VERIFYING];
pub const MOVE_COLLECTION_COMMAND: Fields = &[&[must("toShard", String)], CHANGING, VERIFYING];
/// What is analysed, and how many documents are read.
const ANALYZING: &[Field] = &[
    may("keyCharacteristics", Bool).or_true(),
    may("readWriteDistribution", Bool).or_true(),
    may("sampleRate", Any),
    may("sampleSize", Integer),
];
/// The removal of a lost shard: the token that confirms it, those of other shards that are lost with it, and whether changes of layout that may be
/// decided are completed.
const LOST_SHARD: &[Field] =
    &[may("lost", Bool), may("token", String), may("alsoLost", Document), may("completeChanges", Any)];
/// The number of shards that is assumed.
const REPLAYING: &[Field] = &[may("shards", Integer)];
pub const ANALYZE_COMMAND: Fields = &[&[must("key", Order)], ANALYZING, REPLAYING];
pub const ANALYZER_OPTIONS: Fields = &[&[must("mode", Choice(&["full", "off"])), may("samplesPerSecond", Any)]];

// Chunks.

const FORCE_JUMBO: &[Field] = &[may("forceJumbo", Bool)];
pub const SPLIT_COMMAND: Fields = &[&[may("find", Object), may("middle", Object), may("bounds", Array)]];
pub const SPLIT_CONFLICTS: &[Conflict] = &[Conflict::OneOf(&["find", "middle", "bounds"])];
/// The options for throttling and waiting have no effect: a move always waits until its documents are deleted and, as the servers are
/// configured, for standbys.
pub const MOVE_CHUNK_COMMAND: Fields = &[
    &[
        must("to", String),
        may("find", Object),
        may("bounds", Array),
        may("_secondaryThrottle", Any),
        may("secondaryThrottle", Any),
        may("_waitForDelete", Bool),
        may("waitForDelete", Bool),
    ],
    FORCE_JUMBO,
];
pub const MOVE_CHUNK_CONFLICTS: &[Conflict] = &[Conflict::OneOf(&["find", "bounds"])];
pub const MOVE_RANGE_COMMAND: Fields = &[
    &[
        must("toShard", String).means("to"),
        may("min", Object),
        may("max", Object),
        may("secondaryThrottle", Any),
        may("waitForDelete", Bool),
    ],
    FORCE_JUMBO,
];
/// Combinations of moveRange's fields that are errors.
pub const MOVE_RANGE_CONFLICTS: &[Conflict] =
    &[Conflict::All(&[Missing("min"), Missing("max")], Kind::InvalidOptions, "moveRange: give min, max or both")];

// Shards, databases, zones, the balancer.

const CHECKING: &[Field] = &[may("checkIndexes", Bool).or_true()];
pub const CHECK_METADATA_COMMAND: Fields =
    &[CHECKING, &[may("cursor", Object), may("dbMetadataLockMaxTimeMS", Integer)]];

/// An administrator's login.
const LOGIN: &[Field] = &[may("user", String), may("password", Secret)];
pub const LOGIN_OPTIONS: Fields = &[LOGIN];
/// A password without its user.
pub const NO_USER: Conflict =
    Conflict::All(&[Given("password"), Missing("user")], Kind::BadValue, "the option \"password\" requires \"user\"");
pub const ADD_SHARD_OPTIONS: Fields = &[&[may("name", String), may("maxSize", Integer)], LOGIN];
pub const BALANCING_OPTIONS: Fields = &[&[may("chunkSize", Integer)]];

operations! {
    FIND = "find" &[FINDING, LIMIT, RANGE, LET, PARTIAL, COMMENT];
    FIND_ONE = "find_one" &[FINDING, RANGE, LET, PARTIAL, COMMENT];
    EXPLAIN = "explain" &[FINDING, LIMIT, RANGE, LET, PARTIAL, COMMENT, &[may("shardKey", Order)]];
    EXPLAIN_AGGREGATE = "explain" AGGREGATE.options;
    COUNT = "count_documents" &[&[may("skip", Integer), may("limit", Integer)], CHOICE, LET, COMMENT];
    DISTINCT = "distinct" &[CHOICE, LET, COMMENT];
    AGGREGATE = "aggregate" &[AGGREGATING, &[may("explain", Bool)], CHOICE, LET, LIMITS, COMMENT];
    INSERT_ONE = "insert_one" &[BYPASSING, COMMENT];
    INSERT_MANY = "insert_many" &[&[ORDERED], BYPASSING, COMMENT];
    UPDATE_ONE = "update_one" &[UPDATING, BYPASSING, SORT, CHOICE, LET, COMMENT];
    UPDATE_MANY = "update_many" &[UPDATING, BYPASSING, CHOICE, LET, COMMENT];
    REPLACE_ONE = "replace_one" &[&[UPSERT], BYPASSING, SORT, CHOICE, LET, COMMENT];
    DELETE_ONE = "delete_one" &[CHOICE, LET, COMMENT];
    DELETE_MANY = "delete_many" &[CHOICE, LET, COMMENT];
    BULK_WRITE = "bulk_write" &[&[ORDERED], BYPASSING, LET, COMMENT];
    FIND_ONE_AND_UPDATE = "find_one_and_update" &[ANSWERED, RETURNING, &[ARRAY_FILTERS, BYPASS], CHOICE, LET, COMMENT]
        => unless &[NO_LOCKED_UPSERT];
    FIND_ONE_AND_REPLACE = "find_one_and_replace" &[ANSWERED, RETURNING, BYPASSING, CHOICE, LET, COMMENT]
        => unless &[NO_LOCKED_UPSERT];
    FIND_ONE_AND_DELETE = "find_one_and_delete" &[ANSWERED, CHOICE, LET, COMMENT];
    FIND_AND_MODIFY = "find_and_modify" &[FIND_AND_MODIFY_FIELDS, BYPASSING, CHOICE, LET, COMMENT]
        => unless FIND_AND_MODIFY_CONFLICTS;
    CREATE_COLLECTION = "create_collection" &[ONLY_COLLATION, VALIDATION, VIEW]
        => unless &[NO_VIEW, NO_VALIDATED_VIEW[0], NO_VALIDATED_VIEW[1], NO_VALIDATED_VIEW[2]];
    MODIFY_COLLECTION = "modify_collection" &[VIEW, VALIDATION, &[may("index", Object)], OF_COLLECTIONS];
    RENAME_COLLECTION = "rename_collection" &[&[may("dropTarget", Bool)]];
    DROP_COLLECTION = "drop_collection" &[];
    CREATE_INDEX = "create_index" &[INDEX, EXPIRY, INDEXED, CONCURRENTLY];
    CREATE_INDEXES = "create_indexes" &[KEY, INDEX, EXPIRY, INDEXED, CONCURRENTLY] => unless &[NO_KEY];
    DROP_INDEXES = "drop_indexes" &[];
    LIST_INDEXES = "list_indexes" &[];
    SHARD_COLLECTION = "shard_collection" &[SHARDING];
    RESHARD_COLLECTION = "reshard_collection" &[SHARDING, RESHARDING, CHANGING];
    ABORT_RESHARD_COLLECTION = "abort_reshard_collection" &[];
    COMMIT_RESHARD_COLLECTION = "commit_reshard_collection" &[];
    REFINE_COLLECTION_SHARD_KEY = "refine_collection_shard_key" &[CHANGING];
    UNSHARD_COLLECTION = "unshard_collection" &[CHANGING];
    MOVE_COLLECTION = "move_collection" &[CHANGING];
    COMPACT = "compact" &[&[may("dryRun", Bool)], CHANGING];
    CONFIGURE_QUERY_ANALYZER = "configure_query_analyzer" ANALYZER_OPTIONS;
    ANALYZE_SHARD_KEY = "analyze_shard_key" &[ANALYZING, REPLAYING];
    SUGGEST_SHARD_KEY = "suggest_shard_key" &[&[may("sampleSize", Integer)], REPLAYING];
    CHECK_COLLECTION = "check_collection" &[&[may("limit", Integer)]];
    CHECK_METADATA_CONSISTENCY = "check_metadata_consistency" &[CHECKING];
    SPLIT_AT = "split_at" &[];
    SPLIT_FIND = "split_find" &[];
    MERGE_CHUNKS = "merge_chunks" &[];
    CLEAR_JUMBO_FLAG = "clear_jumbo_flag" &[];
    MOVE_CHUNK = "move_chunk" &[FORCE_JUMBO];
    MOVE_RANGE = "move_range" &[FORCE_JUMBO];
    MOVE_PRIMARY = "move_primary" &[];
    ADD_SHARD = "add_shard" ADD_SHARD_OPTIONS;
    LIST_SHARDS = "list_shards" &[];
    REMOVE_SHARD = "remove_shard" &[LOST_SHARD] => unless &[
        Conflict::All(&[Given("token"), False("lost")], Kind::BadValue, "the option \"token\" requires \"lost\": true"),
        Conflict::All(&[Given("alsoLost"), Missing("token")], Kind::BadValue, "the option \"alsoLost\" requires a \"token\""),
        Conflict::All(
            &[Given("completeChanges"), Missing("token")],
            Kind::BadValue,
            "the option \"completeChanges\" requires a \"token\"",
        ),
    ];
    ACCEPT_SHARD = "accept_shard" &[&[may("adopt", Bool)]];
    ENABLE_SHARDING = "enable_sharding" &[];
    DROP_DATABASE = "drop_database" &[];
    TAKE_OVER = "take_over_cluster" &[&[may("force", Bool), may("logins", Object)], LOGIN]
        => unless &[NO_USER];
    DISMANTLE = "dismantle" &[&[may("shards", Bool).or_true(), may("skipUnreachable", Bool)]];
    GRANT_ACCESS = "grant_access" &[&[may("read", Any), may("write", Any), may("own", Any)]];
    REVOKE_ACCESS = "revoke_access" GRANT_ACCESS.options;
    SET_SETTING = "set_setting" &[];
    STATUS = "status" &[&[may("count", Bool)]];
    GET_SHARD_DISTRIBUTION = "get_shard_distribution" STATUS.options;
    ADD_SHARD_TO_ZONE = "add_shard_to_zone" &[];
    REMOVE_SHARD_FROM_ZONE = "remove_shard_from_zone" &[];
    UPDATE_ZONE_KEY_RANGE = "update_zone_key_range" &[];
    ENABLE_BALANCING = "enable_balancing" &[];
    DISABLE_BALANCING = "disable_balancing" &[];
    START_BALANCER = "start_balancer" &[];
    STOP_BALANCER = "stop_balancer" &[];
    BALANCER_STATUS = "balancer_status" &[];
    BALANCER_COLLECTION_STATUS = "balancer_collection_status" &[];
    CONFIGURE_COLLECTION_BALANCING = "configure_collection_balancing" BALANCING_OPTIONS;
}
