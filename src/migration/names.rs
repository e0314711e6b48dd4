//! The names of a move's prepared transactions, and the application name of its sessions. [`crate::shard::leftovers`] has
//! the names of its tables.

/// The prefix of the prepared transactions' names in this cluster.
pub fn gid_prefix(cluster: i64) -> String {
    format!("docshard_m_{cluster}_")
}

/// Returns the number of the move that a prepared transaction belongs to; None for a name that no move uses.
pub fn move_of(gid: &str, cluster: i64) -> Option<i64> {
    let (id, side) = gid.strip_prefix(&gid_prefix(cluster))?.split_once('_')?;
    id.parse().ok().filter(|_| ["t", "r"].contains(&side))
}

pub fn donor_gid(cluster: i64, id: i64) -> String {
    format!("docshard_m_{cluster}_{id}_t")
}

pub fn recipient_gid(cluster: i64, id: i64) -> String {
    format!("docshard_m_{cluster}_{id}_r")
}

pub fn application(cluster: i64, id: i64) -> String {
    format!("docshard m {cluster} {id}")
}

#[cfg(any(test, feature = "pg_test"))]
#[pgrx::pg_schema]
mod tests {
    use super::*;
    use pgrx::pg_test;

    #[pg_test]
    fn a_prepared_transactions_name_has_the_moves_number() {
        for gid in [donor_gid(7, 12), recipient_gid(7, 12)] {
            assert_eq!(move_of(&gid, 7), Some(12));
            assert_eq!(move_of(&gid, 71), None);
        }
        for invented in ["", "x", "12", "12_", "12_x", "_t", "x_t", "99999999999999999999_t", "12_t_t"] {
            assert_eq!(move_of(&format!("docshard_m_7_{invented}"), 7), None, "{invented}");
        }
    }
}
