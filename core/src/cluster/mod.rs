//! The logic of the cluster, without a server: which shard owns which keys, what the balancer does next, the states of a
//! move and of a connection, which database is the router.

pub mod chunk_map;
pub mod zone;

pub mod merge;
pub mod targeting;

pub mod balancer;
pub mod connection;
pub mod deadlock;
pub mod handshake;
pub mod migration;
pub mod prepared_name;
pub mod router_lock;
pub mod silence;
pub mod standing;
