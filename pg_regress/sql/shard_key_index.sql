-- The shard key has its own index, which is the primary key of the tables.
SELECT docshard.shard_collection('ski.c', '{"recipient": 1, "sent": 1}') -> 'ok' AS ok;
SELECT docshard.insert_many('ski.c', array_agg(jsonb_build_object('_id', n, 'recipient', 'r' || n % 3, 'sent', n))) -> 'insertedCount' AS inserted FROM generate_series(1, 9) n;
SELECT name, keys, is_unique FROM docshard.list_indexes('ski.c');
SELECT docshard.run_command('ski', '{"listIndexes": "c"}') #> '{cursor,firstBatch}' AS indexes;
-- It can be used in a hint.
SELECT docshard.find('ski.c', '{"recipient": "r1", "sent": {"$gt": 3}}', '{"hint": {"recipient": 1, "sent": 1}}');
SELECT docshard.find('ski.c', '{}', '{"hint": "recipient_1_sent_1", "sort": {"recipient": -1, "sent": -1}, "limit": 2}');
SELECT docshard.count_documents('ski.c', '{"sent": {"$gt": 3}}', '{"hint": "recipient_1_sent_1"}');
SELECT docshard.update_one('ski.c', '{"sent": 4}', '{"$set": {"x": 1}}', '{"hint": {"recipient": 1, "sent": 1}}') -> 'modifiedCount' AS modified;
SELECT docshard.find('ski.c', '{}', '{"hint": {"recipient": 1}}');
\echo :LAST_ERROR_SQLSTATE
-- min and max select a range of it.
SELECT docshard.find('ski.c', '{}', '{"hint": {"recipient": 1, "sent": 1}, "min": {"recipient": "r1", "sent": 4}, "max": {"recipient": "r2", "sent": 5}}');
SELECT docshard.find('ski.c', '{"sent": {"$ne": 3}}', '{"hint": "recipient_1_sent_1", "max": {"recipient": "r1", "sent": 1}, "sort": {"sent": -1}}');
SELECT docshard.find('ski.c', '{}', '{"hint": {"recipient": 1, "sent": 1}, "min": {"recipient": "r1"}}');
\echo :LAST_ERROR_SQLSTATE
-- Statistics and plans use its name.
SELECT DISTINCT name, keys::text FROM docshard.index_stats('ski.c') ORDER BY name;
SELECT jsonb_path_query_array(docshard.explain('ski.c', '{"recipient": "r1"}')::jsonb, '$.shards[*].winningPlan.inputStage') AS scans;
SELECT jsonb_object_keys(docshard.run_command('ski', '{"collStats": "c"}') -> 'indexSizes') AS sizes;
-- Creating it again changes nothing; the same keys with another name, or other keys with its name, are refused.
SELECT docshard.create_index('ski.c', '{"recipient": 1, "sent": 1}');
SELECT docshard.run_command('ski', '{"createIndexes": "c", "indexes": [{"key": {"recipient": 1, "sent": 1}, "name": "recipient_1_sent_1"}]}');
SELECT docshard.create_index('ski.c', '{"recipient": 1, "sent": 1}', '{"name": "another"}');
SELECT docshard.create_index('ski.c', '{"recipient": 1}', '{"name": "recipient_1_sent_1"}');
-- It cannot be dropped by its name, by its keys, or with all indexes.
SELECT docshard.drop_index('ski.c', 'recipient_1_sent_1');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.drop_indexes('ski.c', '{"recipient": 1, "sent": 1}');
SELECT docshard.create_index('ski.c', '{"sent": 1}');
SELECT docshard.drop_indexes('ski.c');
SELECT string_agg(name, ' ') AS names FROM docshard.list_indexes('ski.c');
-- Another index that begins with the shard key serves as well: then the first can be dropped, but not the second.
SELECT docshard.create_index('ski.c', '{"recipient": 1, "sent": 1, "x": 1}');
SELECT docshard.drop_index('ski.c', 'recipient_1_sent_1');
SELECT string_agg(name, ' ') AS names FROM docshard.list_indexes('ski.c');
SELECT docshard.find('ski.c', '{}', '{"hint": {"recipient": 1, "sent": 1}}');
SELECT docshard.drop_index('ski.c', 'recipient_1_sent_1');
SELECT docshard.drop_index('ski.c', 'recipient_1_sent_1_x_1');
SELECT docshard.drop_indexes('ski.c');
SELECT string_agg(DISTINCT name, ' ' ORDER BY name) AS names FROM docshard.index_stats('ski.c');
SELECT docshard.find('ski.c', '{"recipient": "r1", "sent": {"$gt": 3}}');
-- A sparse or hidden index, or one with a collation, does not serve.
SELECT docshard.create_index('ski.c', '{"recipient": 1, "sent": 1, "y": 1}', options) FROM unnest(ARRAY['{"sparse": true, "name": "a"}', '{"hidden": true, "name": "b", "partialFilterExpression": {"y": 1}}',
  '{"collation": {"locale": "fr"}, "name": "c"}', '{"hidden": true, "name": "d"}']::json[]) AS options;
SELECT docshard.drop_index('ski.c', 'recipient_1_sent_1_x_1');
SELECT docshard.drop_index('ski.c', name) FROM unnest(ARRAY['a', 'b', 'c', 'd']) AS name;
-- After it is created again, either of the two can be dropped.
SELECT docshard.create_index('ski.c', '{"recipient": 1, "sent": 1}');
SELECT docshard.drop_index('ski.c', 'recipient_1_sent_1_x_1');
SELECT string_agg(name, ' ') AS names FROM docshard.list_indexes('ski.c');
SELECT docshard.drop_index('ski.c', 'recipient_1_sent_1');
SELECT docshard.shard_collection('ski.e', '{"recipient": 1, "sent": 1}') -> 'ok' AS ok;
-- The same keys or name with other options are refused, as in MongoDB. A unique index with another name is a second index.
SELECT docshard.create_index('ski.e', '{"recipient": 1, "sent": 1}', '{"unique": true}');
SELECT docshard.create_index('ski.e', '{"recipient": 1, "sent": 1}', '{"hidden": true}');
SELECT docshard.create_index('ski.e', '{"recipient": 1, "sent": 1}', '{"hidden": true, "name": "h"}');
SELECT docshard.create_index('ski.e', '{"recipient": 1, "sent": 1}', '{"unique": true, "name": "u"}');
SELECT name, is_unique FROM docshard.list_indexes('ski.e');
SELECT docshard.drop_indexes('ski.e', '{"recipient": 1, "sent": 1}');
SELECT docshard.drop_index('ski.e', 'recipient_1_sent_1');
SELECT name, is_unique FROM docshard.list_indexes('ski.e');
SELECT docshard.drop_index('ski.e', 'u');
-- An index that existed before the collection was sharded stays, and serves.
SELECT docshard.insert_one('ski.d', '{"_id": 1, "a": 1}') -> 'insertedId' AS id, docshard.create_index('ski.d', '{"a": "hashed"}');
SELECT docshard.shard_collection('ski.d', '{"a": "hashed"}') -> 'ok' AS ok;
SELECT name, keys FROM docshard.list_indexes('ski.d');
-- A hashed shard key needs no index.
SELECT docshard.drop_indexes('ski.d', '{"a": "hashed"}');
SELECT string_agg(name, ' ') AS names FROM docshard.list_indexes('ski.d');
SELECT docshard.find('ski.d', '{"a": 1}');
-- An index that begins with the shard key serves, whatever its name, also for an empty collection. The shard key then gets no index of its own.
SELECT docshard.create_indexes('ski.p', '[{"key": {"a": 1, "b": 1}}, {"key": {"a": 1}, "name": "fr", "collation": {"locale": "fr"}}]');
SELECT docshard.create_index('ski.q', '{"a": 1}', '{"name": "mine"}'), docshard.insert_one('ski.q', '{"a": 1}') IS NOT NULL AS inserted, docshard.create_index('ski.q', '{"a": 1, "b": 1}');
SELECT ns, docshard.shard_collection(ns, '{"a": 1}') -> 'ok' AS ok FROM unnest(ARRAY['ski.p', 'ski.q']) ns;
SELECT ns, string_agg(name, ' ') AS names FROM unnest(ARRAY['ski.p', 'ski.q']) ns, docshard.list_indexes(ns) GROUP BY ns ORDER BY ns;
SELECT docshard.drop_index('ski.p', 'a_1_b_1');
SELECT docshard.create_index('ski.p', '{"a": 1}'), docshard.drop_index('ski.p', 'a_1_b_1');
SELECT docshard.drop_indexes('ski.q', '"mine"');
SELECT docshard.find('ski.q', '{"a": 1}', '{"hint": "a_1_b_1", "projection": {"_id": 0}}');
-- A hidden or descending index, or one with a collation, does not serve. If it has the default name, the collection cannot be sharded.
SELECT docshard.create_index('ski.r', '{"a": -1, "b": 1}'), docshard.create_index('ski.r', '{"a": 1, "b": 1}', '{"hidden": true}'), docshard.shard_collection('ski.r', '{"a": 1}') -> 'ok' AS ok;
SELECT string_agg(name, ' ') AS names FROM docshard.list_indexes('ski.r');
SELECT docshard.create_index('ski.s', '{"a": 1}', '{"collation": {"locale": "fr"}}'), docshard.create_index('ski.t', '{"a": 1}');
SELECT docshard.shard_collection('ski.s', '{"a": 1}');
\echo :LAST_ERROR_SQLSTATE
-- For a unique shard key an existing index with exactly its keys must be unique.
SELECT docshard.shard_collection('ski.t', '{"a": 1}', '{"unique": true}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.drop_index('ski.t', 'a_1'), docshard.create_index('ski.t', '{"a": 1}', '{"unique": true}'), docshard.shard_collection('ski.t', '{"a": 1}', '{"unique": true}') -> 'ok' AS ok;
SELECT name, is_unique FROM docshard.list_indexes('ski.t');
-- That index makes the shard key unique, so another one that begins with the shard key cannot replace it.
SELECT docshard.create_index('ski.t', '{"a": 1, "b": 1}');
SELECT docshard.drop_index('ski.t', 'a_1');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.drop_index('ski.t', 'a_1_b_1');
-- The index on _id serves {"_id": 1}, which may be called unique; {"_id": "hashed"} has its own index.
SELECT docshard.shard_collection('ski.i', '{"_id": 1}', '{"unique": true}') -> 'ok' AS ok, docshard.shard_collection('ski.h', '{"_id": "hashed"}') -> 'ok' AS ok;
SELECT docshard.shard_collection('ski.i', '{"_id": 1}', '{"unique": true}') -> 'ok' AS ok;
SELECT ns, name FROM unnest(ARRAY['ski.i', 'ski.h']) ns, docshard.list_indexes(ns);
SELECT docshard.find('ski.i', '{}', '{"hint": "_id_", "min": {"_id": 1}, "max": {"_id": 5}}');
SELECT docshard.find('ski.h', '{}', '{"hint": {"_id": "hashed"}, "min": {"_id": 1}}');
SELECT docshard.drop_indexes('ski.h');
SELECT ns, name FROM unnest(ARRAY['ski.i', 'ski.h']) ns, docshard.list_indexes(ns);
SELECT docshard.insert_many('ski.i', ARRAY['{"_id": 1}', '{"_id": 1.0}']::jsonb[]);
\echo :LAST_ERROR_SQLSTATE
-- Documents without the key have null there; numInitialChunks is only for a collection without documents.
SELECT docshard.insert_many('ski.m', ARRAY['{"_id": 1, "k": 1}', '{"_id": 2}', '{"_id": 3, "k": null}']::jsonb[]) -> 'insertedCount' AS inserted;
SELECT docshard.create_index('ski.m', '{"k": "hashed"}');
SELECT docshard.shard_collection('ski.m', '{"k": "hashed"}', '{"numInitialChunks": 4}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.shard_collection('ski.m', '{"k": "hashed"}') -> 'ok' AS ok;
SELECT docshard.find('ski.m', '{"k": null}', '{"sort": {"_id": 1}}');
SELECT docshard.drop_database('ski');
