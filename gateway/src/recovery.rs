//! The `recoveryToken` of transactions. Replies of a transaction's statements have it, and drivers send it with the commit. If a
//! driver repeats the commit at another gateway, that gateway asks the router for the result by the id in the token.
//!
//! A transaction has an id once it has written to the router's own database. Before that, the token is empty.
//!
//! INVARIANT: the extension has flushed the id (`flush_transaction_id`) when the gateway learns it. So after a crash of the router no other transaction
//! gets it, on the same timeline of the same system.

use bson::{Document, RawDocument, doc};

/// Identifies a transaction at the router, if it has written to the router's own database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Xid {
    pub number: u64,
    /// the timeline of the router's write-ahead log: after a failover, the number may belong to another transaction
    pub timeline: String,
    /// the database system: another router may have a transaction with the same number
    pub system: String,
}

/// The timeline, and the database system, in which a transaction's id is valid.
macro_rules! timeline {
    () => {
        "pg_catalog.substr(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 1, 8)"
    };
}
macro_rules! system {
    () => {
        "(pg_catalog.pg_control_system()).system_identifier"
    };
}

/// The transaction's id, and where it is valid; NULLs if it has none. There is always a row, on which the commit relies.
pub const XID: &str = concat!(
    "SELECT own.xid, CASE WHEN own.xid IS NOT NULL THEN ",
    timeline!(),
    " END, CASE WHEN own.xid IS NOT NULL THEN ",
    system!(),
    " END FROM (SELECT pg_catalog.pg_current_xact_id_if_assigned() AS xid OFFSET 0) AS own"
);

/// The longest text in a token, in bytes.
const MAX_TEXT: usize = 100;

impl Xid {
    /// Reads the row of [`XID`]; None if the transaction has no id, or was not asked for it.
    pub fn of_row(row: &[Vec<u8>]) -> Option<Self> {
        let [number, timeline, system] = row else { return None };
        let text = |value: &[u8]| String::from_utf8(value.to_vec()).ok();
        Some(Self { number: text(number)?.parse().ok()?, timeline: text(timeline)?, system: text(system)? })
    }

    /// The query for the transaction's status, and for the timeline and the system of the router now. The status is NULL if these are not those
    /// of the id, whose number the router may not have given yet.
    pub fn status(&self) -> String {
        let Self { number, timeline, system } = self;
        format!(
            concat!(
                "SELECT CASE WHEN ",
                timeline!(),
                " = '{}' AND ",
                system!(),
                "::pg_catalog.text = '{}' THEN pg_catalog.pg_xact_status('{}') END, ",
                timeline!(),
                ", ",
                system!()
            ),
            timeline, system, number
        )
    }

    /// The id in a command's token. None without a token, and for an empty one or that of another server.
    pub fn of_command(command: &RawDocument) -> Option<Self> {
        let token = command.get_document("recoveryToken").ok()?;
        // They become literals of a statement.
        let is_plain = |text: &&str| {
            text.len() <= MAX_TEXT && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        };
        let text = |name: &str| token.get_str(name).ok().filter(is_plain).map(str::to_owned);
        Some(Self { number: text("xid")?.parse().ok()?, timeline: text("timeline")?, system: text("system")? })
    }
}

/// The token of a transaction.
pub fn token(xid: Option<&Xid>) -> Document {
    match xid {
        Some(xid) => doc! { "xid": xid.number.to_string(), "timeline": &xid.timeline, "system": &xid.system },
        None => doc! {},
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_read_as_it_was_made() {
        let row = [b"12".to_vec(), b"00000001".to_vec(), b"745".to_vec()];
        let xid = Xid::of_row(&row).unwrap();
        let of = |token: Document| {
            let command = doc! { "commitTransaction": 1, "recoveryToken": token }.to_vec().unwrap();
            Xid::of_command(RawDocument::from_bytes(&command).unwrap())
        };
        assert_eq!(of(token(Some(&xid))), Some(xid));
        for wrong in [
            token(None),
            doc! { "recoveryShardId": "shard0" },
            doc! { "xid": "1'; SELECT 1", "timeline": "00000001", "system": "1" },
            doc! { "xid": "1", "timeline": "x".repeat(1000), "system": "1" },
            doc! { "xid": "1", "timeline": "00000001", "system": "1' OR '1" },
        ] {
            assert_eq!(of(wrong.clone()), None, "{wrong}");
        }
        assert_eq!(Xid::of_row(&[const { Vec::new() }; 3]), None, "there is no id yet");
        assert_eq!(Xid::of_row(&[]), None);
    }
}
