//! Every command, as data.

use super::reply::Reply;
use super::request::{Field, Request, Type, may, must};
use super::{cluster, collections, documents, find, information, write};
use crate::pg::error::Result;

/// What runs a command.
pub type Run = fn(&Request<'_>) -> Result<Reply>;

/// A command.
#[derive(Debug)]
pub struct Command {
    /// its name
    pub name: &'static str,
    /// other names of it
    pub aliases: &'static [&'static str],
    /// what the field takes that names it
    pub target: Type,
    /// that field is the name of a collection
    pub is_of_collection: bool,
    /// its other fields
    pub fields: &'static [Field],
    /// it runs in the database `admin` only
    pub admin_only: bool,
    /// it changes something
    pub writes: bool,
    /// what it does
    pub help: &'static str,
    /// what runs it
    pub run: Run,
}

/// The command of that name.
pub fn find(name: &str) -> Option<&'static Command> {
    COMMANDS.iter().find(|command| command.name == name || command.aliases.contains(&name))
}

const fn command(name: &'static str, target: Type, fields: &'static [Field], help: &'static str, run: Run) -> Command {
    Command { name, aliases: &[], target, is_of_collection: false, fields, admin_only: false, writes: false, help, run }
}

impl Command {
    const fn of_collection(mut self) -> Self {
        self.is_of_collection = true;
        self.target = Type::String;
        self
    }
    const fn admin(mut self) -> Self {
        self.admin_only = true;
        self
    }
    const fn writes(mut self) -> Self {
        self.writes = true;
        self
    }
    const fn alias(mut self, aliases: &'static [&'static str]) -> Self {
        self.aliases = aliases;
        self
    }
}

const LISTING: &[Field] = &[
    may("filter", Type::Object),
    may("nameOnly", Type::Bool),
    may("authorizedCollections", Type::Bool),
    may("authorizedDatabases", Type::Bool),
    may("cursor", Type::Object),
];

/// The commands.
pub const COMMANDS: &[Command] = &[
    // Documents.
    command(
        "insert",
        Type::String,
        &[
            must("documents", Type::Array),
            may("ordered", Type::StrictBool),
            may("bypassDocumentValidation", Type::Bool),
            may("let", Type::Object),
        ],
        "insert documents",
        write::insert,
    )
    .of_collection()
    .writes(),
    command(
        "update",
        Type::String,
        &[
            must("updates", Type::Array),
            may("ordered", Type::StrictBool),
            may("bypassDocumentValidation", Type::Bool),
            may("let", Type::Object),
        ],
        "update documents",
        write::update,
    )
    .of_collection()
    .writes(),
    command(
        "delete",
        Type::String,
        &[must("deletes", Type::Array), may("ordered", Type::StrictBool), may("let", Type::Object)],
        "delete documents",
        write::delete,
    )
    .of_collection()
    .writes(),
    command(
        "find",
        Type::String,
        &[
            may("filter", Type::Object),
            may("projection", Type::Object),
            may("sort", Type::Object),
            may("skip", Type::Count),
            may("limit", Type::Count),
            may("batchSize", Type::Count),
            may("singleBatch", Type::Bool),
            may("hint", Type::Any),
            may("collation", Type::Object),
            may("let", Type::Object),
            may("allowDiskUse", Type::Bool),
            may("allowPartialResults", Type::Bool),
            may("noCursorTimeout", Type::Bool),
            may("tailable", Type::Bool),
            may("awaitData", Type::Bool),
            may("oplogReplay", Type::Bool),
            may("returnKey", Type::Bool),
            may("showRecordId", Type::Bool),
            may("min", Type::Object),
            may("max", Type::Object),
        ],
        "query for documents",
        find::find,
    )
    .of_collection(),
    command(
        "getMore",
        Type::Integer,
        &[must("collection", Type::String), may("batchSize", Type::Count)],
        "retrieve more results from an existing cursor",
        find::get_more,
    ),
    command(
        "killCursors",
        Type::String,
        &[must("cursors", Type::Array)],
        "kill a list of cursor ids",
        find::kill_cursors,
    )
    .of_collection(),
    command(
        "count",
        Type::String,
        &[
            may("query", Type::Object),
            may("limit", Type::Any),
            may("skip", Type::Count),
            may("hint", Type::Any),
            may("collation", Type::Object),
            may("fields", Type::Object),
        ],
        "count documents",
        documents::count,
    )
    .of_collection(),
    command(
        "distinct",
        Type::String,
        &[
            must("key", Type::String),
            may("query", Type::Object),
            may("hint", Type::Any),
            may("collation", Type::Object),
        ],
        "the values that a field has",
        documents::distinct,
    )
    .of_collection(),
    command(
        "findAndModify",
        Type::String,
        &[
            may("query", Type::Object),
            may("sort", Type::Object),
            may("remove", Type::Bool),
            may("update", Type::Any),
            may("new", Type::Bool),
            may("fields", Type::Object),
            may("upsert", Type::Bool),
            may("arrayFilters", Type::Array),
            may("hint", Type::Any),
            may("collation", Type::Object),
            may("bypassDocumentValidation", Type::Bool),
            may("let", Type::Object),
        ],
        "change or delete one document, and answer with it",
        documents::find_and_modify,
    )
    .of_collection()
    .writes()
    .alias(&["findandmodify"]),
    command(
        "explain",
        Type::Object,
        &[may("verbosity", Type::String)],
        "show which shards a command would ask, and why",
        find::explain,
    ),
    // Collections, indexes, databases.
    command(
        "create",
        Type::String,
        &[
            may("capped", Type::Bool),
            may("size", Type::Integer),
            may("max", Type::Integer),
            may("autoIndexId", Type::Bool),
            may("idIndex", Type::Object),
            may("timeseries", Type::Object),
            may("expireAfterSeconds", Type::Integer),
            may("clusteredIndex", Type::Any),
            may("validator", Type::Object),
            may("validationLevel", Type::String),
            may("validationAction", Type::String),
            may("indexOptionDefaults", Type::Object),
            may("viewOn", Type::String),
            may("pipeline", Type::Array),
            may("collation", Type::Object),
        ],
        "create a collection",
        collections::create,
    )
    .of_collection()
    .writes(),
    command("drop", Type::String, &[], "drop a collection", collections::drop).of_collection().writes(),
    command("dropDatabase", Type::Integer, &[], "drop a database", collections::drop_database).writes(),
    command(
        "createIndexes",
        Type::String,
        &[must("indexes", Type::Array), may("commitQuorum", Type::Any), may("ignoreUnknownIndexOptions", Type::Bool)],
        "create indexes",
        collections::create_indexes,
    )
    .of_collection()
    .writes(),
    command("dropIndexes", Type::String, &[must("index", Type::Any)], "drop indexes", collections::drop_indexes)
        .of_collection()
        .writes()
        .alias(&["deleteIndexes"]),
    command(
        "listIndexes",
        Type::String,
        &[may("cursor", Type::Object), may("includeBuildUUIDs", Type::Bool)],
        "list the indexes of a collection",
        collections::list_indexes,
    )
    .of_collection(),
    command("listCollections", Type::Any, LISTING, "list the collections of a database", collections::list_collections),
    command("listDatabases", Type::Any, LISTING, "list databases", collections::list_databases).admin(),
    command(
        "collStats",
        Type::String,
        &[may("scale", Type::Integer), may("verbose", Type::Bool)],
        "how large a collection is",
        collections::coll_stats,
    )
    .of_collection()
    .alias(&["collstats"]),
    command(
        "dbStats",
        Type::Any,
        &[may("scale", Type::Integer), may("freeStorage", Type::Integer)],
        "how large a database is",
        collections::db_stats,
    )
    .alias(&["dbstats"]),
    // The server.
    command("ping", Type::Any, &[], "do nothing", information::ping),
    command(
        "hello",
        Type::Any,
        &[
            may("helloOk", Type::Bool),
            may("topologyVersion", Type::Object),
            may("maxAwaitTimeMS", Type::Integer),
            may("saslSupportedMechs", Type::Any),
            may("speculativeAuthenticate", Type::Object),
            may("compression", Type::Array),
            may("client", Type::Object),
            may("loadBalanced", Type::Bool),
        ],
        "what this server is",
        information::hello,
    )
    .alias(&["isMaster", "ismaster"]),
    command("buildInfo", Type::Any, &[], "which version this is", information::build_info).alias(&["buildinfo"]),
    command(
        "getLastError",
        Type::Any,
        &[may("w", Type::Any), may("j", Type::Bool), may("wtimeout", Type::Integer), may("fsync", Type::Bool)],
        "how the last command of this session ended",
        information::get_last_error,
    )
    .alias(&["getlasterror"]),
    command("listCommands", Type::Any, &[], "list the commands", information::list_commands),
    // Shards.
    command(
        "addShard",
        Type::String,
        &[
            may("name", Type::String),
            may("maxSize", Type::Integer),
            may("user", Type::String),
            may("password", Type::String),
        ],
        "add a shard",
        cluster::add_shard,
    )
    .admin()
    .writes()
    .alias(&["addshard"]),
    command("removeShard", Type::String, &[], "drain and remove a shard", cluster::remove_shard)
        .admin()
        .writes()
        .alias(&["removeshard"]),
    command("listShards", Type::Any, &[], "list the shards", cluster::list_shards).admin().alias(&["listshards"]),
    command("getShardMap", Type::Any, &[], "which shard is where", cluster::get_shard_map).admin(),
    command("flushRouterConfig", Type::Any, &[], "read the catalog again", cluster::flush_router_config)
        .admin()
        .alias(&["flushrouterconfig"]),
    // Sharding.
    command(
        "enableSharding",
        Type::String,
        &[may("primaryShard", Type::String)],
        "enable sharding of a database",
        collections::enable_sharding,
    )
    .admin()
    .writes()
    .alias(&["enablesharding"]),
    command(
        "shardCollection",
        Type::String,
        &[
            must("key", Type::Object),
            may("unique", Type::Bool),
            may("numInitialChunks", Type::Integer),
            may("presplitHashedZones", Type::Bool),
            may("collation", Type::Object),
            may("timeseries", Type::Object),
            may("implicitlyCreateIndex", Type::Bool),
            may("enforceUniquenessCheck", Type::Bool),
        ],
        "shard a collection",
        cluster::shard_collection,
    )
    .admin()
    .writes()
    .alias(&["shardcollection"]),
    command(
        "split",
        Type::String,
        &[may("find", Type::Object), may("middle", Type::Object), may("bounds", Type::Array)],
        "split a chunk",
        cluster::split,
    )
    .admin()
    .writes(),
    command(
        "moveChunk",
        Type::String,
        &[
            must("to", Type::String),
            may("find", Type::Object),
            may("bounds", Type::Array),
            may("forceJumbo", Type::Bool),
            may("_secondaryThrottle", Type::Any),
            may("secondaryThrottle", Type::Any),
            may("_waitForDelete", Type::Bool),
            may("waitForDelete", Type::Bool),
        ],
        "move a chunk to a shard",
        cluster::move_chunk,
    )
    .admin()
    .writes()
    .alias(&["movechunk"]),
    command(
        "moveRange",
        Type::String,
        &[
            must("toShard", Type::String),
            may("min", Type::Object),
            may("max", Type::Object),
            may("forceJumbo", Type::Bool),
            may("secondaryThrottle", Type::Any),
            may("waitForDelete", Type::Bool),
        ],
        "move a range of keys to a shard",
        cluster::move_range,
    )
    .admin()
    .writes(),
    command(
        "mergeChunks",
        Type::String,
        &[must("bounds", Type::Array)],
        "merge the chunks between two bounds",
        cluster::merge_chunks,
    )
    .admin()
    .writes(),
    command(
        "clearJumboFlag",
        Type::String,
        &[must("find", Type::Object)],
        "let the balancer try again to split a chunk",
        cluster::clear_jumbo_flag,
    )
    .admin()
    .writes(),
    command("movePrimary", Type::String, &[must("to", Type::String)], "move a database", cluster::move_primary)
        .admin()
        .writes()
        .alias(&["moveprimary"]),
    // Zones.
    command(
        "addShardToZone",
        Type::String,
        &[must("zone", Type::String)],
        "put a shard into a zone",
        cluster::add_shard_to_zone,
    )
    .admin()
    .writes(),
    command(
        "removeShardFromZone",
        Type::String,
        &[must("zone", Type::String)],
        "take a shard out of a zone",
        cluster::remove_shard_from_zone,
    )
    .admin()
    .writes(),
    command(
        "updateZoneKeyRange",
        Type::String,
        &[must("min", Type::Object), must("max", Type::Object), must("zone", Type::Any)],
        "give a range of keys to a zone",
        cluster::update_zone_key_range,
    )
    .admin()
    .writes(),
    // The balancer.
    command("balancerStart", Type::Any, &[], "let the balancer work", cluster::balancer_start).admin().writes(),
    command("balancerStop", Type::Any, &[], "stop the balancer", cluster::balancer_stop).admin().writes(),
    command("balancerStatus", Type::Any, &[], "what the balancer does", cluster::balancer_status).admin(),
    command(
        "balancerCollectionStatus",
        Type::String,
        &[],
        "whether a collection is where the balancer wants it",
        cluster::balancer_collection_status,
    )
    .admin(),
    command(
        "configureCollectionBalancing",
        Type::String,
        &[may("chunkSize", Type::Integer)],
        "set how a collection is balanced",
        cluster::configure_collection_balancing,
    )
    .admin()
    .writes(),
];
