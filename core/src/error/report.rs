//! The texts in which PostgreSQL reports an error: made when it is raised, and read when it comes in.
//!
//! DETAIL begins with `MongoDB error 11000 (DuplicateKey).` in docshard's own errors. The last lines of CONTEXT are `shard "name"`,
//! one for each shard that has passed the error on, nearest last. Nodes of other versions write and read the same texts.

use super::sqlstate::SqlState;
use super::{Error, Kind};

/// The fields of an error that are texts, and its SQLSTATE.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Fields {
    /// Its SQLSTATE.
    pub sqlstate: SqlState,
    /// Its message.
    pub message: String,
    /// DETAIL
    pub detail: Option<String>,
    /// HINT
    pub hint: Option<String>,
    /// CONTEXT
    pub context: Option<String>,
}

impl From<Fields> for Error {
    fn from(fields: Fields) -> Self {
        let mut error = Self::of_sqlstate(fields.sqlstate, fields.message);
        error.detail = fields.detail;
        if let Some((code, rest)) = error.detail.as_deref().and_then(split_code) {
            let rest = Some(rest.trim_start()).filter(|rest| !rest.is_empty()).map(str::to_owned);
            (error.kind, error.is_ours, error.detail) = (code.into(), true, rest);
        }
        error.hint = fields.hint;
        if let Some(mut text) = fields.context.as_deref() {
            while let Some((before, shard)) = last_shard(text) {
                error.shards.insert(0, shard.to_owned());
                text = before;
            }
            error.context = Some(text).filter(|text| !text.is_empty()).map(str::to_owned);
        }
        error
    }
}

impl Error {
    /// The text of its DETAIL.
    pub fn detail_text(&self) -> Option<String> {
        if !self.is_ours {
            return self.detail.clone();
        }
        let code = code_text(self.kind);
        Some(self.detail.as_ref().map_or_else(|| code.clone(), |rest| format!("{code} {rest}")))
    }

    /// The text of its CONTEXT.
    pub fn context_text(&self) -> Option<String> {
        let shards = self.shards.iter().map(|name| shard_text(name));
        let lines: Vec<_> = self.context.iter().cloned().chain(shards).collect();
        if lines.is_empty() { None } else { Some(lines.join("\n")) }
    }
}

/// MongoDB's code and name, with which a DETAIL begins.
fn code_text(kind: Kind) -> String {
    format!("MongoDB error {} ({}).", kind.code(), kind.name())
}

/// MongoDB's code in a DETAIL, and the rest of it.
fn split_code(detail: &str) -> Option<(i32, &str)> {
    let (code, rest) = detail.strip_prefix("MongoDB error ")?.split_once(" (")?;
    let (_, rest) = rest.split_once(").")?;
    let code = code.parse().ok().filter(|_| code.bytes().all(|byte| byte.is_ascii_digit()))?;
    Some((code, rest))
}

/// MongoDB's code in a DETAIL.
pub fn code(detail: &str) -> Option<i32> {
    split_code(detail).map(|(code, _)| code)
}

/// How CONTEXT names a shard.
fn shard_text(name: &str) -> String {
    format!("shard \"{name}\"")
}

/// The shard in the last line of a CONTEXT, and what is before it.
fn last_shard(context: &str) -> Option<(&str, &str)> {
    let (before, line) = context.rsplit_once('\n').unwrap_or(("", context));
    Some((before, line.strip_prefix("shard \"")?.strip_suffix('"')?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Retry, sqlstate};

    fn read(sqlstate: SqlState, detail: Option<&str>, context: Option<&str>) -> Error {
        let [detail, context] = [detail, context].map(|text| text.map(str::to_owned));
        Fields { sqlstate, message: "m".to_owned(), detail, hint: None, context }.into()
    }

    #[test]
    fn a_text_is_read_and_made_again() {
        let details = [
            None,
            Some("Key (id)=(1) already exists."),
            Some("MongoDB error 11000 (DuplicateKey)."),
            Some("MongoDB error 40324 (Location40324)."),
            Some("MongoDB error 6 (HostUnreachable). Already committed on shard \"a\"."),
            Some("MongoDB error none (BadValue)."),
            Some("MongoDB error 99999999999 (TooLarge)."),
        ];
        let contexts = [
            None,
            Some("shard \"a\""),
            Some("PL/pgSQL function f() line 3\nshard \"a\"\nshard \"b\""),
            Some("shard \"a\"\nSQL statement \"SELECT 1\""),
            Some("after 1 of 4 parts had been moved"),
        ];
        for detail in details {
            for context in contexts {
                let error = read(sqlstate::UNABLE_TO_CONNECT, detail, context);
                assert_eq!(error.detail_text().as_deref(), detail);
                assert_eq!(error.context_text().as_deref(), context);
            }
        }
    }

    #[test]
    fn what_texts_mean_is_read_once() {
        let both = read(
            sqlstate::UNABLE_TO_CONNECT,
            Some("MongoDB error 89 (NetworkTimeout). More."),
            Some("in f()\nshard \"a\"\nshard \"b\""),
        );
        assert_eq!((both.kind, both.is_ours, both.detail.as_deref()), (Kind::NetworkTimeout, true, Some("More.")));
        assert_eq!((both.context.as_deref(), both.shards.join(" ")), (Some("in f()"), "a b".to_owned()));
        let foreign = read(sqlstate::UNIQUE_VIOLATION, Some("Key (id)=(1) already exists."), None);
        assert_eq!((foreign.kind, foreign.is_ours, foreign.retry), (Kind::DuplicateKey, false, Retry::None));
        assert_eq!(read(sqlstate::STALE, Some("MongoDB error 63 (StaleShardVersion)."), None).retry, Retry::NewMap);
        assert_eq!(
            read(sqlstate::INVALID_NAME, Some("MongoDB error 123456 (Newer)."), None).kind,
            Kind::Location(123_456)
        );
    }

    #[test]
    fn an_error_is_as_large_as_a_pointer() {
        assert_eq!(size_of::<Error>(), size_of::<usize>());
    }
}
