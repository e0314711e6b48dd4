-- Limits of expressions, filters and updates: memory is bounded, and they can be cancelled. Without limits each of these would
-- take gigabytes or minutes.
SHOW docshard.max_expression_memory;
SELECT docshard.insert_one('lim.c', '{"_id": 1, "a": "x", "n": 1}') -> 'insertedId' AS id;
-- A string that doubles; nested arrays; many copies of a large one.
SELECT docshard.find('lim.c', '{"$expr": {"$gt": [{"$strLenBytes": {"$reduce": {"input": {"$range": [0, 40]}, "initialValue": "$a", "in": {"$concat": ["$$value", "$$value"]}}}}, 0]}}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.find_one('lim.c', '{}', '{"projection": {"x": {"$map": {"input": {"$range": [0, "$n", 1]}, "in": {"$reduce": {"input": {"$range": [0, 40]}, "initialValue": ["$a"], "in": {"$concatArrays": ["$$value", "$$value"]}}}}}}}');
SELECT docshard.update_one('lim.c', '{"_id": 1}', '[{"$set": {"x": {"$map": {"input": {"$range": [0, {"$multiply": ["$n", 6000000]}]}, "in": "$$ROOT"}}}}]');
SELECT docshard.find_one('lim.c', '{}', '{"projection": {"x": {"$strLenCP": {"$replaceAll": {"input": {"$reduce": {"input": {"$range": [0, 20]}, "initialValue": "$a", "in": {"$concat": ["$$value", "$$value"]}}}, "find": "x", "replacement": {"$reduce": {"input": {"$range": [0, 20]}, "initialValue": "$a", "in": {"$concat": ["$$value", "$$value"]}}}}}}}}');
SELECT docshard.find_one('lim.c', '{}', '{"projection": {"x": {"$size": {"$split": [{"$reduce": {"input": {"$range": [0, 24]}, "initialValue": "$a", "in": {"$concat": ["$$value", "$$value"]}}}, "x"]}}}}');
-- The same with constants, which are evaluated during parsing.
SELECT docshard.find('lim.c', '{"$expr": {"$gt": [{"$strLenBytes": {"$reduce": {"input": {"$range": [0, 40]}, "initialValue": "y", "in": {"$concat": ["$$value", "$$value"]}}}}, 0]}}');
-- Only a superuser may set the limit. Ordinary expressions are not affected.
CREATE ROLE regress_limits;
SET ROLE regress_limits;
SET docshard.max_expression_memory = '10GB';
RESET ROLE;
DROP ROLE regress_limits;
SET docshard.max_expression_memory = '1MB';
SELECT docshard.find_one('lim.c', '{}', '{"projection": {"x": {"$size": {"$map": {"input": {"$range": [0, {"$multiply": ["$n", 100000]}]}, "in": "$$this"}}}}}');
RESET docshard.max_expression_memory;
SELECT docshard.find_one('lim.c', '{}', '{"projection": {"x": {"$size": {"$map": {"input": {"$range": [0, {"$multiply": ["$n", 100000]}]}, "in": "$$this"}}}}}');
-- Time limits: the client's, MongoDB's, and a cancel.
SET statement_timeout = '1s';
SELECT docshard.find('lim.c', '{"$expr": {"$gt": [{"$size": {"$map": {"input": {"$range": [0, {"$multiply": ["$n", 100000]}]}, "in": {"$size": {"$map": {"input": {"$range": [0, 10000]}, "in": {"$add": ["$$this", 1]}}}}}}}, 0]}}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.find('lim.c', '{"$expr": {"$gt": [{"$reduce": {"input": {"$range": [0, {"$multiply": ["$n", 100000]}]}, "initialValue": 0, "in": {"$cond": [{"$in": ["$$this", {"$range": [100000, 300000]}]}, 1, "$$value"]}}}, 0]}}');
\echo :LAST_ERROR_SQLSTATE
RESET statement_timeout;
SELECT docshard.run_command('lim', '{"find": "c", "maxTimeMS": 500, "filter": {"$expr": {"$gt": [{"$size": {"$map": {"input": {"$range": [0, {"$multiply": ["$n", 100000]}]}, "in": {"$size": {"$map": {"input": {"$range": [0, 10000]}, "in": {"$add": ["$$this", 1]}}}}}}}, 0]}}}');
-- Many variables of one $let.
SELECT docshard.find_one('lim.c', '{}', json_build_object('projection', json_build_object('x', json_build_object('$let', json_build_object(
  'vars', json_object_agg('v' || v, '$n'), 'in', json_build_object('$add', '["$$v1", "$$v200000"]'::json)))))) FROM generate_series(1, 200000) v;
-- Sets of 20,000 values, and updates of 20,000 fields.
SELECT docshard.insert_one('lim.c', jsonb_build_object('_id', 2, 'a', (SELECT jsonb_agg('old value ' || v) FROM generate_series(1, 300000) v))) -> 'insertedId' AS id;
SET statement_timeout = '20s';
SELECT docshard.update_one('lim.c', '{"_id": 2}', json_build_object('$addToSet', json_build_object('a', json_build_object('$each', json_agg('new value ' || v))))) -> 'modifiedCount' AS modified FROM generate_series(1, 20000) v;
SELECT docshard.find_one('lim.c', '{"_id": 2}', '{"projection": {"a": {"$size": "$a"}}}');
SELECT docshard.update_one('lim.c', '{"_id": 2}', json_build_object('$pullAll', json_build_object('a', json_agg('new value ' || v)))) -> 'modifiedCount' AS modified FROM generate_series(1, 20000) v;
SELECT docshard.update_one('lim.c', '{"_id": 1}', json_build_object('$inc', json_object_agg('f' || v, 1))) -> 'modifiedCount' AS modified FROM generate_series(1, 20000) v;
SELECT docshard.find_one('lim.c', '{"_id": 2}', '{"projection": {"a": {"$size": "$a"}}}');
SELECT docshard.find_one('lim.c', '{"_id": 2}', '{"projection": {"a": {"$size": {"$setDifference": ["$a", ["old value 1"]]}}}}');
SELECT docshard.find_one('lim.c', '{"_id": 1}', '{"projection": {"n": {"$size": {"$objectToArray": {"$mergeObjects": ["$$ROOT", "$$ROOT"]}}}}}');
RESET statement_timeout;
SELECT docshard.drop_database('lim') ->> 'ok' AS ok;
