//! Declares which types of this folder are rows or columns of the catalog.

use super::chunk_map::{Chunk, ShardId};
use super::handshake::Position;
use super::migration::{Outcome, State};
use super::prepared_name::Coordinator;
use super::resharding;
use super::standing::Registration;
use crate::sql::record::{record, text_columns};

record! { Chunk { min: Vec<u8>, max: Vec<u8>, shard: ShardId } }
record! { Coordinator { cluster: i64, epoch: i64 } }
record! { Registration { router: Option<String>, copy: Option<String>, has_shards: bool } }
record! { Position { timeline: i64, counter: i64 } }
text_columns! { State: "state of a migration", Outcome: "outcome of a migration",
resharding::State: "state of a change of layout" }
