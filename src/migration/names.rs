//! The names of a move's prepared transactions, and the application name of its sessions; those of its tables are in [`crate::ownership::leftovers`].

/// The prefix of the prepared transactions' names in this cluster.
pub fn gid_prefix(cluster: i64) -> String {
    format!("docshard_m_{cluster}_")
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
