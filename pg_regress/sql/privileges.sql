-- Privileges: without grant_access a role reaches nothing; with it, documents but no administration.
SELECT docshard.shard_collection('priv.c', '{"_id": "hashed"}');
SELECT docshard.insert_many('priv.c', array_agg(jsonb_build_object('_id', n))) -> 'insertedCount' AS inserted FROM generate_series(1, 30) n;
CREATE ROLE regress_app LOGIN;
CREATE ROLE regress_other LOGIN;
SET ROLE regress_app;
SELECT docshard.find('priv.c');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard_internal.pack('{}');
\echo :LAST_ERROR_SQLSTATE
SELECT count(*) FROM docshard_data.placement;
\echo :LAST_ERROR_SQLSTATE
RESET ROLE;
SELECT docshard.grant_access('nobody_such');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.grant_access('regress_app', '{"pasword": "x"}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.grant_access('regress_app');
SELECT docshard.grant_access('regress_app');

SET ROLE regress_app;
SELECT docshard.count_documents('priv.c');
SELECT docshard.insert_one('priv.c', '{"_id": 31}') -> 'insertedId' AS id;
SELECT docshard.update_many('priv.c', '{}', '{"$set": {"v": 1}}') -> 'modifiedCount' AS modified;
SELECT docshard.delete_many('priv.c', '{"_id": {"$gt": 30}}') -> 'deletedCount' AS deleted;
SELECT docshard.find('priv.c', '{"_id": {"$lt": 3}}', '{"sort": {"_id": 1}}');
SELECT name FROM docshard.list_indexes('priv.c');
SELECT namespace, shard FROM docshard.chunks WHERE namespace = 'priv.c' ORDER BY min_key LIMIT 1;
SELECT name, state FROM docshard.shards ORDER BY name;
SELECT name, value FROM docshard.settings WHERE name = 'chunk_size_mb';
-- No administration, nor the tables behind it.
SELECT docshard.shard_collection('priv.d', '{"a": 1}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.drop_collection('priv.c');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.add_shard('dbname=x');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.remove_shard('local');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.set_setting('chunk_size_mb', '1');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.move_chunk('priv.c', '{"_id": 1}', 'local');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.create_index('priv.c', '{"a": 1}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.grant_access('regress_app');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.stop_balancer();
\echo :LAST_ERROR_SQLSTATE
UPDATE docshard_catalog.chunks SET jumbo = true;
\echo :LAST_ERROR_SQLSTATE
DELETE FROM docshard_data.placement;
\echo :LAST_ERROR_SQLSTATE
SELECT docshard_internal.drop_table(1);
\echo :LAST_ERROR_SQLSTATE
SELECT docshard_internal.create_table(99, 1, 1, false);
\echo :LAST_ERROR_SQLSTATE
-- A write to an unknown namespace would create a collection.
SELECT docshard.insert_one('priv.new', '{"_id": 1}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.count_documents('priv.new'), docshard.update_many('priv.new', '{}', '{"$set": {"a": 1}}') -> 'matchedCount' AS matched;
-- What an administrator creates later is open to it as well.
RESET ROLE;
SELECT docshard.create_collection('priv.new');
SET ROLE regress_app;
SELECT docshard.insert_one('priv.new', '{"_id": 1}');
SET ROLE regress_other;
SELECT docshard.count_documents('priv.c');
\echo :LAST_ERROR_SQLSTATE
RESET ROLE;
SELECT docshard.count_documents('priv.c');
-- What PUBLIC may call in the API and behind it.
\pset format unaligned
SELECT DISTINCT p.pronamespace::regnamespace || '.' || p.proname AS function FROM pg_proc p
 WHERE p.pronamespace IN ('docshard'::regnamespace, 'docshard_internal'::regnamespace) AND has_function_privilege('regress_other', p.oid, 'EXECUTE')
 ORDER BY 1;
\pset format aligned
SELECT docshard.drop_database('priv');
