-- The command aggregate: a first batch, getMore, and the same answers as the function.
CREATE FUNCTION pipe(command text, VARIADIC args text[] DEFAULT '{}') RETURNS jsonb
LANGUAGE sql AS $$ SELECT docshard.run_command('pipes', format(command, VARIADIC args)::json) $$;
SELECT docshard.shard_collection('pipes.c', '{"_id": "hashed"}');
SELECT docshard.insert_many('pipes.c', array_agg(jsonb_build_object('_id', n, 'a', n % 3))) ->> 'insertedCount' AS inserted
FROM generate_series(1, 250) AS n;
SELECT pipe('{"aggregate": "c", "pipeline": [{"$group": {"_id": "$a", "n": {"$sum": 1}}}, {"$sort": {"_id": 1}}], "cursor": {}}');
SELECT pipe('{"aggregate": "nothing", "pipeline": [], "cursor": {}}');

-- The first batch has 101 documents unless the cursor says otherwise.
SELECT pipe('{"aggregate": "c", "pipeline": [{"$sort": {"_id": 1}}], "cursor": {}}') -> 'cursor' AS cursor \gset
SELECT jsonb_array_length(:'cursor'::jsonb -> 'firstBatch'), :'cursor'::jsonb -> 'firstBatch' -> 100 AS last, :'cursor'::jsonb ->> 'id' AS id,
  :'cursor'::jsonb ->> 'ns' AS ns \gset
SELECT :'last' AS last, :'ns' AS ns, :'id'::bigint > 0 AS open;
SELECT pipe('{"getMore": %s, "collection": "c", "batchSize": 2}', :'id') #- '{cursor,id}';
SELECT pipe('{"getMore": %s, "collection": "c"}', :'id') -> 'cursor' AS cursor \gset
SELECT jsonb_array_length(:'cursor'::jsonb -> 'nextBatch'), :'cursor'::jsonb -> 'nextBatch' -> -1 AS last, :'cursor'::jsonb ->> 'id' AS id;
SELECT pipe('{"getMore": %s, "collection": "c"}', :'id') ->> 'codeName' AS answer;
-- 0 opens it only; killCursors closes it.
SELECT pipe('{"aggregate": "c", "pipeline": [{"$sort": {"_id": 1}}], "cursor": {"batchSize": 0}}') -> 'cursor' AS cursor \gset
SELECT :'cursor'::jsonb -> 'firstBatch' AS batch, :'cursor'::jsonb ->> 'id' AS id \gset
SELECT :'batch' AS batch;
SELECT pipe('{"getMore": %s, "collection": "c", "batchSize": 1}', :'id') #- '{cursor,id}';
SELECT replace(pipe('{"killCursors": "c", "cursors": [%s]}', :'id')::text, :'id', 'N');
SELECT pipe('{"getMore": %s, "collection": "c"}', :'id') ->> 'codeName' AS answer;
SELECT count(*) FROM pg_cursors WHERE name LIKE 'docshard%';

-- An error in the middle of the documents: in the first batch, in a later one, and at the commit that reads the rest.
SELECT pipe('{"aggregate": "c", "pipeline": [{"$sort": {"_id": 1}}, {"$project": {"x": {"$divide": [1, {"$subtract": ["$_id", 5]}]}}}], "cursor": {}}') - 'errmsg';
SELECT pipe('{"aggregate": "c", "pipeline": [{"$sort": {"_id": 1}}, {"$project": {"x": {"$divide": [1, {"$subtract": ["$_id", 5]}]}}}], "cursor": {"batchSize": 2}}')
  -> 'cursor' -> 'firstBatch' AS batch;
BEGIN;
SELECT pipe('{"aggregate": "c", "pipeline": [{"$sort": {"_id": 1}}, {"$project": {"x": {"$divide": [1, {"$subtract": ["$_id", 5]}]}}}], "cursor": {"batchSize": 2}}')
  -> 'cursor' AS cursor \gset
SELECT :'cursor'::jsonb -> 'firstBatch' AS batch, :'cursor'::jsonb ->> 'id' AS id \gset
SELECT :'batch' AS batch;
SELECT pipe('{"getMore": %s, "collection": "c"}', :'id') - 'errmsg';
SELECT pipe('{"getMore": %s, "collection": "c"}', :'id') ->> 'codeName' AS answer;
COMMIT;

-- Without a collection, and over the catalog.
SELECT pipe('{"aggregate": 1, "pipeline": [{"$documents": [{"a": 1}, {"a": 2}]}, {"$match": {"a": 2}}], "cursor": {}}');
SELECT pipe('{"aggregate": 1.0, "pipeline": [{"$documents": [{"a": 1}, {"a": 2}]}], "cursor": {"batchSize": 1}}') -> 'cursor' ->> 'id' AS id \gset
SELECT pipe('{"getMore": %s, "collection": "$cmd.aggregate"}', :'id');
SELECT docshard.run_command('config', '{"aggregate": "collections", "pipeline": [{"$match": {"_id": "pipes.c"}}, {"$project": {"key": 1}}], "cursor": {}}');
SELECT docshard.run_command('config', '{"aggregate": "chunks", "pipeline": [{"$match": {"ns": "pipes.c"}}, {"$group": {"_id": "$ns", "shards": {"$addToSet": "$shard"}}}, {"$project": {"several": {"$gt": [{"$size": "$shards"}, 1]}}}], "cursor": {}}');
SELECT docshard.run_command('config', '{"aggregate": 1, "pipeline": [{"$documents": [{"a": 1}]}], "cursor": {}}');

-- Options. Numbers may be flags.
SELECT pipe('{"aggregate": "c", "pipeline": [{"$match": {"$expr": {"$eq": ["$_id", "$$id"]}}}], "cursor": {}, "let": {"id": 7}, "allowDiskUse": true, "bypassDocumentValidation": 0,
  "hint": {"_id": 1}, "collation": {"locale": "en"}, "comment": {"a": 1}, "maxTimeMS": 60000, "readConcern": {"level": "majority"}, "writeConcern": {"w": 1}}');
SELECT pipe('{"find": "c", "filter": {"_id": 7}, "allowPartialResults": 1}');
SELECT command, docshard.run_command('pipes', command) - 'errmsg' - 'hint' AS answer FROM unnest(ARRAY[
  '{"aggregate": "c"}', '{"aggregate": "c", "pipeline": []}', '{"aggregate": "c", "pipeline": {}, "cursor": {}}', '{"aggregate": "c", "pipeline": [], "cursor": 1}',
  '{"aggregate": "c", "pipeline": [], "cursor": {"batchSize": -1}}', '{"aggregate": "c", "pipeline": [], "cursor": {"batchSize": "1"}}',
  '{"aggregate": "c", "pipeline": [], "cursor": {"limit": 1}}', '{"aggregate": "c", "pipeline": [], "cursor": {}, "limit": 1}',
  '{"aggregate": "c", "pipeline": [1], "cursor": {}}', '{"aggregate": "c", "pipeline": [{"$nope": 1}], "cursor": {}}', '{"aggregate": "c", "pipeline": [{}], "cursor": {}}',
  '{"aggregate": 2, "pipeline": [], "cursor": {}}', '{"aggregate": null, "pipeline": [], "cursor": {}}', '{"aggregate": {}, "pipeline": [], "cursor": {}}',
  '{"aggregate": "", "pipeline": [], "cursor": {}}', '{"aggregate": "$cmd.aggregate", "pipeline": [{"$documents": []}], "cursor": {}}',
  '{"aggregate": 1, "pipeline": [], "cursor": {}}', '{"aggregate": "c", "pipeline": [{"$documents": []}], "cursor": {}}',
  '{"aggregate": "c", "pipeline": [], "cursor": {}, "hint": 5}', '{"aggregate": "c", "pipeline": [], "cursor": {}, "hint": "nope"}',
  '{"aggregate": "c", "pipeline": [], "cursor": {}, "let": 1}', '{"aggregate": "c", "pipeline": [], "cursor": {}, "collation": {"locale": "nowhere"}}',
  '{"aggregate": "c", "pipeline": [], "cursor": {}, "readConcern": {"level": "none"}}', '{"aggregate": "c", "pipeline": [], "cursor": {}, "maxTimeMS": -1}',
  '{"aggregate": "c", "pipeline": [{"$out": "o"}], "cursor": {}, "readConcern": {"level": "linearizable"}}',
  '{"aggregate": "c", "pipeline": [], "cursor": {}, "txnNumber": 1}']::json[]) AS command;
-- The function has the options, too.
SELECT docshard.aggregate('pipes.c', '[{"$match": {"_id": 7}}]', '{"batchSize": 5, "maxTimeMS": 60000, "readConcern": {"level": "local"}, "bypassDocumentValidation": true, "allowDiskUse": true, "comment": 1}');
SELECT docshard.aggregate('pipes.c', '[]', '{"batchSize": -5}');
SELECT docshard.aggregate('pipes.c', '[]', '{"maxTimeMS": -5}');
SELECT docshard.aggregate('pipes.c', '[]', '{"readConcern": {"level": "none"}}');
SELECT docshard.aggregate('pipes.c', '[]', '{"allowDiskUse": 1}');
-- A pipeline that takes too long: in one call of the function, in many, and as a command.
\set slow '[{"$project": {"x": {"$reduce": {"input": {"$range": [0, 1000]}, "initialValue": 0, "in": {"$add": ["$$value", {"$reduce": {"input": {"$range": [0, 1000]}, "initialValue": 0, "in": {"$add": ["$$value", 1]}}}]}}}}}]'
SELECT count(*) FROM (SELECT docshard.aggregate('pipes.c', :'slow', '{"maxTimeMS": 100}')) rows;
\echo :LAST_ERROR_SQLSTATE
SELECT pipe('{"aggregate": "c", "pipeline": %s, "cursor": {}, "maxTimeMS": 100}', :'slow');
-- The time that a client takes does not count.
BEGIN;
DECLARE c CURSOR FOR SELECT docshard.aggregate('pipes.c', '[{"$sort": {"_id": 1}}]', '{"maxTimeMS": 2000}');
FETCH 1 FROM c;
SELECT pg_sleep(2.1);
FETCH 1 FROM c;
COMMIT;
-- A role reads what it may read.
CREATE ROLE regress_pipes;
SELECT docshard.grant_access('regress_pipes', '{"read": "pipes.other"}') ->> 'ok' AS ok;
SET ROLE regress_pipes;
SELECT pipe('{"aggregate": "c", "pipeline": [], "cursor": {}}') - 'hint';
SELECT pipe('{"aggregate": 1, "pipeline": [{"$documents": [{"a": 1}]}], "cursor": {}}');
RESET ROLE;
SELECT docshard.revoke_access('regress_pipes') ->> 'ok' AS ok;
DROP ROLE regress_pipes;
DROP FUNCTION pipe;

-- The commit reads the rest of a cursor, whatever portals are below it.
SELECT docshard.insert_many('pipes.many', array_agg(jsonb_build_object('_id', n, 'k', n))) IS NOT NULL AS inserted FROM generate_series(1, 3000) n;
CREATE FUNCTION pg_temp.first_batch(command json) RETURNS int LANGUAGE sql AS
  $$SELECT jsonb_array_length(docshard.run_command('pipes', command)::jsonb #> '{cursor,firstBatch}')$$;
SELECT pg_temp.first_batch('{"find": "many", "batchSize": 2}') FROM generate_series(1, 3);
SELECT pg_temp.first_batch('{"find": "many", "batchSize": 2}');
SELECT pg_temp.first_batch('{"find": "many", "batchSize": 2}');
SELECT pg_temp.first_batch('{"find": "many", "batchSize": 2}');
SELECT pg_temp.first_batch('{"find": "many", "batchSize": 2}');
SELECT pg_temp.first_batch('{"aggregate": "many", "pipeline": [{"$unwind": "$k"}], "cursor": {"batchSize": 2}}');
SELECT pg_temp.first_batch('{"aggregate": "many", "pipeline": [{"$unwind": "$k"}], "cursor": {"batchSize": 2}}');
SELECT pg_temp.first_batch('{"aggregate": "many", "pipeline": [{"$unwind": "$k"}], "cursor": {"batchSize": 2}}');
SELECT pg_temp.first_batch('{"aggregate": "many", "pipeline": [{"$unwind": "$k"}], "cursor": {"batchSize": 2}}');
BEGIN;
DECLARE kept CURSOR WITH HOLD FOR SELECT docshard.find('pipes.many');
MOVE 1 FROM kept;
COMMIT;
MOVE ALL FROM kept;
CLOSE kept;

SELECT docshard.drop_database('pipes') ->> 'ok' AS ok;
