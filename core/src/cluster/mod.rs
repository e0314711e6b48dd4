//! The logic of the cluster, without a server: the owners of keys, the balancer's policy, the states of a move and of a
//! connection, and the detection of a router's copies.

pub mod chunk_map;
pub mod standing;
pub mod zone;

pub mod merge;
pub mod share;
pub mod targeting;

pub mod load;

pub mod balancer;
pub mod connection;
pub mod deadlock;
pub mod frontend;
pub mod handshake;
pub mod login;
pub mod migration;
pub mod ownership;
pub mod prepared_name;
pub mod resharding;
pub mod router_lock;
pub mod silence;
pub mod take_over;
pub mod turns;

mod rows;
