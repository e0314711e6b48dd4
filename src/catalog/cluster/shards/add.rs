//! Adds a shard.
//!
//! This creates a postgres_fdw server and a user mapping on the router, the extension on the new shard, and on every shard a server for
//! every other shard, through which a recipient pulls chunks. Changes of other nodes come first and are idempotent; the catalog's row comes
//! last, in the caller's transaction. If adding fails half way, a database that was no shard before leaves the cluster again. It stays if
//! it cannot be reached or the session is cancelled; nothing refers to it then, and a second call completes the addition. Shards are added
//! one after the other, because what a call does at another node can be seen before the call's transaction commits.

use crate::catalog::change;
use crate::catalog::cluster::access;
use crate::catalog::cluster::contacts;
use crate::catalog::cluster::field_order;
use crate::catalog::cluster::identity::{self, check_may_repair, cluster_id, is_locked_out};
use crate::catalog::cluster::lost;
use crate::catalog::cluster::shards::connection_string::{
    Keywords, REACH_HINT, display_host, parse_connection, refuse_foreign_secrets, set, unreachable_shard, value,
};
use crate::catalog::cluster::shards::names::{LOCAL, check_name, server_name, service_name};
use crate::catalog::cluster::shards::repair::{repair, shard_name_of};
use crate::catalog::cluster::shards::servers::{Introduced, Login, connect_shards, make_server};
use crate::pg::error::{Error, Result};
use crate::pg::security::credentials;
use crate::pg::{server, spi};
use crate::remote::Session;
use crate::store;
use docshard_core::cluster::handshake;
use docshard_core::cluster::prepared_name::Coordinator;
use docshard_core::error::{Kind, bail, error};
use docshard_core::routing::protocol::access::LeaveCluster;
use docshard_core::routing::protocol::node::{NodeProbe, ProbeNode};
use docshard_core::routing::protocol::shard_tables::{
    HasAcceptedRouter, InsertNode, NodeRow, ReadNode, ReadPlacements,
};
use docshard_core::routing::protocol::{Call, sql};
use serde_json::json;

/// How long the shard may take to report its position, in milliseconds.
const ANSWER_MS: i64 = 10_000;

/// Options of [`add`].
#[derive(Debug, Default)]
pub struct AddOptions {
    /// the shard's name; None: that of a MongoDB connection string, or else the first free one of `shard0000`, `shard0001`, …
    pub name: Option<String>,
    /// how much it may hold, in MiB
    pub max_size_mb: Option<i32>,
    /// the role that logs in for this call: a superuser there, or the role that `docshard.accept_router` was given there
    pub user: Option<String>,
    /// the password of `user`
    pub password: Option<String>,
}

/// An added shard.
#[derive(Debug)]
pub struct Added {
    pub name: String,
    /// shards that could not be changed, each with its error
    pub pending: Vec<(String, String)>,
}

/// Adds a shard. If the database is already a shard under this name, its logins are repaired: see [`repair`].
/// Errors: `HostUnreachable`, `IllegalOperation` (itself, the same database under another name), `OperationFailed` (wrong
/// version, data of another cluster, a name that is taken), `BadValue`.
pub fn add(conn: &str, options: &AddOptions) -> Result<Added> {
    // Shards may refuse the router's login; then only a repair is allowed.
    check_may_repair()?;
    store::shards::lock()?;
    if conn == LOCAL {
        identity::require_router()?;
        return add_local(options);
    }
    let (mut keywords, replica_set) = parse_connection(conn)?;
    complete(&mut keywords)?;
    let given = given_login(&mut keywords, options);
    let by_superuser = server::outer_user_is_superuser();
    if !by_superuser {
        refuse_foreign_secrets(&keywords, given.password.as_deref())?;
    }
    let mut login = keywords.clone();
    set(&mut login, "user", &given.user);
    if let Some(password) = &given.password {
        set(&mut login, "password", password);
    }

    let mut session = Session::open_conninfo(&login, !by_superuser)
        .map_err(|error| unreachable_shard(error).with_hint(REACH_HINT))?;
    let probe = ProbeNode {}.call(&mut session)?;
    let wanted = options.name.clone().or(replica_set);
    if let Some(name) = existing(&mut session, &probe, wanted.as_deref())? {
        drop(session);
        let pending = repair(&name, &probe, &given)?;
        if is_locked_out()? {
            return Ok(Added { name, pending });
        }
        if let Some(max_size_mb) = options.max_size_mb {
            store::shards::set_max_size(&name, max_size_mb)?;
        }
        stop_draining(&name)?;
        return Ok(Added { name, pending });
    }
    identity::require_router()?;
    let name = match wanted {
        Some(name) => name,
        None => store::shards::free_name()?.ok_or_else(|| error!(Kind::OperationFailed, "no free name for a shard"))?,
    };
    check_name(&name)?;
    identity::register()?;
    let id = store::shards::next_id()?;
    // True for a shard that this catalog does not know, for example because the router was restored from a backup.
    let was_shard = shard_name_of(&mut session, &probe, cluster_id()?)?.is_some();
    let login = prepare_node(&mut session, &probe, &name, id, &given)?;
    let joined = make_server(&name, &keywords, &login)
        .and_then(|()| connect_shards(&Introduced { name: &name, id, keywords: &keywords }))
        .and_then(|()| contacts::reported(&mut session, ANSWER_MS));
    let position = match joined {
        Ok(position) => position,
        Err(error) => {
            // Errors here are ignored: the one above is the cause. What stays is removed by the next call, or by dismantle() there.
            if !was_shard {
                let _ = access::drop_roles(&mut session).and_then(|()| LeaveCluster {}.call(&mut session));
            }
            return Err(error);
        }
    };
    drop(session);

    store::shards::insert(id, &name, &server_name(&name), &probe.identity().to_string(), options.max_size_mb)?;
    // This inserts the shard's row into `contacts`, in which a take-over records the shard's epoch.
    contacts::set_position(id, position)?;
    identity::note_added(id);
    change::log("addShard", None, &json!({"name": name, "host": display_host(&keywords)}))?;
    change::announce();
    warn_of_transactions(&name, &probe);
    Ok(Added { name, pending: Vec::new() })
}

fn warn_of_transactions(name: &str, probe: &NodeProbe) {
    if !probe.prepared_transactions {
        pgrx::warning!(
            "shard \"{name}\" allows no prepared transactions: a transaction can't write on it and another shard, and no \
             chunk can move from or to it; preload docshard there, or set max_prepared_transactions, and restart it"
        );
    }
}

/// Adds this database's name to a connection string without a database.
fn complete(keywords: &mut Keywords) -> Result<()> {
    let here = spi::query("SELECT pg_catalog.current_database()::pg_catalog.text", &[])?;
    let database = here.first().map(|row| row.text(0).to_owned()).unwrap_or_default();
    if value(keywords, "dbname").is_none() {
        set(keywords, "dbname", &database);
    }
    Ok(())
}

/// The login in the options or else in the connection string. It is removed from the connection string.
fn given_login(keywords: &mut Keywords, options: &AddOptions) -> Login {
    let caller = server::outer_user_name();
    let user = options.user.as_deref().or(value(keywords, "user")).unwrap_or(&caller).to_owned();
    let password = options.password.as_deref().or(value(keywords, "password")).map(str::to_owned);
    keywords.retain(|(keyword, _)| keyword != "user" && keyword != "password");
    Login { user, password }
}

/// Ends draining: a shard that is being removed and is added again stays.
pub(super) fn stop_draining(name: &str) -> Result<()> {
    if store::shards::set_draining(name, false)? {
        change::log("removeShard.cancel", None, &json!({"shard": name}))?;
        change::announce();
    }
    Ok(())
}

fn add_local(options: &AddOptions) -> Result<Added> {
    stop_draining(LOCAL)?;
    store::shards::insert_local(LOCAL, options.max_size_mb)?;
    change::log("addShard", None, &json!({"name": LOCAL}))?;
    change::announce();
    Ok(Added { name: LOCAL.to_owned(), pending: Vec::new() })
}

/// Returns the name under which the session's database is already a shard of this catalog, as the database's own table `node` says; None if
/// it is not. Returns an error if the database is a shard under another name than the wanted one, or if another shard has that name.
fn existing(session: &mut Session, probe: &NodeProbe, wanted: Option<&str>) -> Result<Option<String>> {
    if probe.identity() == identity::identity() {
        return Err(error!(Kind::IllegalOperation, "cannot add this database as a shard: it is the router itself")
            .with_hint("The router's own database is the shard \"local\"."));
    }
    if let Some(name) = shard_name_of(session, probe, cluster_id()?)?
        && store::shards::exists(&name)?
    {
        if wanted.is_none_or(|wanted| wanted == name) {
            return Ok(Some(name));
        }
        bail!(Kind::IllegalOperation, "the database is already a member of this cluster, as the shard \"{name}\"");
    }
    match wanted {
        Some(name) if store::shards::exists(name)? => {
            Err(error!(Kind::OperationFailed, "a shard named \"{name}\" already exists, with another database"))
        }
        _ => Ok(None),
    }
}

/// An error of a database that cannot become a shard.
fn refuse(message: String) -> Error {
    Error::new(Kind::OperationFailed, message)
}

/// Checks that the node has docshard, in a version that works with the router's, and creates the extension if it is missing.
fn require_extension(session: &mut Session, probe: &NodeProbe) -> Result<()> {
    let ours = env!("CARGO_PKG_VERSION");
    if probe.default_version.is_none() {
        return Err(refuse("docshard is not installed on the node".to_owned())
            .with_hint("Install the extension's files on that machine: make install."));
    }
    if let Some(theirs) = probe.version.as_deref().or(probe.default_version.as_deref())
        && !handshake::works_with(theirs)
    {
        return Err(refuse(format!("the node has docshard {theirs}, which does not work with the router's {ours}"))
            .with_hint("Install the router's version there, and run ALTER EXTENSION docshard UPDATE."));
    }
    if let Some(theirs) = probe.version.as_deref().or(probe.default_version.as_deref())
        && !handshake::reads_order(theirs)
        && field_order::is_kept()?
    {
        return Err(refuse(format!("the node has docshard {theirs}, which cannot read this cluster's documents"))
            .with_hint("Run ALTER EXTENSION docshard UPDATE there."));
    }
    if probe.encoding != "UTF8" {
        return Err(refuse(format!("the database's encoding is {}, it must be UTF8", probe.encoding)));
    }
    if probe.version.is_none() {
        if !probe.superuser {
            return Err(refuse("the database does not have the extension docshard".to_owned()).with_hint(
                "Only a superuser can create it: log in as one for add_shard, or create it there and run \
                 docshard.accept_router(role).",
            ));
        }
        session.execute("CREATE EXTENSION IF NOT EXISTS docshard CASCADE")?;
    }
    Ok(())
}

/// Makes the node a shard of this cluster: creates the extension and the service role there, and writes its row of the table `node`.
/// Returns the router's login: a new one if the given login is a superuser's, otherwise the given one.
fn prepare_node(session: &mut Session, probe: &NodeProbe, name: &str, id: i32, given: &Login) -> Result<Login> {
    require_extension(session, probe)?;
    let sample = sql::pack("'{\"n\": 12345.678, \"s\": \"x\"}'");
    let sql = format!("SELECT ({}), encode({sample}, 'hex')", store::collections::COUNT);
    let answers: Vec<(i64, String)> = session.query(&sql, &[])?;
    let not_a_shard = || refuse("the node returned an invalid answer".to_owned());
    let (collections, theirs) = answers.into_iter().next().ok_or_else(not_a_shard)?;
    let (nodes, placements) = (ReadNode {}.call(session)?, ReadPlacements { collection: None }.call(session)?);
    if let Some(NodeRow { cluster_id: cluster, shard, .. }) = nodes.into_iter().next() {
        if cluster != cluster_id()? {
            return Err(refuse(format!("the database is the shard \"{shard}\" of another docshard cluster"))
                .with_hint("Remove it from that cluster first: docshard.remove_shard()."));
        }
        lost::refuse_returned(&probe.identity().to_string(), &shard, !placements.is_empty())?;
        if shard != name {
            return Err(refuse(format!(
                "the database was the shard \"{shard}\" of this cluster; add it under that name"
            )));
        }
    }
    if collections > 0 {
        return Err(refuse("the database is a router with collections of its own".to_owned()));
    }
    let ours = spi::query(&format!("SELECT encode({sample}, 'hex')"), &[])?;
    if ours.first().is_none_or(|here| here.text(0) != theirs) {
        return Err(refuse("the node has another processor architecture, which stores jsonb differently".to_owned()));
    }
    let login = if probe.superuser {
        let login = Login { user: service_name(id)?, password: Some(credentials::random_password()?) };
        login.let_in(session)?;
        login
    } else {
        let is_accepted = HasAcceptedRouter {}.call(session)?;
        if !is_accepted {
            let user = &given.user;
            return Err(refuse(format!("the database has not accepted a router as \"{user}\"")).with_hint(format!(
                "A superuser runs SELECT docshard.accept_router('{user}') there, or log in as one for add_shard."
            )));
        }
        given.clone()
    };
    let Coordinator { cluster: cluster_id, epoch } = identity::coordinator()?;
    InsertNode { cluster_id, shard: name, router: &identity::identity().to_string(), epoch }.call(session)?;
    Ok(login)
}
