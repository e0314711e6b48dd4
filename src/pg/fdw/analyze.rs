//! `ANALYZE` of a foreign table: returns a sample of its rows, from which PostgreSQL makes statistics. ANALYZE runs as the table's owner,
//! or as the owner of a parent table whose statistics include these rows. In both cases the foreign table's own owner must have the right
//! to read.

use super::define;
use super::interface::{Access, raise};
use super::value::{self, Kind, SqlValue};
use crate::pg::memory::context;
use crate::pg::{server, version};
use pgrx::{pg_guard, pg_sys};
use std::ffi::c_int;

/// A sample ends when its rows have this many bytes. Rows come in a random order, so the first ones are a sample, too.
const MAX_BYTES: usize = 64 * 1024 * 1024;

#[pg_guard]
pub(super) unsafe extern "C-unwind" fn analyze(
    relation: pg_sys::Relation,
    acquire: *mut pg_sys::AcquireSampleRowsFunc,
    pages: *mut pg_sys::BlockNumber,
) -> bool {
    // SAFETY: PostgreSQL calls this for an open table, and gives places for results. The number of pages is only shown.
    unsafe {
        // A sample makes values visible in pg_stats. So only an ANALYZE by the owner of the table or of its parent takes one, not autovacuum.
        if relation.is_null() || pg_sys::MyBackendType == pg_sys::BackendType::B_AUTOVAC_WORKER {
            return false;
        }
        // A child that cannot be read is only a warning, so that ANALYZE of a parent goes on with its other children.
        if let Err(error) =
            define::check_owner(relation, server::current_user(), &*define::open((*relation).rd_id), Access::Read)
        {
            pgrx::warning!("cannot analyze the foreign table \"{}\": {error}", define::name_of(relation));
            return false;
        }
        *acquire = Some(sample);
        *pages = 1;
        true
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn sample(
    relation: pg_sys::Relation,
    _level: c_int,
    rows: *mut pg_sys::HeapTuple,
    most: c_int,
    total: *mut f64,
    dead: *mut f64,
) -> c_int {
    // SAFETY: PostgreSQL calls this for an open table, with room for `most` rows, which are allocated in its memory context. What is
    // needed for one row only is in a context that is reset.
    unsafe {
        let table = define::open((*relation).rd_id);
        raise(define::check_owner(relation, server::current_user(), &*table, Access::Read));
        (*total, *dead) = (raise(table.rows()), 0.0);
        let mut scan = raise(table.sample(usize::try_from(most).unwrap_or(0)));
        raise(scan.start(Vec::new(), None));
        let description = (*relation).rd_att;
        let kinds: Vec<Option<(Kind, i32)>> = version::attributes(description)
            .iter()
            .map(|column| Kind::of(column.atttypid, column.atttypmod).map(|kind| (kind, column.atttypmod)))
            .collect();
        let memory = context::of_execution(pg_sys::CurrentMemoryContext, c"docshard sample");
        let (mut count, mut bytes) = (0, 0);
        while count < most && bytes < MAX_BYTES {
            pg_sys::MemoryContextReset(memory);
            let before = pg_sys::MemoryContextSwitchTo(memory);
            let mut values = vec![pg_sys::Datum::from(0); kinds.len()];
            let mut nulls = vec![true; kinds.len()];
            let mut put = |number: i16, value: SqlValue| {
                let at = number as usize - 1;
                if let Some(Some((kind, modifier))) = kinds.get(at) {
                    values[at] = value::to_datum(&value, *kind, *modifier)?;
                    nulls[at] = false;
                }
                Ok(())
            };
            let is_there = raise(scan.next_row(&mut put));
            pg_sys::MemoryContextSwitchTo(before);
            if !is_there {
                // The sample has all rows of the table.
                *total = 0.0;
                break;
            }
            let row = pg_sys::heap_form_tuple(description, values.as_mut_ptr(), nulls.as_mut_ptr());
            bytes += (*row).t_len as usize;
            *rows.add(count as usize) = row;
            count += 1;
        }
        *total = total.read().max(f64::from(count));
        count
    }
}
