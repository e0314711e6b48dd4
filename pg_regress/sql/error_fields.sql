-- Fields of errors for programs: the code in DETAIL, and the names of what a duplicate key violates.
CREATE FUNCTION pg_temp.fields(statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    detail text; hint text; schema_name text; table_name text; constraint_name text; column_name text;
BEGIN
    EXECUTE statement;
    RETURN 'no error';
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL, schema_name = SCHEMA_NAME, table_name = TABLE_NAME,
        constraint_name = CONSTRAINT_NAME, column_name = COLUMN_NAME;
    RETURN concat_ws(' | ', SQLSTATE, docshard.error_code(detail), regexp_replace(schema_name, '^pg_temp_\d+$', 'pg_temp'), table_name, constraint_name, column_name);
END $$;
SELECT docshard.insert_one('fields.a.b', '{"_id": 1, "mail": "x", "n": 1}') -> 'insertedId' AS id;
SELECT docshard.create_index('fields.a.b', '{"mail": 1}', '{"unique": true, "name": "one per person", "collation": {"locale": "en"}}');
SELECT docshard.create_index('fields.a.b', '{"n": 1, "m": 1}', '{"unique": true}');
SELECT pg_temp.fields($$ SELECT docshard.insert_one('fields.a.b', '{"_id": 1}') $$);
SELECT pg_temp.fields($$ SELECT docshard.insert_one('fields.a.b', '{"_id": 2, "mail": "x"}') $$);
SELECT pg_temp.fields($$ SELECT docshard.insert_many('fields.a.b', ARRAY['{"_id": 3, "mail": "y"}', '{"_id": 4, "mail": "y"}']::jsonb[]) $$);
SELECT pg_temp.fields($$ SELECT docshard.update_one('fields.a.b', '{"_id": 5}', '{"$set": {"n": 1}}', '{"upsert": true}') $$);
SELECT docshard.insert_one('fields.a.b', '{"_id": 2, "mail": "z", "n": 2}') -> 'insertedId' AS id;
SELECT pg_temp.fields($$ SELECT docshard.update_one('fields.a.b', '{"_id": 2}', '{"$set": {"mail": "x"}}') $$);
SELECT pg_temp.fields($$ SELECT docshard.replace_one('fields.a.b', '{"n": 2}', '{"mail": "z", "n": 1}') $$);
SELECT pg_temp.fields($$ SELECT docshard.find_one_and_update('fields.a.b', '{"_id": 2}', '{"$set": {"n": 1}}') $$);
SELECT docshard.insert_many('fields.two', ARRAY['{"_id": 1, "a": 1}', '{"_id": 2, "a": 1}']::jsonb[]) -> 'insertedCount' AS n;
SELECT pg_temp.fields($$ SELECT docshard.create_index('fields.two', '{"a": 1}', '{"unique": true}') $$);
-- Other errors.
SELECT pg_temp.fields($$ SELECT docshard.find('fields.two', '{"a": {"$no": 1}}') $$);
SELECT pg_temp.fields($$ SELECT docshard.find('fields') $$);
SELECT pg_temp.fields($$ SELECT docshard.insert_one('fields.two', NULL) $$);
-- PostgreSQL's own errors keep their fields.
CREATE TEMP TABLE plain (id int CONSTRAINT plain_key PRIMARY KEY, n int NOT NULL CONSTRAINT positive CHECK (n > 0));
CREATE FUNCTION pg_temp.fill() RETURNS jsonb LANGUAGE sql AS $$ INSERT INTO plain VALUES (1, 0) RETURNING '{}'::jsonb $$;
SELECT pg_temp.fields($$ SELECT docshard.insert_select('fields.two', 'SELECT pg_temp.fill()') $$);
SELECT pg_temp.fields($$ SELECT docshard.find('fields.two', '{') $$);
-- The code of a DETAIL; null for any other.
SELECT detail, docshard.error_code(detail) FROM (VALUES ('MongoDB error 11000 (DuplicateKey).'), ('MongoDB error 40324 (Location40324).'),
    ('MongoDB error 11000 (DuplicateKey). Already committed on shard "a".'), ('MongoDB error'), ('MongoDB error x (y).'), ('MongoDB error -1 (y).'),
    ('MongoDB error +1 (y).'), ('MongoDB error 99999999999 (y).'), (''), ('Key (id)=(1) already exists.'), (NULL)) AS given (detail);
SELECT docshard.drop_database('fields') -> 'ok' AS ok;
