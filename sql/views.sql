-- The cluster as views, for psql: they join by name (shard, database, namespace). A copy into which a collection's documents are copied
-- is no collection here: docshard.resharding shows it. Users cannot write its name.

CREATE VIEW docshard.shards AS
SELECT s.name, s.id,
       CASE WHEN s.server IS NULL THEN 'this database' ELSE coalesce(o.host, '') || coalesce(':' || o.port, '') || coalesce('/' || o.dbname, '') END AS host,
       CASE WHEN s.draining THEN 'draining' ELSE 'active' END AS state,
       s.max_size_mb, s.server,
       (SELECT count(*) FROM docshard_catalog.chunks k JOIN docshard_catalog.collections c ON c.id = k.collection_id
         WHERE k.shard_id = s.id AND NOT pg_catalog.starts_with(c.namespace, c.database || '.system.resharding.')) AS chunks,
       s.added_at
  FROM docshard_catalog.shards s
  LEFT JOIN pg_catalog.pg_foreign_server f ON f.srvname = s.server
  LEFT JOIN LATERAL (
        SELECT max(option_value) FILTER (WHERE option_name = 'host') AS host,
               max(option_value) FILTER (WHERE option_name = 'port') AS port,
               max(option_value) FILTER (WHERE option_name = 'dbname') AS dbname
          FROM pg_catalog.pg_options_to_table(f.srvoptions)) o ON true;
COMMENT ON VIEW docshard.shards IS 'The shards; state is active or draining';
COMMENT ON COLUMN docshard.shards.name IS 'join with chunks.shard, databases.primary_shard';
COMMENT ON COLUMN docshard.shards.server IS 'the postgres_fdw server by which to connect; null for this database';

CREATE VIEW docshard.zones AS
SELECT z.zone, s.name AS shard
  FROM docshard_catalog.zones z
  JOIN docshard_catalog.shards s ON s.id = z.shard_id;
COMMENT ON VIEW docshard.zones IS 'The zones of each shard; zone_ranges has their keys';

CREATE VIEW docshard.zone_ranges AS
SELECT r.namespace, r.min, r.max, r.zone, r.min_key, r.max_key
  FROM docshard_catalog.zone_ranges r;
COMMENT ON VIEW docshard.zone_ranges IS 'Ranges of keys that are stored on the shards of a zone only: from min up to but not including max';
COMMENT ON COLUMN docshard.zone_ranges.min_key IS 'the bound as it is compared: order by it';

CREATE VIEW docshard.databases AS
SELECT d.name, s.name AS primary_shard, d.partitioned,
       (SELECT count(*) FROM docshard_catalog.collections c
         WHERE c.database = d.name AND NOT pg_catalog.starts_with(c.namespace, c.database || '.system.resharding.')) AS collections
  FROM docshard_catalog.databases d
  JOIN docshard_catalog.shards s ON s.id = d.primary_shard;
COMMENT ON VIEW docshard.databases IS 'Databases; the primary shard stores the unsharded collections';

CREATE VIEW docshard.collections AS
SELECT c.namespace, c.database, c.key IS NOT NULL AS sharded, c.key, c.is_unique AS "unique", c.balance, c.chunk_size_mb,
       (SELECT count(*) FROM docshard_catalog.chunks k WHERE k.collection_id = c.id) AS chunks,
       'docshard_data.c' || c.id AS "table", c.version, c.created_at, c.collation_spec AS "collation",
       c.validation::json AS validation
  FROM docshard_catalog.collections c
 WHERE NOT pg_catalog.starts_with(c.namespace, c.database || '.system.resharding.');
COMMENT ON VIEW docshard.collections IS 'Collections; key is the shard key, null for an unsharded one';
COMMENT ON COLUMN docshard.collections.namespace IS 'join with chunks, indexes, migrations, changelog';
COMMENT ON COLUMN docshard.collections.validation IS 'validator, validationLevel and validationAction, as far as they are set';
COMMENT ON COLUMN docshard.collections."table" IS 'the table with its documents, on every shard that has some';

CREATE VIEW docshard.views AS
SELECT v.namespace, v.database, v.view_on, v.pipeline, v.collation_spec AS "collation", v.created_at
  FROM docshard_catalog.views v;
COMMENT ON VIEW docshard.views IS 'Views: pipelines that are read like collections';
COMMENT ON COLUMN docshard.views.view_on IS 'the collection or view that it reads, in the same database';

CREATE VIEW docshard.chunks AS
SELECT c.namespace, s.name AS shard,
       docshard_internal.bound_json(c.key::text, k.min) AS min,
       docshard_internal.bound_json(c.key::text, k.max) AS max,
       k.jumbo, k.version, k.min AS min_key, k.max AS max_key
  FROM docshard_catalog.chunks k
  JOIN docshard_catalog.collections c ON c.id = k.collection_id
  JOIN docshard_catalog.shards s ON s.id = k.shard_id
 WHERE NOT pg_catalog.starts_with(c.namespace, c.database || '.system.resharding.');
COMMENT ON VIEW docshard.chunks IS 'Owners of keys: from min up to but not including max; the last chunk includes its max';
COMMENT ON COLUMN docshard.chunks.min_key IS 'the bound as it is compared: order by it';

CREATE VIEW docshard.grants AS
SELECT r.rolname AS role, g.resource, g.level
  FROM docshard_catalog.grants g JOIN pg_catalog.pg_roles r ON r.oid = g.role
 WHERE pg_catalog.has_schema_privilege(r.oid, 'docshard', 'USAGE');
COMMENT ON VIEW docshard.grants IS 'Which roles may read or write which databases and collections; * is all of them. Without those that DROP OWNED has taken away';

CREATE VIEW docshard.indexes AS
SELECT c.namespace, i.name, i.keys, i.is_unique AS "unique", i.is_hidden AS hidden, i.is_sparse AS sparse, i.partial_filter,
       i.expire_after_s, i.collation_spec AS "collation", i.wildcard_projection, 'i' || i.id AS relation
  FROM docshard_catalog.indexes i
  JOIN docshard_catalog.collections c ON c.id = i.collection_id
 WHERE NOT pg_catalog.starts_with(c.namespace, c.database || '.system.resharding.');
COMMENT ON VIEW docshard.indexes IS 'Secondary indexes; relation is the index in schema docshard_data of every shard';

CREATE VIEW docshard.migrations AS
SELECT m.id, m.namespace, d.name AS donor, r.name AS recipient, m.state, m.step, m.reason, m.documents, m.bytes, m.error,
       docshard_internal.bound_json(c.key::text, m.min) AS min,
       docshard_internal.bound_json(c.key::text, m.max) AS max,
       m.estimated, m.rounds, m.lag, m.stall_ms, m.attempts, m.durations, m.started_at, m.updated_at, m.outcome
  FROM docshard_catalog.migrations m
  LEFT JOIN docshard_catalog.collections c ON c.id = m.collection_id
  LEFT JOIN docshard_catalog.shards d ON d.id = m.donor
  LEFT JOIN docshard_catalog.shards r ON r.id = m.recipient;
COMMENT ON VIEW docshard.migrations IS 'Moves of chunks: running ones (state is not done) and ended ones';
COMMENT ON COLUMN docshard.migrations.outcome IS 'committed: the recipient owns the chunk, or will; aborted: the donor keeps it; running: nothing is decided';
COMMENT ON COLUMN docshard.migrations.estimated IS 'the expected number of documents; documents: the number copied so far';
COMMENT ON COLUMN docshard.migrations.lag IS 'the number of changed keys in the last round that copied changes';
COMMENT ON COLUMN docshard.migrations.stall_ms IS 'how long writers to the chunk had to wait for the hand-over';
COMMENT ON COLUMN docshard.migrations.attempts IS 'how often the hand-over was rolled back because it would have blocked writers for too long';
COMMENT ON COLUMN docshard.migrations.durations IS 'milliseconds of each step';

CREATE VIEW docshard.resharding AS
SELECT r.id, r.namespace, r.command, r.state, r.outcome, r.step, r.old_key, r.key, r.documents, r.bytes, r.estimated,
       CASE WHEN r.state = 'running' AND r.step = 'cloning' AND r.documents > 0 AND r.estimated >= r.documents
            THEN pg_catalog.make_interval(secs => extract(epoch FROM r.updated_at - r.step_at)::float8
                                                  * (r.estimated - r.documents) / r.documents) END AS remaining,
       r.rounds, r.lag, r.stall_ms, r.attempts, r.error, r.started_at, r.updated_at
  FROM docshard_catalog.resharding r;
COMMENT ON VIEW docshard.resharding IS 'Changes of the layout of collections (shard key, chunks, shards): running ones and ended ones';
COMMENT ON COLUMN docshard.resharding.outcome IS 'committed: the collection has its new layout; aborted: it keeps the old one; running: nothing is decided';
COMMENT ON COLUMN docshard.resharding.documents IS 'the number copied so far; estimated: the expected number';
COMMENT ON COLUMN docshard.resharding.remaining IS 'an estimate of the time until all documents are copied; null in other steps';
COMMENT ON COLUMN docshard.resharding.lag IS 'the number of changed keys in the last round that copied changes';
COMMENT ON COLUMN docshard.resharding.stall_ms IS 'how long writers had to wait for the decision';
COMMENT ON COLUMN docshard.resharding.attempts IS 'how often the decision was put off because writers would have waited for too long';

CREATE VIEW docshard.changelog AS
SELECT id, at, what, namespace, details FROM docshard_catalog.changelog;
COMMENT ON VIEW docshard.changelog IS 'Events of the cluster, oldest first by id';

CREATE VIEW docshard.health AS
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
COMMENT ON COLUMN docshard.health.oldest_sync_wait_s IS 'for how long the oldest statement runs whose commit waits for a synchronous standby, in seconds; null: none waits';
COMMENT ON COLUMN docshard.health.last_contact IS 'when the router last heard of it; every 5 seconds, unless it is asked now';

CREATE VIEW docshard.hot_chunks AS
SELECT namespace, shard, min, max, reads, writes, share, note, min_key
  FROM docshard.chunk_load() AS l;
COMMENT ON VIEW docshard.hot_chunks IS 'The operations of chunks, the busiest first; asks the shards, now; it answers within 3 seconds even if shards do not respond';
COMMENT ON COLUMN docshard.hot_chunks.min IS 'the chunk''s bounds; null: statements that are for no certain chunk, see note';
COMMENT ON COLUMN docshard.hot_chunks.reads IS 'statements in a second, an estimate from samples in which an operation loses half of its weight in a minute; writes: in the same way, an insert for each document';
COMMENT ON COLUMN docshard.hot_chunks.share IS 'percentage of the collection''s operations';
COMMENT ON COLUMN docshard.hot_chunks.note IS 'why the chunk cannot be split by load, or why a shard tells nothing';
COMMENT ON COLUMN docshard.hot_chunks.min_key IS 'the bound as it is compared; join with chunks.min_key';

CREATE VIEW docshard.settings AS
SELECT name, value, "default", description FROM docshard_internal.list_settings();
COMMENT ON VIEW docshard.settings IS 'The cluster''s settings; docshard.set_setting(name, value) changes one';
