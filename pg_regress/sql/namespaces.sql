-- A namespace is database.collection; every function that takes one refuses malformed ones.
CREATE PROCEDURE try(statement text, ns text) LANGUAGE plpgsql AS $$
DECLARE detail text;
BEGIN
  EXECUTE statement USING ns;
  RAISE NOTICE '%: accepted', left(ns, 30);
EXCEPTION WHEN OTHERS THEN
  GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL;
  RAISE NOTICE '% % (%)', SQLSTATE, left(SQLERRM, 90), detail;
END $$;
SELECT format('CALL try(%L, %L)', 'SELECT docshard.find_one($1)', ns)
  FROM unnest(ARRAY['', 'nodot', '.c', 'db.', 'db..c', 'db.c.', 'db.a$b', 'd$b.c', 'd b.c', 'd/b.c', 'd\b.c', 'd"b.c', 'db.system.users',
       repeat('d', 64) || '.c', 'db.' || repeat('c', 253), 'db.a.b', 'db.a b', 'DB.Ünï']) WITH ORDINALITY AS u(ns, n) ORDER BY n
\gexec
CALL try('SELECT docshard.insert_one($1, ''{}'')', 'nodot');
CALL try('SELECT docshard.insert_many($1, ARRAY[jsonb ''{}''])', 'nodot');
CALL try('SELECT docshard.find($1)', 'nodot');
CALL try('SELECT docshard.count_documents($1)', 'nodot');
CALL try('SELECT docshard.estimated_document_count($1)', 'nodot');
CALL try('SELECT docshard.explain($1)', 'nodot');
CALL try('SELECT docshard.update_one($1, ''{}'', ''{"$set": {"a": 1}}'')', 'nodot');
CALL try('SELECT docshard.update_many($1, ''{}'', ''{"$set": {"a": 1}}'')', 'nodot');
CALL try('SELECT docshard.replace_one($1, ''{}'', ''{}'')', 'nodot');
CALL try('SELECT docshard.delete_one($1, ''{}'')', 'nodot');
CALL try('SELECT docshard.delete_many($1, ''{}'')', 'nodot');
CALL try('SELECT docshard.create_collection($1)', 'nodot');
CALL try('SELECT docshard.drop_collection($1)', 'nodot');
CALL try('SELECT docshard.shard_collection($1, ''{"a": 1}'')', 'nodot');
CALL try('SELECT docshard.create_index($1, ''{"a": 1}'')', 'nodot');
CALL try('SELECT docshard.list_indexes($1)', 'nodot');
CALL try('SELECT docshard.drop_index($1, ''a_1'')', 'nodot');
CALL try('SELECT docshard.split_at($1, ''{"a": 1}'')', 'nodot');
CALL try('SELECT docshard.split_find($1, ''{"a": 1}'')', 'nodot');
CALL try('SELECT docshard.merge_chunks($1, ''[]'')', 'nodot');
CALL try('SELECT docshard.move_chunk($1, ''{"a": 1}'', ''local'')', 'nodot');
CALL try('SELECT docshard.move_range($1, ''{"a": 1}'', ''{"a": 2}'', ''local'')', 'nodot');
CALL try('SELECT * FROM docshard.get_shard_distribution($1)', 'nodot');
CALL try('SELECT docshard.enable_sharding($1)', 'a.b');
CALL try('SELECT docshard.enable_sharding($1)', '');
CALL try('SELECT docshard.drop_database($1)', 'a$b');
DROP PROCEDURE try;
