-- A tenant has many documents: conditions besides the shard key use an index if there is one.
SELECT docshard.shard_collection('ten.c', '{"tenant": 1}');
SELECT docshard.insert_many('ten.c', (SELECT array_agg(jsonb_build_object('_id', n, 'tenant', n % 4, 'mail', 'm' || n, 'state', n % 50, 'at', n)
  || CASE WHEN n % 1000 = 7 THEN jsonb_build_object('state', jsonb_build_array(7, 100)) ELSE '{}' END) FROM generate_series(1, 4000) n)) -> 'insertedCount' AS inserted;
SELECT "table" FROM docshard.collections WHERE namespace = 'ten.c' \gset
CREATE FUNCTION pg_temp.found(filter json, options json) RETURNS TABLE (ids text, n bigint, few boolean, by text) LANGUAGE sql AS $$
  SELECT (SELECT string_agg(d ->> '_id', ' ' ORDER BY n) FROM docshard.find('ten.c', filter, options) WITH ORDINALITY AS f (d, n)),
         docshard.count_documents('ten.c', filter),
         (docshard.explain('ten.c', filter, options, 'executionStats') #>> '{executionStats,totalDocsExamined}')::int < 100,
         (SELECT string_agg(DISTINCT name #>> '{}', ' ' ORDER BY name #>> '{}') FROM jsonb_path_query(docshard.explain('ten.c', filter, options)::jsonb, 'strict $.shards[*].winningPlan.**.indexName') AS name);
$$;
CREATE TEMP TABLE asked (n serial, filter json, options json);
INSERT INTO asked (filter, options) VALUES
    ('{"tenant": 3, "mail": "m1999"}', '{}'),
    ('{"tenant": 3, "mail": "m1998"}', '{}'),
    ('{"tenant": 3, "mail": {"$gt": "m3990"}}', '{"sort": {"mail": 1}, "limit": 3}'),
    ('{"tenant": {"$gte": 1}, "mail": "m1999"}', '{}'),
    ('{"tenant": {"$in": [1, 3]}, "state": 100}', '{"sort": {"_id": 1}}'),
    ('{"_id": {"$gt": 3000}, "mail": "m3001"}', '{}'),
    ('{"_id": 3001, "mail": "m3001"}', '{}'),
    ('{"tenant": 3}', '{"sort": {"at": -1}, "limit": 3}'),
    ('{"tenant": 3, "at": {"$lt": 100}}', '{"sort": {"at": -1}, "limit": 3, "skip": 1}'),
    ('{"tenant": 3, "state": 7}', '{"sort": {"at": 1}, "limit": 3}'),
    ('{"tenant": 3}', '{"sort": {"tenant": 1, "_id": -1}, "limit": 2}');
-- Without indexes all of the tenant's documents are read.
ANALYZE :table;
SELECT asked.filter, options, found.* FROM asked, pg_temp.found(filter, options) AS found ORDER BY asked.n;
SELECT docshard.create_indexes('ten.c', '[{"key": {"mail": 1}}, {"key": {"state": 1}}, {"key": {"tenant": 1, "at": -1}}, {"key": {"tenant": 1, "state": 1, "at": 1}}]');
ANALYZE :table;
SELECT asked.filter, options, found.* FROM asked, pg_temp.found(filter, options) AS found ORDER BY asked.n;
-- Writes find their document in the same way.
SELECT docshard.update_one('ten.c', '{"tenant": 3, "mail": "m1999"}', '{"$set": {"mail": "new"}}') -> 'modifiedCount' AS modified;
SELECT docshard.delete_many('ten.c', '{"tenant": 3, "mail": "new"}') -> 'deletedCount' AS deleted;
-- The first document of a queue is found by its index, even if its value there is an array.
SELECT docshard.find_one_and_update('ten.c', '{"tenant": 3, "state": 7}', '{"$set": {"state": -1}}', '{"sort": {"at": 1}, "projection": {"state": 1}}');
SELECT docshard.find_one_and_update('ten.c', '{"tenant": 3, "state": 7}', '{"$set": {"state": -1}}', '{"sort": {"at": 1}, "projection": {"at": 1}, "returnDocument": "after"}');
SELECT docshard.find_one_and_delete('ten.c', '{"tenant": 3, "state": 7}', '{"sort": {"at": -1}, "projection": {"at": 1}}');
SELECT docshard.find_one_and_update('ten.c', '{"tenant": 3, "state": 999}', '{"$set": {"state": -1}}', '{"sort": {"at": 1}}');
SELECT docshard.find_one_and_update('ten.c', '{"tenant": 3, "state": 999}', '{"$set": {"_id": 5000}}', '{"sort": {"at": 1}, "upsert": true, "returnDocument": "after"}');
SELECT docshard.find_one_and_update('ten.c', '{"tenant": 3}', '{"$set": {"tenant": 0}}', '{"sort": {"at": -1}, "returnDocument": "after", "projection": {"tenant": 1}}');
SELECT docshard.find_one_and_delete('ten.c', '{"tenant": 3}', '{"sort": {"tenant": 1, "_id": 1}, "projection": {"at": 1}}');
-- A wildcard index serves the conditions besides the shard key.
SELECT docshard.drop_indexes('ten.c');
SELECT docshard.create_index('ten.c', '{"$**": 1}');
ANALYZE :table;
SELECT asked.filter, options, found.* FROM asked, pg_temp.found(filter, options) AS found WHERE asked.filter::text ~ 'mail": "m' ORDER BY asked.n;
-- For a part of the shard key there are no statistics, so an index must contain that part, too.
SELECT docshard.shard_collection('ten.d', '{"tenant": 1, "at": 1}');
SELECT docshard.insert_many('ten.d', (SELECT array_agg(jsonb_build_object('_id', n, 'tenant', n % 4, 'at', n, 'mail', 'm' || n, 'name', 'n' || n)) FROM generate_series(1, 4000) n)) -> 'insertedCount' AS inserted;
SELECT docshard.create_indexes('ten.d', '[{"key": {"mail": 1}}, {"key": {"name": 1, "tenant": 1}}]');
SELECT "table" FROM docshard.collections WHERE namespace = 'ten.d' \gset
ANALYZE :table;
SELECT filter, docshard.count_documents('ten.d', filter::json) AS n,
       (SELECT string_agg(DISTINCT name #>> '{}', ' ') FROM jsonb_path_query(docshard.explain('ten.d', filter::json)::jsonb, 'strict $.shards[*].winningPlan.**.indexName') AS name) AS by
  FROM (VALUES ('{"tenant": 3, "mail": "m1999"}'), ('{"tenant": 3, "name": "n1999"}'), ('{"tenant": 3, "at": 1999, "mail": "m1999"}'), ('{"tenant": {"$gt": 2}, "mail": "m1999"}')) AS f (filter);
SELECT docshard.drop_database('ten');
