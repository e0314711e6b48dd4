//! MongoDB's `configureFailPoint` for `failCommand`, in builds for tests only: commands of clients fail, or their connections close.
//!
//! It accepts MongoDB's `failCommands`, `appName`, `errorCode`, `errorLabels`, `writeConcernError`, `closeConnection`, `blockConnection`
//! and `blockTimeMS`. `afterCommand: true` is docshard's addition: the connection closes after the command has run. In such builds
//! `getParameter` replies `enableTestCommands: true`, which drivers' tests require.

use crate::command::Command;
use crate::reply::{self, BAD_VALUE, Failure, Reply, TRANSIENT};
use crate::retried;
use crate::session::Part;
use crate::transactions::TRANSIENT_CODES;
use bson::{Bson, Document, RawBsonRef, RawDocument, doc};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// How often the fail point acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Always,
    Times(i64),
    /// always, after this many commands
    Skip(i64),
}

/// The deepest nesting of the command.
const MAX_DEPTH: usize = 100;

#[derive(Debug)]
struct Armed {
    mode: Mode,
    data: Document,
}

/// What the fail point does to a command.
#[derive(Debug, PartialEq)]
pub struct Fault {
    /// a time to wait first
    pub pause: Option<Duration>,
    pub effect: Effect,
}

#[derive(Debug, PartialEq)]
pub enum Effect {
    Nothing,
    Close,
    CloseAfterCommand,
    Reply(Reply),
    /// the command runs, and its reply gets these fields
    Amend(Document),
}

#[derive(Debug, Default)]
pub struct FailPoint(Mutex<Option<Armed>>);

fn integer(value: Option<&Bson>) -> Option<i64> {
    match value? {
        Bson::Int32(value) => Some((*value).into()),
        Bson::Int64(value) => Some(*value),
        Bson::Double(value) => Some(*value as i64),
        _ => None,
    }
}

/// True if a value is nested at most this deep: a document is read by recursion.
fn is_shallow(value: RawBsonRef<'_>, depth: usize) -> bool {
    let inner =
        |value: bson::error::Result<RawBsonRef<'_>>| depth > 0 && value.is_ok_and(|value| is_shallow(value, depth - 1));
    match value {
        RawBsonRef::Document(document) => document.iter().all(|field| inner(field.map(|(_, value)| value))),
        RawBsonRef::Array(array) => array.into_iter().all(inner),
        RawBsonRef::JavaScriptCodeWithScope(_) => false,
        _ => true,
    }
}

impl FailPoint {
    /// Runs `configureFailPoint`.
    pub fn configure(&self, command: &[u8]) -> Result<Reply, Failure> {
        let wrong = |what: &str| Failure::new(BAD_VALUE, format!("configureFailPoint: {what}"));
        let is_flat =
            RawDocument::from_bytes(command).is_ok_and(|command| is_shallow(RawBsonRef::Document(command), MAX_DEPTH));
        let command =
            is_flat.then(|| Document::from_reader(command).ok()).flatten().ok_or_else(|| wrong("not a document"))?;
        if !matches!(command.get_str("configureFailPoint"), Ok("failCommand")) {
            return Err(wrong("only failCommand is known"));
        }
        let data = command.get_document("data").cloned().unwrap_or_default();
        let mode = match command.get("mode") {
            Some(Bson::String(mode)) if mode == "off" => None,
            Some(Bson::String(mode)) if mode == "alwaysOn" => Some(Mode::Always),
            Some(Bson::Document(mode)) => {
                let times = integer(mode.get("times")).map(Mode::Times);
                Some(times.or(integer(mode.get("skip")).map(Mode::Skip)).ok_or_else(|| wrong("an unknown mode"))?)
            }
            _ => return Err(wrong("an unknown mode")),
        };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = mode.map(|mode| Armed { mode, data });
        Ok(reply::ok(doc! {}))
    }

    /// Returns what the fail point does to a command of a client whose program has this name, and counts the command.
    pub fn of(&self, command: &Command, program: Option<&str>) -> Fault {
        let mut fault = Fault { pause: None, effect: Effect::Nothing };
        let mut armed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(Armed { mode, data }) = &mut *armed else { return fault };
        let names = data.get_array("failCommands").map(Vec::as_slice).unwrap_or_default();
        let is_for_other_client = data.get_str("appName").is_ok_and(|wanted| program != Some(wanted));
        if is_for_other_client || !names.iter().any(|named| named.as_str() == Some(&command.name)) {
            return fault;
        }
        match mode {
            Mode::Always => {}
            Mode::Times(0) => return fault,
            Mode::Times(left) => *left -= 1,
            Mode::Skip(0) => {}
            Mode::Skip(left) => {
                *left -= 1;
                return fault;
            }
        }
        let flag = |name| data.get_bool(name).unwrap_or(false);
        if flag("blockConnection") {
            let pause = integer(data.get("blockTimeMS")).and_then(|time| u64::try_from(time).ok()).unwrap_or(0);
            fault.pause = Some(Duration::from_millis(pause));
        }
        let error = integer(data.get("errorCode")).and_then(|code| i32::try_from(code).ok());
        let effect = match (error, data.get("writeConcernError")) {
            _ if flag("closeConnection") && flag("afterCommand") => Effect::CloseAfterCommand,
            _ if flag("closeConnection") => Effect::Close,
            (Some(code), _) => Effect::Reply(refusal(command, code, data.get("errorLabels"))),
            (None, Some(error)) => {
                let mut fields = doc! { "writeConcernError": error };
                fields.extend(data.get("errorLabels").map(|labels| ("errorLabels".to_owned(), labels.clone())));
                Effect::Amend(fields)
            }
            (None, None) => Effect::Nothing,
        };
        Fault { effect, ..fault }
    }
}

/// Names of the error codes that tests compare.
const CODE_NAMES: &[(i32, &str)] =
    &[(50, "MaxTimeMSExpired"), (112, "WriteConflict"), (251, "NoSuchTransaction"), (11601, "Interrupted")];

/// Error codes of `commitTransaction` after which the whole transaction can be run again.
const TRANSIENT_COMMIT_CODES: &[i32] = &[24, 112, 246, 251, 267];

/// Returns an error reply. Its labels are the fail point's; without any, the label that MongoDB gives this code in a transaction or a
/// retryable write.
fn refusal(command: &Command, code: i32, labels: Option<&Bson>) -> Reply {
    let mut fields = doc! { "ok": 0.0, "errmsg": "Failing command via 'failCommand' failpoint", "code": code };
    let name = CODE_NAMES.iter().find(|(known, _)| *known == code);
    fields.extend(name.map(|(_, name)| ("codeName".to_owned(), (*name).into())));
    fields.extend(labels.map(|labels| ("errorLabels".to_owned(), labels.clone())));
    let reply = fields.to_vec().unwrap_or_default();
    let codes = if command.name == "commitTransaction" { TRANSIENT_COMMIT_CODES } else { TRANSIENT_CODES };
    match command.part {
        _ if labels.is_some() => reply,
        Part::Transaction { .. } if codes.contains(&code) => reply::relabelled(&reply, TRANSIENT, true),
        _ => retried::labelled(command, reply),
    }
}

/// The reply with further fields.
pub fn amended(reply: &[u8], fields: Document) -> Reply {
    let Ok(mut document) = Document::from_reader(reply) else { return reply.to_vec() };
    document.extend(fields);
    document.to_vec().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::message::Request;

    fn command(name: &str) -> Command {
        let document = doc! { name: 1, "$db": "test" }.to_vec().unwrap();
        Command::of(&Request {
            document: &document,
            sequences: vec![],
            more_to_come: false,
            exhaust_allowed: false,
            database: None,
        })
        .unwrap()
    }

    #[test]
    fn it_acts_as_often_as_it_is_told() {
        let point = FailPoint::default();
        let configure = |mode: Bson, data: Document| {
            let command = doc! { "configureFailPoint": "failCommand", "mode": mode, "data": data };
            point.configure(&command.to_vec().unwrap()).map(drop)
        };
        let close = doc! { "failCommands": ["insert"], "closeConnection": true };
        let effect = |name| point.of(&command(name), None).effect;
        assert_eq!(effect("insert"), Effect::Nothing);
        configure(doc! { "times": 2 }.into(), close.clone()).unwrap();
        assert_eq!(effect("find"), Effect::Nothing);
        assert_eq!(
            [effect("insert"), effect("insert"), effect("insert")],
            [Effect::Close, Effect::Close, Effect::Nothing]
        );
        configure(doc! { "skip": 1 }.into(), close.clone()).unwrap();
        assert_eq!(
            [effect("insert"), effect("insert"), effect("insert")],
            [Effect::Nothing, Effect::Close, Effect::Close]
        );
        configure(
            "alwaysOn".into(),
            doc! { "failCommands": ["find"], "errorCode": 91, "blockConnection": true, "blockTimeMS": 5 },
        )
        .unwrap();
        let fault = point.of(&command("find"), None);
        assert_eq!(fault.pause, Some(Duration::from_millis(5)));
        assert!(matches!(fault.effect, Effect::Reply(reply) if reply::code_of(&reply) == Some(91)));
        let concern = doc! { "code": 91 };
        let of_app =
            doc! { "failCommands": ["find"], "appName": "a", "writeConcernError": &concern, "errorLabels": [] };
        configure("alwaysOn".into(), of_app).unwrap();
        assert_eq!(effect("find"), Effect::Nothing);
        let Effect::Amend(fields) = point.of(&command("find"), Some("a")).effect else {
            panic!("the reply is amended")
        };
        assert_eq!(fields, doc! { "writeConcernError": &concern, "errorLabels": [] });
        let reply = amended(&reply::ok(doc! { "n": 1 }), doc! { "writeConcernError": &concern });
        assert_eq!(Document::from_reader(reply.as_slice()).unwrap().get("writeConcernError"), Some(&concern.into()));
        configure("off".into(), doc! {}).unwrap();
        assert_eq!(effect("find"), Effect::Nothing);
        for wrong in [Bson::Int32(1), doc! {}.into(), "on".into()] {
            assert_eq!(configure(wrong, close.clone()).unwrap_err().code, 2);
        }
    }
}
