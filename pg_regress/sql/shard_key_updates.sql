-- An update of one document may change its shard key: the document moves, to another shard if need be.
SELECT docshard.enable_sharding('sku', 'shard0');
SELECT docshard.shard_collection('sku.c', '{"k": 1}');
SELECT docshard.split_at('sku.c', '{"k": 10}');
SELECT docshard.split_at('sku.c', '{"k": 20}');
SELECT docshard.move_chunk('sku.c', '{"k": 10}', 'shard1') ->> 'documents' AS documents;
SELECT docshard.move_chunk('sku.c', '{"k": 20}', 'local') ->> 'documents' AS documents;
SELECT docshard.insert_many('sku.c', ARRAY['{"_id": 1, "k": 1, "v": "a"}', '{"_id": 2, "k": 11}', '{"_id": 3, "k": 21}']::jsonb[])
  -> 'insertedCount' AS inserted;
CREATE VIEW sku_shards AS
SELECT shard, documents FROM docshard.get_shard_distribution('sku.c', '{"count": true}') ORDER BY shard;

-- Within a chunk, to a chunk of another shard, to this node and back; by the shard key or by _id.
SELECT docshard.update_one('sku.c', '{"k": 1}', '{"$inc": {"k": 1}, "$set": {"v": "b"}}');
SELECT docshard.update_one('sku.c', '{"k": 2}', '{"$set": {"k": 15}}') -> 'modifiedCount' AS modified;
TABLE sku_shards;
SELECT docshard.update_one('sku.c', '{"_id": 1}', '{"$set": {"k": 25}}') -> 'modifiedCount' AS modified;
TABLE sku_shards;
SELECT docshard.replace_one('sku.c', '{"k": 25, "_id": 1}', '{"k": 5, "v": "c"}') -> 'modifiedCount' AS modified;
TABLE sku_shards;
SELECT docshard.find_one_and_update('sku.c', '{"k": 5}', '{"$set": {"k": 16}}', '{"returnDocument": "after"}');
SELECT docshard.find_one_and_replace('sku.c', '{"k": 16}', '{"k": 26, "v": "d"}');
SELECT docshard.find('sku.c', '{}', '{"sort": {"_id": 1}}');
TABLE sku_shards;
-- Each is found by its new key, and not by its old one.
SELECT docshard.count_documents('sku.c', '{"k": 16}'), docshard.count_documents('sku.c', '{"k": 26}');

-- An equal value is not another key: the document stays, and is changed.
SELECT docshard.update_one('sku.c', '{"k": 26}', '{"$set": {"k": 26.0}}') -> 'modifiedCount' AS modified;
SELECT docshard.update_one('sku.c', '{"k": 26}', '{"$set": {"k": 26.0}}') -> 'modifiedCount' AS modified;
-- A missing field counts as null.
SELECT docshard.update_one('sku.c', '{"k": 26}', '{"$unset": {"k": 1}}') -> 'modifiedCount' AS modified;
SELECT docshard.find('sku.c', '{"k": null}');
SELECT docshard.update_one('sku.c', '{"k": null}', '{"$set": {"k": 26}}') -> 'modifiedCount' AS modified;

-- A rollback undoes it.
BEGIN;
SELECT docshard.update_one('sku.c', '{"k": 26}', '{"$set": {"k": 12}}') -> 'modifiedCount' AS modified;
SAVEPOINT s;
SELECT docshard.update_one('sku.c', '{"k": 12}', '{"$set": {"k": 3}}') -> 'modifiedCount' AS modified;
TABLE sku_shards;
ROLLBACK TO s;
TABLE sku_shards;
ROLLBACK;
TABLE sku_shards;

-- An update of many does not move documents; an array cannot be a shard key; _id cannot change.
SELECT docshard.update_many('sku.c', '{"k": 26}', '{"$set": {"k": 12}}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.update_one('sku.c', '{"k": 26}', '{"$set": {"k": [12]}}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.update_one('sku.c', '{"k": 26}', '{"$set": {"k": 12, "_id": 9}}');
\echo :LAST_ERROR_SQLSTATE
-- The new key may belong to another document.
SELECT docshard.insert_one('sku.c', '{"_id": 1, "k": 12}') -> 'insertedId' AS id;
SELECT docshard.update_one('sku.c', '{"k": 26}', '{"$set": {"k": 12}}');
\echo :LAST_ERROR_SQLSTATE
-- Found without the shard key, at any shard.
SELECT docshard.update_one('sku.c', '{"v": "d"}', '{"$set": {"k": 13}}') -> 'modifiedCount' AS modified;
SELECT docshard.update_one('sku.c', '{"v": "d"}', '[{"$set": {"k": {"$add": ["$k", 13]}}}]') -> 'modifiedCount' AS modified;

-- An upsert may change the shard key that its filter gives.
SELECT docshard.update_one('sku.c', '{"k": 8, "_id": 8}', '{"$set": {"k": 28}}', '{"upsert": true}') -> 'upsertedId' AS id;
SELECT docshard.update_one('sku.c', '{"_id": 8}', '{"$set": {"k": 29}}', '{"upsert": true}') -> 'modifiedCount' AS modified;
SELECT docshard.update_one('sku.c', '{"v": "e"}', '{"$set": {"k": 14, "_id": 9}}', '{"upsert": true}') -> 'upsertedId' AS id;
SELECT docshard.find('sku.c', '{}', '{"sort": {"_id": 1, "k": 1}}');
TABLE sku_shards;
DROP VIEW sku_shards;
SELECT docshard.drop_database('sku');
