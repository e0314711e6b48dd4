-- Changing one document and returning it.
SELECT docshard.insert_many('fam.c', array_agg(jsonb_build_object('_id', n, 'g', n % 2, 'v', 10 - n))) -> 'insertedCount' AS inserted
  FROM generate_series(1, 5) n;

SELECT docshard.find_one_and_update('fam.c', '{"g": 1}', '{"$inc": {"v": 100}}', '{"sort": {"v": 1}}');
SELECT docshard.find_one_and_update('fam.c', '{"g": 1}', '{"$inc": {"v": 100}}', '{"sort": {"v": 1}, "returnDocument": "after"}');
SELECT docshard.find_one_and_update('fam.c', '{"_id": 2}', '{"$set": {"v": 8}}', '{"returnNewDocument": true, "projection": {"v": 1, "_id": 0}}');
SELECT docshard.find_one_and_replace('fam.c', '{"_id": 2}', '{"g": 0, "w": 1}', '{"returnDocument": "before"}');
SELECT docshard.find_one_and_delete('fam.c', '{"g": 0}', '{"sort": {"_id": -1}, "projection": {"g": 1}}');
SELECT docshard.find_one_and_update('fam.c', '{"_id": 99}', '{"$set": {"v": 8}}') IS NULL AS nothing;
SELECT docshard.find('fam.c', '{}', '{"sort": {"_id": 1}}');

-- An upsert returns null, or the new document.
SELECT docshard.find_one_and_update('fam.c', '{"_id": "n"}', '{"$inc": {"v": 1}, "$setOnInsert": {"new": true}}', '{"upsert": true}') IS NULL AS nothing;
SELECT docshard.find_one_and_update('fam.c', '{"_id": "m", "g": 7}', '{"$inc": {"v": 1}}', '{"upsert": true, "returnDocument": "after"}');
SELECT docshard.find_one_and_replace('fam.c', '{"_id": "r"}', '{"g": 9}', '{"upsert": true, "returnDocument": "after"}');
SELECT docshard.find_one_and_update('fam.c', '{"_id": "m", "g": 8}', '{"$inc": {"v": 1}}', '{"upsert": true}');
\echo :LAST_ERROR_SQLSTATE

-- The form of MongoDB's shell.
SELECT docshard.find_and_modify('fam.counters', '{"query": {"_id": "seq"}, "update": {"$inc": {"n": 1}}, "upsert": true, "new": true}');
SELECT docshard.find_and_modify('fam.counters', '{"query": {"_id": "seq"}, "update": {"$inc": {"n": 1}}, "upsert": true, "new": true}');
SELECT docshard.find_and_modify('fam.counters', '{"query": {"_id": "seq"}, "update": {"n": 10}, "fields": {"n": 1, "_id": 0}}');
SELECT docshard.find_and_modify('fam.c', '{"query": {"l": 2}, "update": {"$set": {"l.$": 5}}}') IS NULL AS nothing;
SELECT docshard.update_one('fam.c', '{"_id": 1}', '{"$set": {"l": [1, 2, 3]}}') -> 'modifiedCount' AS modified;
SELECT docshard.find_and_modify('fam.c', '{"query": {"l": 2}, "update": {"$set": {"l.$": 5}}, "new": true}');
SELECT docshard.find_and_modify('fam.c', '{"query": {"_id": 1}, "update": {"$inc": {"l.$[x]": 10}}, "arrayFilters": [{"x": {"$lt": 4}}], "new": true}');
SELECT docshard.find_and_modify('fam.c', '{"sort": {"_id": -1}, "remove": true, "fields": {"g": 1}}');

-- Invalid combinations.
SELECT docshard.find_and_modify('fam.c', '{"query": {}}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.find_and_modify('fam.c', '{"remove": true, "update": {"a": 1}}');
SELECT docshard.find_and_modify('fam.c', '{"remove": true, "new": true}');
SELECT docshard.find_and_modify('fam.c', '{"remove": true, "upsert": true}');
SELECT docshard.find_and_modify('fam.c', '{"remove": true, "maxTimeMS": 1}');
SELECT docshard.find_and_modify('fam.c', '{"remove": 1}');
SELECT docshard.find_one_and_update('fam.c', '{}', '{"a": 1}');
SELECT docshard.find_one_and_replace('fam.c', '{}', '{"$set": {"a": 1}}');
SELECT docshard.find_one_and_update('fam.c', '{}', '{"$set": {"a": 1}}', '{"returnDocument": "new"}');
SELECT docshard.find_one_and_update('fam.c', '{"_id": 1}', '{"$inc": {"l": 1}}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.find_one_and_delete('fam.c', '{}', '{"upsert": true}');

-- Sharded: by the full shard key, a part of it, or without it.
SELECT docshard.shard_collection('fam.s', '{"owner": 1, "n": 1}');
SELECT docshard.find_one_and_update('fam.s', '{"owner": "ann", "n": 1}', '{"$push": {"m": "hi"}}', '{"upsert": true, "returnDocument": "after", "projection": {"_id": 0}}');
SELECT docshard.find_one_and_update('fam.s', '{"owner": "ann", "n": 1}', '{"$push": {"m": "ho"}}', '{"upsert": true, "returnDocument": "after", "projection": {"_id": 0}}');
SELECT docshard.find_one_and_update('fam.s', '{"owner": "ann"}', '{"$push": {"m": "hu"}}', '{"returnDocument": "after", "projection": {"_id": 0}}');
SELECT docshard.find_one_and_update('fam.s', '{"m": "ho"}', '{"$pull": {"m": "hu"}}', '{"returnDocument": "after", "projection": {"_id": 0}}');
SELECT docshard.find_one_and_update('fam.s', '{"_id": 1}', '{"$push": {"m": "ho"}}', '{"upsert": true, "returnDocument": "after"}');
SELECT docshard.find_one_and_delete('fam.s', '{"_id": 1}');
SELECT docshard.find_one_and_delete('fam.s', '{"owner": "ann", "n": 1}', '{"projection": {"_id": 0, "m": 1}}');
SELECT docshard.count_documents('fam.s');
SELECT docshard.drop_database('fam');
