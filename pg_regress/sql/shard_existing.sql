-- Sharding a collection with documents: it needs an index that starts with the key, and no arrays in the key.
SELECT docshard.insert_many('exist.c', array_agg(jsonb_build_object('_id', n, 'name', 'n' || n, 'pad', repeat('x', 1000))))
       -> 'insertedCount' AS inserted
  FROM generate_series(1, 3000) n;
SELECT docshard.shard_collection('exist.c', '{"name": 1}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.create_index('exist.c', '{"pad": 1, "name": 1}');
SELECT docshard.shard_collection('exist.c', '{"name": 1}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.create_index('exist.c', '{"name": 1, "pad": 1}');

-- A document without the field has the key null. An array, or a value that is too long, is refused.
SELECT docshard.insert_many('exist.c', ARRAY['{"_id": "missing"}', '{"_id": "null", "name": null}']::jsonb[]) -> 'insertedCount' AS inserted;
SELECT docshard.insert_one('exist.c', '{"_id": "array", "name": ["a"]}');
SELECT docshard.shard_collection('exist.c', '{"name": 1}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.delete_one('exist.c', '{"_id": "array"}');
SELECT docshard.insert_one('exist.c', jsonb_build_object('_id', 'long', 'name', repeat('x', 5000)));
SELECT docshard.shard_collection('exist.c', '{"name": 1}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.delete_one('exist.c', '{"_id": "long"}');
-- A unique index that does not start with the key could not be enforced.
SELECT docshard.create_index('exist.c', '{"pad": 1, "_id": 1}', '{"unique": true, "name": "u"}');
SELECT docshard.shard_collection('exist.c', '{"name": 1}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.drop_index('exist.c', 'u');
SELECT sharded, chunks FROM docshard.collections WHERE namespace = 'exist.c';

-- Now it is sharded; its documents are split into chunks of the right size at once.
SELECT docshard.set_setting('chunk_size_mb', '1');
SELECT docshard.shard_collection('exist.c', '{"name": 1}');
SELECT sharded, key, chunks > 3 AS split FROM docshard.collections WHERE namespace = 'exist.c';
SELECT docshard.count_documents('exist.c'), docshard.count_documents('exist.c', '{"name": {"$gte": "n2", "$lt": "n3"}}');
SELECT docshard.find_one('exist.c', '{"_id": 77}', '{"projection": {"name": 1}}');
SELECT docshard.find('exist.c', '{"name": null}', '{"sort": {"_id": 1}}');
SELECT docshard.set_setting('chunk_size_mb', NULL);

-- By _id no other index is needed; it may be called unique.
SELECT docshard.insert_many('exist.ids', ARRAY['{"_id": 1, "u": 1}', '{"_id": 2, "u": 1}']::jsonb[]) -> 'insertedCount' AS inserted;
SELECT docshard.create_index('exist.ids', '{"u": 1}');
SELECT docshard.shard_collection('exist.ids', '{"u": 1}', '{"unique": true}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.shard_collection('exist.ids', '{"_id": "hashed"}');
SELECT docshard.find('exist.ids', '{}', '{"sort": {"_id": 1}}');
SELECT docshard.drop_database('exist');
