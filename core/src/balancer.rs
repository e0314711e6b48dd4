//! The balancer's policy: from a cluster's state to the next moves.
