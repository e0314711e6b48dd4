-- The virtual database `config`: the catalog in the form of MongoDB's config servers. One view for each collection, with documents in
-- `doc`, their order in `position` and, if they have one, their namespace in `ns`. docshard.find reads them.
-- Names in the functions' bodies are resolved here, as in views, and not when they are called.

CREATE FUNCTION docshard_internal.config_date(at timestamptz) RETURNS jsonb
LANGUAGE sql IMMUTABLE PARALLEL SAFE STRICT
RETURN pg_catalog.jsonb_build_object('$date',
         pg_catalog.to_char(at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'));

CREATE FUNCTION docshard_internal.config_timestamp(seconds bigint, counter bigint) RETURNS jsonb
LANGUAGE sql IMMUTABLE PARALLEL SAFE STRICT
RETURN pg_catalog.jsonb_build_object('$timestamp',
         pg_catalog.jsonb_build_object('t', least(seconds, 4294967295), 'i', least(counter, 4294967295)));

-- An ObjectId from a time and a value that distinguishes objects created at that time.
CREATE FUNCTION docshard_internal.config_object_id(at timestamptz, token bigint) RETURNS jsonb
LANGUAGE sql IMMUTABLE PARALLEL SAFE STRICT
RETURN pg_catalog.jsonb_build_object('$oid',
         pg_catalog.lpad(pg_catalog.to_hex(extract(epoch FROM at)::bigint), 8, '0')
         || pg_catalog.lpad(pg_catalog.to_hex(token), 16, '0'));

-- A collection's UUID (version 3), derived from its identity.
CREATE FUNCTION docshard_internal.collection_uuid(id int, token bigint) RETURNS jsonb
LANGUAGE sql IMMUTABLE PARALLEL SAFE STRICT
BEGIN ATOMIC
  SELECT pg_catalog.jsonb_build_object('$binary', pg_catalog.jsonb_build_object('subType', '04', 'base64',
         pg_catalog.encode(pg_catalog.decode(
           pg_catalog.overlay(pg_catalog.overlay(hash, '3', 13), '8', 17), 'hex'), 'base64')))
    FROM pg_catalog.md5('docshard ' || id || ' ' || token) AS hash;
END;

CREATE VIEW docshard_internal.config_shards AS
SELECT s.id AS position, NULL::text AS ns,
       pg_catalog.jsonb_build_object(
         '_id', s.name, 'host', s.name || '/' || s.host, 'state', 1,
         'tags', coalesce((SELECT pg_catalog.jsonb_agg(z.zone ORDER BY z.zone)
                             FROM docshard_catalog.zones z WHERE z.shard_id = s.id), '[]'),
         'addedAt', docshard_internal.config_date(s.added_at))
       || CASE WHEN s.state = 'draining' THEN '{"draining": true}' ELSE '{}'::jsonb END
       || CASE WHEN s.max_size_mb IS NULL THEN '{}' ELSE pg_catalog.jsonb_build_object('maxSize', s.max_size_mb) END AS doc
  FROM docshard.shards s;

CREATE VIEW docshard_internal.config_databases AS
SELECT d.name COLLATE "C" AS position, NULL::text AS ns,
       pg_catalog.jsonb_build_object('_id', d.name, 'primary', s.name, 'partitioned', d.partitioned) AS doc
  FROM docshard_catalog.databases d JOIN docshard_catalog.shards s ON s.id = d.primary_shard;

-- An unsharded collection is in config.collections and config.chunks while it is not on its database's primary shard.
CREATE VIEW docshard_internal.config_collections AS
SELECT c.namespace COLLATE "C" AS position, c.namespace AS ns,
       pg_catalog.jsonb_build_object(
         '_id', c.namespace, 'key', coalesce(c.key::jsonb, '{"_id": 1}'), 'unique', c.is_unique, 'noBalance', NOT c.balance, 'dropped', false,
         'uuid', docshard_internal.collection_uuid(c.id, c.token),
         'lastmodEpoch', docshard_internal.config_object_id(c.created_at, c.token),
         'lastmod', docshard_internal.config_date(c.created_at),
         'timestamp', docshard_internal.config_timestamp(extract(epoch FROM c.created_at)::bigint, c.id))
       || CASE WHEN c.chunk_size_mb IS NULL THEN '{}'::jsonb
               ELSE pg_catalog.jsonb_build_object('maxChunkSizeBytes', c.chunk_size_mb::bigint * 1048576) END
       || CASE WHEN c.key IS NULL THEN '{"unsplittable": true}' ELSE '{}'::jsonb END AS doc
  FROM docshard_catalog.collections c
 WHERE c.key IS NOT NULL
    OR EXISTS (SELECT FROM docshard_catalog.chunks k JOIN docshard_catalog.databases d ON d.name = c.database
                WHERE k.collection_id = c.id AND k.shard_id <> d.primary_shard);

CREATE VIEW docshard_internal.config_chunks AS
SELECT c.namespace || ' ' || pg_catalog.encode(k.min, 'hex') COLLATE "C" AS position, c.namespace AS ns,
       pg_catalog.jsonb_build_object(
         '_id', pg_catalog.jsonb_build_object('$oid', pg_catalog.substr(
                  pg_catalog.md5(c.id || ' ' || c.token || ' ' || pg_catalog.encode(k.min, 'hex')), 1, 24)),
         'uuid', docshard_internal.collection_uuid(c.id, c.token), 'ns', c.namespace,
         'min', CASE WHEN c.key IS NULL THEN '{"_id": {"$minKey": 1}}' ELSE docshard_internal.bound_json(c.key::text, k.min)::jsonb END,
         'max', CASE WHEN c.key IS NULL THEN '{"_id": {"$maxKey": 1}}' ELSE docshard_internal.bound_json(c.key::text, k.max)::jsonb END,
         'shard', s.name, 'lastmod', docshard_internal.config_timestamp(k.version, 0),
         'lastmodEpoch', docshard_internal.config_object_id(c.created_at, c.token))
       || CASE WHEN k.jumbo THEN '{"jumbo": true}' ELSE '{}'::jsonb END AS doc
  FROM docshard_catalog.chunks k
  JOIN docshard_catalog.collections c ON c.id = k.collection_id
  JOIN docshard_catalog.shards s ON s.id = k.shard_id
 WHERE c.key IS NOT NULL
    OR k.shard_id <> (SELECT d.primary_shard FROM docshard_catalog.databases d WHERE d.name = c.database);

CREATE VIEW docshard_internal.config_tags AS
SELECT r.namespace || ' ' || pg_catalog.encode(r.min_key, 'hex') COLLATE "C" AS position, r.namespace AS ns,
       pg_catalog.jsonb_build_object(
         '_id', pg_catalog.jsonb_build_object('ns', r.namespace, 'min', r.min::jsonb),
         'ns', r.namespace, 'min', r.min::jsonb, 'max', r.max::jsonb, 'tag', r.zone) AS doc
  FROM docshard_catalog.zone_ranges r;

-- A move that has ended, or was given up, also has the entry moveChunk.from, which MongoDB's clients count.
CREATE VIEW docshard_internal.config_changelog AS
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

CREATE VIEW docshard_internal.config_settings AS
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

CREATE VIEW docshard_internal.config_mongos AS
SELECT 1 AS position, NULL::text AS ns,
       pg_catalog.jsonb_build_object(
         '_id', coalesce(pg_catalog.host(pg_catalog.inet_server_addr()), 'localhost') || ':' || pg_catalog.current_setting('port'),
         'ping', docshard_internal.config_date(pg_catalog.clock_timestamp()),
         'up', extract(epoch FROM pg_catalog.clock_timestamp() - pg_catalog.pg_postmaster_start_time())::bigint,
         'waiting', true, 'mongoVersion', '8.0.0',
         'docshardVersion', (SELECT e.extversion FROM pg_catalog.pg_extension e WHERE e.extname = 'docshard')) AS doc;

CREATE VIEW docshard_internal.config_version AS
SELECT 1 AS position, NULL::text AS ns,
       pg_catalog.jsonb_build_object('_id', 1, 'minCompatibleVersion', 5, 'currentVersion', 6,
         'clusterId', docshard_internal.config_object_id(c.created_at, c.id)) AS doc
  FROM docshard_catalog.cluster c;

GRANT SELECT ON docshard_internal.config_shards, docshard_internal.config_databases, docshard_internal.config_collections,
    docshard_internal.config_chunks, docshard_internal.config_tags, docshard_internal.config_changelog,
    docshard_internal.config_actionlog, docshard_internal.config_locks,
    docshard_internal.config_settings, docshard_internal.config_mongos, docshard_internal.config_version TO PUBLIC;
