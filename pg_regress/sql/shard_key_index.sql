-- The shard key has an index of its own, which the primary key of the tables is.
SELECT docshard.shard_collection('ski.c', '{"recipient": 1, "sent": 1}') -> 'ok' AS ok;
SELECT docshard.insert_many('ski.c', array_agg(jsonb_build_object('_id', n, 'recipient', 'r' || n % 3, 'sent', n))) -> 'insertedCount' AS inserted FROM generate_series(1, 9) n;
SELECT name, keys, is_unique FROM docshard.list_indexes('ski.c');
SELECT docshard.run_command('ski', '{"listIndexes": "c"}') #> '{cursor,firstBatch}' AS indexes;
-- It can be hinted.
SELECT docshard.find('ski.c', '{"recipient": "r1", "sent": {"$gt": 3}}', '{"hint": {"recipient": 1, "sent": 1}}');
SELECT docshard.find('ski.c', '{}', '{"hint": "recipient_1_sent_1", "sort": {"recipient": -1, "sent": -1}, "limit": 2}');
SELECT docshard.count_documents('ski.c', '{"sent": {"$gt": 3}}', '{"hint": "recipient_1_sent_1"}');
SELECT docshard.update_one('ski.c', '{"sent": 4}', '{"$set": {"x": 1}}', '{"hint": {"recipient": 1, "sent": 1}}') -> 'modifiedCount' AS modified;
SELECT docshard.find('ski.c', '{}', '{"hint": {"recipient": 1}}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.find('ski.c', '{}', '{"hint": {"recipient": 1, "sent": 1}, "min": {"recipient": "r1", "sent": 1}}');
-- To create it again is no change; the same keys by another name, or other keys by its name, are refused.
SELECT docshard.create_index('ski.c', '{"recipient": 1, "sent": 1}');
SELECT docshard.run_command('ski', '{"createIndexes": "c", "indexes": [{"key": {"recipient": 1, "sent": 1}, "name": "recipient_1_sent_1"}]}');
SELECT docshard.create_index('ski.c', '{"recipient": 1, "sent": 1}', '{"name": "another"}');
SELECT docshard.create_index('ski.c', '{"recipient": 1}', '{"name": "recipient_1_sent_1"}');
-- It cannot be dropped, by its name, its keys or with all the others.
SELECT docshard.drop_index('ski.c', 'recipient_1_sent_1');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.drop_indexes('ski.c', '{"recipient": 1, "sent": 1}');
SELECT docshard.create_index('ski.c', '{"sent": 1}');
SELECT docshard.drop_indexes('ski.c');
SELECT string_agg(name, ' ') AS names FROM docshard.list_indexes('ski.c');
-- A unique index of the same keys takes its place, and gives it back.
SELECT docshard.create_index('ski.c', '{"recipient": 1, "sent": 1}', '{"unique": true}');
SELECT name, is_unique FROM docshard.list_indexes('ski.c');
SELECT docshard.drop_index('ski.c', 'recipient_1_sent_1');
SELECT name, is_unique FROM docshard.list_indexes('ski.c');
-- One that was there before the collection was sharded stays, and serves.
SELECT docshard.insert_one('ski.d', '{"_id": 1, "a": 1}') -> 'insertedId' AS id, docshard.create_index('ski.d', '{"a": "hashed"}');
SELECT docshard.shard_collection('ski.d', '{"a": "hashed"}') -> 'ok' AS ok;
SELECT name, keys FROM docshard.list_indexes('ski.d');
SELECT docshard.drop_indexes('ski.d', '{"a": "hashed"}');
-- That of _id serves {"_id": 1}, which may be called unique; {"_id": "hashed"} has its own.
SELECT docshard.shard_collection('ski.i', '{"_id": 1}', '{"unique": true}') -> 'ok' AS ok, docshard.shard_collection('ski.h', '{"_id": "hashed"}') -> 'ok' AS ok;
SELECT docshard.shard_collection('ski.i', '{"_id": 1}', '{"unique": true}') -> 'ok' AS ok;
SELECT ns, name FROM unnest(ARRAY['ski.i', 'ski.h']) ns, docshard.list_indexes(ns);
SELECT docshard.insert_many('ski.i', ARRAY['{"_id": 1}', '{"_id": 1.0}']::jsonb[]);
\echo :LAST_ERROR_SQLSTATE
-- Documents that lack the key have null there; numInitialChunks is for a collection without documents.
SELECT docshard.insert_many('ski.m', ARRAY['{"_id": 1, "k": 1}', '{"_id": 2}', '{"_id": 3, "k": null}']::jsonb[]) -> 'insertedCount' AS inserted;
SELECT docshard.create_index('ski.m', '{"k": "hashed"}');
SELECT docshard.shard_collection('ski.m', '{"k": "hashed"}', '{"numInitialChunks": 4}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.shard_collection('ski.m', '{"k": "hashed"}') -> 'ok' AS ok;
SELECT docshard.find('ski.m', '{"k": null}', '{"sort": {"_id": 1}}');
SELECT docshard.drop_database('ski');
