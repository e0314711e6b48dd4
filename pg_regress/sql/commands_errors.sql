-- Errors of commands are returned as answers in MongoDB's form, and leave nothing behind.
CREATE FUNCTION run(db text, command json) RETURNS jsonb LANGUAGE sql AS $$ SELECT docshard.run_command(db, command) $$;

-- Unknown commands.
SELECT run('errors', '{"nonsense": 1}');
SELECT run('errors', '{}'), run('errors', '[]'), run('errors', '"ping"');
-- The database.
SELECT run('', '{"ping": 1}') - 'hint', run('a.b', '{"ping": 1}') - 'hint';
SELECT run('errors', '{"ping": 1, "$db": "other"}');
SELECT run('errors', '{"listShards": 1}');
-- Unknown fields, wrong types, missing fields. null counts as missing.
SELECT run('errors', '{"find": "c", "filtr": {}}') - 'hint';
SELECT run('errors', '{"find": "c", "filter": 5}');
SELECT run('errors', '{"find": "c", "sort": null, "limit": "5"}');
SELECT run('errors', '{"find": "c", "limit": -1}'), run('errors', '{"find": "c", "batchSize": 1.5}');
SELECT run('errors', '{"insert": "c"}'), run('errors', '{"insert": "c", "documents": []}');
SELECT run('errors', '{"insert": "c", "documents": [1]}');
SELECT run('errors', '{"update": "c", "updates": [{"q": {}}]}'), run('errors', '{"update": "c", "updates": [{"q": {}, "u": {}, "x": 1}]}') - 'hint';
SELECT run('errors', '{"find": 5}'), run('errors', '{"find": ""}') - 'hint', run('errors', '{"find": "a$b"}') - 'hint';
-- Generic fields of all commands. Fields of MongoDB's transactions are refused: transactions are PostgreSQL's.
SELECT run('errors', '{"ping": 1, "comment": "x", "lsid": {"id": 1}, "readConcern": {"level": "local"}, "apiVersion": "1", "$db": "errors"}');
SELECT run('errors', '{"ping": 1, "apiVersion": "2"}');
SELECT run('errors', '{"insert": "c", "documents": [{}], "txnNumber": 1, "autocommit": false}');
-- Errors of the document language.
SELECT run('errors', '{"find": "c", "filter": {"$nonsense": 1}}');
SELECT run('errors', '{"insert": "c", "documents": [{"_id": {"$set": 1}}]}') - 'hint';
SELECT run('errors', '{"find": "c", "hint": "none"}');
SELECT run('errors', '{"find": "c", "tailable": true}');
SELECT run('errors', '{"getMore": 1, "collection": "c"}') - 'hint';

-- Objects that do not exist, or exist already.
-- As in MongoDB, it is no error to create a collection again with the same options.
SELECT run('errors', '{"create": "c"}'), run('errors', '{"create": "c"}'), run('errors', '{"create": "c", "validator": {"a": 1}}');
SELECT run('errors', '{"create": "d", "capped": true, "size": 100}');
SELECT run('errors', '{"find": "c", "hint": "none"}'), run('errors', '{"find": "c", "hint": "_id_"}');
SELECT run('errors', '{"drop": "none"}'), run('errors', '{"listIndexes": "none"}'), run('errors', '{"dropIndexes": "c", "index": "none"}');
SELECT run('admin', '{"shardCollection": "errors.c", "key": {"a": 5}}') - 'errmsg';
SELECT run('admin', '{"moveChunk": "errors.c", "find": {"_id": 1}, "to": "nowhere"}') - 'hint';
SELECT run('admin', '{"split": "errors.c"}');

-- An answer with ok: 0 has changed nothing; the transaction continues.
BEGIN;
SELECT run('errors', '{"insert": "c", "documents": [{"_id": 1}]}');
SELECT run('errors', '{"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a_1"}, {"key": {"b": 1}, "name": "a_1"}]}');
SELECT run('errors', '{"listIndexes": "c"}') #> '{cursor,firstBatch}';
COMMIT;
SELECT run('errors', '{"count": "c"}');

-- A time limit is returned as an answer; a cancel, such as by statement_timeout, ends the transaction.
SELECT docshard.insert_many('errors.c', array_agg(jsonb_build_object('_id', n, 'a', repeat('a', 30)))) ->> 'insertedCount' AS inserted
FROM generate_series(100, 8000) AS n;
SELECT run('errors', '{"count": "c", "query": {"$or": [{"a": {"$regex": "(a+a+)+b"}}, {"a": {"$regex": "(a*a*)*c"}}]}, "maxTimeMS": 1}');
SELECT run('errors', '{"count": "c", "maxTimeMS": -1}'), run('errors', '{"count": "c", "maxTimeMS": 60000}');
SET statement_timeout = 1;
SELECT run('errors', '{"count": "c", "query": {"$or": [{"a": {"$regex": "(a+a+)+b"}}, {"a": {"$regex": "(a*a*)*c"}}]}, "maxTimeMS": 60000}');
\echo :LAST_ERROR_SQLSTATE
RESET statement_timeout;

-- A role with access to documents may use the commands for documents, but not those for administration.
CREATE ROLE regress_commands;
SELECT docshard.grant_access('regress_commands');
SET ROLE regress_commands;
SELECT docshard.run_command('errors', '{"insert": "c", "documents": [{"_id": 2}]}');
SELECT docshard.run_command('errors', '{"delete": "c", "deletes": [{"q": {"_id": 2}, "limit": 1}]}');
SELECT docshard.run_command('errors', '{"insert": "e", "documents": [{"_id": 2}]}') - 'hint';
SELECT docshard.run_command('errors', '{"drop": "c"}'), docshard.run_command('errors', '{"createIndexes": "c", "indexes": [{"key": {"z": 1}, "name": "z"}]}');
SELECT docshard.run_command('admin', '{"split": "errors.c", "bounds": [{}, {}]}'), docshard.run_command('admin', '{"balancerStop": 1}');
SELECT docshard.run_command('errors', '{"collStats": "c"}') -> 'count' AS count, docshard.run_command('errors', '{"ping": 1}');
RESET ROLE;
SELECT run('errors', '{"dropDatabase": 1}');
DROP FUNCTION run;
-- A message does not echo a huge value.
SELECT length(docshard.run_command('test', json_build_object('ping', 1, 'readConcern', json_build_object('level', repeat('x', 10000000)))) ->> 'errmsg') AS length;
