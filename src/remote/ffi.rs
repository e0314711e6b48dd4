//! Everything of this module that calls C: libpq, and the parts of the PostgreSQL server that the executor needs.
//!
//! The wrappers own what they wrap and free it on drop; none hands out a pointer. libpq is used in non-blocking mode
//! only, and all waiting goes through PostgreSQL's wait events. Three invariants make it sound, and the SAFETY lines
//! name them:
//!
//! - *owned*: the pointer was returned by libpq or PostgreSQL to this wrapper, is not null, and is freed only by its drop;
//! - *main thread*: a backend runs its code on one thread, and these wrappers are neither `Send` nor `Sync`
//!   (except [`Cancel`], which libpq allows on any thread);
//! - *in a transaction*: catalog lookups are made by statements, so a transaction and a resource owner are there.
#![allow(unsafe_code)]

mod backend;
mod libpq;

pub(super) use backend::*;
pub(super) use libpq::*;
