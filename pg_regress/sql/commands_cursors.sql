-- Cursors: find returns a first batch, getMore the following ones, killCursors closes the cursor.
CREATE FUNCTION run(command text, VARIADIC args text[] DEFAULT '{}') RETURNS jsonb
LANGUAGE sql AS $$ SELECT docshard.run_command('cursors', format(command, VARIADIC args)::json) $$;
SELECT docshard.insert_many('cursors.c', array_agg(jsonb_build_object('_id', n))) ->> 'insertedCount' AS inserted
FROM generate_series(1, 250) AS n;

-- The first batch has 101 documents unless the command sets a size; the others as many as fit into 16 MiB.
SELECT run('{"find": "c", "sort": {"_id": 1}}') -> 'cursor' AS cursor \gset
SELECT jsonb_array_length(:'cursor'::jsonb -> 'firstBatch'), :'cursor'::jsonb -> 'firstBatch' -> 100 AS last,
  (:'cursor'::jsonb ->> 'id')::bigint > 0 AS open, :'cursor'::jsonb ->> 'ns' AS ns;
SELECT :'cursor'::jsonb ->> 'id' AS id \gset
SELECT run('{"getMore": %s, "collection": "c", "batchSize": 2}', :'id') #- '{cursor,id}';
SELECT run('{"getMore": {"$numberLong": "%s"}, "collection": "c"}', :'id') -> 'cursor' AS cursor \gset
SELECT jsonb_array_length(:'cursor'::jsonb -> 'nextBatch'), :'cursor'::jsonb -> 'nextBatch' -> -1 AS last, :'cursor'::jsonb ->> 'id' AS id;
-- At its end a cursor is closed.
SELECT run('{"getMore": %s, "collection": "c"}', :'id') ->> 'codeName' AS answer;

-- If the batch contains the whole result there is no cursor.
SELECT run('{"find": "c", "filter": {"_id": {"$lte": 2}}, "batchSize": 2, "sort": {"_id": 1}}');
SELECT run('{"find": "c", "sort": {"_id": 1}, "limit": 2}');
SELECT run('{"find": "c", "sort": {"_id": 1}, "limit": 3, "batchSize": 2, "singleBatch": true}');
SELECT count(*) FROM pg_cursors WHERE name LIKE 'docshard%';

-- batchSize 0 only opens a cursor, even if there is nothing to read.
SELECT run('{"find": "c", "filter": {"_id": -1}, "batchSize": 0}') -> 'cursor' ->> 'id' AS id \gset
SELECT :'id' <> '0' AS opened, run('{"getMore": %s, "collection": "c"}', :'id');
SELECT run('{"find": "c", "sort": {"_id": -1}, "batchSize": 0}') -> 'cursor' AS cursor \gset
SELECT :'cursor'::jsonb -> 'firstBatch' AS batch, :'cursor'::jsonb ->> 'id' AS id \gset
SELECT :'batch' AS batch;
SELECT run('{"getMore": %s, "collection": "c", "batchSize": 1}', :'id') #- '{cursor,id}';
-- getMore must name the collection of its cursor. killCursors need not.
SELECT replace(run('{"getMore": %s, "collection": "d"}', :'id') ->> 'errmsg', :'id', 'N');
SELECT replace(run('{"killCursors": "d", "cursors": [%s]}', :'id')::text, :'id', 'N');
SELECT replace(run('{"killCursors": "c", "cursors": [%s, 7]}', :'id')::text, :'id', 'N');
SELECT run('{"getMore": %s, "collection": "c"}', :'id') - 'hint' - 'errmsg';

-- A cursor returns the documents as they were when it was opened.
SELECT run('{"find": "c", "sort": {"_id": 1}, "batchSize": 1}') -> 'cursor' ->> 'id' AS id \gset
SELECT docshard.delete_many('cursors.c', '{"_id": {"$gt": 3}}') ->> 'deletedCount' AS deleted;
SELECT jsonb_array_length(run('{"getMore": %s, "collection": "c"}', :'id') -> 'cursor' -> 'nextBatch');

-- A cursor is closed when its transaction is rolled back, and survives a commit.
BEGIN;
SELECT run('{"find": "c", "sort": {"_id": 1}, "batchSize": 1}') -> 'cursor' ->> 'id' AS id \gset
SELECT run('{"getMore": %s, "collection": "c", "batchSize": 1}', :'id') #- '{cursor,id}';
ROLLBACK;
SELECT run('{"getMore": %s, "collection": "c"}', :'id') ->> 'codeName' AS answer;
BEGIN;
SELECT run('{"find": "c", "sort": {"_id": 1}, "batchSize": 1}') -> 'cursor' ->> 'id' AS id \gset
SAVEPOINT s;
SELECT run('{"nonsense": 1}') ->> 'codeName' AS answer;
COMMIT;
SELECT run('{"getMore": %s, "collection": "c"}', :'id');

-- A cursor belongs to the role that opened it.
CREATE ROLE regress_cursors;
SELECT docshard.grant_access('regress_cursors');
SELECT run('{"find": "c", "batchSize": 1}') -> 'cursor' ->> 'id' AS id \gset
SET ROLE regress_cursors;
SELECT run('{"getMore": %s, "collection": "c"}', :'id') ->> 'codeName' AS answer;
SELECT jsonb_array_length(run('{"find": "c"}') -> 'cursor' -> 'firstBatch');
RESET ROLE;
-- CLOSE ALL closes these cursors, too.
CLOSE ALL;
SELECT run('{"getMore": %s, "collection": "c"}', :'id') ->> 'codeName' AS answer;

-- Large documents: a batch ends before 16 MiB, and no document is lost.
SELECT docshard.insert_many('cursors.large', array_agg(jsonb_build_object('_id', n, 'text', repeat('x', 3000000)))) ->> 'insertedCount' AS inserted
FROM generate_series(1, 8) AS n;
SELECT run('{"find": "large", "sort": {"_id": 1}}') -> 'cursor' AS cursor \gset
SELECT jsonb_array_length(:'cursor'::jsonb -> 'firstBatch') AS first, :'cursor'::jsonb ->> 'id' AS id \gset
SELECT :first AS first;
SELECT jsonb_path_query_array(run('{"getMore": %s, "collection": "large"}', :'id'), '$.cursor.nextBatch[*]._id') AS rest;

-- The memory for what a commit stores is limited only where the command is the whole transaction.
DO $$DECLARE before text := current_setting('work_mem');
BEGIN
  PERFORM run('{"find": "c", "batchSize": 1}');
  ASSERT current_setting('work_mem') = before, current_setting('work_mem');
END$$;

-- listCollections returns a cursor, too.
SELECT run('{"listCollections": 1, "nameOnly": true, "filter": {"name": {"$regex": "^l"}}}');
SELECT run('{"listCollections": 1, "nameOnly": true, "cursor": {"batchSize": 1}}') -> 'cursor' AS cursor \gset
SELECT :'cursor'::jsonb - 'id' AS first, :'cursor'::jsonb ->> 'id' AS id \gset
SELECT run('{"getMore": %s, "collection": "$cmd.listCollections"}', :'id');

SELECT run('{"dropDatabase": 1}');
DROP FUNCTION run;
