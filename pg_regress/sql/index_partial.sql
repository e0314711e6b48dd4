-- Partial and sparse indexes: which documents they contain, which statements they serve; results are the same without them.
SELECT docshard.create_indexes('idxp.c', '[
  {"key": {"n": 1}, "name": "open", "partialFilterExpression": {"state": "open", "n": {"$gt": 10}}},
  {"key": {"opt": 1}, "sparse": true},
  {"key": {"a": 1, "b.c": -1}, "name": "ab", "sparse": true},
  {"key": {"state": 1}, "name": "quoted", "partialFilterExpression": {"state": {"$in": ["it''s", "back\\slash"]}}}]');
SELECT name, keys, is_unique, is_sparse, partial_filter FROM docshard.list_indexes('idxp.c');
SELECT name, sparse, partial_filter FROM docshard.indexes WHERE namespace = 'idxp.c' ORDER BY name;
SELECT jsonb_path_query(docshard.run_command('idxp', '{"listIndexes": "c"}')::jsonb, '$.cursor.firstBatch[*]');

CREATE TEMP TABLE documents (doc jsonb);
INSERT INTO documents
SELECT jsonb_build_object('_id', n, 'n', n % 50, 'state', CASE n % 10 WHEN 0 THEN 'open' WHEN 1 THEN 'it''s' ELSE 'closed' END)
    || CASE WHEN n % 20 = 0 THEN jsonb_build_object('opt', n % 3) ELSE '{}' END
  FROM generate_series(100, 2000) n;
INSERT INTO documents VALUES
  ('{"_id": 1, "opt": null}'), ('{"_id": 2, "opt": []}'), ('{"_id": 3, "opt": [null, 1]}'), ('{"_id": 4, "b": {"c": 5}}'),
  ('{"_id": 5, "a": 5}'), ('{"_id": 6, "b": [{"c": 5}, {}]}'), ('{"_id": 7, "b": []}'), ('{"_id": 8, "state": ["open", "closed"], "n": [1, 20]}'),
  ('{"_id": 9, "state": "back\\slash"}'), ('{"_id": 10, "state": null, "n": null}'), ('{"_id": 11, "a": [1, 5], "b": {"c": 5}}');
SELECT ns, docshard.insert_many(ns, array_agg(doc)) -> 'insertedCount' AS inserted
  FROM documents, (VALUES ('idxp.plain'), ('idxp.c')) AS c (ns) GROUP BY ns ORDER BY ns;
DO $$ DECLARE name text; BEGIN
  FOR name IN SELECT "table" FROM docshard.collections WHERE database = 'idxp' LOOP EXECUTE 'ANALYZE ' || name; END LOOP;
END $$;
-- The shard's planner chooses the index only if the filter implies the index's condition.
CREATE FUNCTION index_of(ns text, filter json) RETURNS text LANGUAGE sql BEGIN ATOMIC
  SELECT coalesce(string_agg(i.name, ' '), 'none') FROM docshard.indexes i, jsonb_path_query(docshard.explain(ns, filter)::jsonb, '$.shards[*].plan[*]') AS line
   WHERE i.namespace = ns AND line #>> '{}' ~ (' ' || i.relation || '( |$)');
END;
CREATE FUNCTION ids(ns text, filter json) RETURNS text LANGUAGE sql BEGIN ATOMIC
  SELECT md5(coalesce(string_agg(d ->> '_id', ' ' ORDER BY (d ->> '_id')::int), 'none')) FROM docshard.find(ns, filter) d;
END;
SELECT filter, index_of('idxp.c', filter) AS by, docshard.count_documents('idxp.c', filter) AS n, ids('idxp.c', filter) = ids('idxp.plain', filter) AS same
  FROM unnest(ARRAY['{"state": "open", "n": 20}', '{"state": "open", "n": {"$gte": 40}}', '{"state": "open", "n": {"$gt": 10}}',
       '{"state": "open", "n": {"$gte": 10}}', '{"n": 20}', '{"state": {"$in": ["open", "closed"]}, "n": 20}',
       '{"opt": 1}', '{"opt": {"$exists": true}}', '{"opt": {"$ne": null}}', '{"opt": null}', '{"opt": {"$exists": false}}', '{"opt": {"$in": [null, 2]}}', '{"opt": {"$gte": {"$minKey": 1}}}',
       '{"a": 5}', '{"a": {"$gt": 4}, "b.c": 5}', '{"a": null, "b.c": 5}', '{"b.c": 5}', '{"a": null}',
       '{"state": "it''s"}', '{"state": "back\\slash"}', '{"state": "closed", "n": 3}']::json[]) AS filter;
SELECT ns, docshard.update_many(ns, '{"state": "open", "n": {"$gt": 30}}', '{"$set": {"state": "closed"}, "$unset": {"opt": 1}}') -> 'modifiedCount' AS modified,
       docshard.delete_many(ns, '{"opt": {"$gte": 1}}') -> 'deletedCount' AS deleted, docshard.count_documents(ns, '{"state": "open", "n": {"$gt": 10}}') AS left
  FROM (VALUES ('idxp.plain'), ('idxp.c')) AS c (ns);

-- Uniqueness holds among the documents in the index.
SELECT docshard.create_indexes('idxp.u', '[{"key": {"mail": 1}, "unique": true, "sparse": true}, {"key": {"seat": 1, "row": 1}, "name": "seats", "unique": true, "partialFilterExpression": {"taken": true}}]');
SELECT docshard.insert_many('idxp.u', ARRAY['{"_id": 1}', '{"_id": 2}', '{"_id": 3, "mail": "a", "seat": 1}', '{"_id": 4, "seat": 1, "taken": false}', '{"_id": 5, "seat": 1, "taken": true}', '{"_id": 6, "mail": null}']::jsonb[]) -> 'insertedCount' AS inserted;
SELECT docshard.insert_one('idxp.u', '{"_id": 7, "mail": "a"}');
SELECT docshard.insert_one('idxp.u', '{"_id": 7, "mail": null}');
SELECT docshard.update_one('idxp.u', '{"_id": 4}', '{"$set": {"taken": true}}');
SELECT docshard.update_one('idxp.u', '{"_id": 5}', '{"$set": {"taken": false}}') -> 'modifiedCount' AS modified, docshard.update_one('idxp.u', '{"_id": 4}', '{"$set": {"taken": true}}') -> 'modifiedCount' AS then;
SELECT docshard.insert_many('idxp.u', ARRAY['{"_id": 8, "seat": 1}', '{"_id": 9, "seat": 1, "taken": true}', '{"_id": 10, "seat": 2, "taken": true}', '{"_id": 4}']::jsonb[], '{"ordered": false}');
SELECT docshard.run_command('idxp', '{"insert": "u", "documents": [{"_id": 11, "seat": 1, "taken": true}]}');
-- In a unique index each element of an array counts, if the index contains the document.
SELECT docshard.insert_one('idxp.u', '{"_id": 12, "seat": [1, 2]}') -> 'insertedId' AS inserted;
SELECT docshard.insert_one('idxp.u', '{"_id": 13, "seat": [1, 2], "taken": true}');
SELECT docshard.create_index('idxp.u', '{"seat": 1}', '{"unique": true, "partialFilterExpression": {"seat": {"$lt": 3}}}');
-- A find that reads such a document does not fail, whatever the plan.
SET enable_indexscan = off;
SET enable_bitmapscan = off;
SELECT docshard.find('idxp.u', '{"seat": {"$gte": 1}, "taken": true}', '{"sort": {"_id": 1}}');
RESET enable_indexscan;
RESET enable_bitmapscan;

-- Indexes with the same keys are different ones if their conditions or options differ.
SELECT docshard.create_index('idxp.s', '{"x": 1}'), docshard.create_index('idxp.s', '{"x": 1}', '{"sparse": true, "name": "sparse"}'),
       docshard.create_index('idxp.s', '{"x": 1}', '{"partialFilterExpression": {"x": {"$gt": 1}}, "name": "above 1"}');
SELECT docshard.create_index('idxp.s', '{"x": 1}', '{"partialFilterExpression": {"x": {"$gt": 1}}, "name": "above 1"}');
SELECT docshard.create_index('idxp.s', '{"x": 1}', '{"partialFilterExpression": {"x": {"$gt": 1}}, "name": "over 1"}');
SELECT docshard.create_index('idxp.s', '{"x": 1}', '{"partialFilterExpression": {"x": {"$gt": 2}}, "name": "above 1"}');
SELECT docshard.create_index('idxp.s', '{"x": 1}', '{"sparse": true}');
SELECT docshard.drop_indexes('idxp.s', '{"x": 1}');
-- Refused options.
SELECT docshard.create_index('idxp.s', '{"y": 1}', '{"sparse": true, "partialFilterExpression": {"y": 1}}');
SELECT docshard.create_index('idxp.s', '{"_id": 1}', '{"sparse": true}');
SELECT docshard.create_index('idxp.s', '{"_id": 1}', '{"partialFilterExpression": {"y": 1}}');
SELECT docshard.create_index('idxp.s', '{"y": 1}', '{"partialFilterExpression": {"y": {"$ne": 1}}}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.create_index('idxp.s', '{"y": 1}', '{"partialFilterExpression": {"y": {"$near": 1}}}');
SELECT docshard.create_index('idxp.s', '{"y": 1}', '{"partialFilterExpression": 5}');
SELECT docshard.create_index('idxp.s', '{"y": 1}', '{"sparse": 1}');
SELECT docshard.run_command('idxp', '{"createIndexes": "s", "indexes": [{"key": {"y": 1}, "name": "y", "partialFilterExpression": {"y": {"$regex": "x"}}}]}');
-- A shard key needs an index of all documents.
SELECT docshard.insert_one('idxp.k', '{"_id": 1, "k": 1}') -> 'insertedId' AS inserted, docshard.create_index('idxp.k', '{"k": 1}', '{"sparse": true}');
SELECT docshard.shard_collection('idxp.k', '{"k": 1}');
-- Sharding an empty collection keeps its indexes.
SELECT docshard.shard_collection('idxp.s', '{"z": 1}');
SELECT name, is_sparse, partial_filter FROM docshard.list_indexes('idxp.s');
DROP FUNCTION ids;
DROP FUNCTION index_of;
SELECT docshard.drop_database('idxp');
