-- Indexes: created, listed, used, unique ones held, dropped.
SELECT docshard.insert_many('idx.c', array_agg(jsonb_build_object('_id', n, 'from', 'user' || n % 10, 'sent', n, 'a', jsonb_build_object('b', n))))
       -> 'insertedCount' AS inserted
  FROM generate_series(1, 100) n;
SELECT docshard.create_index('idx.c', '{"from": 1, "sent": -1}');
SELECT docshard.create_index('idx.c', '{"a.b": 1}', '{"name": "by_b", "unique": true}');
-- Creating it again changes nothing.
SELECT docshard.create_index('idx.c', '{"from": 1, "sent": -1}');
SELECT * FROM docshard.list_indexes('idx.c');

-- A collection that does not exist yet is created.
SELECT docshard.create_index('idx.new', '{"x": 1}');
SELECT name FROM docshard.list_indexes('idx.new');

-- The results are the same with it.
SELECT docshard.find('idx.c', '{"from": "user3", "sent": {"$gte": 50, "$lt": 80}}', '{"sort": {"sent": -1}, "projection": {"sent": 1}}');
SELECT docshard.count_documents('idx.c', '{"a.b": {"$gt": 90}}');

-- Unique: a second document with the same value is refused, for every kind of write.
SELECT docshard.insert_one('idx.c', '{"_id": 101, "a": {"b": 5}}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.insert_many('idx.c', ARRAY['{"_id": 101, "a": {"b": 101}}', '{"_id": 102, "a": {"b": 101}}']::jsonb[]);
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.insert_many('idx.c', ARRAY['{"_id": 101, "a": {"b": 5}}', '{"_id": 102, "a": {"b": 102}}']::jsonb[], '{"ordered": false}');
SELECT docshard.update_one('idx.c', '{"_id": 1}', '{"$set": {"a.b": 2}}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.update_one('idx.c', '{"_id": 200}', '{"$set": {"a.b": 2}}', '{"upsert": true}');
\echo :LAST_ERROR_SQLSTATE
-- Missing counts as null, so only one document may lack the field.
SELECT docshard.insert_one('idx.c', '{"_id": 103}');
SELECT docshard.insert_one('idx.c', '{"_id": 104, "a": {"b": null}}');
\echo :LAST_ERROR_SQLSTATE

-- Existing duplicates prevent a unique index.
SELECT docshard.create_index('idx.c', '{"from": 1}', '{"unique": true}');
\echo :LAST_ERROR_SQLSTATE

SELECT docshard.drop_index('idx.c', 'by_b');
SELECT docshard.insert_one('idx.c', '{"_id": 104, "a": {"b": null}}');
SELECT name FROM docshard.list_indexes('idx.c');

-- PostgreSQL has statistics for an index that is built over existing documents.
SELECT docshard.create_index('idx.c', '{"sent": 1}');
SELECT s.attname, s.n_distinct < -0.5 AS many FROM pg_stats s JOIN pg_class i ON i.relname = s.tablename
    JOIN docshard.collections c ON to_regclass(c."table") = (SELECT indrelid FROM pg_index WHERE indexrelid = i.oid)
  WHERE c.namespace = 'idx.c' AND pg_get_indexdef(i.oid) LIKE '%index_key(%{"sent":1}%' ORDER BY 1;
SELECT docshard.drop_database('idx');
