CREATE VIEW docshard.index_usage AS
SELECT c.namespace, s.name, s.keys::text::json AS keys, s.accesses, s.bytes, s.since, s.shards
  FROM docshard_catalog.collections c
 CROSS JOIN LATERAL (
       SELECT i.name, i.keys::text AS keys, pg_catalog.sum(i.accesses)::bigint AS accesses, pg_catalog.sum(i.bytes)::bigint AS bytes,
              pg_catalog.min(i.since) AS since, pg_catalog.count(*) AS shards
         FROM docshard.index_stats(c.namespace) i GROUP BY i.name, i.keys::text) s
-- As a read of the collection: the view leaves out what the caller may not read. It also leaves out the copy that a change of a layout makes.
 WHERE NOT pg_catalog.starts_with(c.namespace, c.database || '.system.resharding.')
   AND ((SELECT r.rolsuper OR r.oid = e.extowner FROM pg_catalog.pg_roles r, pg_catalog.pg_extension e
          WHERE r.rolname = current_user AND e.extname = 'docshard')
     OR EXISTS (SELECT FROM docshard_catalog.grants g
                 WHERE g.resource IN ('*', c.database, c.namespace) AND pg_catalog.pg_has_role(g.role, 'USAGE')));
COMMENT ON VIEW docshard.index_usage IS 'How often indexes are used and how large they are, all shards together; asks the shards';
COMMENT ON COLUMN docshard.index_usage.since IS 'the earliest time since which a shard counts accesses; null: since the index was created';
