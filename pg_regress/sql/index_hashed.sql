-- Hashed indexes contain the hash of one field, which serves equality; a compound one contains the other fields by value.
SELECT docshard.insert_many('hsh.c', array_agg(d)) -> 'insertedCount' AS inserted FROM (
  SELECT jsonb_build_object('_id', n, 'a', CASE WHEN n % 5 = 0 THEN to_jsonb('s' || n) ELSE to_jsonb(n) END, 'b', n % 10, 'c', repeat('x', n % 7 * 300)) AS d
    FROM generate_series(1, 2000) n UNION ALL VALUES ('{"_id": 0, "a": null}'::jsonb), ('{"_id": -1}'), ('{"_id": -2, "a": {"x": 1}}'), ('{"_id": -3, "a": 7.0}')) AS documents (d);
SELECT docshard.create_index('hsh.c', '{"a": "hashed"}'), docshard.create_index('hsh.c', '{"b": -1, "a": "hashed", "c": 1}');
SELECT name, keys FROM docshard.list_indexes('hsh.c');
DO $$ BEGIN EXECUTE (SELECT 'ANALYZE ' || "table" FROM docshard.collections WHERE namespace = 'hsh.c'); END $$;
-- Equality and $in with any value use the index; ranges do not.
SELECT filter, ids, jsonb_path_query_first(explain::jsonb, '$.**.indexName') #>> '{}' AS index
  FROM unnest(ARRAY['{"a": 7}', '{"a": "s10"}', '{"a": null}', '{"a": {"$exists": false}}', '{"a": {"x": 1}}', '{"a": {"$in": [1, "s5", 7.0, null]}}', '{"a": "none"}',
                    '{"a": {"$gt": 1998}}', '{"a": {"$regex": "^s199"}}', '{"a": [7]}', '{"b": 3, "a": 13}', '{"b": 3, "a": 13, "c": ""}', '{"b": 9, "a": 1999, "c": {"$gte": "x"}}']::json[]) AS filter,
       LATERAL (SELECT string_agg(d ->> '_id', ' ' ORDER BY (d ->> '_id')::int) FROM docshard.find('hsh.c', filter) d) AS f (ids),
       LATERAL docshard.explain('hsh.c', filter, '{}', 'queryPlanner') AS explain;
-- Hints by keys and by name. A sort never uses the order of hashes.
SELECT d -> '_id' AS id FROM docshard.find('hsh.c', '{"a": {"$in": [11, 3, 7]}}', '{"hint": {"a": "hashed"}, "sort": {"a": -1, "_id": 1}, "limit": 3}') d;
SELECT docshard.count_documents('hsh.c', '{"b": 3, "c": {"$lt": "y"}}', '{"hint": "b_-1_a_hashed_c_1"}');
SELECT docshard.find('hsh.c', '{"a": 7}', '{"hint": {"a": 1}}');
-- Arrays are refused, at the field, on its path, and in the other fields.
SELECT docshard.insert_one('hsh.c', '{"a": [1]}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.insert_one('hsh.c', '{"a": 1, "c": []}');
SELECT docshard.update_one('hsh.c', '{"_id": 3}', '{"$set": {"b": [1]}}');
SELECT docshard.insert_many('hsh.d', ARRAY['{"_id": 1, "a": {"b": 1}}', '{"_id": 2, "a": [{"b": 1}]}']::jsonb[]) -> 'insertedCount' AS inserted;
SELECT docshard.create_index('hsh.d', '{"a.b": "hashed"}');
-- Documents that a partial index does not contain may have arrays.
SELECT docshard.create_index('hsh.d', '{"a.b": "hashed"}', '{"partialFilterExpression": {"_id": {"$lt": 2}}}');
SELECT docshard.find('hsh.d', '{"a.b": 1, "_id": {"$lt": 2}}', '{"hint": "a.b_hashed"}');
SELECT docshard.find('hsh.d', '{"a.b": 1}', '{"sort": {"_id": 1}}');
-- Invalid combinations for a hashed index.
SELECT docshard.create_index('hsh.c', '{"z": "hashed"}', '{"unique": true}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.create_index('hsh.c', '{"y": "hashed", "z": "hashed"}');
SELECT docshard.create_index('hsh.c', '{"z": "hashed"}', '{"expireAfterSeconds": 5}');
SELECT docshard.create_index('hsh.c', '{"z": "hash"}');
-- It is a different index from the ranged one; creating it again changes nothing.
SELECT docshard.create_index('hsh.c', '{"a": 1}'), docshard.create_index('hsh.c', '{"a": "hashed"}');
SELECT docshard.create_index('hsh.c', '{"a": "hashed"}', '{"name": "other"}');
SELECT docshard.create_index('hsh.c', '{"s": "hashed"}', '{"sparse": true, "hidden": true, "collation": {"locale": "en", "strength": 2}, "name": "s"}');
SELECT jsonb_path_query(docshard.run_command('hsh', '{"listIndexes": "c"}')::jsonb, '$.cursor.firstBatch[*] ? (@.name == "s")');
-- A hashed shard key needs no other index than this one.
SELECT docshard.drop_index('hsh.c', 'a_hashed');
SELECT docshard.shard_collection('hsh.c', '{"a": "hashed"}');
SELECT docshard.create_index('hsh.c', '{"a": "hashed"}');
SELECT docshard.update_many('hsh.c', '{"a": {"$exists": false}}', '{"$set": {"a": null}}') -> 'modifiedCount' AS modified;
SELECT docshard.shard_collection('hsh.c', '{"a": "hashed"}');
SELECT docshard.count_documents('hsh.c', '{"a": {"$in": [7, null, "s10"]}}');
SELECT docshard.drop_indexes('hsh.c', '{"b": -1, "a": "hashed", "c": 1}');
SELECT docshard.drop_database('hsh');
