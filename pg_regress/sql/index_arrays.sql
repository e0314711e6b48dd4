-- Arrays at indexed paths: results are the same with and without the index.
SELECT docshard.create_index('arr.indexed', '{"v": 1}');
SELECT docshard.create_index('arr.indexed', '{"d.x": -1, "v": 1}');
CREATE TEMP TABLE documents (doc jsonb);
INSERT INTO documents VALUES
  ('{"_id": 1, "v": 5}'), ('{"_id": 2, "v": [1, 9]}'), ('{"_id": 3, "v": []}'), ('{"_id": 4}'), ('{"_id": 5, "v": null}'),
  ('{"_id": 6, "v": [null]}'), ('{"_id": 7, "v": [[5]]}'), ('{"_id": 8, "v": "5"}'), ('{"_id": 9, "d": [{"x": 1}, {"x": 7}]}'),
  ('{"_id": 10, "d": {"x": [1, 7]}}'), ('{"_id": 11, "d": {"x": 3}, "v": [5, 6]}'), ('{"_id": 12, "d": []}'), ('{"_id": 13, "d": [1, {"x": 3}]}');
SELECT ns, docshard.insert_many(ns, array_agg(doc)) -> 'insertedCount' AS inserted
  FROM documents, (VALUES ('arr.plain'), ('arr.indexed')) AS c (ns) GROUP BY ns ORDER BY ns;
-- Enough other documents, so that the planner uses the index.
SELECT ns, docshard.insert_many(ns, array_agg(jsonb_build_object('_id', n, 'v', n, 'd', jsonb_build_object('x', n)))) -> 'insertedCount' AS inserted
  FROM generate_series(1000, 3000) n, (VALUES ('arr.plain'), ('arr.indexed')) AS c (ns) GROUP BY ns ORDER BY ns;
-- Not shown, as the names of tables depend on earlier tests.
\set ECHO none
SELECT 'ANALYZE ' || "table" FROM docshard.collections WHERE database = 'arr' ORDER BY 1
\gexec
\set ECHO all

CREATE FUNCTION ids(ns text, filter json) RETURNS text LANGUAGE sql BEGIN ATOMIC
  SELECT coalesce(string_agg(d ->> '_id', ' ' ORDER BY (d ->> '_id')::int), 'none') FROM docshard.find(ns, filter) d;
END;
SELECT filter, ids('arr.indexed', filter) AS found, ids('arr.indexed', filter) = ids('arr.plain', filter) AS same
  FROM unnest(ARRAY['{"v": 5}', '{"v": 9}', '{"v": [1, 9]}', '{"v": []}', '{"v": [5]}', '{"v": {"$in": [[5], "5"]}}',
       '{"v": {"$gte": 4, "$lte": 6}}', '{"v": {"$gt": 5, "$lt": 2}}', '{"v": {"$lt": 5}}', '{"v": "5"}',
       '{"d.x": 7}', '{"d.x": 3, "v": 6}', '{"d.x": {"$gt": 6, "$lt": 100}}', '{"d.x": {"$gt": 3, "$lt": 2}}',
       '{"v": null, "_id": {"$lt": 100}}', '{"v": {"$ne": 5}, "_id": {"$lt": 100}}', '{"v": {"$exists": false}, "_id": {"$lt": 9}}']::json[]) AS filter;
-- The order of a sort is the same, too: ascending by an array's smallest element, descending by its largest.
SELECT up = (SELECT array_agg(d ORDER BY n) FROM docshard.find('arr.plain', '{"_id": {"$lt": 100}}', '{"sort": {"v": 1, "_id": 1}}') WITH ORDINALITY AS p (d, n)) AS same,
       (SELECT string_agg(d ->> '_id', ' ' ORDER BY n) FROM unnest(up) WITH ORDINALITY AS u (d, n)) AS ids
  FROM (SELECT array_agg(d ORDER BY n) AS up FROM docshard.find('arr.indexed', '{"_id": {"$lt": 100}}', '{"sort": {"v": 1, "_id": 1}}') WITH ORDINALITY AS i (d, n)) AS i;
SELECT (SELECT string_agg(d ->> '_id', ' ' ORDER BY n) FROM docshard.find('arr.indexed', '{"_id": {"$lt": 100}}', '{"sort": {"v": -1, "_id": 1}}') WITH ORDINALITY AS i (d, n)) AS descending;
-- Updates and deletes select the same documents.
SELECT ns, docshard.update_many(ns, '{"v": {"$gte": 4, "$lte": 6}}', '{"$set": {"hit": true}}') -> 'modifiedCount' AS modified,
       docshard.delete_many(ns, '{"d.x": 7}') -> 'deletedCount' AS deleted
  FROM (VALUES ('arr.plain'), ('arr.indexed')) AS c (ns);
DROP FUNCTION ids;
-- A document with an array is found by its elements in an additional index, and so is one whose value is too long for the b-tree.
SELECT docshard.create_index('arr.mail', '{"to": 1, "sent": -1}');
SELECT docshard.insert_many('arr.mail', (SELECT array_agg(jsonb_build_object('_id', n, 'to', jsonb_build_array('u' || n % 500, 'u' || n % 301), 'sent', n)) FROM generate_series(1, 3000) n)) -> 'insertedCount' AS inserted;
SELECT docshard.insert_one('arr.mail', jsonb_build_object('_id', 0, 'to', repeat('long', 500), 'sent', 1)) -> 'insertedId' AS long;
SELECT filter, stats -> 'nReturned' AS returned, stats -> 'totalDocsExamined' AS documents, jsonb_path_query_array(stats::jsonb, '$.**.isMultiKey') AS multikey
  FROM unnest(ARRAY['{"to": "u7"}', '{"to": "u7", "sent": 7}', '{"to": {"$in": ["u7", "u8"]}, "sent": {"$gt": 500, "$lte": 508}}', '{"to": {"$regex": "^u49[89]"}}',
         '{"to": ["u9", "u9"]}', '{"sent": 7, "to": "nobody"}']::json[]) AS filter, LATERAL (SELECT docshard.explain('arr.mail', filter, '{"hint": "to_1_sent_-1"}', 'executionStats') -> 'executionStats') AS e (stats);
SELECT d -> '_id' AS id FROM docshard.find('arr.mail', json_build_object('to', repeat('long', 500)), '{"hint": "to_1_sent_-1"}') d;
SELECT d -> '_id' AS id FROM docshard.find('arr.mail', '{"to": {"$regex": "^longlong"}, "sent": 1}', '{"hint": "to_1_sent_-1"}') d;
SELECT name, keys FROM docshard.list_indexes('arr.mail');
SELECT name, bytes > 100000 AS large FROM docshard.index_stats('arr.mail');
-- An index cannot have two array fields of one document.
SELECT docshard.insert_one('arr.mail', '{"to": ["ann"], "sent": [1, 2]}');
SELECT docshard.update_one('arr.mail', '{"_id": 5}', '{"$set": {"sent": []}}');
SELECT docshard.insert_one('arr.two', '{"a": [1], "b": {"c": [2]}}') -> 'acknowledged' AS inserted;
SELECT docshard.create_index('arr.two', '{"a": 1, "b.c": 1}');
SELECT docshard.insert_one('arr.two', '{"a": [{"b": [1]}, {"c": [2]}]}') -> 'acknowledged' AS inserted;
SELECT docshard.create_index('arr.two', '{"a.b": 1, "a.c": 1}');
SELECT docshard.insert_one('arr.two', '{"a": [{"b": [1], "c": [2]}]}');
SELECT docshard.drop_index('arr.mail', 'to_1_sent_-1');
SELECT count(*) AS indexes FROM pg_class c JOIN pg_index i ON c.oid = i.indexrelid
 WHERE i.indrelid = (SELECT "table"::regclass FROM docshard.collections WHERE namespace = 'arr.mail') AND c.relname LIKE 'i%';
SELECT docshard.drop_database('arr');
