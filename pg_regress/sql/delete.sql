-- Deleting: one, many, all.
SELECT docshard.insert_many('del.c', ARRAY['{"_id": 1, "n": 1}', '{"_id": 2, "n": 1}', '{"_id": 3, "n": 2}']::jsonb[]) -> 'insertedCount' AS inserted;
SELECT docshard.delete_one('del.c', '{"_id": 1}');
SELECT docshard.delete_one('del.c', '{"_id": 1}');
SELECT docshard.delete_one('del.c', '{"_id": 2, "n": 99}');
-- One of several: an unsharded collection is on one shard, so every filter is allowed.
SELECT docshard.insert_one('del.c', '{"_id": 4, "n": 1}');
SELECT docshard.delete_one('del.c', '{"n": 1}');
SELECT docshard.count_documents('del.c', '{"n": 1}');
SELECT docshard.delete_many('del.c', '{"n": {"$lte": 1}}');
SELECT docshard.find('del.c');
SELECT docshard.delete_many('del.c', '{}');
SELECT docshard.delete_many('del.none', '{}');
SELECT docshard.delete_many('del.c', '{}', '{"limit": 1}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.drop_database('del');
