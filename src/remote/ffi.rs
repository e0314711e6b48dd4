//! The C functions of libpq and of the PostgreSQL server that `remote` uses. Outside of this module, `remote` has no `unsafe`.
//!
//! Wrappers own what they wrap, free it on drop, and return no pointers. libpq is used in non-blocking mode, and all waiting uses
//! PostgreSQL's wait events. The SAFETY lines refer to these invariants:
//!
//! - *owned*: libpq or PostgreSQL returned the pointer to this wrapper; it is not null, and only the wrapper's drop frees it;
//! - *main thread*: a backend has one thread, and the wrappers are neither `Send` nor `Sync`, except [`Cancel`];
//! - *in a transaction*: statements make catalog lookups, so there is a transaction and a resource owner.
#![allow(unsafe_code)]

mod backend;
mod channel;
mod libpq;
mod login_relay;

pub(super) use backend::*;
pub(super) use libpq::*;
