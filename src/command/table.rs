//! All commands, as data.

use super::reply::Reply;
use super::request::{Command, Run};
use super::{
    aggregate, bulk_write, cluster, collections, documents, explain, find, information, server, sessions, users, write,
};
use crate::operation::arguments::{Conflict, Field, Fields, OTHERS, Type, may, must};
use crate::operation::table::*;
use crate::operation::{self, balancer, chunks, query_analyzer, resharding, shard_key, shards};

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
        read_concern: false,
        write_concern: false,
        help,
        run,
    }
}

const fn of_collection(name: &'static str, target: Type, fields: Fields, help: &'static str, run: Run) -> Command {
    Command { is_of_collection: true, ..command(name, target, fields, help, run) }
}

/// A command that runs in the database `admin` only.
const fn admin(name: &'static str, target: Type, fields: Fields, help: &'static str, run: Run) -> Command {
    Command { admin_only: true, ..command(name, target, fields, help, run) }
}

/// What a command does, and so which concerns it takes.
impl Command {
    const fn reads(self) -> Self {
        self
    }
    /// It reads documents.
    const fn queries(self) -> Self {
        Self { read_concern: true, ..self }
    }
    /// It reads documents, and a stage of it may write some.
    const fn aggregates(self) -> Self {
        Self { read_concern: true, write_concern: true, ..self }
    }
    const fn writes(self) -> Self {
        Self { writes: true, write_concern: true, ..self }
    }
    /// It writes documents.
    const fn modifies(self) -> Self {
        Self { read_concern: true, ..self.writes() }
    }
    const fn unless(self, conflicts: &'static [Conflict]) -> Self {
        Self { conflicts, ..self }
    }
}

/// Rows: name and aliases; what it does; kind, and type of the first field; other fields; in brackets the
/// operations that it may run, and conflicts of its fields; function; help.
macro_rules! commands {
    ($($name:literal $(| $alias:literal)* $access:ident $place:ident($target:ident) $fields:expr
        => [$($operation:ident)* $(; $conflicts:ident)?] $run:expr, $help:expr;)*) => {
        /// The commands.
        pub static COMMANDS: &[Command] = &[$(Command {
            aliases: &[$($alias),*],
            operations: &[$(&$operation),*],
            ..$place($name, Type::$target, $fields, $help, $run).$access()$(.unless($conflicts))?
        }),*];
    };
}

const NONE: Fields = &[];
/// Fields that these commands do not know are ignored, as in MongoDB.
const ANY_OTHER: &[Field] = &[OTHERS];
const CURSOR: &[Field] = &[may("cursor", Type::Object)];
const LISTING: &[Field] =
    &[may("filter", Type::Object), may("nameOnly", Type::StrictBool), may("authorizedCollections", Type::StrictBool)];
/// Unlike in [`LISTING`], `nameOnly` may be a number here.
const DATABASE_LISTING: &[Field] =
    &[may("filter", Type::Object), may("nameOnly", Type::Bool), may("authorizedDatabases", Type::StrictBool)];
const ONLY_FIND: &[Field] = &[must("find", Type::Object)];
const SCALE: Field = may("scale", Type::Integer);
const TO: &[Field] = &[must("to", Type::String)];
const ZONE: &[Field] = &[must("zone", Type::String)];
const ZONE_RANGE: &[Field] = &[must("min", Type::Object), must("max", Type::Object), must("zone", Type::Any)];
const SEARCH: &str = "Search indexes are a service of MongoDB Atlas. Other indexes are created by createIndexes.";
const SEARCH_INDEX: Fields = &[&[may("name", Type::String), may("id", Type::String), may("definition", Type::Object)]];
const LAST_ERROR: &[Field] =
    &[may("w", Type::Any), may("j", Type::Bool), may("wtimeout", Type::Integer), may("fsync", Type::Bool)];
/// Any value counts as true, but 0 and false.
const VALIDATING: &[Field] = &[
    may("scandata", Type::Any),
    may("full", Type::Any),
    may("checkBSONConformance", Type::Any),
    may("enforceFastCount", Type::Any),
    may("background", Type::Any),
    may("metadata", Type::Any),
    may("repair", Type::Any),
    may("fixMultikey", Type::Any),
    OTHERS,
];
const DATA_SIZE: &[Field] =
    &[may("keyPattern", Type::Object), may("min", Type::Object), may("max", Type::Object), may("estimate", Type::Bool)];
const RESTRICTIONS: Field = may("authenticationRestrictions", Type::Array).refused();
const ROLES: &[Field] = &[must("roles", Type::Array)];
const USER: Fields = &[&[
    may("pwd", Type::Secret),
    may("roles", Type::Array),
    may("mechanisms", Type::Array),
    may("digestPassword", Type::Bool),
    may("passwordDigestor", Type::String),
    may("customData", Type::Object).refused(),
    RESTRICTIONS,
]];
const USERS_INFO: Fields = &[&[
    may("showCredentials", Type::Bool).refused(),
    may("showCustomData", Type::Bool),
    may("showPrivileges", Type::Bool),
    may("showAuthenticationRestrictions", Type::Bool),
    may("filter", Type::Object),
]];
const HELLO: &[Field] = &[
    may("helloOk", Type::Bool),
    may("topologyVersion", Type::Object),
    may("maxAwaitTimeMS", Type::Integer),
    may("saslSupportedMechs", Type::Any),
    may("speculativeAuthenticate", Type::Object),
    may("compression", Type::Array),
    may("client", Type::Object),
    may("loadBalanced", Type::Bool),
];

commands! {
    // Documents.
    "insert" modifies of_collection(String) INSERT_COMMAND => [INSERT_MANY] write::insert, "insert documents";
    "update" modifies of_collection(String) UPDATE_COMMAND
        => [UPDATE_ONE UPDATE_MANY REPLACE_ONE SET_SETTING START_BALANCER STOP_BALANCER ENABLE_BALANCING DISABLE_BALANCING]
        write::update, "update documents";
    "delete" modifies of_collection(String) DELETE_COMMAND
        => [DELETE_ONE DELETE_MANY] write::delete, "delete documents";
    "bulkWrite" modifies admin(Any) BULK_WRITE_COMMAND
        => [INSERT_MANY UPDATE_ONE UPDATE_MANY REPLACE_ONE DELETE_ONE DELETE_MANY] bulk_write::bulk_write,
        "insert, update and delete documents of several collections";
    "find" queries of_collection(String) FIND_COMMAND => [FIND] find::find, "query for documents";
    "getMore" reads command(Long)
        &[&[must("collection", Type::String), may("batchSize", Type::Count), may("term", Type::Long)]]
        => [] find::get_more, "retrieve more results from an existing cursor";
    "killCursors" reads of_collection(String) &[&[must("cursors", Type::Array)]]
        => [] find::kill_cursors, "kill a list of cursor ids";
    "aggregate" aggregates command(Any) AGGREGATE_COMMAND
        => [AGGREGATE; AGGREGATE_CONFLICTS] aggregate::aggregate, "run a pipeline over a collection";
    "count" queries of_collection(String) COUNT_COMMAND => [COUNT] documents::count, "count documents";
    "distinct" queries of_collection(String) DISTINCT_COMMAND
        => [DISTINCT] documents::distinct, "return the distinct values of a field";
    "findAndModify" | "findandmodify" modifies of_collection(String) FIND_AND_MODIFY_COMMAND
        => [FIND_AND_MODIFY; FIND_AND_MODIFY_CONFLICTS] documents::find_and_modify, "change or delete one document, and return it";
    "explain" queries command(Object) &[&[may("verbosity", Type::String)]]
        => [EXPLAIN] explain::explain, "show which shards a command would use, and why";
    // Collections, indexes, databases.
    "create" writes of_collection(String) CREATE_COMMAND
        => [CREATE_COLLECTION; CREATE_CONFLICTS] collections::create, "create a collection";
    "collMod" | "collmod" writes of_collection(String) COLL_MOD_COMMAND
        => [MODIFY_COLLECTION] collections::modify, "change an index, or the definition of a view";
    "renameCollection" writes admin(String) RENAME_COMMAND => [RENAME_COLLECTION] collections::rename, "rename a collection";
    "validate" reads of_collection(String) &[VALIDATING] => [CHECK_COLLECTION] server::validate, "check a collection";
    "drop" writes of_collection(String) NONE => [DROP_COLLECTION] collections::drop, "drop a collection";
    "dropDatabase" writes command(Integer) NONE => [DROP_DATABASE] collections::drop_database, "drop a database";
    "createIndexes" writes of_collection(String) CREATE_INDEXES_COMMAND
        => [CREATE_INDEX] collections::create_indexes, "create indexes";
    "dropIndexes" | "deleteIndexes" writes of_collection(String) &[&[must("index", Type::Any)]]
        => [DROP_INDEXES] collections::drop_indexes, "drop indexes";
    "listIndexes" reads of_collection(String) &[CURSOR, &[may("includeBuildUUIDs", Type::Bool), may("includeIndexBuildInfo", Type::Bool)]]
        => [LIST_INDEXES; LIST_INDEXES_CONFLICTS] collections::list_indexes, "list the indexes of a collection";
    "createSearchIndexes" reads of_collection(String) &[&[may("indexes", Type::Array)]] => [] cluster::refused, SEARCH;
    "updateSearchIndex" reads of_collection(String) SEARCH_INDEX => [] cluster::refused, SEARCH;
    "dropSearchIndex" reads of_collection(String) SEARCH_INDEX => [] cluster::refused, SEARCH;
    "listCollections" reads command(Any) &[LISTING, CURSOR]
        => [] collections::list_collections, "list the collections of a database";
    "listDatabases" reads admin(Any) &[DATABASE_LISTING, CURSOR] => [] collections::list_databases, "list databases";
    "collStats" | "collstats" reads of_collection(String) &[&[SCALE, may("verbose", Type::Bool)]]
        => [] collections::coll_stats, "report the size of a collection";
    "dbStats" | "dbstats" reads command(Any) &[&[SCALE, may("freeStorage", Type::Integer)]]
        => [] collections::db_stats, "report the size of a database";
    "dataSize" | "datasize" reads command(String) &[DATA_SIZE] => [] collections::data_size, "report the size of the documents of a collection";
    // The server.
    "ping" reads command(Any) NONE => [] |_| Ok(Reply::ok()), "do nothing";
    "hello" | "isMaster" | "ismaster" reads command(Any) &[HELLO] => [] information::hello, "describe this server";
    "buildInfo" | "buildinfo" reads command(Any) NONE => [] information::build_info, "report the version";
    "getLastError" | "getlasterror" reads command(Any) &[LAST_ERROR]
        => [] information::get_last_error, "report the result of this session's last command";
    "listCommands" reads command(Any) &[ANY_OTHER] => [] information::list_commands, "list the commands";
    "serverStatus" reads command(Any) &[ANY_OTHER] => [] server::server_status, "report connections and transactions";
    "hostInfo" reads command(Any) NONE => [] server::host_info, "describe the machine";
    "getCmdLineOpts" reads admin(Any) NONE => [] server::get_cmd_line_opts, "report the options of the command line";
    "getLog" reads admin(String) NONE => [] server::get_log, "report startup warnings";
    "getParameter" reads admin(Any) &[ANY_OTHER] => [] server::get_parameter, "report a parameter";
    "getDefaultRWConcern" reads admin(Any) &[&[may("inMemory", Type::Bool)]]
        => [] server::get_default_rw_concern, "report the default read and write concern";
    "connectionStatus" reads command(Any) &[&[may("showPrivileges", Type::Bool)]]
        => [] server::connection_status, "report the user of this session";
    "whatsmyuri" reads command(Any) NONE => [] server::whats_my_uri, "report the address of the client";
    "currentOp" reads admin(Any) &[&[may("$all", Type::Bool), may("$ownOps", Type::Bool), OTHERS]]
        => [] server::current_op, "list the running statements";
    "killOp" writes admin(Any) &[&[may("op", Type::Any), OTHERS]] => [] server::kill_op, "cancel a statement";
    "top" reads admin(Any) &[ANY_OTHER] => [] cluster::refused, "MongoDB's routers have no command top: docshard.index_usage and pg_stat_statements count accesses";
    // Sessions.
    "startSession" reads command(Any) &[ANY_OTHER] => [] sessions::start, "begin a session";
    "refreshSessions" reads command(Array) &[ANY_OTHER] => [] sessions::named, "keep sessions from being forgotten";
    "endSessions" reads command(Array) &[ANY_OTHER] => [] sessions::named, "end sessions";
    "killSessions" reads command(Array) &[ANY_OTHER] => [] sessions::named, "end sessions, and abort their transactions";
    "killAllSessions" reads command(Array) &[ANY_OTHER] => [] sessions::of_users, "end the sessions of users";
    "killAllSessionsByPattern" reads command(Array) &[ANY_OTHER] => [] sessions::by_pattern, "end the sessions that match a pattern";
    // Users and roles.
    "createUser" writes command(String) USER => [GRANT_ACCESS] users::create_user, "create a user";
    "updateUser" writes command(String) USER => [GRANT_ACCESS REVOKE_ACCESS] users::update_user, "change a user's password or roles";
    "dropUser" writes command(String) NONE => [REVOKE_ACCESS] users::drop, "drop a user";
    "usersInfo" reads command(Any) USERS_INFO => [] users::users_info, "list users";
    "grantRolesToUser" writes command(String) &[ROLES] => [GRANT_ACCESS] users::grant_roles, "give roles to a user";
    "revokeRolesFromUser" writes command(String) &[ROLES] => [REVOKE_ACCESS] users::revoke_roles, "take roles from a user";
    "createRole" writes command(String) &[ROLES, &[must("privileges", Type::Array), RESTRICTIONS]] => [GRANT_ACCESS] users::create_role, "create a role";
    "dropRole" writes command(String) NONE => [REVOKE_ACCESS] users::drop, "drop a role";
    "rolesInfo" reads command(Any) &[&[may("showBuiltinRoles", Type::Bool), may("showPrivileges", Type::Any), may("showAuthenticationRestrictions", Type::Bool)]]
        => [] users::roles_info, "list roles";
    "grantRolesToRole" writes command(String) &[ROLES] => [GRANT_ACCESS] users::grant_roles, "give roles to a role";
    "revokeRolesFromRole" writes command(String) &[ROLES] => [REVOKE_ACCESS] users::revoke_roles, "take roles from a role";
    // Shards.
    "addShard" | "addshard" writes admin(String) ADD_SHARD_OPTIONS
        => [ADD_SHARD] |it| it.answer(&ADD_SHARD, || shards::add(it.target_text(), &it.fields)), "add a shard";
    "removeShard" | "removeshard" writes admin(String) NONE
        => [REMOVE_SHARD] |it| it.answer(&REMOVE_SHARD, || shards::remove(it.target_text(), &it.fields)),
        "drain and remove a shard";
    "startShardDraining" writes admin(String) NONE
        => [REMOVE_SHARD] |it| it.answer(&REMOVE_SHARD, || shards::start_draining(it.target_text())), "begin to drain a shard";
    "stopShardDraining" writes admin(String) NONE
        => [REMOVE_SHARD] |it| it.answer(&REMOVE_SHARD, || shards::stop_draining(it.target_text())), "stop draining a shard";
    "shardDrainingStatus" reads admin(Any) NONE
        => [REMOVE_SHARD] cluster::shard_draining_status, "report the progress of draining";
    "commitShardRemoval" writes admin(String) NONE
        => [REMOVE_SHARD] |it| it.answer(&REMOVE_SHARD, || shards::commit_removal(it.target_text())), "remove a drained shard";
    "listShards" | "listshards" reads admin(Any) &[&[may("filter", Type::Object)]] => [LIST_SHARDS] cluster::list_shards, "list the shards";
    "checkMetadataConsistency" reads command(Any) CHECK_METADATA_COMMAND
        => [CHECK_METADATA_CONSISTENCY] cluster::check_metadata_consistency, "check that the catalog and the shards agree";
    "getShardMap" reads admin(Any) NONE => [LIST_SHARDS] cluster::get_shard_map, "which shard is where";
    "flushRouterConfig" | "flushrouterconfig" reads admin(Any) NONE
        => [SET_SETTING] cluster::flush_router_config, "read the catalog again";
    // Sharding.
    "enableSharding" | "enablesharding" writes admin(String) &[&[may("primaryShard", Type::String)]]
        => [ENABLE_SHARDING] |it| it.answer(&ENABLE_SHARDING, || shards::enable_sharding(it.target_text(), it.fields.text("primaryShard"))),
        "enable sharding of a database";
    "shardCollection" | "shardcollection" writes admin(String) SHARD_COLLECTION_COMMAND
        => [SHARD_COLLECTION] |it| it.answer(&SHARD_COLLECTION, || operation::collections::shard(it.target_text(), it.json("key"), &it.fields)),
        "shard a collection";
    "reshardCollection" writes admin(String) RESHARD_COLLECTION_COMMAND
        => [RESHARD_COLLECTION] |it| it.answer(&RESHARD_COLLECTION, || resharding::reshard(it.target_text(), it.json("key"), &it.fields)),
        "give a collection another shard key";
    "abortReshardCollection" writes admin(String) NONE
        => [ABORT_RESHARD_COLLECTION] |it| it.answer(&ABORT_RESHARD_COLLECTION, || resharding::abort(it.target_text(), Some("reshardCollection"))),
        "end reshardCollection";
    "commitReshardCollection" writes admin(String) NONE
        => [COMMIT_RESHARD_COLLECTION] |it| it.answer(&COMMIT_RESHARD_COLLECTION, || resharding::commit(it.target_text(), Some("reshardCollection"))),
        "let reshardCollection block writes until it is done";
    "refineCollectionShardKey" writes admin(String) REFINE_COMMAND
        => [REFINE_COLLECTION_SHARD_KEY] |it| it.answer(&REFINE_COLLECTION_SHARD_KEY, || resharding::refine(it.target_text(), it.json("key"), &it.fields)),
        "add fields to a shard key";
    "unshardCollection" writes admin(String) UNSHARD_COMMAND
        => [UNSHARD_COLLECTION] |it| it.answer(&UNSHARD_COLLECTION, || resharding::unshard(it.target_text(), it.fields.text("toShard"), &it.fields)),
        "make a collection unsharded";
    "abortUnshardCollection" writes admin(String) NONE
        => [ABORT_RESHARD_COLLECTION] |it| it.answer(&ABORT_RESHARD_COLLECTION, || resharding::abort(it.target_text(), Some("unshardCollection"))),
        "end unshardCollection";
    "moveCollection" writes admin(String) MOVE_COLLECTION_COMMAND
        => [MOVE_COLLECTION] |it| it.answer(&MOVE_COLLECTION, || resharding::move_to(it.target_text(), it.text("toShard"), &it.fields)),
        "move an unsharded collection to a shard";
    "abortMoveCollection" writes admin(String) NONE
        => [ABORT_RESHARD_COLLECTION] |it| it.answer(&ABORT_RESHARD_COLLECTION, || resharding::abort(it.target_text(), Some("moveCollection"))),
        "end moveCollection";
    "configureQueryAnalyzer" writes admin(String) ANALYZER_OPTIONS
        => [CONFIGURE_QUERY_ANALYZER] |it| it.answer(&CONFIGURE_QUERY_ANALYZER, || query_analyzer::configure(it.target_text(), &it.fields)),
        "sample the statements of a collection";
    "analyzeShardKey" reads admin(String) ANALYZE_COMMAND
        => [ANALYZE_SHARD_KEY] |it| it.answer(&ANALYZE_SHARD_KEY, || shard_key::analyze(it.target_text(), it.json("key"), &it.fields)),
        "report how suitable a shard key is";
    "split" writes admin(String) SPLIT_COMMAND
        => [SPLIT_AT SPLIT_FIND; SPLIT_CONFLICTS] cluster::split, "split a chunk";
    "moveChunk" | "movechunk" writes admin(String) MOVE_CHUNK_COMMAND
        => [MOVE_CHUNK MOVE_RANGE; MOVE_CHUNK_CONFLICTS] cluster::move_chunk, "move a chunk to a shard";
    "moveRange" writes admin(String) MOVE_RANGE_COMMAND
        => [MOVE_RANGE; MOVE_RANGE_CONFLICTS] cluster::move_range, "move a range of keys to a shard";
    "mergeChunks" writes admin(String) &[&[must("bounds", Type::Array)]]
        => [MERGE_CHUNKS] |it| it.answer(&MERGE_CHUNKS, || chunks::merge(it.target_text(), it.specification("bounds"))),
        "merge the chunks between two bounds";
    "clearJumboFlag" writes admin(String) &[ONLY_FIND]
        => [CLEAR_JUMBO_FLAG] |it| it.answer(&CLEAR_JUMBO_FLAG, || chunks::clear_jumbo_flag(it.target_text(), it.specification("find"))),
        "let the balancer split a jumbo chunk again";
    "movePrimary" | "moveprimary" writes admin(String) &[TO]
        => [MOVE_PRIMARY] |it| it.answer(&MOVE_PRIMARY, || shards::move_primary(it.target_text(), it.text("to"))),
        "move a database";
    // Zones.
    "addShardToZone" writes admin(String) &[ZONE]
        => [ADD_SHARD_TO_ZONE] |it| it.answer(&ADD_SHARD_TO_ZONE, || shards::add_to_zone(it.target_text(), it.text("zone"))),
        "put a shard into a zone";
    "removeShardFromZone" writes admin(String) &[ZONE]
        => [REMOVE_SHARD_FROM_ZONE] |it| it.answer(&REMOVE_SHARD_FROM_ZONE, || shards::remove_from_zone(it.target_text(), it.text("zone"))),
        "take a shard out of a zone";
    "updateZoneKeyRange" writes admin(String) &[ZONE_RANGE]
        => [UPDATE_ZONE_KEY_RANGE] cluster::update_zone_key_range, "give a range of keys to a zone";
    // The balancer.
    "balancerStart" writes admin(Any) NONE
        => [START_BALANCER] |it| it.answer(&START_BALANCER, balancer::start), "switch the balancer on";
    "balancerStop" writes admin(Any) NONE => [STOP_BALANCER] cluster::balancer_stop, "stop the balancer";
    "balancerStatus" reads admin(Any) NONE
        => [BALANCER_STATUS] |it| it.answer(&BALANCER_STATUS, balancer::status), "report the balancer's state";
    "balancerCollectionStatus" reads admin(String) NONE
        => [BALANCER_COLLECTION_STATUS] |it| it.answer(&BALANCER_COLLECTION_STATUS, || balancer::collection_status(it.target_text())),
        "report whether a collection is balanced";
    "configureCollectionBalancing" writes admin(String) BALANCING_OPTIONS
        => [CONFIGURE_COLLECTION_BALANCING] |it| it.answer(&CONFIGURE_COLLECTION_BALANCING, || balancer::configure(it.target_text(), &it.fields)),
        "set how a collection is balanced";
}
