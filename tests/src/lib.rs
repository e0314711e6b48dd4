//! Starts real clusters for the tests.
