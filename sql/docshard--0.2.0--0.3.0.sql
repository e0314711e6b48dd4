-- From 0.2.0 to 0.3.0.

-- As in schemas.sql: ALTER EXTENSION also searches the schemas of required extensions, in which other roles may have created
-- operators that match better.
SELECT pg_catalog.set_config('search_path', 'docshard, pg_catalog, pg_temp', true);

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
