-- From 0.2.0 to 0.3.0.

-- As in schemas.sql: ALTER EXTENSION also searches the schemas of required extensions, in which other roles may have created
-- operators that match better.
SELECT pg_catalog.set_config('search_path', 'docshard, pg_catalog, pg_temp', true);

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
    -- Not in the block above, which is a subtransaction.
    PERFORM docshard_internal.watch_change('begin');
END $$;
DROP EVENT TRIGGER docshard_watch_drops;
CREATE EVENT TRIGGER docshard_watch_drops ON ddl_command_start
    WHEN TAG IN ('DROP EXTENSION', 'DROP OWNED', 'DROP SCHEMA', 'DROP TABLE', 'ALTER TABLE', 'DROP SERVER', 'DROP USER MAPPING',
                 'DROP FOREIGN DATA WRAPPER', 'ALTER INDEX', 'DROP INDEX', 'ALTER TRIGGER', 'DROP TRIGGER', 'CREATE RULE', 'ALTER SCHEMA')
    EXECUTE FUNCTION docshard_internal.watch_drops();
ALTER EVENT TRIGGER docshard_watch_drops ENABLE ALWAYS;
COMMENT ON EVENT TRIGGER docshard_watch_drops IS 'docshard: loads the library, which refuses to drop objects that a cluster needs';

CREATE FUNCTION docshard_internal.check_changes() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    BEGIN
        PERFORM docshard_internal.watch_change('load');
    EXCEPTION WHEN undefined_file OR undefined_function THEN
        RETURN;
    END;
    PERFORM docshard_internal.watch_change('end');
END $$;
CREATE EVENT TRIGGER docshard_check_changes ON ddl_command_end
    WHEN TAG IN ('ALTER TABLE', 'ALTER INDEX', 'DROP INDEX', 'ALTER TRIGGER', 'DROP TRIGGER', 'CREATE RULE', 'ALTER SCHEMA')
    EXECUTE FUNCTION docshard_internal.check_changes();
ALTER EVENT TRIGGER docshard_check_changes ENABLE ALWAYS;
COMMENT ON EVENT TRIGGER docshard_check_changes IS 'docshard: refuses changes of collections'' tables';
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
