-- From 0.2.0 to 0.3.0.

-- As in schemas.sql: ALTER EXTENSION also searches the schemas of required extensions, in which other roles may have created
-- operators that match better.
SELECT pg_catalog.set_config('search_path', 'docshard, pg_catalog, pg_temp', true);

-- The function has more columns. Views of users may depend on docshard.health, so that view stays.
CREATE FUNCTION docshard.new_shard_health(
    timeout_ms INT DEFAULT 2500
) RETURNS TABLE (
    shard TEXT,
    reachable bool,
    latency_ms double precision,
    version TEXT,
    postgresql TEXT,
    timeline INT,
    standbys bigint,
    sync_standbys bigint,
    lag_bytes bigint,
    replication json,
    oldest_in_doubt_s double precision,
    free_connections bigint,
    last_contact timestamp with time zone,
    error TEXT,
    library TEXT,
    max_prepared_transactions INT
)
STRICT VOLATILE PARALLEL UNSAFE
LANGUAGE c
AS 'MODULE_PATHNAME', 'shard_health_wrapper';
CREATE OR REPLACE VIEW docshard.health AS
SELECT shard, reachable, latency_ms, version, postgresql, timeline, standbys, sync_standbys, lag_bytes, replication,
       oldest_in_doubt_s, free_connections, last_contact, error, library, max_prepared_transactions
  FROM docshard.new_shard_health() AS h;
DROP FUNCTION docshard.shard_health(integer);
ALTER FUNCTION docshard.new_shard_health(integer) RENAME TO shard_health;
REVOKE ALL ON FUNCTION docshard.shard_health(integer) FROM PUBLIC;
ALTER FUNCTION docshard.shard_health(integer) SECURITY DEFINER SET search_path = pg_catalog, pg_temp;
GRANT EXECUTE ON FUNCTION docshard.shard_health(integer) TO pg_monitor;
COMMENT ON VIEW docshard.health IS 'The health of each shard and the router, queried now; it answers within 3 seconds even if shards do not respond';
COMMENT ON COLUMN docshard.health.shard IS 'the shard; (router) for a router whose own database is no shard';
COMMENT ON COLUMN docshard.health.version IS 'of the SQL objects there; library is the version of the loaded library';
COMMENT ON COLUMN docshard.health.timeline IS 'of the WAL that it writes: it grows with each failover';
COMMENT ON COLUMN docshard.health.lag_bytes IS 'how far its slowest standby is behind';
COMMENT ON COLUMN docshard.health.oldest_in_doubt_s IS 'the age of the oldest transaction that is prepared on the shard, in seconds';
COMMENT ON COLUMN docshard.health.max_prepared_transactions IS 'if it is 0, no chunk can move from or to the shard, and no transaction can write there and elsewhere';
COMMENT ON COLUMN docshard.health.last_contact IS 'when the router last heard of it; every minute, unless it is asked now';

CREATE OR REPLACE VIEW docshard.grants AS
SELECT r.rolname AS role, g.resource, g.level
  FROM docshard_catalog.grants g JOIN pg_catalog.pg_roles r ON r.oid = g.role
 WHERE pg_catalog.has_schema_privilege(r.oid, 'docshard', 'USAGE');
COMMENT ON VIEW docshard.grants IS 'Which roles may read or write which databases and collections; * is all of them. Without those that DROP OWNED has taken away';
