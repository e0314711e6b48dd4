//! Commands about sessions: `startSession`, `refreshSessions`, `endSessions`, and `killSessions` and its like.
//!
//! The gateway has the sessions, but the router's table of commands has the fields that a command may have. So a router checks a
//! command first, unless the command has nothing but entries of the form that drivers send. What the router accepts is then
//! executed here.

use crate::command::Command;
use crate::executor::{Error, Executor};
use crate::hello::SESSION_MINUTES;
use crate::memory::Budget;
use crate::pool::Identity;
use crate::reply::{self, BAD_VALUE, Failure, Reply};
use crate::session::{self, Id, MAX_NAMED};
use bson::spec::BinarySubtype;
use bson::{Binary, RawBsonRef, RawDocument, doc};

const START: &str = "startSession";
const KILL_ALL: &str = "killAllSessions";
const KILL_BY_PATTERN: &str = "killAllSessionsByPattern";
/// Commands whose list names sessions.
const OF_SESSIONS: &[&str] = &["refreshSessions", "endSessions", "killSessions"];

/// True for a command about sessions.
pub fn is_one(name: &str) -> bool {
    OF_SESSIONS.contains(&name) || [START, KILL_ALL, KILL_BY_PATTERN].contains(&name)
}

impl Executor {
    /// Runs a command about sessions; None if it is another one.
    pub async fn of_sessions(
        &self,
        who: &Identity,
        command: &Command,
        budget: &mut Budget,
    ) -> Option<Result<Reply, Error>> {
        let (name, document) = (command.name.as_str(), command.document());
        if !is_one(name) {
            return None;
        }
        if name != START
            && let Err(error) = self.require_current(who)
        {
            return Some(Err(error));
        }
        if entries(name, document).is_some_and(|entries| entries.len() > MAX_NAMED) {
            let failure = Failure::new(BAD_VALUE, format!("{name} names at most {MAX_NAMED} of them"));
            return Some(Err(failure.into()));
        }
        if !is_plain(name, document, &who.role) {
            match self.anywhere(who, command, budget).await {
                Ok(reply) if !reply::has_failed(&reply) => {}
                failed => return Some(failed),
            }
        }
        if name == START {
            let id = Binary { subtype: BinarySubtype::Uuid, bytes: bson::Uuid::new().bytes().to_vec() };
            return Some(Ok(reply::ok(doc! { "id": { "id": id }, "timeoutMinutes": SESSION_MINUTES })));
        }
        let ids = meant(name, document, &who.role);
        if name == "refreshSessions" {
            self.sessions.refresh(&who.role, &ids.unwrap_or_default());
        } else {
            // All of them are ended, also if the client does not wait for the reply.
            let removed = self.sessions.remove(&who.role, ids.as_deref());
            let ending: Vec<_> = removed.into_iter().map(|transaction| self.kill(transaction)).collect();
            for ended in ending {
                let _ = ended.await;
            }
        }
        Some(Ok(reply::ok(doc! {})))
    }
}

/// The entries of a command's list; None if it has no list.
fn entries<'a>(name: &str, command: &'a RawDocument) -> Option<Vec<Option<RawBsonRef<'a>>>> {
    let list = command.get_array(name).ok()?;
    Some(list.into_iter().take(MAX_NAMED + 1).map(Result::ok).collect())
}

/// The user of an entry of `killAllSessions`.
fn user_of(entry: Option<RawBsonRef<'_>>) -> Option<&str> {
    entry?.as_document()?.get_str("user").ok()
}

/// True if a router has nothing to check.
fn is_plain(name: &str, command: &RawDocument, role: &str) -> bool {
    // Drivers add a read preference to any command.
    let is_known = |field: &str| field == name || field == "$readPreference";
    if !command.iter().all(|field| field.is_ok_and(|(field, _)| is_known(field.as_str()))) {
        return false;
    }
    let has_fields = |entry: Option<RawBsonRef<'_>>, count: usize| {
        entry.and_then(|entry| entry.as_document()).is_some_and(|entry| entry.iter().count() == count)
    };
    let is_own = |entry: Option<RawBsonRef<'_>>| {
        let has_db = entry.and_then(|entry| entry.as_document()?.get_str("db").ok()).is_some();
        has_db && has_fields(entry, 2) && user_of(entry) == Some(role)
    };
    let is_session =
        |entry: Option<RawBsonRef<'_>>| has_fields(entry, 1) && entry.is_some_and(|entry| session::id(entry).is_ok());
    match (name, entries(name, command)) {
        (START, _) => true,
        (_, None) => false,
        (KILL_ALL, Some(entries)) => entries.len() <= MAX_NAMED && entries.into_iter().all(is_own),
        (KILL_BY_PATTERN, Some(entries)) => entries.is_empty(),
        (_, Some(entries)) => entries.len() <= MAX_NAMED && entries.into_iter().all(is_session),
    }
}

/// The sessions that a checked command means; None: all of the role's.
fn meant(name: &str, command: &RawDocument, role: &str) -> Option<Vec<Id>> {
    let entries = entries(name, command).unwrap_or_default();
    // Null entries are skipped, but a list of them is not empty.
    let all = match name {
        _ if entries.is_empty() => name.starts_with("kill"),
        KILL_ALL => entries.iter().any(|entry| user_of(*entry) == Some(role)),
        KILL_BY_PATTERN => entries.iter().flatten().any(|entry| entry.as_document().is_some_and(RawDocument::is_empty)),
        _ => false,
    };
    let id_of = |entry: RawBsonRef<'_>| match name {
        KILL_BY_PATTERN => session::id(entry.as_document()?.get("lsid").ok()??).ok(),
        _ => session::id(entry).ok(),
    };
    (!all).then(|| entries.into_iter().flatten().filter_map(id_of).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::{Bson, Document, Uuid};

    fn of(name: &str, list: Vec<Bson>, more: Document) -> (bool, Option<Vec<Id>>) {
        let mut document = doc! { name: list };
        document.extend(more);
        let bytes = document.to_vec().unwrap();
        let command = RawDocument::from_bytes(&bytes).unwrap();
        (is_plain(name, command, "ann"), meant(name, command, "ann"))
    }

    fn session(byte: u8) -> Document {
        doc! { "id": Uuid::from_bytes([byte; 16]) }
    }

    #[test]
    fn lists_of_drivers_are_plain_and_all_others_are_checked_by_a_router() {
        let (one, id) = (session(7), [7; 16]);
        for name in OF_SESSIONS {
            assert_eq!(of(name, vec![one.clone().into()], doc! {}), (true, Some(vec![id])), "{name}");
            assert_eq!(of(name, vec![one.clone().into(), Bson::Null], doc! {}), (false, Some(vec![id])));
            assert_eq!(of(name, vec![one.clone().into()], doc! { "maxTimeMS": 1.5 }), (false, Some(vec![id])));
            assert!(of(name, vec![one.clone().into()], doc! { "$readPreference": {} }).0);
            assert!(!of(name, vec![one.clone().into(); MAX_NAMED + 1], doc! {}).0);
            assert_eq!(of(name, vec![3.into(), doc! { "id": "x" }.into()], doc! {}), (false, Some(vec![])));
        }
        let mut with_uid = one.clone();
        with_uid.insert("uid", "x");
        assert_eq!(of("endSessions", vec![with_uid.into()], doc! {}), (false, Some(vec![id])));
    }

    #[test]
    fn an_empty_list_kills_all_and_ends_none() {
        assert_eq!(of("endSessions", vec![], doc! {}), (true, Some(vec![])));
        assert_eq!(of("killSessions", vec![Bson::Null], doc! {}), (false, Some(vec![])));
        for name in ["killSessions", KILL_ALL, KILL_BY_PATTERN] {
            assert_eq!(of(name, vec![], doc! {}), (true, None), "{name}");
        }
    }

    #[test]
    fn users_and_patterns_mean_sessions_of_the_own_role() {
        let user = |name: &str| Bson::from(doc! { "user": name, "db": "admin" });
        assert_eq!(of(KILL_ALL, vec![user("ann")], doc! {}), (true, None));
        assert_eq!(of(KILL_ALL, vec![user("bob"), user("ann")], doc! {}), (false, None));
        assert_eq!(of(KILL_ALL, vec![user("bob"), Bson::Null], doc! {}), (false, Some(vec![])));
        assert!(!of(KILL_ALL, vec![doc! { "user": "ann" }.into()], doc! {}).0);
        let by_session = Bson::from(doc! { "lsid": session(7) });
        assert_eq!(of(KILL_BY_PATTERN, vec![by_session.clone()], doc! {}), (false, Some(vec![[7; 16]])));
        assert_eq!(of(KILL_BY_PATTERN, vec![by_session, doc! {}.into()], doc! {}), (false, None));
    }
}
