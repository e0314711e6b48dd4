//! Every command, as data.

use super::request::{Command, Run};
use super::{cluster, collections, documents, find, information, write};
use crate::operation::arguments::{Conflict, Field, Fields, Type, may, must};
use crate::operation::table::{self as operations, Operation};

const fn command(name: &'static str, target: Type, fields: Fields, help: &'static str, run: Run) -> Command {
    Command {
        name,
        aliases: &[],
        target,
        is_of_collection: false,
        fields,
        conflicts: &[],
        operations: &[],
        admin_only: false,
        writes: false,
        help,
        run,
    }
}

/// A command whose first field is a collection's name.
const fn of_collection(name: &'static str, fields: Fields, help: &'static str, run: Run) -> Command {
    Command { is_of_collection: true, ..command(name, Type::String, fields, help, run) }
}

/// A command of the database `admin`.
const fn admin(name: &'static str, target: Type, fields: Fields, help: &'static str, run: Run) -> Command {
    Command { admin_only: true, ..command(name, target, fields, help, run) }
}

impl Command {
    /// It runs these, each of which needs the right to do it.
    const fn runs(self, operations: &'static [&'static Operation]) -> Self {
        Self { operations, ..self }
    }
    const fn writes(self) -> Self {
        Self { writes: true, ..self }
    }
    const fn conflicts(self, conflicts: &'static [Conflict]) -> Self {
        Self { conflicts, ..self }
    }
    const fn alias(self, aliases: &'static [&'static str]) -> Self {
        Self { aliases, ..self }
    }
}

const CURSOR: &[Field] = &[may("cursor", Type::Object)];
const LISTING: &[Field] = &[
    may("filter", Type::Object),
    may("nameOnly", Type::Bool),
    may("authorizedCollections", Type::Bool),
    may("authorizedDatabases", Type::Bool),
];
const ONLY_FIND: &[Field] = &[must("find", Type::Object)];
const SCALE: Field = may("scale", Type::Integer);
const TO: &[Field] = &[must("to", Type::String)];
const ZONE: &[Field] = &[must("zone", Type::String)];

/// The commands.
pub static COMMANDS: &[Command] = &[
    // Documents.
    of_collection("insert", operations::INSERT_COMMAND, "insert documents", write::insert)
        .runs(&[&operations::INSERT_MANY])
        .writes(),
    of_collection("update", operations::UPDATE_COMMAND, "update documents", write::update)
        .runs(&[&operations::UPDATE_ONE, &operations::UPDATE_MANY, &operations::REPLACE_ONE])
        .writes(),
    of_collection("delete", operations::DELETE_COMMAND, "delete documents", write::delete)
        .runs(&[&operations::DELETE_ONE, &operations::DELETE_MANY])
        .writes(),
    of_collection("find", operations::FIND_COMMAND, "query for documents", find::find).runs(&[&operations::FIND]),
    command(
        "getMore",
        Type::Integer,
        &[&[must("collection", Type::String), may("batchSize", Type::Count)]],
        "retrieve more results from an existing cursor",
        find::get_more,
    ),
    of_collection("killCursors", &[&[must("cursors", Type::Array)]], "kill a list of cursor ids", find::kill_cursors),
    of_collection("count", operations::COUNT_COMMAND, "count documents", documents::count).runs(&[&operations::COUNT]),
    of_collection("distinct", operations::DISTINCT_COMMAND, "the values that a field has", documents::distinct)
        .runs(&[&operations::DISTINCT]),
    of_collection(
        "findAndModify",
        operations::FIND_AND_MODIFY_COMMAND,
        "change or delete one document, and answer with it",
        documents::find_and_modify,
    )
    .runs(&[&operations::FIND_AND_MODIFY])
    .writes()
    .conflicts(operations::FIND_AND_MODIFY_CONFLICTS)
    .alias(&["findandmodify"]),
    command(
        "explain",
        Type::Object,
        &[&[may("verbosity", Type::String)]],
        "show which shards a command would ask, and why",
        find::explain,
    )
    .runs(&[&operations::EXPLAIN]),
    // Collections, indexes, databases.
    of_collection("create", operations::CREATE_COMMAND, "create a collection", collections::create)
        .runs(&[&operations::CREATE_COLLECTION])
        .writes()
        .conflicts(operations::CREATE_CONFLICTS),
    of_collection("drop", &[], "drop a collection", collections::drop).runs(&[&operations::DROP_COLLECTION]).writes(),
    command("dropDatabase", Type::Integer, &[], "drop a database", collections::drop_database)
        .runs(&[&operations::DROP_DATABASE])
        .writes(),
    of_collection("createIndexes", operations::CREATE_INDEXES_COMMAND, "create indexes", collections::create_indexes)
        .runs(&[&operations::CREATE_INDEX])
        .writes(),
    of_collection("dropIndexes", &[&[must("index", Type::Any)]], "drop indexes", collections::drop_indexes)
        .runs(&[&operations::DROP_INDEXES])
        .writes()
        .alias(&["deleteIndexes"]),
    of_collection(
        "listIndexes",
        &[CURSOR, &[may("includeBuildUUIDs", Type::Bool)]],
        "list the indexes of a collection",
        collections::list_indexes,
    )
    .runs(&[&operations::LIST_INDEXES]),
    command(
        "listCollections",
        Type::Any,
        &[LISTING, CURSOR],
        "list the collections of a database",
        collections::list_collections,
    ),
    admin("listDatabases", Type::Any, &[LISTING, CURSOR], "list databases", collections::list_databases),
    of_collection(
        "collStats",
        &[&[SCALE, may("verbose", Type::Bool)]],
        "how large a collection is",
        collections::coll_stats,
    )
    .alias(&["collstats"]),
    command(
        "dbStats",
        Type::Any,
        &[&[SCALE, may("freeStorage", Type::Integer)]],
        "how large a database is",
        collections::db_stats,
    )
    .alias(&["dbstats"]),
    // The server.
    command("ping", Type::Any, &[], "do nothing", information::ping),
    command(
        "hello",
        Type::Any,
        &[&[
            may("helloOk", Type::Bool),
            may("topologyVersion", Type::Object),
            may("maxAwaitTimeMS", Type::Integer),
            may("saslSupportedMechs", Type::Any),
            may("speculativeAuthenticate", Type::Object),
            may("compression", Type::Array),
            may("client", Type::Object),
            may("loadBalanced", Type::Bool),
        ]],
        "what this server is",
        information::hello,
    )
    .alias(&["isMaster", "ismaster"]),
    command("buildInfo", Type::Any, &[], "which version this is", information::build_info).alias(&["buildinfo"]),
    command(
        "getLastError",
        Type::Any,
        &[&[may("w", Type::Any), may("j", Type::Bool), may("wtimeout", Type::Integer), may("fsync", Type::Bool)]],
        "how the last command of this session ended",
        information::get_last_error,
    )
    .alias(&["getlasterror"]),
    command("listCommands", Type::Any, &[], "list the commands", information::list_commands),
    // Shards.
    admin("addShard", Type::String, operations::ADD_SHARD_OPTIONS, "add a shard", cluster::add_shard)
        .runs(&[&operations::ADD_SHARD])
        .writes()
        .alias(&["addshard"]),
    admin("removeShard", Type::String, &[], "drain and remove a shard", cluster::remove_shard)
        .runs(&[&operations::REMOVE_SHARD])
        .writes()
        .alias(&["removeshard"]),
    admin("listShards", Type::Any, &[], "list the shards", cluster::list_shards)
        .runs(&[&operations::LIST_SHARDS])
        .alias(&["listshards"]),
    admin("getShardMap", Type::Any, &[], "which shard is where", cluster::get_shard_map)
        .runs(&[&operations::LIST_SHARDS]),
    admin("flushRouterConfig", Type::Any, &[], "read the catalog again", cluster::flush_router_config)
        .runs(&[&operations::SET_SETTING])
        .alias(&["flushrouterconfig"]),
    // Sharding.
    admin(
        "enableSharding",
        Type::String,
        &[&[may("primaryShard", Type::String)]],
        "enable sharding of a database",
        collections::enable_sharding,
    )
    .runs(&[&operations::ENABLE_SHARDING])
    .writes()
    .alias(&["enablesharding"]),
    admin(
        "shardCollection",
        Type::String,
        operations::SHARD_COLLECTION_COMMAND,
        "shard a collection",
        cluster::shard_collection,
    )
    .runs(&[&operations::SHARD_COLLECTION])
    .writes()
    .alias(&["shardcollection"]),
    admin("split", Type::String, operations::SPLIT_COMMAND, "split a chunk", cluster::split)
        .runs(&[&operations::SPLIT_AT, &operations::SPLIT_FIND])
        .writes()
        .conflicts(operations::SPLIT_CONFLICTS),
    admin("moveChunk", Type::String, operations::MOVE_CHUNK_COMMAND, "move a chunk to a shard", cluster::move_chunk)
        .runs(&[&operations::MOVE_CHUNK, &operations::MOVE_RANGE])
        .writes()
        .conflicts(operations::MOVE_CHUNK_CONFLICTS)
        .alias(&["movechunk"]),
    admin(
        "moveRange",
        Type::String,
        operations::MOVE_RANGE_COMMAND,
        "move a range of keys to a shard",
        cluster::move_range,
    )
    .runs(&[&operations::MOVE_RANGE])
    .writes()
    .conflicts(operations::MOVE_RANGE_CONFLICTS),
    admin(
        "mergeChunks",
        Type::String,
        &[&[must("bounds", Type::Array)]],
        "merge the chunks between two bounds",
        cluster::merge_chunks,
    )
    .runs(&[&operations::MERGE_CHUNKS])
    .writes(),
    admin(
        "clearJumboFlag",
        Type::String,
        &[ONLY_FIND],
        "let the balancer try again to split a chunk",
        cluster::clear_jumbo_flag,
    )
    .runs(&[&operations::CLEAR_JUMBO_FLAG])
    .writes(),
    admin("movePrimary", Type::String, &[TO], "move a database", cluster::move_primary)
        .runs(&[&operations::MOVE_PRIMARY])
        .writes()
        .alias(&["moveprimary"]),
    // Zones.
    admin("addShardToZone", Type::String, &[ZONE], "put a shard into a zone", cluster::add_shard_to_zone)
        .runs(&[&operations::ADD_SHARD_TO_ZONE])
        .writes(),
    admin("removeShardFromZone", Type::String, &[ZONE], "take a shard out of a zone", cluster::remove_shard_from_zone)
        .runs(&[&operations::REMOVE_SHARD_FROM_ZONE])
        .writes(),
    admin(
        "updateZoneKeyRange",
        Type::String,
        &[&[must("min", Type::Object), must("max", Type::Object), must("zone", Type::Any)]],
        "give a range of keys to a zone",
        cluster::update_zone_key_range,
    )
    .runs(&[&operations::UPDATE_ZONE_KEY_RANGE])
    .writes(),
    // The balancer.
    admin("balancerStart", Type::Any, &[], "let the balancer work", cluster::balancer_start)
        .runs(&[&operations::START_BALANCER])
        .writes(),
    admin("balancerStop", Type::Any, &[], "stop the balancer", cluster::balancer_stop)
        .runs(&[&operations::STOP_BALANCER])
        .writes(),
    admin("balancerStatus", Type::Any, &[], "what the balancer does", cluster::balancer_status)
        .runs(&[&operations::BALANCER_STATUS]),
    admin(
        "balancerCollectionStatus",
        Type::String,
        &[],
        "whether a collection is where the balancer wants it",
        cluster::balancer_collection_status,
    )
    .runs(&[&operations::BALANCER_COLLECTION_STATUS]),
    admin(
        "configureCollectionBalancing",
        Type::String,
        operations::BALANCING_OPTIONS,
        "set how a collection is balanced",
        cluster::configure_collection_balancing,
    )
    .runs(&[&operations::CONFIGURE_COLLECTION_BALANCING])
    .writes(),
];
