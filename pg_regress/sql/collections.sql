-- Databases and collections: created by the first write or by name, listed, dropped.
SELECT docshard.create_collection('coll.one');
SELECT docshard.create_collection('coll.one');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.create_collection('coll.one', '{"capped": true}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.insert_one('coll.two', '{"_id": 1}');
SELECT docshard.enable_sharding('coll');
SELECT docshard.enable_sharding('coll');
SELECT docshard.enable_sharding('coll', 'local');
SELECT docshard.enable_sharding('coll2', 'nowhere');
\echo :LAST_ERROR_SQLSTATE
SELECT * FROM docshard.databases WHERE name LIKE 'coll%';
SELECT namespace, database, sharded, key, "unique", chunks FROM docshard.collections WHERE database = 'coll' ORDER BY namespace;
SELECT namespace, shard, min, max, jumbo FROM docshard.chunks WHERE namespace LIKE 'coll.%' ORDER BY namespace;

-- Reading creates nothing; updates and deletes neither.
SELECT docshard.count_documents('coll.three'), docshard.delete_many('coll.three', '{}');
SELECT count(*) FROM docshard.collections WHERE namespace = 'coll.three';

-- Dropped with its documents and its table; true if there was one.
SELECT "table" FROM docshard.collections WHERE namespace = 'coll.two' \gset
SELECT docshard.drop_collection('coll.two');
SELECT docshard.drop_collection('coll.two');
SELECT to_regclass(:'table') IS NULL AS gone;
SELECT docshard.count_documents('coll.two');
-- A new collection with the same name is empty.
SELECT docshard.insert_one('coll.two', '{"_id": 2}');
SELECT docshard.find('coll.two');

SELECT docshard.drop_database('coll');
SELECT docshard.drop_database('coll');
SELECT count(*) FROM docshard.collections WHERE database = 'coll';
-- All of it is rolled back with the transaction.
BEGIN;
SELECT docshard.insert_one('coll.tx', '{"_id": 1}');
SELECT docshard.create_index('coll.tx', '{"a": 1}');
ROLLBACK;
SELECT docshard.count_documents('coll.tx');
SELECT count(*) FROM docshard.collections WHERE database = 'coll';
