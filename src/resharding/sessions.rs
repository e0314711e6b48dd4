//! The sessions of a change of layout: one at each donor, two at each recipient, as in a move.

use super::register::Registered;
use crate::catalog::cache;
use crate::catalog::cluster::identity::{self, cluster_id};
use crate::catalog::cluster::shard::Shard;
use crate::catalog::cluster::{contacts, field_order, settings};
use crate::migration::names;
use crate::migration::numbered;
use crate::migration::pulling::{self, MAX_FETCHED, Pulling, Sources};
use crate::migration::register::check_node;
use crate::migration::shard::ShardSession;
use crate::migration::standbys::{self, Seen};
use crate::pg::error::{Error, Result};
use crate::pg::server::sleep_ms;
use crate::pg::{fault, transaction};
use docshard_core::cluster::chunk_map::ShardId;
use docshard_core::cluster::share::Share;
use docshard_core::error::sqlstate::DEPENDENT_OBJECTS_STILL_EXIST;
use docshard_core::error::{Kind, error};
use docshard_core::routing::names::table;
use docshard_core::routing::protocol::Call;
use docshard_core::routing::protocol::migration::{CollectionWriters, DivideRange, LockHolder};
use docshard_core::routing::protocol::resharding::{FindDependents, InsertShareParts};
use docshard_core::routing::protocol::shard_tables::{ExplainScan, InsertCapture, SampleDocumentSize, TableRange};
use docshard_core::sql::param::Param;
use docshard_core::sql::quote::quote_literal;
use std::collections::BTreeMap;
use std::time::Instant;

/// The size of the documents that a donor reads for one recipient at once, in bytes.
const PART_BYTES: i64 = 4 << 20;
/// How many part numbers a donor has for each recipient: more than it has parts. Its part `n` for the recipient at `position` has the number
/// `(position + 1) * PART_NUMBERS + n`, so parts for different recipients have different numbers.
const PART_NUMBERS: i64 = 1 << 40;

/// A shard that has the collection's table.
pub(super) struct Donor {
    pub(super) shard: ShardId,
    pub(super) session: ShardSession,
    /// the identity that it must report
    pub(super) expected: String,
    /// the number of parts into which its documents are divided
    pub(super) parts: i64,
    /// a snapshot: the recipients know the numbered writes of all transactions that are visible in it
    copied_snapshot: String,
}

/// A shard of the new layout.
pub(super) struct Recipient {
    pub(super) shard: ShardId,
    pub(super) puller: ShardSession,
    pub(super) loader: ShardSession,
    pub(super) standbys: Seen,
    /// its share of the keys
    pub(super) share: Vec<u8>,
    /// the names under which it reads each donor's tables, in the order of [`Sessions::donors`]
    pub(super) sources: Vec<Sources>,
}

impl Recipient {
    /// Returns the number that part `number` of a donor has for the recipient at `position`.
    pub(super) fn part(position: usize, number: i64) -> i64 {
        (i64::try_from(position).unwrap_or(0) + 1) * PART_NUMBERS + number
    }
}

/// The sessions on all shards.
pub(super) struct Sessions {
    pub(super) donors: Vec<Donor>,
    pub(super) recipients: Vec<Recipient>,
    /// changed documents come with the order of their fields
    keeps_order: bool,
}

/// What a change waits for: transactions that hold the collection's lock, or sessions that use its table. Shard and name, with a
/// description.
pub(super) type Blockers = BTreeMap<(ShardId, String), String>;

/// The range of all documents of a collection.
pub(super) fn all(collection: i32) -> TableRange<'static> {
    TableRange { collection, lo: &[], hi: None }
}

impl Sessions {
    /// Opens the sessions, and checks the shards.
    pub(super) fn open(change: &Registered) -> Result<Self> {
        let (donors, recipients) = (change.donors(), change.layout.shards());
        let mut sessions = transaction::run(|| {
            let open = |shard: &Shard| ShardSession::open(shard, "docshard");
            let keeps_order = field_order::is_kept()?;
            let mut opened = Self { donors: Vec::new(), recipients: Vec::new(), keeps_order };
            for id in &donors {
                let shard = cache::shard(*id)?;
                identity::require_kept([&*shard])?;
                let (expected, copied_snapshot) = (contacts::expected(*id)?.to_string(), numbered::NOTHING.to_owned());
                opened.donors.push(Donor { shard: *id, session: open(&shard)?, expected, parts: 0, copied_snapshot });
            }
            for id in &recipients {
                let shard = cache::shard(*id)?;
                identity::require_kept([&*shard])?;
                let source = |donor: &ShardId| match donor == id {
                    true => Sources::here(keeps_order),
                    false => Sources::of(change.id, Some(*donor), keeps_order),
                };
                let (mut puller, loader) = (open(&shard)?, open(&shard)?);
                opened.donors.iter().for_each(|donor| puller.waits_also_for(&donor.session));
                let (share, sources) = (Share::of(&change.layout.chunks, *id).encode(), donors.iter().map(source));
                let (standbys, sources) = (Seen::default(), sources.collect());
                opened.recipients.push(Recipient { shard: *id, puller, loader, standbys, share, sources });
            }
            Ok(opened)
        })?;
        let (cluster, sees_standbys) = transaction::run(|| Ok((cluster_id()?, settings::boolean(standbys::SETTING)?)))?;
        // Cleaning up finds the sessions by this name.
        let application = format!("SET application_name = {}", quote_literal(&names::application(cluster, change.id)));
        for session in sessions.all() {
            check_node(session, cluster)?;
            session.execute(&application)?;
        }
        for recipient in &mut sessions.recipients {
            // A crash of the shard ends the session, and that aborts the change, so commits need not wait for the disk. Only the one in
            // `await_standbys` does.
            recipient.puller.execute("SET synchronous_commit = off")?;
            recipient.loader.execute("SET synchronous_commit = off")?;
            if sees_standbys {
                recipient.standbys.look(&mut recipient.puller)?;
            }
        }
        Ok(sessions)
    }

    pub(super) fn all(&mut self) -> impl Iterator<Item = &mut ShardSession> {
        let donors = self.donors.iter_mut().map(|donor| &mut donor.session);
        donors.chain(self.recipients.iter_mut().flat_map(|recipient| [&mut recipient.puller, &mut recipient.loader]))
    }

    /// Returns the number of documents that the donors' planners expect.
    pub(super) fn estimate(&mut self, collection: i32) -> Result<i64> {
        let mut documents = 0;
        for Donor { session, .. } in &mut self.donors {
            let plans = ExplainScan(all(collection)).call(session)?;
            documents += plans.first().and_then(|plan| plan[0]["Plan"]["Plan Rows"].as_i64()).unwrap_or(0);
        }
        Ok(documents)
    }

    /// Refuses a change if another object would keep a donor from dropping its table in the end.
    ///
    /// # Errors
    /// `IllegalOperation` (2BP01).
    pub(super) fn refuse_dependents(&mut self, collection: i32) -> Result<()> {
        let table = table(collection);
        for Donor { session, .. } in &mut self.donors {
            if let Some(dependent) = (FindDependents { table: &table }).call(session)?.first() {
                let shard = &session.name;
                let message =
                    format!("{dependent} on shard \"{shard}\" depends on {table}, in whose place another table comes");
                return Err(Error::new(Kind::IllegalOperation, message)
                    .with_sqlstate(DEPENDENT_OBJECTS_STILL_EXIST)
                    .with_hint("Drop it, and create it again over the new table, which docshard.collections names."));
            }
        }
        Ok(())
    }

    /// The recipients create the tables by which they pull.
    pub(super) fn prepare_recipients(&mut self, id: i64) -> Result<()> {
        for Recipient { puller, loader, sources, .. } in &mut self.recipients {
            pulling::create_staging(puller, id, self.keeps_order)?;
            for (source, Donor { session, expected, .. }) in sources.iter().zip(&mut self.donors) {
                source.create(session, loader, Pulling { puller, migration: id, expected, rows: MAX_FETCHED })?;
            }
        }
        Ok(())
    }

    /// Each donor commits its capture. Transactions that begin to write afterwards record what they change.
    pub(super) fn begin_capture(&mut self, id: i64, collection: i32) -> Result<()> {
        for Donor { session, .. } in &mut self.donors {
            InsertCapture { collection, migration: id, min: &[], max: None }.call(session)?;
        }
        Ok(())
    }

    /// Returns the transactions that hold the collection's lock at the donors.
    pub(super) fn writers(&mut self, collection: i32) -> Result<Blockers> {
        let mut writers = Blockers::new();
        for Donor { shard, session, .. } in &mut self.donors {
            let found = CollectionWriters { collection }.call(session)?;
            let name = |LockHolder { holder, pid }: LockHolder| {
                let shard_name = &session.name;
                let shown = match pid {
                    Some(pid) => format!("process {pid} on shard \"{shard_name}\""),
                    None => format!("prepared transaction {holder} on shard \"{shard_name}\""),
                };
                ((*shard, holder), shown)
            };
            writers.extend(found.into_iter().map(name));
        }
        Ok(writers)
    }

    /// Returns the sessions that use the collection's table at the donors, except those with this application name: the change's own.
    pub(super) fn users(&mut self, collection: i32, application: &str) -> Result<Blockers> {
        let mut users = Blockers::new();
        let sql = "SELECT DISTINCT l.pid FROM pg_catalog.pg_locks AS l WHERE l.granted AND l.pid IS NOT NULL \
                     AND l.relation = pg_catalog.to_regclass($1) AND l.pid <> pg_catalog.pg_backend_pid() \
                     AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database()) \
                     AND NOT EXISTS (SELECT FROM pg_catalog.pg_stat_activity AS a WHERE a.pid = l.pid AND a.application_name = $2)";
        let name = table(collection);
        for Donor { shard, session, .. } in &mut self.donors {
            for pid in session.query::<i32>(sql, &[Param::Text(&name), Param::Text(application)])? {
                users.insert((*shard, pid.to_string()), format!("process {pid} on shard \"{}\"", session.name));
            }
        }
        Ok(users)
    }

    /// Copies the numbers of the numbered writes since the last call, without replies, from the donors to the
    /// recipients, so that a write that a client sends again is not executed twice. False if the deadline passed.
    pub(super) fn copy_numbered_writes(&mut self, collection: i32, deadline: Option<Instant>) -> Result<bool> {
        if fault::is_off("numbered_writes") {
            return Ok(true);
        }
        for Donor { shard, session, copied_snapshot, .. } in &mut self.donors {
            let others = self.recipients.iter_mut().filter(|recipient| recipient.shard != *shard);
            let mut to: Vec<&mut ShardSession> = others.map(|recipient| &mut recipient.puller).collect();
            // An empty range: only the numbers are copied, no replies.
            let nothing = TableRange { collection, lo: &[], hi: Some(&[]) };
            if !to.is_empty() && !numbered::copy(session, &mut to, nothing, copied_snapshot, deadline)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Waits for the transactions that hold the collection's lock now; later ones have read the captures. This blocks no one else.
    pub(super) fn wait_for_writers(&mut self, collection: i32, deadline: Instant) -> Result<()> {
        if fault::is_off("wait_for_writers") {
            return Ok(());
        }
        let mut waited_for = self.writers(collection)?;
        while !waited_for.is_empty() {
            if Instant::now() >= deadline {
                return Err(blocked_by(&waited_for));
            }
            sleep_ms(20);
            let now = self.writers(collection)?;
            waited_for.retain(|writer, _| now.contains_key(writer));
        }
        Ok(())
    }

    /// The donors divide their documents into parts for each recipient.
    pub(super) fn divide(&mut self, id: i64, collection: i32, key: &str) -> Result<()> {
        for donor in &mut self.donors {
            let size = SampleDocumentSize(all(collection)).call(&mut donor.session)?.unwrap_or(1);
            let documents = (PART_BYTES / size.max(1)).clamp(10, 20_000);
            let divide = DivideRange { migration: id, collection, lo: None, hi: None, documents };
            donor.parts = divide.call(&mut donor.session)?;
            if !(0..PART_NUMBERS).contains(&donor.parts) {
                return Err(error!(Kind::InternalError, "malformed answer to divide_range: {} parts", donor.parts));
            }
            for (position, recipient) in self.recipients.iter().enumerate() {
                let after = Recipient::part(position, 0);
                let parts = InsertShareParts { resharding: id, after, key, share: &recipient.share };
                parts.call(&mut donor.session)?;
            }
        }
        Ok(())
    }
}

/// The error of a change that has waited too long for these transactions or sessions.
pub(super) fn blocked_by(blockers: &Blockers) -> Error {
    let whom = blockers.values().map(String::as_str).collect::<Vec<_>>().join(", ");
    error!(Kind::ReshardingCriticalSectionTimeout, "gave up waiting for transactions that use the collection: {whom}")
        .with_hint("Wait until they have ended, or raise the option commitTimeoutMS, and try again.")
}
