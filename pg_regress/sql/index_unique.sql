-- Unique indexes over arrays: each element is a key that no other document may have, alone or in an array.
\set VERBOSITY terse
SELECT docshard.create_index('uni.c', '{"tag": 1}', '{"unique": true}');
SELECT docshard.insert_many('uni.c', ARRAY['{"_id": 1, "tag": ["a", "b", "a"]}', '{"_id": 2, "tag": "c"}', '{"_id": 3, "tag": []}', '{"_id": 4}']::jsonb[]) -> 'insertedCount' AS inserted;
\set VERBOSITY default
SELECT docshard.insert_one('uni.c', '{"_id": 5, "tag": "b"}');
SELECT docshard.insert_one('uni.c', '{"_id": 5, "tag": ["x", "c"]}');
SELECT docshard.insert_one('uni.c', '{"_id": 5, "tag": ["x", ["y"], "a"]}');
SELECT docshard.insert_one('uni.c', '{"_id": 5, "tag": []}');
SELECT docshard.insert_one('uni.c', '{"_id": 5, "tag": null}');
SELECT docshard.insert_one('uni.c', '{"_id": 5, "tag": ["z", null]}');
SELECT docshard.insert_many('uni.c', ARRAY['{"_id": 5, "tag": ["m", "n"]}', '{"_id": 6, "tag": ["o", "n"]}']::jsonb[]);
SELECT docshard.insert_many('uni.c', ARRAY['{"_id": 5, "tag": ["m", "n"]}', '{"_id": 6, "tag": ["o", "n"]}', '{"_id": 7, "tag": "a"}', '{"_id": 1, "tag": "q"}', '{"_id": 8, "tag": "o"}']::jsonb[], '{"ordered": false}');
SELECT docshard.find('uni.c', '{}', '{"sort": {"_id": 1}}');
-- Updates add and remove keys.
SELECT docshard.update_one('uni.c', '{"_id": 2}', '{"$set": {"tag": ["c", "b"]}}');
SELECT docshard.update_one('uni.c', '{"_id": 1}', '{"$pull": {"tag": "b"}}') -> 'modifiedCount' AS pulled, docshard.update_one('uni.c', '{"_id": 2}', '{"$set": {"tag": ["c", "b"]}}') -> 'modifiedCount' AS then;
SELECT docshard.update_one('uni.c', '{"_id": 1}', '{"$push": {"tag": "b"}}');
SELECT docshard.update_many('uni.c', '{"_id": {"$in": [1, 2]}}', '{"$push": {"tag": "same"}}');
SELECT docshard.find_one_and_update('uni.c', '{"_id": 1}', '{"$set": {"tag": "c"}}');
SELECT docshard.replace_one('uni.c', '{"_id": 1}', '{"tag": ["k", "o"]}');
SELECT docshard.find_one_and_update('uni.c', '{"_id": 1}', '{"$set": {"note": 1}}', '{"returnDocument": "after"}');
SELECT docshard.delete_one('uni.c', '{"_id": 2}') -> 'deletedCount' AS deleted, docshard.update_one('uni.c', '{"_id": 1}', '{"$push": {"tag": "c"}}') -> 'modifiedCount' AS then;
SELECT docshard.update_one('uni.c', '{"tag": "o", "_id": 9}', '{"$set": {"x": 1}}', '{"upsert": true}');
SELECT docshard.update_one('uni.c', '{"tag": "p"}', '{"$set": {"x": 1}}', '{"upsert": true}') -> 'matchedCount' AS matched, docshard.update_one('uni.c', '{"tag": "p"}', '{"$set": {"x": 2}}', '{"upsert": true}') -> 'matchedCount' AS then;
SELECT docshard.run_command('uni', '{"insert": "c", "documents": [{"_id": 20, "tag": [1, 2]}, {"_id": 21, "tag": [2.0, 3]}, {"_id": 22, "tag": 4}], "ordered": false}');
BEGIN;
SELECT docshard.delete_many('uni.c', '{"tag": "n"}') -> 'deletedCount' AS deleted;
SELECT docshard.insert_one('uni.c', '{"_id": 30, "tag": ["n", "m"]}') -> 'insertedId' AS inserted;
ROLLBACK;
SELECT docshard.count_documents('uni.c', '{"tag": {"$in": ["m", "n"]}}');
-- Finds use the index like any other; it is rebuilt with the table.
SELECT jsonb_path_query_first(docshard.explain('uni.c', '{"tag": "n"}')::jsonb, 'strict $.**.indexName') AS by, docshard.find('uni.c', '{"tag": "n"}');
DO $$
DECLARE
    relation regclass := (SELECT c."table" FROM docshard.collections c WHERE c.namespace = 'uni.c');
BEGIN
    EXECUTE format('REINDEX TABLE %s', relation);
END $$;
SELECT docshard.insert_one('uni.c', '{"_id": 31, "tag": "n"}');
-- Long values are distinguished, and strings by the index's collation; a partial index checks only the documents that it contains.
SELECT docshard.insert_one('uni.c', jsonb_build_object('_id', 40, 'tag', repeat('x', 5000) || 'a')) -> 'insertedId' AS one,
       docshard.insert_one('uni.c', jsonb_build_object('_id', 41, 'tag', jsonb_build_array(repeat('x', 5000) || 'b'))) -> 'insertedId' AS other;
SELECT docshard.insert_one('uni.c', jsonb_build_object('_id', 42, 'tag', jsonb_build_array(1000, repeat('x', 5000) || 'a')));
SELECT docshard.create_indexes('uni.o', '[{"key": {"mail": 1}, "unique": true, "collation": {"locale": "en", "strength": 2}}, {"key": {"seat": 1, "row": -1}, "name": "seats", "unique": true, "partialFilterExpression": {"taken": true}}]');
SELECT docshard.insert_many('uni.o', ARRAY['{"_id": 1, "mail": ["Ann@x", "bob@x"], "seat": [1, 2], "row": 1, "taken": true}', '{"_id": 2, "mail": "cid@x", "seat": [1, 2], "row": 1}']::jsonb[]) -> 'insertedCount' AS inserted;
SELECT docshard.insert_one('uni.o', '{"_id": 3, "mail": ["ANN@X"]}');
SELECT docshard.update_one('uni.o', '{"_id": 2}', '{"$set": {"taken": true}}');
SELECT docshard.update_one('uni.o', '{"_id": 2}', '{"$set": {"taken": true, "row": 2}}') -> 'modifiedCount' AS modified;
SELECT docshard.update_one('uni.o', '{"_id": 2}', '{"$set": {"row": [1, 2]}}');
-- No plan reads the relation that enforces uniqueness, which may contain a document several times.
SET enable_seqscan = off;
SELECT docshard.count_documents('uni.o', '{"taken": true}', '{"hint": "seats"}') AS hinted, docshard.count_documents('uni.o', '{"taken": true}') AS free,
       (SELECT count(*) FROM docshard.find('uni.o', '{"taken": true}', '{"hint": "seats"}')) AS found, docshard.count_documents('uni.o', '{}', '{"hint": "mail_1"}') AS mails;
RESET enable_seqscan;
-- Building one over existing documents.
SELECT docshard.insert_many('uni.b', ARRAY['{"_id": 1, "k": [1, 2]}', '{"_id": 2, "k": 2}', '{"_id": 3, "k": [3, 3]}']::jsonb[]) -> 'insertedCount' AS inserted;
SELECT docshard.create_index('uni.b', '{"k": 1}', '{"unique": true}');
BEGIN;
SELECT docshard.create_index('uni.b', '{"k": 1}', '{"unique": true}');
ROLLBACK;
SELECT docshard.delete_one('uni.b', '{"_id": 2}') -> 'deletedCount' AS deleted;
SELECT docshard.create_index('uni.b', '{"k": 1}', '{"unique": true}');
SELECT docshard.insert_one('uni.b', '{"_id": 4, "k": [4, 1]}');
SELECT count(*) AS relations, count(*) FILTER (WHERE relname LIKE '%\_unique') AS unique FROM pg_class
 WHERE oid IN (SELECT indexrelid FROM pg_index WHERE indrelid = (SELECT c."table"::regclass FROM docshard.collections c WHERE c.namespace = 'uni.b')) AND relname ~ '^i';
SELECT docshard.drop_index('uni.b', 'k_1') -> 'ok' AS ok;
SELECT docshard.insert_one('uni.b', '{"_id": 4, "k": [4, 1]}') -> 'insertedId' AS inserted;
-- With any sequence of writes no two documents share an element, and the index has every element of each document.
SELECT docshard.create_index('uni.r', '{"k": 1}', '{"unique": true}');
SELECT setseed(0.5);
DO $$
DECLARE
    done int := 0;
BEGIN
    FOR n IN 1..1500 LOOP
        BEGIN
            CASE (random() * 4)::int
                WHEN 0 THEN PERFORM docshard.insert_one('uni.r', jsonb_build_object('_id', n, 'k', (random() * 60)::int));
                WHEN 1 THEN PERFORM docshard.insert_one('uni.r', jsonb_build_object('_id', n, 'k', jsonb_build_array((random() * 60)::int, (random() * 60)::int)));
                WHEN 2 THEN PERFORM docshard.update_one('uni.r', json_build_object('k', (random() * 60)::int), json_build_object('$set', json_build_object('k', ARRAY[(random() * 60)::int, (random() * 60)::int])));
                WHEN 3 THEN PERFORM docshard.find_one_and_update('uni.r', json_build_object('k', (random() * 60)::int), json_build_object('$set', json_build_object('k', (random() * 60)::int)));
                ELSE PERFORM docshard.delete_one('uni.r', json_build_object('k', (random() * 60)::int));
            END CASE;
            done := done + 1;
        EXCEPTION WHEN unique_violation THEN
        END;
    END LOOP;
    ASSERT done BETWEEN 200 AND 1400, format('%s of 1500 were done', done);
END $$;
CREATE FUNCTION pg_temp.agrees() RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    the_table text := (SELECT c."table" FROM docshard.collections c WHERE c.namespace = 'uni.r');
    agrees boolean;
BEGIN
    EXECUTE format('WITH e AS (SELECT DISTINCT t.id, e.value FROM %s t, jsonb_path_query(t.doc::jsonb, ''lax $.k[*]'') AS e (value))
        SELECT count(*) = count(DISTINCT value) AND count(*) > 10 AND bool_and(EXISTS (SELECT FROM docshard_internal.find_conflict(%s, '''', '''',
            docshard_internal.pack(jsonb_build_object(''_id'', ''other'', ''k'', value))))) FROM e', the_table, substring(the_table FROM '[0-9]+$')) INTO agrees;
    RETURN agrees;
END $$;
SELECT pg_temp.agrees();
SELECT c."table" FROM docshard.collections c WHERE c.namespace = 'uni.r' \gset
VACUUM :table;
SELECT pg_temp.agrees();
VACUUM FULL :table;
SELECT pg_temp.agrees();
SELECT docshard.drop_database('uni');

-- A user's own index of this access method takes packed keys, too.
CREATE TABLE regress_packed (keys bytea);
CREATE INDEX ON regress_packed USING docshard_unique (keys docshard_internal.unique_ops);
INSERT INTO regress_packed VALUES ('\xff');
\echo :LAST_ERROR_SQLSTATE
DROP TABLE regress_packed;
