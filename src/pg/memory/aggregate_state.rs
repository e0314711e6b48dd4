//! The transition state of aggregates.

use pgrx::datum::Internal;
use pgrx::{PgMemoryContexts, pg_sys};

/// Returns a group's state and its `internal` value. The state is made for the first row, and dropped with the aggregate, also
/// after an ERROR.
///
/// Invariant: an aggregate uses this, and [`finished`], with one type `T` only.
#[allow(clippy::not_unsafe_ptr_arg_deref, reason = "PostgreSQL made the pointer for the call that is running")]
pub fn state<'a, T, E>(
    fcinfo: pg_sys::FunctionCallInfo,
    state: Internal,
    make: impl FnOnce() -> Result<T, E>,
) -> Result<(&'a mut T, Internal), E> {
    // SAFETY: a state that is there was made here, with this type, and lives in the aggregate's context, which a call
    // from anywhere else does not have. SQL cannot make an `internal`.
    unsafe {
        let pointer = match state.unwrap() {
            Some(datum) => datum.cast_mut_ptr::<T>(),
            None => {
                let mut context = std::ptr::null_mut();
                assert!(pg_sys::AggCheckCallContext(fcinfo, &mut context) != 0, "called by an aggregate");
                // Memory that `make` allocates must live as long as the state.
                let former = pg_sys::MemoryContextSwitchTo(context);
                let made = make();
                pg_sys::MemoryContextSwitchTo(former);
                PgMemoryContexts::For(context).leak_and_drop_on_delete(made?)
            }
        };
        Ok((&mut *pointer, Internal::from(Some(pg_sys::Datum::from(pointer)))))
    }
}

/// Returns a group's state after all its rows; None if it has no rows.
pub fn finished<'a, T>(state: Internal) -> Option<&'a mut T> {
    // SAFETY: as in `state`.
    unsafe { state.unwrap().map(|datum| &mut *datum.cast_mut_ptr::<T>()) }
}
