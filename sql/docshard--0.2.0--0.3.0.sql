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
