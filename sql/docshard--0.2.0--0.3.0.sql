-- From 0.2.0 to 0.3.0.

-- As in schemas.sql: ALTER EXTENSION also searches the schemas of required extensions, in which other roles may have created
-- operators that match better.
SELECT pg_catalog.set_config('search_path', 'docshard, pg_catalog, pg_temp', true);

-- All tables that are changed are locked before the first change. A worker that reads a table and then writes to it would otherwise deadlock
-- with this script, which first takes a weak lock, and later a strong one.
DO $$
DECLARE
    tables CONSTANT text := (
        SELECT pg_catalog.string_agg(pg_catalog.format('%I.%I', n.nspname, c.relname), ', ' ORDER BY c.oid)
          FROM pg_catalog.pg_extension e
          JOIN pg_catalog.pg_depend d ON d.refclassid = 'pg_catalog.pg_extension'::pg_catalog.regclass AND d.refobjid = e.oid AND d.deptype = 'e'
          JOIN pg_catalog.pg_class c ON d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND c.oid = d.objid AND c.relkind = 'r'
          JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
         WHERE e.extname = 'docshard');
BEGIN
    FOR attempt IN 1..3000 LOOP
        BEGIN
            EXECUTE 'LOCK TABLE ' || tables || ' IN ACCESS EXCLUSIVE MODE NOWAIT';
            RETURN;
        EXCEPTION WHEN lock_not_available THEN
            -- What has been locked is free again.
            PERFORM pg_catalog.pg_sleep(0.02);
        END;
    END LOOP;
    RAISE EXCEPTION USING ERRCODE = 'lock_not_available', MESSAGE = 'tables of docshard are in use',
        HINT = 'Repeat ALTER EXTENSION docshard UPDATE when no transaction that has used docshard is open.';
END $$;

CREATE OR REPLACE VIEW docshard.index_usage AS
SELECT c.namespace, s.name, s.keys::text::json AS keys, s.accesses, s.bytes, s.since, s.shards
  FROM docshard_catalog.collections c
 CROSS JOIN LATERAL (
       SELECT i.name, i.keys::text AS keys, pg_catalog.sum(i.accesses)::bigint AS accesses, pg_catalog.sum(i.bytes)::bigint AS bytes,
              pg_catalog.min(i.since) AS since, pg_catalog.count(*) AS shards
         FROM docshard.index_stats(c.namespace) i GROUP BY i.name, i.keys::text) s
-- As a read of the collection: the view leaves out what the caller may not read.
 WHERE (SELECT r.rolsuper OR r.oid = e.extowner FROM pg_catalog.pg_roles r, pg_catalog.pg_extension e
         WHERE r.rolname = current_user AND e.extname = 'docshard')
    OR EXISTS (SELECT FROM docshard_catalog.grants g
                WHERE g.resource IN ('*', c.database, c.namespace) AND pg_catalog.pg_has_role(g.role, 'USAGE'));

-- New functions.
CREATE FUNCTION docshard.take_over_cluster(options json)
RETURNS json STRICT VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
LANGUAGE c AS 'MODULE_PATHNAME', 'take_over_cluster_with_wrapper';
REVOKE ALL ON FUNCTION docshard.take_over_cluster(json) FROM PUBLIC;
CREATE FUNCTION docshard.list_orphaned_relations() RETURNS TABLE (shard text, relation text, documents bigint)
STRICT VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
LANGUAGE c AS 'MODULE_PATHNAME', 'list_orphaned_relations_wrapper';
REVOKE ALL ON FUNCTION docshard.list_orphaned_relations() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION docshard.list_orphaned_relations() TO pg_monitor;
CREATE FUNCTION docshard.drop_orphaned_relation(shard text, relation text)
RETURNS json STRICT VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
LANGUAGE c AS 'MODULE_PATHNAME', 'drop_orphaned_relation_wrapper';
REVOKE ALL ON FUNCTION docshard.drop_orphaned_relation(text, text) FROM PUBLIC;

DO $$
DECLARE
    owner CONSTANT name := (SELECT pg_catalog.pg_get_userbyid(e.extowner) FROM pg_catalog.pg_extension e WHERE e.extname = 'docshard');
    function text;
BEGIN
    FOREACH function IN ARRAY ARRAY['take_over_cluster(json)', 'list_orphaned_relations()', 'drop_orphaned_relation(text, text)'] LOOP
        EXECUTE pg_catalog.format('ALTER FUNCTION docshard.%s OWNER TO %I', function, owner);
    END LOOP;
END $$;

-- Collections' tables are protected from changes and TRUNCATE, and have a witness.
CREATE TABLE docshard_data.tables (
    collection_id int PRIMARY KEY,
    relation      oid NOT NULL,
    file          oid NOT NULL
);
COMMENT ON TABLE docshard_data.tables IS 'A witness of each collection''s table and its file: check_collection() sees by it that the table was replaced or truncated. Not dumped, as a restored table has another file';
CREATE FUNCTION docshard_internal.watch_change(phase text)
RETURNS void STRICT VOLATILE PARALLEL UNSAFE
LANGUAGE c AS 'MODULE_PATHNAME', 'watch_change_wrapper';
REVOKE ALL ON FUNCTION docshard_internal.watch_change(text) FROM PUBLIC;
DO $$
DECLARE
    held record;
BEGIN
    FOR held IN SELECT p.collection_id, c.oid, c.relname, c.relfilenode
         FROM docshard_data.placement p JOIN pg_catalog.pg_class c ON c.relname = 'c' || p.collection_id
          AND c.relnamespace = 'docshard_data'::regnamespace AND c.relkind = 'r' ORDER BY p.collection_id
    LOOP
        EXECUTE pg_catalog.format('CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON docshard_data.%I EXECUTE FUNCTION docshard_internal.capture_change()', held.relname);
        EXECUTE pg_catalog.format('ALTER TABLE docshard_data.%I ENABLE ALWAYS TRIGGER refuse_truncate', held.relname);
        INSERT INTO docshard_data.tables VALUES (held.collection_id, held.oid, held.relfilenode);
    END LOOP;
END $$;

-- The library checks what a statement changes, too.
CREATE OR REPLACE FUNCTION docshard_internal.watch_drops() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    BEGIN
        PERFORM docshard_internal.watch_change('load');
    EXCEPTION WHEN undefined_file OR undefined_function THEN
        RETURN;
    END;
    -- Not in the block above, which is a subtransaction. A hook checks the other drops, which have no end.
    IF NOT starts_with(tg_tag, 'DROP ') OR tg_tag IN ('DROP INDEX', 'DROP TRIGGER') THEN
        PERFORM docshard_internal.watch_change('begin');
    END IF;
END $$;
DROP EVENT TRIGGER docshard_watch_drops;
CREATE EVENT TRIGGER docshard_watch_drops ON ddl_command_start
    WHEN TAG IN ('DROP EXTENSION', 'DROP OWNED', 'DROP SCHEMA', 'DROP TABLE', 'ALTER TABLE', 'DROP SERVER', 'DROP USER MAPPING',
                 'DROP FOREIGN DATA WRAPPER', 'ALTER INDEX', 'DROP INDEX', 'ALTER TRIGGER', 'DROP TRIGGER', 'CREATE RULE', 'CREATE TRIGGER', 'ALTER SCHEMA',
                 'ALTER AGGREGATE', 'ALTER DOMAIN', 'ALTER EXTENSION', 'ALTER FOREIGN TABLE', 'ALTER FUNCTION', 'ALTER MATERIALIZED VIEW',
                 'ALTER OPERATOR', 'ALTER OPERATOR CLASS', 'ALTER OPERATOR FAMILY', 'ALTER PROCEDURE', 'ALTER ROUTINE',
                 'ALTER SEQUENCE', 'ALTER SERVER', 'ALTER TYPE', 'ALTER VIEW')
    EXECUTE FUNCTION docshard_internal.watch_drops();
ALTER EVENT TRIGGER docshard_watch_drops ENABLE ALWAYS;
COMMENT ON EVENT TRIGGER docshard_watch_drops IS 'docshard: loads the library, which refuses to drop objects that a cluster needs';

CREATE FUNCTION docshard_internal.check_changes() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    refused text;
    may_change_all boolean;
BEGIN
    -- A new object needs no library: it must not be a child of a table with docshard's triggers, and not replace an object of docshard.
    IF starts_with(tg_tag, 'CREATE ') AND tg_tag NOT IN ('CREATE RULE', 'CREATE TRIGGER') THEN
        SELECT coalesce('create a child of ' || i.inhparent::regclass, 'replace ' || c.object_identity) INTO refused
          FROM pg_event_trigger_ddl_commands() c
          LEFT JOIN pg_inherits i ON c.classid = 'pg_class'::regclass AND i.inhrelid = c.objid AND EXISTS (
               SELECT FROM pg_trigger g WHERE g.tgrelid = i.inhparent AND g.tgfoid = to_regproc('docshard_internal.capture_change'))
         WHERE i.inhrelid IS NOT NULL OR NOT c.in_extension AND EXISTS (
               SELECT FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid AND e.extname = 'docshard'
                WHERE d.classid = c.classid AND d.objid = c.objid AND d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e')
         LIMIT 1;
        IF refused IS NOT NULL THEN
            RAISE EXCEPTION 'cannot % because docshard needs its objects as they are', refused USING ERRCODE = '2BP01',
                DETAIL = 'MongoDB error 20 (IllegalOperation).', HINT = 'Create an object of another name, or a table without INHERITS.';
        END IF;
        RETURN;
    END IF;
    IF to_regprocedure('docshard_internal.watch_change(text)') IS NULL
        AND EXISTS (SELECT FROM pg_event_trigger_ddl_commands() c WHERE NOT c.in_extension)
    THEN
        RAISE EXCEPTION 'cannot rename function docshard_internal.watch_change(text), or its schema, because docshard checks changes by it'
            USING ERRCODE = '2BP01', DETAIL = 'MongoDB error 20 (IllegalOperation).',
            HINT = 'ALTER EXTENSION docshard UPDATE changes objects of docshard.';
    END IF;
    BEGIN
        PERFORM docshard_internal.watch_change('load');
    EXCEPTION WHEN undefined_file OR undefined_function THEN
        RETURN;
    END;
    SELECT EXISTS (
        SELECT FROM pg_event_trigger_ddl_commands() c
         WHERE c.classid IN ('pg_extension'::regclass, 'pg_foreign_server'::regclass, 'pg_namespace'::regclass) OR EXISTS (
               SELECT FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid AND e.extname = 'docshard'
                WHERE d.classid = c.classid AND d.objid = c.objid AND d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e'))
      INTO may_change_all;
    PERFORM docshard_internal.watch_change(CASE WHEN may_change_all THEN 'end of all' ELSE 'end' END);
END $$;
CREATE EVENT TRIGGER docshard_check_changes ON ddl_command_end
    WHEN TAG IN ('ALTER TABLE', 'ALTER INDEX', 'DROP INDEX', 'ALTER TRIGGER', 'DROP TRIGGER', 'CREATE RULE', 'CREATE TRIGGER', 'ALTER SCHEMA',
                 'ALTER AGGREGATE', 'ALTER DOMAIN', 'ALTER EXTENSION', 'ALTER FOREIGN TABLE', 'ALTER FUNCTION', 'ALTER MATERIALIZED VIEW',
                 'ALTER OPERATOR', 'ALTER OPERATOR CLASS', 'ALTER OPERATOR FAMILY', 'ALTER PROCEDURE', 'ALTER ROUTINE',
                 'ALTER SEQUENCE', 'ALTER SERVER', 'ALTER TYPE', 'ALTER VIEW',
                 'CREATE AGGREGATE', 'CREATE FOREIGN TABLE', 'CREATE FUNCTION', 'CREATE PROCEDURE', 'CREATE SCHEMA', 'CREATE TABLE', 'CREATE VIEW')
    EXECUTE FUNCTION docshard_internal.check_changes();
ALTER EVENT TRIGGER docshard_check_changes ENABLE ALWAYS;
COMMENT ON EVENT TRIGGER docshard_check_changes IS 'docshard: refuses changes of collections'' tables and of its own objects';
REVOKE ALL ON FUNCTION docshard_internal.check_changes() FROM PUBLIC;
-- A shard's service role has these privileges, too. What a script grants counts as initial, which pg_dump leaves out, so that is undone.
DO $$
DECLARE
    service CONSTANT regrole := (SELECT s.role FROM docshard_data.service s JOIN pg_catalog.pg_roles r ON r.oid = s.role);
    target record;
BEGIN
    IF service IS NULL THEN
        RETURN;
    END IF;
    FOR target IN
        SELECT o.privilege, o.class, o.id,
               (SELECT i.initprivs FROM pg_catalog.pg_init_privs i WHERE i.classoid = o.class AND i.objoid = o.id AND i.objsubid = 0) AS initial
          FROM (VALUES ('SELECT, INSERT, UPDATE, DELETE ON docshard_data.tables', 'pg_catalog.pg_class'::pg_catalog.regclass,
                        'docshard_data.tables'::pg_catalog.regclass::oid),
                       ('EXECUTE ON FUNCTION docshard_internal.watch_change', 'pg_catalog.pg_proc',
                        'docshard_internal.watch_change'::pg_catalog.regproc::oid),
                       ('EXECUTE ON FUNCTION docshard_internal.check_changes', 'pg_catalog.pg_proc',
                        'docshard_internal.check_changes'::pg_catalog.regproc::oid)) AS o (privilege, class, id)
    LOOP
        EXECUTE pg_catalog.format('GRANT %s TO %s', target.privilege, service);
        UPDATE pg_catalog.pg_init_privs SET initprivs = target.initial
         WHERE classoid = target.class AND objoid = target.id AND objsubid = 0 AND target.initial IS NOT NULL;
        DELETE FROM pg_catalog.pg_init_privs
         WHERE classoid = target.class AND objoid = target.id AND objsubid = 0 AND target.initial IS NULL;
    END LOOP;
END $$;
-- Also in sessions with session_replication_role = replica.
ALTER TABLE docshard_catalog.shards ENABLE ALWAYS TRIGGER note_membership;
ALTER TABLE docshard_data.node ENABLE ALWAYS TRIGGER note_membership;


-- Adopts a shard that has lost commits.
CREATE FUNCTION docshard.accept_shard(name text, options json)
RETURNS json STRICT VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
LANGUAGE c AS 'MODULE_PATHNAME', 'accept_shard_with_options_wrapper';
REVOKE ALL ON FUNCTION docshard.accept_shard(text, json) FROM PUBLIC;

-- A new column of docshard.health. Roles that could call the old function can call the new one.
ALTER FUNCTION docshard.shard_health(integer) RENAME TO shard_health_0_2_0;
CREATE FUNCTION docshard.shard_health(timeout_ms integer DEFAULT 2500)
RETURNS TABLE (shard text, reachable boolean, latency_ms double precision, version text, postgresql text, timeline integer, standbys bigint,
               sync_standbys bigint, lag_bytes bigint, replication json, oldest_in_doubt_s double precision, free_connections bigint,
               last_contact timestamp with time zone, error text, library text, max_prepared_transactions integer,
               oldest_sync_wait_s double precision)
STRICT VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
LANGUAGE c AS 'MODULE_PATHNAME', 'shard_health_wrapper';
CREATE OR REPLACE VIEW docshard.health AS
SELECT shard, reachable, latency_ms, version, postgresql, timeline, standbys, sync_standbys, lag_bytes, replication,
       oldest_in_doubt_s, free_connections, last_contact, error, library, max_prepared_transactions, oldest_sync_wait_s
  FROM docshard.shard_health() AS h;
COMMENT ON VIEW docshard.health IS 'The health of each shard and the router, queried now; it answers within 3 seconds even if shards do not respond';
COMMENT ON COLUMN docshard.health.shard IS 'the shard; (router) for a router whose own database is no shard';
COMMENT ON COLUMN docshard.health.version IS 'of the SQL objects there; library is the version of the loaded library';
COMMENT ON COLUMN docshard.health.timeline IS 'of the WAL that it writes: it grows with each failover';
COMMENT ON COLUMN docshard.health.lag_bytes IS 'how far its slowest standby is behind';
COMMENT ON COLUMN docshard.health.oldest_in_doubt_s IS 'the age of the oldest transaction that is prepared on the shard, in seconds';
COMMENT ON COLUMN docshard.health.max_prepared_transactions IS 'if it is 0, no chunk can move from or to the shard, and no transaction can write there and elsewhere';
COMMENT ON COLUMN docshard.health.last_contact IS 'when the router last heard of it; every minute, unless it is asked now';
COMMENT ON COLUMN docshard.health.oldest_sync_wait_s IS 'for how long the oldest statement runs whose commit waits for a synchronous standby, in seconds; null: none waits';

DO $$
DECLARE
    owner CONSTANT name := (SELECT pg_catalog.pg_get_userbyid(e.extowner) FROM pg_catalog.pg_extension e WHERE e.extname = 'docshard');
    old CONSTANT oid := 'docshard.shard_health_0_2_0(integer)'::pg_catalog.regprocedure;
    new CONSTANT oid := 'docshard.shard_health(integer)'::pg_catalog.regprocedure;
    granted record;
BEGIN
    EXECUTE pg_catalog.format('ALTER FUNCTION docshard.accept_shard(text, json) OWNER TO %I', owner);
    EXECUTE pg_catalog.format('ALTER FUNCTION docshard.shard_health(integer) OWNER TO %I', owner);
    REVOKE ALL ON FUNCTION docshard.shard_health(integer) FROM PUBLIC;
    FOR granted IN
        SELECT a.grantee, a.is_grantable FROM pg_catalog.pg_proc p, pg_catalog.aclexplode(p.proacl) a WHERE p.oid = old AND a.grantee <> p.proowner
    LOOP
        EXECUTE pg_catalog.format('GRANT EXECUTE ON FUNCTION docshard.shard_health(integer) TO %s%s',
            CASE granted.grantee WHEN 0 THEN 'PUBLIC' ELSE pg_catalog.quote_ident(pg_catalog.pg_get_userbyid(granted.grantee)) END,
            CASE WHEN granted.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END);
    END LOOP;
    -- Only the privileges that were initial before count as that, so that pg_dump keeps the others.
    UPDATE pg_catalog.pg_init_privs
       SET initprivs = (SELECT i.initprivs FROM pg_catalog.pg_init_privs i
                         WHERE i.classoid = 'pg_catalog.pg_proc'::pg_catalog.regclass AND i.objoid = old AND i.objsubid = 0)
     WHERE classoid = 'pg_catalog.pg_proc'::pg_catalog.regclass AND objoid = new AND objsubid = 0;
    DROP FUNCTION docshard.shard_health_0_2_0(integer);
END $$;

CREATE OR REPLACE VIEW docshard.grants AS
SELECT r.rolname AS role, g.resource, g.level
  FROM docshard_catalog.grants g JOIN pg_catalog.pg_roles r ON r.oid = g.role
 WHERE pg_catalog.has_schema_privilege(r.oid, 'docshard', 'USAGE');
COMMENT ON VIEW docshard.grants IS 'Which roles may read or write which databases and collections; * is all of them. Without those that DROP OWNED has taken away';

-- Functions for users are called with nulls, and refuse them. Before they returned null, and did nothing.
DO $$
DECLARE
    function regprocedure;
BEGIN
    FOR function IN
        SELECT p.oid FROM pg_catalog.pg_proc p WHERE p.pronamespace = 'docshard'::pg_catalog.regnamespace AND p.pronargs > 0 AND p.proisstrict
           AND EXISTS (SELECT FROM pg_catalog.pg_depend d JOIN pg_catalog.pg_extension e ON e.oid = d.refobjid
                        WHERE d.classid = 'pg_catalog.pg_proc'::pg_catalog.regclass AND d.objid = p.oid AND d.deptype = 'e'
                          AND d.refclassid = 'pg_catalog.pg_extension'::pg_catalog.regclass AND e.extname = 'docshard')
    LOOP
        EXECUTE pg_catalog.format('ALTER FUNCTION %s CALLED ON NULL INPUT', function);
    END LOOP;
END $$;

-- Arguments of the types jsonb and text.
CREATE TYPE docshard.any_json;
CREATE FUNCTION docshard_internal.any_json_in(cstring) RETURNS docshard.any_json
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE internal AS 'json_in';
CREATE FUNCTION docshard_internal.any_json_out(docshard.any_json) RETURNS cstring
    IMMUTABLE STRICT PARALLEL SAFE LANGUAGE internal AS 'json_out';
CREATE FUNCTION docshard_internal.any_json_receive(internal) RETURNS docshard.any_json
    STABLE STRICT PARALLEL SAFE LANGUAGE internal AS 'json_recv';
CREATE FUNCTION docshard_internal.any_json_send(docshard.any_json) RETURNS bytea
    STABLE STRICT PARALLEL SAFE LANGUAGE internal AS 'json_send';
CREATE TYPE docshard.any_json (
    INPUT = docshard_internal.any_json_in,
    OUTPUT = docshard_internal.any_json_out,
    RECEIVE = docshard_internal.any_json_receive,
    SEND = docshard_internal.any_json_send,
    LIKE = pg_catalog.json
);
COMMENT ON TYPE docshard.any_json IS 'An argument of docshard''s functions: json, jsonb or text';

CREATE CAST (pg_catalog.json AS docshard.any_json) WITHOUT FUNCTION AS IMPLICIT;
CREATE FUNCTION docshard_internal.any_json(jsonb) RETURNS docshard.any_json IMMUTABLE STRICT PARALLEL SAFE LANGUAGE sql
    RETURN (E'\t\r\t\r'::pg_catalog.text OPERATOR(pg_catalog.||) $1::pg_catalog.text)::pg_catalog.json::docshard.any_json;
CREATE CAST (pg_catalog.jsonb AS docshard.any_json) WITH FUNCTION docshard_internal.any_json(jsonb) AS IMPLICIT;
CREATE CAST (pg_catalog.text AS docshard.any_json) WITH INOUT AS IMPLICIT;
CREATE CAST (pg_catalog.varchar AS docshard.any_json) WITH INOUT AS IMPLICIT;
DO $$
DECLARE
    taking_any CONSTANT name[] := ARRAY[
        'insert_one', 'insert_many', 'find', 'find_one', 'aggregate', 'count_documents', 'distinct', 'explain', 'run_command',
        'update_one', 'update_many', 'replace_one', 'delete_one', 'delete_many', 'bulk_write', 'find_one_and_update',
        'find_one_and_replace', 'find_one_and_delete', 'find_and_modify', 'create_collection', 'create_index', 'create_indexes',
        'shard_collection'];
    owner CONSTANT name := (SELECT pg_catalog.pg_get_userbyid(e.extowner) FROM pg_catalog.pg_extension e WHERE e.extname = 'docshard');
    form record;
    new oid;
    granted record;
BEGIN
    FOR form IN
        SELECT p.oid, p.proname, p.probin, p.prosrc, p.proacl, p.proowner, p.prosecdef, pg_catalog.pg_get_function_result(p.oid) AS result,
               (SELECT pg_catalog.string_agg(pg_catalog.format('%I %s', p.proargnames[a.n],
                           CASE a.type WHEN 'pg_catalog.text'::pg_catalog.regtype THEN 'pg_catalog.varchar' WHEN 'pg_catalog.jsonb[]'::pg_catalog.regtype THEN 'docshard.any_json[]'
                           ELSE 'docshard.any_json' END)
                       || coalesce(' DEFAULT ' || pg_catalog.pg_get_function_arg_default(p.oid, a.n::int), ''), ', ' ORDER BY a.n)
                  FROM pg_catalog.unnest(p.proargtypes) WITH ORDINALITY AS a (type, n)) AS arguments
          FROM pg_catalog.pg_proc p
         WHERE p.pronamespace = 'docshard'::pg_catalog.regnamespace AND p.proname = ANY (taking_any)
           AND EXISTS (SELECT FROM pg_catalog.pg_depend d JOIN pg_catalog.pg_extension e ON e.oid = d.refobjid
                        WHERE d.classid = 'pg_catalog.pg_proc'::pg_catalog.regclass AND d.objid = p.oid AND d.deptype = 'e'
                          AND d.refclassid = 'pg_catalog.pg_extension'::pg_catalog.regclass AND e.extname = 'docshard')
    LOOP
        EXECUTE pg_catalog.format('CREATE FUNCTION docshard.%I(%s) RETURNS %s VOLATILE PARALLEL UNSAFE LANGUAGE c AS %L, %L',
            form.proname, form.arguments, form.result, form.probin,
            CASE WHEN form.proname IN ('insert_one', 'insert_many') THEN form.proname || '_any_wrapper' ELSE form.prosrc END);
        new := (SELECT p.oid FROM pg_catalog.pg_proc p
                 WHERE p.pronamespace = 'docshard'::pg_catalog.regnamespace AND p.proname = form.proname
                   AND 'docshard.any_json'::pg_catalog.regtype = ANY (p.proargtypes));
        EXECUTE pg_catalog.format('ALTER FUNCTION %s OWNER TO %I', new::pg_catalog.regprocedure, owner);
        IF form.prosecdef THEN
            EXECUTE pg_catalog.format('ALTER FUNCTION %s SECURITY DEFINER SET search_path = pg_catalog, pg_temp', new::pg_catalog.regprocedure);
        END IF;
        -- Roles that can call the first form can call the second one.
        EXECUTE pg_catalog.format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', new::pg_catalog.regprocedure);
        FOR granted IN SELECT a.grantee, a.is_grantable FROM pg_catalog.aclexplode(form.proacl) a WHERE a.grantee <> form.proowner LOOP
            EXECUTE pg_catalog.format('GRANT EXECUTE ON FUNCTION %s TO %s%s', new::pg_catalog.regprocedure,
                CASE granted.grantee WHEN 0 THEN 'PUBLIC' ELSE pg_catalog.quote_ident(pg_catalog.pg_get_userbyid(granted.grantee)) END,
                CASE WHEN granted.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END);
        END LOOP;
        -- Only the privileges that were initial before count as that, so that pg_dump keeps the others.
        UPDATE pg_catalog.pg_init_privs
           SET initprivs = (SELECT i.initprivs FROM pg_catalog.pg_init_privs i
                             WHERE i.classoid = 'pg_catalog.pg_proc'::pg_catalog.regclass AND i.objoid = form.oid AND i.objsubid = 0)
         WHERE classoid = 'pg_catalog.pg_proc'::pg_catalog.regclass AND objoid = new AND objsubid = 0;
    END LOOP;
END $$;

-- Values, codes of errors, and expiry.
CREATE FUNCTION docshard.date(at timestamptz) RETURNS jsonb STRICT IMMUTABLE PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'date_wrapper';
CREATE FUNCTION docshard.object_id() RETURNS jsonb STRICT VOLATILE PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'object_id_wrapper';
CREATE FUNCTION docshard.object_id(at timestamptz) RETURNS jsonb STRICT IMMUTABLE PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'object_id_at_wrapper';
CREATE FUNCTION docshard.decimal(number numeric) RETURNS jsonb STRICT IMMUTABLE PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'decimal_wrapper';
CREATE FUNCTION docshard.to_timestamptz(value jsonb) RETURNS timestamptz STRICT IMMUTABLE PARALLEL SAFE
LANGUAGE c AS 'MODULE_PATHNAME', 'to_timestamptz_wrapper';
CREATE FUNCTION docshard.to_numeric(value jsonb) RETURNS numeric STRICT IMMUTABLE PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'to_numeric_wrapper';
CREATE FUNCTION docshard.error_code(detail text) RETURNS integer STRICT IMMUTABLE PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'error_code_wrapper';
CREATE FUNCTION docshard.expire_now(ns text DEFAULT NULL) RETURNS json VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
LANGUAGE c AS 'MODULE_PATHNAME', 'expire_now_wrapper';
REVOKE ALL ON FUNCTION docshard.expire_now(text) FROM PUBLIC;
CREATE FUNCTION docshard.run_command_bson(db text, command bytea) RETURNS bytea VOLATILE PARALLEL UNSAFE
LANGUAGE c AS 'MODULE_PATHNAME', 'run_command_bson_wrapper';
DO $$
DECLARE
    owner CONSTANT name := (SELECT pg_catalog.pg_get_userbyid(e.extowner) FROM pg_catalog.pg_extension e WHERE e.extname = 'docshard');
    function text;
BEGIN
    FOREACH function IN ARRAY ARRAY['date(timestamptz)', 'object_id()', 'object_id(timestamptz)', 'decimal(numeric)', 'to_timestamptz(jsonb)',
                                    'to_numeric(jsonb)', 'error_code(text)', 'run_command_bson(text, bytea)', 'expire_now(text)'] LOOP
        EXECUTE pg_catalog.format('ALTER FUNCTION docshard.%s OWNER TO %I', function, owner);
        IF function <> 'expire_now(text)' THEN
            EXECUTE pg_catalog.format('REVOKE ALL ON FUNCTION docshard.%s FROM PUBLIC', function);
            EXECUTE pg_catalog.format('GRANT EXECUTE ON FUNCTION docshard.%s TO PUBLIC', function);
        END IF;
    END LOOP;
    FOREACH function IN ARRAY ARRAY['any_json_in(cstring)', 'any_json_out(docshard.any_json)', 'any_json_receive(internal)',
                                    'any_json_send(docshard.any_json)', 'any_json(jsonb)'] LOOP
        EXECUTE pg_catalog.format('ALTER FUNCTION docshard_internal.%s OWNER TO %I', function, owner);
        EXECUTE pg_catalog.format('REVOKE ALL ON FUNCTION docshard_internal.%s FROM PUBLIC', function);
    END LOOP;
    -- The casts use these.
    GRANT EXECUTE ON FUNCTION docshard_internal.any_json(jsonb), docshard_internal.any_json_in(cstring),
        docshard_internal.any_json_out(docshard.any_json) TO PUBLIC;
    EXECUTE pg_catalog.format('ALTER TYPE docshard.any_json OWNER TO %I', owner);
END $$;
-- As above, for the service role of a shard.
DO $$
DECLARE
    service CONSTANT regrole := (SELECT s.role FROM docshard_data.service s JOIN pg_catalog.pg_roles r ON r.oid = s.role);
    target record;
BEGIN
    IF service IS NULL THEN
        RETURN;
    END IF;
    FOR target IN
        SELECT p.oid, p.oid::pg_catalog.regprocedure AS name,
               (SELECT i.initprivs FROM pg_catalog.pg_init_privs i
                 WHERE i.classoid = 'pg_catalog.pg_proc'::pg_catalog.regclass AND i.objoid = p.oid AND i.objsubid = 0) AS initial
          FROM pg_catalog.pg_proc p WHERE p.pronamespace = 'docshard_internal'::pg_catalog.regnamespace AND p.proname ~ '^any_json'
    LOOP
        EXECUTE pg_catalog.format('GRANT EXECUTE ON FUNCTION %s TO %s', target.name, service);
        UPDATE pg_catalog.pg_init_privs SET initprivs = target.initial
         WHERE classoid = 'pg_catalog.pg_proc'::pg_catalog.regclass AND objoid = target.oid AND objsubid = 0 AND target.initial IS NOT NULL;
        DELETE FROM pg_catalog.pg_init_privs
         WHERE classoid = 'pg_catalog.pg_proc'::pg_catalog.regclass AND objoid = target.oid AND objsubid = 0 AND target.initial IS NULL;
    END LOOP;
END $$;

-- TRUNCATE calls no event trigger. Each of docshard's own tables has a trigger of its own for it.
DO $$
DECLARE
    own record;
BEGIN
    FOR own IN SELECT n.nspname, c.relname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
                 JOIN pg_catalog.pg_depend d ON d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.objid = c.oid AND d.deptype = 'e'
                WHERE c.relkind = 'r' AND n.nspname IN ('docshard_catalog', 'docshard_data') ORDER BY c.oid
    LOOP
        EXECUTE pg_catalog.format('CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON %I.%I EXECUTE FUNCTION docshard_internal.capture_change()',
                                  own.nspname, own.relname);
        EXECUTE pg_catalog.format('ALTER TABLE %I.%I ENABLE ALWAYS TRIGGER refuse_truncate', own.nspname, own.relname);
    END LOOP;
END $$;

-- A dump is not merged with the rows of another cluster, and the mark of a cluster's database comes back.
CREATE OR REPLACE FUNCTION docshard_internal.restore_replaces() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    given CONSTANT bigint := (to_jsonb(NEW)->>'cluster_id')::bigint;
    in_use CONSTANT boolean := CASE TG_TABLE_NAME
        WHEN 'shards' THEN false
        WHEN 'cluster' THEN EXISTS (SELECT FROM docshard_catalog.databases) OR EXISTS (SELECT FROM docshard_data.node)
                            OR EXISTS (SELECT FROM docshard_catalog.shards WHERE server IS NOT NULL)
        ELSE EXISTS (SELECT FROM docshard_data.node n WHERE n.cluster_id <> given)
             OR EXISTS (SELECT FROM docshard_catalog.cluster c WHERE c.id <> given) AND EXISTS (SELECT FROM docshard_catalog.collections) END;
BEGIN
    IF in_use THEN
        PERFORM docshard_internal.watch_change('merge');
    END IF;
    CASE TG_TABLE_NAME
    WHEN 'shards' THEN
        DELETE FROM docshard_catalog.shards s USING docshard_catalog.cluster c
         WHERE (s.id = NEW.id OR s.name = NEW.name) AND s.server IS NULL
           AND s.added_at = c.created_at AND s.added_at <> NEW.added_at;
    WHEN 'cluster' THEN
        DELETE FROM docshard_catalog.shards s USING docshard_catalog.cluster c
         WHERE s.server IS NULL AND s.added_at = c.created_at AND c.created_at <> NEW.created_at;
        DELETE FROM docshard_catalog.cluster;
    ELSE
        DELETE FROM docshard_data.node;
    END CASE;
    RETURN NEW;
END $$;
DROP TRIGGER note_membership ON docshard_data.node;
CREATE TRIGGER note_membership AFTER INSERT OR UPDATE OR DELETE ON docshard_data.node
    FOR EACH STATEMENT EXECUTE FUNCTION docshard_internal.note_membership();
CREATE TRIGGER note_membership AFTER INSERT OR UPDATE ON docshard_catalog.contacts
    FOR EACH STATEMENT EXECUTE FUNCTION docshard_internal.note_membership();
ALTER TABLE docshard_data.node ENABLE ALWAYS TRIGGER note_membership;
ALTER TABLE docshard_catalog.contacts ENABLE ALWAYS TRIGGER note_membership;
