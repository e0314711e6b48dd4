-- How often indexes are used, and their sizes.
SELECT docshard.create_indexes('stats.c', '[{"key": {"a": 1}}, {"key": {"b": 1}, "hidden": true}]');
SELECT docshard.insert_many('stats.c', array_agg(jsonb_build_object('_id', n, 'a', n))) -> 'insertedCount' AS inserted FROM generate_series(1, 500) n;
CREATE TEMP TABLE before AS SELECT * FROM docshard.index_stats('stats.c');
SELECT shard, name, keys, bytes > 0 AS bytes FROM before;
-- PostgreSQL publishes a session's statistics with a delay.
SELECT docshard.count_documents('stats.c', '{"a": 7}', '{"hint": "a_1"}') AS one, docshard.count_documents('stats.c', '{"a": {"$lt": 7}}', '{"hint": "a_1"}') AS six;
SELECT docshard.find_one('stats.c', '{"_id": 3}');
SELECT pg_stat_force_next_flush();
SELECT s.name, s.accesses > b.accesses AS accessed FROM docshard.index_stats('stats.c') s JOIN before b USING (shard, name) ;
-- The sum over all shards.
SELECT docshard.shard_collection('stats.s', '{"k": 1}'), docshard.create_index('stats.s', '{"k": 1, "a": 1}', '{"unique": true, "name": "ka"}');
SELECT u.namespace, u.name, u.keys::text, u.shards, u.bytes = sum(s.bytes) AS same_bytes, u.accesses = sum(s.accesses) AS same_accesses
  FROM docshard.index_usage u, docshard.index_stats(u.namespace) s WHERE namespace ~ '^stats' AND s.name = u.name
 GROUP BY u.namespace, u.name, u.keys::text, u.shards, u.bytes, u.accesses ORDER BY 1, 2;
-- Checks for duplicate keys do not count as uses of the index.
SELECT docshard.insert_many('stats.s', ARRAY['{"_id": 1, "k": 1, "a": [1, 2]}', '{"_id": 2, "k": 1, "a": 2}']::jsonb[], '{"ordered": false}') -> 'insertedCount' AS inserted;
SELECT pg_stat_force_next_flush();
SELECT name, accesses FROM docshard.index_stats('stats.s') WHERE name = 'ka';
-- The sizes in a command's answer.
SELECT (docshard.run_command('stats', '{"collStats": "c"}') #>> '{indexSizes,a_1}')::int8 = (SELECT bytes FROM docshard.index_stats('stats.c') WHERE name = 'a_1') AS same;
SELECT * FROM docshard.index_stats('stats.none');
SELECT * FROM docshard.index_stats('none');
SELECT docshard.drop_database('stats');
