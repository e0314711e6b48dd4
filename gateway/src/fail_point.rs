//! MongoDB's `configureFailPoint` for `failCommand`, in builds for tests only: commands of clients fail, or their connections close.
//!
//! Beside MongoDB's `failCommands`, `errorCode`, `errorLabels`, `closeConnection`, `blockConnection` and `blockTimeMS` there is
//! `afterCommand: true`: the command runs before its connection closes.

use crate::reply::{self, BAD_VALUE, Failure, Reply};
use bson::{Bson, Document, doc};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// How often it acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Always,
    Times(i64),
    /// after as many commands
    Skip(i64),
}

#[derive(Debug)]
struct Armed {
    mode: Mode,
    data: Document,
}

/// What befalls a command.
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

impl FailPoint {
    /// Runs `configureFailPoint`.
    pub fn configure(&self, command: &[u8]) -> Result<Reply, Failure> {
        let wrong = |what: &str| Failure::new(BAD_VALUE, format!("configureFailPoint: {what}"));
        let command = Document::from_reader(command).map_err(|_| wrong("not a document"))?;
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

    /// What befalls a command of this name.
    pub fn of(&self, name: &str) -> Fault {
        let mut none = Fault { pause: None, effect: Effect::Nothing };
        let mut armed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(Armed { mode, data }) = &mut *armed else { return none };
        let names = data.get_array("failCommands").map(Vec::as_slice).unwrap_or_default();
        if !names.iter().any(|named| named.as_str() == Some(name)) {
            return none;
        }
        match mode {
            Mode::Always => {}
            Mode::Times(0) => return none,
            Mode::Times(left) => *left -= 1,
            Mode::Skip(0) => {}
            Mode::Skip(left) => {
                *left -= 1;
                return none;
            }
        }
        let flag = |name| data.get_bool(name).unwrap_or(false);
        if flag("blockConnection") {
            let pause = integer(data.get("blockTimeMS")).and_then(|time| u64::try_from(time).ok()).unwrap_or(0);
            none.pause = Some(Duration::from_millis(pause));
        }
        let effect = match integer(data.get("errorCode")).and_then(|code| i32::try_from(code).ok()) {
            _ if flag("closeConnection") && flag("afterCommand") => Effect::CloseAfterCommand,
            _ if flag("closeConnection") => Effect::Close,
            Some(code) => {
                let mut fields =
                    doc! { "ok": 0.0, "errmsg": "Failing command via 'failCommand' failpoint", "code": code };
                if let Ok(labels) = data.get_array("errorLabels") {
                    fields.insert("errorLabels", labels.clone());
                }
                Effect::Reply(fields.to_vec().unwrap_or_default())
            }
            None => Effect::Nothing,
        };
        Fault { effect, ..none }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_acts_as_often_as_it_is_told() {
        let point = FailPoint::default();
        let configure = |mode: Bson, data: Document| {
            let command = doc! { "configureFailPoint": "failCommand", "mode": mode, "data": data };
            point.configure(&command.to_vec().unwrap()).map(drop)
        };
        let close = doc! { "failCommands": ["insert"], "closeConnection": true };
        let effect = |name| point.of(name).effect;
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
        let fault = point.of("find");
        assert_eq!(fault.pause, Some(Duration::from_millis(5)));
        assert!(matches!(fault.effect, Effect::Reply(reply) if reply::code_of(&reply) == Some(91)));
        configure("off".into(), doc! {}).unwrap();
        assert_eq!(effect("find"), Effect::Nothing);
        for wrong in [Bson::Int32(1), doc! {}.into(), "on".into()] {
            assert_eq!(configure(wrong, close.clone()).unwrap_err().code, 2);
        }
    }
}
