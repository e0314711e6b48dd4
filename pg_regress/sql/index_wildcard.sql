-- Wildcard indexes: every path of a document, or of a part of it.
SELECT docshard.insert_many('wild.c', array_agg(d)) -> 'insertedCount' AS inserted FROM (
  SELECT jsonb_build_object('_id', n, 'n', n, 'f' || n % 50, jsonb_build_object('x', n, 'tags', jsonb_build_array('t' || n % 90, 't' || n % 70))) AS d
    FROM generate_series(1, 3000) n UNION ALL VALUES
      ('{"_id": 0, "f1": [{"x": 7, "y": [1, [2, 3]]}, 9]}'::jsonb), ('{"_id": -1, "f1": null}'), ('{"_id": -2, "f1": {}}'), ('{"_id": -3, "f1": []}'), ('{"_id": -4, "f1": {"x": {"deep": "z"}}}')) AS documents (d);
SELECT docshard.create_index('wild.c', '{"$**": 1}');
DO $$ BEGIN EXECUTE (SELECT 'ANALYZE ' || "table" FROM docshard.collections WHERE namespace = 'wild.c'); END $$;
CREATE FUNCTION looked(ns text, filter json) RETURNS TABLE (ids text, index text, documents text) LANGUAGE sql AS $$
  SELECT (SELECT coalesce(string_agg(d ->> '_id', ' ' ORDER BY (d ->> '_id')::int), 'none') FROM (SELECT docshard.find(ns, filter, '{"sort": {"_id": 1}, "limit": 5}')) f (d)),
         coalesce(jsonb_path_query_first(e, '$.**.indexName') #>> '{}', '-'), e #>> '{executionStats,totalDocsExamined}'
    FROM docshard.explain(ns, filter, '{}', 'executionStats') j, LATERAL (SELECT j::jsonb) x (e)
$$;
-- Equality, $in, ranges of one path, $exists, elements of arrays.
SELECT filter, l.* FROM unnest(ARRAY['{"n": 17}', '{"f1.x": 7}', '{"f1.x": {"$in": [51, 101, 7]}}', '{"f1.x": {"$gt": 100, "$lte": 201}}', '{"f1.tags": "t1", "f1.x": 1}', '{"f1.tags": {"$regex": "^t2$"}}',
       '{"f1": {"$exists": true}, "n": {"$exists": false}}', '{"f1.x.deep": {"$exists": true}}', '{"f1": {}}', '{"f1": []}', '{"f1": 9}', '{"f1": {"$elemMatch": {"x": 7}}}', '{"f1.y": {"$elemMatch": {"$gt": 0}}}',
       '{"f1.y": [2, 3]}', '{"$or": [{"n": 3}, {"f4.x": 4}]}', '{"none": 1}']::json[]) AS filter, LATERAL looked('wild.c', filter) l;
-- Conditions that it does not serve: missing values, embedded documents, negations, `_id`, positions.
SELECT filter, l.* FROM unnest(ARRAY['{"f1": null}', '{"f1": {"$exists": false}, "n": {"$lt": 3}}', '{"f1.x": {"$ne": null}}', '{"f1": {"x": {"deep": "z"}}}', '{"f1.0": 9}', '{"f1.x": {"$in": [1, null]}, "_id": {"$lte": 1}}',
       '{"f1": {"$size": 0}}', '{"$nor": [{"f1.x": {"$gt": 0}}], "f1.x": {"$type": "object"}}']::json[]) AS filter, LATERAL looked('wild.c', filter) l;
SELECT docshard.find('wild.c', '{"n": 17}', '{"hint": {"$**": 1}, "projection": {"_id": 1}}');
SELECT docshard.find('wild.c', '{"n": {"$lt": 3}}', '{"hint": "$**_1", "projection": {"n": 1}, "sort": {"n": -1}, "limit": 1}');
SELECT docshard.find('wild.c', '{"f1": null}', '{"hint": "$**_1"}');
SELECT docshard.find('wild.c', '{}', '{"hint": "$**_1"}');
\echo :LAST_ERROR_SQLSTATE
-- Writes maintain it.
SELECT docshard.update_one('wild.c', '{"n": 17}', '{"$set": {"new": {"path": [1, 2]}}, "$unset": {"n": 1}}') -> 'modifiedCount' AS modified;
SELECT filter, l.* FROM unnest(ARRAY['{"n": 17}', '{"new.path": 2}']::json[]) AS filter, LATERAL looked('wild.c', filter) l;
-- Of a part of the document: below a path, or the fields of a projection.
SELECT docshard.drop_index('wild.c', '$**_1');
SELECT docshard.create_index('wild.c', '{"f1.$**": 1}'), docshard.create_index('wild.c', '{"$**": 1}', '{"wildcardProjection": {"f2": 1, "f3.x": 1, "_id": 1}, "name": "some"}'),
       docshard.create_index('wild.c', '{"$**": 1}', '{"wildcardProjection": {"n": 0, "f1": 0, "f2": 0, "f3": 0, "f5": {"x": 0}}, "name": "others"}');
SELECT filter, index FROM unnest(ARRAY['{"f1.x": 1}', '{"f2.x": 2}', '{"f3.x": 3}', '{"f3.tags": "t3"}', '{"f3": {"$exists": true}}', '{"n": 1}', '{"f4.x": 4}', '{"f5.x": 5}', '{"f5": {"$exists": true}}', '{"f5.tags": "t5"}']::json[]) AS filter,
  LATERAL looked('wild.c', filter) l;
SELECT name, keys, wildcard_projection FROM docshard.indexes WHERE namespace = 'wild.c' ORDER BY name;
SELECT jsonb_path_query(docshard.run_command('wild', '{"listIndexes": "c"}')::jsonb, '$.cursor.firstBatch[*] ? (@.name == "some")');
SELECT docshard.find('wild.c', '{"f2.x": 2}', '{"hint": {"$**": 1}}');
SELECT docshard.create_index('wild.c', '{"$**": 1}', '{"wildcardProjection": {"f9": 1}, "name": "some"}');
SELECT docshard.create_index('wild.c', '{"$**": 1}', '{"wildcardProjection": {"f2": 1, "f3.x": 1, "_id": 1}, "name": "some"}');
-- Options that a wildcard index cannot have.
SELECT docshard.create_index('wild.c', '{"$**": 1}', '{"unique": true}');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.create_index('wild.c', '{"$**": 1}', '{"sparse": true}');
SELECT docshard.create_index('wild.c', '{"$**": 1}', '{"expireAfterSeconds": 5}');
SELECT docshard.create_index('wild.c', '{"$**": "hashed"}');
SELECT docshard.create_index('wild.c', '{"$**": 1, "a": 1}');
SELECT docshard.create_index('wild.c', '{"a.$**.b": 1}');
SELECT docshard.create_index('wild.c', '{"$**": "text"}');
SELECT docshard.create_index('wild.c', '{"a": 1}', '{"wildcardProjection": {"b": 1}}');
SELECT docshard.create_index('wild.c', '{"a.$**": 1}', '{"wildcardProjection": {"b": 1}}');
SELECT docshard.create_index('wild.c', '{"$**": 1}', '{"wildcardProjection": {}}');
SELECT docshard.create_index('wild.c', '{"$**": 1}', '{"wildcardProjection": {"a": 1, "b": 0}}');
SELECT docshard.create_index('wild.c', '{"$**": 1}', '{"wildcardProjection": {"a": 0, "b": 1}}');
SELECT docshard.create_index('wild.c', '{"$**": 1}', '{"wildcardProjection": {"a": "$b"}}');
SELECT docshard.create_index('wild.c', '{"$**": 1}', '{"wildcardProjection": 1}');
SELECT docshard.create_index('wild.c', '{"a.$**": 1, "b.$**": 1}');
SELECT docshard.create_index('wild.c', '{"a": 1, "a.b.$**": 1}');
SELECT docshard.create_index('wild.c', '{"a": 1, "$**": 1}', '{"wildcardProjection": {"b": 0}}');
SELECT docshard.create_index('wild.c', '{"a": "hashed", "b.$**": 1}');
SELECT docshard.create_index('wild.c', '{"a": 1, "b.$**": 1}', '{"unique": true}');
SELECT docshard.create_index('wild.c', '{"a": 1, "b.$**": 1}', '{"wildcardProjection": {"b.c": 1}}');
-- Compound: other fields in front of the wildcard and behind it.
SELECT docshard.drop_indexes('wild.c', '{"f1.$**": 1}');
SELECT docshard.drop_indexes('wild.c', '{"$**": 1}');
SELECT docshard.drop_indexes('wild.c', '"*"');
SELECT docshard.create_index('wild.c', '{"n": 1, "f1.$**": 1}'), docshard.create_index('wild.c', '{"$**": 1, "n": -1}', '{"wildcardProjection": {"f2": 1, "f3": 1}}');
SELECT filter, l.* FROM unnest(ARRAY['{"n": 51, "f1.x": 51}', '{"n": 51, "f1.x": 52}', '{"n": {"$in": [51, 101]}, "f1.tags": {"$regex": "^t1"}}', '{"n": 101, "f1.x": {"$exists": true}}', '{"n": 101}', '{"n": {"$gt": 2950}, "f1.x": 2951}',
       '{"f2.x": 102, "n": 102}', '{"f2.x": {"$gt": 2900}, "n": 2902}', '{"f3.tags": "t3"}', '{"f1.x": 51}']::json[]) AS filter, LATERAL looked('wild.c', filter) l;
SELECT docshard.find('wild.c', '{"n": 101, "f1.x": 101}', '{"hint": {"n": 1, "f1.$**": 1}, "projection": {"_id": 1}}');
SELECT docshard.find('wild.c', '{"f1.x": 101}', '{"hint": "n_1_f1.$**_1"}');
SELECT docshard.update_one('wild.c', '{"n": 101, "f1.x": 101}', '{"$set": {"n": 5101, "f1.y": "new"}}') -> 'modifiedCount' AS modified;
SELECT filter, l.* FROM unnest(ARRAY['{"n": 101, "f1.x": 101}', '{"n": 5101, "f1.y": "new"}', '{"n": 5101, "f1.z": "new"}']::json[]) AS filter, LATERAL looked('wild.c', filter) l;
SELECT docshard.insert_one('wild.c', '{"_id": 9999, "n": [1, 2], "f1": 1}');
\echo :LAST_ERROR_SQLSTATE
SELECT name, keys, wildcard_projection FROM docshard.indexes WHERE namespace = 'wild.c' ORDER BY name;
-- Partial, with a collation, hidden; paths and values of any length.
SELECT docshard.create_index('wild.p', '{"$**": 1}', '{"partialFilterExpression": {"kind": "a"}, "collation": {"locale": "en", "strength": 2}}');
SELECT docshard.insert_many('wild.p', ARRAY[jsonb_build_object('_id', 1, 'kind', 'A', repeat('long', 500), repeat('value', 900)), jsonb_build_object('_id', 2, 'kind', 'b', repeat('long', 500), 1)]) -> 'insertedCount' AS inserted;
SELECT d -> '_id' AS id FROM docshard.find('wild.p', json_build_object('kind', 'a', repeat('long', 500), repeat('Value', 900)), '{"hint": "$**_1", "collation": {"locale": "en", "strength": 2}}') d;
SELECT d -> '_id' AS id FROM docshard.find('wild.p', json_build_object(repeat('long', 500), json_build_object('$exists', true)), '{"sort": {"_id": 1}}') d;
SELECT docshard.drop_indexes('wild.c', '{"n": 1, "f1.$**": 1}');
SELECT docshard.drop_indexes('wild.c', '{"$**": 1, "n": -1}');
DROP FUNCTION looked;
SELECT docshard.drop_database('wild');
