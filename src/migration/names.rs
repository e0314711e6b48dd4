//! The names of a move's prepared transactions and sessions; those of its tables are in [`crate::ownership::leftovers`].

/// The beginning of the prepared transactions' names in this cluster.
pub fn gid_prefix(cluster: i64) -> String {
    format!("docshard_m_{cluster}_")
}
/// What the donor prepares.
pub fn donor_gid(cluster: i64, id: i64) -> String {
    format!("docshard_m_{cluster}_{id}_t")
}
/// What the recipient prepares.
pub fn recipient_gid(cluster: i64, id: i64) -> String {
    format!("docshard_m_{cluster}_{id}_r")
}
/// The application name of the move's sessions.
pub fn application(cluster: i64, id: i64) -> String {
    format!("docshard m {cluster} {id}")
}
