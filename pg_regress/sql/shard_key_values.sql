-- Values as shard keys: equal values have the same place whatever their type, null and missing too; documents of every type are found.
CREATE PROCEDURE fill(ns text) LANGUAGE sql AS $$
  SELECT docshard.insert_many(ns, ARRAY[
    '{"_id": 1, "k": 2}', '{"_id": 2, "k": 2.0}', '{"_id": 3, "k": {"$numberDecimal": "2.00"}}', '{"_id": 4, "k": null}', '{"_id": 5}',
    '{"_id": 6, "k": "2"}', '{"_id": 7, "k": {"a": 1, "b": 2}}', '{"_id": 8, "k": {"$date": "2020-01-01T00:00:00Z"}}',
    '{"_id": 9, "k": {"$oid": "5f1d7f3a2b4c6d8e9f0a1b2c"}}', '{"_id": 10, "k": true}', '{"_id": 11, "k": {"$minKey": 1}}',
    '{"_id": 12, "k": {"$maxKey": 1}}', '{"_id": 13, "k": -0.0}', '{"_id": 14, "k": 0}', '{"_id": 15, "k": {"$numberDouble": "NaN"}}',
    '{"_id": 16, "k": {"$binary": {"base64": "AQID", "subType": "00"}}}', '{"_id": 17, "k": {"$timestamp": {"t": 1, "i": 1}}}',
    '{"_id": 18, "k": 1e300}', '{"_id": 19, "k": 9007199254740993}', '{"_id": 20, "k": ""}']::jsonb[])
$$;
SELECT docshard.shard_collection('keys.hashed', '{"k": "hashed"}', '{"numInitialChunks": 12}');
SELECT docshard.shard_collection('keys.range', '{"k": 1}');
SELECT docshard.split_at('keys.range', point)
  FROM unnest(ARRAY['{"k": null}', '{"k": 0}', '{"k": 2}', '{"k": ""}', '{"k": true}']::json[]) point;
CALL fill('keys.hashed');
CALL fill('keys.range');
-- Every document is found by its own key, together with equal ones.
CREATE FUNCTION ids(ns text, filter json) RETURNS text LANGUAGE sql BEGIN ATOMIC
  SELECT coalesce(string_agg(d ->> '_id', ' ' ORDER BY (d ->> '_id')::int), 'none') FROM docshard.find(ns, filter) d;
END;
SELECT f.filter, ids('keys.range', f.filter) AS range, ids('keys.hashed', f.filter) AS hashed
  FROM unnest(ARRAY['{"k": 2}', '{"k": 2.0}', '{"k": {"$numberDecimal": "2"}}', '{"k": null}', '{"k": "2"}', '{"k": {"b": 2, "a": 1}}',
       '{"k": {"$date": {"$numberLong": "1577836800000"}}}', '{"k": {"$oid": "5F1D7F3A2B4C6D8E9F0A1B2C"}}', '{"k": true}',
       '{"k": {"$eq": {"$minKey": 1}}}', '{"k": {"$eq": {"$maxKey": 1}}}', '{"k": 0}', '{"k": {"$numberDouble": "NaN"}}',
       '{"k": {"$binary": {"base64": "AQID", "subType": "00"}}}', '{"k": 1e300}', '{"k": 9007199254740993}', '{"k": 9007199254740992}', '{"k": ""}',
       '{"k": {"$exists": false}}', '{"k": {"$gte": 0}}', '{"k": {"$lt": 2}}', '{"k": {"$gt": ""}}', '{"k": {"$gte": {"a": 1}}}',
       '{"k": {"$in": [2, null, true]}}', '{"k": {"$ne": null}}', '{"k": {"$not": {"$gt": 0}}}', '{"k.a": 1}']::json[]) WITH ORDINALITY AS f (filter, n)
 ORDER BY n;
-- They are sorted in the same order.
SELECT string_agg(d ->> '_id', ' ' ORDER BY n) AS range FROM docshard.find('keys.range', '{}', '{"sort": {"k": 1, "_id": 1}}') WITH ORDINALITY AS r (d, n);
SELECT string_agg(d ->> '_id', ' ' ORDER BY n) AS hashed FROM docshard.find('keys.hashed', '{}', '{"sort": {"k": 1, "_id": 1}}') WITH ORDINALITY AS r (d, n);
-- A skip beyond the end of the result ends at once.
SELECT count(*) FROM docshard.find('keys.hashed', '{}', '{"sort": {"k": 1}, "skip": 9223372036854775807, "limit": 9223372036854775807}');
-- Each can be updated and deleted by its key.
SELECT ns, docshard.update_one(ns, '{"k": {"$numberDecimal": "2"}, "_id": 2}', '{"$set": {"x": 1}}') -> 'modifiedCount' AS modified,
       docshard.delete_one(ns, '{"k": null}') -> 'deletedCount' AS deleted
  FROM (VALUES ('keys.hashed'), ('keys.range')) c (ns);
-- A regular expression can be stored, too, but not as _id. In a condition it is not an equality: it matches strings on every shard. It gives no shard key
-- for an upsert, except for a replacement, which has the value itself.
SELECT docshard.insert_many(ns, ARRAY['{"_id": "r1", "k": {"$regularExpression": {"pattern": "^ab", "options": "i"}}}', '{"_id": "r2", "k": "abc"}', '{"_id": "r3", "k": "xab"}']::jsonb[]) -> 'insertedCount' AS n
  FROM unnest(ARRAY['keys.range', 'keys.hashed']) ns;
SELECT docshard.insert_one('keys.range', '{"_id": {"$regularExpression": {"pattern": "a", "options": ""}}, "k": 1}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.split_at('keys.range', '{"k": "b"}');
SELECT ns, filter, (SELECT string_agg(d ->> '_id', ' ' ORDER BY d ->> '_id') FROM docshard.find(ns, filter) d) AS found
  FROM unnest(ARRAY['keys.range', 'keys.hashed']) ns, unnest(ARRAY['{"k": {"$regex": "^ab", "$options": "i"}}', '{"k": {"$in": [{"$regularExpression": {"pattern": "ab", "options": ""}}]}}',
    '{"k": {"$eq": {"$regularExpression": {"pattern": "^ab", "options": "i"}}}}', '{"k": {"$gte": {"a": 1}}, "_id": {"$gte": "r"}}', '{"k": {"$type": "regex"}}']::json[]) filter;
SELECT docshard.update_many(ns, '{"k": {"$regex": "ab"}}', '{"$set": {"x": 2}}') -> 'modifiedCount' AS modified FROM unnest(ARRAY['keys.range', 'keys.hashed']) ns;
SELECT docshard.update_one('keys.range', '{"k": {"$regex": "zz"}}', '{"$set": {"x": 1}}', '{"upsert": true}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.update_one('keys.range', '{"k": {"$eq": {"$regularExpression": {"pattern": "^ab", "options": "i"}}}}', '{"$set": {"x": 1}}', '{"upsert": true}');
SELECT docshard.update_many('keys.hashed', '{"k": {"$regex": "zz"}}', '{"$set": {"k": {"$regularExpression": {"pattern": "zz", "options": ""}}}}', '{"upsert": true}');
SELECT docshard.replace_one('keys.range', '{"k": {"$regex": "zz"}}', '{"_id": "r4", "k": {"$regularExpression": {"pattern": "zz", "options": ""}}}', '{"upsert": true}') -> 'upsertedId' AS id;
SELECT docshard.move_chunk('keys.range', '{"k": {"$regularExpression": {"pattern": "zz", "options": ""}}}', 'local');
-- It may also be a bound of chunks.
SELECT docshard.split_at('keys.range', '{"k": {"$regularExpression": {"pattern": "zz", "options": ""}}}');
SELECT min FROM docshard.chunks WHERE namespace = 'keys.range' ORDER BY min_key DESC LIMIT 1;
SELECT docshard.update_one(ns, '{"_id": "r1"}', '{"$set": {"k": {"$regularExpression": {"pattern": "zz", "options": "m"}}}}') -> 'modifiedCount' AS modified,
       docshard.delete_many(ns, '{"k": {"$regex": "ab"}}') -> 'deletedCount' AS deleted FROM unnest(ARRAY['keys.range', 'keys.hashed']) ns;
SELECT ns, docshard.find(ns, '{"_id": {"$gte": "r"}}', '{"sort": {"_id": 1}}') FROM unnest(ARRAY['keys.range', 'keys.hashed']) ns;
DROP FUNCTION ids;
DROP PROCEDURE fill;
SELECT docshard.drop_database('keys');
