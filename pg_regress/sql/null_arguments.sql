-- Null arguments. A null is an error, so that no write is lost in silence. Null options are {}.
SELECT docshard.insert_one('nulls.c', NULL);
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.insert_one(NULL, '{"_id": 1}');
SELECT docshard.update_many('nulls.c', NULL, '{"$set": {"a": 1}}');
SELECT docshard.update_many('nulls.c', '{}', NULL);
SELECT docshard.aggregate('nulls.c', NULL);
SELECT docshard.run_command('nulls', NULL);
SELECT docshard.find('nulls.c', NULL);
SELECT * FROM docshard.find(NULL);
SELECT docshard.find('nulls.c', filter) FROM (VALUES ('{}'::json), (NULL)) AS given (filter);
SELECT count(*) FROM docshard.collections WHERE namespace = 'nulls.c';
SELECT docshard.insert_one('nulls.c', '{"_id": 1}', NULL);
SELECT docshard.insert_one(ns => 'nulls.c', options => NULL, doc => '{"_id": 2, "a": [null]}');
SELECT docshard.update_one('nulls.c', '{"_id": 1}', '{"$set": {"a": 1}}', NULL);
SELECT docshard.find('nulls.c', '{}', NULL);
SELECT docshard.find_one('nulls.c', '{"_id": 1}', NULL);
SELECT docshard.count_documents('nulls.c', '{}', NULL);
SELECT docshard.delete_one('nulls.c', '{"_id": 1}', NULL);
SELECT docshard.drop_collection('nulls.c');

-- Every function, for each of its arguments: what calls it with a null and the other arguments given. Null means something for those
-- of the first list.
DO $$
DECLARE
    meaningful CONSTANT text[] := ARRAY['accept_router verifier', 'check_metadata_consistency ns', 'dismantle confirm', 'enable_sharding primary', 'expire_now ns', 'move_range max',
                                        'move_range min', 'set_setting value', 'shard_draining_status shard', 'unshard_collection shard', 'update_zone_key_range zone'];
    -- They return null for null, as PostgreSQL's conversions do.
    conversions CONSTANT text[] := ARRAY['date', 'decimal', 'error_code', 'object_id', 'to_numeric', 'to_timestamptz'];
    called record;
    tried int := 0;
    found text[];
    given text;
BEGIN
    FOR called IN
        SELECT p.oid::regprocedure AS name, p.proname || ' ' || p.proargnames[n] AS key, p.proargnames[n] AS argument,
               (SELECT format('SELECT docshard.%I(%s)', p.proname, string_agg(CASE o WHEN n THEN '%s' ELSE v END || '::' || format_type(t, NULL), ', ' ORDER BY o)) AS call
                  FROM unnest(p.proargtypes) WITH ORDINALITY AS a (t, o),
                       LATERAL (SELECT CASE WHEN t IN ('text'::regtype, 'varchar'::regtype) THEN $v$'nulls.c'$v$ WHEN t = 'bool'::regtype THEN 'false'
                                            WHEN t IN ('int4'::regtype, 'int8'::regtype) THEN '1' WHEN format_type(t, NULL) ~ '\[\]$' THEN $v$'{}'$v$
                                            ELSE $v$'{}'$v$ END) AS value (v))
          FROM pg_proc p, generate_series(1, p.pronargs) AS n
         WHERE p.pronamespace = 'docshard'::regnamespace AND NOT (p.proname = ANY (conversions) AND p.proisstrict)
         ORDER BY p.oid::regprocedure::text, n
    LOOP
        CONTINUE WHEN called.key = ANY (meaningful);
        tried := tried + 1;
        found := '{}';
        FOREACH given IN ARRAY CASE called.argument WHEN 'options' THEN ARRAY['NULL', $v$'{}'$v$] ELSE ARRAY['NULL'] END LOOP
            BEGIN
                EXECUTE format(called.call, given);
                RAISE EXCEPTION 'no error';
            EXCEPTION WHEN OTHERS THEN
                found := found || (SQLSTATE || ' ' || SQLERRM);
            END;
        END LOOP;
        IF called.argument = 'options' THEN
            CONTINUE WHEN found[1] = found[2];
        ELSE
            CONTINUE WHEN found[1] = format('22004 argument "%s" must not be null', called.argument);
        END IF;
        RAISE NOTICE '%, %: %', called.name, called.argument, array_to_string(found, ', but {}: ');
    END LOOP;
    RAISE NOTICE '%', CASE WHEN tried > 100 THEN 'more than 100 arguments' ELSE tried || ' arguments' END;
END $$;

-- Where null means something for one argument, the others must not be null.
SELECT docshard.set_setting(NULL, '64');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.enable_sharding(NULL);
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.enable_sharding(NULL, 'local');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.update_zone_key_range(NULL, '{"k": 1}', '{"k": 2}', 'EU');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.update_zone_key_range('nulls.c', NULL, '{"k": 2}', 'EU');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.update_zone_key_range('nulls.c', '{"k": 1}', NULL, NULL);
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.move_range(NULL, '{"k": 1}', '{"k": 2}', 'local');
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.move_range('nulls.c', '{"k": 1}', NULL, NULL);
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.move_range('nulls.c', '{"k": 1}', NULL, 'local', NULL);
\echo :LAST_ERROR_SQLSTATE
SELECT docshard.insert_many('nulls.c', ARRAY['{"_id": 1}', NULL]::jsonb[]);
\echo :LAST_ERROR_SQLSTATE

