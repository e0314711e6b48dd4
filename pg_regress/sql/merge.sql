-- $merge writes what a pipeline makes, and returns nothing.
SELECT docshard.insert_many('merging.sales', ARRAY['{"_id": 1, "item": "a", "qty": 2}', '{"_id": 2, "item": "b", "qty": 3}', '{"_id": 3, "item": "a", "qty": 5}', '{"_id": 4, "item": "c", "qty": 1}']::jsonb[]) -> 'insertedCount' AS inserted;
-- A collection that does not exist is created.
SELECT docshard.aggregate('merging.sales', '[{"$group": {"_id": "$item", "qty": {"$sum": "$qty"}}}, {"$merge": "totals"}]');
SELECT docshard.find('merging.totals', '{}', '{"sort": {"_id": 1}}');
-- Another database.
SELECT docshard.aggregate('merging.sales', '[{"$match": {"_id": 1}}, {"$merge": {"into": {"db": "merging2", "coll": "sales"}}}]');
SELECT docshard.find('merging2.sales');
SELECT docshard.drop_database('merging2') -> 'ok' AS ok;
SELECT docshard.aggregate('merging.sales', '[{"$merge": {"into": {"db": "merging.target", "coll": "sales"}}}]');
SELECT docshard.aggregate('merging.sales', '[{"$out": {"db": "merging.target", "coll": "sales"}}]');
-- What becomes of a document that matches.
SELECT docshard.create_collection('merging.target') -> 'ok' AS ok;
CREATE FUNCTION pg_temp.merged(options jsonb) RETURNS SETOF jsonb LANGUAGE plpgsql AS $$
BEGIN
  PERFORM docshard.delete_many('merging.target', '{}');
  PERFORM docshard.insert_many('merging.target', ARRAY['{"_id": 1, "old": true, "qty": 10}', '{"_id": 9, "old": true}']::jsonb[]);
  PERFORM docshard.aggregate('merging.sales', json_build_array('{"$match": {"_id": {"$lte": 2}}}'::json, json_build_object('$merge', '{"into": "target"}'::jsonb || options)));
  RETURN QUERY SELECT docshard.find('merging.target', '{}', '{"sort": {"_id": 1}}');
EXCEPTION WHEN OTHERS THEN
  RAISE NOTICE '% %', SQLSTATE, SQLERRM;
END $$;
SELECT pg_temp.merged('{}');
SELECT pg_temp.merged('{"whenMatched": "merge", "whenNotMatched": "discard"}');
SELECT pg_temp.merged('{"whenMatched": "merge", "whenNotMatched": "fail"}');
SELECT pg_temp.merged('{"whenMatched": "replace"}');
SELECT pg_temp.merged('{"whenMatched": "replace", "whenNotMatched": "discard"}');
SELECT pg_temp.merged('{"whenMatched": "replace", "whenNotMatched": "fail"}');
SELECT pg_temp.merged('{"whenMatched": "keepExisting"}');
SELECT pg_temp.merged('{"whenMatched": "fail"}');
SELECT pg_temp.merged('{"whenMatched": [{"$set": {"qty": {"$add": ["$qty", "$$new.qty"]}}}]}');
SELECT pg_temp.merged('{"whenMatched": [{"$set": {"qty": {"$add": ["$qty", "$$n"]}, "item": "$$new.item"}}], "let": {"n": {"$multiply": ["$qty", 100]}}, "whenNotMatched": "discard"}');
-- A variable without a value is undefined.
SELECT pg_temp.merged('{"whenMatched": [{"$set": {"none": "$$none"}}], "let": {"none": "$nothing"}}');
SELECT pg_temp.merged('{"whenMatched": [{"$unset": "old"}], "whenNotMatched": "fail"}');
SELECT pg_temp.merged('{"whenMatched": "keepExisting", "whenNotMatched": "discard"}');
SELECT pg_temp.merged('{"whenMatched": "fail", "whenNotMatched": "fail"}');
-- Several documents of a batch change the same one, in their order.
SELECT docshard.insert_one('merging.counted', '{"_id": "a", "old": true, "n": 0}') -> 'insertedId' AS id;
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT docshard.aggregate('merging.sales', '[{"$sort": {"_id": 1}}, {"$set": {"_id": "$item"}}, {"$merge": {"into": "counted", "whenMatched": [{"$set": {"n": {"$add": ["$n", 1]}, "last": "$$new.qty"}}], "whenNotMatched": "discard"}}]');
SELECT docshard.aggregate('merging.sales', '[{"$sort": {"_id": 1}}, {"$set": {"_id": "$item"}}, {"$merge": {"into": "counted", "whenMatched": [{"$set": {"n": {"$add": [{"$ifNull": ["$n", 0]}, 1]}}}]}}]');
SELECT docshard.find('merging.counted', '{}', '{"sort": {"_id": 1}}');
COMMIT;
-- What may not change.
SELECT pg_temp.merged('{"whenMatched": [{"$set": {"_id": 7}}]}');
SELECT pg_temp.merged('{"whenMatched": [{"$set": {"$x": 7}}]}');
-- Other fields than _id need a unique index.
SELECT pg_temp.merged('{"on": "item"}');
SELECT docshard.create_index('merging.target', '{"item": 1}', '{"unique": true, "sparse": true}');
SELECT docshard.aggregate('merging.sales', '[{"$match": {"_id": {"$gt": 1}}}, {"$project": {"_id": 0, "item": 1, "qty": 1}}, {"$sort": {"qty": 1}}, {"$merge": {"into": "target", "on": "item", "whenMatched": [{"$set": {"qty": {"$add": ["$qty", "$$new.qty"]}}}]}}]');
SELECT docshard.find('merging.target', '{}', '{"sort": {"item": 1}, "projection": {"_id": {"$type": "$_id"}, "item": 1, "qty": 1}}');
SELECT docshard.aggregate('merging.sales', '[{"$match": {"_id": 1}}, {"$merge": {"into": "target", "on": "item", "whenMatched": "replace"}}]');
SELECT docshard.aggregate('merging.sales', '[{"$match": {"_id": 1}}, {"$unset": "_id"}, {"$merge": {"into": "target", "on": "item", "whenMatched": "replace", "whenNotMatched": "fail"}}]');
SELECT docshard.find('merging.target', '{"item": "a"}', '{"projection": {"_id": {"$type": "$_id"}, "item": 1, "qty": 1}}');
SELECT docshard.aggregate('merging.sales', '[{"$unset": "item"}, {"$merge": {"into": "target", "on": "item"}}]');
SELECT docshard.aggregate('merging.sales', '[{"$set": {"item": ["a"]}}, {"$merge": {"into": "target", "on": "item"}}]');
SELECT docshard.aggregate('merging.sales', '[{"$merge": {"into": "target", "on": ["item", "_id"]}}]');
SELECT docshard.aggregate('merging.sales', '[{"$merge": {"into": "target", "on": "item"}}]', '{"collation": {"locale": "en"}}');
SELECT docshard.aggregate('merging.sales', '[{"$merge": {"into": "nothing", "on": "item"}}]');
-- Several documents of one pipeline have the same item: the first is inserted, and the others change it.
SELECT docshard.delete_many('merging.target', '{}') -> 'acknowledged' AS ok;
SELECT docshard.aggregate('merging.sales', '[{"$project": {"_id": 0, "item": 1, "qty": 1}}, {"$merge": {"into": "target", "on": "item", "whenMatched": [{"$set": {"qty": {"$add": ["$qty", "$$new.qty"]}}}]}}]');
SELECT docshard.find('merging.target', '{}', '{"sort": {"item": 1}, "projection": {"_id": 0}}');
-- A document of the same item, but another _id, violates the index.
SELECT docshard.aggregate('merging.sales', '[{"$match": {"_id": 2}}, {"$set": {"_id": "other"}}, {"$merge": "target"}]');
SELECT docshard.aggregate('merging.sales', '[{"$match": {"_id": 2}}, {"$set": {"_id": "other"}}, {"$merge": {"into": "target", "whenMatched": "keepExisting"}}]');
-- Into a sharded collection, a document matches by the shard key and _id.
SELECT docshard.shard_collection('merging.ranged', '{"k": 1}') -> 'ok' AS ok;
SELECT docshard.aggregate('merging.sales', '[{"$set": {"k": "$item"}}, {"$merge": "ranged"}]');
SELECT docshard.aggregate('merging.sales', '[{"$set": {"k": "$item"}}, {"$project": {"k": 1, "more": {"$literal": 1}}}, {"$merge": {"into": "ranged", "on": ["_id", "k"], "whenNotMatched": "fail"}}]');
SELECT docshard.find('merging.ranged', '{}', '{"sort": {"_id": 1}}');
SELECT docshard.aggregate('merging.sales', '[{"$merge": "ranged"}]');
SELECT docshard.aggregate('merging.sales', '[{"$set": {"k": "$item"}}, {"$merge": {"into": "ranged", "on": "_id"}}]');
SELECT docshard.aggregate('merging.sales', '[{"$set": {"k": "$item"}}, {"$merge": {"into": "ranged", "whenMatched": [{"$set": {"k": "z"}}]}}]');
-- Into the collection that is read: each document is written once.
SELECT docshard.aggregate('merging.ranged', '[{"$set": {"_id": {"$add": ["$_id", 100]}}}, {"$merge": "ranged"}]');
SELECT docshard.aggregate('merging.ranged', '[{"$match": {"_id": {"$gt": 100}}}, {"$set": {"_id": {"$subtract": ["$_id", 100]}, "again": true}}, {"$merge": "ranged"}]');
SELECT docshard.count_documents('merging.ranged'), docshard.count_documents('merging.ranged', '{"again": true}');
-- A transaction that is rolled back, and one that only reads.
BEGIN;
SELECT docshard.aggregate('merging.sales', '[{"$set": {"k": 1}}, {"$merge": "ranged"}]');
SELECT docshard.count_documents('merging.ranged', '{"k": 1}');
ROLLBACK;
SELECT docshard.count_documents('merging.ranged', '{"k": 1}');
BEGIN READ ONLY;
SELECT docshard.aggregate('merging.sales', '[{"$match": {"_id": -1}}, {"$merge": "ranged"}]');
ROLLBACK;
-- A unique index that is not sparse has one entry for null and for a missing value.
SELECT docshard.create_index('merging.keyed', '{"k.a": 1}', '{"unique": true}');
SELECT docshard.insert_one('merging.keyed', '{"_id": 2, "k": {"a": 1}}') ->> 'insertedId' AS id;
SELECT docshard.aggregate('merging.$cmd.aggregate', '[{"$documents": [{"_id": 1, "new": 1}]}, {"$merge": {"into": "keyed", "on": "k.a"}}]');
SELECT docshard.aggregate('merging.$cmd.aggregate', '[{"$documents": [{"k": {"a": null}, "more": 2}, {"k": 3, "more": 3}]}, {"$merge": {"into": "keyed", "on": "k.a"}}]');
SELECT docshard.find('merging.keyed', '{}', '{"sort": {"_id": 1}}');
SELECT docshard.aggregate('merging.$cmd.aggregate', '[{"$documents": [{"_id": 7}]}, {"$merge": {"into": "keyed", "on": "k.a"}}]');
-- Where it may not be, and what it does not understand.
SELECT docshard.aggregate('merging.sales', '[{"$merge": "target"}, {"$match": {}}]');
SELECT docshard.aggregate('merging.sales', '[{"$facet": {"a": [{"$merge": "target"}]}}]');
SELECT docshard.update_one('merging.sales', '{}', '[{"$merge": "target"}]');
SELECT docshard.aggregate('merging.sales', '[{"$merge": {"into": {"db": "config", "coll": "shards"}}}]');
SELECT docshard.aggregate('merging.sales', '[{"$merge": "system.x"}]');
SELECT docshard.run_command('merging', '{"explain": {"aggregate": "sales", "pipeline": [{"$merge": "never"}], "cursor": {}}, "verbosity": "executionStats"}') ->> 'code' AS code;
SELECT docshard.aggregate('merging.sales', '[{"$merge": "with$"}]');
SELECT docshard.aggregate('merging.sales', '[{"$merge": {"into": "target", "whenMatched": [{"$group": {"_id": 1}}]}}]');
SELECT docshard.aggregate('merging.sales', '[{"$merge": {"into": "target", "whenMatched": [{"$set": {"a": "$$unknown"}}]}}]');
SELECT docshard.aggregate('merging.$cmd.aggregate', '[{"$documents": [{"_id": 1, "a": 1}]}, {"$merge": "documents"}]');
SELECT docshard.find('merging.documents');
-- Views can be read, but not written, and do not write.
SELECT docshard.create_collection('merging.view', '{"viewOn": "sales", "pipeline": [{"$match": {"_id": 1}}]}') -> 'ok' AS ok;
SELECT docshard.aggregate('merging.sales', '[{"$merge": "view"}]');
SELECT docshard.aggregate('merging.view', '[{"$merge": "ofview"}]');
SELECT docshard.find('merging.ofview');
SELECT docshard.create_collection('merging.writing', '{"viewOn": "sales", "pipeline": [{"$merge": "target"}]}');
SELECT docshard.drop_database('merging') -> 'ok' AS ok;
