-- What the extension docshard consists of, a line an object: kind, name, definition, privileges. Two databases with the same lines
-- have the same extension. Numbers of objects are not in it.
WITH members AS (
    SELECT d.classid, d.objid
      FROM pg_depend d JOIN pg_extension e ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid
     WHERE e.extname = 'docshard' AND d.deptype = 'e'
), relations AS (
    SELECT c.* FROM pg_class c JOIN members m ON m.classid = 'pg_class'::regclass AND m.objid = c.oid
), functions AS (
    SELECT p.* FROM pg_proc p JOIN members m ON m.classid = 'pg_proc'::regclass AND m.objid = p.oid
), lines AS (
    SELECT 'object' AS kind, i.identity AS name, i.type || coalesce(': ' || obj_description(m.objid, c.relname), '') AS definition, NULL::aclitem[] AS acl
      FROM members m JOIN pg_class c ON c.oid = m.classid CROSS JOIN pg_identify_object(m.classid, m.objid, 0) i
    UNION ALL
    SELECT 'schema', n.nspname, '', n.nspacl
      FROM pg_namespace n WHERE n.nspname LIKE 'docshard%'
    UNION ALL
    SELECT 'function', p.oid::regprocedure::text, CASE p.prokind WHEN 'a' THEN '' ELSE pg_get_functiondef(p.oid) END, p.proacl
      FROM functions p
    UNION ALL
    SELECT 'aggregate', p.oid::regprocedure::text,
           concat_ws(', ', a.aggtransfn, a.aggfinalfn, a.aggcombinefn, a.aggserialfn, a.aggdeserialfn, a.aggtranstype::regtype, a.agginitval), NULL
      FROM functions p JOIN pg_aggregate a ON a.aggfnoid = p.oid
    UNION ALL
    SELECT 'relation', c.oid::regclass::text, concat_ws(' ', c.relkind::text, c.relpersistence::text, c.relreplident, c.reloptions,
             CASE WHEN c.relkind = 'v' THEN pg_get_viewdef(c.oid) END), c.relacl
      FROM relations c
    UNION ALL
    SELECT 'column', c.oid::regclass || '.' || a.attname,
           concat_ws(' ', format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity, a.attgenerated, a.attstorage,
             pg_get_expr(d.adbin, d.adrelid), col_description(c.oid, a.attnum)), a.attacl
      FROM relations c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
      LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
    UNION ALL
    -- The library reads rows of these tables by position.
    SELECT 'columns', c.oid::regclass::text, string_agg(a.attname, ', ' ORDER BY a.attnum), NULL
      FROM relations c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
     WHERE c.relnamespace = 'docshard_data'::regnamespace
     GROUP BY c.oid
    UNION ALL
    SELECT 'constraint', c.oid::regclass || '.' || k.conname, pg_get_constraintdef(k.oid), NULL
      FROM relations c JOIN pg_constraint k ON k.conrelid = c.oid
    UNION ALL
    SELECT 'index', i.indexrelid::regclass::text, pg_get_indexdef(i.indexrelid), NULL
      FROM relations c JOIN pg_index i ON i.indrelid = c.oid
    UNION ALL
    SELECT 'trigger', c.oid::regclass || '.' || t.tgname, concat_ws(' ', pg_get_triggerdef(t.oid), t.tgenabled), NULL
      FROM relations c JOIN pg_trigger t ON t.tgrelid = c.oid AND NOT t.tgisinternal
    UNION ALL
    SELECT 'type', t.oid::regtype::text, concat_ws(' ', t.typtype, t.typbasetype::regtype, t.typnotnull, t.typstorage,
             (SELECT string_agg(pg_get_constraintdef(k.oid), ' ') FROM pg_constraint k WHERE k.contypid = t.oid)), t.typacl
      FROM pg_type t JOIN members m ON m.classid = 'pg_type'::regclass AND m.objid = t.oid
    UNION ALL
    SELECT 'operator in a class', f.opfname || ' ' || a.amopstrategy, a.amopopr::regoperator || ' ' || a.amoplefttype::regtype || a.amoprighttype::regtype, NULL
      FROM pg_amop a JOIN pg_opfamily f ON f.oid = a.amopfamily JOIN members m ON m.classid = 'pg_opfamily'::regclass AND m.objid = f.oid
    UNION ALL
    SELECT 'function in a class', f.opfname || ' ' || a.amprocnum, a.amproc || ' ' || a.amproclefttype::regtype || a.amprocrighttype::regtype, NULL
      FROM pg_amproc a JOIN pg_opfamily f ON f.oid = a.amprocfamily JOIN members m ON m.classid = 'pg_opfamily'::regclass AND m.objid = f.oid
    UNION ALL
    -- pg_dump passes over these privileges.
    SELECT 'privileges from the start', i.identity, '', p.initprivs
      FROM members m JOIN pg_init_privs p ON p.classoid = m.classid AND p.objoid = m.objid
     CROSS JOIN pg_identify_object(p.classoid, p.objoid, p.objsubid) i
    UNION ALL
    SELECT 'event trigger', t.evtname, concat_ws(' ', t.evtevent, t.evtfoid::regproc, t.evtenabled, t.evttags), NULL
      FROM pg_event_trigger t JOIN members m ON m.classid = 'pg_event_trigger'::regclass AND m.objid = t.oid
    UNION ALL
    SELECT 'kept by pg_dump', t.of::regclass::text, t.condition, NULL
      FROM pg_extension e CROSS JOIN unnest(e.extconfig, e.extcondition) AS t (of, condition)
     WHERE e.extname = 'docshard'
)
SELECT kind, name, definition,
       coalesce((SELECT string_agg(concat_ws(' ', r.name, a.privilege_type, a.is_grantable), ', ' ORDER BY r.name, a.privilege_type)
                   FROM aclexplode(acl) a
                  -- Each cluster has its own.
                  CROSS JOIN LATERAL regexp_replace(a.grantee::regrole::text, '^docshard_[0-9a-f]{8}_', 'docshard_cluster_') AS r (name)), '') AS privileges
  FROM lines ORDER BY 1, 2, 3
