-- $setWindowFields, $fill and $densify.
SELECT docshard.shard_collection('win.sales', '{"shop": "hashed"}');
SELECT docshard.insert_many('win.sales', array_agg(jsonb_build_object('_id', n, 'shop', 's' || n % 3, 'day', n / 3, 'sold', n * 7 % 5)))
  -> 'insertedCount' AS inserted FROM generate_series(0, 8) n;
SELECT docshard.aggregate('win.sales', '[{"$setWindowFields": {"partitionBy": "$shop", "sortBy": {"day": 1}, "output": {
  "total": {"$sum": "$sold", "window": {"documents": ["unbounded", "current"]}},
  "around": {"$avg": "$sold", "window": {"range": [-1, 1]}},
  "n": {"$documentNumber": {}}, "of": {"$count": {}}}}}, {"$sort": {"_id": 1}}, {"$unset": ["_id", "sold"]}]');
SELECT docshard.aggregate('win.sales', '[{"$setWindowFields": {"sortBy": {"sold": -1}, "output": {"rank": {"$rank": {}}}}},
  {"$group": {"_id": "$rank", "shops": {"$addToSet": "$shop"}, "n": {"$count": {}}}}, {"$sort": {"_id": 1}}, {"$unset": "shops"}]');
SELECT docshard.aggregate('win.sales', '[{"$match": {"shop": "s1", "day": {"$ne": 1}}}, {"$densify": {"field": "day", "range": {"step": 1, "bounds": [0, 4]}}},
  {"$fill": {"sortBy": {"day": 1}, "output": {"sold": {"method": "linear"}, "shop": {"value": "s1"}}}}, {"$unset": "_id"}]');
-- More documents in a partition than memory holds: what the functions look at again is in a temporary file.
SELECT docshard.insert_many('win.many', array_agg(jsonb_build_object('_id', n, 'v', n, 'p', n % 2, 'pad', repeat('x', 200))))
  -> 'insertedCount' AS inserted FROM generate_series(1, 3000) n;
SET work_mem = '64kB';
SELECT docshard.aggregate('win.many', '[{"$setWindowFields": {"sortBy": {"_id": 1}, "output": {
  "all": {"$sum": "$v"}, "so_far": {"$sum": "$v", "window": {"documents": ["unbounded", "current"]}},
  "rest": {"$sum": "$v", "window": {"documents": ["current", "unbounded"]}},
  "near": {"$max": "$v", "window": {"documents": [-700, 700]}}, "back": {"$shift": {"output": "$v", "by": -900}},
  "ahead": {"$first": "$v", "window": {"range": [1000, 1001]}}, "pair": {"$push": "$v", "window": {"range": [-1, 0]}}}}},
  {"$group": {"_id": {"$or": [{"$ne": ["$all", 4501500]}, {"$ne": [{"$subtract": [{"$add": ["$so_far", "$rest"]}, "$v"]}, "$all"]},
    {"$ne": ["$so_far", {"$toLong": {"$divide": [{"$multiply": ["$v", {"$add": ["$v", 1]}]}, 2]}}]},
    {"$ne": ["$near", {"$min": [3000, {"$add": ["$v", 700]}]}]},
    {"$ne": ["$back", {"$cond": [{"$gt": ["$v", 900]}, {"$subtract": ["$v", 900]}, null]}]},
    {"$ne": ["$ahead", {"$cond": [{"$lte": ["$v", 2000]}, {"$add": ["$v", 1000]}, null]}]},
    {"$ne": ["$pair", {"$cond": [{"$eq": ["$v", 1]}, [1], [{"$subtract": ["$v", 1]}, "$v"]]}]}]}, "n": {"$sum": 1}}}, {"$project": {"wrong": "$_id", "_id": 0, "n": 1}}]');
SELECT docshard.aggregate('win.many', '[{"$set": {"v": {"$cond": [{"$in": ["$_id", [1, 3000]]}, "$v", null]}}}, {"$fill": {"sortBy": {"_id": 1}, "output": {"v": {"method": "linear"}}}},
  {"$group": {"_id": {"$ne": ["$v", "$_id"]}, "n": {"$sum": 1}}}]');
-- Partitions one after the other, and a cursor that outlives a savepoint.
BEGIN;
DECLARE c CURSOR FOR SELECT docshard.aggregate('win.many', '[{"$setWindowFields": {"partitionBy": "$p", "sortBy": {"v": 1}, "output": {"n": {"$count": {}}, "last": {"$last": "$v"}}}}, {"$unset": "pad"}]');
FETCH 2 FROM c;
SAVEPOINT s;
FETCH 1 FROM c;
SELECT docshard.aggregate('win.many', '[{"$setWindowFields": {"sortBy": {"v": 1}, "output": {"d": {"$derivative": {"input": "$pad"}, "window": {"documents": [-1, 0]}}}}}]');
ROLLBACK TO s;
FETCH 1 FROM c;
MOVE 1497 FROM c;
FETCH 1 FROM c;
CLOSE c;
COMMIT;
RESET work_mem;
-- Refused.
SELECT docshard.aggregate('win.sales', '[{"$setWindowFields": {"output": {"a": {"$minMaxScaler": {"input": "$a"}}}}}]');
SELECT docshard.aggregate('win.sales', '[{"$setWindowFields": {"output": {"a": {"$nope": 1}}}}]');
SELECT docshard.aggregate('win.sales', '[{"$densify": {"field": "day", "range": {"step": 1, "bounds": [0, 600000]}}}, {"$count": "n"}]');
SELECT docshard.drop_database('win');
