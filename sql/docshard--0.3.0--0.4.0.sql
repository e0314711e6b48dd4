-- From 0.3.0 to 0.4.0.

-- As in schemas.sql: ALTER EXTENSION also searches the schemas of required extensions, in which other roles may have created
-- operators that match better.
SELECT pg_catalog.set_config('search_path', 'docshard, pg_catalog, pg_temp', true);

-- The database config: running moves, the balancer's last round, automerge, and what MongoDB's clients count in the changelog.
-- A move that has ended, or was given up, also has the entry moveChunk.from, which MongoDB's clients count.
CREATE OR REPLACE VIEW docshard_internal.config_changelog AS
SELECT l.id * 2 + e.n AS position, l.namespace AS ns,
       pg_catalog.jsonb_build_object(
         '_id', 'config-' || pg_catalog.to_char(l.at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') || '-' || l.id || e.suffix,
         'server', 'config', 'shard', 'config', 'clientAddr', '', 'time', docshard_internal.config_date(l.at),
         'what', coalesce(e.what, l.what), 'ns', coalesce(l.namespace, ''), 'details', l.details::jsonb || e.details) AS doc
  FROM docshard_catalog.changelog l,
       LATERAL (SELECT 0, '', NULL::text, '{}'::jsonb
                UNION ALL SELECT 1, '-from', 'moveChunk.from', '{"note": "success"}' WHERE l.what = 'moveChunk'
                UNION ALL SELECT 1, '-from', 'moveChunk.from', '{"note": "aborted"}' WHERE l.what = 'moveChunk.error')
         AS e (n, suffix, what, details);

-- The last round of the balancer.
CREATE VIEW docshard_internal.config_actionlog AS
SELECT 1 AS position, NULL::text AS ns,
       pg_catalog.jsonb_build_object(
         '_id', 'balancer-' || pg_catalog.to_char(b.last_round_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'),
         'server', 'config', 'shard', 'config', 'clientAddr', '', 'time', docshard_internal.config_date(b.last_round_at),
         'what', 'balancer.round', 'ns', '',
         'details', pg_catalog.jsonb_build_object('errorOccured', b.last_error IS NOT NULL)
           || CASE WHEN b.last_error IS NULL THEN '{}'::jsonb ELSE pg_catalog.jsonb_build_object('errmsg', b.last_error) END) AS doc
  FROM docshard_catalog.balancer_state b WHERE b.last_round_at IS NOT NULL;

-- Collections with a running move.
CREATE VIEW docshard_internal.config_locks AS
SELECT m.namespace COLLATE "C" AS position, m.namespace AS ns,
       pg_catalog.jsonb_build_object(
         '_id', m.namespace, 'state', 2, 'process', 'ConfigServer', 'who', 'ConfigServer:balancer',
         'when', docshard_internal.config_date(pg_catalog.min(m.started_at)), 'why', 'Migrating chunk(s) in collection ' || m.namespace) AS doc
  FROM docshard_catalog.migrations m WHERE m.state <> 'done' GROUP BY m.namespace;

CREATE OR REPLACE VIEW docshard_internal.config_settings AS
SELECT position, NULL::text AS ns, doc FROM (
    SELECT e.position, pg_catalog.jsonb_build_object('_id', e.name, 'enabled', s.value = 'true')
      FROM docshard.settings s, (VALUES (0, 'automerge'), (1, 'autosplit')) AS e (position, name) WHERE s.name = 'balancer_enabled'
    UNION ALL
    SELECT 2, pg_catalog.jsonb_build_object(
             '_id', 'balancer', 'mode', CASE s.value WHEN 'true' THEN 'full' ELSE 'off' END, 'stopped', s.value <> 'true')
           || CASE WHEN a.value = '' OR o.value = '' THEN '{}'::jsonb ELSE pg_catalog.jsonb_build_object(
                'activeWindow', pg_catalog.jsonb_build_object('start', a.value, 'stop', o.value)) END
      FROM docshard.settings s
      JOIN docshard.settings a ON a.name = 'active_window_start'
      JOIN docshard.settings o ON o.name = 'active_window_stop'
     WHERE s.name = 'balancer_enabled'
    UNION ALL
    SELECT 3, pg_catalog.jsonb_build_object('_id', 'chunksize', 'value', s.value::bigint)
      FROM docshard.settings s WHERE s.name = 'chunk_size_mb') AS settings (position, doc);

CREATE OR REPLACE VIEW docshard_internal.config_mongos AS
SELECT 1 AS position, NULL::text AS ns,
       pg_catalog.jsonb_build_object(
         '_id', coalesce(pg_catalog.host(pg_catalog.inet_server_addr()), 'localhost') || ':' || pg_catalog.current_setting('port'),
         'ping', docshard_internal.config_date(pg_catalog.clock_timestamp()),
         'up', extract(epoch FROM pg_catalog.clock_timestamp() - pg_catalog.pg_postmaster_start_time())::bigint,
         'waiting', true, 'mongoVersion', '8.0.0',
         'docshardVersion', (SELECT e.extversion FROM pg_catalog.pg_extension e WHERE e.extname = 'docshard')) AS doc;

GRANT SELECT ON docshard_internal.config_actionlog, docshard_internal.config_locks TO PUBLIC;

CREATE FUNCTION docshard.rename_collection(ns text, "to" text, options json DEFAULT '{}')
    RETURNS json VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    LANGUAGE c AS 'MODULE_PATHNAME', 'rename_collection_wrapper';
REVOKE ALL ON FUNCTION docshard.rename_collection(text, text, json) FROM PUBLIC;

-- New objects belong to the extension's owner, not to who updates it.
DO $$
DECLARE
    owner CONSTANT name := (SELECT pg_catalog.pg_get_userbyid(extowner) FROM pg_catalog.pg_extension WHERE extname = 'docshard');
BEGIN
    EXECUTE pg_catalog.format('ALTER FUNCTION docshard.rename_collection(text, text, json) OWNER TO %I', owner);
    EXECUTE pg_catalog.format('REVOKE ALL ON FUNCTION docshard.rename_collection(text, text, json) FROM PUBLIC');
    EXECUTE pg_catalog.format('ALTER VIEW docshard_internal.config_actionlog OWNER TO %I', owner);
    EXECUTE pg_catalog.format('ALTER VIEW docshard_internal.config_locks OWNER TO %I', owner);
END $$;

-- Foreign tables: see sql/tables.sql.
CREATE FUNCTION docshard_internal.fdw_handler() RETURNS fdw_handler STRICT LANGUAGE c AS 'MODULE_PATHNAME', 'fdw_handler_wrapper';
REVOKE ALL ON FUNCTION docshard_internal.fdw_handler() FROM PUBLIC;
CREATE FUNCTION docshard_internal.fdw_validator(options text[], catalog oid) RETURNS void
STRICT LANGUAGE c AS 'MODULE_PATHNAME', 'fdw_validator_wrapper';
REVOKE ALL ON FUNCTION docshard_internal.fdw_validator(text[], oid) FROM PUBLIC;
CREATE FUNCTION docshard.import_database(db text, schema text) RETURNS void
VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'import_database_wrapper';
CREATE FOREIGN DATA WRAPPER docshard HANDLER docshard_internal.fdw_handler VALIDATOR docshard_internal.fdw_validator;
CREATE SERVER docshard FOREIGN DATA WRAPPER docshard;
COMMENT ON FOREIGN DATA WRAPPER docshard IS 'docshard: collections as tables';
COMMENT ON SERVER docshard IS 'docshard: the collections of this cluster';
