-- Documents of a sharded collection: missing key fields, arrays, changes of the key, writes without the key.
SELECT docshard.shard_collection('rules.c', '{"name": 1, "n": 1}');
SELECT docshard.split_at('rules.c', '{"name": "m"}');
SELECT docshard.insert_many('rules.c', ARRAY['{"_id": 1, "name": "ann", "n": 1, "v": 0}', '{"_id": 2, "name": "zoe", "n": 1, "v": 0}',
                                             '{"_id": 3, "n": 5}', '{"_id": 4, "name": null}']::jsonb[]) -> 'insertedCount' AS inserted;

-- A missing field counts as null, for inserts and for filters.
SELECT docshard.find('rules.c', '{"name": null}', '{"sort": {"_id": 1}}');
SELECT docshard.insert_one('rules.c', '{"_id": 4, "n": null}');
\echo :LAST_ERROR_SQLSTATE
-- Arrays are refused, also on the path of the field; so is undefined.
SELECT docshard.insert_one('rules.c', '{"_id": 5, "name": ["a"], "n": 1}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.insert_one('rules.c', '{"_id": 5, "name": {"$undefined": true}}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.insert_one('rules.c', jsonb_build_object('_id', 5, 'name', repeat('x', 5000)));
\echo :LAST_ERROR_SQLSTATE

-- An update of many documents cannot change shard keys; one of a single document can (see shard_key_updates), but never its _id.
SELECT docshard.update_many('rules.c', '{}', '{"$inc": {"n": 1}}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.update_many('rules.c', '{"name": "ann"}', '{"$set": {"n": 1.0, "v": 0}}') -> 'matchedCount' AS matched;
SELECT docshard.update_one('rules.c', '{"_id": 1}', '{"$set": {"_id": 7}}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.replace_one('rules.c', '{"name": "ann", "n": 1}', '{"_id": 7, "name": "ann", "n": 1}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.update_one('rules.c', '{"_id": 1}', '{"$set": {"name": "ann", "v": 1}}') -> 'modifiedCount' AS modified;
SELECT docshard.replace_one('rules.c', '{"_id": 2}', '{"name": "zoe", "n": 1, "v": 2}') -> 'modifiedCount' AS modified;

-- A write to one document, by the full shard key, a part of it, a range, or without it (see without_shard_key).
SELECT docshard.update_one('rules.c', '{"name": "ann", "n": 1}', '{"$set": {"v": 3}}') -> 'modifiedCount' AS modified;
SELECT docshard.update_one('rules.c', '{"name": "ann"}', '{"$set": {"v": 4}}') -> 'modifiedCount' AS modified;
SELECT docshard.update_one('rules.c', '{"v": 4}', '{"$set": {"v": 3}}') -> 'modifiedCount' AS modified;
SELECT docshard.replace_one('rules.c', '{"name": {"$gt": "a", "$lt": "b"}}', '{"name": "ann", "n": 2, "v": 3}') -> 'modifiedCount' AS modified;
-- A replacement changes the shard key like any update; omitted fields are null.
SELECT docshard.replace_one('rules.c', '{"v": 3}', '{"v": 3, "r": true}') -> 'modifiedCount' AS modified;
SELECT docshard.find('rules.c', '{"name": null, "n": null, "r": true}');
SELECT docshard.replace_one('rules.c', '{"r": true}', '{"name": "ann", "n": 1, "v": 3, "r": true}') -> 'modifiedCount' AS modified;
SELECT docshard.delete_one('rules.c', '{"v": 33}') -> 'deletedCount' AS deleted;
SELECT docshard.delete_one('rules.c', '{"_id": {"$gt": 3}}') -> 'deletedCount' AS deleted;
-- Writes to many documents go to all shards.
SELECT docshard.update_many('rules.c', '{"v": {"$gt": 0}}', '{"$set": {"seen": true}}') -> 'modifiedCount' AS modified;
SELECT docshard.delete_many('rules.c', '{"n": 5}') -> 'deletedCount' AS deleted;
SELECT docshard.find('rules.c', '{}', '{"sort": {"_id": 1}}');

-- An upsert of many must give the full shard key; one of a single document need not, and missing fields are null.
SELECT docshard.update_one('rules.c', '{"_id": 8}', '{"$set": {"v": 1, "name": "new"}}', '{"upsert": true}') -> 'upsertedId' AS id;
SELECT docshard.update_one('rules.c', '{"_id": 8}', '{"$set": {"v": 2, "name": "new"}}', '{"upsert": true}') -> 'matchedCount' AS matched;
SELECT docshard.update_many('rules.c', '{"v": 99}', '{"$set": {"v": 1}}', '{"upsert": true}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.update_one('rules.c', '{"_id": 9, "name": "new", "n": 2}', '{"$set": {"v": 1}}', '{"upsert": true}') -> 'upsertedId' AS id;
SELECT docshard.replace_one('rules.c', '{"name": "new", "n": 3}', '{"_id": 10, "name": "new", "n": 3}', '{"upsert": true}') -> 'upsertedId' AS id;
SELECT docshard.find('rules.c', '{"name": "new"}', '{"sort": {"_id": 1}}');
SELECT docshard.drop_database('rules');
