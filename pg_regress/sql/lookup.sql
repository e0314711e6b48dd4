-- Stages that read other collections of the database.
SELECT docshard.shard_collection('look.orders', '{"_id": "hashed"}');
SELECT docshard.insert_many('look.orders', ARRAY['{"_id": 1, "item": "pear", "who": 7}', '{"_id": 2, "item": ["fig", "pear"], "who": 8}', '{"_id": 3}', '{"_id": 4, "item": null, "who": 9}']::jsonb[]) -> 'insertedCount' AS inserted;
SELECT docshard.insert_many('look.items', ARRAY['{"_id": "pear", "left": 5}', '{"_id": "fig", "left": 0}', '{"_id": "kiwi", "left": 9}']::jsonb[]) -> 'insertedCount' AS inserted;
-- By an equality.
SELECT docshard.aggregate('look.orders', '[{"$sort": {"_id": 1}}, {"$lookup": {"from": "items", "localField": "item", "foreignField": "_id", "pipeline": [{"$sort": {"_id": 1}}], "as": "stock"}}]');
SELECT docshard.aggregate('look.items', '[{"$sort": {"_id": 1}}, {"$lookup": {"from": "orders", "localField": "_id", "foreignField": "item", "as": "o"}}, {"$project": {"n": {"$size": "$o"}}}]');
SELECT docshard.aggregate('look.orders', '[{"$lookup": {"from": "items", "localField": "item", "foreignField": "_id", "as": "s"}}, {"$unwind": {"path": "$s", "preserveNullAndEmptyArrays": true}}, {"$sort": {"_id": 1, "s._id": 1}}, {"$project": {"s": 1}}]');
-- By a pipeline with variables, and by one without.
SELECT docshard.aggregate('look.items', '[{"$sort": {"_id": 1}}, {"$lookup": {"from": "orders", "let": {"name": "$_id"}, "pipeline": [{"$match": {"$expr": {"$eq": ["$item", "$$name"]}}}, {"$project": {"name": "$$name"}}], "as": "o"}}]');
SELECT docshard.aggregate('look.items', '[{"$sort": {"_id": 1}}, {"$lookup": {"from": "orders", "let": {"left": "$left"}, "pipeline": [{"$match": {"$expr": {"$lt": ["$_id", "$$left"]}}}, {"$count": "n"}], "as": "o"}}]');
SELECT docshard.aggregate('look.items', '[{"$sort": {"_id": 1}}, {"$lookup": {"from": "orders", "pipeline": [{"$count": "n"}], "as": "o"}}, {"$limit": 1}]');
SELECT docshard.aggregate('look.items', '[{"$match": {"_id": "fig"}}, {"$lookup": {"from": "nothing", "localField": "a", "foreignField": "b", "as": "x.y"}}]');
SELECT docshard.aggregate('look.$cmd.aggregate', '[{"$documents": [{"a": 1}, {"a": 2}]}, {"$lookup": {"localField": "a", "foreignField": "b", "pipeline": [{"$documents": [{"b": 2, "c": "$$now"}]}], "as": "m"}}]', '{"let": {"now": "then"}}');
-- The filter moves ahead; the statement's collation applies to both sides.
SELECT docshard.aggregate('look.orders', '[{"$lookup": {"from": "items", "let": {"i": "$item"}, "pipeline": [{"$match": {"$expr": {"$eq": ["$_id", {"$toUpper": "$$i"}]}}}], "as": "s"}}, {"$match": {"who": 7}}]', '{"collation": {"locale": "en", "strength": 2}}');
SELECT docshard.aggregate('look.$cmd.aggregate', '[{"$documents": [{"i": "PEAR"}]}, {"$lookup": {"from": "items", "localField": "i", "foreignField": "_id", "as": "s"}}]', '{"collation": {"locale": "en", "strength": 2}}');
-- Unions.
SELECT docshard.aggregate('look.orders', '[{"$unionWith": {"coll": "items", "pipeline": [{"$match": {"left": {"$gt": 4}}}]}}, {"$group": {"_id": {"$type": "$_id"}, "n": {"$sum": 1}}}, {"$sort": {"_id": 1}}]');
SELECT docshard.aggregate('look.items', '[{"$unionWith": "nothing"}, {"$unionWith": {"pipeline": [{"$documents": [{"_id": "x"}]}]}}, {"$count": "n"}]');
-- Graphs.
SELECT docshard.shard_collection('look.people', '{"boss": "hashed"}');
SELECT docshard.insert_many('look.people', ARRAY['{"_id": 1, "boss": 0}', '{"_id": 2, "boss": 1}', '{"_id": 3, "boss": 2}', '{"_id": 4, "boss": 1}', '{"_id": 5, "boss": 5}']::jsonb[]) -> 'insertedCount' AS inserted;
SELECT docshard.aggregate('look.people', '[{"$sort": {"_id": 1}}, {"$graphLookup": {"from": "people", "startWith": "$_id", "connectFromField": "_id", "connectToField": "boss", "depthField": "depth", "maxDepth": 5, "restrictSearchWithMatch": {"_id": {"$ne": 4}}, "as": "below"}}]');
-- The collation connects values, but two values of _id that are equal under it are different documents.
SELECT docshard.insert_many('look.pairs', ARRAY['{"_id": "a", "in": "x", "out": "y"}', '{"_id": "A", "in": "Y", "out": "Z"}', '{"_id": "z", "in": "z"}']::jsonb[]) ->> 'insertedCount' AS inserted;
SELECT docshard.aggregate('look.$cmd.aggregate', '[{"$documents": [{}]}, {"$graphLookup": {"from": "pairs", "startWith": "X", "connectFromField": "out", "connectToField": "in", "as": "m"}}, {"$project": {"found": "$m._id"}}]', '{"collation": {"locale": "en", "strength": 2}}');
-- Every role needs the right to read each of the collections.
CREATE ROLE regress_look;
SELECT docshard.grant_access('regress_look', '{"read": ["look.orders"]}');
SET ROLE regress_look;
SELECT docshard.aggregate('look.orders', '[{"$count": "n"}]');
SELECT docshard.aggregate('look.orders', '[{"$match": {"_id": -1}}, {"$lookup": {"from": "items", "localField": "item", "foreignField": "_id", "as": "s"}}]');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.aggregate('look.orders', '[{"$lookup": {"from": "orders", "pipeline": [{"$unionWith": "items"}], "as": "s"}}]');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.aggregate('look.orders', '[{"$facet": {"a": [{"$graphLookup": {"from": "people", "startWith": 1, "connectFromField": "_id", "connectToField": "boss", "as": "below"}}]}}]');
\echo :LAST_ERROR_SQLSTATE
RESET ROLE;
-- Refused.
SELECT docshard.aggregate('look.orders', '[{"$lookup": {"from": "items", "as": "s"}}]');
SELECT docshard.aggregate('look.orders', '[{"$lookup": {"from": "$items", "pipeline": [], "as": "s"}}]');
SELECT docshard.aggregate('look.orders', '[{"$lookup": {"from": "items", "pipeline": [{"$set": {"x": "$$none"}}], "as": "s"}}]');
SELECT docshard.aggregate('look.orders', '[{"$lookup": {"from": "items", "let": {"v": "$_id"}, "pipeline": [{"$set": {"x": {"$divide": [1, {"$subtract": ["$$v", 3]}]}}}], "as": "s"}}]');
SELECT docshard.aggregate('look.orders', '[{"$unionWith": {"pipeline": []}}]');
SELECT docshard.aggregate('look.orders', '[{"$graphLookup": {"from": "items", "startWith": 1, "connectFromField": "a", "connectToField": "b", "as": "c", "maxDepth": -1}}]');
SELECT docshard.revoke_access('regress_look');
DROP ROLE regress_look;
SELECT docshard.drop_database('look');
