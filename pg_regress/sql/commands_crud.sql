-- MongoDB's commands for documents.
CREATE FUNCTION run(command json) RETURNS jsonb LANGUAGE sql AS $$ SELECT docshard.run_command('commands', command) $$;

SELECT run('{"insert": "c", "documents": [{"_id": 1, "a": 1}, {"_id": 2, "a": 2, "t": ["x", "y"]}, {"_id": 3}]}');
SELECT run('{"find": "c", "filter": {"a": {"$gt": 0}}, "sort": {"_id": -1}, "projection": {"t": 1}, "skip": 1, "limit": 5}');
SELECT run('{"find": "none"}');
SELECT run('{"count": "c"}'), run('{"count": "c", "query": {"a": {"$exists": true}}, "skip": 1}'), run('{"count": "c", "limit": -2}');

-- Ordered batches stop at the first operation that fails; earlier operations stay.
SELECT run('{"insert": "c", "documents": [{"_id": 4}, {"_id": 1}, {"_id": 5}]}');
SELECT run('{"insert": "c", "documents": [{"_id": 6}, {"_id": 2}, {"_id": [1]}, {"_id": 6}, {"_id": 7}], "ordered": false}');
SELECT docshard.find('commands.c', '{}', '{"sort": {"_id": 1}}');

-- Updates report how many documents matched and changed, and each upserted _id with its operation's index.
SELECT run('{"update": "c", "updates": [
  {"q": {"_id": 1}, "u": {"$inc": {"a": 1}}},
  {"q": {"_id": 1}, "u": {"$set": {"a": 2}}},
  {"q": {"a": {"$exists": false}}, "u": {"$set": {"seen": true}}, "multi": true},
  {"q": {"_id": 10}, "u": {"$set": {"new": 1}}, "upsert": true},
  {"q": {"_id": 3}, "u": {"replaced": true}}]}');
SELECT run('{"update": "c", "updates": [
  {"q": {"_id": 1}, "u": {"$inc": {"a": 1}}},
  {"q": {"_id": 2}, "u": {"$inc": {"t": 1}}},
  {"q": {"_id": 1}, "u": {"$inc": {"a": 1}}}]}');
SELECT run('{"update": "c", "updates": [
  {"q": {"_id": 2}, "u": {"$inc": {"t": 1}}},
  {"q": {"_id": 1}, "u": {"$inc": {"a": 1}}},
  {"q": {}, "u": {"whole": 1}, "multi": true}], "ordered": false}');
SELECT docshard.find('commands.c', '{}', '{"sort": {"_id": 1}}');

SELECT run('{"delete": "c", "deletes": [{"q": {"_id": 1}, "limit": 1}, {"q": {"seen": true}, "limit": 0}]}');
SELECT run('{"delete": "c", "deletes": [{"q": {}, "limit": 2}, {"q": {}, "limit": 0}], "ordered": false}');
SELECT run('{"count": "c"}');

-- distinct returns the distinct values of a field; elements of arrays count separately.
SELECT run('{"insert": "d", "documents": [{"_id": 1, "a": [1, "x"]}, {"_id": 2, "a": 1.0}, {"_id": 3, "a": {"b": 1}}]}');
SELECT run('{"distinct": "d", "key": "a"}'), run('{"distinct": "d", "key": "a", "query": {"_id": 2}}'), run('{"distinct": "d"}');

-- findAndModify changes or deletes one document, and returns its old or new state.
SELECT run('{"insert": "c", "documents": [{"_id": 1, "a": [1, 5]}, {"_id": 2, "a": [7]}]}');
SELECT run('{"findAndModify": "c", "query": {"_id": 1}, "update": {"$set": {"a.$[big]": 0}}, "arrayFilters": [{"big": {"$gt": 2}}]}');
SELECT run('{"findAndModify": "c", "query": {}, "sort": {"_id": -1}, "update": {"$inc": {"n": 1}}, "new": true, "fields": {"a": 0}}');
SELECT run('{"findAndModify": "c", "query": {"_id": 3}, "update": {"$inc": {"n": 1}}, "upsert": true}'), run('{"findAndModify": "c", "query": {"_id": 4}, "update": {"$inc": {"n": 1}}}');
SELECT run('{"findandmodify": "c", "query": {"_id": 3}, "remove": true}'), run('{"findAndModify": "c", "query": {"_id": 3}, "remove": true}');
SELECT run('{"findAndModify": "c", "query": {"_id": 3}}'), run('{"findAndModify": "c", "remove": true, "new": true}');
SELECT run('{"delete": "c", "deletes": [{"q": {}, "limit": 0}]}');

-- A batch with a document that is refused for another reason than a duplicate key.
SELECT run('{"createIndexes": "u", "indexes": [{"key": {"k": 1}, "name": "k_1", "unique": true}]}');
SELECT run('{"insert": "u", "documents": [{"_id": 1, "k": 1}, {"_id": 2, "k": 2}, {"_id": 3, "k": 1}, {"_id": 4, "k": 4}]}');
SELECT run('{"insert": "u", "documents": [{"_id": 5, "k": 5}, {"_id": 6, "k": 5}, {"_id": 7, "k": 7}], "ordered": false}');
SELECT run('{"find": "u", "sort": {"_id": 1}, "projection": {"k": 0}}');

-- A command's effects are rolled back with its transaction. A failed operation has no effects.
BEGIN;
SELECT run('{"insert": "u", "documents": [{"_id": 8, "k": 8}, {"_id": 1}]}');
SELECT run('{"count": "u"}');
ROLLBACK;
SELECT run('{"count": "u"}');

-- The result of the last command.
SELECT run('{"update": "u", "updates": [{"q": {"_id": 20}, "u": {"$set": {"k": 20}}, "upsert": true}]}');
SELECT run('{"getLastError": 1}') - 'connectionId';
SELECT run('{"insert": "u", "documents": [{"_id": 20}]}') ->> 'n';
SELECT run('{"getLastError": 1}') - 'connectionId';
SELECT run('{"ping": 1}'), run('{"getLastError": 1}') - 'connectionId';

SELECT run('{"dropDatabase": 1}');
DROP FUNCTION run;
