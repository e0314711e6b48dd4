-- Inserting documents: the result documents of drivers, generated _ids, batches.
SELECT docshard.insert_one('ins.people', '{"_id": 1, "name": "Ann", "age": 30}');
SELECT docshard.insert_one('ins.people', '{"_id": "two", "name": "Bob"}', '{"comment": "from a test"}');

-- A missing _id is generated as an ObjectId, which the answer contains.
SELECT docshard.insert_one('ins.people', '{"name": "Cid"}') -> 'insertedId' AS id \gset
SELECT :'id'::jsonb ->> '$oid' ~ '^[0-9a-f]{24}$' AS is_an_object_id;
SELECT docshard.find_one('ins.people', '{"name": "Cid"}') -> '_id' = :'id'::jsonb AS found_with_it;

-- Many: an array, or an aggregated set.
SELECT docshard.insert_many('ins.people', ARRAY['{"_id": 3, "name": "Dot"}', '{"_id": 4, "name": "Eve"}']::jsonb[]);
SELECT docshard.insert_many('ins.numbers', array_agg(jsonb_build_object('_id', n, 'square', n * n) ORDER BY n))
       -> 'insertedCount' AS inserted
  FROM generate_series(1, 1000) n;
SELECT docshard.find('ins.numbers', '{"_id": {"$in": [1, 500, 1000]}}', '{"sort": {"_id": 1}}');

-- A duplicate _id: the statement fails, and inserts nothing.
SELECT docshard.insert_one('ins.people', '{"_id": 1, "name": "another"}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.insert_many('ins.people', ARRAY['{"_id": 5}', '{"_id": 1}', '{"_id": 6}']::jsonb[]);
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.count_documents('ins.people', '{"_id": {"$in": [5, 6]}}');

-- Unordered: the other documents are inserted, and the answer reports those that were not.
SELECT docshard.insert_many('ins.people', ARRAY['{"_id": 5}', '{"_id": 1}', '{"_id": 6}', '{"_id": 6}']::jsonb[],
                            '{"ordered": false}');
SELECT docshard.count_documents('ins.people', '{"_id": {"$in": [5, 6]}}');

-- The same _id twice in one batch.
SELECT docshard.insert_many('ins.people', ARRAY['{"_id": 7}', '{"_id": 7}']::jsonb[]);
\echo :LAST_ERROR_SQLSTATE

-- 1 and 1.0 are the same _id.
SELECT docshard.insert_one('ins.people', '{"_id": 1.0}');
\echo :LAST_ERROR_SQLSTATE

-- Nothing to insert, a null, an unknown option, an option of the wrong type.
SELECT docshard.insert_many('ins.people', '{}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.insert_many('ins.people', ARRAY['{"_id": 8}', NULL]::jsonb[]);
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.insert_one('ins.people', '{"_id": 8}', '{"orderd": true}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.insert_many('ins.people', ARRAY['{"_id": 8}']::jsonb[], '{"ordered": "yes"}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.count_documents('ins.people', '{"_id": 8}');

-- An empty timestamp becomes the present time, except in _id and within other values. No two are equal.
SELECT docshard.insert_many('ins.times', ARRAY[jsonb_build_object('_id', t, 'a', t, 'b', t, 'c', jsonb_build_array(t))]) ->> 'insertedCount' AS inserted
  FROM (VALUES ('{"$timestamp": {"t": 0, "i": 0}}'::jsonb)) AS empty (t);
SELECT d -> '_id' AS id, d -> 'c' AS c, (d #>> '{a,$timestamp,t}')::bigint > 1700000000 AS is_time, d -> 'a' <> d -> 'b' AS differs FROM docshard.find('ins.times') d;
SELECT docshard.drop_database('ins');
