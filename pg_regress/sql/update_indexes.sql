-- An update that changes no indexed value writes to no index.
SELECT docshard.create_collection('up.c');
SELECT docshard.create_indexes('up.c', '[{"key": {"a": 1}, "name": "a"}, {"key": {"b": 1, "c.d": -1}, "name": "bcd"}, {"key": {"h": "hashed"}, "name": "h"},
    {"key": {"w.$**": 1}, "name": "w"}, {"key": {"s": 1}, "name": "s", "sparse": true}, {"key": {"u": 1}, "name": "u", "unique": true, "partialFilterExpression": {"u": {"$gt": 0}}},
    {"key": {"p": 1}, "name": "p", "partialFilterExpression": {"active": true}}, {"key": {"t": 1}, "name": "t", "collation": {"locale": "en", "strength": 2}}]');
SELECT docshard.insert_many('up.c', (SELECT array_agg(jsonb_build_object('_id', n, 'a', n, 'b', n, 'c', '[]'::jsonb, 'h', n, 'u', n, 'p', n, 't', 'x', 'w', jsonb_build_object('x', n), 'n', 0))
    FROM generate_series(1, 8) n) || '{"_id": 9, "a": [105, 106], "n": 0}'::jsonb) -> 'insertedCount' AS inserted;
SELECT "table" FROM docshard.collections WHERE namespace = 'up.c' \gset
-- The number of rows that a call changes, and of those that are heap-only.
CREATE FUNCTION pg_temp.spared(ns text, call text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE the_table regclass := (SELECT "table" FROM docshard.collections WHERE namespace = ns); updated bigint := pg_stat_get_xact_tuples_updated(the_table); spared bigint := pg_stat_get_xact_tuples_hot_updated(the_table);
BEGIN
  EXECUTE 'SELECT docshard.' || call;
  RETURN format('%s of %s: %s', pg_stat_get_xact_tuples_hot_updated(the_table) - spared, pg_stat_get_xact_tuples_updated(the_table) - updated, call);
END $$;
CREATE TEMP TABLE calls (n serial, call text);
INSERT INTO calls (call) VALUES
    -- Heap-only: fields of no index, or values that are equal for the index.
    ('update_one(''up.c'', ''{"_id": 1}'', ''{"$inc": {"n": 1}}'')'),
    ('update_one(''up.c'', ''{"_id": 1}'', ''[{"$set": {"m": {"$add": ["$n", 1]}}}]'')'),
    ('find_one_and_update(''up.c'', ''{"a": 8}'', ''{"$inc": {"n": 1}}'')'),
    ('find_one_and_replace(''up.c'', ''{"a": 8}'', ''{"a": 8, "b": 8, "c": [], "h": 8, "u": 8, "p": 8, "t": "x", "w": {"x": 8}}'', ''{"sort": {"a": 1}}'')'),
    ('update_many(''up.c'', ''{"a": {"$lt": 5}}'', ''{"$inc": {"n": 1}, "$set": {"deep.er": [1, 2]}}'')'),
    ('replace_one(''up.c'', ''{"_id": 2}'', ''{"a": 2, "b": 2, "c": [], "h": 2, "u": 2, "p": 2, "t": "x", "w": {"x": 2}}'')'),
    ('update_one(''up.c'', ''{"_id": 4}'', ''{"$set": {"c": [{"e": 5}]}}'')'),
    ('update_one(''up.c'', ''{"_id": 4}'', ''{"$set": {"p": 99}}'')'),
    ('update_one(''up.c'', ''{"_id": 4}'', ''{"$set": {"active": false}}'')'),
    ('update_one(''up.c'', ''{"_id": 4}'', ''{"$set": {"t": "X"}}'')'),
    ('update_one(''up.c'', ''{"a": 106}'', ''{"$addToSet": {"a": 106}, "$inc": {"n": 1}}'')'),
    -- A long document, stored out of line.
    ('insert_one(''up.c'', (SELECT jsonb_build_object(''_id'', 10, ''a'', 10, ''pad'', string_agg(md5(n::text), '''')) FROM generate_series(1, 3000) n))'),
    ('update_one(''up.c'', ''{"_id": 10}'', ''{"$inc": {"n": 1}}'')'),
    -- Not heap-only.
    ('update_one(''up.c'', ''{"_id": 5}'', ''{"$inc": {"a": 100}}'')'),
    ('update_one(''up.c'', ''{"_id": 5}'', ''{"$mul": {"a": {"$numberDecimal": "1"}}}'')'),
    ('update_one(''up.c'', ''{"_id": 5}'', ''{"$set": {"a": [105]}}'')'),
    ('update_one(''up.c'', ''{"_id": 5}'', ''{"$push": {"a": 106}}'')'),
    ('update_one(''up.c'', ''{"_id": 5}'', ''{"$set": {"c": [{"d": 5}]}}'')'),
    ('update_one(''up.c'', ''{"_id": 6}'', ''{"$unset": {"b": 1}}'')'),
    ('update_one(''up.c'', ''{"_id": 6}'', ''{"$set": {"h": null}}'')'),
    ('update_one(''up.c'', ''{"_id": 6}'', ''{"$set": {"w.y.z": 1}}'')'),
    ('update_one(''up.c'', ''{"_id": 6}'', ''{"$set": {"s": null}}'')'),
    ('update_one(''up.c'', ''{"_id": 6}'', ''{"$set": {"u": 0}}'')'),
    ('update_one(''up.c'', ''{"_id": 6}'', ''{"$set": {"active": true}}'')'),
    ('update_one(''up.c'', ''{"_id": 6}'', ''{"$set": {"p": 7}}'')'),
    ('update_one(''up.c'', ''{"_id": 6}'', ''{"$set": {"t": "y"}}'')'),
    ('find_one_and_update(''up.c'', ''{"a": 7}'', ''{"$set": {"b": -7}}'')');
\pset format unaligned
\pset tuples_only on
SELECT format('SELECT pg_temp.spared(''up.c'', %L)', call) FROM calls ORDER BY n \gexec
\pset format aligned
\pset tuples_only off
-- With a user's trigger PostgreSQL's own rule applies, as the trigger might change the row.
CREATE FUNCTION pg_temp.shift() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.doc := NEW.doc::jsonb || '{"a": -1}'; RETURN NEW; END $$;
CREATE TRIGGER shift BEFORE UPDATE ON :table FOR EACH ROW EXECUTE FUNCTION pg_temp.shift();
SELECT pg_temp.spared('up.c', 'update_one(''up.c'', ''{"_id": 7}'', ''{"$inc": {"n": 1}}'')');
DROP TRIGGER shift ON :table;
SELECT docshard.count_documents('up.c', '{"a": -1}', '{"hint": "a"}');
-- The same with a user's index on the documents.
CREATE INDEX own ON :table USING gin ((doc::jsonb));
SELECT pg_temp.spared('up.c', 'update_one(''up.c'', ''{"_id": 7}'', ''{"$inc": {"n": 1}}'')');
DROP INDEX docshard_data.own;
-- PostgreSQL's own UPDATE uses its own rule, also after an error.
SELECT docshard.update_many('up.c', '{"_id": {"$in": [8, 9]}}', '{"$set": {"u": 1}}');
BEGIN;
UPDATE :table SET doc = doc::jsonb || '{"a": 1000}' WHERE doc ->> '_id' = '8';
SELECT docshard.find('up.c', '{"a": 1000}', '{"hint": "a", "projection": {"a": 1}}');
ROLLBACK;

-- After many different updates every index agrees with the documents, also one that was created in between.
CREATE EXTENSION amcheck;
CREATE FUNCTION pg_temp.churn(times int) RETURNS void LANGUAGE plpgsql AS $$
DECLARE fields text[] := '{n,n,n,n,n,n,a,b,c.d,h,w.x,s,p,t,active,m}'; scalars json[] := ARRAY['1', '2', '2.0', 'null', '"x"', '"X"', 'true', '{"d": 1}']; arrays json[] := ARRAY['[]', '[1, 2]', '[{"d": 3}]'];
  field text; value json;
BEGIN
  FOR i IN 1 .. times LOOP
    field := fields[1 + floor(random() * array_length(fields, 1))];
    value := CASE WHEN random() < 0.2 AND field <> 'h' THEN arrays[1 + floor(random() * 3)] ELSE scalars[1 + floor(random() * 8)] END;
    BEGIN
      PERFORM docshard.update_one('up.c', json_build_object('_id', 1 + floor(random() * 9)::int),
        json_build_object(CASE WHEN random() < 0.15 THEN '$unset' ELSE '$set' END, json_build_object(field, value)));
    EXCEPTION WHEN OTHERS THEN
      -- A path through a value that is not an object, and two arrays of one document in one index.
      IF SQLERRM !~ 'Cannot create field|parallel arrays' THEN RAISE; END IF;
    END;
  END LOOP;
END $$;
CREATE FUNCTION pg_temp.checked() RETURNS TABLE (checked bigint, field text, agree bool) LANGUAGE plpgsql AS $$
BEGIN
  SELECT count(bt_index_check(indexrelid, true)) INTO checked FROM pg_index JOIN pg_class i ON i.oid = indexrelid JOIN pg_am am ON am.oid = i.relam
    WHERE indrelid = (SELECT "table"::regclass FROM docshard.collections WHERE namespace = 'up.c') AND amname = 'btree';
  FOR field IN SELECT unnest('{a,b,c.d,h,w.x,s,p,t,n}'::text[]) LOOP
    SELECT bool_and(docshard.count_documents('up.c', filter) = docshard.count_documents('up.c', filter, '{"hint": {"$natural": 1}}')
        AND docshard.count_documents('up.c', filter, '{"collation": {"locale": "en", "strength": 2}}') = docshard.count_documents('up.c', filter, '{"collation": {"locale": "en", "strength": 2}, "hint": {"$natural": 1}}'))
      INTO agree FROM unnest(ARRAY['1', '2', 'null', '"x"', '[1, 2]', '{"$exists": true}', '{"$type": "double"}', '{"$gte": 1}', '{"d": 1}']::json[]) AS v,
        LATERAL (SELECT json_build_object(field, v) AS filter UNION ALL SELECT json_build_object(field, v, 'active', true)) AS f;
    RETURN NEXT;
  END LOOP;
END $$;
SELECT setseed(0.5);
SELECT pg_temp.churn(400) \g /dev/null
SELECT checked, string_agg(field, ' ') AS fields, agree FROM pg_temp.checked() GROUP BY 1, 3;
SELECT docshard.create_index('up.c', '{"n": 1}');
SELECT checked, string_agg(field, ' ') AS fields, agree FROM pg_temp.checked() GROUP BY 1, 3;
SELECT pg_temp.churn(400) \g /dev/null
VACUUM :table;
SELECT pg_temp.churn(400) \g /dev/null
SELECT checked, string_agg(field, ' ') AS fields, agree FROM pg_temp.checked() GROUP BY 1, 3;
DROP EXTENSION amcheck;
SELECT docshard.drop_collection('up.c');
