//! All SQL functions. Each converts its arguments, calls the module that does the work, and returns the result or raises the
//! error.
//!
//! * [`administration`], [`reads`], [`writes`], [`status`], [`values`]: schema `docshard`, for users.
//! * [`handshake`], [`shard`], [`shard_access`], [`measure`]: functions that routers and other shards call on a shard.
//! * [`engine`], [`index`]: the document engine, as functions for statements and index expressions.

pub mod administration;
pub mod engine;
pub mod handshake;
pub mod index;
pub mod measure;
pub mod reads;
pub mod shard;
pub mod shard_access;
pub mod status;
pub mod values;
pub mod writes;

use crate::pg::error::{Error, Raise as _, Result};

fn run<T>(work: impl FnOnce() -> Result<T>) -> T {
    work().unwrap_or_else(|e| e.raise())
}

/// Declares SQL functions of schema `docshard` that return JSON: `name(arguments) => result;`. They refuse null arguments.
/// `nullable name(arguments)` declares one that accepts null for some arguments and checks the others itself.
macro_rules! json_functions {
    () => {};
    ($name:ident() => $result:expr; $($more:tt)*) => {
        $crate::api::json_functions! { nullable $name() => $result; $($more)* }
    };
    (nullable $name:ident($($arguments:tt)*) => $result:expr; $($more:tt)*) => {
        #[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
        fn $name($($arguments)*) -> Json {
            Json::new($crate::api::run(|| $result).to_string())
        }
        $crate::api::json_functions! { $($more)* }
    };
    ($name:ident($($arguments:tt)*) => $result:expr; $($more:tt)*) => {
        #[pg_extern(volatile, parallel_unsafe, requires = ["catalog"])]
        fn $name(_nulls: Option<$crate::pg::datum::nulls::NoNulls>, $($arguments)*) -> Json {
            Json::new($crate::api::run(|| $result).to_string())
        }
        $crate::api::json_functions! { $($more)* }
    };
}
use json_functions;

/// Declares SQL functions of schema `docshard_internal`: `[properties] name(arguments) -> type => result;`.
macro_rules! shard_functions {
    ($(
        $(#[$doc:meta])*
        [$($property:tt)*] $name:ident($($arguments:tt)*) $(-> $returns:ty)? => $result:expr;
    )*) => {$(
        $(#[$doc])*
        #[allow(clippy::too_many_arguments, clippy::unit_arg, reason = "an SQL function has no structures, and may return nothing")]
        #[pg_extern(schema = "docshard_internal", $($property)*, requires = ["catalog"])]
        fn $name($($arguments)*) $(-> $returns)? {
            $crate::api::run(|| $result)
        }
    )*};
}
use shard_functions;

/// Returns the argument, or an error if it is null. For functions that accept null for some other argument. Functions that accept
/// no null have a [`NoNulls`](crate::pg::datum::nulls::NoNulls), or are STRICT.
fn required<T>(argument: Option<T>, name: &str) -> Result<T> {
    argument.ok_or_else(|| Error::null_argument(name))
}

/// Redefines required arguments as variables of the same names.
macro_rules! given {
    ($($argument:ident),+) => {
        $(let $argument = $crate::api::required($argument, stringify!($argument)).unwrap_or_else(|e| $crate::pg::error::Raise::raise(e));)+
    };
}
use given;
