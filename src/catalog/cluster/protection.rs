//! Refuses to drop what a cluster needs: the extension, the servers of shards and the logins there, the tables of collections, and the
//! database itself. This includes drops that cascade. Refuses changes of collections' tables, too (`shard::table_shape`), and TRUNCATE.
//! Changes of the extension's own objects are refused (`shard::member_shape`) because the checks depend on them.
//!
//! `shard::table_witness` recognizes collections' tables, and finds their documents, even if rows of docshard's own tables were deleted.
//!
//! A database needs protection if it is a router with other shards, if it is a shard of a router, or if it holds documents.
//! docshard's own statements pass (`drop_guard::unguarded`); after `docshard.dismantle()` the database needs no protection. Triggers
//! on `shards` and `node` maintain the database's setting `docshard.part_of_cluster`, which is visible to other databases of the
//! server.

use crate::catalog::cluster::shards::names::{LOCAL, server_name};
use crate::pg::error::{Error, Result};
use crate::pg::object::change_watch::{self, Changed};
use crate::pg::object::drop_guard::{self, Dropped, Relation};
use crate::pg::{security::user, server, spi};
use crate::shard::member_shape::Damage;
use crate::shard::table_shape::{self, Property};
use crate::shard::{access, here, member_shape, node, table, table_witness};
use crate::store;
use docshard_core::error::Kind;
use docshard_core::error::sqlstate;
use docshard_core::routing::names;
use docshard_core::routing::protocol::shard_tables::{NodeRow, ReadPlacements};
use docshard_core::sql::param::Param;
use pgrx::pg_sys::Oid;
use std::cell::Cell;

thread_local! {
    /// The statement in which the extension was found to be droppable. The drops of its objects in this statement are not checked: meanwhile
    /// its tables can no longer be read.
    static PASSED: Cell<Option<(u32, i64)>> = const { Cell::new(None) };
}

/// Installs the check of drops; called from `_PG_init`.
pub fn init() {
    drop_guard::watch(judge, change_ended);
}

/// The reason why this database must not be dropped, or None.
pub fn role() -> Result<Option<String>> {
    if let Some(node) = here::node()? {
        return Ok(Some(format!("this database is the shard \"{}\" of a cluster", node.shard)));
    }
    let shards = store::shards::remote_names()?;
    if !shards.is_empty() {
        let shards = shards.join(", ");
        return Ok(Some(format!("this database is the router of a cluster with other shards: {shards}")));
    }
    for table in table_witness::all()? {
        if table_witness::has_rows(table)? {
            return Ok(Some("this database holds documents".to_owned()));
        }
    }
    Ok(None)
}

fn judge(dropped: &Dropped, name: &str) -> Result<()> {
    match dropped {
        Dropped::Database(database) => judge_database(*database, name),
        Dropped::Extension => {
            let statement = server::present_statement();
            if PASSED.get() != Some(statement) {
                match user::as_extension_owner(role)? {
                    Some(role) => return Err(needed(name, &role).with_hint(DISMANTLE)),
                    None => PASSED.set(Some(statement)),
                }
            }
            Ok(())
        }
        Dropped::Table(relation) => judge_table(relation, || format!("cannot drop {name}"), TABLE_HINT),
        Dropped::Rows(relation) => {
            let what = || format!("cannot truncate table {}.{}", relation.schema, relation.name);
            let hint = "docshard.delete_many() deletes documents, docshard.drop_collection() drops a collection.";
            judge_table(relation, what, hint)
        }
        Dropped::MemberRows(Relation { schema, name, .. }) => {
            let message =
                format!("cannot truncate table {schema}.{name} because docshard keeps the state of the cluster in it");
            Err(refuse(message).with_hint(way_to_change(name)))
        }
        // A trigger's table is usually checked itself, later. But if docshard's own tables have lost their rows about the table, only its
        // triggers show that it belongs to a collection, and these are dropped before that check. So the table is checked here.
        Dropped::Trigger(trigger) => {
            if PASSED.get() == Some(server::present_statement()) {
                return Ok(());
            }
            user::as_extension_owner(|| {
                let Some(table) = table_witness::marked_by(*trigger)? else { return Ok(()) };
                let collection = table_witness::collection_of(table)?.unwrap_or_default();
                match collection_in_use(collection, table)?.filter(|_| !is_placed(collection).unwrap_or_default()) {
                    Some(reason) => Err(refuse(format!("cannot drop {name} because its table is needed: {reason}"))
                        .with_hint(TABLE_HINT)),
                    None => Ok(()),
                }
            })
        }
        Dropped::Index { table: relation, name: index } => {
            let is_ours = names::index_of(index).is_some() || index.starts_with(&format!("{}_", relation.name));
            if !is_ours || is_left_by_reindex(index) {
                return Ok(());
            }
            judge_table(relation, || format!("cannot drop {name}"), INDEX_HINT)
        }
        Dropped::Server(server) => judge_server(server, name),
        Dropped::UserMapping { server, user } => {
            let has_passed = PASSED.get() == Some(server::present_statement());
            if !has_passed
                && (*user == user::extension_owner()? || user::as_extension_owner(|| node::is_service_role(*user))?)
            {
                judge_server(server, name)
            } else {
                Ok(())
            }
        }
    }
}

const TABLE_HINT: &str = "docshard.drop_collection() drops a collection, docshard.dismantle() all of them.";

const UPDATE_HINT: &str = "ALTER EXTENSION docshard UPDATE changes docshard's own objects.";

const TRIGGERS_HINT: &str = "docshard's triggers do not disturb a restore: make a dump of data without --disable-triggers. \
                             docshard.drop_collection() drops a collection with its triggers.";

const MEMBER_HINT: &str = "It would be dropped with the extension, and could not be taken out again. An object of your own needs no extension; \
                           ALTER FUNCTION … DEPENDS ON EXTENSION docshard drops a function together with it.";

/// The function by which users change what a table of docshard's own contains.
fn way_to_change(table: &str) -> &'static str {
    match table {
        "collections" | "views" | "chunks" | "placements" | "placement" | "tables" => TABLE_HINT,
        "databases" => "docshard.drop_database() drops a database.",
        "indexes" | "index_builds" => INDEX_HINT,
        "shards" | "contacts" | "lost_shards" | "node" | "service" => {
            "On the router, docshard.remove_shard() removes a shard from the cluster."
        }
        "zones" => "docshard.remove_shard_from_zone() takes a shard out of a zone.",
        "zone_ranges" => "docshard.update_zone_key_range() changes the ranges of zones.",
        "grants" => "docshard.revoke_access() takes rights away.",
        "settings" => "docshard.set_setting() changes a setting.",
        _ => DISMANTLE,
    }
}

const DISMANTLE: &str = "docshard.dismantle() dissolves the cluster and drops its documents; then this can be dropped.";

fn needed(name: &str, why: &str) -> Error {
    refuse(format!("cannot drop {name} because {why}"))
}

fn refuse(message: String) -> Error {
    Error::new(Kind::IllegalOperation, message).with_sqlstate(sqlstate::DEPENDENT_OBJECTS_STILL_EXIST)
}

/// True for the name that REINDEX CONCURRENTLY gives a new or old index, and that an index keeps if the command is cancelled.
fn is_left_by_reindex(index: &str) -> bool {
    let name = index.trim_end_matches(|c: char| c.is_ascii_digit());
    name.ends_with("_ccnew") || name.ends_with("_ccold")
}

const INDEX_HINT: &str = "docshard.drop_index() drops an index.";

fn judge_table(relation: &Relation, what: impl FnOnce() -> String, hint: &str) -> Result<()> {
    if PASSED.get() == Some(server::present_statement()) {
        return Ok(());
    }
    let reason = user::as_extension_owner(|| match table_witness::collection_of(relation.oid)? {
        Some(collection) => collection_in_use(collection, relation.oid),
        None => Ok(None),
    })?;
    reason.map_or(Ok(()), |reason| Err(refuse(format!("{} because {reason}", what())).with_hint(hint)))
}

/// Called by event triggers. `phase`:
/// * `load` only loads the library.
/// * `begin`: a statement begins that may change tables.
/// * `end`: such a statement has ended; `end of all`: a statement has ended that may also have changed other objects of the extension, or servers.
/// * `merge`: rows of a dump would be added to those of another cluster. Ends the session, because psql and pg_restore continue with
///   the rest of a dump after an error.
///
/// # Errors
/// 2BP01 if the statement has changed what docshard does not allow to change.
pub fn watch_change(phase: &str) -> Result<()> {
    match phase {
        "begin" => change_watch::begin(),
        "end" => return change_ended(),
        "end of all" => return ended(true),
        "merge" => server::end_session(
            refuse("cannot restore a dump here: its cluster would be merged with this database's".to_owned()).with_hint(
                "Restore it into a new database. This session ends, so that the rest of the dump is not restored either.",
            ),
        ),
        _ => {}
    }
    Ok(())
}

fn change_ended() -> Result<()> {
    ended(false)
}

fn ended(of_all: bool) -> Result<()> {
    let Some(changed) = change_watch::end() else { return Ok(()) };
    user::as_extension_owner(|| {
        if let Some(damage) = member_shape::damage(&changed, of_all)? {
            let (message, hint) = match damage {
                Damage::Added(object) => (
                    format!("cannot add {object} to extension docshard because docshard's objects are fixed"),
                    MEMBER_HINT,
                ),
                Damage::Triggers(member) => {
                    (format!("cannot change the triggers of {member} because docshard needs them"), TRIGGERS_HINT)
                }
                Damage::Changed(member) => {
                    (format!("cannot change {member} because docshard needs its objects as they are"), UPDATE_HINT)
                }
            };
            return Err(refuse(message).with_hint(hint));
        }
        if of_all {
            judge_servers(&changed)?;
        }
        judge_change(&changed, of_all)
    })
}

fn judge_servers(changed: &Changed) -> Result<()> {
    let sql = "SELECT s.oid::int8, s.srvname::text, EXISTS (SELECT FROM pg_catalog.pg_depend d \
                 WHERE d.classid = 'pg_catalog.pg_foreign_server'::pg_catalog.regclass AND d.objid = s.oid AND d.deptype = 'e') \
               FROM pg_catalog.pg_foreign_server s";
    let (before, now) = changed.read(sql, &[])?;
    for row in before {
        let name = row.text(1);
        let Some(now) = now.iter().find(|now| now.i64(0) == row.i64(0)) else { continue };
        let (what, hint) = if now.text(1) != name {
            ("rename", "docshard finds it by its name. docshard.set_shard_address() changes where it leads.")
        } else if now.bool(2) && !row.bool(2) {
            ("add to an extension the", LEFT_OUT)
        } else {
            continue;
        };
        if let Some((why, _)) = use_of_server(name)? {
            return Err(refuse(format!("cannot {what} server {name} because {why}")).with_hint(hint));
        }
    }
    Ok(())
}

/// Why nothing that docshard creates may become a member of an extension.
const LEFT_OUT: &str = "pg_dump leaves members of extensions out, with their rows.";

fn judge_change(changed: &Changed, of_all: bool) -> Result<()> {
    if !table::has_relation("placement") {
        let message = "cannot rename schema docshard_data because docshard finds its tables by this name".to_owned();
        return Err(refuse(message).with_hint("A schema keeps its name as long as the extension is installed."));
    }
    for property in table_shape::damage(changed, of_all)? {
        judge_property(&property)?;
    }
    Ok(())
}

fn judge_property(Property { collection, text, extra, table }: &Property) -> Result<()> {
    let Some(reason) = collection_in_use(*collection, server::oid(*table))? else { return Ok(()) };
    let (change, hint) = match (*extra, text.as_str()) {
        (true, column) if column.starts_with("the column") => {
            ("get", "Store the value in the documents, or in a table of your own.")
        }
        (true, member) if member.starts_with("membership") => ("get", LEFT_OUT),
        (true, _) => ("get", "docshard reads and writes this table directly; docshard.grant_access() says who may."),
        (false, index) if index.starts_with("the index") => ("lose", INDEX_HINT),
        (false, trigger) if trigger.starts_with("the trigger") => ("lose", TRIGGERS_HINT),
        (false, _) => {
            ("lose", "docshard.drop_collection() drops a collection; docshard.create_collection() creates one.")
        }
    };
    let name = match collection {
        0 => "of a collection".to_owned(),
        collection => names::table(*collection),
    };
    Err(refuse(format!("cannot change table {name} because {reason}: it would {change} {text}")).with_hint(hint))
}

fn is_placed(collection: i32) -> Result<bool> {
    Ok(!here::call(&ReadPlacements { collection: Some(collection) })?.is_empty())
}

/// The reason why a collection's table must not be dropped or changed, or None.
fn collection_in_use(collection: i32, table: Oid) -> Result<Option<String>> {
    if !is_placed(collection)? && !table_witness::has_rows(table)? || role()?.is_none() {
        return Ok(None);
    }
    Ok(Some(match store::collections::namespace(collection)? {
        Some(namespace) => format!("it holds documents of the collection {namespace}"),
        None => "it holds documents of a collection".to_owned(),
    }))
}

fn judge_server(server: &str, name: &str) -> Result<()> {
    if PASSED.get() == Some(server::present_statement()) {
        return Ok(());
    }
    let Some((why, hint)) = user::as_extension_owner(|| use_of_server(server))? else { return Ok(()) };
    Err(needed(name, &why).with_hint(hint))
}

/// What this database uses a foreign server for, and a hint how to end that; None if it does not use it.
fn use_of_server(server: &str) -> Result<Option<(String, &'static str)>> {
    if server == server_name(LOCAL) && !store::shards::remote_names()?.is_empty() {
        let why = "the shards of this cluster connect to this database through it".to_owned();
        return Ok(Some((why, DISMANTLE)));
    }
    if let Some(shard) = store::shards::name_of_server(server)? {
        let why = format!("this router connects to the shard \"{shard}\" through it");
        return Ok(Some((why, "docshard.remove_shard() removes a shard from the cluster.")));
    }
    let Some(shard) = server.strip_prefix(access::PREFIX) else { return Ok(None) };
    let of_peer = |node: NodeRow| {
        let why = format!("the shard \"{}\" pulls chunks from \"{shard}\" through it", node.shard);
        let hint = "On the router, docshard.remove_shard() removes a shard from the cluster, and docshard.add_shard() for this one \
                    sets the logins and servers between shards again.";
        (why, hint)
    };
    Ok(here::node()?.map(of_peer))
}

fn judge_database(database: Oid, name: &str) -> Result<()> {
    let rows = spi::query(
        "SELECT pg_catalog.split_part(c, '=', 2), d.datname FROM pg_catalog.pg_db_role_setting s \
         CROSS JOIN pg_catalog.unnest(s.setconfig) c JOIN pg_catalog.pg_database d ON d.oid = s.setdatabase \
         WHERE s.setdatabase = $1::pg_catalog.oid AND s.setrole = 0 \
         AND pg_catalog.starts_with(c, 'docshard.part_of_cluster=')",
        &[Param::Int8(u32::from(database).into())],
    )?;
    let Some(row) = rows.first() else { return Ok(()) };
    Err(needed(name, &format!("it is a {} of a docshard cluster", row.text(0))).with_hint(format!(
        "Run docshard.dismantle() there. If it is only a copy of a node: ALTER DATABASE {} RESET docshard.part_of_cluster.",
        docshard_core::sql::quote::quote_ident(row.text(1))
    )))
}
