-- Collations of collections and of indexes.
\set VERBOSITY default
SELECT docshard.create_collection('own.c', '{"collation": {"locale": "en", "strength": 2}}');
SELECT docshard.insert_many('own.c', ARRAY['{"_id": "a", "name": "Ada", "n": 1}', '{"_id": "B", "name": "bob", "n": 2}',
  '{"_id": "c", "name": "ADA", "n": 3}', '{"_id": 4, "name": 4, "n": 4}']::jsonb[]) -> 'insertedCount' AS inserted;

-- A statement without a collation uses the collection's in all its parts.
SELECT docshard.find('own.c', '{"name": "ada"}', '{"sort": {"_id": 1}}');
SELECT docshard.find('own.c');
SELECT docshard.find('own.c', '{}', '{"sort": {"name": -1, "n": 1}, "projection": {"name": 1, "is": {"$eq": ["$name", "BOB"]}}}');
SELECT docshard.find_one('own.c', '{"_id": "A"}');
SELECT docshard.count_documents('own.c', '{"name": {"$gt": "aDa"}}');
SELECT docshard.distinct('own.c', 'name');
SELECT docshard.update_one('own.c', '{"_id": "b"}', '{"$set": {"found": true}}');
SELECT docshard.update_many('own.c', '{"name": "ada"}', '{"$inc": {"n": 10}}') -> 'modifiedCount' AS modified;
SELECT docshard.find_one_and_update('own.c', '{"name": "BOB"}', '{"$unset": {"found": 1}}', '{"returnDocument": "after"}');
SELECT docshard.find_and_modify('own.c', '{"query": {"name": "BOB"}, "update": {"$inc": {"n": 1}}, "new": true}');
SELECT docshard.bulk_write('own.c', '[{"updateOne": {"filter": {"name": "Bob"}, "update": {"$set": {"bulk": 1}}}}]') -> 'modifiedCount' AS modified;
SELECT docshard.run_command('own', '{"count": "c", "query": {"name": "ada"}}');
SELECT docshard.run_command('own', '{"find": "c", "filter": {"name": "bOB"}}') -> 'cursor' -> 'firstBatch' AS found;
SELECT docshard.run_command('own', '{"update": "c", "updates": [{"q": {"name": "bOB"}, "u": {"$set": {"cmd": 1}}}]}') -> 'nModified' AS modified;
SELECT docshard.run_command('own', '{"distinct": "c", "key": "name", "query": {"name": "bOB"}}') -> 'values' AS "values";
SELECT docshard.run_command('own', '{"findAndModify": "c", "query": {"name": "bOB"}, "update": {"$unset": {"cmd": 1}}}') -> 'lastErrorObject' AS n;
SELECT docshard.delete_one('own.c', '{"name": "adA", "n": 13}');
-- A statement with a collation uses that.
SELECT docshard.count_documents('own.c', '{"name": "ada"}', '{"collation": {"locale": "simple"}}');
SELECT docshard.count_documents('own.c', '{"name": "ADA"}', '{"collation": {}}');
-- Lists show it.
SELECT namespace, "collation" FROM docshard.collections WHERE namespace = 'own.c';
SELECT jsonb_pretty(docshard.run_command('own', '{"listCollections": 1}') #> '{cursor,firstBatch,0,options}');

-- Indexes have the collection's collation, or their own. A string condition uses only an index with the same collation.
SELECT docshard.create_index('own.c', '{"name": 1}');
SELECT docshard.create_index('own.c', '{"name": 1}', '{"name": "bytes", "collation": {"locale": "simple"}}');
SELECT docshard.create_index('own.c', '{"name": 1}', '{"name": "name_1", "collation": {"locale": "fr"}}');
SELECT docshard.create_index('own.c', '{"name": 1}', '{"name": "bytes", "collation": {"locale": "simple"}}');
SELECT name, keys, "collation" FROM docshard.list_indexes('own.c') ORDER BY name;
SELECT name, "collation" FROM docshard.indexes WHERE namespace = 'own.c' ORDER BY name;
SELECT jsonb_pretty(docshard.run_command('own', '{"listIndexes": "c"}') #> '{cursor,firstBatch,1}');
CREATE FUNCTION pg_temp.plan(filter json, options json DEFAULT '{}') RETURNS TABLE (stage jsonb, index jsonb) AS $$
  SELECT plan #> '{inputStage,stage}', jsonb_path_query_first(plan, 'strict $.**.indexName')
    FROM jsonb_path_query(docshard.explain('own.c', filter, options)::jsonb, '$.shards[*].winningPlan') AS plan
$$ LANGUAGE sql;
SET enable_seqscan = off;
SELECT * FROM pg_temp.plan('{"name": "ada"}');
SELECT * FROM pg_temp.plan('{"name": {"$in": ["ada", "BOB"]}}');
SELECT * FROM pg_temp.plan('{"name": "ada"}', '{"collation": {"locale": "simple"}}');
SELECT * FROM pg_temp.plan('{"name": 4}', '{"collation": {"locale": "fr"}}');
SELECT docshard.find('own.c', '{"name": "ada"}');
SELECT docshard.find('own.c', '{"name": "ada"}', '{"hint": "name_1", "collation": {"locale": "simple"}}');
SELECT docshard.find('own.c', '{"name": "Ada"}', '{"hint": "name_1", "collation": {"locale": "simple"}}');
SELECT docshard.find('own.c', '{"name": {"$regex": "^b"}}', '{"hint": "name_1"}');
RESET enable_seqscan;
-- A value that is too long for the b-tree only under a collation is outside the b-tree once.
SELECT docshard.insert_one('own.c', jsonb_build_object('_id', 9, 'name', repeat('xy', 350))) -> 'insertedId' AS id;
SELECT docshard.find('own.c', '{}', '{"sort": {"name": 1}, "limit": 10, "projection": {"_id": 1}}');
SELECT docshard.count_documents('own.c', '{"name": {"$gt": "x"}}');
-- A unique index is unique under its collation.
SELECT docshard.create_index('own.u', '{"mail": 1}', '{"unique": true, "collation": {"locale": "en", "strength": 1}}');
SELECT docshard.insert_one('own.u', '{"_id": 1, "mail": "jose"}');
SELECT docshard.insert_one('own.u', '{"_id": 2, "mail": "JOSÉ"}');
SELECT docshard.insert_one('own.u', '{"_id": 2, "mail": "josef"}');
-- A partial index compares with its collation, too.
SELECT docshard.create_index('own.p', '{"n": 1}', '{"partialFilterExpression": {"state": "open"}, "collation": {"locale": "en", "strength": 2}}');
SELECT docshard.insert_many('own.p', ARRAY['{"_id": 1, "n": 1, "state": "OPEN"}', '{"_id": 2, "n": 1, "state": "shut"}']::jsonb[]) -> 'insertedCount' AS inserted;
SELECT docshard.find('own.p', '{"n": 1, "state": "Open"}', '{"hint": "n_1", "collation": {"locale": "en", "strength": 2}}');
SELECT docshard.find('own.p', '{"n": 1, "state": "OPEN"}', '{"hint": "n_1"}');

-- Sharding: shard keys compare by bytes, and the caller must confirm that.
SELECT docshard.create_collection('own.s', '{"collation": {"locale": "en", "strength": 2}}');
SELECT docshard.create_index('own.s', '{"k": 1}');
SELECT docshard.shard_collection('own.s', '{"k": 1}');
SELECT docshard.shard_collection('own.s', '{"k": 1}', '{"collation": {"locale": "en"}}');
-- The shard key's index compares by bytes, so it needs another name than the existing index.
SELECT docshard.shard_collection('own.s', '{"k": 1}', '{"collation": {"locale": "simple"}}');
SELECT docshard.drop_index('own.s', 'k_1') -> 'ok' AS ok, docshard.create_index('own.s', '{"k": 1}', '{"name": "k_en"}');
SELECT docshard.shard_collection('own.s', '{"k": 1}', '{"collation": {"locale": "simple"}}');
SELECT docshard.insert_many('own.s', ARRAY['{"_id": "x", "k": "A"}', '{"_id": "y", "k": "a"}', '{"_id": 3, "k": 5}']::jsonb[]) -> 'insertedCount' AS inserted;
SELECT docshard.find('own.s', '{"k": "a"}', '{"sort": {"_id": 1}}');
SELECT docshard.update_one('own.s', '{"_id": "X"}', '{"$set": {"n": 1}}');
SELECT docshard.update_one('own.s', '{"_id": "X"}', '{"$set": {"n": 1}}', '{"collation": {"locale": "fr"}}');
SELECT docshard.delete_one('own.s', '{"_id": "Y"}');
SELECT docshard.update_one('own.s', '{"k": "a"}', '{"$set": {"n": 2}}');
SELECT docshard.find('own.s', '{}', '{"sort": {"_id": 1}}');
SELECT docshard.create_index('own.s', '{"k": 1, "z": 1}', '{"unique": true}');
SELECT docshard.create_collection('own.t', '{"collation": {"locale": "en"}}') -> 'ok' AS ok;
SELECT docshard.insert_one('own.t', '{"_id": 1, "k": 1}') -> 'insertedId' AS id;
SELECT docshard.create_index('own.t', '{"k": 1}');
SELECT docshard.shard_collection('own.t', '{"k": 1}', '{"collation": {"locale": "simple"}}');
SELECT docshard.create_index('own.t', '{"k": 1}', '{"name": "k", "collation": {"locale": "simple"}}');
SELECT docshard.shard_collection('own.t', '{"k": 1}', '{"collation": {"locale": "simple"}}') -> 'ok' AS ok;

-- The same options use each collection's own collation, and the time of each statement.
SELECT docshard.insert_many('own.plain', ARRAY['{"_id": 1, "k": "b"}', '{"_id": 2, "k": "C"}', '{"_id": 3, "k": "a"}']::jsonb[]) ->> 'insertedCount' AS inserted;
SELECT docshard.create_collection('own.folded', '{"collation": {"locale": "en", "strength": 2}}') -> 'ok' AS ok;
SELECT docshard.insert_many('own.folded', ARRAY['{"_id": 1, "k": "b"}', '{"_id": 2, "k": "C"}', '{"_id": 3, "k": "a"}']::jsonb[]) ->> 'insertedCount' AS inserted;
SELECT docshard.find('own.plain', '{}', '{"sort": {"k": 1}}');
SELECT docshard.find('own.folded', '{}', '{"sort": {"k": 1}}');
SELECT docshard.find('own.plain', '{}', '{"sort": {"k": 1}}');
SELECT docshard.find_one('own.plain', '{}', '{"projection": {"now": "$$NOW"}}') -> 'now' AS before FROM pg_sleep(0.002) \gset
SELECT docshard.find_one('own.plain', '{}', '{"projection": {"now": "$$NOW"}}') -> 'now' <> :'before' AS later FROM pg_sleep(0.002);

-- Refused.
SELECT docshard.create_collection('own.x', '{"collation": {"locale": "xx"}}');
SELECT docshard.create_collection('own.x', '{"collation": "en"}');
SELECT docshard.create_index('own.x', '{"a": 1}', '{"collation": {"strength": 2}}');
SELECT docshard.create_index('own.x', '{"$setting": {}, "$of": {"a": 1}}');
SELECT docshard.create_index('own.c', '{"_id": 1}', '{"collation": {"locale": "fr"}}');
SELECT docshard.create_index('own.c', '{"_id": 1}');
SELECT docshard.run_command('own', '{"create": "x", "collation": {"locale": "en", "strength": 7}}');
SELECT docshard.drop_database('own');
