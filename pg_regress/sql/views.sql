-- The cluster in psql: views that join by name.
SELECT docshard.enable_sharding('vw', 'shard0');
SELECT docshard.shard_collection('vw.c', '{"country": 1, "city": 1}', '{"unique": true}');
SELECT docshard.split_at('vw.c', '{"country": "m"}');
SELECT docshard.create_collection('vw.plain');
SELECT docshard.create_index('vw.c', '{"country": 1, "city": 1, "zip": -1}', '{"unique": true}');
SELECT viewname, viewowner FROM pg_catalog.pg_views WHERE schemaname = 'docshard' ORDER BY viewname COLLATE "C";
SELECT c.namespace, c.key, k.shard, k.min, k.max, s.state, d.primary_shard
  FROM docshard.collections c
  JOIN docshard.chunks k USING (namespace)
  JOIN docshard.shards s ON s.name = k.shard
  JOIN docshard.databases d ON d.name = c.database
 WHERE c.database = 'vw' ORDER BY c.namespace, k.min_key;
SELECT namespace, name, keys, "unique" FROM docshard.indexes WHERE namespace = 'vw.c' ORDER BY name;
SELECT * FROM docshard.databases WHERE name = 'vw';
SELECT what, namespace, details FROM docshard.changelog WHERE namespace LIKE 'vw%' ORDER BY id;
-- Everything has a comment.
SELECT c.relname FROM pg_class c WHERE c.relnamespace = 'docshard'::regnamespace AND c.relkind = 'v' AND obj_description(c.oid, 'pg_class') IS NULL;
SELECT c.relname FROM pg_class c WHERE c.relnamespace IN ('docshard_catalog'::regnamespace, 'docshard_data'::regnamespace) AND c.relkind = 'r'
   AND c.relname !~ '^c\d+$' AND obj_description(c.oid, 'pg_class') IS NULL;
-- pg_dump dumps the whole catalog.
SELECT c.oid::regclass FROM pg_class c
 WHERE c.relnamespace IN ('docshard_catalog'::regnamespace, 'docshard_data'::regnamespace) AND c.relkind IN ('r', 'S')
   AND EXISTS (SELECT FROM pg_depend d WHERE d.objid = c.oid AND d.deptype = 'e')
   AND NOT EXISTS (SELECT FROM pg_extension e WHERE e.extname = 'docshard' AND c.oid = ANY (e.extconfig))
   AND c.relname NOT IN ('service', 'rotation', 'tables', 'numbered_writes', 'sampled_statements', 'sampled_statements_id_seq');
SELECT docshard.drop_database('vw');
