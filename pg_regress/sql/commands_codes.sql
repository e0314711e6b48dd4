-- MongoDB's codes of commands with fields of a wrong type or an invalid value.
CREATE FUNCTION code(db text, command json) RETURNS text LANGUAGE sql AS $$
  SELECT coalesce(answer ->> 'code', answer #>> '{writeErrors,0,code}', 'ok') FROM docshard.run_command(db, command) AS answer $$;
CREATE FUNCTION codes(db text, VARIADIC commands json[]) RETURNS TABLE (command json, code text) LANGUAGE sql AS $$
  SELECT one, code(db, one) FROM unnest(commands) AS one $$;
\t on
SELECT docshard.insert_many('codes.c', '{"{\"_id\": 1, \"a\": [1, 2, 3], \"b\": 7}", "{\"_id\": 2, \"b\": 8}"}') ->> 'insertedCount';

-- Fractions are cut off where MongoDB does so, and refused where it refuses them.
SELECT * FROM codes('codes', '{"find": "c", "limit": 1.9}', '{"find": "c", "skip": {"$numberDouble": "NaN"}}', '{"find": "c", "limit": -0.5}',
  '{"find": "c", "limit": -1}', '{"count": "c", "skip": 1.5}', '{"count": "c", "skip": -1}', '{"count": "c", "limit": -1}',
  '{"count": "c", "limit": 1.5}', '{"count": "c", "limit": "x"}', '{"count": "c", "limit": -9223372036854775808}',
  '{"collStats": "c", "scale": 1.5}', '{"delete": "c", "deletes": [{"q": {}, "limit": 0.5}]}', '{"delete": "c", "deletes": [{"q": {}, "limit": 2}]}');
SELECT jsonb_array_length(docshard.run_command('codes', '{"find": "c", "limit": 1.9}') #> '{cursor,firstBatch}');
-- A value that is neither object nor array, or neither object nor string.
SELECT * FROM codes('codes', '{"update": "c", "updates": [{"q": {}, "u": 5}]}', '{"findAndModify": "c", "update": "x"}', '{"find": "c", "hint": 5}',
  '{"getMore": 5, "collection": ""}', '{"getMore": 5, "collection": "c"}');
-- An invalid _id: MongoDB has different codes for inserts and updates.
SELECT * FROM codes('codes', '{"insert": "c", "documents": [{"_id": [1]}]}', '{"insert": "c", "documents": [{"_id": {"$regex": "a"}}]}',
  '{"update": "c", "updates": [{"q": {"_id": 9}, "u": {"_id": [1]}, "upsert": true}]}',
  '{"update": "c", "updates": [{"q": {"x": 9}, "u": {"$set": {"_id": [1]}}, "upsert": true}]}',
  '{"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$set": {"_id": 5}}}]}');
-- $expr contributes no fields to an upsert, and is not allowed in array filters, $pull and partial indexes.
SELECT * FROM codes('codes', '{"update": "c", "updates": [{"q": {"$expr": {"$eq": ["$b", 1]}}, "u": {"$set": {"x": 1}}, "upsert": true}]}',
  '{"update": "c", "updates": [{"q": {"$expr": {"$eq": ["$b", 7]}}, "u": {"$set": {"x": 1}}}]}',
  '{"findAndModify": "c", "query": {"$and": [{"$expr": true}]}, "update": {"$set": {"x": 1}}, "upsert": true}',
  '{"update": "c", "updates": [{"q": {}, "u": {"$pull": {"a": {"$expr": true}}}}]}',
  '{"update": "c", "updates": [{"q": {}, "u": {"$set": {"a.$[i]": 1}}, "arrayFilters": [{"i": 1, "$expr": true}]}]}',
  '{"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a", "partialFilterExpression": {"$expr": true}}]}');
-- After the update the document may lack the element by which it was found.
SELECT * FROM codes('codes', '{"findAndModify": "c", "query": {"a": 2}, "update": {"$set": {"a.$": 9}}, "fields": {"a.$": 1}, "new": true}',
  '{"findAndModify": "c", "query": {"a": 2}, "update": {"$set": {"a.$": 9}}, "fields": {"a.$": 1}}');

-- Options of a collection, and specifications of indexes.
SELECT * FROM codes('codes', '{"create": "d", "size": 100}', '{"create": "d", "capped": true}', '{"create": "d", "pipeline": []}',
  '{"create": "d", "expireAfterSeconds": 5}', '{"create": "d", "autoIndexId": false}', '{"create": "d", "validationLevel": "x"}',
  '{"create": "d", "idIndex": {"key": {"a": 1}, "name": "_id_"}}', '{"create": "d", "idIndex": {"key": {"_id": 1}, "name": "_id_"}}');
CREATE FUNCTION index_codes(VARIADIC indexes json[]) RETURNS TABLE (spec json, code text) LANGUAGE sql AS $$
  SELECT one, code('codes', json_build_object('createIndexes', 'c', 'indexes', json_build_array(one))) FROM unnest(indexes) AS one $$;
SELECT * FROM index_codes('{"name": "x"}', '{"key": {"x": 1}}', '5', '{"key": {"x": 1}, "name": "*"}', '{"key": {"x": 1}, "name": ""}',
  '{"key": {"x": 1}, "name": "x", "v": 3}', '{"key": {"x": 1}, "name": "x", "v": 2.5}', '{"key": {"x": 1}, "name": "x", "v": 1, "collation": {"locale": "fr"}}',
  '{"key": {"x": 1}, "name": "x", "expireAfterSeconds": "1"}', '{"key": {"x": 0}, "name": "x"}', '{"key": {"_id": 1}, "name": "_id_", "unique": true}',
  '{"key": {"x": 5, "y": -2.5}, "name": "x", "v": 2}', '{"key": {"at": 1}, "name": "at", "expireAfterSeconds": 60.9}');
SELECT jsonb_path_query(docshard.run_command('codes', '{"listIndexes": "c"}'), '$.cursor.firstBatch[*]');

-- Sharding.
SELECT * FROM codes('admin', '{"enableSharding": "admin"}', '{"shardCollection": "admin.c", "key": {"a": 1}}', '{"shardCollection": "codes.s", "key": {"a..b": 1}}',
  '{"shardCollection": "codes.s", "key": {"$a": 1}}', '{"shardCollection": "codes.s", "key": {"a": 1}}',
  '{"moveChunk": "codes.s", "bounds": [{"a": {"$minKey": 1}}, {"a": 6}], "to": "local"}', '{"moveChunk": "codes.s", "bounds": [{"a": {"$minKey": 1}}], "to": "local"}',
  '{"moveChunk": "codes.c", "bounds": [{"a": {"$minKey": 1}}, {"a": 6}], "to": "local"}');
-- MongoDB's internal databases.
SELECT * FROM codes('admin', '{"movePrimary": "admin", "to": "local"}', '{"movePrimary": "config", "to": "local"}', '{"movePrimary": "local", "to": "local"}',
  '{"movePrimary": "a.b", "to": "local"}', '{"movePrimary": "codes", "to": "nowhere"}', '{"moveRange": "codes.c", "min": {"a": 1}, "max": {"a": 2}, "toShard": "local"}',
  '{"moveRange": "codes.c", "min": {"_id": 1}, "toShard": "nowhere"}', '{"moveRange": "codes.s", "min": {"a": 1}, "max": {"b": 2}, "toShard": "local"}', '{"movePrimary": "codes", "to": ""}',
  '{"balancerCollectionStatus": "codes.none"}', '{"balancerCollectionStatus": "none.none"}', '{"balancerCollectionStatus": "codes"}');
SELECT * FROM codes('local', '{"insert": "c", "documents": [{"_id": 1}]}', '{"create": "c"}', '{"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a"}]}',
  '{"update": "c", "updates": [{"q": {"_id": 1}, "u": {"a": 1}, "upsert": true}]}', '{"find": "c"}', '{"delete": "c", "deletes": [{"q": {}, "limit": 0}]}');
-- maxTimeMS must be an integer, and then within its range.
SELECT * FROM codes('codes', '{"find": "c", "maxTimeMS": 1.5}', '{"count": "c", "maxTimeMS": {"$numberDecimal": "Infinity"}}', '{"ping": 1, "maxTimeMS": {"$numberDouble": "NaN"}}',
  '{"count": "c", "maxTimeMS": {"$numberDecimal": "1E+30"}}', '{"count": "c", "maxTimeMS": -1}', '{"count": "c", "maxTimeMS": 2147483648}', '{"count": "c", "maxTimeMS": 1000.0}');
-- Decimals are rounded half to even where doubles are cut off.
SELECT * FROM codes('codes', '{"count": "c", "skip": {"$numberDecimal": "-0.6"}}', '{"count": "c", "skip": {"$numberDecimal": "-0.5"}}', '{"count": "c", "skip": -0.6}');
SELECT docshard.run_command('codes', '{"count": "c", "skip": {"$numberDecimal": "1.5"}}') ->> 'n' AS skips_2, docshard.run_command('codes', '{"count": "c", "skip": 1.5}') ->> 'n' AS skips_1;
-- Some commands take no write concern, and no read concern but the local one. explain takes no write concern either.
SELECT * FROM codes('codes', '{"count": "c", "writeConcern": {}}', '{"find": "c", "writeConcern": {"w": 1}}', '{"find": "c", "writeConcern": null}', '{"find": "c", "writeConcern": 1}',
  '{"listCollections": 1, "readConcern": {"level": "majority"}}', '{"listCollections": 1, "readConcern": {"level": "local"}}', '{"listCollections": 1, "readConcern": {"level": "x"}}',
  '{"create": "d", "readConcern": {"level": "available"}}', '{"distinct": "c", "key": "a", "readConcern": {"level": "available"}}', '{"find": "c", "readConcern": {"afterClusterTime": null}}',
  '{"find": "c", "readConcern": {"afterClusterTime": {"$timestamp": {"t": 0, "i": 0}}}}', '{"aggregate": "c", "pipeline": [], "explain": true, "writeConcern": {"w": 1}}');
-- The stable API.
SELECT * FROM codes('codes', '{"aggregate": "c", "pipeline": [], "explain": true, "apiVersion": "1", "apiStrict": true}', '{"aggregate": "c", "pipeline": [{"$indexStats": {}}], "cursor": {}, "apiVersion": "1", "apiStrict": true}',
  '{"aggregate": "c", "pipeline": [{"$collStats": {"storageStats": {}}}], "cursor": {}, "apiVersion": "1", "apiStrict": true}', '{"aggregate": "c", "pipeline": [{"$collStats": {"count": {}}}], "cursor": {}, "apiVersion": "1", "apiStrict": true}',
  '{"aggregate": "c", "pipeline": [{"$indexStats": {}}], "cursor": {}, "apiVersion": "1"}', '{"startSession": 1, "apiVersion": "1", "apiStrict": true}');
-- aggregate: what its first field and its flags may be.
SELECT * FROM codes('codes', '{"aggregate": true, "pipeline": [], "cursor": {}}', '{"aggregate": 2, "pipeline": [], "cursor": {}}', '{"aggregate": "c", "pipeline": [], "explain": 1}', '{"aggregate": "c", "pipeline": [], "cursor": null}',
  '{"aggregate": "c", "pipeline": [], "cursor": {}, "allowDiskUse": 1}', '{"aggregate": "c", "pipeline": [], "cursor": {"batchSize": -1}, "explain": true}', '{"aggregate": "c", "pipeline": [], "cursor": {}, "hint": "$natural"}');
-- Cursors: ids are integers; null among them is skipped; only a cursor that waits for data would take a time.
SELECT docshard.run_command('codes', '{"find": "c", "batchSize": 1}') #>> '{cursor,id}' AS id \gset
SELECT code('codes', format('{"getMore": %s, "collection": "c", "maxTimeMS": 100}', :'id')::json), code('codes', format('{"getMore": %s, "collection": "c", "term": 1}', :'id')::json);
SELECT * FROM codes('codes', '{"getMore": 5.5, "collection": "c"}', '{"getMore": {"$numberDecimal": "5"}, "collection": "c"}', '{"getMore": 5, "collection": "c", "term": "x"}', '{"getMore": 5, "collection": "c", "maxTimeMS": 100}',
  '{"killCursors": "c", "cursors": [null]}', '{"killCursors": "c", "cursors": [5.0]}', '{"count": "c", "fields": 5}', '{"count": "c", "limit": null}', '{"distinct": "c", "key": "a..b"}', '{"distinct": "c", "key": "a\u0000"}');

-- Concerns and preferences have no effect, but must be valid.
SELECT * FROM codes('codes', '{"find": "c", "readConcern": {"level": "majority"}, "$readPreference": {"mode": "nearest"}}', '{"find": "c", "readConcern": {"level": "nonsense"}}',
  '{"find": "c", "readConcern": {"level": 5}}', '{"find": "c", "readConcern": {}}', '{"find": "c", "$readPreference": {"mode": "nonsense"}}', '{"count": "c", "$readPreference": {"mode": null}}',
  '{"insert": "c", "documents": [{"_id": 50}], "writeConcern": {"w": 1}}', '{"insert": "c", "documents": [{"_id": 51}], "writeConcern": {"w": "majority", "j": true}}',
  '{"insert": "c", "documents": [{}], "writeConcern": {"w": -1}}', '{"insert": "c", "documents": [{}], "writeConcern": {"w": 51}}', '{"insert": "c", "documents": [{}], "writeConcern": {"w": true}}',
  '{"insert": "c", "documents": [{}], "writeConcern": {"w": "nonsense"}}', '{"insert": "c", "documents": [{}], "writeConcern": {"w": 1.5}}');
-- A batch of several writes cannot be explained.
SELECT * FROM codes('codes', '{"explain": {"update": "c", "updates": [{"q": {"a": 1}, "u": {"$set": {"b": 1}}}, {"q": {}, "u": {"$set": {"b": 1}}}]}}',
  '{"explain": {"delete": "c", "deletes": [{"q": {"a": 1}, "limit": 0}, {"q": {}, "limit": 1}]}}', '{"explain": {"update": "c", "updates": []}}', '{"explain": {"update": "c", "updates": [{"q": {"a": 1}, "u": {"$set": {"b": 1}}}]}}');
-- The plan of a write is that of the search for its documents.
SELECT plan ->> 'stage', plan #>> '{shards,0,winningPlan,stage}', plan #>> '{shards,0,winningPlan,inputStage,stage}'
  FROM unnest(ARRAY['{"update": "c", "updates": [{"q": {"b": 1}, "u": {"$set": {"x": 1}}, "multi": true}]}', '{"delete": "c", "deletes": [{"q": {"_id": 1}, "limit": 1}]}',
    '{"findAndModify": "c", "query": {"b": 1}, "remove": true}', '{"findAndModify": "c", "query": {"b": 1}, "update": {"$set": {"x": 1}}}']) command,
    LATERAL (SELECT docshard.run_command('codes', format('{"explain": %s}', command)::json) #> '{queryPlanner,winningPlan}') AS e (plan);
\t off

SELECT docshard.drop_database('codes');
DROP FUNCTION index_codes, codes, code;
