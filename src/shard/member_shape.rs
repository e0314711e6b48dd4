//! Checks that a statement leaves the extension's own objects and its schema as docshard needs them. All must keep their names and their
//! membership in the extension; tables, functions and types must also keep what docshard relies on. An administrator may restrict the
//! functions of the schema `docshard`, change storage parameters, tablespaces, statistics, owners and privileges of tables, and add
//! indexes.
//!
//! An update of the extension may change everything.

use crate::pg::error::Result;
use crate::pg::object::change_watch::Changed;
use crate::pg::spi::SpiRow;
use docshard_core::sql::param::Param;
use std::collections::BTreeSet;

/// The extension's own row in [`MEMBERS`], with its version.
const EXTENSION: &str = "extension docshard";

/// The query for each member's OID, its name for messages, and its state, which must not change. `$1`: relations that may have changed;
/// `$2`: true: all members, false: only these relations.
const MEMBERS: &str = "\
    WITH own AS (SELECT e.oid, e.extversion, e.extnamespace FROM pg_catalog.pg_extension e WHERE e.extname = 'docshard'), \
    member AS ( \
        SELECT d.classid, d.objid FROM pg_catalog.pg_depend d JOIN own ON own.oid = d.refobjid \
         WHERE d.refclassid = 'pg_catalog.pg_extension'::pg_catalog.regclass AND d.deptype = 'e' \
           AND ($2 OR d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.objid = ANY ($1::oid[])) \
        UNION ALL SELECT 'pg_catalog.pg_namespace'::pg_catalog.regclass, own.extnamespace FROM own WHERE $2) \
    SELECT own.oid::int8, 'extension docshard', own.extversion FROM own \
    UNION ALL \
    SELECT m.objid::int8, coalesce(n.name, 'an object of docshard'), coalesce(n.state, '') FROM member m LEFT JOIN LATERAL ( \
        SELECT CASE c.relkind WHEN 'r' THEN 'table ' WHEN 'v' THEN 'view ' WHEN 'S' THEN 'sequence ' ELSE 'relation ' END \
               || s.nspname || '.' || c.relname AS name, \
               concat_ws(' ', c.relkind, c.relpersistence, c.relrowsecurity, c.relforcerowsecurity, c.relispartition, c.reloftype, \
                 (SELECT string_agg(concat_ws(' ', a.attnum, a.attname, a.atttypid, a.attnotnull, a.atthasdef, a.attidentity, a.attgenerated), ',' \
                           ORDER BY a.attnum) \
                    FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped), \
                 (SELECT string_agg(concat_ws(' ', r.rulename, r.ev_enabled), ',' ORDER BY r.rulename) \
                    FROM pg_catalog.pg_rewrite r WHERE r.ev_class = c.oid), \
                 (SELECT string_agg(concat_ws(' ', h.inhrelid, h.inhparent), ',' ORDER BY h.inhrelid, h.inhparent) \
                    FROM pg_catalog.pg_inherits h WHERE c.oid IN (h.inhrelid, h.inhparent)), \
                 (SELECT string_agg(concat_ws(' ', k.conname, k.contype), ',' ORDER BY k.conname) \
                    FROM pg_catalog.pg_constraint k WHERE k.conrelid = c.oid), \
                 'triggers:', \
                 (SELECT string_agg(concat_ws(' ', g.tgname, g.tgenabled), ',' ORDER BY g.tgname) FROM pg_catalog.pg_trigger g \
                   WHERE g.tgrelid = c.oid AND g.tgfoid IN ( \
                       SELECT p.oid FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace f ON f.oid = p.pronamespace \
                        WHERE f.nspname = 'docshard_internal'))) AS state \
          FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace s ON s.oid = c.relnamespace \
         WHERE m.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND c.oid = m.objid \
        UNION ALL \
        SELECT 'function ' || s.nspname || '.' || p.proname, \
               CASE s.nspname WHEN 'docshard_internal' \
                 THEN concat_ws(' ', p.prosecdef, p.proisstrict, p.provolatile, p.proparallel, p.proconfig, p.probin, p.prosrc) END \
          FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace s ON s.oid = p.pronamespace \
         WHERE m.classid = 'pg_catalog.pg_proc'::pg_catalog.regclass AND p.oid = m.objid \
        UNION ALL \
        SELECT 'type ' || s.nspname || '.' || t.typname, \
               concat_ws(' ', t.typtype, t.typnotnull, t.typdefault, \
                 (SELECT string_agg(k.conname, ',' ORDER BY k.conname) FROM pg_catalog.pg_constraint k WHERE k.contypid = t.oid)) \
          FROM pg_catalog.pg_type t JOIN pg_catalog.pg_namespace s ON s.oid = t.typnamespace \
         WHERE m.classid = 'pg_catalog.pg_type'::pg_catalog.regclass AND t.oid = m.objid \
        UNION ALL \
        SELECT 'schema ' || s.nspname, '' FROM pg_catalog.pg_namespace s \
         WHERE m.classid = 'pg_catalog.pg_namespace'::pg_catalog.regclass AND s.oid = m.objid \
        UNION ALL \
        SELECT 'event trigger ' || v.evtname, '' FROM pg_catalog.pg_event_trigger v \
         WHERE m.classid = 'pg_catalog.pg_event_trigger'::pg_catalog.regclass AND v.oid = m.objid \
        UNION ALL \
        SELECT 'operator ' || s.nspname || '.' || o.oprname, '' \
          FROM pg_catalog.pg_operator o JOIN pg_catalog.pg_namespace s ON s.oid = o.oprnamespace \
         WHERE m.classid = 'pg_catalog.pg_operator'::pg_catalog.regclass AND o.oid = m.objid \
        UNION ALL \
        SELECT 'operator class ' || s.nspname || '.' || o.opcname, '' \
          FROM pg_catalog.pg_opclass o JOIN pg_catalog.pg_namespace s ON s.oid = o.opcnamespace \
         WHERE m.classid = 'pg_catalog.pg_opclass'::pg_catalog.regclass AND o.oid = m.objid \
        UNION ALL \
        SELECT 'operator family ' || s.nspname || '.' || o.opfname, \
               (SELECT count(*) FROM pg_catalog.pg_amop a WHERE a.amopfamily = o.oid)::text || ' ' \
               || (SELECT count(*) FROM pg_catalog.pg_amproc a WHERE a.amprocfamily = o.oid) \
          FROM pg_catalog.pg_opfamily o JOIN pg_catalog.pg_namespace s ON s.oid = o.opfnamespace \
         WHERE m.classid = 'pg_catalog.pg_opfamily'::pg_catalog.regclass AND o.oid = m.objid) n ON true";

fn members(rows: &[SpiRow]) -> BTreeSet<(i64, String, String)> {
    rows.iter().map(|row| (row.i64(0), row.text(1).to_owned(), row.text(2).to_owned())).collect()
}

/// The query for the members that are among the relations `$1`, or have an index among them.
const TOUCHED: &str = "\
    SELECT DISTINCT d.objid::int8 FROM pg_catalog.pg_depend d JOIN pg_catalog.pg_extension e ON e.oid = d.refobjid AND e.extname = 'docshard' \
     WHERE d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.refclassid = 'pg_catalog.pg_extension'::pg_catalog.regclass \
       AND d.deptype = 'e' AND (d.objid = ANY ($1::oid[]) \
         OR d.objid IN (SELECT i.indrelid FROM pg_catalog.pg_index i WHERE i.indexrelid = ANY ($1::oid[])))";

/// The query for the tables with a parent among the relations `$1`: PostgreSQL sends no invalidation of a table if the parent has no columns.
const CHILDREN: &str = "SELECT h.inhrelid::int8 FROM pg_catalog.pg_inherits h WHERE h.inhparent = ANY ($1::oid[])";

/// What a statement has done to the extension's objects, with the name of one of them.
pub enum Damage {
    /// the object is a new member
    Added(String),
    /// the table's triggers have changed
    Triggers(String),
    /// the object has changed, or is no longer a member
    Changed(String),
}

/// Separates a table's triggers from the rest of its state.
const TRIGGERS: &str = " triggers:";

/// True if the only difference between the triggers is that some are now enabled as docshard needs them.
fn are_mended(before: &str, now: &str) -> bool {
    fn each(triggers: &str) -> impl Iterator<Item = (&str, &str)> {
        triggers.split(',').map(|trigger| trigger.trim().split_once(' ').unwrap_or((trigger, "")))
    }
    let is_mended = |((name, before), (same, now)): ((&str, &str), (&str, &str))| {
        name == same && (before == now || now == if name == "restore_replaces" { "O" } else { "A" })
    };
    each(before).count() == each(now).count() && each(before).zip(each(now)).all(is_mended)
}

/// Returns what a statement has done to members; None if it has damaged nothing. `all`: the statement may have changed members that are not
/// relations.
pub fn damage(changed: &Changed, all: bool) -> Result<Option<Damage>> {
    let all = all || changed.relations.is_none();
    let relations: Vec<i64> = match changed.relations.as_deref() {
        Some(relations) if !all && !relations.is_empty() => {
            let (touched, _) = changed.read(TOUCHED, &[Param::Int8Array(relations)])?;
            let (former, children) = changed.read(CHILDREN, &[Param::Int8Array(relations)])?;
            touched.iter().chain(&former).chain(&children).map(|row| row.i64(0)).collect()
        }
        _ => Vec::new(),
    };
    if !all && relations.is_empty() {
        return Ok(None);
    }
    let params = [Param::Int8Array(&relations), Param::Bool(all)];
    let (before, now) = changed.read(MEMBERS, &params)?;
    let (before, now) = (members(&before), members(&now));
    let lost = || before.difference(&now);
    if lost().any(|(_, name, _)| name == EXTENSION) {
        return Ok(None);
    }
    for (oid, name, state) in lost() {
        let is_same = |(other, now, _): &&(i64, String, String)| (other, now) == (oid, name);
        let now = now.iter().find(is_same).map(|(_, _, now)| now.split_once(TRIGGERS).unwrap_or((now, "")));
        let (rest, triggers) = state.split_once(TRIGGERS).unwrap_or((state, ""));
        match now {
            Some((same, now)) if same == rest && are_mended(triggers, now) => {}
            Some((same, _)) if same == rest => return Ok(Some(Damage::Triggers(name.clone()))),
            _ => return Ok(Some(Damage::Changed(name.clone()))),
        }
    }
    let known = |oid: i64, name: &str| before.iter().any(|(other, before, _)| *other == oid && before == name);
    Ok(now
        .difference(&before)
        .find(|(oid, name, _)| !known(*oid, name))
        .map(|(_, name, _)| Damage::Added(name.clone())))
}
