//! State that lives as long as a function call's `FmgrInfo`: compiled filters and projections.

use pgrx::{PgMemoryContexts, pg_sys};

struct Entry<T> {
    text: String,
    value: T,
}

/// Returns the value that was compiled from `text`, from the call site's `fn_extra`. Compiles it only if the text has changed.
///
/// Invariant: a function uses this with one type `T` only; the cell is dropped with the call site's memory context.
#[allow(clippy::not_unsafe_ptr_arg_deref, reason = "PostgreSQL made the pointer for the call that is running")]
pub fn compiled<'a, T, E>(
    fcinfo: pg_sys::FunctionCallInfo,
    text: &str,
    compile: impl FnOnce(&str) -> Result<T, E>,
) -> Result<&'a T, E> {
    // SAFETY: fcinfo and flinfo are valid for the whole call; fn_extra is ours alone, and holds an Entry<T> or null.
    unsafe {
        let flinfo = (*fcinfo).flinfo;
        let cell: *mut Option<Entry<T>> = if (*flinfo).fn_extra.is_null() {
            let cell = PgMemoryContexts::For((*flinfo).fn_mcxt).leak_and_drop_on_delete(None::<Entry<T>>);
            (*flinfo).fn_extra = cell.cast();
            cell
        } else {
            (*flinfo).fn_extra.cast()
        };
        let current = (*cell).as_ref().is_some_and(|entry| entry.text == text);
        if !current {
            *cell = Some(Entry { text: text.to_owned(), value: compile(text)? });
        }
        match &*cell {
            Some(entry) => Ok(&entry.value),
            None => unreachable!("the entry was just made"),
        }
    }
}
