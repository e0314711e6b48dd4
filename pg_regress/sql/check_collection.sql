-- check_collection finds documents that are not stored correctly.
SELECT docshard.shard_collection('check.c', '{"k": 1}');
SELECT docshard.insert_many('check.c', array_agg(jsonb_build_object('_id', n, 'k', n))) -> 'insertedCount' AS inserted FROM generate_series(1, 5) n;
SELECT docshard.check_collection('check.c');
SELECT "table" FROM docshard.collections WHERE namespace = 'check.c' \gset
CREATE FUNCTION pg_temp.key(value text) RETURNS bytea LANGUAGE sql AS $$
  SELECT docshard_internal.shard_key(format('{"k": %s}', value)::jsonb, '{"k": 1}') $$;
-- A shard key that differs from the document's, an _id that differs, no _id, and an array in the shard key.
UPDATE :table SET skey = pg_temp.key('77') WHERE id = pg_temp.key('2');
UPDATE :table SET id = pg_temp.key('33') WHERE id = pg_temp.key('3');
INSERT INTO :table VALUES (pg_temp.key('6'), pg_temp.key('6'), '{"k": 6}');
INSERT INTO :table VALUES (pg_temp.key('7'), pg_temp.key('7'), '{"_id": 7, "k": [7]}');
-- Documents that violate the domain.
-- An administrator who means it can switch the protection of collections' tables off.
ALTER EVENT TRIGGER docshard_check_changes DISABLE;
ALTER TABLE :table ALTER doc TYPE jsonb;
ALTER EVENT TRIGGER docshard_check_changes ENABLE ALWAYS;
INSERT INTO :table VALUES (pg_temp.key('8'), pg_temp.key('8'), '{"_id": 8, "k": 8, "x": {"$regex": 1}}');
INSERT INTO :table VALUES (pg_temp.key('9'), '\xffff', '[9]');
SELECT report ->> 'valid' AS valid, report ->> 'documents' AS documents, report ->> 'problems' AS problems, report -> 'shards' AS shards
  FROM docshard.check_collection('check.c') AS report;
SELECT p ->> 'problem' AS problem, p ->> '_id' AS _id, p ->> 'details' AS details, p ->> 'skey' AS skey, p ->> 'id' AS id
  FROM json_array_elements(docshard.check_collection('check.c') -> 'found') AS p ORDER BY p ->> 'skey', p ->> 'id';
SELECT json_array_length(docshard.check_collection('check.c', '{"limit": 2}') -> 'found') AS found;
-- The same _id with different shard keys is allowed; these documents are distinguished.
SELECT docshard.insert_one('check.c', '{"_id": 1, "k": 100}') -> 'insertedId' AS id;
SELECT docshard.check_collection('check.c') -> 'duplicateIds' AS twice;
SELECT docshard.check_collection('check.c', '{"limit": -1}');
SELECT docshard.check_collection('check.c', '{"full": true}');
SELECT docshard.check_collection('check.none');
-- Hashed keys, and an unsharded collection.
SELECT docshard.shard_collection('check.h', '{"_id": "hashed"}');
SELECT docshard.insert_many('check.h', array_agg(jsonb_build_object('_id', n))) -> 'insertedCount' AS inserted FROM generate_series(1, 9) n;
SELECT docshard.insert_one('check.u', '{"_id": "x"}') -> 'insertedId' AS id;
SELECT ns, report ->> 'valid' AS valid, report ->> 'documents' AS documents
  FROM unnest(ARRAY['check.h', 'check.u']) AS ns, docshard.check_collection(ns) AS report;
SELECT "table" FROM docshard.collections WHERE namespace = 'check.u' \gset
UPDATE :table SET skey = '\x10';
SELECT p ->> 'problem' AS problem, p ->> 'details' AS details FROM json_array_elements(docshard.check_collection('check.u') -> 'found') AS p;
SELECT docshard.drop_database('check');
