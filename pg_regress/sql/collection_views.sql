-- Views: pipelines that are read like collections.
CREATE FUNCTION run(command text, VARIADIC args text[] DEFAULT '{}') RETURNS jsonb
LANGUAGE sql AS $$ SELECT docshard.run_command('viewed', format(command, VARIADIC args)::json) $$;
CREATE FUNCTION codes(db text, VARIADIC commands json[]) RETURNS TABLE (command json, code text) LANGUAGE sql AS $$
  SELECT one, coalesce(answer ->> 'code', answer #>> '{writeErrors,0,code}', 'ok')
    FROM unnest(commands) AS one, docshard.run_command(db, one) AS answer $$;
\t on
SELECT docshard.shard_collection('viewed.towns', '{"_id": "hashed"}');
SELECT docshard.insert_many('viewed.towns', ARRAY['{"_id": "New York", "state": "NY", "pop": 7, "tags": ["a", "b"]}', '{"_id": "Newark", "state": "NJ", "pop": 3, "tags": ["b"]}',
  '{"_id": "Palo Alto", "state": "CA", "pop": 10}', '{"_id": "San Francisco", "state": "CA", "pop": 4, "tags": []}', '{"_id": "Trenton", "state": "NJ", "pop": 5}']::jsonb[]) -> 'insertedCount';
SELECT docshard.create_collection('viewed.all', '{"viewOn": "towns"}');
SELECT docshard.create_collection('viewed.large', '{"viewOn": "all", "pipeline": [{"$match": {"pop": {"$gte": 5}}}, {"$project": {"_id": 0, "state": 1, "pop": 1, "tags": 1}}]}');
SELECT run('{"create": "states", "viewOn": "towns", "pipeline": [{"$group": {"_id": "$state", "pop": {"$sum": "$pop"}}}, {"$sort": {"_id": 1}}]}');

-- What reads collections reads them.
SELECT docshard.find('viewed.all', '{"state": "NJ"}', '{"sort": {"_id": -1}, "projection": {"_id": 1}}');
SELECT docshard.find('viewed.large', '{}', '{"sort": {"pop": 1}, "skip": 1, "limit": 1}');
SELECT docshard.find('viewed.large', '{"state": "NY"}', '{"projection": {"pop": 1}}');
SELECT docshard.find('viewed.states');
SELECT docshard.find_one('viewed.all', '{"_id": "Trenton"}'), docshard.find_one('viewed.all', '{"_id": "nowhere"}');
SELECT docshard.find('viewed.all', '{"$expr": {"$eq": ["$pop", "$$p"]}}', '{"let": {"p": 3}, "projection": {"pop": 1}}');
SELECT docshard.count_documents('viewed.large'), docshard.count_documents('viewed.large', '{"state": "CA"}'), docshard.count_documents('viewed.large', '{"state": "TX"}'),
  docshard.count_documents('viewed.all', '{}', '{"skip": 1, "limit": 3}'), docshard.estimated_document_count('viewed.all');
SELECT docshard.distinct('viewed.large', 'state');
SELECT docshard.distinct('viewed.all', 'tags', '{"pop": {"$lt": 8}}');
SELECT docshard.distinct('viewed.all', '_id', '{"state": "CA"}');
SELECT docshard.aggregate('viewed.large', '[{"$group": {"_id": null, "n": {"$sum": 1}, "pop": {"$sum": "$pop"}}}]');
SELECT run('{"find": "large", "sort": {"pop": 1}, "limit": 1}');
SELECT run('{"count": "large", "query": {"state": "NY"}}');
SELECT run('{"distinct": "large", "key": "state"}');
SELECT run('{"aggregate": "states", "pipeline": [{"$match": {"pop": {"$gt": 7}}}], "cursor": {}}');
SELECT run('{"find": "all", "sort": {"_id": 1}, "batchSize": 2}') -> 'cursor' AS cursor \gset
SELECT :'cursor'::jsonb - 'id' AS first, :'cursor'::jsonb ->> 'id' AS id \gset
SELECT :'first';
SELECT run('{"getMore": %s, "collection": "all"}', :'id');
-- A view over what does not exist reads nothing.
SELECT run('{"create": "void", "viewOn": "nothing", "pipeline": [{"$match": {"a": 1}}]}');
SELECT docshard.find('viewed.void'), docshard.aggregate('viewed.void', '[]');
SELECT docshard.count_documents('viewed.void'), (SELECT count(*) FROM docshard.distinct('viewed.void', 'a'));
SELECT run('{"count": "void"}');

-- Explained as the pipelines that they are, over the collection below.
CREATE FUNCTION explained(plan jsonb) RETURNS jsonb LANGUAGE sql AS $$ SELECT jsonb_build_object('ok', plan -> 'ok', 'namespace', plan -> 'namespace', 'targeted', plan -> 'targetedShards', 'split', plan -> 'splitPipeline') $$;
SELECT explained(docshard.explain('viewed.all', '{"_id": "Newark"}', '{"projection": {"pop": 1}}')::jsonb);
SELECT explained(docshard.explain('viewed.large', '[{"$group": {"_id": "$state"}}]')::jsonb);
SELECT explained(run('{"explain": {"find": "all", "filter": {"_id": "Newark"}}}'));
SELECT explained(run('{"explain": {"count": "large", "query": {"pop": 5}}}'));
SELECT explained(run('{"explain": {"distinct": "large", "key": "state"}}'));
SELECT explained(run('{"explain": {"aggregate": "large", "pipeline": [{"$match": {"pop": 5}}], "cursor": {}}}'));
SELECT run('{"explain": {"delete": "all", "deletes": [{"q": {}, "limit": 0}]}}') - 'errmsg';
DROP FUNCTION explained;

-- Listed.
SELECT jsonb_path_query(run('{"listCollections": 1, "filter": {"type": "view"}}'), '$.cursor.firstBatch[*]');
SELECT jsonb_path_query(run('{"listCollections": 1, "nameOnly": true}'), '$.cursor.firstBatch[*]');
SELECT run('{"dbStats": 1}') -> 'views';
SELECT namespace, database, view_on, pipeline, "collation" FROM docshard.views WHERE database = 'viewed' ORDER BY namespace;
SELECT what, namespace, details FROM docshard.changelog WHERE namespace LIKE 'viewed.%' AND what LIKE '%View' ORDER BY id;

-- Refused: what writes or is of collections only.
SELECT * FROM codes('viewed', '{"insert": "all", "documents": [{"_id": 1}]}', '{"update": "all", "updates": [{"q": {}, "u": {"$set": {"a": 1}}}]}',
  '{"update": "all", "updates": [{"q": {"_id": 1}, "u": {"$set": {"a": 1}}, "upsert": true}]}', '{"delete": "all", "deletes": [{"q": {}, "limit": 0}]}',
  '{"delete": "all", "deletes": [{"q": {"_id": 1}, "limit": 1}]}', '{"findAndModify": "all", "query": {}, "update": {"$set": {"a": 1}}}', '{"findAndModify": "all", "remove": true}',
  '{"createIndexes": "all", "indexes": [{"key": {"a": 1}, "name": "a"}]}', '{"dropIndexes": "all", "index": "*"}', '{"listIndexes": "all"}', '{"collStats": "all"}');
SELECT * FROM codes('admin', '{"shardCollection": "viewed.all", "key": {"_id": 1}}', '{"split": "viewed.all", "find": {"_id": 1}}',
  '{"moveChunk": "viewed.all", "find": {"_id": 1}, "to": "local"}', '{"mergeChunks": "viewed.all", "bounds": [{"_id": 0}, {"_id": 1}]}',
  '{"clearJumboFlag": "viewed.all", "find": {"_id": 1}}', '{"balancerCollectionStatus": "viewed.all"}', '{"configureCollectionBalancing": "viewed.all", "chunkSize": 1}');
SELECT docshard.insert_one('viewed.all', '{"_id": 1}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.insert_many('viewed.all', ARRAY['{"_id": 1}']::jsonb[]);
SELECT docshard.update_many('viewed.all', '{}', '{"$set": {"a": 1}}');
SELECT docshard.replace_one('viewed.all', '{"_id": 1}', '{"a": 1}');
SELECT docshard.delete_one('viewed.all', '{"_id": 1}');
SELECT docshard.find_one_and_delete('viewed.all', '{"_id": 1}');
SELECT docshard.bulk_write('viewed.all', '[{"deleteOne": {"filter": {"_id": 1}}}]');
SELECT docshard.create_index('viewed.all', '{"a": 1}');
SELECT docshard.list_indexes('viewed.all');
SELECT docshard.check_collection('viewed.all');
SELECT * FROM codes('viewed', '{"aggregate": "all", "pipeline": [{"$collStats": {"count": {}}}], "cursor": {}}', '{"aggregate": "towns", "pipeline": [{"$collStats": {"count": {}}}], "cursor": {}}');
-- Options that pipelines lack.
SELECT * FROM codes('viewed', '{"find": "all", "min": {"_id": 1}, "hint": {"_id": 1}}', '{"find": "all", "projection": {"tags": {"$elemMatch": {"a": 1}}}}', '{"find": "all", "sort": {"$natural": 1}}',
  '{"find": "all", "filter": {"$nope": 1}}', '{"find": "all", "hint": "nope"}', '{"find": "all", "hint": {"_id": 1}}');

-- Definitions that are refused.
SELECT * FROM codes('viewed', '{"create": "all", "viewOn": "towns"}', '{"create": "towns", "viewOn": "all"}', '{"create": "all"}', '{"create": "x", "pipeline": []}', '{"create": "x", "viewOn": ""}',
  '{"create": "x", "viewOn": "a$b"}', '{"create": "system.x", "viewOn": "towns"}', '{"create": "x", "viewOn": 1}', '{"create": "x", "viewOn": "towns", "pipeline": {}}',
  '{"create": "x", "viewOn": "towns", "pipeline": [1]}', '{"create": "x", "viewOn": "towns", "pipeline": [{"$nope": 1}]}', '{"create": "x", "viewOn": "towns", "pipeline": [{"$project": {"a": "$$undef"}}]}',
  '{"create": "x", "viewOn": "towns", "pipeline": [{"$documents": []}]}', '{"create": "x", "viewOn": "towns", "capped": true, "size": 1}',
  '{"create": "x", "viewOn": "towns", "idIndex": {"key": {"_id": 1}, "name": "_id_"}}');
SELECT docshard.create_collection('viewed.x', '{"viewOn": "towns", "pipeline": 5}');
SELECT docshard.create_collection('config.x', '{"viewOn": "shards"}');
SELECT docshard.create_collection('local.x', '{"viewOn": "shards"}');
SELECT count(*) FROM docshard.views WHERE namespace = 'viewed.x';
-- Cycles, also through what does not exist yet.
SELECT * FROM codes('viewed', '{"create": "self", "viewOn": "self"}', '{"create": "a", "viewOn": "b"}', '{"create": "b", "viewOn": "c"}', '{"create": "c", "viewOn": "a"}',
  '{"collMod": "b", "viewOn": "a", "pipeline": []}');
-- Stages read views, too.
SELECT * FROM codes('viewed', '{"create": "l1", "viewOn": "towns", "pipeline": [{"$lookup": {"from": "l1", "localField": "a", "foreignField": "a", "as": "x"}}]}',
  '{"create": "l1", "viewOn": "towns", "pipeline": [{"$lookup": {"from": "l2", "localField": "_id", "foreignField": "_id", "as": "same"}}, {"$unionWith": "l3"}]}',
  '{"create": "l2", "viewOn": "l1"}', '{"create": "l3", "viewOn": "towns", "pipeline": [{"$facet": {"x": [{"$unionWith": {"coll": "towns", "pipeline": [{"$unionWith": "l1"}]}}]}}]}',
  '{"create": "l2", "viewOn": "towns", "pipeline": [{"$match": {"pop": {"$gt": 6}}}]}', '{"create": "l3", "viewOn": "states", "collation": {"locale": "en"}}', '{"create": "l3", "viewOn": "states"}',
  '{"collMod": "l3", "viewOn": "towns", "pipeline": [{"$graphLookup": {"from": "l1", "startWith": "$a", "connectFromField": "a", "connectToField": "a", "as": "x"}}]}');
SELECT docshard.find('viewed.l1', '{}', '{"projection": {"pop": 1, "same._id": 1}, "sort": {"_id": 1}}');
SELECT docshard.aggregate('viewed.towns', '[{"$match": {"_id": {"$gt": "P"}}}, {"$lookup": {"from": "l2", "pipeline": [{"$count": "n"}], "as": "l2"}}, {"$project": {"l2.n": 1}}, {"$sort": {"_id": 1}}]');
-- At most 20 views are on one another.
SELECT count(docshard.create_collection('viewed.v' || n, format('{"viewOn": "v%s"}', n + 1)::json)) FROM generate_series(1, 20) n;
SELECT * FROM codes('viewed', '{"create": "v21", "viewOn": "v22"}', '{"create": "v0", "viewOn": "v1"}', '{"create": "middle", "viewOn": "v10"}', '{"collMod": "c", "viewOn": "v1", "pipeline": []}',
  '{"collMod": "b", "viewOn": "v3", "pipeline": []}', '{"collMod": "b", "viewOn": "v2", "pipeline": []}');
SELECT docshard.insert_one('viewed.v21', '{"_id": 1}') -> 'insertedId';
SELECT docshard.find('viewed.v1');

-- Collations: a view has one, and so have views on one another.
SELECT docshard.create_collection('viewed.names', '{"collation": {"locale": "fr"}}');
SELECT docshard.insert_many('viewed.names', ARRAY['{"_id": 1, "n": "ann"}', '{"_id": 2, "n": "ANN"}', '{"_id": 3, "n": "bob"}']::jsonb[]) -> 'insertedCount';
SELECT run('{"create": "loose", "viewOn": "names", "collation": {"locale": "en", "strength": 1}}');
SELECT run('{"create": "strict", "viewOn": "names"}');
SELECT docshard.count_documents('viewed.loose', '{"n": "Ann"}'), docshard.count_documents('viewed.strict', '{"n": "Ann"}'),
  docshard.count_documents('viewed.loose', '{"n": "Ann"}', '{"collation": {"locale": "en", "strength": 1}}'), docshard.count_documents('viewed.strict', '{"n": "ann"}', '{"collation": {"locale": "simple"}}');
SELECT docshard.distinct('viewed.loose', 'n');
SELECT docshard.find('viewed.loose', '{"n": "ANN"}', '{"sort": {"_id": 1}}');
SELECT * FROM codes('viewed', '{"find": "loose", "collation": {"locale": "en"}}', '{"find": "loose", "collation": {"locale": "simple"}}', '{"count": "strict", "collation": {"locale": "en"}}',
  '{"distinct": "strict", "key": "n", "collation": {"locale": "en"}}', '{"aggregate": "loose", "pipeline": [], "cursor": {}, "collation": {"locale": "simple"}}',
  '{"create": "x", "viewOn": "loose"}', '{"create": "x", "viewOn": "loose", "collation": {"locale": "en", "strength": 1}}', '{"drop": "loose"}', '{"create": "loose", "viewOn": "names"}',
  '{"collMod": "strict", "viewOn": "x", "pipeline": []}', '{"find": "loose", "collation": {"locale": "en"}}');
SELECT docshard.find('viewed.x', '{}', '{"sort": {"_id": 1}}');

-- Changed.
SELECT docshard.modify_collection('viewed.large', '{"pipeline": [{"$match": {"pop": {"$gte": 10}}}]}');
SELECT docshard.find('viewed.large');
SELECT run('{"collMod": "large", "viewOn": "states", "pipeline": []}');
SELECT docshard.find('viewed.large', '{}', '{"sort": {"_id": 1}, "limit": 1}');
SELECT * FROM codes('viewed', '{"collMod": "large", "viewOn": "a$b"}', '{"collMod": "large", "viewOn": "towns", "pipeline": {}}', '{"collMod": "large", "pipeline": [{"$nope": 1}]}',
  '{"collMod": "large", "expireAfterSeconds": 1}', '{"collMod": "towns", "viewOn": "x", "pipeline": []}', '{"collMod": "towns", "index": {"name": "a", "hidden": true}}', '{"collMod": "towns"}',
  '{"collMod": "nowhere", "viewOn": "x"}', '{"collMod": "large"}', '{"collMod": "towns", "nope": 1}');
BEGIN;
SELECT run('{"collMod": "large", "viewOn": "towns", "pipeline": [{"$match": {"_id": "Trenton"}}]}');
SELECT docshard.find('viewed.large');
ROLLBACK;
SELECT docshard.count_documents('viewed.large');

-- Dropped, alone and with the database; what reads it reads nothing then.
SELECT run('{"drop": "states"}');
SELECT docshard.count_documents('viewed.large');
SELECT docshard.drop_collection('viewed.all'), docshard.drop_collection('viewed.all');
SELECT docshard.insert_one('viewed.all', '{"_id": 1}') -> 'insertedId';
SELECT docshard.find('viewed.all');
SELECT docshard.find('viewed.void');
SELECT docshard.insert_one('viewed.nothing', '{"_id": 1, "a": 1}') -> 'insertedId';
SELECT docshard.find('viewed.void');
SELECT docshard.drop_database('viewed');
SELECT count(*) FROM docshard.views WHERE database = 'viewed';
-- A database may have nothing but views.
SELECT docshard.create_collection('viewed.only', '{"viewOn": "nothing"}');
SELECT docshard.run_command('admin', '{"listDatabases": 1, "nameOnly": true, "filter": {"name": "viewed"}}');
SELECT docshard.drop_database('viewed');
DROP FUNCTION run, codes;
