//! The coordinator of a change of layout: executes all its steps.

use super::copying::Copying;
use super::register::{Registered, register};
use super::request::{Request, Resharded};
use super::sessions::Sessions;
use super::{abort, settle};
use crate::catalog::cluster::shards::reach_this_database;
use crate::migration::recovery;
use crate::pg::error::{Error, Result};
use crate::pg::server::sleep_ms;
use crate::pg::{fault, transaction};
use crate::storage::lock::{self, Mode, Tag};
use crate::store::resharding::{self, Running};
use docshard_core::cluster::resharding::State;
use std::time::{Duration, Instant};

/// Changes a collection's layout. Runs in a background worker, outside any transaction; an interrupt of its waits must raise an
/// ERROR, or end the process (then [`settle::recover`] cleans up).
///
/// # Errors
/// `NamespaceNotFound`, `ReshardCollectionInProgress`, `InvalidOptions`, `DuplicateKey`, `ShardKeyNotFound` (a document
/// cannot have the key), `ReshardingCriticalSectionTimeout` (no moment was found in which writers would have waited
/// only briefly), and errors of the shards. After an error the collection is as before.
pub(super) fn run(request: &Request) -> Result<Resharded> {
    settle::recover()?;
    recovery::recover_collection(&request.namespace)?;
    transaction::run(reach_this_database)?;
    let began = Instant::now();
    let change = match transaction::run(|| same(request))? {
        Some(running) => return join(running),
        None => match register(request) {
            Ok(change) => change,
            // Another call with the same request may have begun the change meanwhile.
            Err(error) => return transaction::run(|| same(request))?.map_or(Err(error), join),
        },
    };
    let id = change.id;
    let ended = match transaction::guarded(|| copy_and_decide(change, request)) {
        Ok(()) => finish(id),
        Err(cause) => take_back(id, cause),
    };
    lock::release_for_session(Tag::Coordinator(id), Mode::Exclusive);
    let mut done = ended?;
    done.millis = i64::try_from(began.elapsed().as_millis()).unwrap_or(i64::MAX);
    Ok(done)
}

/// Returns the running change for the same request, which a client sends again after it has lost its connection.
fn same(request: &Request) -> Result<Option<i64>> {
    let asked = (&request.namespace, &request.command, Some(request.target.number()));
    let is_same = |change: &Running| (&change.namespace, &change.command, change.request) == asked;
    Ok(resharding::running()?.into_iter().find(is_same).map(|change| change.id))
}

/// Waits until a change that another process coordinates is committed or aborted.
fn join(id: i64) -> Result<Resharded> {
    loop {
        sleep_ms(100);
        match transaction::run(|| resharding::get(id))?.outcome {
            State::Committed => return done(id),
            State::Aborted => return Err(abort::aborted()),
            _ => {}
        }
    }
}

/// Executes all steps up to the decision. After an error the sessions are dropped, which rolls back their transactions.
fn copy_and_decide(change: Registered, request: &Request) -> Result<()> {
    let (id, collection) = (change.id, change.of.id);
    let step = |name: &str| {
        transaction::run(|| if resharding::begin_step(id, name)? { Ok(()) } else { Err(abort::aborted()) })
    };
    fault::point("reshard.registered")?;
    step("preparing")?;
    let mut sessions = Sessions::open(&change)?;
    sessions.refuse_dependents(collection)?;
    let estimated = sessions.estimate(collection)?;
    transaction::run(|| resharding::set_estimate(id, estimated))?;
    sessions.prepare_recipients(id)?;
    fault::point("reshard.prepared")?;
    let patience = Duration::from_millis(request.commit_timeout_ms);
    sessions.begin_capture(id, collection)?;
    fault::point("reshard.captured")?;
    step("waiting for writers")?;
    sessions.wait_for_writers(collection, Instant::now() + patience)?;
    let mut copying = Copying::new(change, sessions);
    let key = copying.key().to_owned();
    copying.sessions.divide(id, collection, &key)?;
    step("cloning")?;
    copying.clone_all()?;
    copying.store_progress(true)?;
    fault::point("reshard.cloned")?;
    step("catching up")?;
    copying.finish(Instant::now() + patience)?;
    fault::point("reshard.decided")
}

/// Cleans up after the decision. Recovery does what cannot be done now.
fn finish(id: i64) -> Result<Resharded> {
    let _ = settle::settle(id);
    done(id)
}

/// Reads the result of a change from its row.
fn done(id: i64) -> Result<Resharded> {
    let progress = transaction::run(|| resharding::progress(id))?;
    let done = progress.map(|progress| Resharded {
        documents: progress.documents,
        bytes: progress.bytes,
        stall_ms: progress.stall_ms,
        millis: progress.millis,
    });
    Ok(done.unwrap_or_default())
}

/// Aborts the change and cleans up; returns the cause. If the change is decided already, it is finished in spite of the error.
fn take_back(id: i64, cause: Error) -> Result<Resharded> {
    let aborted = transaction::run(|| {
        resharding::set_error(id, &cause.text_without_values())?;
        resharding::advance(id, State::Running, State::Aborted)
    });
    if aborted.is_ok() && transaction::guarded(|| fault::point("reshard.aborted")).is_ok() {
        let _ = settle::settle(id);
    }
    if !matches!(aborted, Ok(false)) {
        return Err(cause);
    }
    match transaction::run(|| resharding::get(id))?.outcome {
        State::Committed => finish(id),
        // Another process has aborted the change and then interrupted this one.
        _ => Err(abort::aborted()),
    }
}
