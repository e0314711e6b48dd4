//! Builds one index: the steps from its row in `index_builds` to the commit that makes it known. The header of `mod.rs` has the steps.

use super::clear;
use super::sessions::{application, is_alone};
use crate::catalog::cluster::identity;
use crate::catalog::cluster::shard::Shard;
use crate::catalog::collections::index_options::IndexOptions;
use crate::catalog::collections::indexes::{self, Draft, Drafted};
use crate::catalog::{cache, change};
use crate::migration::shard::ShardSession;
use crate::pg::error::Result;
use crate::pg::fault;
use crate::pg::server::sleep_ms;
use crate::pg::{process::job, spi, transaction, transaction::top_level};
use crate::shard::table;
use crate::storage::lock::{self, Mode, Tag};
use crate::store::index_builds::{self, Build};
use docshard_core::error::{Kind, ensure};
use docshard_core::routing::names;
use docshard_core::routing::protocol::Connection as _;
use docshard_core::sql::param::Param;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// How long to wait for a shard's answer before the next shard is polled, in milliseconds.
const LOOK_MS: i64 = 20;

/// Builds an index and returns its name. Must be called outside any transaction.
///
/// # Errors
/// Those of `catalog::indexes::create`, and of the shards. After an error the index is not in the catalog, and it is removed
/// from the shards that can be reached.
pub(super) fn build(namespace: &str, keys: &str, options: &IndexOptions<'_>, lock_timeout_ms: u64) -> Result<String> {
    let began = Instant::now();
    let draft = loop {
        match register(namespace, keys, options, lock_timeout_ms)? {
            Drafted::Exists(name) => return Ok(name),
            Drafted::New(draft) => break draft,
            Drafted::Busy(build) => await_end(&build, namespace, began, lock_timeout_ms)?,
        }
    };
    let result = transaction::guarded(|| attempt(&draft, options));
    let result = result.map_err(|cause| {
        let cleared = transaction::guarded(|| {
            fault::point("index.failed")?;
            clear::clear(draft.id, draft.collection)
        });
        if let Err(error) = cleared {
            pgrx::log!(
                "docshard: could not remove the remains of the index {} of {namespace}: {}",
                draft.name,
                error.message
            );
        }
        draft.translate(cause)
    });
    lock::release_for_session(Tag::Builder(draft.id), Mode::Exclusive);
    result.map(|()| draft.name)
}

/// Waits until another build has ended: programs that start together often create the same indexes. While it waits it has no transaction,
/// because that build could wait for the transaction.
///
/// # Errors
/// `ConflictingOperationInProgress` after `lock_timeout`.
fn await_end(build: &Build, namespace: &str, began: Instant, lock_timeout_ms: u64) -> Result<()> {
    while !transaction::run(|| Ok(lock::is_free(Tag::Builder(build.id))))? {
        if lock_timeout_ms > 0 && began.elapsed() >= Duration::from_millis(lock_timeout_ms) {
            return Err(change::index_is_being_built_error(build, namespace));
        }
        job::check_wanted()?;
        sleep_ms(LOOK_MS);
    }
    Ok(())
}

/// Registers the build: inserts its row, and takes the builder's lock, which this process holds until the build is over or the process
/// ends. Does neither if the index exists or is being built.
fn register(namespace: &str, keys: &str, options: &IndexOptions<'_>, lock_timeout_ms: u64) -> Result<Drafted> {
    let mut locked = None;
    let registered = transaction::run(|| {
        // The wait for moves must have the same limit as the caller's other waits for locks.
        let timeout = lock_timeout_ms.to_string();
        spi::query("SELECT pg_catalog.set_config('lock_timeout', $1, true)", &[Param::Text(&timeout)])?;
        let drafted = indexes::draft(namespace, keys, options)?;
        let Drafted::New(draft) = &drafted else { return Ok(drafted) };
        ensure!(
            lock::try_acquire_for_session(Tag::Builder(draft.id), Mode::Exclusive),
            Kind::InternalError,
            "index {} has a builder already",
            draft.id
        );
        locked = Some(draft.id);
        let relations = names::relations(draft.id, &draft.keys, draft.unique);
        let relations: Vec<&str> = relations.iter().map(String::as_str).collect();
        index_builds::insert(draft.id, draft.collection, &draft.name, &draft.keys_json, &relations)?;
        Ok(drafted)
    });
    if let (Err(_), Some(id)) = (&registered, locked) {
        lock::release_for_session(Tag::Builder(id), Mode::Exclusive);
    }
    registered
}

/// Returns the statements for each shard. ANALYZE is one of them: PostgreSQL has no statistics of a new index's expressions, and
/// autovacuum collects them only when documents have changed.
fn statements(draft: &Draft) -> Result<Vec<String>> {
    let mut statements = table::index_statements(&draft.creation(), "CONCURRENTLY")?;
    statements.push(format!("ANALYZE {}", names::table(draft.collection)));
    Ok(statements)
}

fn attempt(draft: &Draft, options: &IndexOptions<'_>) -> Result<()> {
    fault::point("index.registered")?;
    let statements = statements(draft)?;
    if transaction::run(is_alone)? {
        transaction::run(|| spi::query("SELECT set_config('lock_timeout', '0', false)", &[]).map(|_| ()))?;
        for statement in &statements {
            top_level::run(statement)?;
            begun()?;
        }
        return enter(draft, options);
    }
    let mut sessions = transaction::run(|| {
        let shards = draft.shards.iter().map(|id| cache::shard(*id)).collect::<Result<Vec<_>>>()?;
        let open = |shard: &Rc<Shard>| ShardSession::open(shard, &application(draft.id));
        let sessions = shards.iter().map(open).collect::<Result<Vec<_>>>()?;
        identity::require_kept(shards.iter().map(|shard| &**shard))?;
        Ok(sessions)
    })?;
    for session in &mut sessions {
        // CREATE INDEX CONCURRENTLY waits for every transaction that may read or write the table, and must not give up.
        session.execute("SET lock_timeout = 0")?;
    }
    run_everywhere(&mut sessions, &statements)?;
    enter(draft, options)
}

/// Executes step 3: makes the index known, and deletes the build.
fn enter(draft: &Draft, options: &IndexOptions<'_>) -> Result<()> {
    fault::point("index.built")?;
    transaction::run(|| {
        change::lock(&draft.namespace)?;
        ensure!(
            index_builds::delete(draft.id)?,
            Kind::Interrupted,
            "the build of the index {} was removed by another process",
            draft.name
        );
        indexes::enter(draft, options)?;
        // If the caller's statement was cancelled, the index must not exist afterwards.
        job::check_wanted()
    })
}

/// The fault point of a build that runs, here or on the shards.
fn begun() -> Result<()> {
    fault::point("index.building")
}

/// Runs the statements one after the other on every shard, on all shards at the same time. After an error of one shard the caller drops
/// all sessions, which ends their statements.
fn run_everywhere(sessions: &mut [ShardSession], statements: &[String]) -> Result<()> {
    let mut done = vec![0; sessions.len()];
    for session in &mut *sessions {
        session.start(&statements[0], &[], &[])?;
    }
    begun()?;
    while done.iter().any(|done| *done < statements.len()) {
        for (session, done) in sessions.iter_mut().zip(&mut done).filter(|(_, done)| **done < statements.len()) {
            if session.poll(LOOK_MS)?.is_none() {
                continue;
            }
            *done += 1;
            if let Some(next) = statements.get(*done) {
                session.start(next, &[], &[])?;
            }
        }
    }
    Ok(())
}
