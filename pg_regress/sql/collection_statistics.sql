-- $collStats and $indexStats describe a collection and its indexes at each shard.
SELECT docshard.shard_collection('stated.sharded', '{"k": 1}') -> 'ok' AS ok;
SELECT docshard.create_index('stated.sharded', '{"k": 1, "a": -1}');
SELECT docshard.insert_many('stated.sharded', array_agg(jsonb_build_object('_id', n, 'k', n % 3, 'a', n))) -> 'insertedCount' AS inserted FROM generate_series(1, 10) n;
SELECT docshard.aggregate('stated.sharded', '[{"$collStats": {"count": {}}}]') - 'localTime';
SELECT docshard.aggregate('stated.sharded', '[{"$collStats": {"storageStats": {}}}, {"$project": {"shard": 1, "type": {"$type": "$localTime"}, "storageStats.count": 1, "storageStats.nindexes": 1, "positive": {"$gt": ["$storageStats.size", 0]}, "names": {"$map": {"input": {"$objectToArray": "$storageStats.indexSizes"}, "in": "$$this.k"}}}}]');
SELECT docshard.aggregate('stated.sharded', '[{"$collStats": {"storageStats": {"scale": 1048576}}}, {"$project": {"size": "$storageStats.size", "scaleFactor": "$storageStats.scaleFactor"}}]');
SELECT docshard.aggregate('stated.sharded', '[{"$indexStats": {}}, {"$project": {"name": 1, "key": 1, "shard": 1, "ops": {"$type": "$accesses.ops"}, "spec": 1}}, {"$sort": {"name": 1}}]');
SELECT docshard.aggregate('stated.sharded', '[{"$collStats": {"count": {}}}, {"$group": {"_id": null, "n": {"$sum": "$count"}}}]');
SELECT docshard.aggregate('config.databases', '[{"$collStats": {"count": {}}}, {"$project": {"ns": 1, "is": {"$gte": ["$count", 1]}}}]');
-- Their explanation reads no documents.
SELECT docshard.explain('stated.sharded', format('[{"%s": {}}, {"$sort": {"name": 1}}]', stage)::json, '{}', 'executionStats') FROM unnest('{$collStats,$indexStats}'::text[]) stage;
-- As the first stage of a pipeline over another collection.
SELECT docshard.aggregate('stated.sharded', '[{"$match": {"_id": 1}}, {"$unionWith": {"coll": "sharded", "pipeline": [{"$collStats": {"count": {}}}, {"$project": {"shard": 1, "count": 1}}]}}]');
SELECT docshard.aggregate('stated.sharded', '[{"$match": {"_id": 1}}, {"$unionWith": {"coll": "sharded", "pipeline": [{"$indexStats": {}}]}}, {"$group": {"_id": "$name"}}, {"$sort": {"_id": 1}}]');
SELECT docshard.aggregate('stated.sharded', '[{"$match": {"_id": 1}}, {"$lookup": {"from": "sharded", "pipeline": [{"$collStats": {"count": {}}}, {"$project": {"count": 1}}], "as": "stats"}}]');
SELECT docshard.aggregate('stated.$cmd.aggregate', '[{"$documents": [{"where": "local"}, {"where": "elsewhere"}]}, {"$lookup": {"from": "sharded", "localField": "where", "foreignField": "shard", "pipeline": [{"$collStats": {"count": {}}}, {"$match": {"count": 10}}, {"$project": {"count": 1}}], "as": "stats"}}]');
SELECT docshard.aggregate('stated.$cmd.aggregate', '[{"$documents": [{"least": 9}, {"least": 10}]}, {"$lookup": {"from": "sharded", "let": {"least": "$least"}, "pipeline": [{"$collStats": {"count": {}}}, {"$match": {"$expr": {"$gt": ["$count", "$$least"]}}}, {"$project": {"count": 1}}], "as": "stats"}}]');
SELECT docshard.aggregate('stated.$cmd.aggregate', '[{"$documents": [{"n": 10}, {"n": 11}]}, {"$lookup": {"from": "sharded", "let": {"n": "$n"}, "pipeline": [{"$collStats": {"count": {}}}, {"$match": {"$expr": {"$eq": ["$count", "$$n"]}}}, {"$project": {"count": 1}}], "as": "stats"}}, {"$unwind": "$stats"}, {"$match": {"stats.count": {"$gt": 1}}}]');
SELECT docshard.aggregate('stated.sharded', '[{"$unionWith": {"coll": "sharded", "pipeline": [{"$match": {}}, {"$collStats": {"count": {}}}]}}]');
SELECT docshard.aggregate('stated.sharded', '[{"$unionWith": {"pipeline": [{"$collStats": {"count": {}}}]}}]');
SELECT docshard.aggregate('stated.sharded', '[{"$lookup": {"pipeline": [{"$collStats": {"count": {}}}], "as": "stats"}}]');
SELECT docshard.aggregate('stated.sharded', '[{"$lookup": {"from": "none", "pipeline": [{"$collStats": {"count": {}}}], "as": "stats"}}]');
SELECT docshard.create_collection('stated.seen', '{"viewOn": "sharded", "pipeline": []}') -> 'ok' AS ok;
SELECT docshard.aggregate('stated.sharded', '[{"$lookup": {"from": "seen", "pipeline": [{"$collStats": {"count": {}}}], "as": "stats"}}]');
-- What does not exist, where they may not be, and what they do not understand.
SELECT docshard.aggregate('stated.none', '[{"$collStats": {"count": {}}}]');
SELECT docshard.aggregate('stated.none', '[{"$indexStats": {}}]');
SELECT docshard.aggregate('stated.sharded', '[{"$match": {}}, {"$collStats": {"count": {}}}]');
SELECT docshard.aggregate('stated.sharded', '[{"$limit": 1}, {"$collStats": {"count": {}}}]');
SELECT docshard.aggregate('stated.sharded', '[{"$limit": 1}, {"$indexStats": {}}]');
SELECT docshard.aggregate('stated.sharded', '[{"$facet": {"a": [{"$indexStats": {}}]}}]');
SELECT docshard.aggregate('stated.$cmd.aggregate', '[{"$indexStats": {}}]');
SELECT docshard.aggregate('stated.sharded', '[{"$indexStats": {"a": 1}}]');
SELECT docshard.aggregate('stated.sharded', '[{"$collStats": 1}]');
SELECT docshard.aggregate('stated.sharded', '[{"$collStats": {"other": 1}}]');
SELECT docshard.aggregate('stated.sharded', '[{"$collStats": {"count": 1}}]');
SELECT docshard.aggregate('stated.sharded', '[{"$collStats": {"storageStats": {"scale": 0}}}]');
SELECT docshard.aggregate('stated.sharded', '[{"$collStats": {"storageStats": {"scale": "1"}}}]');
SELECT docshard.aggregate('stated.sharded', '[{"$collStats": {"latencyStats": {}}}]');
SELECT docshard.aggregate('stated.sharded', '[{"$project": {"t": "$$CLUSTER_TIME"}}]');
SELECT docshard.drop_database('stated') -> 'ok' AS ok;
