CREATE VIEW docshard.index_usage AS
SELECT c.namespace, s.name, s.keys::text::json AS keys, s.accesses, s.bytes, s.since, s.shards
  FROM docshard_catalog.collections c
 CROSS JOIN LATERAL (
       SELECT i.name, i.keys::text AS keys, pg_catalog.sum(i.accesses)::bigint AS accesses, pg_catalog.sum(i.bytes)::bigint AS bytes,
              pg_catalog.min(i.since) AS since, pg_catalog.count(*) AS shards
         FROM docshard.index_stats(c.namespace) i GROUP BY i.name, i.keys::text) s;
COMMENT ON VIEW docshard.index_usage IS 'How often indexes are used and how large they are, all shards together; asks the shards';
COMMENT ON COLUMN docshard.index_usage.since IS 'the earliest time since which a shard counts accesses; null: since the index was created';
