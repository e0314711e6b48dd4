-- The smallest installation: one PostgreSQL that does not preload docshard. Only the worker is missing, and functions that need it say so.
SHOW shared_preload_libraries;
SET client_min_messages = warning;
CREATE EXTENSION docshard CASCADE;
RESET client_min_messages;
SELECT docshard.insert_one('shop.items', '{"_id": 1, "name": "lamp", "price": {"$numberDecimal": "9.50"}}');
SELECT docshard.find('shop.items', '{"price": {"$lt": 10}}');
SELECT docshard.update_one('shop.items', '{"_id": 1}', '{"$inc": {"stock": 5}}') -> 'modifiedCount' AS modified;
SELECT docshard.find('shop.items');

-- Sharding works, too, on the shard local.
SELECT docshard.shard_collection('shop.orders', '{"customer": "hashed"}');
SELECT docshard.insert_many('shop.orders', array_agg(jsonb_build_object('_id', n, 'customer', n % 10))) -> 'insertedCount' AS inserted
  FROM generate_series(1, 100) n;
SELECT docshard.create_index('shop.orders', '{"customer": 1}');
SELECT docshard.count_documents('shop.orders', '{"customer": 3}');
SELECT docshard.split_find('shop.orders', '{"customer": 3}');
SELECT namespace, shard, count(*) FROM docshard.chunks GROUP BY 1, 2 ORDER BY 1;
BEGIN;
SELECT docshard.delete_many('shop.orders', '{}') -> 'deletedCount' AS deleted;
ROLLBACK;
SELECT docshard.count_documents('shop.orders');

-- A second shard, which also allows no prepared transactions: a transaction that writes on both is refused, even the creation of
-- a collection there, as the catalog is here; unless the user allows commits one after the other.
CREATE DATABASE regress_plain TEMPLATE template0 ENCODING UTF8;
\getenv host PGHOST
\getenv port PGPORT
SELECT docshard.add_shard('host=' || :'host' || ' port=' || :'port' || ' dbname=regress_plain', '{"name": "plain"}');
SELECT docshard.enable_sharding('far', 'plain');
SELECT docshard.insert_one('far.c', '{"_id": 1}');
\echo :LAST_ERROR_SQLSTATE
SET docshard.multi_shard_commit = one_by_one;
SELECT docshard.insert_one('far.c', '{"_id": 1}');
RESET docshard.multi_shard_commit;
SELECT docshard.insert_one('far.c', '{"_id": 3}');
SELECT docshard.find('far.c', '{}', '{"sort": {"_id": 1}}');
SELECT docshard.shard_collection('shop.wide', '{"_id": "hashed"}');
\echo :LAST_ERROR_SQLSTATE
BEGIN;
SELECT docshard.insert_one('far.c', '{"_id": 2}') -> 'insertedId' AS id;
SELECT docshard.insert_one('shop.items', '{"_id": 2}') -> 'insertedId' AS id;
COMMIT;
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.count_documents('far.c') AS far, docshard.count_documents('shop.items') AS near;
SELECT docshard.move_chunk('shop.orders', '{"customer": 3}', 'plain');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.count_documents('shop.orders');

-- Functions that need the worker say how to start it.
SELECT docshard.start_balancer();
\echo :LAST_ERROR_SQLSTATE
SELECT s - 'lastRound' - 'lastError' - 'lastErrorAt' AS status FROM (SELECT docshard.balancer_status()::jsonb) AS b (s);
SELECT docshard.stop_balancer();
SELECT line FROM regexp_split_to_table(docshard.status(), E'\n') AS line WHERE line ~ 'running';
-- A hint works in the first statement of a session, which has not loaded the library yet.
SELECT docshard.create_index('shop.items', '{"n": 1}');
SELECT c."table" AS items, i.relation AS by_n FROM docshard.collections c JOIN docshard.indexes i USING (namespace) WHERE namespace = 'shop.items'
\gset
\c -
EXPLAIN (COSTS OFF) SELECT FROM :items WHERE docshard_internal.load_library() AND docshard_internal.by_index(:'by_n'::text);
SET docshard.multi_shard_commit = one_by_one;
SELECT docshard.drop_database('shop'), docshard.drop_database('far');
RESET docshard.multi_shard_commit;
