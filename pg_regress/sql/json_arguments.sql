-- Arguments of the types json, jsonb and text, literals, and parameters without a type.
SELECT docshard.insert_one('args.c', '{"_id": 1, "a": 1, "b": 2}');
SELECT docshard.insert_one('args.c', '{"_id": 2, "a": 1, "b": 1}'::json);
SELECT docshard.insert_one('args.c', jsonb_build_object('_id', 3, 'a', 2, 'b', 1), jsonb_build_object());
SELECT docshard.insert_one('args.c', '{"_id": 4, "a": 2, "b": 2, "n": 12345678901234567890.5}'::text, '{}'::text);
SELECT docshard.insert_many('args.c', ARRAY['{"_id": 5}', '{"_id": 6}']::json[], '{"ordered": false}');
SELECT docshard.insert_many('args.c', ARRAY['{"_id": 7}', '{"_id": 8}']::jsonb[], '{"ordered": true}'::jsonb);
SELECT docshard.insert_many('args.c', ARRAY['{"_id": 9}', NULL]::json[]);
SELECT docshard.delete_many('args.c', jsonb_build_object('_id', jsonb_build_object('$gt', 4)));
SELECT docshard.find('args.c', '{"a": 1}'::jsonb, '{"sort": {"_id": -1}}'::jsonb);
SELECT docshard.find('args.c', '{"_id": 1}'::json, '{}'::jsonb);
SELECT docshard.find_one('args.c'::varchar, '{"_id": 1}'::varchar);
SELECT docshard.find_one('args.c'::text, '{"_id": 4}'::text);
SELECT docshard.find_one('args.c'::char(20), '{"_id": 4}'), docshard.find_one('args.c'::char(20), '{"_id": 4}'::jsonb) IS NOT NULL AS found;
SELECT docshard.count_documents(filter => jsonb_build_object('a', 2), ns => 'args.c');
SELECT docshard.distinct('args.c', 'a', '{}'::jsonb);
SELECT docshard.aggregate('args.c', '[{"$match": {"a": 1}}, {"$sort": {"b": 1}}, {"$project": {"b": 1}}]'::jsonb);
SELECT docshard.update_one('args.c', '{"_id": 1}'::jsonb, '{"$set": {"sort": {"x": 1, "y": 2}, "key": {"x": 1, "y": 2}}}'::jsonb) -> 'modifiedCount' AS modified;
SELECT docshard.find_one_and_update('args.c', '{}'::jsonb, '{"$inc": {"b": 10}}', '{"sort": {"a": 1, "b": -1}, "projection": {"a": 1}}');
SELECT docshard.bulk_write('args.c', jsonb_build_array(jsonb_build_object('insertOne', '{"document": {"_id": 5, "sort": {"x": 1, "y": 1}}}'::jsonb))) -> 'insertedCount' AS inserted;
SELECT docshard.explain('args.c', '{"_id": 1}'::jsonb) -> 'ok' AS ok;
SELECT docshard.find('args.c', 'no json'::text);

-- Literals and parameters without a type are text and json, as they are without the other form.
PREPARE untyped AS SELECT docshard.find_one($1, $2, $3);
PREPARE beside_text AS SELECT docshard.find_one($1::text, $2, $3);
PREPARE beside_varchar AS SELECT docshard.find_one($1::varchar, $2, $3);
PREPARE beside_json AS SELECT docshard.find_one($1, $2::json, $3);
PREPARE beside_jsonb AS SELECT docshard.find_one($1, $2::jsonb, $3);
PREPARE document AS SELECT docshard.insert_one($1, $2, $3);
PREPARE documents AS SELECT docshard.insert_many($1, $2);
PREPARE command AS SELECT docshard.run_command($1, $2);
PREPARE named AS SELECT docshard.find(ns => $1, options => $2);
SELECT name, parameter_types FROM pg_prepared_statements ORDER BY name;
EXECUTE untyped('args.c', '{"_id": 2}', '{}');
EXECUTE beside_jsonb('args.c', '{"_id": {"$gt": 0}}', '{"sort": {"b": -1, "a": 1}}');
DEALLOCATE ALL;

-- jsonb has lost the order of fields: an order of several is refused.
SELECT docshard.find('args.c', '{}', jsonb_build_object('sort', jsonb_build_object('likes', -1, 'a', 1)));
SELECT docshard.find_one('args.c', '{}', '{"hint": {"a": 1, "b": 1}}'::jsonb);
SELECT docshard.aggregate('args.c', '[{"$lookup": {"from": "c", "pipeline": [{"$sort": {"b": 1, "a": 1}}], "as": "l"}}]'::jsonb);
SELECT docshard.update_many('args.c', '{}', '{"$push": {"l": {"$each": [], "$sort": {"b": 1, "a": 1}}}}'::jsonb);
SELECT docshard.create_index('args.c', '{"b": 1, "a": 1}'::jsonb);
SELECT docshard.create_indexes('args.c', '[{"key": {"b": 1, "a": 1}}]'::jsonb);
SELECT docshard.shard_collection('args.s', '{"b": 1, "a": 1}'::jsonb);
SELECT docshard.run_command('args', '{"find": "c", "sort": {"b": 1, "a": 1}}'::jsonb);
SELECT docshard.run_command('args', '{"dropIndexes": "c", "index": {"b": 1, "a": 1}}'::jsonb);
SELECT docshard.run_command('args', '{"collMod": "c", "index": {"keyPattern": {"b": 1, "a": 1}, "hidden": true}}'::jsonb);

-- An order may be an array of pairs.
SELECT docshard.find('args.c', '{"_id": {"$lt": 5}}', '{"sort": [["a", -1], ["b", 1]], "projection": {"a": 1, "b": 1}}'::jsonb);
SELECT docshard.find('args.c', '{"_id": {"$lt": 5}}', '{"sort": [["b", -1], ["a", 1]], "projection": {"a": 1, "b": 1}}');
SELECT docshard.aggregate('args.c', '[{"$sort": [["a", -1], ["b", -1]]}, {"$limit": 1}, {"$project": {"a": 1, "b": 1}}]'::jsonb);
SELECT docshard.find('args.c', '{}', '{"sort": [["a", 1], ["a", -1]]}');
SELECT docshard.find('args.c', '{}', '{"sort": ["a"]}');
SELECT docshard.find('args.c', '{}', '{"sort": []}');
SELECT docshard.aggregate('args.c', '[{"$sort": []}]');
SELECT docshard.aggregate('args.c', '[{"$match": {"_id": {"$lt": 4}}}, {"$setWindowFields": {"sortBy": [["a", -1], ["b", 1]], "output": {"n": {"$sum": 1, "window": {"documents": ["unbounded", "current"]}}}}}, {"$project": {"n": 1}}]'::jsonb);
SELECT docshard.aggregate('args.c', '[{"$match": {"_id": {"$lt": 5}}}, {"$group": {"_id": null, "top": {"$topN": {"n": 2, "sortBy": [["a", -1], ["b", 1]], "output": "$_id"}}}}]'::jsonb);
SELECT docshard.aggregate('args.c', '[{"$limit": 1}, {"$project": {"_id": 0, "l": {"$sortArray": {"input": [{"x": 1, "y": 1}, {"x": 2, "y": 1}, {"x": 2, "y": 0}], "sortBy": [["x", -1], ["y", 1]]}}}}]'::jsonb);
SELECT docshard.update_one('args.c', '{"_id": 2}', '{"$push": {"l": {"$each": [{"x": 1, "y": 1}, {"x": 2, "y": 1}, {"x": 2, "y": 0}], "$sort": [["x", -1], ["y", 1]]}}}'::jsonb) -> 'modifiedCount' AS modified;
SELECT docshard.find_one('args.c', '{"_id": 2}') -> 'l' AS l;
SELECT docshard.create_index('args.c', '[["b", 1], ["a", -1]]'::jsonb, '{"name": "pairs"}'::jsonb);
SELECT docshard.find('args.c', '{"b": 1}', '{"hint": [["b", 1], ["a", -1]], "projection": {"a": 1}, "sort": {"a": 1}}'::jsonb);
SELECT docshard.shard_collection('args.s', '[["z", 1], ["a", 1]]'::jsonb) -> 'ok' AS ok;
SELECT namespace, key FROM docshard.collections WHERE namespace = 'args.s';
SELECT name, keys FROM docshard.list_indexes('args.c');
SELECT docshard.run_command('args', '{"collMod": "c", "index": {"keyPattern": [["b", 1], ["a", -1]], "hidden": true}}'::jsonb);
SELECT docshard.run_command('args', '{"collMod": "c", "index": {"name": "pairs", "hidden": false}}'::jsonb);
SELECT docshard.run_command('args', '{"dropIndexes": "c", "index": [["b", 1], ["a", -1]]}'::jsonb);

-- The name of a command is found, wherever jsonb has put it.
SELECT docshard.run_command('args', '{"aggregate": "c", "pipeline": [{"$count": "n"}], "cursor": {}}'::jsonb) -> 'cursor' -> 'firstBatch' AS batch;
SELECT docshard.run_command('args', '{"findAndModify": "c", "query": {"_id": 5}, "update": {"$set": {"a": 5}}, "new": true}'::jsonb) -> 'value' AS value;
SELECT docshard.run_command('args', '{"explain": {"count": "c", "query": {}}, "verbosity": "queryPlanner"}'::jsonb) -> 'ok' AS ok;
SELECT docshard.run_command('args', '{"count": "c", "distinct": "c", "key": "a"}'::jsonb);
SELECT docshard.run_command('args', '{"a": 1, "b": 1}'::jsonb) -> 'codeName' AS code;

-- The type.
SELECT '{"b": 1, "a": 1}'::docshard.any_json, '{"a": 1}'::jsonb::docshard.any_json, '{"a" : 1}'::json::docshard.any_json, '[1]'::text::docshard.any_json;
SELECT '{"a"'::docshard.any_json;
SELECT docshard.find('args.c', docs) FROM (VALUES ('{"_id": 1}'::docshard.any_json), (NULL)) AS given (docs);
SELECT docshard.find_one('args.c', (repeat('[', 10000) || repeat(']', 10000))::jsonb);
SELECT docshard.find_one('args.c', (repeat('{"a":', 1000) || '1' || repeat('}', 1000))::jsonb);

-- Both forms run the same code: there are no more pairs of functions than these.
SELECT p.proname, p.oid::regprocedure AS form, q.prosrc <> p.prosrc AS has_own_code
  FROM pg_proc p JOIN pg_proc q ON q.proname = p.proname AND q.pronamespace = p.pronamespace AND q.oid <> p.oid AND NOT 'varchar'::regtype = ANY (q.proargtypes)
 WHERE p.pronamespace = 'docshard'::regnamespace AND 'varchar'::regtype = ANY (p.proargtypes) ORDER BY 1;
SELECT docshard.drop_database('args') -> 'ok' AS ok;
