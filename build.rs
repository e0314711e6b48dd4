//! Keeps every section in the library when it is linked.
//!
//! pgrx describes SQL objects in sections that nothing refers to, and cargo-pgrx reads them from the library. By default it passes this
//! option to the compiler itself, for all crates; each dependency would then be built once more for the library than for its tests.
//! `.ci/lib.sh` tells it not to.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").as_deref() != Ok("macos") {
        println!("cargo::rustc-link-arg-cdylib=-Wl,--no-gc-sections");
    }
}
