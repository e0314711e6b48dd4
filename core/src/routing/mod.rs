//! What a router decides: names on shards, the metadata that it knows, the protocol between nodes, and the plans of statements.
//! Everything that a plan reads is given to it, so that a plan can be made without a server.

#![allow(missing_docs, reason = "fields have the names of the arguments, columns and options that they are")]

pub mod names;

pub mod model;

pub mod protocol;

pub mod request;

pub mod plan;

pub mod attempts;

pub mod consistency;
