//! Parses the connection strings of shards: libpq's forms and MongoDB's.

use crate::pg::error::{Error, Result};
use crate::remote;
use docshard_core::error::sqlstate::class;
use docshard_core::error::{Kind, error};

pub(in crate::catalog) type Keywords = Vec<(String, String)>;

/// Parses a connection string to libpq options. It has one of libpq's forms, or MongoDB's `name/host1:port,host2:port`. The second value is
/// the name in MongoDB's form, else None.
pub(in crate::catalog) fn parse_connection(conn: &str) -> Result<(Keywords, Option<String>)> {
    let mongodb = !conn.contains('=') && !conn.contains("://");
    let Some((name, hosts)) = conn.split_once('/').filter(|_| mongodb) else {
        return Ok((remote::parse_conninfo(conn)?, None));
    };
    let mut names = Vec::new();
    let mut ports = Vec::new();
    for host in hosts.split(',') {
        let (host, port) = host.rsplit_once(':').unwrap_or((host, "5432"));
        // In MongoDB's other form a login precedes "@". It is refused, as messages show the host.
        if host.is_empty() || host.contains('@') || port.parse::<u16>().is_err() {
            return Err(error!(Kind::FailedToParse, "malformed connection string")
                .with_hint("Use MongoDB's form name/host1:port,host2:port, or one of libpq's forms."));
        }
        names.push(host);
        ports.push(port);
    }
    let mut keywords = vec![("host".to_owned(), names.join(",")), ("port".to_owned(), ports.join(","))];
    if names.len() > 1 {
        keywords.push(("target_session_attrs".to_owned(), "read-write".to_owned()));
    }
    Ok((keywords, Some(name.to_owned())))
}

pub(in crate::catalog) fn value<'a>(keywords: &'a Keywords, name: &str) -> Option<&'a str> {
    keywords.iter().find(|(keyword, _)| keyword == name).map(|(_, value)| value.as_str())
}

pub(in crate::catalog) fn set(keywords: &mut Keywords, name: &str, value: &str) {
    keywords.retain(|(keyword, _)| keyword != name);
    keywords.push((name.to_owned(), value.to_owned()));
}

/// The address of a shard, for display.
pub(in crate::catalog) fn display_host(keywords: &Keywords) -> String {
    let host = value(keywords, "host").or(value(keywords, "hostaddr")).unwrap_or("[local]");
    let port = value(keywords, "port").unwrap_or("5432");
    format!("{host}:{port}/{}", value(keywords, "dbname").unwrap_or(""))
}

/// Requires a password, and refuses options that would make the router log in with files, identities or services of its own server. Called
/// unless a superuser gives the options.
pub(in crate::catalog) fn refuse_foreign_secrets(keywords: &Keywords, password: Option<&str>) -> Result<()> {
    if password.is_none_or(str::is_empty) {
        return Err(error!(Kind::Unauthorized, "a password is required for a shard")
            .with_hint("Only a superuser may do without; give \"user\" and \"password\" as options."));
    }
    refuse_foreign_options(keywords)
}

/// The part of [`refuse_foreign_secrets`] that checks the address.
pub(in crate::catalog) fn refuse_foreign_options(keywords: &Keywords) -> Result<()> {
    const ALLOWED: &[&str] =
        &["host", "hostaddr", "port", "dbname", "sslmode", "connect_timeout", "target_session_attrs"];
    match keywords.iter().find(|(keyword, _)| !ALLOWED.contains(&keyword.as_str())) {
        None => Ok(()),
        Some((keyword, _)) => {
            Err(error!(Kind::Unauthorized, "only a superuser may use the connection option \"{keyword}\" for a shard"))
        }
    }
}

pub(in crate::catalog) const REACH_HINT: &str =
    "The router connects with libpq: check host, port, dbname, user and password, and pg_hba.conf there.";

pub(in crate::catalog) fn unreachable_shard(error: Error) -> Error {
    if [class::CONNECTION, class::AUTHORIZATION, class::CATALOG_NAME].iter().any(|class| error.is_of_class(class)) {
        return Error::new(Kind::HostUnreachable, error.message.as_str()).at_place_of(&error);
    }
    error
}
