-- From 0.2.0 to 0.3.0.

-- As in schemas.sql: ALTER EXTENSION also searches the schemas of required extensions, in which other roles may have created
-- operators that match better.
SELECT pg_catalog.set_config('search_path', 'docshard, pg_catalog, pg_temp', true);

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
               last_contact timestamp with time zone, error text, oldest_sync_wait_s double precision)
STRICT VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
LANGUAGE c AS 'MODULE_PATHNAME', 'shard_health_wrapper';
CREATE OR REPLACE VIEW docshard.health AS
SELECT shard, reachable, latency_ms, version, postgresql, timeline, standbys, sync_standbys, lag_bytes, replication,
       oldest_in_doubt_s, free_connections, last_contact, error, oldest_sync_wait_s
  FROM docshard.shard_health();
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
