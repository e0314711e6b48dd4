-- Aggregations: the beginning of a pipeline becomes a find, the other stages process its documents.
SELECT docshard.shard_collection('agg.sales', '{"_id": "hashed"}');
SELECT docshard.insert_many('agg.sales', array_agg(jsonb_build_object('_id', n, 'item', 'i' || n % 4, 'qty', n % 7, 'tags', jsonb_build_array(n % 2, 'x'))))
  -> 'insertedCount' AS inserted FROM generate_series(1, 500) n;
SELECT docshard.aggregate('agg.sales', '[{"$match": {"qty": {"$gte": 3}}}, {"$group": {"_id": "$item", "n": {"$sum": 1}, "average": {"$avg": "$qty"}}}, {"$sort": {"_id": 1}}]');
SELECT docshard.aggregate('agg.sales', '[{"$unwind": "$tags"}, {"$sortByCount": "$tags"}]');
SELECT docshard.aggregate('agg.sales', '[{"$sort": {"_id": -1}}, {"$skip": 2}, {"$limit": 2}, {"$project": {"item": 1, "twice": {"$multiply": ["$qty", 2]}}}]');
SELECT docshard.aggregate('agg.sales', '[{"$match": {"_id": {"$in": [1, 2, 3]}}}, {"$facet": {"count": [{"$count": "n"}], "top": [{"$group": {"_id": null, "top": {"$topN": {"n": 2, "sortBy": {"_id": -1}, "output": "$item"}}}}]}}]');
SELECT docshard.aggregate('agg.sales', '[{"$bucketAuto": {"groupBy": "$_id", "buckets": 2}}]');
SELECT docshard.aggregate('agg.sales', '[{"$count": "n"}]');
SELECT docshard.aggregate('agg.sales', '[{"$sample": {"size": 3}}, {"$count": "n"}]');
SELECT docshard.aggregate('agg.sales', '[]') LIMIT 0;
SELECT docshard.aggregate('agg.nothing', '[{"$count": "n"}]');
-- Variables and the time.
SELECT docshard.aggregate('agg.sales', '[{"$match": {"$expr": {"$eq": ["$_id", "$$id"]}}}, {"$project": {"now": {"$type": "$$NOW"}, "id": "$$id"}}]', '{"let": {"id": 7}}');
-- A collation: by default the collection's, else the given one.
SELECT docshard.create_collection('agg.names', '{"collation": {"locale": "en", "strength": 2}}');
SELECT docshard.insert_many('agg.names', ARRAY['{"_id": 1, "n": "ann"}', '{"_id": 2, "n": "ANN"}', '{"_id": 3, "n": "bob"}']::jsonb[]) -> 'insertedCount' AS inserted;
SELECT docshard.aggregate('agg.names', '[{"$match": {"n": "aNN"}}, {"$group": {"_id": "$n", "c": {"$sum": 1}}}]');
SELECT docshard.aggregate('agg.names', '[{"$match": {"n": "aNN"}}, {"$group": {"_id": "$n", "c": {"$sum": 1}}}]', '{"collation": {"locale": "simple"}}');
-- Without a collection, and over the catalog.
SELECT docshard.aggregate('agg.$cmd.aggregate', '[{"$documents": [{"a": 1}, {"a": 2}]}, {"$match": {"a": 2}}]');
SELECT docshard.aggregate('agg.$cmd.aggregate', '[{"$match": {}}]');
SELECT docshard.aggregate('agg.sales', '[{"$documents": []}]');
SELECT docshard.aggregate('config.collections', '[{"$match": {"_id": {"$regex": "^agg"}}}, {"$group": {"_id": null, "n": {"$sum": 1}}}]');
-- If groups, or documents to be sorted, exceed the memory, they go to temporary files, which are removed when the statement ends.
SET work_mem = '64kB';
SELECT docshard.aggregate('agg.sales', '[{"$unwind": "$tags"}, {"$group": {"_id": {"i": "$_id", "t": "$tags"}, "all": {"$push": "$$ROOT"}}}, {"$group": {"_id": null, "groups": {"$sum": 1}, "most": {"$max": {"$size": "$all"}}}}]');
SELECT docshard.aggregate('agg.sales', '[{"$set": {"k": {"$mod": [{"$multiply": ["$_id", 7919]}, 500]}, "s": {"$range": [0, 50]}}}, {"$sort": {"k": 1}}, {"$project": {"k": 1}}]') LIMIT 3;
BEGIN;
DECLARE c CURSOR FOR SELECT docshard.aggregate('agg.sales', '[{"$set": {"s": {"$range": [0, 50]}}}, {"$sort": {"qty": -1, "_id": 1}}, {"$project": {"qty": 1}}]');
FETCH 2 FROM c;
SAVEPOINT s;
FETCH 1 FROM c;
SELECT docshard.aggregate('agg.sales', '[{"$set": {"s": {"$range": [0, 50]}}}, {"$sort": {"qty": 1}}, {"$project": {"x": {"$divide": [1, "$qty"]}}}]');
ROLLBACK TO s;
FETCH 1 FROM c;
CLOSE c;
COMMIT;
RESET work_mem;
SELECT docshard.aggregate('agg.sales', '[{"$set": {"s": {"$range": [0, 20000]}}}, {"$sort": {"qty": 1}}, {"$count": "n"}]', '{"allowDiskUse": false}');
-- The state of one group may have 100 MB, wherever its documents are.
SELECT docshard.aggregate('agg.sales', '[{"$set": {"s": {"$range": [0, 20000]}}}, {"$group": {"_id": null, "all": {"$push": "$s"}}}]');
-- Refused.
SELECT docshard.aggregate('agg.sales', '[{"$geoNear": {}}]');
SELECT docshard.aggregate('agg.sales', '[{"$nope": {}}]');
SELECT docshard.aggregate('agg.sales', '[{"$_partialGroup": {"_id": 1}}]');
SELECT docshard.aggregate('agg.sales', '{"$match": {}}');
SELECT docshard.aggregate('agg.sales', '[]', '{"limit": 1}');
SELECT docshard.aggregate('agg', '[]');
SELECT docshard.drop_database('agg');
