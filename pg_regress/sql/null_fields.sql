-- Null for an optional field of a stage or a command counts as missing, unless it is an option of an index or the filter of find.
SELECT docshard.insert_many('nil.t', ARRAY['{"_id": 1, "a": 1}', '{"_id": 2, "a": 2}']::jsonb[]);
SELECT docshard.aggregate('nil.t', '[{"$lookup": {"from": "t", "as": "o", "let": null, "pipeline": [{"$count": "n"}]}}, {"$sort": {"_id": 1}}]');
SELECT docshard.aggregate('nil.t', '[{"$lookup": {"from": "t", "as": "o", "localField": "a", "foreignField": "_id", "let": null}}, {"$match": {"_id": 1}}]');
SELECT docshard.aggregate('nil.t', '[{"$lookup": {"from": "t", "as": "o", "localField": null, "foreignField": null, "pipeline": [{"$count": "n"}]}}, {"$match": {"_id": 1}}]');
SELECT docshard.aggregate('nil.t', '[{"$unionWith": {"coll": "t", "pipeline": null}}, {"$count": "n"}]');
SELECT docshard.aggregate('nil.t', '[{"$fill": {"sortBy": {"_id": 1}, "partitionBy": null, "partitionByFields": null, "output": {"b": {"value": 1}}}}, {"$sort": {"_id": 1}}]');
SELECT docshard.aggregate('nil.t', '[{"$setWindowFields": {"partitionBy": null, "sortBy": null, "output": {"n": {"$sum": "$a"}}}}, {"$sort": {"_id": 1}}]');
SELECT docshard.aggregate('nil.t', '[{"$densify": {"field": "a", "partitionByFields": null, "range": {"step": 1, "bounds": "full"}}}, {"$count": "n"}]');
SELECT docshard.aggregate('nil.t', '[{"$merge": {"into": "u", "let": null, "whenMatched": "merge", "whenNotMatched": null}}]');
SELECT docshard.aggregate('nil.t', '[{"$merge": {"into": "u", "let": null, "whenMatched": [{"$set": {"n": "$$new.a"}}]}}]');
SELECT docshard.aggregate('nil.t', '[{"$out": {"db": "nil", "coll": "v", "timeseries": null}}]');
SELECT docshard.find('nil.u', '{}', '{"sort": {"_id": 1}}');
SELECT docshard.count_documents('nil.v', '{}');
SELECT docshard.run_command('nil', '{"count": "t", "query": null, "limit": null, "comment": null}');
SELECT docshard.run_command('nil', '{"find": "t", "sort": null, "projection": null, "limit": 1}');
-- These are required, or have a check of their own.
SELECT docshard.aggregate('nil.t', '[{"$lookup": {"from": null, "as": "o", "localField": "a", "foreignField": "_id"}}]');
SELECT docshard.aggregate('nil.t', '[{"$lookup": {"from": "t", "as": null, "localField": "a", "foreignField": "_id"}}]');
SELECT docshard.aggregate('nil.t', '[{"$lookup": {"from": "t", "as": "o", "localField": "a", "foreignField": null}}]');
SELECT docshard.aggregate('nil.t', '[{"$lookup": {"from": "t", "as": "o", "pipeline": null}}]');
SELECT docshard.aggregate('nil.t', '[{"$merge": {"into": null}}]');
SELECT docshard.aggregate('nil.t', '[{"$merge": {"into": "u", "on": null}}]');
SELECT docshard.aggregate('nil.t', '[{"$out": {"db": "nil", "coll": null}}]');
SELECT docshard.run_command('nil', '{"find": "t", "filter": null}');
SELECT docshard.create_index('nil.t', '{"a": 1}', '{"unique": null}');
SELECT docshard.create_index('nil.t', '{"a": 1}', '{"partialFilterExpression": null}');
SELECT docshard.run_command('nil', '{"createIndexes": "t", "indexes": [{"key": {"a": 1}, "name": "a", "expireAfterSeconds": null}]}');
SELECT docshard.run_command('nil', '{"createIndexes": "t", "indexes": [{"key": {"a": 1}, "name": "a", "sparse": null}]}');
SELECT docshard.run_command('nil', '{"createIndexes": "t", "indexes": [{"key": {"a": 1}, "name": "a", "collation": null}]}');
-- $collStats of a missing collection has a document, without sizes.
SELECT docshard.aggregate('nil.none', '[{"$collStats": {}}, {"$project": {"localTime": 0}}]');
SELECT docshard.aggregate('nil.none', '[{"$collStats": {"count": null, "storageStats": null, "queryExecStats": null}}, {"$project": {"ns": 1}}]');
SELECT docshard.aggregate('nil.none', '[{"$collStats": {"count": {}}}]');
SELECT docshard.aggregate('nil.t', '[{"$collStats": {"count": null}}, {"$project": {"ns": 1, "count": 1}}]');
-- A list of "*" drops all indexes.
SELECT docshard.create_index('nil.t', '{"a": 1}');
SELECT docshard.run_command('nil', '{"dropIndexes": "t", "index": ["*", "a_1"]}');
SELECT docshard.run_command('nil', '{"dropIndexes": "t", "index": ["*"]}');
SELECT docshard.run_command('nil', '{"dropIndexes": "t", "index": []}');
-- The number of dropDatabase may be of any type; it is taken without its fraction, a decimal rounded.
SELECT docshard.run_command('nil2', '{"dropDatabase": 1.0}');
SELECT docshard.run_command('nil2', '{"dropDatabase": 1.999}');
SELECT docshard.run_command('nil2', '{"dropDatabase": {"$numberDecimal": "0.9"}}');
SELECT docshard.run_command('nil2', '{"dropDatabase": {"$numberLong": "1"}}');
SELECT docshard.run_command('nil2', '{"dropDatabase": {"$numberDecimal": "1.5"}}');
SELECT docshard.run_command('nil2', '{"dropDatabase": {"$numberDouble": "NaN"}}');
SELECT docshard.run_command('nil2', '{"dropDatabase": 2}');
SELECT docshard.run_command('nil2', '{"dropDatabase": true}');
SELECT docshard.run_command('nil2', '{"dropDatabase": null}');
-- To a command, null of a required field is none, and no hint.
SELECT docshard.run_command('nil', '{"distinct": "t", "key": null}');
SELECT docshard.run_command('nil', '{"delete": "t", "deletes": [{"q": null, "limit": 1}]}');
SELECT docshard.run_command('nil', '{"aggregate": "t", "pipeline": null, "cursor": {}}');
SELECT docshard.run_command('nil', '{"find": "t", "hint": null}');
SELECT docshard.run_command('nil', '{"count": "t", "hint": 5}');
SELECT docshard.find('nil.t', '{}', '{"hint": null, "limit": 1}');
SELECT docshard.drop_database('nil');
