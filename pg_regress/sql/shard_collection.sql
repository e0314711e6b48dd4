-- Sharding empty collections: range, compound, hashed, unique; the same call again is no change.
SELECT docshard.shard_collection('shc.range', '{"name": 1}');
SELECT docshard.shard_collection('shc.compound', '{"recipient": 1, "sent": 1}');
SELECT docshard.shard_collection('shc.hashed', '{"user": "hashed"}', '{"numInitialChunks": 4}');
SELECT docshard.shard_collection('shc.mixed', '{"country": 1, "user": "hashed"}');
SELECT docshard.shard_collection('shc.dotted', '{"a.b": 1}', '{"unique": true}');
SELECT docshard.shard_collection('shc.ids', '{"_id": 1}');
SELECT namespace, key, "unique", chunks FROM docshard.collections WHERE database = 'shc' ORDER BY namespace;
SELECT namespace, min, max FROM docshard.chunks WHERE namespace LIKE 'shc.%' ORDER BY namespace, min_key;

-- Sharding it again: the same key and options are accepted, others are refused.
SELECT docshard.shard_collection('shc.range', '{"name": 1}');
SELECT docshard.shard_collection('shc.range', '{"name": 1.0}');
SELECT docshard.shard_collection('shc.range', '{"name": "hashed"}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.shard_collection('shc.range', '{"name": 1}', '{"unique": true}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.shard_collection('shc.compound', '{"sent": 1, "recipient": 1}');
\echo :LAST_ERROR_SQLSTATE

-- unique: the shard key alone is unique, and has its own index.
SELECT docshard.insert_one('shc.dotted', '{"_id": 1, "a": {"b": 1}}');
SELECT docshard.insert_one('shc.dotted', '{"_id": 2, "a": {"b": 1}}');
\echo :LAST_ERROR_SQLSTATE
SELECT * FROM docshard.list_indexes('shc.dotted');
SELECT docshard.drop_index('shc.dotted', 'a.b_1');
\echo :LAST_ERROR_SQLSTATE
-- Otherwise shard key and _id together are unique: the same _id may occur with another shard key.
SELECT docshard.insert_many('shc.range', ARRAY['{"_id": 1, "name": "a"}', '{"_id": 1, "name": "b"}']::jsonb[]) -> 'insertedCount' AS inserted;
SELECT docshard.insert_one('shc.range', '{"_id": 1, "name": "b"}');
\echo :LAST_ERROR_SQLSTATE
-- Other unique indexes start with the shard key.
SELECT docshard.create_index('shc.range', '{"email": 1}', '{"unique": true}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.create_index('shc.hashed', '{"user": 1}', '{"unique": true}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.create_index('shc.range', '{"name": 1, "email": 1}', '{"unique": true}');
-- A unique index that the key does not begin is refused for an empty collection, too; and no index may have to be created implicitly.
SELECT docshard.create_collection('shc.empty') -> 'ok' AS ok;
SELECT docshard.create_index('shc.empty', '{"old": 1, "a": 1}', '{"unique": true}');
SELECT docshard.shard_collection('shc.empty', '{"a": 1}');
SELECT docshard.drop_index('shc.empty', 'old_1_a_1');
SELECT docshard.create_index('shc.empty', '{"a": 1, "b": 1}', '{"sparse": true}');
SELECT docshard.shard_collection('shc.empty', '{"a": 1}', '{"implicitlyCreateIndex": false}');
SELECT docshard.create_index('shc.empty', '{"a": 1}');
SELECT docshard.shard_collection('shc.empty', '{"a": 1}', '{"implicitlyCreateIndex": false}') -> 'ok' AS ok;
SELECT docshard.shard_collection('shc.none', '{"a": 1}', '{"implicitlyCreateIndex": false}');
SELECT docshard.shard_collection('shc.none', '{"a": "hashed"}', '{"implicitlyCreateIndex": false}') -> 'ok' AS ok;
SELECT docshard.drop_database('shc');
