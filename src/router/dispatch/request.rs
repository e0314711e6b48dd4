//! The parts that all requests to a shard have in common.

use crate::catalog::model::Collection;
use crate::ownership::placement::Placement;
use crate::pg::error::Result;
use crate::pg::fault;
use crate::remote;
use crate::router::destination::Destination;

pub(super) fn assumed(collection: &Collection, destination: &Destination) -> Placement {
    Placement { token: collection.token, version: destination.version }
}

pub(super) fn start(requests: &[remote::Request<'_>]) -> Result<Vec<remote::Stream>> {
    if requests.is_empty() {
        return Ok(Vec::new());
    }
    fault::point("dispatch.sending")?;
    remote::start(requests)
}
