//! A memory context that docshard owns, and what was opened in it: a sort, a row store, a scan.
//!
//! The value that owns the context, such as a sorter, is dropped when PostgreSQL frees the memory of the query. Two things may be gone
//! by then:
//!
//! * The context. Its parent is the transaction's context: the context of a function call ends too early, that of the query is freed
//!   before a sort could be ended, and that of a subtransaction is freed by ROLLBACK TO, although a cursor of the outer transaction
//!   goes on. The memory of a query that runs in SPI is a child of the transaction's context, too. When the transaction fails,
//!   PostgreSQL deletes these siblings in any order.
//! * What was opened: files, buffers, references of relations. They belong to a resource owner. A failed subtransaction releases
//!   what a cursor that failed in it had opened; the cursor's memory stays until the cursor is closed, or the outer transaction commits.
//!
//! So the context reports its end by a reset callback, and the resource owner by PostgreSQL's callback for extensions.
//!
//! INVARIANT: no other file deletes a memory context (`tests/tests/architecture`).

use pgrx::{PgMemoryContexts, pg_sys};
use std::cell::{Cell, RefCell};
use std::ffi::{CStr, c_void};
use std::ptr::null_mut;
use std::rc::Rc;

/// What still exists of an [`OwnContext`].
#[derive(Debug)]
struct State {
    context: Cell<pg_sys::MemoryContext>,
    /// null after the owner has released what it owned
    owner: Cell<pg_sys::ResourceOwner>,
}

/// Belongs to the context, and is dropped when PostgreSQL deletes it.
struct Deleted(Rc<State>);

impl Drop for Deleted {
    fn drop(&mut self) {
        self.0.context.set(null_mut());
    }
}

/// A memory context that is deleted when this is dropped, unless PostgreSQL has deleted it before.
#[derive(Debug)]
pub struct OwnContext(Rc<State>);

thread_local! {
    /// Contexts of transactions whose resource owner has not begun to release.
    static OPEN: RefCell<Vec<Rc<State>>> = const { RefCell::new(Vec::new()) };
    static IS_REGISTERED: Cell<bool> = const { Cell::new(false) };
}

/// Called for each phase in which a resource owner releases what it owns. Raises nothing.
unsafe extern "C-unwind" fn on_release(
    _phase: pg_sys::ResourceReleasePhase::Type,
    _is_commit: bool,
    _is_top_level: bool,
    _argument: *mut c_void,
) {
    // SAFETY: PostgreSQL sets it to the owner that releases.
    let owner = unsafe { pg_sys::CurrentResourceOwner };
    let _ = OPEN.try_with(|open| {
        open.borrow_mut().retain(|state| {
            let is_other = state.owner.get() != owner;
            if !is_other {
                state.owner.set(null_mut());
            }
            is_other
        });
    });
}

impl OwnContext {
    /// A context that lives until it is dropped or the transaction ends. What is opened in it must belong to the current resource
    /// owner.
    pub fn of_transaction(name: &'static CStr) -> Self {
        // SAFETY: within a transaction, so both exist. The callback is a static function, and an extension library is never unloaded.
        unsafe {
            if !IS_REGISTERED.replace(true) {
                pg_sys::RegisterResourceReleaseCallback(Some(on_release), null_mut());
            }
            let own = Self::create(pg_sys::TopTransactionContext, name, pg_sys::CurrentResourceOwner);
            OPEN.with_borrow_mut(|open| open.push(Rc::clone(&own.0)));
            own
        }
    }

    /// A context that lives until it is dropped. Nothing is opened in it.
    pub fn of_process(name: &'static CStr) -> Self {
        // SAFETY: that context lives as long as the process.
        unsafe { Self::create(pg_sys::TopMemoryContext, name, null_mut()) }
    }

    /// # Safety
    /// The parent exists.
    unsafe fn create(parent: pg_sys::MemoryContext, name: &'static CStr, owner: pg_sys::ResourceOwner) -> Self {
        // SAFETY: promised by the caller.
        let context = unsafe { create(parent, name) };
        let state = Rc::new(State { context: Cell::new(context), owner: Cell::new(owner) });
        PgMemoryContexts::For(context).leak_and_drop_on_delete(Deleted(Rc::clone(&state)));
        Self(state)
    }

    /// Null if PostgreSQL has deleted it.
    pub fn as_ptr(&self) -> pg_sys::MemoryContext {
        self.0.context.get()
    }

    /// Creates a context that is deleted with this one.
    pub fn child(&self, name: &'static CStr) -> pg_sys::MemoryContext {
        // SAFETY: the context exists while the value that owns it is used, because the transaction has not ended.
        unsafe { create(self.as_ptr(), name) }
    }

    /// Runs `work` with this as the current memory context.
    pub fn within<T>(&self, work: impl FnOnce() -> T) -> T {
        // SAFETY: as in `child`. After an ERROR, `drop` sets another one.
        let former = unsafe { pg_sys::MemoryContextSwitchTo(self.as_ptr()) };
        let done = work();
        // SAFETY: as above.
        unsafe { pg_sys::MemoryContextSwitchTo(former) };
        done
    }

    /// Runs `close`, which closes what was opened in the context. Called when the value that owns the context is dropped. Does nothing while
    /// an ERROR unwinds, or in a failed transaction or subtransaction: there PostgreSQL releases what was opened.
    pub fn close(&self, close: impl FnOnce()) {
        let owner = self.0.owner.get();
        // SAFETY: reads a variable of this process.
        let is_open = !self.as_ptr().is_null() && !owner.is_null() && unsafe { pg_sys::IsTransactionState() };
        if !is_open || std::thread::panicking() {
            return;
        }
        // SAFETY: the owner exists, as it releases before it is deleted. After an ERROR the abort sets another one.
        unsafe {
            let current = pg_sys::CurrentResourceOwner;
            pg_sys::CurrentResourceOwner = owner;
            close();
            pg_sys::CurrentResourceOwner = current;
        }
    }
}

/// A context for what one execution of a plan allocates. The caller resets it; PostgreSQL deletes it with the query's context.
///
/// # Safety
/// The query's context.
pub(in crate::pg) unsafe fn of_execution(query: pg_sys::MemoryContext, name: &'static CStr) -> pg_sys::MemoryContext {
    // SAFETY: promised by the caller.
    unsafe { create(query, name) }
}

/// # Safety
/// The parent exists.
unsafe fn create(parent: pg_sys::MemoryContext, name: &'static CStr) -> pg_sys::MemoryContext {
    // SAFETY: promised by the caller; the name is static.
    unsafe {
        pg_sys::AllocSetContextCreateInternal(
            parent,
            name.as_ptr(),
            pg_sys::ALLOCSET_DEFAULT_MINSIZE as usize,
            pg_sys::ALLOCSET_DEFAULT_INITSIZE as usize,
            pg_sys::ALLOCSET_DEFAULT_MAXSIZE as usize,
        )
    }
}

impl Drop for OwnContext {
    fn drop(&mut self) {
        let _ = OPEN.try_with(|open| open.borrow_mut().retain(|state| !Rc::ptr_eq(state, &self.0)));
        let context = self.as_ptr();
        if context.is_null() {
            return;
        }
        // SAFETY: its callback has not run, so PostgreSQL has not deleted it. While an ERROR unwinds, it may be the current one, or a
        // child of it may be: then its parent is the current one from now on.
        unsafe {
            let mut current = pg_sys::CurrentMemoryContext;
            while !current.is_null() && current != context {
                current = (*current).parent;
            }
            if current == context {
                pg_sys::CurrentMemoryContext = (*context).parent;
            }
            pg_sys::MemoryContextDelete(context);
        }
    }
}
