-- $out replaces a collection by what a pipeline makes, and returns nothing.
SELECT docshard.insert_many('outs.sales', ARRAY['{"_id": 1, "item": "a", "qty": 2}', '{"_id": 2, "item": "b", "qty": 3}', '{"_id": 3, "item": "a", "qty": 5}']::jsonb[]) -> 'insertedCount' AS inserted;
-- A collection that does not exist is created, also for no documents, and in another database.
SELECT docshard.aggregate('outs.sales', '[{"$group": {"_id": "$item", "qty": {"$sum": "$qty"}}}, {"$out": "totals"}]');
SELECT docshard.find('outs.totals', '{}', '{"sort": {"_id": 1}}');
SELECT docshard.aggregate('outs.sales', '[{"$match": {"_id": -1}}, {"$out": {"db": "outs2", "coll": "none"}}]');
SELECT namespace FROM docshard.collections WHERE namespace LIKE 'outs%' ORDER BY 1;
-- Options and indexes stay.
SELECT docshard.create_collection('outs.target', '{"collation": {"locale": "en", "strength": 2}}') -> 'ok' AS ok;
SELECT docshard.create_index('outs.target', '{"item": 1}', '{"unique": true}');
SELECT docshard.insert_one('outs.target', '{"_id": 1, "item": "old"}') -> 'insertedId' AS id;
SELECT docshard.aggregate('outs.sales', '[{"$match": {"_id": {"$lte": 2}}}, {"$out": "target"}]');
SELECT docshard.find('outs.target', '{"item": {"$in": ["A", "B"]}}', '{"sort": {"_id": 1}}');
SELECT docshard.list_indexes('outs.target');
-- All or nothing.
SELECT docshard.aggregate('outs.sales', '[{"$out": "target"}]');
SELECT docshard.count_documents('outs.target');
BEGIN;
SELECT docshard.aggregate('outs.sales', '[{"$match": {"_id": 3}}, {"$out": "target"}]');
SELECT docshard.find('outs.target');
ROLLBACK;
SELECT docshard.count_documents('outs.target');
-- Into the collection that is read.
SELECT docshard.aggregate('outs.sales', '[{"$group": {"_id": "$item", "qty": {"$sum": "$qty"}}}, {"$out": "sales"}]');
SELECT docshard.find('outs.sales', '{}', '{"sort": {"_id": 1}}');
-- Documents without _id are given one.
SELECT docshard.aggregate('outs.sales', '[{"$unset": "_id"}, {"$out": "target"}]');
SELECT docshard.aggregate('outs.sales', '[{"$unset": "_id"}, {"$set": {"item": "$qty"}}, {"$out": "target"}]');
SELECT docshard.aggregate('outs.target', '[{"$group": {"_id": {"$type": "$_id"}, "n": {"$sum": 1}}}]');
-- What it refuses.
SELECT docshard.shard_collection('outs.sharded', '{"k": 1}') -> 'ok' AS ok;
SELECT docshard.aggregate('outs.sales', '[{"$out": "sharded"}]');
SELECT docshard.aggregate('outs.sales', '[{"$out": "target"}, {"$match": {}}]');
SELECT docshard.aggregate('outs.sales', '[{"$facet": {"a": [{"$out": "target"}]}}]');
SELECT docshard.aggregate('outs.sales', '[{"$out": {"db": "config", "coll": "shards"}}]');
SELECT docshard.aggregate('outs.sales', '[{"$out": "system.x"}]');
SELECT docshard.run_command('outs', '{"explain": {"aggregate": "sales", "pipeline": [{"$out": "never"}], "cursor": {}}, "verbosity": "executionStats"}') ->> 'code' AS code;
SELECT docshard.aggregate('outs.sales', '[{"$out": "with$"}]');
BEGIN READ ONLY;
SELECT docshard.aggregate('outs.sales', '[{"$out": "target"}]');
ROLLBACK;
SELECT docshard.drop_database('outs2') -> 'ok' AS ok;
-- Views can be read, but not written, and do not write.
SELECT docshard.create_collection('outs.view', '{"viewOn": "sales", "pipeline": [{"$match": {"qty": {"$gte": 2}}}]}') -> 'ok' AS ok;
SELECT docshard.aggregate('outs.sales', '[{"$out": "view"}]');
SELECT docshard.aggregate('outs.view', '[{"$out": "ofview"}]');
SELECT docshard.find('outs.ofview');
SELECT docshard.create_collection('outs.writing', '{"viewOn": "sales", "pipeline": [{"$out": "target"}]}');
SELECT docshard.drop_database('outs') -> 'ok' AS ok;
